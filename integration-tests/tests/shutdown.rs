//! Drains and cancels end in time with full channels, or say what holds them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;
use weir_engine::testkit::{NullSink, Probe, ScriptSource, Seen, until};
use weir_engine::*;

/// A sink that waits until it is let go.
#[derive(Clone)]
struct Dam {
    open: Arc<AtomicBool>,
    cx: Option<OperatorContext>,
}

impl Dam {
    fn new() -> Self {
        Dam { open: Arc::default(), cx: None }
    }
}

impl<T: Data> Sink<T> for Dam {
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.cx = Some(cx.clone());
        Ok(())
    }
    fn write(&mut self, batch: &mut Vec<Record<T>>) -> Result<()> {
        while !self.open.load(Ordering::Relaxed) {
            self.cx.as_ref().unwrap().wait(Duration::from_millis(5))?;
        }
        batch.clear();
        Ok(())
    }
}

#[test]
fn cancel_ends_every_wait_with_full_channels() {
    let job = Job::named("full").parallelism(2).channel_depth(1).chaining(false);
    let s = job.source("numbers", ScriptSource::new(vec![numbers(500_000), numbers(500_000)]));
    let s = each(s.source_time(Watermarks::monotonic()), "a", Ok).rebalance();
    each(s, "b", Ok).sink("dam", Dam::new());
    let handle = job.start().unwrap();
    until(&handle, SOON, "full channels", || {
        handle.tasks().iter().filter(|t| matches!(t.activity.0, Activity::Blocked(_))).count() == 8
    });
    let asked = Instant::now();
    handle.cancel();
    assert_eq!(handle.wait().unwrap_err(), JobError::Cancelled { job: "full".into() });
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
}

#[test]
fn a_drain_with_full_channels_ends_when_the_sink_is_let_go() {
    for kind in [EndKind::Keep, EndKind::Flush] {
        let (dam, probe) = (Dam::new(), Probe::new());
        let job = Job::named("drain").parallelism(2).channel_depth(1).chaining(false);
        let s = job.source("numbers", ScriptSource::new(vec![numbers(50_000), numbers(50_000)]).endless());
        tap(s.source_time(Watermarks::monotonic()).rebalance(), "probe", &probe).sink("dam", dam.clone());
        let handle = job.start().unwrap();
        until(&handle, SOON, "backpressure", || {
            handle
                .tasks()
                .iter()
                .any(|t| t.task.chain.as_str() == "numbers" && matches!(t.activity.0, Activity::Blocked(_)))
        });
        handle.drain(kind);
        assert!(handle.wait_for(Duration::from_millis(200)).is_none());
        assert_eq!(handle.status().state, JobState::Draining);
        dam.open.store(true, Ordering::Relaxed);
        let report = handle.wait().unwrap();
        let read: u64 =
            report.tasks.iter().filter(|t| t.task.chain.as_str() == "numbers").map(|t| t.records_in).sum();
        assert_eq!(probe.values().len() as u64, read);
        assert!(probe.seen().iter().any(|(_, s)| *s == Seen::End(kind)));
        assert_eq!(probe.seen().iter().any(|(_, s)| *s == Seen::Watermark(i64::MAX)), kind == EndKind::Flush);
    }
}

#[test]
fn a_drain_that_takes_too_long_says_what_holds_it() {
    let job = Job::named("slow").parallelism(1).drain_timeout(Duration::from_millis(300));
    let s = job.source("numbers", ScriptSource::new(vec![numbers(100)]).endless());
    s.source_time(Watermarks::monotonic()).rebalance().sink("dam", Dam::new());
    let handle = job.start().unwrap();
    until(&handle, SOON, "the dam", || {
        handle.tasks().iter().any(|t| matches!(t.activity.0, Activity::Blocked(_)))
    });
    handle.drain(EndKind::Keep);
    let Err(JobError::DrainTimedOut { held_by, .. }) = handle.wait() else { panic!("it drained") };
    assert!(held_by.contains("dam#0 waiting for dam"), "{held_by}");
}

#[test]
fn a_task_that_never_returns_is_given_up_and_named() {
    let release = Arc::new(AtomicBool::new(false));
    let stop = release.clone();
    let job = Job::named("stuck").parallelism(1).cancel_timeout(Duration::from_millis(300));
    let s = job.source("numbers", ScriptSource::of([(1u64, 1)])).source_time(Watermarks::monotonic());
    let s = each(s, "spins", move |n| {
        while !stop.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        Ok(n)
    });
    s.sink("null", NullSink);
    let handle = job.start().unwrap();
    until(&handle, SOON, "busy", || handle.tasks().iter().any(|t| t.activity.0 == Activity::Busy));
    handle.cancel();
    let Err(JobError::Stuck { held_by, .. }) = handle.wait() else { panic!("it heard") };
    assert!(held_by.contains("numbers#0 in operator code"), "{held_by}");
    release.store(true, Ordering::Relaxed);
}

