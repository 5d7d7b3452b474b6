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

#[test]
fn what_has_passed_by_the_clock_is_in_the_checkpoint() {
    let feed = Feed::of(1);
    let start = || {
        let clock = ManualClock::at(0);
        let checkpoints = Checkpoints::to("memory://passed-by-the-clock").every(s(3_600));
        let job = Job::named("passed").parallelism(1).checkpoints(checkpoints);
        let (job, probe) = (job.clock(Arc::new(clock.clone())), Probe::new());
        let watermarks = Watermarks::monotonic().advance_when_silent(s(10));
        let numbers = job.source("in", feed.clone()).source_time(watermarks);
        numbers.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
        (job.start().expect("it starts"), probe, clock)
    };
    let (running, probe, clock) = start();
    feed.give(0, [5_000]);
    until(&running, SOON, "the record", || reached(&probe) == Some(4_999));
    assert!(running.wait_for(ms(120)).is_none(), "the split is looked into");
    clock.advance(s(15));
    until(&running, SOON, "the clock", || reached(&probe) == Some(4_999 + 15_000));
    running.checkpoint().expect("a checkpoint");
    cancel(&running);
    // Of the new life's own silence nothing has passed; the second life hands it on to the third.
    for _ in 0..2 {
        let (again, probe, _) = start();
        until(&again, SOON, "where it was", || reached(&probe) == Some(4_999 + 15_000));
        again.checkpoint().expect("a checkpoint");
        cancel(&again);
    }
    // And it goes on from there.
    let (last, probe, clock) = start();
    until(&last, SOON, "where it was", || reached(&probe) == Some(4_999 + 15_000));
    assert!(last.wait_for(ms(120)).is_none(), "the split is looked into");
    clock.advance(s(10));
    until(&last, SOON, "the bound", || reached(&probe) == Some(4_999 + 25_000));
    cancel(&last);
}

#[test]
fn e11_a_source_that_may_be_silent_for_no_time_holds_nobody_once_it_is() {
    let clock = ManualClock::at(0);
    let (job, probe) = (Job::named("zero").clock(Arc::new(clock.clone())).parallelism(1), Probe::new());
    let (silent, talks) = (Feed::of(1), Feed::of(1));
    let a = job.source("silent", silent.clone()).source_time(Watermarks::monotonic().idle_after(s(0)));
    let b = job.source("talks", talks.clone()).source_time(Watermarks::monotonic());
    a.union(b).transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    let running = job.start().unwrap();
    silent.give(0, [100]);
    talks.give(0, [50]);
    until(&running, SOON, "both", || probe.values().len() == 2);
    for n in 1..=5 {
        clock.advance(ms(2));
        talks.give(0, [n * 1_000]);
        until(&running, SOON, "the one that talks", || reached(&probe) == Some(n * 1_000 - 1));
    }
    cancel(&running);
}

#[test]
fn a_split_that_begins_while_its_subtask_is_idle_holds_the_others() {
    let clock = ManualClock::at(0);
    let (job, probe) = (Job::named("begins").clock(Arc::new(clock.clone())).parallelism(1), Probe::new());
    let (sleeps, talks) = (Feed::of(2), Feed::of(1));
    sleeps.begins_later(1);
    let a = job.source("sleeps", sleeps.clone()).source_time(Watermarks::monotonic().idle_after(s(1)));
    let b = job.source("talks", talks.clone()).source_time(Watermarks::monotonic());
    a.union(b).transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    let running = job.start().unwrap();
    sleeps.give(0, [100]);
    talks.give(0, [500]);
    until(&running, SOON, "the slowest", || reached(&probe) == Some(99));
    assert!(running.wait_for(ms(120)).is_none(), "the split is looked into");
    clock.advance(s(2));
    until(&running, SOON, "the one that talks", || reached(&probe) == Some(499));
    sleeps.begins(1);
    until(&running, SOON, "its source is told", || sleeps.is_announced(1));
    assert!(running.wait_for(ms(120)).is_none());
    talks.give(0, [1_000]);
    until(&running, SOON, "the record", || probe.values().len() == 3);
    assert!(running.wait_for(ms(120)).is_none());
    assert_eq!(reached(&probe), Some(499), "the new split has promised nothing");
    // It was never silent for long enough: what it gives is on time.
    sleeps.give(1, [700]);
    until(&running, SOON, "its record", || probe.values().len() == 4);
    assert_eq!(late(&probe), Vec::<i64>::new());
    until(&running, SOON, "it", || reached(&probe) == Some(699));
    // And it may fall silent like any other.
    clock.advance(s(2));
    until(&running, SOON, "the one that talks", || reached(&probe) == Some(999));
    cancel(&running);
}
