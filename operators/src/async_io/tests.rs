//! One subtask, by a hand-moved clock, its calls answered by hand; and against a plain map, with calls that take their time.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use weir_engine::testkit::{Given, ManualClock, OpHarness, SideProbe, context_by};
use weir_engine::{Cause, EndKind, EventTime, HeldSignal, Record, SideSlot, Watermark};

use super::desk::{Outside, SOON};
use super::operator::AsyncCalls;
use super::*;

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
fn a_barrier_waits_for_no_answer_and_the_call_is_made_again_at_any_parallelism() {
    let outside = Outside::default();
    let io = || AsyncIo::<u64, u64, String>::ordered(8, SECOND);
    let mut h = OpHarness::new(operator(outside.function(), io())).unwrap();
    // One is given, one answered behind an open one, and some have no room.
    h.batch((0..20).map(|n| (n, n as i64))).unwrap();
    h.watermark(19).unwrap();
    h.batch((20..30).map(|n| (n, n as i64))).unwrap();
    outside.answer(0, Ok(0));
    until_given(&mut h, 1);
    outside.answer(2, Ok(2));
    let first = h.save(1).unwrap();
    assert_eq!(h.take_values(), [0]);
    // What leaves the operator leaves the state.
    outside.answer(1, Ok(1));
    until_given(&mut h, 2);
    let second = h.save(2).unwrap();
    assert_eq!(h.take_values(), [1, 2]);
    drop(h);
    for (saved, left) in [(&first, 1..30), (&second, 3..30)] {
        for parallelism in [1, 2, 7] {
            let outside = Outside::default();
            let mut again: Vec<_> = (0..parallelism)
                .map(|n| {
                    OpHarness::restored(operator(outside.function(), io()), &[saved], n, parallelism).unwrap()
                })
                .collect();
            // Saved again before any answer: nothing is lost.
            let saved: Vec<_> = again.iter_mut().map(|h| h.save(3).unwrap()).collect();
            drop(again);
            let outside = Outside::default();
            let saved: Vec<_> = saved.iter().collect();
            let mut all = Vec::new();
            let mut h = OpHarness::restored(operator(outside.function(), io()), &saved, 0, 1).unwrap();
            assert!(h.is_full(), "what is owed comes first");
            h.quiet().unwrap();
            for n in left.clone() {
                outside.answer(n, Ok(n));
                h.quiet_until(SOON, "an answer", |h| h.given() > 0).unwrap();
                all.extend(h.take_given());
            }
            let mut expected: Vec<_> = left.clone().map(record).collect();
            // The watermark that had not left comes again in its place.
            expected.insert(20 - left.start as usize, watermark(19));
            assert_eq!(all, expected, "parallelism {parallelism}");
            h.watermark(i64::MAX).unwrap();
            assert_eq!(h.take_given(), [watermark(i64::MAX)]);
        }
    }
}

#[test]
fn the_end_waits_for_what_is_under_way() {
    for kind in [EndKind::Flush, EndKind::Keep] {
        let outside = Outside::default();
        let (mut h, _) = by_hand(outside.function(), unordered());
        h.batch((0..9).map(|n| (n, n as i64))).unwrap();
        let answers = outside.clone();
        let answering =
            std::thread::Builder::new().spawn(move || (0..9).for_each(|n| answers.answer(n, Ok(n)))).unwrap();
        h.end(kind).unwrap();
        answering.join().unwrap();
        let given = h.take_given();
        let flushed = usize::from(kind == EndKind::Flush);
        assert_eq!(given.len(), 9 + flushed);
        assert_eq!(given.last() == Some(&watermark(i64::MAX)), flushed == 1);
    }
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
    h.send(3, 0).unwrap();
    let error = h.quiet_until(SOON, "the panic", |_| false).unwrap_err();
    assert_eq!((error.to_string().as_str(), error.cause()), ("cannot ask for 3", Cause::Panicked));
    let at_once = |n: u64| {
        assert!(n == 0, "does not even begin");
        async move { Ok::<_, String>(n) }
    };
    let mut h = OpHarness::new(operator(at_once, ordered())).unwrap();
    h.send(3, 0).unwrap();
    let error = h.quiet_until(SOON, "the panic", |_| false).unwrap_err();
    assert_eq!(error.to_string(), "does not even begin");
}

#[test]
fn remembered_answers_are_not_asked_for_again_until_their_time_is_over() {
    let outside = Outside::default();
    let io = AsyncIo::<u64, u64, String>::ordered(4, SECOND * 60).cache(CallCache::entries(10).ttl(SECOND));
    let (mut h, clock) = by_hand(outside.function(), io);
    h.send(1, 1).unwrap();
    outside.answer(1, Ok(10));
    until_given(&mut h, 1);
    h.batch([(1, 1), (1, 2)]).unwrap();
    assert_eq!(h.take_values(), [10, 10, 10]);
    clock.advance(millis(999));
    h.send(1, 1).unwrap();
    assert_eq!((h.take_values(), outside.calls()), (vec![10], 1));
    clock.advance(millis(1));
    h.send(1, 1).unwrap();
    outside.answer(1, Ok(11));
    until_given(&mut h, 1);
    assert_eq!((h.take_values(), outside.calls()), (vec![11], 2));
}

