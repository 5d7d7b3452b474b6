//! Sliding and cumulating windows against a plain computation, over saves, losses and restores; and the cases of both
//! (over 400 lines: two kinds of windows, what comes late for them, and their restores).

use super::*;
use crate::aggregate::{Count, count};
use crate::fleet::Fleet;
use crate::window::Timing;
use crate::window::model::{Batch, agree, both, steps};
use crate::window::tumbling::AT_ONCE;
use proptest::prelude::*;
use std::time::Duration;
use weir_engine::testkit::{OpHarness, SideProbe, context};
use weir_state::key_hash;

fn ms(n: i64) -> Duration {
    Duration::from_millis(n as u64)
}

fn keyed(key: u64, value: i64) -> Keyed<u64, i64> {
    Keyed { hash: key_hash(&key), key, value }
}

fn sliding<A: Aggregate<i64>>(window: Sliding, aggregate: A) -> SlicedAggregate<u64, i64, A> {
    SlicedAggregate::new(Sliced::Sliding(window), aggregate, SideSlot::default())
}

fn cumulating<A: Aggregate<i64>>(window: Cumulate, aggregate: A) -> SlicedAggregate<u64, i64, A> {
    SlicedAggregate::new(Sliced::Cumulate(window), aggregate, SideSlot::default())
}

type Counting = OpHarness<Keyed<u64, i64>, SlicedAggregate<u64, i64, Count>>;

fn counting(window: Sliding) -> Counting {
    OpHarness::new(sliding(window, count())).unwrap()
}

/// `(start, end, key, value, pane)`, those of one window by key.
fn results(h: &mut Counting) -> Vec<(i64, i64, u64, u64, Pane)> {
    let given = h.take();
    assert!(given.iter().all(|r| r.time == r.value.window.last()));
    let mut rows: Vec<_> = given
        .into_iter()
        .map(|r| (r.value.window.start.0, r.value.window.end.0, r.value.key, r.value.value, r.value.pane))
        .collect();
    rows.sort_by_key(|row| row.2);
    rows
}

fn values(h: &mut Counting) -> Vec<(i64, i64, u64, u64)> {
    results(h).into_iter().map(|(start, end, key, value, _)| (start, end, key, value)).collect()
}

#[test]
fn e14_windows_have_only_what_is_in_them() {
    let mut h = counting(Sliding::of(ms(10)).every(ms(5)));
    for time in (0..100).step_by(2) {
        h.send(keyed(1, 0), time).unwrap();
    }
    h.end(EndKind::Flush).unwrap();
    let given = values(&mut h);
    assert!(given.iter().all(|(.., n)| *n <= 5), "{given:?}");
    assert_eq!(given.iter().map(|(.., n)| n).sum::<u64>(), 100, "each record in two windows");
    assert_eq!(given[..3], [(-5, 5, 1, 3), (0, 10, 1, 5), (5, 15, 1, 5)]);
    assert_eq!(given.last(), Some(&(95, 105, 1, 2)));
}

#[test]
fn e16_windows_that_cannot_be_fail_the_start() {
    let bad =
        [Sliding::of(ms(0)).every(ms(1)), Sliding::of(ms(1)).every(ms(0)), Sliding::of(ms(1)).every(ms(2))];
    for bad in bad {
        let error = OpHarness::<Keyed<u64, i64>, _>::new(sliding(bad, count())).unwrap_err();
        assert!(error.chain().contains("window s"), "{error:?}");
    }
}

#[test]
fn e10_negative_times_are_counted_where_they_belong() {
    let mut h = counting(Sliding::of(ms(10)).every(ms(5)).offset(ms(3)));
    h.batch([(keyed(1, 0), -8), (keyed(1, 0), -7), (keyed(1, 0), -1)]).unwrap();
    h.end(EndKind::Flush).unwrap();
    assert_eq!(values(&mut h), [(-17, -7, 1, 1), (-12, -2, 1, 2), (-7, 3, 1, 2), (-2, 8, 1, 1)]);
}

