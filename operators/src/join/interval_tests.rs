//! The interval join against nested loops, with failures in between; its bounds, its state, its late records.

use proptest::prelude::*;
use weir_engine::EndKind;
use weir_engine::testkit::{OpHarness, Saved, SideProbe};
use weir_state::key_hash;

use super::*;
use crate::fleet::Fleet;
use crate::join::kind::{Anti, FullOuter, Inner, LeftOuter, RightOuter, Semi};
use crate::join::testing::{self, Both, Known, Value, nested_loops};
use crate::trial::{self, Cuts};

type Join<J, A = Value, B = Value> = Timely<u64, Either<A, B>, IntervalJoin<u64, A, B, J>>;

fn join<J: JoinKind<A, B>, A: Kept, B: Kept>(lower: i64, upper: i64) -> Join<J, A, B> {
    Timely::new(IntervalJoin::new((lower, upper)), SideSlot::default())
}

fn agrees<J: Known>(
    _: J,
    input: &testing::Input,
    cuts: &Cuts,
    (lower, upper): (i64, i64),
) -> Result<(), TestCaseError> {
    let given = testing::rows::<J>(trial::run(join::<J, Value, Value>(lower, upper), input, cuts, false));
    let (left, right) = (testing::left(input), testing::right(input));
    let meet = |l: &(u64, Value, i64), r: &(u64, Value, i64)| {
        (l.0 == r.0 && l.2 + lower <= r.2 && r.2 <= l.2 + upper).then_some(l.2.max(r.2))
    };
    let alone = |left: bool, time: i64| time.max(if left { time + upper } else { time - lower });
    prop_assert_eq!(given, nested_loops::<J>(&left, &right, meet, alone));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]
    #[test]
    fn every_kind_gives_what_nested_loops_give(
        input in testing::input(), cuts in trial::cuts(), lower in -40..40i64, width in prop_oneof![Just(0), 0..60i64]
    ) {
        let bounds = (lower, lower + width);
        agrees(Inner, &input, &cuts, bounds)?;
        agrees(LeftOuter, &input, &cuts, bounds)?;
        agrees(RightOuter, &input, &cuts, bounds)?;
        agrees(FullOuter, &input, &cuts, bounds)?;
        agrees(Semi, &input, &cuts, bounds)?;
        agrees(Anti, &input, &cuts, bounds)?;
    }
}

fn keyed(value: Either<&'static str, &'static str>) -> Keyed<u64, Either<String, String>> {
    let value = match value {
        Either::Left(l) => Either::Left(l.to_owned()),
        Either::Right(r) => Either::Right(r.to_owned()),
    };
    Keyed { hash: key_hash(&7u64), key: 7, value }
}

type Harness<J> = OpHarness<Keyed<u64, Either<String, String>>, Join<J, String, String>>;

fn harness<J: JoinKind<String, String>>(_: J, lower: i64, upper: i64) -> Harness<J> {
    OpHarness::new(join(lower, upper)).unwrap()
}

fn taken<J: JoinKind<String, String>>(harness: &mut Harness<J>) -> Vec<(J::Out, i64)> {
    harness.take().into_iter().map(|r| (r.value, r.time.0)).collect()
}

#[test]
fn e27_what_met_one_is_never_given_alone() {
    let mut h = harness(FullOuter, 0, 10);
    h.watermark(0).unwrap();
    h.send(keyed(Either::Left("l")), 1).unwrap();
    h.send(keyed(Either::Right("r")), 1).unwrap();
    assert_eq!(taken(&mut h), [((Some("l".to_owned()), Some("r".to_owned())), 1)]);
    let saved = h.save(1).unwrap();
    // Both expire, in a life that did not see them meet.
    let mut h = OpHarness::restored(join::<FullOuter, String, String>(0, 10), &[&saved], 0, 1).unwrap();
    h.watermark(100).unwrap();
    h.end(EndKind::Flush).unwrap();
    assert_eq!(h.take(), []);
}

#[test]
fn e27_one_of_two_duplicates_meets_neither_or_both() {
    let mut h = harness(LeftOuter, -5, 5);
    h.watermark(0).unwrap();
    h.batch([(keyed(Either::Left("a")), 3), (keyed(Either::Left("a")), 3), (keyed(Either::Left("b")), 9)])
        .unwrap();
    h.send(keyed(Either::Right("r")), 1).unwrap();
    let pair = ("a".to_owned(), Some("r".to_owned()));
    assert_eq!(taken(&mut h), [(pair.clone(), 3), (pair, 3)]);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(taken(&mut h), [(("b".to_owned(), None), 14)]);
}

