//! Early, on-time and late results against a plain computation, over saves, losses and restores; calendars with these.
//! (over 400 lines: what each kind of result is, and what becomes of it over restores of this and former versions)

use super::*;
use crate::aggregate::{Count, count};
use crate::window::model::{Batch, Model, Row, agree, both, steps};
use crate::window::{Calendar, Timing, Tumbling};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use weir_engine::testkit::{ManualClock, OpHarness, SideProbe, context, context_by};

fn ms(n: i64) -> Duration {
    Duration::from_millis(n as u64)
}

fn keyed(key: u64, value: i64) -> Keyed<u64, i64> {
    Keyed { hash: key_hash(&key), key, value }
}

fn tens() -> Tumbling {
    Tumbling::of(ms(10))
}

fn paned<A: Aggregate<i64>>(window: Firing, aggregate: A) -> PanedAggregate<u64, i64, A> {
    PanedAggregate::new(window, aggregate, SideSlot::default())
}

type Counting = OpHarness<Keyed<u64, i64>, PanedAggregate<u64, i64, Count>>;

fn counting(window: Firing) -> Counting {
    OpHarness::new(paned(window, count())).unwrap()
}

/// `(key, start, value, pane)`.
fn results(h: &mut Counting) -> Vec<(u64, i64, u64, Pane)> {
    let given = h.take();
    assert!(given.iter().all(|r| r.time == r.value.window.last()));
    given.into_iter().map(|r| (r.value.key, r.value.window.start.0, r.value.value, r.value.pane)).collect()
}

fn pane(number: u32, timing: Timing) -> Pane {
    Pane { number, timing }
}

#[test]
fn a_late_record_gives_its_window_again_while_that_is_allowed() {
    let late = SideSlot::default();
    let probe = SideProbe::attach(&late);
    let cx = context("under-test", 0, 1);
    let op = PanedAggregate::new(tens().allow_lateness(ms(20)), count(), late);
    let mut h = OpHarness::with(op, &cx).unwrap();
    h.batch([(keyed(1, 0), 3), (keyed(1, 0), 12)]).unwrap();
    h.watermark(10).unwrap();
    assert_eq!(results(&mut h), [(1, 0, 1, Pane::ONLY)]);
    h.batch([(keyed(1, 0), 4), (keyed(1, 0), 5), (keyed(2, 0), 6)]).unwrap();
    let late = |number| pane(number, Timing::Late);
    assert_eq!(results(&mut h), [(1, 0, 2, late(1)), (1, 0, 3, late(2)), (2, 0, 1, late(0))]);
    h.watermark(28).unwrap();
    assert_eq!(results(&mut h), [(1, 10, 1, Pane::ONLY)]);
    h.send(keyed(1, 0), 9).unwrap();
    assert_eq!(results(&mut h), [(1, 0, 4, late(3))]);
    h.watermark(29).unwrap();
    h.send(keyed(1, 5), 9).unwrap();
    h.quiet().unwrap();
    assert_eq!(probe.take(), [Record::new(5, EventTime(9))]);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut h), []);
    assert_eq!(cx.counter("late_records").get(), 1);
}

#[test]
fn early_results_come_after_every_so_many_records() {
    let mut h = counting(tens().early_every(2));
    h.batch([(keyed(1, 0), 1), (keyed(1, 0), 2), (keyed(2, 0), 2), (keyed(1, 0), 3), (keyed(1, 0), 4)])
        .unwrap();
    let early = |number| pane(number, Timing::Early);
    assert_eq!(results(&mut h), [(1, 0, 2, early(0)), (1, 0, 4, early(1))]);
    h.watermark(9).unwrap();
    let mut given = results(&mut h);
    given.sort_unstable();
    assert_eq!(given, [(1, 0, 4, pane(2, Timing::OnTime)), (2, 0, 1, Pane::ONLY)]);
}

#[test]
fn results_that_discard_add_up() {
    let mut h = counting(tens().early_every(2).allow_lateness(ms(20)).discarding());
    h.batch((0..5).map(|time| (keyed(1, 0), time))).unwrap();
    h.batch((0..2).map(|time| (keyed(2, 0), time))).unwrap();
    h.watermark(9).unwrap();
    h.batch([(keyed(1, 0), 7), (keyed(1, 0), 8), (keyed(2, 0), 8)]).unwrap();
    let (early, late) = (|number| pane(number, Timing::Early), |number| pane(number, Timing::Late));
    assert_eq!(
        results(&mut h),
        [
            (1, 0, 2, early(0)),
            (1, 0, 2, early(1)),
            (2, 0, 2, early(0)),
            (1, 0, 1, pane(2, Timing::OnTime)),
            (1, 0, 1, late(3)),
            (1, 0, 1, late(4)),
            (2, 0, 1, late(1)),
        ]
    );
}

