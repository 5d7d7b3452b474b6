//! States and timers over saves, losses and restores with any parallelism: nothing is lost, nothing happens twice
//! (over 400 lines: a function and a model of it, under all that may happen to them).

use super::*;
use crate::fleet::Fleet;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weir_engine::EndKind;
use weir_engine::testkit::OpHarness;
use weir_state::key_hash;

/// Counts per key; a value above 0 sets a timer at that time, one below 0 takes it back, -1000 clears. Timers tell the count.
#[derive(Clone)]
struct Counts;

type Told = (u64, u64);

impl ProcessFunction<u64, i64> for Counts {
    type Out = Told;
    type State = u64;
    fn process(
        &mut self,
        record: Record<i64>,
        cx: &mut KeyedContext<'_, u64, u64>,
        _: &mut impl Collector<Told>,
    ) -> Result<()> {
        *cx.state()? += 1;
        match record.value {
            -1_000 => cx.clear_state(),
            0 => {}
            at @ 1.. => cx.set_timer(EventTime(at)),
            at => cx.delete_timer(EventTime(-at)),
        }
        Ok(())
    }
    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, u64, u64>,
        out: &mut impl Collector<Told>,
    ) -> Result<()> {
        let count = cx.peek_state()?.copied().unwrap_or(0);
        out.emit(Record::new((*cx.key(), count), time))
    }
}

fn fleet(parallelism: usize) -> Fleet<u64, i64, Process<u64, i64, Counts>> {
    Fleet::of(Process::new(Counts), parallelism)
}

fn told(fleet: &mut Fleet<u64, i64, Process<u64, i64, Counts>>) -> Vec<(i64, Told)> {
    let mut told: Vec<_> = fleet.take().into_iter().map(|r| (r.time.0, r.value)).collect();
    told.sort_unstable();
    told
}

#[test]
fn e25_each_timer_fires_once_whatever_the_parallelism() {
    const KEYS: u64 = 5_000;
    let mut fleet = fleet(2);
    fleet.batch((0..KEYS).map(|key| (key, 1 + key as i64 % 97, 0)));
    let mut seen = BTreeSet::new();
    let mut count = 1;
    for (parallelism, watermark) in [(3, 10), (7, 40), (1, 60), (2, 200)] {
        let saved = fleet.save();
        // What comes after the snapshot did not happen.
        fleet.batch((0..KEYS).map(|key| (key, 300, 0)));
        fleet.watermark(250);
        fleet.take();
        fleet.restore(&saved, parallelism);
        fleet.batch((0..KEYS).map(|key| (key, 0, 0)));
        count += 1;
        fleet.watermark(watermark);
        for (time, (key, counted)) in told(&mut fleet) {
            assert_eq!((time, counted), (1 + key as i64 % 97, count), "key {key}");
            assert!(seen.insert(key), "key {key} fired twice");
        }
    }
    assert_eq!(seen.len() as u64, KEYS);
}

#[test]
fn timers_of_one_time_keep_their_order_when_one_subtask_takes_over_from_several() {
    let order = || {
        let mut fleet = fleet(3);
        fleet.batch((0..500).map(|key| (key * 7 % 500, 50, 0)));
        let saved = fleet.save();
        fleet.restore(&saved, 1);
        fleet.watermark(50);
        fleet.take().into_iter().map(|r| r.value.0).collect::<Vec<_>>()
    };
    let first = order();
    assert_eq!(first, order());
    // Those of one old subtask are still in the order in which they were set.
    for subtask in 0..3 {
        let owned = |key: &u64| key_hash(key).group(128).subtask(128, 3) == subtask;
        let set: Vec<u64> = (0..500).map(|key| key * 7 % 500).filter(owned).collect();
        assert_eq!(first.iter().copied().filter(owned).collect::<Vec<_>>(), set);
    }
}

