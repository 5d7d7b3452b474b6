//! A storage that refuses: health is yellow at the first failure, and the record of that says what was done.

use std::sync::Arc;

use weir_engine::http::HttpPort;
use weir_engine::prelude::*;
use weir_engine::testkit::{NullSink, ScriptSource, until};
use weir_engine::{Level, metrics};
use weir_state::checkpoint::Outcome;
use weir_state::checkpoint::faults::{Call, Fault, FaultyStore};

use crate::common::get;
use crate::rig::*;

#[test]
fn the_first_failure_turns_health_yellow_and_leaves_a_whole_record() {
    let faulty = FaultyStore::memory();
    let objects = Arc::new(faulty.clone());
    weir_state::checkpoint::share("attempts-refused", objects.clone(), Some(objects));
    let port = HttpPort::bind("127.0.0.1:0").unwrap().serve().unwrap();
    let job = Job::named("refused").parallelism(1).checkpoints(asked_for("refused"));
    let numbers = job.source("in", ScriptSource::of([(1, 0)]).endless()).without_event_time();
    numbers.boundary().sink("out", NullSink);
    let job = job.start().unwrap();
    port.show(&job);
    until(&job, SOON, "it runs", || job.status().state == JobState::Running);
    job.checkpoint().unwrap();
    assert_eq!(job.health().level, Level::Green);
    // Manifests only: the lease and the records are written as ever.
    faulty.inject(Call::Put, "/checkpoints/", Fault::Denied);
    let refused = job.checkpoint().unwrap_err();
    let (status, health) = get(port.address(), "/health");
    assert_eq!(
        (status, &health["level"], &health["healthy"]),
        (200, &"yellow".into(), &true.into()),
        "{health}"
    );
    let problem = health["problems"][0].as_str().unwrap();
    assert!(problem.starts_with("the last checkpoint did not complete: 2, because "), "{health}");
    assert!(health["checkpoints"]["lost"].as_str().unwrap().starts_with("2, because "), "{health}");
    assert_eq!(get(port.address(), "/ready").0, 200, "a failure that is tolerated sends nobody elsewhere");

    let record = job.checkpoints().pop().unwrap();
    assert!(matches!(&record.outcome, Outcome::Failed(why) if refused.contains(why)), "{record:?}");
    assert_eq!((record.acknowledged.tasks, record.acknowledged.of), (2, 2), "{record:?}");
    assert!(of(&record, "in").phases.trigger_ms.is_some(), "{record:?}");
    let names: Vec<_> = of(&record, "out").phases.reached().map(|(name, _)| name).collect();
    assert_eq!(names, ["start_delay", "align", "freeze", "write", "upload"], "{record:?}");
    assert!(record.phases.publish_ms.is_some() && record.phases.commit_ms.is_none(), "{record:?}");
    assert!(metrics::render().unwrap().contains("weir_checkpoints_failed_total{job=\"refused\"} 1"));

    faulty.heal();
    job.checkpoint().unwrap();
    assert_eq!((job.health().level, job.health().problems.len()), (Level::Green, 0));
    job.cancel();
    assert!(job.wait().is_err());
}