#[test]
fn e12_a_record_behind_the_watermark_counts_in_the_windows_that_are_not_over() {
    let late = SideSlot::default();
    let probe = SideProbe::attach(&late);
    let cx = context("under-test", 0, 1);
    let op = SlicedAggregate::new(Sliced::Sliding(Sliding::of(ms(10)).every(ms(5))), count(), late);
    let mut h = OpHarness::with(op, &cx).unwrap();
    h.send(keyed(1, 0), 7).unwrap();
    h.watermark(9).unwrap();
    assert_eq!(values(&mut h), [(0, 10, 1, 1)]);
    // One that is in [0, 10) and [5, 15), and one whose last window is [0, 10).
    h.batch([(keyed(1, 8), 8), (keyed(1, 4), 4), (keyed(2, 8), 8)]).unwrap();
    h.quiet().unwrap();
    assert_eq!(probe.take(), [Record::new(4, EventTime(4))]);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(values(&mut h), [(5, 15, 1, 2), (5, 15, 2, 1)]);
    assert_eq!(cx.counter("late_records").get(), 1);
}

#[test]
fn e23_windows_that_were_given_are_not_given_again_after_a_restore() {
    let mut fleet = Fleet::of(sliding(Sliding::of(ms(20)).every(ms(5)), both()), 2);
    fleet.batch((0..100).map(|key| (key, 1, 90 + key as i64 % 20)));
    fleet.watermark(100);
    let before = fleet.take();
    assert!(!before.is_empty() && before.iter().all(|r| r.value.window.end.0 <= 101));
    let saved = fleet.save();
    fleet.restore(&saved, 3);
    fleet.watermark(1);
    fleet.watermark(101);
    assert_eq!(fleet.take(), []);
    fleet.end(EndKind::Flush);
    let after = fleet.take();
    assert!(after.iter().all(|r| r.value.window.end.0 > 101));
    let total: u64 = before.iter().chain(&after).map(|r| r.value.value.0).sum();
    assert_eq!(total, 400, "each record in four windows, each window once");
}

#[test]
fn a_late_record_gives_every_window_again_that_may_still_change() {
    let mut h = counting(Sliding::of(ms(10)).every(ms(5)).allow_lateness(ms(7)));
    h.batch([(keyed(1, 0), 3), (keyed(1, 0), 12)]).unwrap();
    h.watermark(15).unwrap();
    assert_eq!(values(&mut h), [(-5, 5, 1, 1), (0, 10, 1, 1), (5, 15, 1, 1)]);
    // [-5, 5) has been over for more than 7 ms.
    h.send(keyed(1, 0), 4).unwrap();
    assert_eq!(results(&mut h), [(0, 10, 1, 2, Pane { number: 1, timing: Timing::Late })]);
    h.batch([(keyed(1, 0), 9), (keyed(2, 0), 9)]).unwrap();
    let late = |number| Pane { number, timing: Timing::Late };
    assert_eq!(
        results(&mut h),
        [(0, 10, 1, 3, late(2)), (5, 15, 1, 2, late(1)), (0, 10, 2, 1, late(0)), (5, 15, 2, 1, late(0))]
    );
    h.watermark(16).unwrap();
    h.send(keyed(1, 0), 4).unwrap();
    assert_eq!(results(&mut h), [], "[0, 10) changes no more");
    h.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut h), [(10, 20, 1, 1, Pane::ONLY)]);
    assert_eq!(h.op().open_slices(), 0);
}

#[test]
fn a_key_whose_window_empties_is_told_once() {
    let mut h = counting(Sliding::of(ms(10)).every(ms(5)).emit_when_emptied());
    h.batch([(keyed(1, 0), 3), (keyed(2, 0), 8)]).unwrap();
    h.watermark(40).unwrap();
    assert_eq!(
        values(&mut h),
        [(-5, 5, 1, 1), (0, 10, 1, 1), (5, 15, 1, 0), (0, 10, 2, 1), (5, 15, 2, 1), (10, 20, 2, 0)]
    );
    h.send(keyed(1, 0), 41).unwrap();
    h.watermark(44).unwrap();
    assert_eq!(values(&mut h), [(35, 45, 1, 1)]);
}