#[test]
fn both_bounds_are_in_the_interval() {
    let mut h = harness(Inner, -2, 3);
    h.watermark(-20).unwrap();
    h.send(keyed(Either::Left("l")), -10).unwrap();
    for time in [-13, -12, -10, -7, -6] {
        h.send(keyed(Either::Right("r")), time).unwrap();
    }
    assert_eq!(taken(&mut h).iter().map(|row| row.1).collect::<Vec<_>>(), [-10, -10, -7]);
}

#[test]
fn the_ends_of_time_are_times_too() {
    let mut h = harness(FullOuter, i64::MIN, i64::MAX);
    // From the first moment there is until 0.
    h.send(keyed(Either::Left("l")), i64::MIN + 1).unwrap();
    for time in [i64::MIN + 1, 0, 1, i64::MAX] {
        h.send(keyed(Either::Right("r")), time).unwrap();
    }
    assert_eq!(taken(&mut h).iter().map(|row| row.1).collect::<Vec<_>>(), [i64::MIN + 1, 0]);
    h.end(EndKind::Flush).unwrap();
    let alone = (None, Some("r".to_owned()));
    assert_eq!(taken(&mut h), [(alone.clone(), i64::MAX), (alone, i64::MAX)]);
}

#[test]
fn what_nothing_can_meet_any_more_is_forgotten() {
    let mut fleet = Fleet::of(join::<Inner, Value, Value>(-10, 5), 1);
    fleet.watermark(0);
    let left = |n: usize| Both::Left((0, n));
    fleet.batch((0..100).map(|n| (1, left(n), 1 + (n as i64 % 10))));
    fleet.batch((0..100).map(|n| (1, Both::Right((0, n)), 1 + (n as i64 % 10))));
    fleet.watermark(15);
    fleet.batch([(1, Both::Right((0, 0)), 16)]);
    fleet.take();
    // Left ones of 11 and later would be met by 16; right ones wait for lefts up to ten later.
    fleet.watermark(25);
    fleet.batch([(1, left(0), 26)]);
    assert_eq!(fleet.take().len(), 1, "the right one of 16");
    fleet.watermark(1_000);
    let saved = fleet.save();
    let mut after = Fleet::of(join::<FullOuter, Value, Value>(-1_000_000, 1_000_000), 1);
    after.restore(&saved, 3);
    after.end(EndKind::Flush);
    assert_eq!(after.take(), [], "nothing had been kept");
}

#[test]
fn what_waits_goes_by_the_wider_bounds_of_a_later_life() {
    let mut h = harness(FullOuter, -10, 10);
    h.watermark(0).unwrap();
    let [l, m, r] = [Either::Left("l"), Either::Left("m"), Either::Right("r")];
    h.batch([(keyed(l), 100), (keyed(m), 105), (keyed(r), 200)]).unwrap();
    let saved = h.save(1).unwrap();
    let (l, m) = ((Some("l".to_owned()), None), (Some("m".to_owned()), None));
    let r = (None, Some("r".to_owned()));
    let wider = |saved: &Saved, by: i64| -> Harness<FullOuter> {
        OpHarness::restored(join(-by, by), &[saved], 0, 1).unwrap()
    };

    let mut h = wider(&saved, 20);
    for (watermark, row) in [(120, l.clone()), (125, m.clone()), (220, r.clone())] {
        // The timer of the life before is ten earlier, but that of the second one is past by now.
        h.watermark(watermark - if watermark == 125 { 1 } else { 10 }).unwrap();
        assert_eq!(taken(&mut h), []);
        h.watermark(watermark).unwrap();
        assert_eq!(taken(&mut h), [(row, watermark)]);
    }
    // Nothing is left that could meet anything.
    let saved_after = h.save(2).unwrap();
    for record in [Either::Left("x"), Either::Right("y")] {
        let mut after = wider(&saved_after, 1_000);
        after.send(keyed(record), 300).unwrap();
        assert_eq!(taken(&mut after), []);
    }

    // Straight to the end of time, where no timer can be set.
    let mut h = wider(&saved, 20);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(taken(&mut h), [(l, 120), (m, 125), (r, 220)]);
}

#[test]
fn narrower_bounds_of_a_later_life_hold_nothing_for_longer() {
    let mut h = harness(LeftOuter, 0, 20);
    h.watermark(0).unwrap();
    h.send(keyed(Either::Left("l")), 100).unwrap();
    let saved = h.save(1).unwrap();
    let mut h = OpHarness::restored(join::<LeftOuter, String, String>(0, 10), &[&saved], 0, 1).unwrap();
    h.send(keyed(Either::Right("r")), 115).unwrap();
    assert_eq!(taken(&mut h), []);
    // The next timer of the key takes along what is over by the new bounds.
    h.watermark(120).unwrap();
    assert_eq!(taken(&mut h), [(("l".to_owned(), None), 115)]);
}

