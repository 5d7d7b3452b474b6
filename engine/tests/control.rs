//! A job is saved and stopped over HTTP where its program allows it, and nowhere else.

mod common;

use std::time::Duration;

use common::{get, post};
use weir_engine::http::HttpPort;
use weir_engine::prelude::*;
use weir_engine::testkit::{NullSink, ScriptSource, until};

const SOON: Duration = Duration::from_secs(60);

fn endless(checkpoints: &str) -> Job {
    let job = Job::named("endless").parallelism(1).checkpoints(Checkpoints::to(checkpoints));
    job.source("in", ScriptSource::of([(1, 0)]).endless()).without_event_time().sink("out", NullSink);
    job
}

#[test]
fn savepoints_and_the_stop_are_asked_for_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let serving = HttpPort::bind("127.0.0.1:0").unwrap().serve().unwrap();
    let running = endless(&folder.path().display().to_string()).start().unwrap();
    serving.show(&running);
    serving.control(&running);
    until(&running, SOON, "records flow", || running.status().state == JobState::Running);

    let (status, saved) = post(serving.address(), "/job/savepoints/first");
    assert_eq!(status, 200, "{saved}");
    let address = saved["savepoint"].as_str().unwrap().to_owned();
    let (status, again) = post(serving.address(), "/job/savepoints/first");
    assert_eq!(status, 409, "{again}");
    assert!(again["error"].as_str().unwrap().contains("first"), "{again}");

    let (status, refused) = post(serving.address(), "/job/stop?savepiont=last");
    assert!(status == 400 && refused["error"].as_str().unwrap().contains("savepoint=NAME"), "{refused}");
    assert_eq!(get(serving.address(), "/ready").0, 200, "the job goes on");

    let (status, stopped) = post(serving.address(), "/job/stop?savepoint=last");
    assert_eq!(status, 200, "{stopped}");
    assert!(running.wait().is_ok());
    for address in [address.as_str(), stopped["savepoint"].as_str().unwrap()] {
        let checkpoints =
            Checkpoints::to("memory://control-next").start_from(StartFrom::Savepoint(address.to_owned()));
        let job = Job::named("endless").parallelism(1).checkpoints(checkpoints);
        job.source("in", ScriptSource::of([(1, 0)])).without_event_time().sink("out", NullSink);
        assert!(job.run().is_ok(), "{address}");
    }
    let (status, over) = post(serving.address(), "/job/savepoints/late");
    assert!(status == 409 && over["error"].as_str().unwrap().contains("over"), "{over}");
}

#[test]
fn a_stop_without_a_savepoint_ends_well() {
    let serving = HttpPort::bind("127.0.0.1:0").unwrap().serve().unwrap();
    let running = endless("memory://control-stop").start().unwrap();
    serving.control(&running);
    until(&running, SOON, "records flow", || running.status().state == JobState::Running);
    assert_eq!(post(serving.address(), "/job/stop").0, 202);
    assert!(running.wait().is_ok());
}

#[test]
fn a_job_that_is_only_shown_cannot_be_stopped() {
    let serving = HttpPort::bind("127.0.0.1:0").unwrap().serve().unwrap();
    let running = endless("memory://control-shown").start().unwrap();
    serving.show(&running);
    for path in ["/job/stop", "/job/savepoints/mine"] {
        let (status, refused) = post(serving.address(), path);
        assert!(
            status == 404 && refused["error"].as_str().unwrap().contains("HttpServing::control"),
            "{refused}"
        );
    }
    assert!(!running.is_over());
    running.cancel();
    assert!(running.wait().is_err());
}