#[test]
fn e23_event_time_does_not_begin_anew_after_a_restore() {
    let mut fleet = fleet(2);
    fleet.batch([(1, 100, 0), (2, 101, 0)]);
    fleet.watermark(100);
    assert_eq!(told(&mut fleet), [(100, (1, 1))]);
    // Set too late: due at the next advance, and that is one beyond where event time was.
    fleet.batch([(1, 60, 0)]);
    let saved = fleet.save();
    fleet.restore(&saved, 3);
    for watermark in [1, 59, 99, 100] {
        fleet.watermark(watermark);
        assert_eq!(told(&mut fleet), []);
    }
    fleet.watermark(101);
    assert_eq!(told(&mut fleet), [(60, (1, 2)), (101, (2, 1))]);
}

#[test]
fn the_last_watermark_comes_again_after_a_restore() {
    let mut fleet = fleet(1);
    fleet.batch([(1, 100, 0)]);
    fleet.watermark(i64::MAX);
    assert_eq!(told(&mut fleet), [(100, (1, 1))]);
    let saved = fleet.save();
    fleet.restore(&saved, 2);
    fleet.end(EndKind::Flush);
    assert_eq!(told(&mut fleet), []);
}

/// Sets processing timers by the value: that many milliseconds from now.
#[derive(Clone)]
struct Alarms;

impl ProcessFunction<u64, i64> for Alarms {
    type Out = (u64, i64);
    type State = ();
    fn process(
        &mut self,
        record: Record<i64>,
        cx: &mut KeyedContext<'_, u64, ()>,
        _: &mut impl Collector<(u64, i64)>,
    ) -> Result<()> {
        match record.value {
            i64::MIN => cx.delete_processing_timer(record.time.0),
            at => cx.set_processing_timer(at),
        }
        Ok(())
    }
    fn on_processing_timer(
        &mut self,
        time_ms: i64,
        cx: &mut KeyedContext<'_, u64, ()>,
        out: &mut impl Collector<(u64, i64)>,
    ) -> Result<()> {
        assert!(cx.now_ms() >= time_ms);
        if time_ms == 7 {
            cx.set_processing_timer(7); // waits for the next time
            cx.set_processing_timer(8); // does not
        }
        out.emit(Record::new((*cx.key(), time_ms), EventTime(0)))
    }
}

#[test]
fn processing_timers_fire_after_a_batch_and_when_it_is_quiet() {
    let mut h = OpHarness::new(Process::new(Alarms)).unwrap();
    let keyed = |key: u64, value: i64| Keyed { hash: key_hash(&key), key, value };
    h.batch([(keyed(1, 10), 0), (keyed(2, 5), 0), (keyed(3, 10), 0), (keyed(3, i64::MIN), 10)]).unwrap();
    assert_eq!(h.take_values(), [(2, 5), (1, 10)]);
    h.quiet().unwrap();
    assert_eq!(h.take_values(), []);
    h.send(keyed(4, 7), 0).unwrap();
    assert_eq!(h.take_values(), [(4, 7), (4, 8)]);
    h.quiet().unwrap();
    assert_eq!(h.take_values(), [(4, 7), (4, 8)]);
    h.send(keyed(5, i64::MAX), 0).unwrap();
    h.end(EndKind::Flush).unwrap();
    assert_eq!(h.take_values(), [(4, 7), (4, 8)]);
}

#[test]
fn a_pause_wakes_at_each_processing_timer() {
    use weir_engine::testkit::{ManualClock, context_by};
    let clock = ManualClock::at(1_000);
    let cx = context_by(std::sync::Arc::new(clock.clone()), "alarms", 0, 1);
    let mut h = OpHarness::with(Process::new(Alarms), &cx).unwrap();
    assert_eq!(h.wakes_at(), None, "nobody looks at the clock for nothing");
    let keyed = |key: u64, value: i64| Keyed { hash: key_hash(&key), key, value };
    h.batch([(keyed(1, 1_500), 0), (keyed(2, 1_200), 0), (keyed(3, 9_000), 0)]).unwrap();
    assert_eq!(h.wakes_at(), Some(1_200));
    h.pause(&clock, Duration::from_millis(199)).unwrap();
    assert_eq!(h.take_values(), []);
    h.pause(&clock, Duration::from_millis(1)).unwrap();
    assert_eq!((h.take_values(), h.wakes_at()), (vec![(2, 1_200)], Some(1_500)));
    h.pause(&clock, Duration::from_secs(60)).unwrap();
    assert_eq!((h.take_values(), h.wakes_at()), (vec![(1, 1_500), (3, 9_000)], None));
    assert_eq!(weir_engine::Clock::now_ms(&clock), 61_200);
}