#[test]
fn a_record_that_can_only_meet_the_past_is_not_kept() {
    let mut h = harness(LeftOuter, -30, -20);
    h.watermark(100).unwrap();
    h.send(keyed(Either::Left("soon over")), 110).unwrap();
    assert_eq!(taken(&mut h), [(("soon over".to_owned(), None), 110)]);
    h.send(keyed(Either::Left("waits")), 125).unwrap();
    assert_eq!(taken(&mut h), []);
    h.watermark(104).unwrap();
    assert_eq!(taken(&mut h), []);
    h.watermark(105).unwrap();
    assert_eq!(taken(&mut h), [(("waits".to_owned(), None), 125)]);
}

#[test]
fn e12_late_records_of_either_side_meet_nothing() {
    let slot = SideSlot::default();
    let late = SideProbe::attach(&slot);
    let op: Join<FullOuter, String, String> = Timely::new(IntervalJoin::new((-50, 50)), slot);
    let mut h = OpHarness::new(op).unwrap();
    h.send(keyed(Either::Left("l")), 90).unwrap();
    h.watermark(100).unwrap();
    h.batch([(keyed(Either::Right("late")), 100), (keyed(Either::Left("late too")), 99)]).unwrap();
    h.quiet().unwrap();
    assert_eq!(h.take(), []);
    let late: Vec<_> = late.take().into_iter().map(|r| (r.value, r.time.0)).collect();
    assert_eq!(late, [(Either::Right("late".to_owned()), 100), (Either::Left("late too".to_owned()), 99)]);
    assert!(h.op().prefetch(&[]).is_ok());
    h.end(EndKind::Flush).unwrap();
    assert_eq!(taken(&mut h), [((Some("l".to_owned()), None), 140)]);
}

#[test]
fn e16_an_interval_that_cannot_be_is_named() {
    let between = Interval::between_ms(5, 4).check().unwrap_err().to_string();
    assert!(between.contains("from 5 to 4 ms"), "{between}");
    let within = Interval::within(Duration::from_micros(1)).check().unwrap_err().to_string();
    assert!(within.starts_with("within is 1µs"), "{within}");
    assert_eq!(Interval::within(Duration::from_millis(5)).check(), Ok((-5, 5)));
    assert_eq!(Interval::after(Duration::from_millis(5)).check(), Ok((0, 5)));
}

/// Saves a pair that has met and waits, and restores it for another kind of join.
fn changed<From: JoinKind<String, String>, To: JoinKind<String, String>>(
    from: From,
    _: To,
) -> Result<Harness<To>> {
    let mut h = harness(from, 0, 10);
    h.watermark(0).unwrap();
    h.batch([(keyed(Either::Left("l")), 1), (keyed(Either::Right("r")), 1)]).unwrap();
    let saved = h.save(1).unwrap();
    OpHarness::restored(join(0, 10), &[&saved], 0, 1)
}

#[test]
fn a_kind_that_asks_what_was_never_marked_is_refused_while_records_wait() {
    let refused = |what: Result<()>| what.unwrap_err().to_string();
    for left in [
        changed(Inner, LeftOuter).map(drop),
        changed(Inner, FullOuter).map(drop),
        changed(Inner, Semi).map(drop),
        changed(Inner, Anti).map(drop),
        changed(RightOuter, LeftOuter).map(drop),
        changed(RightOuter, FullOuter).map(drop),
    ] {
        assert!(refused(left).contains("which left records have met one, which the job needs now"));
    }
    for right in [changed(Inner, RightOuter).map(drop), changed(LeftOuter, RightOuter).map(drop)] {
        assert!(refused(right).contains("which right records have met one, which the job needs now"));
    }
    assert!(changed(LeftOuter, FullOuter).is_err() && changed(Semi, FullOuter).is_err());
    // What was marked is known, whatever asks for it.
    let mut anti = changed(FullOuter, Anti).unwrap();
    let mut semi = changed(LeftOuter, Semi).unwrap();
    let mut inner = changed(Semi, Inner).unwrap();
    anti.end(EndKind::Flush).unwrap();
    semi.end(EndKind::Flush).unwrap();
    inner.end(EndKind::Flush).unwrap();
    assert_eq!((taken(&mut anti).len(), taken(&mut semi).len(), taken(&mut inner).len()), (0, 1, 0));
    // With nothing that waits there is nothing to know.
    let mut h = harness(Inner, 0, 10);
    h.send(keyed(Either::Left("l")), 1).unwrap();
    h.watermark(100).unwrap();
    let saved = h.save(1).unwrap();
    OpHarness::restored(join::<LeftOuter, String, String>(0, 10), &[&saved], 0, 1).unwrap();
}