#[test]
fn early_results_come_by_the_clock_though_nothing_comes() {
    let clock = ManualClock::at(1_000);
    let cx = context_by(Arc::new(clock.clone()), "under-test", 0, 1);
    let mut h: Counting = OpHarness::with(paned(tens().early_after(ms(50)), count()), &cx).unwrap();
    h.pause(&clock, ms(1_000)).unwrap();
    assert_eq!(h.wakes_at(), None);
    h.batch([(keyed(1, 0), 1), (keyed(1, 0), 2), (keyed(2, 0), 2)]).unwrap();
    assert_eq!((h.wakes_at(), results(&mut h)), (Some(2_050), vec![]));
    h.pause(&clock, ms(49)).unwrap();
    assert_eq!(results(&mut h), []);
    h.pause(&clock, ms(1)).unwrap();
    assert_eq!(results(&mut h), [(1, 0, 2, pane(0, Timing::Early)), (2, 0, 1, pane(0, Timing::Early))]);
    // Nothing new, nothing given; a window that is over gives nothing early.
    h.pause(&clock, ms(1_000)).unwrap();
    h.send(keyed(1, 0), 3).unwrap();
    h.watermark(9).unwrap();
    h.pause(&clock, ms(1_000)).unwrap();
    let mut given = results(&mut h);
    given.sort_unstable();
    assert_eq!(given, [(1, 0, 3, pane(1, Timing::OnTime)), (2, 0, 1, pane(1, Timing::OnTime))]);
}

#[test]
fn what_was_new_in_windows_that_are_over_is_forgotten() {
    let clock = ManualClock::at(1_000);
    let cx = context_by(Arc::new(clock.clone()), "under-test", 0, 1);
    let op = paned(tens().early_after(Duration::from_secs(3_600)), count());
    let mut h: Counting = OpHarness::with(op, &cx).unwrap();
    for window in 0..100 {
        h.batch((0..50).map(|key| (keyed(key, 0), window * 10))).unwrap();
        h.watermark(window * 10 + 9).unwrap();
        assert!(h.op().kept.0.as_ref().unwrap().new.len() <= AT_ONCE + 50);
    }
    assert_eq!(results(&mut h).len(), 5_000);
    h.batch((0..50).map(|key| (keyed(key, 0), 2_000))).unwrap();
    h.pause(&clock, Duration::from_secs(3_600)).unwrap();
    assert_eq!(results(&mut h).len(), 50);
    h.pause(&clock, Duration::from_secs(3_600)).unwrap();
    assert_eq!((h.wakes_at(), results(&mut h)), (None, vec![]));
}

#[test]
fn what_was_new_at_a_checkpoint_is_given_early_after_a_restore() {
    let op = || paned(tens().early_after(ms(50)), count());
    let mut before: Counting = OpHarness::new(op()).unwrap();
    before.batch([(keyed(1, 0), 1), (keyed(2, 0), 2)]).unwrap();
    let saved = before.save(1).unwrap();
    let mut after: Counting = OpHarness::restored(op(), &[&saved], 0, 1).unwrap();
    after.quiet().unwrap();
    assert!(after.wakes_at().is_some());
}

#[test]
fn no_early_result_is_repeated_for_a_key_that_was_given_by_count() {
    let clock = ManualClock::at(0);
    let cx = context_by(Arc::new(clock.clone()), "under-test", 0, 1);
    let mut h: Counting =
        OpHarness::with(paned(tens().early_every(2).early_after(ms(50)), count()), &cx).unwrap();
    h.batch((0..4).map(|time| (keyed(1, 0), time))).unwrap();
    h.pause(&clock, ms(100)).unwrap();
    assert_eq!(results(&mut h).len(), 2);
    h.send(keyed(1, 0), 5).unwrap();
    h.pause(&clock, ms(100)).unwrap();
    assert_eq!(results(&mut h), [(1, 0, 5, pane(2, Timing::Early))]);
}