#[test]
fn a_cache_holds_no_more_than_it_may_and_goes_by_the_key() {
    let outside = Outside::default();
    let io = AsyncIo::<u64, u64, String>::ordered(4, SECOND * 60).cache_by(|n| n / 10, CallCache::entries(2));
    let (mut h, _) = by_hand(outside.function(), io);
    h.send(11, 0).unwrap();
    outside.answer(11, Ok(1));
    until_given(&mut h, 1);
    h.batch([(12, 0), (19, 0)]).unwrap();
    assert_eq!((h.take_values(), outside.calls()), (vec![1, 1, 1], 1));
    for n in [20, 30, 40, 50] {
        h.send(n, 0).unwrap();
        outside.answer(n, Ok(n));
        until_given(&mut h, 1);
        h.take();
    }
    let calls = outside.calls();
    h.batch([(10, 0), (20, 0), (30, 0), (40, 0)]).unwrap();
    assert!(outside.begun(calls + 2).len() >= calls + 2, "two at most were remembered");
}

#[derive(Clone, Debug)]
enum Step {
    /// Values, and how many tenths of a millisecond their calls take.
    Batch(Vec<u64>),
    Watermark,
    Quiet,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => prop::collection::vec(0..30u64, 0..20).prop_map(Step::Batch),
        2 => Just(Step::Watermark),
        1 => Just(Step::Quiet),
    ];
    prop::collection::vec(step, 0..20)
}

/// Calls that take as long as the value says, fail now and then at the first try, and count themselves.
fn run(io: Io, steps: &[Step]) -> (Vec<Given<u64>>, Vec<Given<u64>>) {
    let slow = |n: u64| async move {
        tokio::time::sleep(Duration::from_micros(100 * (n % 100))).await;
        Ok::<_, String>(n)
    };
    let mut h = OpHarness::new(operator(slow, io)).unwrap();
    let (mut came, mut number, mut given) = (Vec::new(), 0, Vec::new());
    for step in steps {
        match step {
            Step::Batch(delays) => {
                let values: Vec<u64> = delays
                    .iter()
                    .map(|d| {
                        number += 1;
                        100 * number + d
                    })
                    .collect();
                came.extend(values.iter().map(|n| record(*n)));
                h.batch(values.into_iter().map(|n| (n, n as i64))).unwrap();
            }
            Step::Watermark => {
                let at = 100 * number as i64 + 99;
                if came.iter().all(|given| *given != watermark(at)) {
                    h.watermark(at).unwrap();
                    came.push(watermark(at));
                }
            }
            Step::Quiet => h.quiet().unwrap(),
        }
        given.extend(h.take_given());
    }
    h.end(EndKind::Keep).unwrap();
    given.extend(h.take_given());
    (came, given)
}

fn segments(all: Vec<Given<u64>>) -> Vec<Vec<u64>> {
    let mut segments = vec![Vec::new()];
    for given in all {
        match given {
            Given::Record(record) => segments.last_mut().unwrap().push(record.value),
            Given::Signal(_) => segments.push(Vec::new()),
        }
    }
    segments.iter_mut().for_each(|segment| segment.sort_unstable());
    segments
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn ordered_calls_are_a_map(steps in steps(), capacity in 1..40usize) {
        let (came, given) = run(AsyncIo::ordered(capacity, SECOND * 60), &steps);
        // Watermarks with no record between come as the last of them.
        prop_assert_eq!(merged(given), merged(came));
    }

    #[test]
    fn unordered_calls_are_a_map_between_watermarks(steps in steps(), capacity in 1..40usize) {
        let (came, given) = run(AsyncIo::unordered(capacity, SECOND * 60), &steps);
        prop_assert_eq!(segments(merged(given)), segments(merged(came)));
    }
}

fn merged(all: Vec<Given<u64>>) -> Vec<Given<u64>> {
    let mut merged: Vec<Given<u64>> = Vec::new();
    for given in all {
        if matches!((&given, merged.last()), (Given::Signal(_), Some(Given::Signal(_)))) {
            merged.pop();
        }
        merged.push(given);
    }
    merged
}

/// Even numbers are there.
#[derive(Clone)]
struct Evens(Outside);

impl Lookup<u64> for Evens {
    type Value = u64;
    type Error = String;
    async fn get(&self, key: &u64) -> Result<Option<u64>, String> {
        Ok(Some(self.0.ask(*key).await?).filter(|n| n % 2 == 0))
    }
}

