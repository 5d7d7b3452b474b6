//! Patterns against a plain search of the same records, whatever their order, restarts and parallelism; and their bounds.

use super::*;
use crate::fleet::Fleet;
use crate::ordered::{Ordered, Timely};
use crate::trial::{cuts, in_order, input, run};
use proptest::prelude::*;
use std::ops::ControlFlow;
use weir_engine::testkit::{OpHarness, SideProbe, context};
use weir_engine::{EndKind, Keyed, SideSlot};
use weir_state::key_hash;

fn ms(ms: i64) -> Duration {
    Duration::from_millis(ms as u64)
}

type Operator<T, A, B, C> = Timely<u64, T, Ordered<u64, T, Detect<u64, T, A, B, C>>>;

fn op<T: Kept, A: Condition<T>, B: Condition<T>, C: Condition<T>>(
    pattern: Pattern<T, A, B, C>,
) -> Operator<T, A, B, C> {
    let within = pattern.check().unwrap();
    Timely::new(Ordered::new(Detect::new(pattern, within)), SideSlot::default())
}

fn keyed(key: u64, value: i64) -> Keyed<u64, i64> {
    Keyed { hash: key_hash(&key), key, value }
}

fn a(v: &(i64, usize)) -> bool {
    v.0 % 3 == 0
}
fn b(v: &(i64, usize)) -> bool {
    v.0 % 2 != 0
}
fn c(v: &(i64, usize)) -> bool {
    v.0 == 5 || v.0 == 4
}

/// `(time, number of the first, number of the second)` of every match of a key, from the definition alone.
fn plain(
    records: &[((i64, usize), i64)],
    within: i64,
    negated: bool,
    unless: bool,
) -> Vec<(i64, usize, Option<usize>)> {
    let mut found = Vec::new();
    for (i, (first, time)) in records.iter().enumerate().filter(|(_, r)| a(&r.0)) {
        let mut later = records[i + 1..].iter().take_while(|r| r.1 - time <= within);
        let ends = later.find(|r| b(&r.0) || unless && c(&r.0));
        match ends {
            Some((second, at)) if b(second) && !negated => found.push((*at, first.1, Some(second.1))),
            None if negated => found.push((time + within, first.1, None)),
            _ => {}
        }
    }
    found.sort_unstable();
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Every match once, whatever the order within the bound, saves, losses, restores and parallelism.
    #[test]
    fn agrees_with_a_search(input in input(), cuts in cuts(), within in 1..50i64, negated in any::<bool>(), unless in any::<bool>()) {
        let start = Pattern::begin(a);
        let pattern = if negated { start.not_followed_by(b, ms(within)) } else { start.followed_by(b, ms(within)) };
        let given = if unless {
            run(op(pattern.unless(c)), &input, &cuts, true)
        } else {
            run(op(pattern), &input, &cuts, true)
        };
        let mut count = 0;
        for key in 0..4 {
            let of_key: Vec<_> = given.iter().filter(|r| r.value.key == key).collect();
            prop_assert!(of_key.is_sorted_by_key(|r| r.time));
            let got = of_key.iter().map(|r| (r.time.0, r.value.first.1, r.value.then.map(|then| then.1)));
            let mut got: Vec<_> = got.collect();
            got.sort_unstable();
            prop_assert_eq!(&got, &plain(&in_order(&input, key), within, negated, unless));
            count += got.len();
        }
        prop_assert_eq!(given.len(), count);
    }
}

type Matches = Vec<(i64, i64, Option<i64>)>;

fn taken<A: Condition<i64>, B: Condition<i64>, C: Condition<i64>>(
    h: &mut OpHarness<Keyed<u64, i64>, Operator<i64, A, B, C>>,
) -> Matches {
    h.take().into_iter().map(|r| (r.time.0, r.value.first, r.value.then)).collect()
}

fn one_then_two() -> Pattern<i64, impl Condition<i64>, impl Condition<i64>> {
    Pattern::begin(|v: &i64| *v == 1).followed_by(|v| *v == 2, ms(5))
}

fn one_without_two() -> Pattern<i64, impl Condition<i64>, impl Condition<i64>> {
    Pattern::begin(|v: &i64| *v == 1).not_followed_by(|v| *v == 2, ms(5))
}

#[test]
fn e18_what_follows_exactly_within_the_time_follows() {
    for (time, follows) in [(0, true), (5, true), (6, false)] {
        let mut h = OpHarness::new(op(one_then_two())).unwrap();
        h.batch([(keyed(1, 1), 0), (keyed(1, 2), time)]).unwrap();
        h.watermark(100).unwrap();
        assert_eq!(taken(&mut h), if follows { vec![(time, 1, Some(2))] } else { vec![] });
        let mut h = OpHarness::new(op(one_without_two())).unwrap();
        h.batch([(keyed(1, 1), 0), (keyed(1, 2), time)]).unwrap();
        h.watermark(100).unwrap();
        assert_eq!(taken(&mut h), if follows { vec![] } else { vec![(5, 1, None)] });
    }
}