#[test]
fn a_watermark_does_not_visit_windows_without_records() {
    let mut h = counting(Sliding::of(Duration::from_secs(3_600)).every(ms(1)));
    h.watermark(1_000_000_000_000).unwrap();
    h.watermark(1_000_000_000_000_000).unwrap();
    assert_eq!(results(&mut h), []);
}

#[test]
fn the_ends_of_time_have_windows_too() {
    let mut h = counting(Sliding::of(ms(10)).every(ms(5)));
    h.batch([i64::MIN + 1, 0, i64::MAX].map(|t| (keyed(1, 0), t))).unwrap();
    h.watermark(i64::MAX - 1).unwrap();
    h.send(keyed(1, 0), i64::MAX).unwrap();
    h.end(EndKind::Flush).unwrap();
    assert_eq!(values(&mut h).iter().map(|r| r.3).sum::<u64>(), 8);
    let error = counting(Sliding::of(ms(10))).send(keyed(1, 0), EventTime::NONE.0).unwrap_err();
    assert!(error.chain().contains("event time"), "{error:?}");
}

#[test]
fn cumulating_windows_grow_and_begin_anew() {
    let window = Cumulate::of(ms(30)).every(ms(10));
    let mut h = OpHarness::new(cumulating(window, count())).unwrap();
    h.batch([(keyed(1, 0), 3), (keyed(2, 0), 12), (keyed(1, 0), 31)]).unwrap();
    h.watermark(19).unwrap();
    assert_eq!(values(&mut h), [(0, 10, 1, 1), (0, 20, 1, 1), (0, 20, 2, 1)]);
    // Behind the watermark, and still in the window of the whole.
    h.send(keyed(2, 0), 5).unwrap();
    h.end(EndKind::Flush).unwrap();
    assert_eq!(
        values(&mut h),
        [(0, 30, 1, 1), (30, 40, 1, 1), (30, 50, 1, 1), (30, 60, 1, 1), (0, 30, 2, 2)]
    );
    assert_eq!(h.op().open_slices(), 0);
}

#[test]
fn a_size_that_changes_under_open_windows_is_refused() {
    let restored = |op, saved: &weir_engine::testkit::Saved| {
        OpHarness::<Keyed<u64, i64>, _>::restored(op, &[saved], 0, 1).map(drop)
    };
    let mut before = counting(Sliding::of(ms(10)).every(ms(5)).allow_lateness(ms(5)));
    before.send(keyed(1, 0), 7).unwrap();
    let saved = before.save(1).unwrap();
    assert!(restored(sliding(Sliding::of(ms(10)).every(ms(5)), count()), &saved).is_ok());
    for other in [Sliding::of(ms(15)).every(ms(5)), Sliding::of(ms(10)).every(ms(5)).allow_lateness(ms(6))] {
        let refused = restored(sliding(other, count()), &saved).unwrap_err().chain();
        assert!(refused.contains("the job declares"), "{refused}");
    }
    let mut before = OpHarness::new(cumulating(Cumulate::of(ms(30)).every(ms(10)), count())).unwrap();
    before.send(keyed(1, 0), 7).unwrap();
    before.watermark(15).unwrap();
    let saved = before.save(1).unwrap();
    let other = cumulating(Cumulate::of(ms(60)).every(ms(10)), count());
    assert!(restored(other, &saved).unwrap_err().chain().contains("size_ms"));
}

