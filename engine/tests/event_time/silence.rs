//! Total silence: with a bound, event time goes on with the clock, from where it stood.

use std::sync::Arc;

use weir_engine::testkit::{ManualClock, NullSink, Probe, until};
use weir_engine::{OperatorInfo, prelude::*};

use crate::feed::*;

/// Two subtasks with a split each, behind one consumer.
fn two_splits(name: &str, watermarks: Watermarks) -> (JobHandle, Feed, Probe<u64>, ManualClock) {
    let clock = ManualClock::at(0);
    let (job, probe, feed) =
        (Job::named(name).clock(Arc::new(clock.clone())).parallelism(2), Probe::new(), Feed::of(2));
    let numbers = job.source("in", feed.clone()).source_time(watermarks);
    let all = numbers.rebalance().parallelism(1);
    all.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    (job.start().expect("it starts"), feed, probe, clock)
}

#[test]
fn without_a_bound_total_silence_closes_nothing() {
    let (running, feed, probe, clock) = two_splits("open", Watermarks::monotonic().idle_after(s(1)));
    feed.give(0, [1_000]);
    feed.give(1, [5_000]);
    until(&running, SOON, "both", || probe.values().len() == 2);
    clock.advance(s(3_600));
    until(&running, SOON, "the furthest", || reached(&probe) == Some(4_999));
    clock.advance(s(3_600));
    assert!(running.wait_for(ms(150)).is_none());
    assert_eq!(reached(&probe), Some(4_999));
    cancel(&running);
}

#[test]
fn total_silence_lets_event_time_go_on_by_the_clock_until_a_record_comes() {
    let watermarks = Watermarks::monotonic().never_idle().advance_when_silent(s(10));
    let (running, feed, probe, clock) = two_splits("closed", watermarks);
    feed.give(0, [1_000]);
    feed.give(1, [5_000]);
    until(&running, SOON, "the slowest", || reached(&probe) == Some(999));
    assert!(running.wait_for(ms(120)).is_none(), "both splits are looked into");
    clock.advance(s(9));
    assert!(running.wait_for(ms(120)).is_none());
    assert_eq!(reached(&probe), Some(999), "the bound is ten seconds");
    // From the furthest that was promised, by as much as the silence has lasted.
    clock.advance(s(1));
    until(&running, SOON, "the bound", || reached(&probe) == Some(4_999 + 10_000));
    clock.advance(s(5));
    until(&running, SOON, "the clock", || reached(&probe) == Some(4_999 + 15_000));
    // What is further counts at once; what comes behind is late and moves nothing.
    feed.give(1, [35_000]);
    until(&running, SOON, "the next record's time", || reached(&probe) == Some(34_999));
    feed.give(0, [15_000]);
    until(&running, SOON, "the late one", || probe.values().len() == 4);
    assert_eq!(late(&probe), [15_000]);
    cancel(&running);
}

#[test]
fn a_source_of_which_one_subtask_talks_is_not_silent() {
    let watermarks = Watermarks::monotonic().never_idle().advance_when_silent(s(10));
    let (running, feed, probe, clock) = two_splits("half", watermarks);
    feed.give(0, [1_000]);
    feed.give(1, [5_000]);
    until(&running, SOON, "the slowest", || reached(&probe) == Some(999));
    for n in 1..=6 {
        clock.advance(s(4));
        feed.give(1, [5_000 + n]);
        until(&running, SOON, "it", || probe.values().len() == 2 + n as usize);
        assert!(running.wait_for(ms(60)).is_none());
    }
    assert_eq!(reached(&probe), Some(999));
    cancel(&running);
}

#[test]
fn a_silent_source_that_goes_by_the_clock_holds_no_other_back() {
    let clock = ManualClock::at(0);
    let (job, probe) = (Job::named("beside").clock(Arc::new(clock.clone())).parallelism(1), Probe::new());
    let (silent, talks) = (Feed::of(1), Feed::of(1));
    let a = Watermarks::monotonic().advance_when_silent(s(1));
    let a = job.source("silent", silent.clone()).source_time(a);
    let b = job.source("talks", talks.clone()).source_time(Watermarks::monotonic());
    a.union(b).transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    let running = job.start().unwrap();
    silent.give(0, [100]);
    talks.give(0, [50]);
    until(&running, SOON, "both", || reached(&probe) == Some(49));
    assert!(running.wait_for(ms(120)).is_none());
    for n in 1..=5 {
        clock.advance(s(2));
        talks.give(0, [n * 100_000]);
        until(&running, SOON, "the one that talks", || reached(&probe) == Some(n * 100_000 - 1));
    }
    assert_eq!(late(&probe), Vec::<i64>::new());
    cancel(&running);
}