#[test]
fn e27_nothing_is_said_to_be_missing_that_came() {
    let mut h = OpHarness::new(op(one_without_two())).unwrap();
    h.batch([(keyed(1, 1), -10), (keyed(1, 2), -8), (keyed(2, 1), -10)]).unwrap();
    for watermark in [-9, -6, -5, 0, 50] {
        h.watermark(watermark).unwrap();
    }
    h.end(EndKind::Flush).unwrap();
    let found: Vec<_> = h.take().into_iter().map(|r| (r.value.key, r.time.0)).collect();
    assert_eq!(found, [(2, -5)]);
}

#[test]
fn an_absence_is_told_when_event_time_has_passed_it_or_the_input_has_ended() {
    let mut h = OpHarness::new(op(one_without_two())).unwrap();
    h.send(keyed(1, 1), 0).unwrap();
    h.watermark(4).unwrap();
    assert_eq!(taken(&mut h), []);
    h.watermark(5).unwrap();
    assert_eq!(taken(&mut h), [(5, 1, None)]);
    h.batch([(keyed(1, 1), 10), (keyed(1, 2), 13), (keyed(1, 1), 14), (keyed(1, 1), 16)]).unwrap();
    h.end(EndKind::Flush).unwrap();
    assert_eq!(taken(&mut h), [(19, 1, None), (21, 1, None)]);
}

#[test]
fn what_is_both_completes_the_one_before_it() {
    let chain = Pattern::begin(|v: &i64| *v > 0).followed_by(|v| *v > 0, ms(5));
    let mut h = OpHarness::new(op(chain)).unwrap();
    h.batch([(keyed(1, 1), 0), (keyed(1, -9), 1), (keyed(1, 2), 3), (keyed(1, 3), 3)]).unwrap();
    h.watermark(3).unwrap();
    assert_eq!(taken(&mut h), [(3, 1, Some(2)), (3, 2, Some(3))]);
}

#[test]
fn one_record_completes_every_open_one_and_one_in_between_closes_them() {
    let pattern = one_then_two().unless(|v| *v == 0);
    let mut h = OpHarness::new(op(pattern)).unwrap();
    let events = [1, 0, 1, 1, 7, 2, 2].into_iter().enumerate();
    h.batch(events.map(|(time, value)| (keyed(1, value), time as i64))).unwrap();
    h.watermark(10).unwrap();
    assert_eq!(taken(&mut h), [(5, 1, Some(2)), (5, 1, Some(2))]);
}

#[test]
fn e12_late_records_are_in_no_match_and_come_out_aside() {
    let late = SideSlot::default();
    let probe = SideProbe::attach(&late);
    let cx = context("found", 0, 1);
    let op = Timely::new(Ordered::new(Detect::new(one_then_two(), 5)), late);
    let mut h = OpHarness::with(op, &cx).unwrap();
    h.send(keyed(1, 1), 199).unwrap();
    h.watermark(200).unwrap();
    h.batch([(keyed(1, 2), 200), (keyed(1, 2), 203)]).unwrap();
    h.quiet().unwrap();
    h.end(EndKind::Flush).unwrap();
    assert_eq!(h.take().into_iter().map(|r| r.time.0).collect::<Vec<_>>(), [203]);
    assert_eq!(probe.take(), [Record::new(2, EventTime(200))]);
    assert_eq!(cx.counter("late_records").get(), 1);
}

#[test]
fn e22_e25_an_absence_is_told_once_after_restores_though_nothing_comes_for_its_key() {
    const KEYS: u64 = 1_000;
    let mut fleet = Fleet::of(op(one_without_two()), 2);
    fleet.batch((0..KEYS).map(|key| (key, 1, 0)));
    fleet.watermark(3);
    for parallelism in [3, 1, 2] {
        let saved = fleet.save();
        fleet.watermark(5);
        assert_eq!(fleet.take().len() as u64, KEYS);
        fleet.restore(&saved, parallelism);
    }
    fleet.batch([(0, 2, 4)]);
    fleet.watermark(5);
    let mut keys: Vec<u64> = fleet.take().into_iter().map(|r| r.value.key).collect();
    keys.sort_unstable();
    assert_eq!(keys, (1..KEYS).collect::<Vec<_>>());
    fleet.end(EndKind::Flush);
    assert_eq!(fleet.take(), []);
}

