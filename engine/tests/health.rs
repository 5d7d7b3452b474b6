//! `/health` and `/ready` turn with the age of a job's checkpoints, and say which job, how old, and what is tolerated.

mod common;

use std::time::Duration;

use common::get;
use weir_engine::http::HttpPort;
use weir_engine::testkit::{Line, NullSink, ScriptSource, until};
use weir_engine::{metrics, prelude::*};

const SOON: Duration = Duration::from_secs(30);

/// Ends after its script with an error, and then waits long before it begins again.
fn fails_and_waits(name: &str, lines: Vec<Line<i64>>, checkpoints: Checkpoints) -> Job {
    let policy = RestartPolicy::FixedDelay { restarts: 1, delay: Duration::from_secs(3_600) };
    let job = Job::named(name).parallelism(1).restart(policy).checkpoints(checkpoints);
    job.source("in", ScriptSource::new(vec![lines])).without_event_time().sink("out", NullSink);
    job
}

#[test]
fn health_turns_when_the_last_checkpoint_is_older_than_tolerated() {
    let tolerated = Duration::from_secs(3);
    let checkpoints =
        Checkpoints::to("memory://health-ages").every(Duration::from_millis(10)).tolerate_age(tolerated);
    let port = HttpPort::bind("127.0.0.1:0").unwrap().serve().unwrap();
    let (address, pause) = (port.address(), Duration::from_millis(300));
    let lines = vec![Line::Record(1, 0), Line::Pause(pause), Line::Record(2, 0), Line::Fail("gone")];
    let running = fails_and_waits("ages", lines, checkpoints).start().unwrap();
    port.show(&running);
    until(&running, SOON, "a checkpoint", || running.health().checkpoints.unwrap().last.is_some());
    let (status, health) = get(address, "/health");
    assert_eq!((status, &health["healthy"], &health["job"]), (200, &true.into(), &"ages".into()), "{health}");
    until(&running, SOON, "the failure", || running.status().state == JobState::Suspended);
    assert_eq!(get(address, "/ready").0, 503, "no records flow");
    until(&running, SOON, "the age", || !running.health().healthy);
    for path in ["/health", "/ready"] {
        let (status, health) = get(address, path);
        assert_eq!((status, &health["job"], &health["state"]), (503, &"ages".into(), &"SUSPENDED".into()));
        let checkpoints = &health["checkpoints"];
        assert!(checkpoints["age_ms"].as_u64().unwrap() >= 3_000, "{health}");
        assert!(checkpoints["last"].as_u64().unwrap() > 0, "{health}");
        assert_eq!(checkpoints["tolerated_age_ms"], 3_000);
        assert!(health["problems"][0].as_str().unwrap().ends_with("more than the 3s tolerated"), "{health}");
    }
    // Published once a second, whatever state the job is in.
    let age = || {
        let text = metrics::render().unwrap();
        let line = text.lines().find(|l| l.starts_with("weir_checkpoint_age_seconds{job=\"ages\"}")).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    until(&running, SOON, "the metric", || age() > 3.0);
    assert!(metrics::render().unwrap().contains("weir_checkpoint_tolerated_age_seconds{job=\"ages\"} 3"));
    running.cancel();
    assert!(running.wait().is_err());
}

#[test]
fn a_job_that_fails_of_its_checkpoints_says_so() {
    let checkpoints = Checkpoints::to("memory://health-fails")
        .every(Duration::from_secs(3_600))
        .tolerate_age(Duration::from_millis(200));
    let port = HttpPort::bind("127.0.0.1:0").unwrap().serve().unwrap();
    let job = Job::named("fails").parallelism(1).checkpoints(checkpoints);
    job.source("in", ScriptSource::of([(1, 0)]).endless()).without_event_time().sink("out", NullSink);
    let running = job.start().unwrap();
    port.show(&running);
    assert!(running.wait().is_err());
    let (status, health) = get(port.address(), "/health");
    assert_eq!((status, &health["state"]), (503, &"FAILED".into()));
    let problem = health["problems"][0].as_str().unwrap();
    assert!(
        problem.contains("the last complete checkpoint is") && problem.contains("200ms tolerated"),
        "{problem}"
    );
}

#[test]
fn a_job_without_checkpoints_is_judged_by_its_state() {
    let port = HttpPort::bind("127.0.0.1:0").unwrap().serve().unwrap();
    assert_eq!(get(port.address(), "/ready").0, 503, "not started");
    let job = Job::named("plain").parallelism(1);
    job.source("in", ScriptSource::of([(1, 0)]).endless()).without_event_time().sink("out", NullSink);
    let running = job.start().unwrap();
    port.show(&running);
    until(&running, SOON, "it runs", || running.status().state == JobState::Running);
    let (status, ready) = get(port.address(), "/ready");
    assert_eq!(
        (status, &ready["ready"], &ready["checkpoints"]),
        (200, &true.into(), &serde_json::Value::Null)
    );
    running.cancel();
    assert!(running.wait().is_err());
    assert_eq!(get(port.address(), "/health").0, 200, "over, as it was told to");
}
