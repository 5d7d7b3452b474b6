//! Tumbling windows against a plain loop over the same records, and the cases of late and misplaced ones.

use super::*;
use crate::aggregate::{count, max, sum};
use crate::window::Tumbling;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;
use weir_engine::testkit::{OpHarness, SideProbe, context};
use weir_state::key_hash;

type Counted = TumblingAggregate<u8, i64, crate::aggregate::Count>;

fn keyed(key: u8, value: i64) -> Keyed<u8, i64> {
    Keyed { hash: key_hash(&key), key, value }
}

fn tens() -> Tumbling {
    Tumbling::of(Duration::from_millis(10))
}

fn tumbling<A: Aggregate<i64>>(
    window: Tumbling,
    aggregate: A,
    late: SideSlot<i64>,
) -> TumblingAggregate<u8, i64, A> {
    TumblingAggregate::new(Cutting::Tumbling(window), aggregate, late)
}

fn counting(window: Tumbling) -> OpHarness<Keyed<u8, i64>, Counted> {
    OpHarness::new(tumbling(window, count(), SideSlot::default())).unwrap()
}

/// `(key, start, value)` and the record's time.
fn results(h: &mut OpHarness<Keyed<u8, i64>, Counted>) -> Vec<(u8, i64, u64, i64)> {
    let row =
        |r: Record<WindowResult<u8, u64>>| (r.value.key, r.value.window.start.0, r.value.value, r.time.0);
    let mut rows: Vec<_> = h.take().into_iter().map(row).collect();
    rows.sort_unstable();
    rows
}

#[test]
fn a_window_is_given_once_when_the_watermark_reaches_its_last_moment() {
    let mut h = counting(tens());
    h.batch([(keyed(1, 0), 3), (keyed(2, 0), 9), (keyed(1, 0), 0), (keyed(1, 0), 12)]).unwrap();
    h.watermark(8).unwrap();
    assert_eq!(results(&mut h), []);
    h.watermark(9).unwrap();
    assert_eq!(results(&mut h), [(1, 0, 2, 9), (2, 0, 1, 9)]);
    h.watermark(18).unwrap();
    assert_eq!(results(&mut h), []);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut h), [(1, 10, 1, 19)]);
}

#[test]
fn e10_negative_times_are_counted_where_they_belong() {
    for (window, time, start) in [(tens(), -1, -10), (tens(), -10, -10), (tens().offset_ms(3), -8, -17)] {
        let mut h = counting(window);
        h.send(keyed(1, 0), time).unwrap();
        h.watermark(start + 9).unwrap();
        assert_eq!(results(&mut h), [(1, start, 1, start + 9)]);
    }
}

#[test]
fn e12_late_event_goes_to_the_late_output() {
    let late = SideSlot::default();
    let probe = SideProbe::attach(&late);
    let cx = context("hourly", 0, 1);
    let mut h = OpHarness::with(tumbling(tens(), count(), late), &cx).unwrap();
    h.send(keyed(1, 7), 195).unwrap();
    h.watermark(200).unwrap();
    assert_eq!(results(&mut h), [(1, 190, 1, 199)]);
    h.send(keyed(1, 8), 50).unwrap();
    h.quiet().unwrap();
    assert_eq!(probe.take(), [Record::new(8, EventTime(50))]);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut h), []);
    assert_eq!(cx.counter("late_records").get(), 1);
}

#[test]
fn e12_late_event_is_counted_when_nobody_reads_the_late_output() {
    let cx = context("hourly", 0, 1);
    let mut h = OpHarness::with(tumbling(tens(), count(), SideSlot::default()), &cx).unwrap();
    h.watermark(200).unwrap();
    h.batch([(keyed(1, 0), 50), (keyed(1, 0), 199), (keyed(1, 0), 200)]).unwrap();
    assert_eq!(cx.counter("late_records").get(), 2);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut h), [(1, 200, 1, 209)]);
}

#[test]
fn a_record_behind_the_watermark_counts_while_its_window_is_open() {
    let mut h = counting(tens());
    h.watermark(8).unwrap();
    h.send(keyed(1, 0), 2).unwrap();
    h.watermark(9).unwrap();
    assert_eq!(results(&mut h), [(1, 0, 1, 9)]);
    h.send(keyed(1, 0), 2).unwrap();
    h.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut h), []);
}

#[test]
fn keep_gives_nothing() {
    let mut h = counting(tens());
    h.send(keyed(1, 0), 3).unwrap();
    h.end(EndKind::Keep).unwrap();
    assert_eq!(results(&mut h), []);
}

#[test]
fn the_ends_of_time_have_windows_too() {
    let mut h = counting(tens());
    let times = [i64::MIN + 1, i64::MAX, i64::MAX - 1, 0];
    h.batch(times.map(|t| (keyed(1, 0), t))).unwrap();
    h.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut h).iter().map(|r| r.2).sum::<u64>(), 4);
}

