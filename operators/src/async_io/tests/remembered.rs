//! Caches, and lookups with and without a match.

use super::*;

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