#[test]
fn processing_timers_are_restored_and_those_whose_time_came_meanwhile_fire() {
    let clock = weir_engine::testkit::context("clock", 0, 1).clock().clone();
    let soon = clock.now_ms() + 300;
    let mut fleet = Fleet::of(Process::new(Alarms), 2);
    fleet.batch((0..100).map(|key| (key, soon, 0)).chain([(7, i64::MAX, 0)]));
    let saved = fleet.save();
    assert_eq!(fleet.take(), [], "set and saved within 300 ms");
    while clock.now_ms() < soon {
        std::thread::yield_now();
    }
    fleet.restore(&saved, 3);
    fleet.quiet();
    while fleet.has_more() {
        fleet.quiet();
    }
    let fired: BTreeSet<_> = fleet.take().into_iter().map(|r| r.value).collect();
    assert_eq!(fired, (0..100).map(|key| (key, soon)).collect());
    fleet.quiet();
    assert_eq!(fleet.take(), []);
}

/// A checkpoint in the middle of a million timers, of which a test has twenty: each fires once, the watermark goes on behind the last.
#[test]
fn timers_that_fire_in_parts_fire_once_each_with_a_checkpoint_in_between() {
    const KEYS: u64 = 20;
    for parallelism in [1, 2, 3] {
        let mut before = fleet(1);
        before.batch((0..KEYS).map(|key| (key, 10 + key as i64 % 3, 0)));
        before.save();
        before.begin_watermark(50);
        let mut fired = told(&mut before);
        assert!(before.has_more() && !fired.is_empty() && fired.len() < KEYS as usize);
        assert!(fired.iter().all(|(time, _)| *time == 10), "in the order of their times: {fired:?}");
        let saved = before.save();
        before.restore(&saved, parallelism);
        assert!(before.has_more(), "without a watermark");
        // Records find their keys as if all had fired, and are counted after that.
        before.batch([(3, 0, 60), (4, 0, 60)]);
        while before.has_more() {
            before.quiet();
        }
        fired.extend(told(&mut before));
        fired.sort_unstable();
        let expected: BTreeSet<_> = (0..KEYS).map(|key| (10 + key as i64 % 3, (key, 1))).collect();
        assert_eq!(fired, expected.into_iter().collect::<Vec<_>>());
        before.watermark(1_000);
        assert_eq!(told(&mut before), []);
    }
}

#[test]
fn a_watermark_goes_on_behind_the_timers_that_it_fires() {
    use weir_engine::testkit::Given;
    let mut h = OpHarness::new(Process::new(Counts)).unwrap();
    let keyed = |key: u64, value| Keyed { hash: key_hash(&key), key, value };
    h.batch((0..9).map(|key| (keyed(key, 5 + key as i64), 0))).unwrap();
    h.begin_watermark(9).unwrap();
    // Set too late for this one, in time for the next.
    h.send(keyed(77, 8), 20).unwrap();
    h.begin_watermark(30).unwrap();
    while h.has_more() {
        h.quiet().unwrap();
    }
    let order: Vec<i64> = (h.take_given().into_iter())
        .map(|given| match given {
            Given::Record(record) => record.time.0,
            Given::Signal(weir_engine::HeldSignal::Watermark(watermark)) => -watermark.0,
            Given::Signal(_) => 0,
        })
        .collect();
    let first = order.iter().position(|at| *at == -9).unwrap();
    assert!(order[..first].starts_with(&[5, 6, 7, 8]) && order[..first].contains(&9), "{order:?}");
    assert_eq!((order.len(), order.last()), (12, Some(&-30)));
}

/// Sets an event timer and one by the clock, and tells which fired.
#[derive(Clone)]
struct Both;

