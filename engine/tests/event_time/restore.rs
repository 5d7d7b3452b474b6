//! Where the splits stand in event time is in the checkpoint, whichever subtask reads them afterwards.

use std::sync::Arc;

use weir_engine::testkit::{ManualClock, NullSink, Probe, until};
use weir_engine::{OperatorInfo, prelude::*};

use crate::feed::*;

fn start(name: &str, parallelism: usize, feed: &Feed, watermarks: Watermarks) -> (JobHandle, Probe<u64>) {
    let checkpoints = Checkpoints::to(format!("memory://event-times-{name}")).every(s(3_600));
    let job = Job::named(name).parallelism(parallelism).checkpoints(checkpoints);
    let (job, probe) = (job.clock(Arc::new(ManualClock::at(1_000_000))), Probe::new());
    let numbers = job.source("in", feed.clone()).source_time(watermarks);
    let all = numbers.rebalance().parallelism(1);
    all.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    (job.start().expect("it starts"), probe)
}

#[test]
fn e22_event_time_stands_where_it_stood_though_nothing_comes_after_the_restore() {
    for parallelism in [1, 2, 3] {
        let (name, watermarks) = (format!("e22-{parallelism}"), || Watermarks::bounded(ms(10)).never_idle());
        let feed = Feed::of(3);
        let (running, probe) = start(&name, 2, &feed, watermarks());
        for (split, time) in [(0, 700), (1, 500), (2, 900)] {
            feed.give(split, [time]);
        }
        until(&running, SOON, "the slowest", || reached(&probe) == Some(489));
        running.checkpoint().expect("a checkpoint");
        cancel(&running);
        // Not a record: the watermark is there again; then each split goes on from where it was, whoever reads it.
        let (again, probe) = start(&name, parallelism, &feed, watermarks());
        until(&again, SOON, "the slowest, restored", || reached(&probe) == Some(489));
        assert_eq!(probe.values(), Vec::<u64>::new());
        feed.give(1, [2_000]);
        until(&again, SOON, "the next slowest", || reached(&probe) == Some(689));
        cancel(&again);
    }
}

#[test]
fn what_went_back_before_the_restore_goes_back_after_it() {
    let feed = Feed::of(1);
    let (running, probe) = start("back", 1, &feed, Watermarks::monotonic());
    feed.give(0, [700]);
    until(&running, SOON, "the record", || probe.values().len() == 1);
    running.checkpoint().expect("a checkpoint");
    cancel(&running);
    let (again, _) = start("back", 1, &feed, Watermarks::monotonic());
    feed.give(0, [699]);
    let error = again.wait_for(SOON).expect("it fails").unwrap_err().to_string();
    assert!(error.contains("part 0 gave a record of 699 after one of 700"), "{error}");
}

#[test]
fn a_checkpoint_soon_after_a_restore_holds_what_the_restore_brought() {
    let (feed, watermarks) = (Feed::of(2), || Watermarks::monotonic().never_idle());
    let (running, probe) = start("soon", 2, &feed, watermarks());
    feed.give(0, [700]);
    feed.give(1, [800]);
    until(&running, SOON, "the slowest", || reached(&probe) == Some(699));
    running.checkpoint().expect("a checkpoint");
    cancel(&running);
    for _ in 0..3 {
        let (again, probe) = start("soon", 1, &feed, watermarks());
        running_checkpoint(&again);
        until(&again, SOON, "the slowest", || reached(&probe) == Some(699));
        cancel(&again);
    }
}

fn running_checkpoint(running: &JobHandle) {
    until(running, SOON, "it runs", || running.status().state == JobState::Running);
    running.checkpoint().expect("a checkpoint");
}

#[test]
fn another_strategy_after_the_restore_keeps_the_promise_that_was_given() {
    let feed = Feed::of(1);
    let (running, probe) = start("other", 1, &feed, Watermarks::monotonic());
    feed.give(0, [700]);
    until(&running, SOON, "the record", || reached(&probe) == Some(699));
    running.checkpoint().expect("a checkpoint");
    cancel(&running);
    let (again, probe) = start("other", 1, &feed, Watermarks::bounded(ms(100)));
    until(&again, SOON, "the promise", || reached(&probe) == Some(699));
    feed.give(0, [850]);
    until(&again, SOON, "beyond it", || reached(&probe) == Some(749));
    cancel(&again);
    let (at_end, probe) = start("other", 1, &feed, Watermarks::at_end());
    feed.give(0, [900]);
    until(&at_end, SOON, "the record", || probe.values().len() == 1);
    assert_eq!(reached(&probe), None);
    cancel(&at_end);
}
