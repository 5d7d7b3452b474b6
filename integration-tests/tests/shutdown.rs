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