/// Two subtasks that have come to different times at one barrier; then three have their keys, then one has them all.
#[test]
fn a_rescale_merges_no_slice_twice_where_subtasks_had_come_to_different_times() {
    fn agrees<A: Aggregate<i64, Out = (u64, i64)>>(op: impl Fn() -> SlicedAggregate<u64, i64, A>) {
        let records = |time: i64| (0..60u64).map(move |key| (key, 1, time));
        let run = |restores: bool| {
            let mut fleet = Fleet::of(op(), 2);
            fleet.watermark(-100);
            fleet.batch([1, 3, 7, 12, 16].into_iter().flat_map(records));
            fleet.watermark_of(0, 14);
            fleet.watermark_of(1, 4);
            let mut given = fleet.take();
            if restores {
                let saved = fleet.save();
                fleet.restore(&saved, 3);
            }
            // Late for the keys of the one, in time for those of the other.
            fleet.batch([9, 2, 13].into_iter().flat_map(records));
            given.extend(fleet.take());
            if restores {
                let saved = fleet.save();
                fleet.restore(&saved, 1);
            }
            fleet.batch([8, 17].into_iter().flat_map(records));
            fleet.watermark(19);
            fleet.batch([21, 18].into_iter().flat_map(records));
            given.extend(fleet.take());
            if restores {
                let saved = fleet.save();
                fleet.restore(&saved, 2);
            }
            fleet.watermark(1_000);
            given.extend(fleet.take());
            crate::window::model::rows(given)
        };
        assert_eq!(run(true), run(false));
    }
    for lateness in [0, 8, 30] {
        let window = Sliding::of(ms(15)).every(ms(5)).allow_lateness(ms(lateness));
        agrees(|| sliding(window, both()));
        agrees(|| sliding(window.emit_when_emptied(), both()));
        let window = Cumulate::of(ms(15)).every(ms(5)).allow_lateness(ms(lateness));
        agrees(|| cumulating(window, both()));
    }
}

/// A window is being given by one subtask when the other has not heard of its end: what is left to give comes, whatever the parallelism, once.
#[test]
fn a_rescale_in_the_middle_of_a_window_gives_what_was_left_once() {
    for parallelism in [1, 2, 3] {
        let mut fleet = Fleet::of(sliding(Sliding::of(ms(10)).every(ms(5)), both()), 2);
        fleet.batch((0..60).flat_map(|key| [(key, 1, 2), (key, 1, 7)]));
        fleet.begin_watermark_of(0, 9);
        fleet.watermark_of(1, 0);
        let mut given = fleet.take();
        assert!(fleet.has_more());
        let saved = fleet.save();
        fleet.restore(&saved, parallelism);
        let saved = fleet.save();
        fleet.restore(&saved, 3 - parallelism.min(2));
        fleet.watermark(100);
        given.extend(fleet.take());
        let rows = crate::window::model::rows(given);
        let expected = [(5, -5, 1), (10, 0, 2), (15, 5, 1)];
        let expected: Vec<_> = expected
            .into_iter()
            .flat_map(|(end, start, n)| (0..60).map(move |key| (end, start, key, (n as u64, n), Pane::ONLY)))
            .collect();
        assert_eq!(rows, expected);
    }
}

#[test]
fn windows_that_slide_do_not_take_what_cumulates_nor_the_other_way() {
    let restored = |op, saved: &weir_engine::testkit::Saved| {
        OpHarness::<Keyed<u64, i64>, _>::restored(op, &[saved], 0, 1).map(drop)
    };
    let slides = || sliding(Sliding::of(ms(30)).every(ms(10)), count());
    let cumulates = || cumulating(Cumulate::of(ms(30)).every(ms(10)), count());
    // At 15 no slice is open, only what was merged; at 5 there is only a slice.
    for watermark in [5, 15] {
        for (was, is, names) in [
            (slides(), cumulates(), ["kind = \"sliding\"", "declares cumulating"]),
            (cumulates(), slides(), ["kind = \"cumulating\"", "declares sliding"]),
        ] {
            let mut before = OpHarness::new(was.clone()).unwrap();
            before.send(keyed(1, 0), 7).unwrap();
            before.watermark(watermark).unwrap();
            let saved = before.save(1).unwrap();
            assert!(restored(was, &saved).is_ok());
            let refused = restored(is.clone(), &saved).unwrap_err().chain();
            for part in names.into_iter().chain(["another uid"]) {
                assert!(refused.contains(part), "{part}: {refused}");
            }
            // Nothing is open any more.
            before.watermark(100).unwrap();
            let saved = before.save(2).unwrap();
            assert!(restored(is, &saved).is_ok());
        }
    }
}