#[test]
fn e16_a_firing_that_cannot_be_is_named() {
    let wrong = |window: Firing| window.check().unwrap_err().to_string();
    assert!(wrong(tens().early_every(0)).contains("early_every"));
    assert!(wrong(tens().early_after(ms(0))).contains("early_after"));
    assert!(wrong(tens().allow_lateness(Duration::from_micros(3))).contains("lateness"));
    assert!(wrong(Tumbling::of(ms(0)).early_every(1)).contains("size"));
}

#[test]
fn what_cannot_change_under_open_windows_is_refused() {
    let mut before = counting(tens().allow_lateness(ms(5)));
    before.send(keyed(1, 0), 7).unwrap();
    let saved = before.save(1).unwrap();
    let restored =
        |window| OpHarness::<Keyed<u64, i64>, _>::restored(paned(window, count()), &[&saved], 0, 1).map(drop);
    assert!(restored(tens().early_every(5)).is_ok());
    for other in [
        tens().allow_lateness(ms(6)),
        tens().allow_lateness(ms(5)).discarding(),
        Tumbling::of(ms(20)).allow_lateness(ms(5)),
        Calendar::days("UTC").allow_lateness(ms(5)),
    ] {
        let refused = restored(other).unwrap_err().chain();
        assert!(refused.contains("the job declares"), "{refused}");
    }
}

#[test]
fn e11_calendar_days_are_given_with_their_own_lengths() {
    let mut h = counting(Calendar::days("America/New_York").allow_lateness(ms(1)));
    let hour = 3_600_000;
    // From 2026-03-07 00:00 local time on, an hour at a time, for five days: the clocks go forward on the 8th.
    let start = 1_772_859_600_000;
    h.batch((0..5 * 24).map(|n| (keyed(1, 0), start + n * hour))).unwrap();
    h.end(EndKind::Flush).unwrap();
    let counts: Vec<_> = results(&mut h).into_iter().map(|(_, _, n, _)| n).collect();
    assert_eq!(counts, [24, 23, 24, 24, 24, 1]);
}

/// Early results by count, on top of a batch computation.
#[derive(Clone)]
struct Early {
    batch: Batch,
    every: u64,
    since: BTreeMap<(i64, u64), u64>,
}

impl Model for Early {
    fn watermark(&self) -> i64 {
        self.batch.watermark
    }

    fn take(&mut self, key: u64, value: i64, time: i64, rows: &mut Vec<Row>) {
        self.batch.take(key, value, time, rows);
        let window = (self.batch.windows)(time)[0];
        let since = self.since.entry((window.0, key)).or_default();
        *since += 1;
        if window.1 - 1 > self.batch.watermark && since.is_multiple_of(self.every) {
            self.batch.give_early(window, key, rows);
        }
    }

