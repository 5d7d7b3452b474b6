//! Every subtask of a sink tells the last checkpoint that it has committed: to Rust, as JSON and as a metric.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::get;
use serde_json::json;
use weir_engine::http::HttpPort;
use weir_engine::testkit::{Line, NullSink, ScriptSource, until};
use weir_engine::{AttemptId, Barrier, CheckpointId, Committed, Sink, TaskReading, metrics, prelude::*};

const SOON: Duration = Duration::from_secs(30);

/// Commits, but for the times that it was told not to.
#[derive(Clone, Default)]
struct Commits {
    fails: Arc<AtomicU32>,
}

impl Sink<i64> for Commits {
    fn write(&mut self, batch: &mut Vec<Record<i64>>) -> Result<()> {
        batch.clear();
        Ok(())
    }
    fn prepare(&mut self, _: Barrier) -> Result<Option<serde_json::Value>> {
        Ok(Some(json!("work")))
    }
    fn commit(&mut self, _: serde_json::Value) -> Result<()> {
        let one_less = |n: u32| n.checked_sub(1);
        match self.fails.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) {
            Ok(_) => Err(TaskError::external("the place outside does not answer")),
            Err(_) => Ok(()),
        }
    }
}

/// Takes checkpoints when it is asked to.
fn job(name: &str, sink: impl Sink<i64>) -> Job {
    let checkpoints = Checkpoints::to(format!("memory://committed-{name}")).every(Duration::from_secs(3_600));
    let job = Job::named(name).parallelism(2).checkpoints(checkpoints);
    let script = |n| vec![Line::Record(n, 0)];
    let numbers = ScriptSource::new(vec![script(1), script(2)]).endless();
    job.source("in", numbers).without_event_time().boundary().sink("out", sink);
    job
}

fn committed(tasks: &[TaskReading]) -> Vec<(u32, Option<u64>)> {
    let sinks = tasks.iter().filter_map(|t| t.committed.as_ref());
    sinks.map(|c| (c.attempt.0, c.checkpoint.map(|id| id.0))).collect()
}

fn until_committed(running: &JobHandle, expected: (u32, Option<u64>)) {
    until(running, SOON, "a commit", || committed(&running.tasks()) == [expected; 2]);
}

#[test]
fn every_subtask_of_a_sink_tells_the_last_checkpoint_that_it_committed() {
    let port = HttpPort::bind("127.0.0.1:0").unwrap().serve().unwrap();
    let running = job("tells", Commits::default()).start().unwrap();
    port.show(&running);
    until_committed(&running, (1, None));
    until(&running, SOON, "it runs", || running.status().state == JobState::Running);
    for id in 1..=3 {
        assert_eq!(running.checkpoint().unwrap(), id.to_string());
        until_committed(&running, (1, Some(id)));
    }
    running.savepoint("aside").unwrap();
    assert_eq!(committed(&running.tasks()), [(1, Some(3)); 2], "nothing is committed for a savepoint");
    let (_, job) = get(port.address(), "/job");
    let sink = |subtask| json!({"uid": "out", "subtask": subtask, "attempt": 1, "checkpoint": 3});
    assert_eq!(job["sinks"], json!([sink(0), sink(1)]));
    let shown = |subtask| {
        format!("weir_sink_committed_checkpoint{{job=\"tells\",operator=\"out\",subtask=\"{subtask}\"}} 3")
    };
    let metrics = || metrics::render().unwrap();
    until(&running, SOON, "the metric", || metrics().contains(&shown(0)) && metrics().contains(&shown(1)));
    running.cancel();
    assert!(running.wait().is_err());
}

#[test]
fn a_commit_that_failed_is_told_when_the_next_attempt_has_made_up_for_it() {
    let sink = Commits::default();
    let policy = RestartPolicy::FixedDelay { restarts: 3, delay: Duration::ZERO };
    let running = job("again", sink.clone()).restart(policy).start().unwrap();
    until(&running, SOON, "it runs", || running.status().state == JobState::Running);
    running.checkpoint().unwrap();
    until_committed(&running, (1, Some(1)));
    sink.fails.store(1, Ordering::SeqCst);
    running.checkpoint().unwrap();
    until_committed(&running, (2, Some(2)));
    running.cancel();
    assert!(running.wait().is_err());
}

#[test]
fn the_last_checkpoint_of_a_job_is_told_in_its_report() {
    let end = |job: Job| {
        job.source("in", ScriptSource::of([(1, 0)])).without_event_time().sink("out", Commits::default());
        job.source("other", ScriptSource::of([(1, 0)])).without_event_time().sink("null", NullSink);
        job.run().unwrap().tasks
    };
    let url = "memory://committed-last";
    let tasks = end(Job::named("last").parallelism(1).checkpoints(Checkpoints::to(url)));
    assert_eq!(committed(&tasks), [(1, Some(1)); 2]);
    let out = Committed {
        uid: "out".into(),
        subtask: 0,
        attempt: AttemptId::FIRST,
        checkpoint: Some(CheckpointId(1)),
    };
    assert_eq!(tasks[0].committed, Some(out));
    let tasks = end(Job::named("without").parallelism(1));
    assert_eq!(committed(&tasks), [(1, None); 2], "it takes no checkpoints");
}
