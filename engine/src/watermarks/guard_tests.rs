//! The guard by itself: what it refuses and why, and that the quick look and the close one agree.

use proptest::prelude::*;

use super::*;

const HOUR: i64 = 3_600_000;

fn batch(times: &[i64]) -> Vec<Record<usize>> {
    times.iter().enumerate().map(|(i, t)| Record::new(i, EventTime(*t))).collect()
}

/// What of `times` passes, and what is wrong with the others.
fn sifted(guard: Guard, times: &[i64], before: Latest, now_ms: i64) -> (Vec<i64>, Vec<(usize, TimeFault)>) {
    let mut records = batch(times);
    let refused = guard.sift(&mut records, (0, times.len()), before, now_ms);
    assert!(refused.iter().all(|(place, record, _)| *place == record.value));
    (
        records.iter().map(|r| r.time.0).collect(),
        refused.into_iter().map(|(i, _, fault)| (i, fault)).collect(),
    )
}

fn at(time: i64, at_ms: i64) -> Latest {
    Latest { time: EventTime(time), at_ms }
}

#[test]
fn e06_a_day_ahead_of_the_clock_is_refused_and_what_follows_is_not() {
    let guard = Guard { future_ms: Some(HOUR), ..Guard::default() };
    let now = 1_700_000_000_000;
    let (passed, refused) = sifted(guard, &[now, now + 24 * HOUR, now + 1, now + HOUR], Latest::NONE, now);
    assert_eq!(passed, [now, now + 1, now + HOUR], "exactly the limit is in time");
    assert_eq!(refused, [(1, TimeFault::AheadOfClock { ahead_ms: 24 * HOUR, limit_ms: HOUR })]);
}

#[test]
fn e06_a_jump_is_held_against_the_latest_that_was_believed() {
    let guard = Guard { jump_ms: Some(100), ..Guard::default() };
    let (passed, refused) = sifted(guard, &[5, 500, 105, 205, 306], Latest::NONE, 0);
    assert_eq!(passed, [5, 105, 205]);
    let ahead = |ahead_ms| TimeFault::AheadOfSplit { ahead_ms, limit_ms: 100 };
    assert_eq!(refused, [(1, ahead(495)), (4, ahead(101))]);
    // After a silence the present is no jump, nor does a clock that was set back make one of everything.
    assert_eq!(sifted(guard, &[700], at(205, 1_000), 1_395).0, [700]);
    assert_eq!(sifted(guard, &[700], at(205, 1_000), 1_394).0, Vec::<i64>::new());
    assert_eq!(sifted(guard, &[300], at(205, 1_000), -9_000).0, [300]);
}

#[test]
fn what_goes_back_is_refused_and_equal_times_are_in_order() {
    let guard = Guard { in_order: true, ..Guard::default() };
    let (passed, refused) = sifted(guard, &[5, 5, 4, i64::MIN, 6, 5], at(3, 0), 0);
    assert_eq!(passed, [5, 5, i64::MIN, 6], "no time is no time that goes back");
    let back = |latest| TimeFault::WentBack { latest: EventTime(latest) };
    assert_eq!(refused, [(2, back(5)), (5, back(6))]);
    assert!(!guard.passes(&batch(&[2, 9]), EventTime(9), at(3, 0), 0));
    assert!(guard.passes(&batch(&[3, 9, 9]), EventTime(9), at(3, 0), 0));
}

#[test]
fn a_record_without_time_is_refused_only_where_one_must_be_there() {
    assert_eq!(sifted(Guard::default(), &[i64::MIN], Latest::NONE, 0).0, [i64::MIN]);
    let guard = Guard { timed: true, ..Guard::default() };
    assert_eq!(sifted(guard, &[i64::MIN, 1], Latest::NONE, 0), (vec![1], vec![(0, TimeFault::Missing)]));
}

#[test]
fn the_ends_of_time_do_not_overflow() {
    let guard = Guard { future_ms: Some(i64::MAX), jump_ms: Some(i64::MAX), in_order: true, timed: true };
    let times = [i64::MIN + 1, -1, 0, i64::MAX];
    for now in [i64::MIN, -1, 0, i64::MAX] {
        sifted(guard, &times, at(i64::MIN + 1, i64::MAX), now);
        sifted(Guard { future_ms: Some(0), jump_ms: Some(0), ..guard }, &times, at(i64::MAX, i64::MIN), now);
        guard.passes(&batch(&times), EventTime(i64::MAX), at(i64::MAX, i64::MIN), now);
    }
}

#[test]
fn a_fault_says_what_is_allowed_and_by_which_setting() {
    let far = TimeFault::AheadOfClock { ahead_ms: 24 * HOUR, limit_ms: HOUR };
    assert_eq!(far.to_string(), "it is 86400s ahead of the clock, and future_limit allows 3600s");
    let back = TimeFault::WentBack { latest: EventTime(7) };
    assert_eq!(back.to_string(), "it lies before an earlier record of its split, which was at 7");
}

#[test]
fn a_split_that_was_silent_goes_on_at_the_present_whichever_record_comes_first() {
    let guard = Guard { jump_ms: Some(5), ..Guard::default() };
    for times in [[150, 160], [160, 150]] {
        assert_eq!(sifted(guard, &times, at(100, 0), 55), (times.to_vec(), vec![]));
    }
    let too_far = TimeFault::AheadOfSplit { ahead_ms: 11, limit_ms: 5 };
    assert_eq!(sifted(guard, &[150, 161], at(100, 0), 55), (vec![150], vec![(1, too_far)]));
}

proptest! {
    /// Whatever the quick look lets pass, the close one does too; and what is left after sifting passes both.
    #[test]
    fn the_quick_look_and_the_close_one_agree(
        times in proptest::collection::vec(prop_oneof![8 => -200i64..200, 1 => Just(i64::MIN)], 0..20),
        future in proptest::option::of(0i64..200), jump in proptest::option::of(0i64..200),
        in_order: bool, timed: bool, before in proptest::option::of((-200i64..200, -50i64..50)), now in -50i64..50,
    ) {
        let guard = Guard { future_ms: future, jump_ms: jump, in_order, timed };
        let before = before.map_or(Latest::NONE, |(time, at_ms)| at(time, at_ms));
        let latest = |times: &[i64]| EventTime(times.iter().copied().max().unwrap_or(i64::MIN));
        let (passed, refused) = sifted(guard, &times, before, now);
        prop_assert_eq!(passed.len() + refused.len(), times.len());
        if guard.passes(&batch(&times), latest(&times), before, now) {
            prop_assert_eq!(&refused, &[]);
        }
        // A closer look is taken in vain only for the first record of a split, or in a run that climbs by steps.
        if refused.is_empty() && jump.is_none() {
            prop_assert!(guard.passes(&batch(&times), latest(&times), before, now));
        }
        let again = sifted(guard, &passed, before, now);
        prop_assert_eq!(again, (passed, Vec::new()));
    }
}