#[test]
fn nothing_is_kept_of_what_can_match_no_more() {
    let cx = context("found", 0, 1);
    let mut h = OpHarness::with(op(one_then_two()), &cx).unwrap();
    let mut id = 0;
    let mut stored = |h: &mut OpHarness<_, _>| {
        id += 1;
        h.save(id).unwrap();
        let mut rows = 0;
        let mut count = |_: &[u8], _: &[u8]| {
            rows += 1;
            ControlFlow::Continue(())
        };
        cx.store().unwrap().backend().scan(&[], &[], &mut count).unwrap();
        rows
    };
    h.batch((0..100).flat_map(|key| [(keyed(key, 1), 0), (keyed(key, 3), 1)])).unwrap();
    assert!(stored(&mut h) >= 300);
    h.watermark(1).unwrap();
    assert_eq!(stored(&mut h), 300, "of each key a state, an open record and its timer");
    h.batch((0..50).map(|key| (keyed(key, 2), 3))).unwrap();
    h.watermark(5).unwrap();
    assert_eq!(h.take().len(), 50);
    assert_eq!(stored(&mut h), 0);
}

#[test]
fn e16_a_time_that_cannot_be_is_named() {
    let pattern = Pattern::begin(|_: &i64| true).followed_by(|_| true, Duration::ZERO);
    let error = pattern.check().unwrap_err().to_string();
    assert!(error.starts_with("within is 0ns"), "{error}");
}

fn lives<B: Condition<i64>>(
    first: &Pattern<i64, impl Condition<i64>, B>,
    records: &[(i64, i64)],
    watermark: i64,
) -> weir_engine::testkit::Saved {
    let mut h = OpHarness::new(op(first.clone())).unwrap();
    h.watermark(-1).unwrap();
    h.batch(records.iter().map(|(value, time)| (keyed(1, *value), *time))).unwrap();
    h.watermark(watermark).unwrap();
    assert_eq!(taken(&mut h), []);
    h.save(1).unwrap()
}

#[test]
fn what_has_begun_goes_by_the_longer_time_of_a_later_life() {
    let without = |within| Pattern::begin(|v: &i64| *v == 1).not_followed_by(|v| *v == 2, ms(within));
    let saved = lives(&without(30), &[(1, 0)], 10);
    let mut h = OpHarness::restored(op(without(60)), &[&saved], 0, 1).unwrap();
    h.watermark(59).unwrap();
    assert_eq!(taken(&mut h), []);
    h.watermark(60).unwrap();
    assert_eq!(taken(&mut h), [(60, 1, None)]);

    let with = |within| Pattern::begin(|v: &i64| *v == 1).followed_by(|v| *v == 2, ms(within));
    let saved = lives(&with(30), &[(1, 0)], 10);
    for (time, found) in [(60, vec![(60, 1, Some(2))]), (61, vec![]), (1_000, vec![])] {
        let mut h = OpHarness::restored(op(with(60)), &[&saved], 0, 1).unwrap();
        h.send(keyed(1, 2), time).unwrap();
        h.watermark(2_000).unwrap();
        assert_eq!(taken(&mut h), found, "at {time}");
    }
}

#[test]
fn what_has_begun_goes_by_the_shorter_time_of_a_later_life_and_is_never_late() {
    let without = |within| Pattern::begin(|v: &i64| *v == 1).not_followed_by(|v| *v == 2, ms(within));
    let saved = lives(&without(30), &[(1, 0), (1, 8)], 20);
    // Both are over by now; said at a time that event time has not passed.
    let mut h = OpHarness::restored(op(without(10)), &[&saved], 0, 1).unwrap();
    h.watermark(29).unwrap();
    assert_eq!(taken(&mut h), []);
    h.watermark(30).unwrap();
    assert_eq!(taken(&mut h), [(30, 1, None), (30, 1, None)]);
    // What comes meanwhile follows nothing that was over before it.
    let mut h = OpHarness::restored(op(without(10)), &[&saved], 0, 1).unwrap();
    h.send(keyed(1, 2), 25).unwrap();
    h.watermark(100).unwrap();
    assert_eq!(taken(&mut h), [(30, 1, None), (30, 1, None)]);

    let with = |within| Pattern::begin(|v: &i64| *v == 1).followed_by(|v| *v == 2, ms(within));
    let saved = lives(&with(30), &[(1, 0), (1, 16)], 20);
    let mut h = OpHarness::restored(op(with(10)), &[&saved], 0, 1).unwrap();
    h.batch([(keyed(1, 2), 25), (keyed(1, 1), 26)]).unwrap();
    h.watermark(100).unwrap();
    assert_eq!(taken(&mut h), [(25, 1, Some(2))]);
}