impl ProcessFunction<u64, (i64, i64)> for Both {
    type Out = (u64, &'static str);
    type State = ();
    fn process(
        &mut self,
        record: Record<(i64, i64)>,
        cx: &mut KeyedContext<'_, u64, ()>,
        _: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        cx.set_timer(EventTime(record.value.0));
        cx.set_processing_timer(record.value.1);
        Ok(())
    }
    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, u64, ()>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        out.emit(Record::new((*cx.key(), "event"), time))
    }
    fn on_processing_timer(
        &mut self,
        _: i64,
        cx: &mut KeyedContext<'_, u64, ()>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        out.emit(Record::new((*cx.key(), "clock"), EventTime::NONE))
    }
}

#[test]
fn of_a_key_what_event_time_has_reached_fires_before_what_the_clock_has() {
    const KEYS: u64 = 20;
    for ends in [false, true] {
        let clock = weir_engine::testkit::ManualClock::at(1_000);
        let cx = weir_engine::testkit::context_by(std::sync::Arc::new(clock.clone()), "both", 0, 1);
        let mut h = OpHarness::with(Process::new(Both), &cx).unwrap();
        let keyed = |key: u64| Keyed { hash: key_hash(&key), key, value: (10, 1_500) };
        h.batch((0..KEYS).map(|key| (keyed(key), 0))).unwrap();
        h.begin_watermark(10).unwrap();
        clock.advance(Duration::from_secs(1));
        if ends {
            // What is due by then fires, by both clocks.
            h.end(EndKind::Flush).unwrap();
        } else {
            h.quiet().unwrap();
            assert!(
                h.has_more() && h.given() < 2 * KEYS as usize,
                "a million by the clock come in parts, too"
            );
            while h.has_more() {
                h.quiet().unwrap();
            }
        }
        let fired = h.take_values();
        assert_eq!(fired.len() as u64, 2 * KEYS);
        for key in 0..KEYS {
            let of_key: Vec<_> = fired.iter().filter(|fired| fired.0 == key).map(|fired| fired.1).collect();
            assert_eq!(of_key, ["event", "clock"], "{key}");
        }
    }
}

/// `Counts`, with a state that another version had kept in other ways.
#[derive(Clone)]
struct Migrated(Schema<u64>);

impl ProcessFunction<u64, i64> for Migrated {
    type Out = Told;
    type State = u64;
    fn schema(&self) -> Schema<u64> {
        self.0.clone()
    }
    fn process(
        &mut self,
        record: Record<i64>,
        cx: &mut KeyedContext<'_, u64, u64>,
        out: &mut impl Collector<Told>,
    ) -> Result<()> {
        *cx.state()? += 1;
        let told = (*cx.key(), *cx.state()?);
        out.emit(record.with(told))
    }
}

#[test]
fn a_state_of_an_older_version_is_migrated_and_one_of_a_newer_version_refused() {
    let mut fleet = fleet(1);
    fleet.batch((0..10).map(|key| (key, 0, 0)));
    let saved = fleet.save();
    let second = Schema::<u64>::after(Schema::<u64>::first(), |old| old + 100);
    let restored = |schema: &Schema<u64>, saved: &weir_engine::testkit::Saved| {
        OpHarness::restored(Process::new(Migrated(schema.clone())), &[saved], 0, 1)
    };
    let mut migrated = restored(&second, &saved[0]).unwrap();
    let keyed = |key: u64| Keyed { hash: key_hash(&key), key, value: 0 };
    migrated.batch([(keyed(3), 0), (keyed(77), 0)]).unwrap();
    assert_eq!(migrated.take_values(), [(3, 102), (77, 1)]);
    let again = migrated.save(2).unwrap();
    let mut third = restored(&Schema::after(second, |old: u64| old * 10), &again).unwrap();
    third.batch([(keyed(3), 0), (keyed(4), 0), (keyed(77), 0)]).unwrap();
    assert_eq!(third.take_values(), [(3, 1_021), (4, 1_011), (77, 11)]);
    let refused = restored(&Schema::first(), &again).unwrap_err().chain();
    assert!(refused.contains("version 2") && refused.contains("'state'"), "{refused}");
}

