//! Deduplication against a plain loop over the same records, whatever their order, restarts and parallelism; and by the clock.

use super::*;
use crate::fleet::Fleet;
use crate::ordered::{Ordered, Timely};
use crate::process::Process;
use crate::trial::{cuts, in_order, input, run};
use proptest::prelude::*;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use weir_engine::testkit::{ManualClock, OpHarness, SideProbe, context, context_by};
use weir_engine::{EndKind, Keyed, OperatorContext, SideSlot};
use weir_state::key_hash;

type ByTime<T> = Timely<u64, T, Ordered<u64, T, Runs<T>>>;
type ByClock = OpHarness<Keyed<u64, i64>, Process<u64, i64, ClockRuns<i64>>>;

fn by_time<T: Kept>(keep: Keep, t: i64) -> ByTime<T> {
    Timely::new(Ordered::new(Runs::new(keep, t)), SideSlot::default())
}

fn keyed(key: u64, value: i64) -> Keyed<u64, i64> {
    Keyed { hash: key_hash(&key), key, value }
}

/// `(number, time)` of what is to be given of a key, from the definition alone.
fn plain(records: &[((i64, usize), i64)], keep: Keep, t: i64) -> Vec<(usize, i64)> {
    let mut given = Vec::new();
    let mut rest = records;
    while let Some((_, start)) = rest.first() {
        let run = rest.iter().take_while(|r| r.1 - start < t).count();
        given.push(match keep {
            Keep::First => (rest[0].0.1, *start),
            Keep::Last => (rest[run - 1].0.1, start + t - 1),
        });
        rest = &rest[run..];
    }
    given
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// One of each run, whatever the order within the bound, saves, losses, restores and parallelism.
    #[test]
    fn agrees_with_a_loop(input in input(), cuts in cuts(), last in any::<bool>(), t in 1..60i64) {
        let keep = if last { Keep::Last } else { Keep::First };
        let given = run(by_time(keep, t), &input, &cuts, true);
        let mut count = 0;
        for key in 0..4 {
            let of_key: Vec<usize> = input.iter().filter(|i| i.0 == key).map(|i| i.1.1).collect();
            let got = given.iter().filter(|r| of_key.contains(&r.value.1)).map(|r| (r.value.1, r.time.0));
            let got: Vec<_> = got.collect();
            prop_assert_eq!(&got, &plain(&in_order(&input, key), keep, t));
            count += got.len();
        }
        prop_assert_eq!(given.len(), count);
    }
}

#[test]
fn e18_a_record_exactly_so_much_later_begins_the_next_run() {
    for (keep, given) in [(Keep::First, [(0, -5), (2, 0), (4, 6)]), (Keep::Last, [(1, -1), (3, 4), (4, 10)])]
    {
        let mut h = OpHarness::new(by_time(keep, 5)).unwrap();
        h.batch([-5, -1, 0, 4, 6].into_iter().enumerate().map(|(i, t)| (keyed(1, i as i64), t))).unwrap();
        h.end(EndKind::Flush).unwrap();
        let got: Vec<_> = h.take().into_iter().map(|r| (r.value, r.time.0)).collect();
        assert_eq!(got, given, "{keep:?}");
    }
}

#[test]
fn the_last_of_a_run_is_given_when_the_watermark_reaches_its_last_moment() {
    let mut h = OpHarness::new(by_time(Keep::Last, 10)).unwrap();
    h.batch([(keyed(1, 5), 5), (keyed(1, 0), 0)]).unwrap();
    h.watermark(8).unwrap();
    assert_eq!(h.take(), []);
    // Behind the record that is held, but in time and later than it.
    h.send(keyed(1, 9), 9).unwrap();
    h.watermark(9).unwrap();
    assert_eq!(h.take(), [Record::new(9, EventTime(9))]);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(h.take(), []);
}

#[test]
fn e12_late_records_begin_no_run_and_come_out_aside() {
    let late = SideSlot::default();
    let probe = SideProbe::attach(&late);
    let cx = context("once", 0, 1);
    let op = Timely::new(Ordered::new(Runs::new(Keep::First, 10)), late);
    let mut h = OpHarness::with(op, &cx).unwrap();
    h.watermark(200).unwrap();
    h.batch([(keyed(1, 7), 200), (keyed(1, 8), 201)]).unwrap();
    h.quiet().unwrap();
    h.end(EndKind::Flush).unwrap();
    assert_eq!(h.take(), [Record::new(8, EventTime(201))]);
    assert_eq!(probe.take(), [Record::new(7, EventTime(200))]);
    assert_eq!(cx.counter("late_records").get(), 1);
}