/// What was merged is read back a batch at a time: as many keys as do not fit into one.
#[test]
fn many_keys_arrive_and_leave_after_a_restore() {
    let keys = 3 * AT_ONCE as u64;
    let mut fleet = Fleet::of(sliding(Sliding::of(ms(20)).every(ms(10)), count()), 1);
    for time in [3, 13, 23] {
        fleet.batch((0..keys).map(|key| (key, 0, time)));
    }
    for (end, expected) in [(10, 1), (20, 2), (30, 2), (40, 1)] {
        let saved = fleet.save();
        fleet.restore(&saved, 1);
        fleet.watermark(end - 1);
        let given = fleet.take();
        assert_eq!(given.len() as u64, keys);
        assert!(given.iter().all(|r| r.value.window.end.0 == end && r.value.value == expected));
    }
    fleet.end(EndKind::Flush);
    assert_eq!(fleet.take(), []);
}

/// All windows of `size` that slide by `step` and have `time`.
fn sliding_windows(size: i64, step: i64, offset: i64, time: i64) -> Vec<(i64, i64)> {
    let last = (time - offset).div_euclid(step) * step + offset;
    (0..)
        .map(|n| last - n * step)
        .take_while(|start| start + size > time)
        .map(|start| (start, start + size))
        .collect()
}

fn cumulating_windows(size: i64, step: i64, offset: i64, time: i64) -> Vec<(i64, i64)> {
    let start = (time - offset).div_euclid(size) * size + offset;
    (1..=size / step).map(|n| (start, start + n * step)).filter(|(_, end)| time < *end).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn sliding_windows_agree_with_a_batch_computation(
        steps in steps(12, 40, 60), size in 1..40i64, step in 1..40i64, offset in -40..40i64, emptied in any::<bool>()
    ) {
        let (step, offset) = (step.min(size), offset % step.min(size));
        let window = Sliding::of(ms(size)).every(ms(step)).offset_ms(offset);
        let window = if emptied { window.emit_when_emptied() } else { window };
        let mut model = Batch::of(move |time| sliding_windows(size, step, offset, time));
        model.emptied = emptied.then_some(step);
        agree(sliding(window, both()), model, steps)?;
    }

    #[test]
    fn late_sliding_windows_agree_with_a_batch_computation(
        steps in steps(6, 60, 30), size in 1..30i64, step in 1..30i64, lateness in 1..30i64
    ) {
        let step = step.min(size);
        let window = Sliding::of(ms(size)).every(ms(step)).allow_lateness(ms(lateness));
        let mut model = Batch::of(move |time| sliding_windows(size, step, 0, time));
        model.lateness = lateness;
        agree(sliding(window, both()), model, steps)?;
    }

    #[test]
    fn cumulating_windows_agree_with_a_batch_computation(
        steps in steps(12, 60, 60), step in 1..20i64, n in 1..5i64, offset in -40..40i64, lateness in prop_oneof![Just(0), 0..30i64]
    ) {
        let (size, offset) = (step * n, offset % (step * n));
        let window = Cumulate::of(ms(size)).every(ms(step)).offset_ms(offset).allow_lateness(ms(lateness));
        let mut model = Batch::of(move |time| cumulating_windows(size, step, offset, time));
        model.lateness = lateness;
        agree(cumulating(window, both()), model, steps)?;
    }
}

/// Subtasks that have come to different times at one barrier, as they do when an input was idle for a while.
#[test]
fn each_subtask_goes_on_from_where_it_was_itself() {
    let keys = 0..40u64;
    let records = |time: i64| keys.clone().map(move |key| (key, 1, time));
    let run = |restored: bool| {
        let mut fleet = Fleet::of(sliding(Sliding::of(ms(10)).every(ms(5)), both()), 2);
        fleet.watermark(-100);
        fleet.batch([1, 3, 7, 12].into_iter().flat_map(records));
        fleet.watermark_of(0, 14);
        fleet.watermark_of(1, 4);
        let mut given = fleet.take();
        if restored {
            let saved = fleet.save();
            fleet.restore(&saved, 2);
            // Event time first comes to where it was.
            fleet.watermark_of(0, 2);
            fleet.watermark_of(1, 1);
            given.extend(fleet.take());
        }
        // Late for the one, in time for the other.
        fleet.batch(records(9));
        fleet.watermark(19);
        fleet.batch(records(21));
        fleet.watermark(1_000);
        given.extend(fleet.take());
        crate::window::model::rows(given)
    };
    assert_eq!(run(true), run(false));
}