    fn advance(&mut self, to: i64, rows: &mut Vec<Row>) {
        self.batch.advance(to, rows);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn early_and_late_results_agree_with_a_batch_computation(
        steps in steps(8, 40, 40), size in 1..30i64, offset in -30..30i64, lateness in 0..30i64, every in 1..6u32
    ) {
        let offset = offset % size;
        let window = Tumbling::of(ms(size)).offset_ms(offset).early_every(every).allow_lateness(ms(lateness));
        let mut batch = Batch::of(move |time| {
            let start = (time - offset).div_euclid(size) * size + offset;
            vec![(start, start + size)]
        });
        batch.lateness = lateness;
        let model = Early { batch, every: every.into(), since: BTreeMap::new() };
        agree(paned(window, both()), model, steps)?;
    }
}

/// Subtasks that have come to different times at one barrier, as they do when an input was idle for a while.
#[test]
fn each_subtask_gives_its_windows_once_though_another_is_behind() {
    let keys = 0..40u64;
    let records = |time: i64| keys.clone().map(move |key| (key, 1, time));
    let run = |restored: bool| {
        let op = paned(tens().allow_lateness(ms(20)), both());
        let mut fleet = crate::fleet::Fleet::of(op, 2);
        fleet.watermark(-100);
        fleet.batch([1, 12].into_iter().flat_map(records));
        fleet.watermark_of(0, 14);
        fleet.watermark_of(1, 4);
        let mut given = fleet.take();
        if restored {
            let saved = fleet.save();
            fleet.restore(&saved, 2);
            // Event time first comes to where it was.
            fleet.watermark(2);
            given.extend(fleet.take());
        }
        fleet.batch(records(9));
        fleet.watermark(1_000);
        given.extend(fleet.take());
        crate::window::model::rows(given)
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn what_was_given_where_event_time_was_further_comes_again_whole() {
    let keys = 0..40u64;
    let records = |time: i64| keys.clone().map(move |key| (key, 1, time));
    for discards in [false, true] {
        let window = tens().allow_lateness(ms(20)).early_every(100);
        let op = paned(if discards { window.discarding() } else { window }, both());
        let mut fleet = crate::fleet::Fleet::of(op, 2);
        fleet.watermark(-100);
        fleet.batch(records(1));
        fleet.watermark_of(0, 14);
        fleet.watermark_of(1, 4);
        let first: Vec<u64> = fleet.take().into_iter().map(|r| r.value.key).collect();
        assert!((1..40).contains(&first.len()));
        let saved = fleet.save();
        fleet.restore(&saved, 1);
        fleet.watermark(2);
        assert!(fleet.take().is_empty());
        fleet.batch(records(5));
        fleet.watermark(14);
        let given = fleet.take();
        assert_eq!(given.len(), 40);
        for result in given {
            let was_given = first.contains(&result.value.key);
            let covers = if discards && was_given { 1 } else { 2 };
            assert_eq!(result.value.value.0, covers);
            assert_eq!(result.value.pane, pane(was_given.into(), Timing::OnTime));
        }
    }
}

#[test]
fn what_is_kept_for_late_records_must_lie_as_windows_do() {
    let mut before = counting(tens().allow_lateness(ms(5)));
    before.send(keyed(1, 0), 7).unwrap();
    before.watermark(9).unwrap();
    assert_eq!(results(&mut before).len(), 1);
    let saved = before.save(1).unwrap();
    let restored =
        |window| OpHarness::<Keyed<u64, i64>, _>::restored(paned(window, count()), &[&saved], 0, 1);
    let refused = restored(Tumbling::of(ms(20)).allow_lateness(ms(5))).map(drop).unwrap_err().chain();
    assert!(refused.contains("the job declares"), "{refused}");
    // Less lateness forgets it sooner.
    let mut after: Counting = restored(tens().allow_lateness(ms(1))).unwrap();
    after.watermark(10).unwrap();
    after.send(keyed(1, 0), 8).unwrap();
    assert_eq!(results(&mut after), []);
}

#[test]
fn what_a_former_version_had_given_is_not_given_again() {
    for lateness in [20, 0] {
        let mut before = counting(tens().allow_lateness(ms(20)));
        before.batch([(keyed(1, 0), 5), (keyed(2, 0), 12)]).unwrap();
        // There, what was given stayed where it was.
        before.op().watermark = Watermark(15);
        let saved = before.save(1).unwrap();
        let window = tens().early_every(100).allow_lateness(ms(lateness));
        let mut after: Counting = OpHarness::restored(paned(window, count()), &[&saved], 0, 1).unwrap();
        after.watermark(16).unwrap();
        assert_eq!(results(&mut after), []);
        after.send(keyed(1, 0), 6).unwrap();
        let late = if lateness > 0 { vec![(1, 0, 2, pane(1, Timing::Late))] } else { vec![] };
        assert_eq!(results(&mut after), late);
        after.watermark(1_000).unwrap();
        assert_eq!(results(&mut after), [(2, 10, 1, Pane::ONLY)]);
    }
}

#[test]
fn a_life_that_allows_no_lateness_gives_nothing_again() {
    let mut before = counting(tens().allow_lateness(ms(20)));
    before.send(keyed(1, 0), 5).unwrap();
    before.watermark(15).unwrap();
    assert_eq!(results(&mut before).len(), 1);
    let saved = before.save(1).unwrap();
    let op = paned(tens().early_every(100), count());
    let mut after: Counting = OpHarness::restored(op, &[&saved], 0, 1).unwrap();
    after.watermark(16).unwrap();
    after.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut after), []);
}

/// How many entries of a window are in the part of memory that is written next.
fn live(spaces: &mut Spaces<u64, Paned<u64>>, start: i64) -> String {
    let space = spaces.get(start).expect("it is open");
    let shown = format!("{:?}", spaces.map(space));
    shown.split_once(" live").map_or(shown.clone(), |(live, _)| live.to_owned())
}

fn is_bounded(h: &mut Counting) {
    let kept = h.op().kept.0.as_ref().unwrap();
    assert!(kept.taken.capacity() <= 2 * AT_ONCE, "not the whole window at once: {}", kept.taken.capacity());
    let cx = h.op().cx.0.clone().unwrap();
    let used = cx.store().unwrap().cached_bytes();
    assert!(used >= MANY as usize * 16, "what was moved counts in the budget: {used}");
}

const MANY: u64 = 10_000;

#[test]
fn what_a_former_version_had_given_is_put_aside_in_pieces_and_within_the_budget() {
    let mut before = counting(tens().allow_lateness(ms(20)));
    before.batch((0..MANY).map(|key| (keyed(key, 0), 5))).unwrap();
    before.op().watermark = Watermark(15);
    let saved = before.save(1).unwrap();
    let op = paned(tens().allow_lateness(ms(20)), count());
    let mut after: Counting = OpHarness::restored(op, &[&saved], 0, 1).unwrap();
    is_bounded(&mut after);
    after.watermark(16).unwrap();
    after.batch((0..MANY).map(|key| (keyed(key, 0), 6))).unwrap();
    let given = results(&mut after);
    assert_eq!(given.len() as u64, MANY);
    assert!(given.iter().all(|(_, _, n, of)| (*n, *of) == (2, pane(1, Timing::Late))));
}

#[test]
fn what_comes_again_whole_is_opened_in_pieces_and_within_the_budget() {
    let mut before = counting(tens().allow_lateness(ms(20)));
    before.batch((0..MANY).map(|key| (keyed(key, 0), 5))).unwrap();
    before.watermark(14).unwrap();
    assert_eq!(results(&mut before).len() as u64, MANY);
    // Another subtask was behind.
    before.op().watermark = Watermark(4);
    let saved = before.save(1).unwrap();
    let op = paned(tens().allow_lateness(ms(20)), count());
    let mut after: Counting = OpHarness::restored(op, &[&saved], 0, 1).unwrap();
    is_bounded(&mut after);
    after.watermark(14).unwrap();
    let given = results(&mut after);
    assert_eq!(given.len() as u64, MANY);
    assert!(given.iter().all(|(_, _, n, of)| (*n, *of) == (1, pane(1, Timing::OnTime))));
}

#[test]
fn what_is_kept_for_late_records_is_fetched_for_the_batch() {
    let op = || paned(tens().allow_lateness(ms(20)), count());
    let mut before: Counting = OpHarness::new(op()).unwrap();
    before.batch((0..9).map(|key| (keyed(key, 0), 5))).unwrap();
    before.watermark(12).unwrap();
    assert_eq!(results(&mut before).len(), 9);
    let saved = before.save(1).unwrap();
    let mut after: Counting = OpHarness::restored(op(), &[&saved], 0, 1).unwrap();
    after.watermark(12).unwrap();
    let late = || (0..5).map(|key| (keyed(key, 0), 6));
    after.prefetch(late()).unwrap();
    assert_eq!(live(&mut after.op().kept.0.as_mut().unwrap().given, 0), "StateMap(5");
    after.batch(late()).unwrap();
    assert_eq!(results(&mut after), (0..5).map(|key| (key, 0, 2, pane(1, Timing::Late))).collect::<Vec<_>>());
}

#[test]
fn a_key_with_a_late_result_of_a_former_version_goes_on_where_its_window_is_open_again() {
    let mut before = counting(tens().allow_lateness(ms(20)));
    before.send(keyed(1, 0), 5).unwrap();
    let kept = before.op().kept.0.as_mut().unwrap();
    let place = kept.panes.last().unwrap().find(key_hash(&1u64), &1).unwrap().unwrap();
    let paned_1 = kept.panes.last().unwrap().at(place);
    (paned_1.after, paned_1.panes, paned_1.since) = (true, 2, 0);
    let saved = before.save(1).unwrap();
    let op = paned(tens().allow_lateness(ms(20)), count());
    let mut after: Counting = OpHarness::restored(op, &[&saved], 0, 1).unwrap();
    after.watermark(4).unwrap();
    after.send(keyed(1, 0), 6).unwrap();
    after.watermark(14).unwrap();
    assert_eq!(results(&mut after), [(1, 0, 2, pane(2, Timing::OnTime))]);
}