#[test]
fn orders_are_heard_behind_any_number_of_barriers() {
    let dam = Dam::new();
    let job = Job::named("orders").parallelism(1).channel_depth(1);
    let probe = Probe::new();
    let s = job
        .source("numbers", ScriptSource::new(vec![numbers(50_000)]).endless())
        .source_time(Watermarks::monotonic());
    tap(s.rebalance(), "probe", &probe).sink("dam", dam.clone());
    let handle = job.start().unwrap();
    // Some of them before the start: the order to run is not lost among them.
    let barrier = |id| handle.inject_barrier(Barrier { checkpoint: CheckpointId(id) });
    (1..=500).for_each(barrier);
    until(&handle, SOON, "backpressure", || {
        handle.tasks().iter().any(|t| matches!(t.activity.0, Activity::Blocked(_)))
    });
    (501..=1000).for_each(barrier);
    handle.drain(EndKind::Flush);
    dam.open.store(true, Ordering::Relaxed);
    handle.wait().unwrap();
    let seen = probe.seen_by(0);
    assert!(seen.contains(&Seen::Barrier(1000)) && seen.contains(&Seen::End(EndKind::Flush)));
}

#[test]
fn barriers_are_never_lost_for_one_source_only() {
    let probe = Probe::new();
    let job = Job::named("lost").parallelism(2);
    let scripts = vec![numbers(10), numbers(10)];
    let s = job.source("numbers", ScriptSource::new(scripts).endless()).source_time(Watermarks::monotonic());
    tap(s.rebalance(), "probe", &probe).sink("null", NullSink);
    let handle = job.start().unwrap();
    until(&handle, SOON, "running", || handle.status().state == JobState::Running);
    (1..=2000).for_each(|id| handle.inject_barrier(Barrier { checkpoint: CheckpointId(id) }));
    until(&handle, SOON, "the last", || (0..2).all(|i| probe.seen_by(i).contains(&Seen::Barrier(2000))));
    handle.drain(EndKind::Flush);
    handle.wait().unwrap();
    assert_eq!(probe.values().len(), 20);
}

/// Takes its time to open.
#[derive(Clone)]
struct SlowDoor;

impl<T: Data> Sink<T> for SlowDoor {
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        cx.wait(Duration::from_secs(60))
    }
    fn write(&mut self, batch: &mut Vec<Record<T>>) -> Result<()> {
        batch.clear();
        Ok(())
    }
}

#[test]
fn a_drain_while_an_operator_opens_has_its_limit_too() {
    let job = Job::named("opening").parallelism(1).drain_timeout(Duration::from_millis(300));
    let s = job.source("numbers", ScriptSource::of([(1u64, 1)])).source_time(Watermarks::monotonic());
    s.sink("slow", SlowDoor);
    let handle = job.start().unwrap();
    handle.drain(EndKind::Keep);
    let Some(Err(JobError::DrainTimedOut { held_by, .. })) = handle.wait_for(SOON) else {
        panic!("it opened")
    };
    assert!(held_by.contains("slow"), "{held_by}");
}

/// Gives nothing but dead letters, without end.
#[derive(Clone)]
struct Rubbish;

impl Source for Rubbish {
    type Out = u64;
    fn open(&mut self, _: &OperatorContext) -> Result<()> {
        Ok(())
    }
    fn poll(&mut self, out: &mut SourceBatch<u64>, _: Duration) -> Result<SourceStatus> {
        (0..256).for_each(|i| out.reject(DeadLetter::new("rubbish", 0, i, "not a number", b"x")));
        Ok(SourceStatus::More)
    }
}

#[test]
fn a_source_of_only_bad_records_hears_cancel_and_keeps_its_rate() {
    let job = Job::named("rubbish").parallelism(1);
    job.source("rubbish", Rubbish).max_rate(1000.0).without_event_time().sink("null", NullSink);
    let handle = job.start().unwrap();
    until(&handle, SOON, "running", || handle.status().state == JobState::Running);
    std::thread::park_timeout(Duration::from_secs(1));
    let refused: u64 = handle.tasks().iter().map(|t| t.dead_letters).sum();
    assert!((256..2_500).contains(&refused), "{refused}");
    handle.cancel();
    assert_eq!(handle.wait().unwrap_err(), JobError::Cancelled { job: "rubbish".into() });

    let job = Job::named("unpaced").parallelism(1);
    job.source("rubbish", Rubbish).without_event_time().sink("null", NullSink);
    let handle = job.start().unwrap();
    until(&handle, SOON, "running", || handle.status().state == JobState::Running);
    handle.cancel();
    assert_eq!(handle.wait().unwrap_err(), JobError::Cancelled { job: "unpaced".into() });
}
