//! Sources that are kept together in event time: who is ahead waits, and hears everything but records meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_engine::plan::PlanError;
use weir_engine::testkit::{ManualClock, NullSink, Probe, ScriptSource, until};
use weir_engine::{Activity, OperatorInfo, prelude::*};

use crate::feed::*;

/// Two sources that are kept within `drift` of each other, their records in one probe; the slow one is busy with nothing.
fn fast_and_slow(job: Job, drift: std::time::Duration) -> (JobHandle, Feed, Feed, Probe<u64>) {
    let (probe, fast, slow) = (Probe::new(), Feed::of(1), Feed::of(1));
    let watermarks = || Watermarks::monotonic().idle_after(s(2)).aligned("both", drift);
    let one = job.source("fast", fast.clone()).source_time(watermarks());
    let other = job.source("slow", slow.clone()).source_time(watermarks());
    slow.busy(true);
    one.union(other).transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    (job.start().expect("it starts"), fast, slow, probe)
}

/// Waits until the fast source does not read, and gives how much of it is left.
fn held(running: &JobHandle, fast: &Feed) -> usize {
    let waits = |t: &weir_engine::TaskReading| t.activity.0 == Activity::Blocked("fast".into());
    until(running, SOON, "the fast one is held", || running.tasks().iter().any(waits));
    assert!(running.wait_for(ms(60)).is_none());
    fast.left(0)
}

#[test]
fn e04_a_source_held_for_longer_than_the_idle_limit_is_not_idle_and_goes_on() {
    let clock = ManualClock::at(0);
    let job = Job::named("e04").parallelism(1).clock(Arc::new(clock.clone()));
    let (running, fast, slow, probe) = fast_and_slow(job, s(1));
    slow.give(0, [10]);
    fast.give(0, (0..20).map(|n| n * 500));
    fast.give(0, (10_000..20_000).map(|n| n / 10 * 10));
    let left = held(&running, &fast);
    assert!(left > 0, "all of it was read");
    // Longer than the idle limit; the slow one is busy all the time, so it goes on holding.
    clock.advance(s(60));
    assert_eq!(held(&running, &fast), left);
    assert!(reached(&probe).is_none_or(|w| w <= 9), "{:?}", reached(&probe));
    slow.give(0, [500, 30_000]);
    until(&running, SOON, "all records", || probe.values().len() == 10_020 + 3);
    until(&running, SOON, "its time", || reached(&probe) == Some(19_989));
    assert_eq!(late(&probe), Vec::<i64>::new());
    cancel(&running);
}

#[test]
fn a_held_source_passes_barriers_and_hears_a_drain() {
    let checkpoints = Checkpoints::to("memory://aligned").every(s(3_600));
    let job = Job::named("mail").parallelism(1).checkpoints(checkpoints);
    let (running, fast, slow, _) = fast_and_slow(job, s(1));
    slow.give(0, [10]);
    fast.give(0, (0..5_000).map(|n| n * 10));
    let left = held(&running, &fast);
    running.checkpoint().expect("a checkpoint while it is held");
    assert_eq!(fast.left(0), left, "it read on for that");
    running.drain(EndKind::Keep);
    running.wait_for(SOON).expect("it hears the drain").unwrap();
}

#[test]
fn an_idle_and_an_ended_source_hold_nobody() {
    for ends in [false, true] {
        let clock = ManualClock::at(0);
        let job = Job::named("free").parallelism(1).clock(Arc::new(clock.clone()));
        let (running, fast, slow, probe) = fast_and_slow(job, s(1));
        slow.give(0, [10]);
        fast.give(0, (0..5_000).map(|n| n * 10));
        held(&running, &fast);
        if ends {
            slow.ends();
        } else {
            slow.busy(false);
            // It has to be seen dry before the time that counts begins.
            assert!(running.wait_for(ms(120)).is_none());
            clock.advance(s(3));
        }
        until(&running, SOON, "all of the fast one", || fast.is_empty() && probe.values().len() == 5_001);
        cancel(&running);
    }
}

#[test]
fn subtasks_of_one_source_are_kept_together_too_in_every_attempt() {
    let failed = Arc::new(AtomicBool::new(false));
    let policy = RestartPolicy::FixedDelay { restarts: 1, delay: ms(0) };
    let job = Job::named("one").parallelism(2).restart(policy);
    let (probe, feed) = (Probe::new(), Feed::of(2));
    let watermarks = Watermarks::monotonic().idle_after(ms(100)).aligned("one", s(1));
    let time = move |n: &u64| {
        assert!(*n != 4_000 || failed.swap(true, Ordering::SeqCst), "once");
        *n as i64 * 10
    };
    let numbers = job.source("fast", feed.clone()).event_time(time, watermarks);
    numbers.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    feed.busy(true);
    feed.give(0, 0..5_000);
    feed.give(1, 0..1);
    let running = job.start().unwrap();
    let left = held(&running, &feed);
    assert!(left > 0);
    feed.give(1, 0..5_000);
    // The one that fails leaves the group, so the other may come to its end before it is stopped: both get more for the second attempt.
    let lives = || running.history().iter().filter(|s| s.state == JobState::Running).count();
    until(&running, SOON, "the second attempt", || lives() == 2);
    (0..2).for_each(|k| feed.give_values(k, 5_000..6_000));
    // What was in the batch that failed is not fed again. A subtask that has nothing left does not hold the other for ever.
    feed.busy(false);
    until(&running, SOON, "all", || feed.is_empty() && probe.values().len() > 11_000);
    until(&running, SOON, "both to run again", || running.tasks().iter().all(|t| t.records_in > 0));
    cancel(&running);
}

#[test]
fn a_source_that_says_nothing_before_its_end_is_refused_in_a_group() {
    let job = Job::named("refused");
    let numbers = job.source("in", ScriptSource::of([(1, 0)]));
    numbers.source_time(Watermarks::at_end().aligned("both", s(1))).sink("out", NullSink);
    let Err(PlanError::Argument { uid, reason }) = job.plan() else { panic!("it cannot work") };
    assert!(uid == "in" && reason.contains("\"both\""), "{reason}");
}
