//! State stays with its key, timers fire once and in order, and an end either fires everything or nothing.

use super::*;
use serde::Deserialize;
use weir_engine::EndKind;
use weir_engine::testkit::OpHarness;
use weir_state::key_hash;

fn keyed<K: Key, T>(key: K, value: T) -> Keyed<K, T> {
    Keyed { hash: key_hash(&key), key, value }
}

/// Adds up per key and tells every sum; `0` clears; a value above 100 sets a timer at that time.
#[derive(Clone)]
struct Sums;

impl<K: Key> ProcessFunction<K, i64> for Sums {
    type Out = (K, i64);
    type State = i64;
    fn process(
        &mut self,
        record: Record<i64>,
        cx: &mut KeyedContext<'_, K, i64>,
        out: &mut impl Collector<(K, i64)>,
    ) -> Result<()> {
        match record.value {
            0 => cx.clear_state(),
            at @ 101.. => cx.set_timer(EventTime(at)),
            at @ ..-100 => cx.delete_timer(EventTime(-at)),
            n => *cx.state()? += n,
        }
        let sum = cx.peek_state()?.copied().unwrap_or(-1);
        out.emit(record.with((cx.key().clone(), sum)))
    }
    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, K, i64>,
        out: &mut impl Collector<(K, i64)>,
    ) -> Result<()> {
        out.emit(Record::new((cx.key().clone(), cx.peek_state()?.copied().unwrap_or(-1)), time))
    }
}

fn harness<K: Key>() -> OpHarness<Keyed<K, i64>, Process<K, i64, Sums>> {
    OpHarness::new(Process::new(Sums)).unwrap()
}

#[test]
fn keys_do_not_see_each_other() {
    let mut h = harness::<String>();
    for (key, n) in [("a", 1), ("b", 10), ("a", 2), ("b", 0), ("a", 3), ("b", 5)] {
        h.send(keyed(key.to_owned(), n), 0).unwrap();
    }
    let sums: Vec<_> = h.take_values().into_iter().map(|(k, sum)| format!("{k}{sum}")).collect();
    assert_eq!(sums, ["a1", "b10", "a3", "b-1", "a6", "b5"]);
}

#[test]
fn keys_whose_hashes_collide_do_not_see_each_other() {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
    struct Same(u8);
    impl Serialize for Same {
        fn serialize<S: serde::Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
            s.serialize_u8(0)
        }
    }
    let mut h = harness::<Same>();
    for round in 1..=3 {
        for key in 0..50 {
            h.send(keyed(Same(key), i64::from(key) + 1), round).unwrap();
        }
    }
    h.send(keyed(Same(7), 0), 4).unwrap();
    h.take();
    for key in 0..50 {
        h.send(keyed(Same(key), 500), 5).unwrap(); // sets a timer, adds nothing
    }
    let expected: Vec<_> =
        (0..50).map(|k| (Same(k), if k == 7 { -1 } else { 3 * (i64::from(k) + 1) })).collect();
    assert_eq!(h.take_values(), expected);
    h.send(keyed(Same(9), -500), 5).unwrap();
    h.take();
    h.watermark(500).unwrap();
    let fired: Vec<_> = h.take_values().into_iter().map(|(k, _)| k.0).collect();
    assert_eq!(fired, (0..50).filter(|k| *k != 9).collect::<Vec<_>>());
}

#[test]
fn timers_fire_once_in_order_with_the_state_of_their_key() {
    let mut h = harness::<u64>();
    for (key, n) in [(1, 5), (2, 7), (2, 300), (1, 200), (1, 300), (2, 200), (1, 200), (2, 250), (2, -250)] {
        h.send(keyed(key, n), 0).unwrap();
    }
    h.take();
    h.watermark(199).unwrap();
    assert_eq!(h.take(), []);
    h.watermark(300).unwrap();
    let fired: Vec<_> = h.take().into_iter().map(|r| (r.time.0, r.value)).collect();
    assert_eq!(fired, [(200, (1, 5)), (200, (2, 7)), (300, (2, 7)), (300, (1, 5))]);
    h.watermark(1_000).unwrap();
    assert_eq!(h.take(), []);
}

#[test]
fn a_timer_in_the_past_fires_at_the_next_advance_only() {
    let mut h = harness::<u64>();
    h.watermark(500).unwrap();
    h.send(keyed(1, 200), 510).unwrap();
    h.take();
    h.quiet().unwrap();
    assert_eq!(h.take(), []);
    h.watermark(501).unwrap();
    assert_eq!(h.take(), [Record::new((1, -1), EventTime(200))]);
}

#[test]
fn keep_fires_nothing_and_flush_everything() {
    for (kind, fired) in [(EndKind::Keep, 0), (EndKind::Flush, 3)] {
        let mut h = harness::<u64>();
        for n in [200, i64::MAX, 300] {
            h.send(keyed(1, n), 0).unwrap();
        }
        h.take();
        h.end(kind).unwrap();
        assert_eq!(h.take().len(), fired, "{kind:?}");
    }
}

/// Ticks every ten milliseconds for ever.
#[derive(Clone)]
struct Ticks;

impl ProcessFunction<u64, ()> for Ticks {
    type Out = i64;
    type State = ();
    fn process(
        &mut self,
        record: Record<()>,
        cx: &mut KeyedContext<'_, u64, ()>,
        _: &mut impl Collector<i64>,
    ) -> Result<()> {
        assert_eq!(cx.is_late(record.time), record.time.0 <= cx.watermark().0);
        cx.set_timer(EventTime(record.time.0 + 10));
        Ok(())
    }
    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, u64, ()>,
        out: &mut impl Collector<i64>,
    ) -> Result<()> {
        cx.set_timer(EventTime(time.0 + 10));
        out.emit(Record::new(time.0, time))
    }
}

#[test]
fn a_timer_that_sets_the_next_ticks_through_an_advance_and_stops_at_the_end() {
    let cx = weir_engine::testkit::context("ticks", 0, 1);
    let mut h = OpHarness::with(Process::new(Ticks), &cx).unwrap();
    h.send(keyed(1, ()), 0).unwrap();
    h.watermark(35).unwrap();
    assert_eq!(h.take_values(), [10, 20, 30]);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(h.take_values(), [40]);
    assert_eq!(cx.counter("timers_refused").get(), 1);
}