fn looking<J, C>(
    outside: &Outside,
    io: AsyncIo<u64, Option<u64>, String, C>,
    join: J,
) -> (OpHarness<u64, impl weir_engine::Operator<u64, Out = J::Out>>, ManualClock)
where
    J: lookup::Join<u64, u64>,
    C: Caching<u64, Option<u64>>,
{
    let clock = ManualClock::at(0);
    let cx = context_by(Arc::new(clock.clone()), "under-test", 0, 1);
    let settings = io.settings;
    let looked = lookup::Looked {
        lookup: Evens(outside.clone()),
        shared: Opened(None),
        key: |n: &u64| n % 10,
        io,
        answers: Opened(None),
        join,
    };
    (OpHarness::with(AsyncCalls::new(looked, settings, SideSlot::default()), &cx).unwrap(), clock)
}

#[test]
fn a_lookup_join_leaves_out_or_keeps_what_has_no_match() {
    let outside = Outside::default();
    let (mut h, _) = looking(&outside, AsyncIo::ordered(4, SECOND), lookup::Inner);
    h.batch([(11, 1), (12, 2)]).unwrap();
    outside.answer(1, Ok(1));
    outside.answer(2, Ok(2));
    h.quiet_until(SOON, "a match", |h| h.given() > 0).unwrap();
    assert_eq!(h.take(), [Record::new((12, 2), EventTime(2))]);
    let (mut h, _) = looking(&outside, AsyncIo::ordered(4, SECOND), lookup::Left);
    h.batch([(11, 1), (12, 2)]).unwrap();
    outside.answer(1, Ok(1));
    outside.answer(2, Ok(2));
    h.quiet_until(SOON, "both", |h| h.given() > 1).unwrap();
    assert_eq!(h.take_values(), [(11, None), (12, Some(2))]);
}

#[test]
fn a_lookup_remembers_that_there_is_nothing_as_long_as_it_is_told() {
    let cache = CallCache::entries(10).ttl(SECOND * 10).negative_ttl(SECOND);
    for (cache, calls) in [(cache, [2, 2, 3, 3]), (cache.without_negatives(), [2, 3, 4, 5])] {
        let outside = Outside::default();
        let io = AsyncIo::ordered(4, SECOND * 60).cache(cache);
        let (mut h, clock) = looking(&outside, io, lookup::Left);
        h.batch([(11, 1), (12, 2)]).unwrap();
        outside.answer(1, Ok(1));
        outside.answer(2, Ok(2));
        h.quiet_until(SOON, "both", |h| h.given() > 1).unwrap();
        assert_eq!(outside.calls(), calls[0]);
        for (round, forward) in [(1, 0), (2, 1_000), (3, 999)] {
            clock.advance(millis(forward));
            h.batch([(21, 1), (22, 2)]).unwrap();
            if calls[round] > calls[round - 1] {
                outside.answer(1, Ok(1));
            }
            h.quiet_until(SOON, "both again", |h| h.given() > 3).unwrap();
            assert_eq!(h.take_values()[2..], [(21, None), (22, Some(2))]);
            assert_eq!(outside.calls(), calls[round]);
            h.batch([(12, 2), (32, 2)]).unwrap();
        }
    }
}

#[test]
fn behind_a_key_by_a_call_is_made_again_where_its_key_is() {
    use weir_engine::Keyed;
    use weir_state::{KEY_GROUPS, key_hash};

    let keyed = |n: u64| Keyed { hash: key_hash(&(n % 50)), key: n % 50, value: n };
    let io = || AsyncIo::<u64, u64, String>::unordered(1_000, SECOND * 60);
    let op = |outside: &Outside| keyed::KeyedCalls::<u64, _, _>::new(operator(outside.function(), io()));
    let mut h = OpHarness::new(op(&Outside::default())).unwrap();
    h.batch((0..300).map(|n| (keyed(n), n as i64))).unwrap();
    let saved = h.save(1).unwrap();
    drop(h);
    let mut all = Vec::new();
    for subtask in 0..3 {
        let outside = Outside::default();
        let mut h = OpHarness::restored(op(&outside), &[&saved], subtask, 3).unwrap();
        let own = |n: &u64| key_hash(&(n % 50)).group(KEY_GROUPS).subtask(KEY_GROUPS, 3) == subtask;
        let owned: Vec<u64> = (0..300).filter(own).collect();
        h.quiet().unwrap();
        owned.iter().for_each(|n| outside.answer(*n, Ok(*n)));
        h.quiet_until(SOON, "its own", |h| h.given() == owned.len()).unwrap();
        let mut given = h.take_values();
        given.sort_unstable();
        assert_eq!(given, owned);
        assert_eq!(outside.calls(), owned.len());
        all.extend(given);
    }
    assert_eq!(all.len(), 300);
}