/// Of windows of 1 ms the last but one ends at `i64::MAX`, and so does the last, which is cut there.
#[test]
fn two_windows_that_end_where_time_ends_are_two() {
    let mut h = counting(Tumbling::of(Duration::from_millis(1)));
    h.batch([(keyed(1, 0), i64::MAX - 1), (keyed(1, 0), i64::MAX), (keyed(1, 0), i64::MAX)]).unwrap();
    h.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut h), [(1, i64::MAX - 1, 1, i64::MAX), (1, i64::MAX, 2, i64::MAX)]);
}

#[test]
fn the_last_moment_there_is_is_not_late_before_it_has_passed() {
    for window in [tens(), Tumbling::of(Duration::from_millis(1))] {
        let mut h = counting(window);
        h.send(keyed(1, 0), i64::MAX).unwrap();
        h.watermark(i64::MAX - 1).unwrap();
        assert_eq!(results(&mut h), []);
        h.send(keyed(1, 0), i64::MAX).unwrap();
        h.end(EndKind::Flush).unwrap();
        assert_eq!(results(&mut h).iter().map(|r| (r.2, r.3)).collect::<Vec<_>>(), [(2, i64::MAX)]);
    }
}

#[test]
fn a_record_without_event_time_fails_the_job_and_says_what_to_do() {
    let error = counting(tens()).send(keyed(1, 0), EventTime::NONE.0).unwrap_err();
    let advice = "give its source event_time, or source_time when the source has times";
    assert!(error.chain().ends_with(advice), "{error:?}");
}

#[test]
fn bad_parameters_fail_the_start() {
    for bad in [Tumbling::of(Duration::ZERO), tens().offset_ms(11)] {
        let op: Counted = tumbling(bad, count(), SideSlot::default());
        let error = OpHarness::<Keyed<u8, i64>, _>::new(op).unwrap_err();
        assert!(error.chain().contains("window "), "{error:?}");
    }
}

/// By window and key: how many, their sum, the greatest.
type Totals = BTreeMap<(i64, u8), (u64, i64, Option<i64>)>;
type Outcome = WindowResult<u8, (u64, (i64, Option<i64>))>;

/// Files what one watermark gave; checks times, order, and that nothing is given twice.
fn collect(given: Vec<Record<Outcome>>, watermark: i64, got: &mut Totals) {
    assert!(given.is_sorted_by_key(|r| r.value.window.end));
    for Record { value: WindowResult { key, window, value: (n, (total, top)), pane }, time } in given {
        assert_eq!((time, pane), (window.last(), Pane::ONLY));
        assert!(window.is_over(Watermark(watermark)));
        assert_eq!(got.insert((window.start.0, key), (n, total, top)), None, "given twice");
    }
}

proptest! {
    /// Any order within the bound gives what a loop over all records gives; nothing is late.
    #[test]
    fn agree_with_a_loop(
        mut records in prop::collection::vec((0u8..5, -200i64..200, 0i64..30), 0..200),
        size in 1i64..40,
        offset in -40i64..40,
    ) {
        const BOUND: i64 = 30;
        let offset = offset % size;
        let window = Tumbling::of(Duration::from_millis(size as u64)).offset_ms(offset);
        // Arrival: by time, each delayed by less than the bound. Ties in arrival stay as generated.
        records.sort_by_key(|(_, time, delay)| time + delay);

        let mut expected = Totals::new();
        for &(key, time, value) in &records {
            let start = (time - offset).div_euclid(size) * size + offset;
            let slot = expected.entry((start, key)).or_insert((0, 0, None));
            *slot = (slot.0 + 1, slot.1 + value, slot.2.max(Some(value)));
        }

        let aggregate = (count(), (sum(|v: &i64| *v), max(|v: &i64| *v)));
        let op = tumbling(window, aggregate, SideSlot::default());
        let cx = context("windows", 0, 1);
        let mut h = OpHarness::with(op, &cx).unwrap();
        let mut got = Totals::new();
        let (mut latest, mut watermark) = (i64::MIN, i64::MIN);
        for (i, &(key, time, value)) in records.iter().enumerate() {
            h.send(keyed(key, value), time).unwrap();
            latest = latest.max(time);
            if i % 3 == 0 && latest - BOUND - 1 > watermark {
                watermark = latest - BOUND - 1;
                h.watermark(watermark).unwrap();
                collect(h.take(), watermark, &mut got);
            }
        }
        h.end(EndKind::Flush).unwrap();
        collect(h.take(), i64::MAX, &mut got);
        prop_assert_eq!(got, expected);
        prop_assert_eq!(cx.counter("late_records").get(), 0);
    }
}
