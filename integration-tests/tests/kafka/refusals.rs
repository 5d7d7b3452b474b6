//! What a start refuses: checkpoints of which it is not known what is visible, and jobs that cannot keep the promise.

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use weir_connectors::kafka::KafkaSink;
use weir_engine::RestartPolicy;
use weir_engine::prelude::*;
use weir_engine::testkit::{run_within, until};

use super::rig::{Rig, SOON, Trap, broker};

fn said(job: Job) -> String {
    let ended = run_within(job.restart(RestartPolicy::None), SOON).unwrap_err();
    format!("{ended} {ended:?}")
}

/// A life that is cancelled after some checkpoints.
fn some_checkpoints(rig: &Rig) {
    let handle = rig.job(2, u64::MAX, 2_000.0, Trap::at([]), rig.checkpoints(100)).start().unwrap();
    until(&handle, SOON, "some checkpoints", || handle.is_over() || handle.checkpoints().len() > 4);
    handle.cancel();
    drop(handle.wait_for(SOON).expect("it stops"));
}

fn delete(topic: &str) {
    let admin: AdminClient<DefaultClientContext> = broker().client().create().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let asked = admin.delete_topics(&[topic], &AdminOptions::new().operation_timeout(Some(SOON)));
    assert!(runtime.block_on(asked).unwrap().iter().all(Result::is_ok), "{topic} is not deleted");
}

#[test]
fn without_its_marker_a_checkpoint_is_refused_until_duplicates_are_accepted() {
    let rig = Rig::new("no-marker", 2);
    some_checkpoints(&rig);
    delete(&format!("weir-commits-{}", rig.name));
    let e = said(rig.job(2, 10_000, 10_000.0, Trap::at([]), rig.checkpoints(100)));
    assert!(e.contains("no marker is in the control topic") && e.contains("accept_duplicates()"), "{e}");
    let sink = rig.sink(rig.how().accept_duplicates());
    run_within(rig.job_into(sink, 2, 10_000, 10_000.0, Trap::at([]), rig.checkpoints(100)), SOON).unwrap();
}

#[test]
fn a_savepoint_older_than_what_is_visible_is_refused() {
    let rig = Rig::new("older", 2);
    let handle = rig.job(2, u64::MAX, 2_000.0, Trap::at([]), rig.checkpoints(100)).start().unwrap();
    until(&handle, SOON, "a checkpoint", || handle.is_over() || !handle.checkpoints().is_empty());
    handle.savepoint("older").unwrap();
    let before = handle.checkpoints().len();
    until(&handle, SOON, "more checkpoints", || handle.is_over() || handle.checkpoints().len() > before + 3);
    handle.cancel();
    drop(handle.wait_for(SOON).expect("it stops"));
    let checkpoints = rig.checkpoints(100).start_from(StartFrom::Savepoint("older".to_owned()));
    let e = said(rig.job(2, 10_000, 10_000.0, Trap::at([]), checkpoints));
    assert!(e.contains("output is visible that is newer than the checkpoint"), "{e}");
}

#[test]
fn a_job_that_begins_anew_does_not_write_again_without_a_word() {
    let rig = Rig::new("anew", 2);
    some_checkpoints(&rig);
    let anew = || rig.checkpoints(100).start_from(StartFrom::Fresh);
    let e = said(rig.job(2, 5_000, 10_000.0, Trap::at([]), anew()));
    assert!(e.contains("this one begins without a checkpoint") && e.contains("accept_duplicates()"), "{e}");
    let sink = rig.sink(rig.how().accept_duplicates());
    run_within(rig.job_into(sink, 2, 5_000, 10_000.0, Trap::at([]), anew()), SOON).unwrap();
}

#[test]
fn a_control_topic_that_forgets_is_refused() {
    let rig = Rig::new("forgetful", 2);
    // As an administrator makes it who does not think of it: with the broker's defaults.
    assert!(rig.kafka.create_topic(&format!("weir-commits-{}", rig.name), 1).unwrap());
    let e = said(rig.job(2, 1_000, 10_000.0, Trap::at([]), rig.checkpoints(100)));
    assert!(e.contains("has cleanup.policy=delete") && e.contains("set it to compact"), "{e}");
}

#[test]
fn one_sink_given_to_two_operators_is_refused() {
    let rig = Rig::new("twice-used", 2);
    let job = Job::named("twice-used").parallelism(1).checkpoints(rig.checkpoints(100));
    let sink = rig.sink(rig.how());
    for out in ["first", "second"] {
        let numbers = weir_connectors::memory::MemorySource::new(0..10u64);
        job.source(&format!("{out}-in"), numbers).without_event_time().sink(out, sink.clone());
    }
    let e = said(job);
    assert!(e.contains("the same exactly-once Kafka sink was given to operators"), "{e}");
}

#[test]
fn a_sink_that_writes_at_once_does_not_drop_what_was_kept_back() {
    let rig = Rig::new("at-once", 2);
    some_checkpoints(&rig);
    let sink = KafkaSink::json(&rig.kafka, &rig.topic).key(|n: &u64| n.to_string());
    let e = said(rig.job_into(sink, 2, 10_000, 10_000.0, Trap::at([]), rig.checkpoints(100)));
    assert!(e.contains("records that an exactly-once Kafka sink has kept back"), "{e}");
}

#[test]
fn without_checkpoints_nothing_would_ever_be_seen() {
    let rig = Rig::new("no-checkpoints", 1);
    let job = Job::named("no-checkpoints").parallelism(1);
    let numbers = weir_connectors::memory::MemorySource::new(0..10u64);
    job.source("in", numbers).without_event_time().sink("out", rig.sink(rig.how()));
    let e = said(job);
    assert!(e.contains("this job takes none: give it Job::checkpoints"), "{e}");
}

#[test]
fn a_topic_that_refuses_a_record_fails_the_job_and_says_which() {
    let rig = Rig::new("too-large", 1);
    let job = Job::named("too-large").parallelism(1).checkpoints(rig.checkpoints(100));
    let large = weir_connectors::memory::MemorySource::new(vec!["x".repeat(1_100_000)]);
    let sink = KafkaSink::json(&rig.kafka, &rig.topic).exactly_once(rig.how());
    job.source("in", large).without_event_time().sink("out", sink);
    let e = said(job);
    assert!(e.contains("a record for Kafka topic too-large"), "{e}");
}
