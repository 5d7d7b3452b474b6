//! One subtask, by a hand-moved clock, its calls answered by hand.

use std::sync::Arc;
use std::time::Duration;

use weir_engine::testkit::{Given, ManualClock, OpHarness, SideProbe, context, context_by};
use weir_engine::{Cause, EndKind, EventTime, HeldSignal, Record, SideSlot, Watermark};

use super::desk::{Outside, SOON};
use super::operator::AsyncCalls;
use super::*;

mod again;
mod model;
mod remembered;

type Io<C = NoCache> = AsyncIo<u64, u64, String, C>;
type Mapping<F, C> = AsyncCalls<u64, Mapped<u64, F, C>>;
type Harness<F, C> = OpHarness<u64, Mapping<F, C>>;

const SECOND: Duration = Duration::from_secs(1);

fn operator<F, C>(function: F, io: Io<C>) -> Mapping<F, C>
where
    F: AsyncFunction<u64, Out = u64, Error = String>,
    C: Caching<u64, u64>,
{
    let settings = io.settings;
    AsyncCalls::new(Mapped::new(function, io), settings, SideSlot::default())
}

fn ordered() -> Io {
    AsyncIo::ordered(4, SECOND)
}

fn unordered() -> Io {
    AsyncIo::unordered(4, SECOND)
}

/// By a clock that stands until it is moved.
fn by_hand<F, C>(function: F, io: Io<C>) -> (Harness<F, C>, ManualClock)
where
    F: AsyncFunction<u64, Out = u64, Error = String>,
    C: Caching<u64, u64>,
{
    let clock = ManualClock::at(0);
    let cx = context_by(Arc::new(clock.clone()), "under-test", 0, 1);
    (OpHarness::with(operator(function, io), &cx).unwrap(), clock)
}

fn until_given<F, C>(h: &mut Harness<F, C>, n: usize)
where
    F: AsyncFunction<u64, Out = u64, Error = String>,
    C: Caching<u64, u64>,
{
    h.quiet_until(SOON, &format!("{n} results"), |h| h.given() >= n).unwrap();
}