#[derive(Clone, Debug)]
enum Step {
    Batch(Vec<(u64, i64)>),
    Watermark(i64),
    /// The same, but timers that fire in parts are not waited for.
    Begin(i64),
    /// The next part.
    Quiet,
    Save,
    Lose,
    Restore(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let value = prop_oneof![
        4 => Just(0i64),
        4 => 1..60i64,
        2 => -60..0i64,
        1 => Just(-1_000i64),
    ];
    prop_oneof![
        6 => prop::collection::vec((0..60u64, value), 0..20).prop_map(Step::Batch),
        2 => (1..20i64).prop_map(Step::Watermark),
        2 => (1..40i64).prop_map(Step::Begin),
        1 => Just(Step::Quiet),
        2 => Just(Step::Save),
        1 => Just(Step::Lose),
        1 => (1..5usize).prop_map(Step::Restore),
    ]
}

/// The run that never failed, key by key.
#[derive(Clone, Default)]
struct Model {
    counts: BTreeMap<u64, u64>,
    timers: BTreeSet<(i64, u64)>,
    watermark: i64,
}

impl Model {
    fn take(&mut self, key: u64, value: i64) {
        *self.counts.entry(key).or_default() += 1;
        match value {
            -1_000 => drop(self.counts.remove(&key)),
            0 => {}
            at @ 1.. => drop(self.timers.insert((at, key))),
            at => drop(self.timers.remove(&(-at, key))),
        }
    }

    fn advance(&mut self, to: i64) -> Vec<(i64, Told)> {
        self.watermark = to;
        let later = self.timers.split_off(&(to + 1, 0));
        let due = std::mem::replace(&mut self.timers, later).into_iter();
        due.map(|(time, key)| (time, (key, self.counts.get(&key).copied().unwrap_or(0)))).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Saved, lost and restored anywhere, the operator gives what a plain model gives.
    #[test]
    fn agrees_with_a_model(steps in prop::collection::vec(step(), 0..60)) {
        let mut fleet = fleet(2);
        let mut model = Model::default();
        // What the model has fired and the operator has not.
        let mut owed: Vec<(i64, Told)> = Vec::new();
        let mut saved = (fleet.save(), model.clone(), owed.clone());
        for step in steps.into_iter().chain([Step::Watermark(1_000)]) {
            let mut saves = false;
            match step {
                Step::Batch(records) => {
                    records.iter().for_each(|(key, value)| model.take(*key, *value));
                    fleet.batch(records.into_iter().map(|(key, value)| (key, value, 0)));
                }
                Step::Watermark(by) | Step::Begin(by) => {
                    let to = model.watermark + by;
                    owed.extend(model.advance(to));
                    match step {
                        Step::Begin(_) => fleet.begin_watermark(to),
                        _ => fleet.watermark(to),
                    }
                }
                Step::Quiet => fleet.quiet(),
                Step::Save => {
                    // Of what was set too late for an advance that a restore goes on with, that advance is told as of any other.
                    while fleet.has_more() && model.timers.first().is_some_and(|first| first.0 <= model.watermark) {
                        fleet.quiet();
                    }
                    saves = true;
                }
                Step::Lose => fleet.lose(),
                Step::Restore(parallelism) => {
                    fleet.restore(&saved.0, parallelism);
                    (model, owed) = (saved.1.clone(), saved.2.clone());
                    prop_assert_eq!(fleet.parallelism(), parallelism);
                }
            }
            for fired in told(&mut fleet) {
                let at = owed.iter().position(|owed| *owed == fired);
                prop_assert!(at.is_some(), "{:?} fired, and only these were owed: {:?}", fired, owed);
                at.map(|at| owed.swap_remove(at));
            }
            prop_assert!(fleet.has_more() || owed.is_empty(), "not fired: {:?}", owed);
            if saves {
                saved = (fleet.save(), model.clone(), owed.clone());
            }
        }
    }
}
