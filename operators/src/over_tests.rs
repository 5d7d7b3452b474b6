//! OVER aggregates against a plain loop over the same records, whatever their order, restarts and parallelism; and their bounds.

use super::*;
use crate::aggregate::{collect, count, max, sum};
use crate::fleet::Fleet;
use crate::ordered::{Ordered, Timely};
use crate::trial::{cuts, in_order, input, run};
use proptest::prelude::*;
use std::ops::ControlFlow;
use weir_engine::testkit::{OpHarness, SideProbe, context};
use weir_engine::{EndKind, Keyed, SideSlot};
use weir_state::key_hash;

type Operator<T, A> = Timely<u64, T, Ordered<u64, T, OverFrames<u64, T, A>>>;

fn op<T: Kept, A: Aggregate<T>>(over: Over, aggregate: A) -> Operator<T, A> {
    with_late(over, aggregate, SideSlot::default())
}

fn with_late<T: Kept, A: Aggregate<T>>(over: Over, aggregate: A, late: SideSlot<T>) -> Operator<T, A> {
    Timely::new(Ordered::new(OverFrames::new(over.check().unwrap(), aggregate)), late)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn keyed<T>(key: u64, value: T) -> Keyed<u64, T> {
    Keyed { hash: key_hash(&key), key, value }
}

/// The frame of each record of the key, by its number, from the definition alone.
fn frames(records: &[((i64, usize), i64)], over: Over) -> Vec<(usize, Vec<usize>)> {
    let forget = over.forget_after.map_or(i64::MAX, |d| d.as_millis() as i64);
    let mut frames = Vec::new();
    for (i, (record, time)) in records.iter().enumerate() {
        // What comes after a silence begins anew.
        let begin = (1..=i).rev().find(|i| records[*i].1 - records[*i - 1].1 > forget).unwrap_or(0);
        let of: Vec<usize> = match over.frame {
            Frame::Rows(n) => (begin.max((i + 1).saturating_sub(n as usize))..=i).collect(),
            Frame::Time(t) => {
                let from = time - t.as_millis() as i64;
                (begin..records.len()).filter(|j| from <= records[*j].1 && records[*j].1 <= *time).collect()
            }
        };
        frames.push((record.1, of.into_iter().map(|j| records[j].0.1).collect()));
    }
    frames
}

fn over() -> impl Strategy<Value = Over> {
    let frame = prop_oneof![(1..6u64).prop_map(Over::rows), (0..50u64).prop_map(|t| Over::time(ms(t)))];
    (frame, prop::option::of(1..40u64))
        .prop_map(|(over, forget)| forget.map_or(over, |forget| over.forget_after(ms(forget))))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Every record has the frame it should, whatever the order within the bound, saves, losses, restores and parallelism.
    #[test]
    fn agree_with_a_loop(input in input(), cuts in cuts(), over in over()) {
        let aggregate = (collect(|v: &(i64, usize)| v.1), count(), max(|v: &(i64, usize)| v.0), sum(|v: &(i64, usize)| v.0));
        let given = run(op(over, aggregate), &input, &cuts, true);
        prop_assert_eq!(given.len(), input.len());
        for key in 0..4 {
            let of_key: Vec<_> = given.iter().filter(|r| r.value.key == key).collect();
            prop_assert!(of_key.is_sorted_by_key(|r| r.time));
            let records = in_order(&input, key);
            let got: Vec<_> = of_key.iter().map(|r| (r.value.record.1, r.value.value.0.clone())).collect();
            prop_assert_eq!(&got, &frames(&records, over));
            for (r, (_, frame)) in of_key.iter().zip(&got) {
                let values: Vec<i64> = input.iter().filter(|i| frame.contains(&i.1.1)).map(|i| i.1.0).collect();
                let (_, n, greatest, total) = &r.value.value;
                prop_assert_eq!((*n, *greatest), (values.len() as u64, values.iter().max().copied()));
                prop_assert_eq!(*total, values.iter().sum::<i64>());
            }
        }
    }
}

/// `(time, record, value)` of everything given.
fn taken<A: Aggregate<i64>>(h: &mut OpHarness<Keyed<u64, i64>, Operator<i64, A>>) -> Vec<(i64, i64, A::Out)> {
    h.take().into_iter().map(|r| (r.time.0, r.value.record, r.value.value)).collect()
}

#[test]
fn e18_a_record_exactly_so_much_older_is_in_the_frame() {
    let mut h = OpHarness::new(op(Over::time(ms(5)), sum(|v: &i64| *v))).unwrap();
    h.batch([(keyed(1, 1), 0), (keyed(1, 10), 5), (keyed(1, 100), 6), (keyed(1, 1_000), 11)]).unwrap();
    h.watermark(20).unwrap();
    assert_eq!(taken(&mut h), [(0, 1, 1), (5, 10, 11), (6, 100, 110), (11, 1_000, 1_100)]);
}

#[test]
fn e10_times_before_the_epoch_and_at_the_ends_of_time_are_in_order() {
    let times = [i64::MAX, -1, i64::MIN + 1, 0, -10, i64::MAX - 1];
    for (over, counts) in [(Over::time(ms(9)), [1, 1, 2, 2, 1, 2]), (Over::rows(2), [1, 2, 2, 2, 2, 2])] {
        let mut h = OpHarness::new(op(over, count())).unwrap();
        h.batch(times.map(|t| (keyed(1, t), t))).unwrap();
        h.end(EndKind::Flush).unwrap();
        let (order, counted): (Vec<i64>, Vec<u64>) = taken(&mut h).into_iter().map(|g| (g.0, g.2)).unzip();
        assert_eq!(order, [i64::MIN + 1, -10, -1, 0, i64::MAX - 1, i64::MAX]);
        assert_eq!(counted, counts, "{over:?}");
    }
}

#[test]
fn records_of_one_time_are_in_each_others_frames_by_time_and_follow_each_other_by_rows() {
    for (over, sums) in [(Over::time(Duration::ZERO), [11, 11, 100]), (Over::rows(2), [1, 11, 110])] {
        let mut h = OpHarness::new(op(over, sum(|v: &i64| *v))).unwrap();
        h.batch([(keyed(1, 100), 8), (keyed(1, 1), 7), (keyed(1, 10), 7)]).unwrap();
        h.watermark(8).unwrap();
        assert_eq!(taken(&mut h).iter().map(|t| t.2).collect::<Vec<_>>(), sums);
    }
}

#[test]
fn e12_late_records_change_no_result_and_come_out_aside() {
    let late = SideSlot::default();
    let probe = SideProbe::attach(&late);
    let cx = context("over", 0, 1);
    let mut h = OpHarness::with(with_late(Over::rows(3), count(), late), &cx).unwrap();
    h.send(keyed(1, 0), 195).unwrap();
    h.watermark(200).unwrap();
    h.batch([(keyed(1, 7), 50), (keyed(1, 8), 200), (keyed(1, 9), 201)]).unwrap();
    h.quiet().unwrap();
    h.end(EndKind::Flush).unwrap();
    assert_eq!(taken(&mut h), [(195, 0, 1), (201, 9, 2)]);
    assert_eq!(probe.take(), [Record::new(7, EventTime(50)), Record::new(8, EventTime(200))]);
    assert_eq!(cx.counter("late_records").get(), 2);
}

#[test]
fn nothing_is_given_before_the_watermark_or_when_the_job_is_to_be_continued() {
    let mut h = OpHarness::new(op(Over::rows(3), count())).unwrap();
    h.send(keyed(1, 0), 5).unwrap();
    h.watermark(4).unwrap();
    h.end(EndKind::Keep).unwrap();
    assert_eq!(taken(&mut h), []);
}

#[test]
fn e22_e23_what_waits_is_given_once_after_a_restore() {
    for parallelism in [1, 2, 3] {
        let mut fleet = Fleet::of(op(Over::time(ms(10)), sum(|v: &i64| *v)), 2);
        fleet.batch((0..100u64).flat_map(|key| [(key, 1i64, 10), (key, 2, 5)]));
        fleet.watermark(5);
        assert_eq!(fleet.take().len(), 100);
        let saved = fleet.save();
        fleet.restore(&saved, parallelism);
        // Where event time was already.
        fleet.watermark(3);
        fleet.watermark(5);
        fleet.batch([(7, 100, 5)]);
        assert_eq!(fleet.take(), []);
        fleet.watermark(10);
        let given = fleet.take();
        assert!(given.len() == 100 && given.iter().all(|r| r.time.0 == 10 && r.value.value == 3));
        fleet.end(EndKind::Flush);
        assert_eq!(fleet.take(), []);
    }
}

/// How many rows the operator has in its store after a checkpoint.
fn rows(
    h: &mut OpHarness<Keyed<u64, i64>, Operator<i64, crate::aggregate::Count>>,
    cx: &weir_engine::OperatorContext,
    id: u64,
) -> usize {
    h.save(id).unwrap();
    let mut rows = 0;
    let mut count = |_: &[u8], _: &[u8]| {
        rows += 1;
        ControlFlow::Continue(())
    };
    cx.store().unwrap().backend().scan(&[], &[], &mut count).unwrap();
    rows
}

#[test]
fn a_key_is_forgotten_when_its_frame_can_matter_no_more() {
    for (over, left, then) in [
        (Over::time(ms(10)), 0, 1),
        (Over::rows(2).forget_after(ms(10)), 0, 1),
        // What is kept of each key and its last row; of one key the row before, too.
        (Over::rows(2), 201, 2),
        (Over::rows(1), 0, 1),
    ] {
        let cx = context("over", 0, 1);
        let mut h = OpHarness::with(op(over, count()), &cx).unwrap();
        h.batch((0..100).map(|key| (keyed(key, 0), 0))).unwrap();
        assert!(rows(&mut h, &cx, 1) >= 300, "records, what is kept of their keys, and timers");
        h.watermark(5).unwrap();
        h.send(keyed(0, 0), 8).unwrap();
        h.watermark(11).unwrap();
        h.watermark(30).unwrap();
        assert_eq!(h.take().len(), 101);
        assert_eq!(rows(&mut h, &cx, 2), left, "{over:?}");
        h.batch((0..100).map(|key| (keyed(key, 0), 50))).unwrap();
        h.end(EndKind::Flush).unwrap();
        let frames: Vec<u64> = taken(&mut h).into_iter().map(|t| t.2).collect();
        assert!(frames.len() == 100 && frames.iter().all(|n| *n == then), "{over:?}");
    }
}

#[test]
fn e16_frames_that_cannot_be_are_named() {
    for (over, said) in [
        (Over::rows(0), "rows is 0"),
        (Over::time(Duration::from_micros(1)), "time is 1µs"),
        (Over::rows(1).forget_after(Duration::ZERO), "forget_after is 0ns"),
    ] {
        let error = over.check().unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}");
    }
}

#[test]
fn a_record_without_event_time_fails_the_job_and_says_what_to_do() {
    let mut h = OpHarness::new(op(Over::rows(2), count())).unwrap();
    let error = h.send(keyed(1, 0), EventTime::NONE.0).unwrap_err();
    assert!(error.chain().contains("give its source event_time"), "{error:?}");
}

#[test]
fn frames_of_rows_are_none_of_times_and_a_change_between_them_is_refused() {
    let over = [Over::rows(3), Over::time(ms(10))];
    for (before, after) in [(over[0], over[1]), (over[1], over[0])] {
        let mut h = OpHarness::new(op(before, count())).unwrap();
        h.watermark(0).unwrap();
        h.send(keyed(1, 5i64), 5).unwrap();
        h.watermark(5).unwrap();
        let saved = h.save(1).unwrap();
        let restored = |over| OpHarness::restored(op::<i64, _>(over, count()), &[&saved], 0, 1).map(drop);
        let error = restored(after).unwrap_err().to_string();
        assert!(error.contains("which the job needs now: declare the operator as it was"), "{error}");
        restored(before).unwrap();
    }
}