/// Looks a few times: what must not come has had its chance.
fn look<F, C>(h: &mut Harness<F, C>)
where
    F: AsyncFunction<u64, Out = u64, Error = String>,
    C: Caching<u64, u64>,
{
    for _ in 0..5 {
        h.quiet().unwrap();
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn record(value: u64) -> Given<u64> {
    Given::Record(Record::new(value, EventTime(value as i64)))
}

fn watermark(ms: i64) -> Given<u64> {
    Given::Signal(HeldSignal::Watermark(Watermark(ms)))
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn ordered_results_and_signals_wait_behind_a_slow_call() {
    let outside = Outside::default();
    let (mut h, _) = by_hand(outside.function(), ordered());
    h.batch([(1, 1), (2, 2)]).unwrap();
    h.watermark(2).unwrap();
    h.idle(true).unwrap();
    h.idle(false).unwrap();
    h.batch([(3, 3)]).unwrap();
    outside.answer(3, Ok(3));
    outside.answer(2, Ok(2));
    look(&mut h);
    assert_eq!(h.take_given(), []);
    outside.answer(1, Ok(1));
    until_given(&mut h, 3);
    assert_eq!(h.take_given(), [record(1), record(2), watermark(2), record(3)]);
    // With nothing under way a signal passes at once.
    h.watermark(9).unwrap();
    h.idle(true).unwrap();
    assert_eq!(h.take_given(), [watermark(9), Given::Signal(HeldSignal::Idle)]);
}

#[test]
fn unordered_results_come_as_they_are_there_but_pass_no_watermark() {
    let outside = Outside::default();
    let (mut h, _) = by_hand(outside.function(), unordered());
    h.batch([(1, 1), (2, 2)]).unwrap();
    h.watermark(2).unwrap();
    h.batch([(3, 3), (4, 4)]).unwrap();
    outside.answer(4, Ok(4));
    outside.answer(2, Ok(2));
    until_given(&mut h, 1);
    look(&mut h);
    assert_eq!(h.take_given(), [record(2)]);
    outside.answer(1, Ok(1));
    until_given(&mut h, 2);
    assert_eq!(h.take_given(), [record(1), watermark(2), record(4)]);
    outside.answer(3, Ok(3));
    until_given(&mut h, 1);
}

#[test]
fn no_more_calls_run_than_there_is_room_for_and_then_no_more_is_read() {
    for io in [ordered(), unordered()] {
        let outside = Outside::default();
        let (mut h, _) = by_hand(outside.function(), io);
        h.batch((0..4).map(|n| (n, 0))).unwrap();
        assert!(!h.is_full());
        h.batch((4..100).map(|n| (n, 0))).unwrap();
        assert!(h.is_full());
        for n in 0..100 {
            outside.answer(n, Ok(n));
            until_given(&mut h, n as usize + 1);
        }
        assert!(!h.is_full());
        assert_eq!((h.take_values(), outside.most_at_once()), ((0..100).collect(), 4));
    }
}

#[test]
fn what_was_answered_and_may_not_leave_takes_room_too() {
    let outside = Outside::default();
    let (mut h, _) = by_hand(outside.function(), ordered());
    h.batch((0..8).map(|n| (n, 0))).unwrap();
    for n in 1..4 {
        outside.answer(n, Ok(n));
    }
    look(&mut h);
    assert_eq!(outside.begun(4), [0, 1, 2, 3]);
    outside.answer(0, Ok(0));
    until_given(&mut h, 4);
    assert_eq!(outside.begun(8).len(), 8);
}

#[test]
fn a_call_that_takes_too_long_is_broken_off_and_has_its_fallback() {
    let outside = Outside::default();
    let io = ordered().fallback(|n, error| {
        assert_eq!(*error, CallError::TimedOut { after: SECOND });
        n + 100
    });
    let (mut h, clock) = by_hand(outside.function(), io);
    h.batch([(1, 1), (2, 2)]).unwrap();
    outside.begun(2);
    assert_eq!(h.wakes_at(), Some(1_000));
    h.pause(&clock, millis(999)).unwrap();
    assert_eq!(h.take(), []);
    outside.answer(2, Ok(2));
    h.quiet_until(SOON, "the answer", |h| h.op().running() == 1).unwrap();
    h.pause(&clock, millis(1)).unwrap();
    until_given(&mut h, 2);
    assert_eq!(h.take(), [Record::new(101, EventTime(1)), Record::new(2, EventTime(2))]);
    assert_eq!(outside.dropped(1), [1]);
    assert_eq!(h.wakes_at(), None);
}

#[test]
fn an_answer_that_came_in_time_counts_however_late_it_is_looked_at() {
    let outside = Outside::default();
    let (mut h, clock) = by_hand(outside.function(), ordered().fallback(|_, _| 0));
    h.batch([(1, 1), (2, 2)]).unwrap();
    outside.answer(1, Ok(1));
    outside.answer(2, Ok(2));
    // Both are in; the task did not look.
    std::thread::park_timeout(millis(50));
    clock.advance(SECOND * 9);
    until_given(&mut h, 2);
    assert_eq!(h.take_values(), [1, 2]);
}

#[test]
fn failed_calls_are_made_again_after_pauses_that_double() {
    let outside = Outside::default();
    let io = ordered().retry(Retry::exponential(3, millis(100)).at_most(millis(300)));
    let clock = ManualClock::at(0);
    let by_clock = context_by(Arc::new(clock.clone()), "under-test", 0, 1);
    let mut h = OpHarness::with(operator(outside.function(), io), &by_clock).unwrap();
    h.send(7, 7).unwrap();
    for (tries, pause) in [(1, 100), (2, 200), (3, 300)] {
        outside.answer(7, Err("busy"));
        h.quiet_until(SOON, "the failure", |h| h.wakes_at().is_some_and(|at| at < clock_ms(&clock) + 1_000))
            .unwrap();
        assert_eq!(h.wakes_at(), Some(clock_ms(&clock) + pause));
        h.pause(&clock, millis(pause as u64 - 1)).unwrap();
        assert_eq!(outside.calls(), tries);
        h.pause(&clock, millis(1)).unwrap();
        outside.begun(tries + 1);
    }
    outside.answer(7, Ok(8));
    until_given(&mut h, 1);
    assert_eq!((h.take_values(), outside.calls()), (vec![8], 4));
    let counts = |name| by_clock.counter(name).get();
    assert_eq!((counts("calls"), counts("call_retries"), counts("call_timeouts")), (4, 3, 0));
}

fn clock_ms(clock: &ManualClock) -> i64 {
    weir_engine::Clock::now_ms(clock)
}

#[test]
fn the_predicate_says_which_errors_are_worth_another_try() {
    let outside = Outside::default();
    let io = ordered()
        .retry(Retry::fixed(5, Duration::ZERO))
        .retry_if(|error: &CallError<String>| {
            error.is_timeout() || error.error().is_some_and(|e| e == "busy")
        })
        .fallback(|_, error| error.error().map_or(0, |e| e.len() as u64));
    let (mut h, clock) = by_hand(outside.function(), io);
    h.batch([(1, 1), (2, 2)]).unwrap();
    outside.answer(2, Err("no such thing"));
    outside.answer(1, Err("busy"));
    let asked = outside.clone();
    h.quiet_until(SOON, "the second try", |_| asked.calls() == 3).unwrap();
    h.pause(&clock, SECOND).unwrap(); // that one takes too long
    h.quiet_until(SOON, "the third try", |_| asked.calls() == 4).unwrap();
    outside.answer(1, Ok(1));
    until_given(&mut h, 2);
    assert_eq!((h.take_values(), outside.calls()), (vec![1, 13], 4));
}

#[test]
fn when_all_tries_have_failed_the_job_does_and_says_why() {
    let outside = Outside::default();
    let (mut h, _) = by_hand(outside.function(), ordered().retry(Retry::fixed(1, Duration::ZERO)));
    h.send(1, 5).unwrap();
    outside.answer(1, Err("busy"));
    let asked = outside.clone();
    h.quiet_until(SOON, "the second try", |_| asked.calls() == 2).unwrap();
    outside.answer(1, Err("still busy"));
    let error = h.quiet_until(SOON, "the failure", |_| false).unwrap_err();
    let told = error.chain();
    assert!(told.contains("event time 5") && told.contains("tries: 2"), "{told}");
    assert!(told.ends_with("still busy") && told.contains("FailedCalls::DeadLetter"), "{told}");
}

#[test]
fn dead_letters_hold_the_record_whole_and_keep_their_side_of_a_watermark() {
    let outside = Outside::default();
    let slot = SideSlot::default();
    let dead = SideProbe::attach(&slot);
    let io = ordered().on_failed(FailedCalls::DeadLetter);
    let settings = io.settings;
    let op = AsyncCalls::new(Mapped::new(outside.function(), io), settings, slot);
    let clock = ManualClock::at(0);
    let cx = context_by(Arc::new(clock.clone()), "under-test", 0, 1);
    let mut h = OpHarness::with(op, &cx).unwrap();
    h.batch([(1, 1), (2, 2), (3, 3)]).unwrap();
    outside.answer(2, Err("no such thing"));
    outside.begun(3);
    h.quiet_until(SOON, "the failure", |h| h.wakes_at() == Some(1_000)).unwrap();
    assert_eq!(dead.take(), [], "it keeps its place");
    outside.answer(1, Ok(1));
    until_given(&mut h, 1);
    h.pause(&clock, SECOND).unwrap();
    h.quiet().unwrap();
    let failed = |input, reason: &str, timed_out| {
        let call = FailedCall { input, reason: reason.into(), tries: 1, timed_out };
        Record::new(call, EventTime(input as i64))
    };
    assert_eq!(dead.take(), [failed(2, "no such thing", false), failed(3, "no answer within 1s", true)]);
    assert_eq!((h.take_values(), cx.counter("failed_calls").get()), (vec![1], 2));
}

#[test]
fn calls_are_broken_off_when_the_operator_goes() {
    let outside = Outside::default();
    let (mut h, _) = by_hand(outside.function(), AsyncIo::ordered(1_000, SECOND));
    h.batch((0..1_000).map(|n| (n, 0))).unwrap();
    outside.begun(1_000);
    drop(h);
    assert_eq!(outside.dropped(1_000).len(), 1_000);
}

#[test]
fn a_panic_in_the_future_or_before_it_is_an_error() {
    let boom = |n: u64| async move { if n > 0 { panic!("cannot ask for {n}") } else { Ok::<_, String>(n) } };
    let mut h = OpHarness::new(operator(boom, ordered())).unwrap();
    // The answer may be there before the batch is done.
    let sent = h.send(3, 0);
    let error = sent.and_then(|()| h.quiet_until(SOON, "the panic", |_| false)).unwrap_err();
    assert_eq!((error.to_string().as_str(), error.cause()), ("cannot ask for 3", Cause::Panicked));
    let at_once = |n: u64| {
        assert!(n == 0, "does not even begin");
        async move { Ok::<_, String>(n) }
    };
    let mut h = OpHarness::new(operator(at_once, ordered())).unwrap();
    let sent = h.send(3, 0);
    let error = sent.and_then(|()| h.quiet_until(SOON, "the panic", |_| false)).unwrap_err();
    assert_eq!(error.to_string(), "does not even begin");
}