#[test]
fn e22_e25_a_run_ends_after_a_restore_though_nothing_comes_for_its_key() {
    const KEYS: u64 = 1_000;
    let mut fleet = Fleet::of(by_time(Keep::Last, 10), 2);
    fleet.batch((0..KEYS).map(|key| (key, key as i64, 0)));
    fleet.watermark(3);
    for parallelism in [3, 1, 2] {
        let saved = fleet.save();
        fleet.watermark(50);
        assert_eq!(fleet.take().len() as u64, KEYS);
        fleet.restore(&saved, parallelism);
    }
    fleet.watermark(8);
    assert_eq!(fleet.take(), []);
    fleet.watermark(9);
    let mut given: Vec<i64> = fleet.take().into_iter().map(|r| r.value).collect();
    given.sort_unstable();
    assert_eq!(given, (0..KEYS as i64).collect::<Vec<_>>());
    fleet.end(EndKind::Flush);
    assert_eq!(fleet.take(), []);
}

fn stored(cx: &OperatorContext) -> usize {
    let mut rows = 0;
    let mut count = |_: &[u8], _: &[u8]| {
        rows += 1;
        ControlFlow::Continue(())
    };
    cx.store().unwrap().backend().scan(&[], &[], &mut count).unwrap();
    rows
}

#[test]
fn nothing_is_kept_of_runs_that_are_over() {
    for keep in [Keep::First, Keep::Last] {
        let cx = context("once", 0, 1);
        let mut h = OpHarness::with(by_time(keep, 10), &cx).unwrap();
        h.batch((0..100).map(|key| (keyed(key, 0), 0))).unwrap();
        h.save(1).unwrap();
        assert!(stored(&cx) >= 300);
        h.watermark(9).unwrap();
        assert_eq!(h.take().len(), 100);
        h.save(2).unwrap();
        assert_eq!(stored(&cx), 0, "{keep:?}");
    }
}

fn by_clock(keep: Keep) -> (ByClock, ManualClock, OperatorContext) {
    let clock = ManualClock::at(1_000);
    let cx = context_by(Arc::new(clock.clone()), "once", 0, 1);
    (OpHarness::with(Process::new(ClockRuns::new(keep, 100)), &cx).unwrap(), clock, cx)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn by_the_clock_the_first_is_given_at_once_and_the_next_after_the_time() {
    let (mut h, clock, cx) = by_clock(Keep::First);
    h.batch([(keyed(1, 1), i64::MIN), (keyed(1, 2), 7), (keyed(2, 3), 0)]).unwrap();
    assert_eq!(h.take_values(), [1, 3]);
    clock.advance(ms(99));
    h.send(keyed(1, 4), 0).unwrap();
    assert!(h.take_values().is_empty());
    // The timer has not fired yet: the record comes first.
    clock.advance(ms(1));
    h.send(keyed(1, 5), 0).unwrap();
    assert_eq!(h.take_values(), [5]);
    h.pause(&clock, ms(100)).unwrap();
    h.send(keyed(2, 6), 0).unwrap();
    h.pause(&clock, ms(1_000)).unwrap();
    assert_eq!(h.take_values(), [6]);
    h.save(1).unwrap();
    assert_eq!(stored(&cx), 0);
    h.end(EndKind::Flush).unwrap();
    assert!(h.take_values().is_empty());
}

#[test]
fn by_the_clock_the_last_is_given_after_the_time_or_when_the_input_ends() {
    let (mut h, clock, cx) = by_clock(Keep::Last);
    h.batch([(keyed(1, 1), 50), (keyed(1, 2), 40)]).unwrap();
    h.pause(&clock, ms(99)).unwrap();
    assert_eq!(h.take(), []);
    h.pause(&clock, ms(1)).unwrap();
    assert_eq!(h.take(), [Record::new(2, EventTime(40))]);
    h.save(1).unwrap();
    assert_eq!(stored(&cx), 0);
    // A record that comes when the time is over and the timer has not fired is in the next run.
    h.send(keyed(1, 3), 60).unwrap();
    clock.advance(ms(100));
    h.send(keyed(1, 4), 61).unwrap();
    assert_eq!(h.take_values(), [3]);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(h.take_values(), [4]);
}

#[test]
fn by_the_clock_what_is_held_is_kept_when_the_job_is_to_be_continued_and_given_later() {
    let (mut h, _, _) = by_clock(Keep::Last);
    h.send(keyed(1, 1), 50).unwrap();
    let saved = h.save(1).unwrap();
    h.end(EndKind::Keep).unwrap();
    assert_eq!(h.take(), []);
    let op = Process::new(ClockRuns::<i64>::new(Keep::Last, 100));
    let mut h: ByClock = OpHarness::restored(op, &[&saved], 0, 1).unwrap();
    // The machine's clock is long past the manual one.
    h.quiet().unwrap();
    assert_eq!(h.take(), [Record::new(1, EventTime(50))]);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(h.take(), []);
}
