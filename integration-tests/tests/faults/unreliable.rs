//! A storage that fails three calls in ten, and one that fails them all: the job goes on as long as it was told to, or says why not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_connectors::file::FileSink;
use weir_engine::prelude::*;
use weir_engine::testkit::{run_within, until};
use weir_operators::prelude::*;
use weir_state::checkpoint::faults::{Call, Fault, FaultyStore};
use weir_state::checkpoint::{AttemptRecord, Outcome};

use crate::restarts::Failing;
use crate::rig::*;

fn fail_percent(faulty: &FaultyStore, percent: u8) {
    for call in [Call::Put, Call::Get, Call::Delete, Call::List] {
        faulty.inject(call, "", Fault::FailPercent(percent));
    }
}

#[test]
fn a_storage_that_fails_three_calls_in_ten_costs_nothing_but_time() {
    let (rig, faulty) = Rig::in_faulty("three in ten");
    faulty.seed(11);
    fail_percent(&faulty, 30);
    // From the first call to the last, in two lives.
    let first = rig.job(2, None, 10_000.0, rig.checkpoints()).start().unwrap();
    until_completed(&first, 3);
    assert!(completed(&first) >= 2, "they complete now and then");
    cancelled(&first);
    rig.finish(3);
}

#[test]
fn a_storage_that_fails_is_named_when_it_is_too_much() {
    let (rig, faulty) = Rig::in_faulty("too much");
    let job = rig.job(2, None, 5_000.0, rig.checkpoints().tolerate_failures(0)).start().unwrap();
    until_completed(&job, 2);
    faulty.inject(Call::Put, "shared/", Fault::Fail);
    let failed = job.wait_for(SOON).expect("it gives up").unwrap_err();
    let text = said(&failed);
    assert!(text.contains("1 checkpoints failed in a row, more than the 0 tolerated"), "{text}");
    assert!(text.contains("operator \"totals\" subtask "), "{text}");
    assert!(text.contains("checkpoint storage 'memory://too much' failed to upload '"), "{text}");
    let why =
        |c: &AttemptRecord| matches!(&c.outcome, Outcome::Failed(why) if why.contains("memory://too much"));
    assert!(job.checkpoints().iter().any(why), "{:?}", job.checkpoints().last());
    // The storage is well again, and nothing was lost.
    faulty.heal();
    rig.finish(1);
}

/// What a job says that its checkpoints have ended.
fn said(error: &JobError) -> String {
    assert!(matches!(error, JobError::Checkpoints { .. }), "{error}");
    error.to_string()
}

#[test]
fn as_many_failures_as_are_tolerated_are() {
    let (rig, faulty) = Rig::in_faulty("some");
    let job = rig.job(2, None, 5_000.0, rig.checkpoints().tolerate_failures(2)).start().unwrap();
    until_completed(&job, 1);
    for _ in 0..3 {
        // One fails, or two in a row.
        let before = failed(&job);
        faulty.inject_times(Call::Put, "shared/", Fault::Denied, 2);
        until(&job, SOON, "one that fails", || failed(&job) > before);
        until_completed(&job, 1);
    }
    faulty.inject(Call::Put, "shared/", Fault::Denied);
    let error = job.wait_for(SOON).expect("it gives up").unwrap_err();
    let text = said(&error);
    assert!(text.contains("3 checkpoints failed in a row, more than the 2 tolerated"), "{text}");
    faulty.heal();
    rig.finish(2);
}

fn failed(job: &JobHandle) -> usize {
    job.checkpoints().iter().filter(|c| matches!(c.outcome, Outcome::Failed(_))).count()
}

/// The age counts whatever the reason is, and however many are tolerated.
#[test]
fn a_job_whose_checkpoints_get_too_old_fails() {
    let (rig, faulty) = Rig::in_faulty("too old");
    let checkpoints = rig.checkpoints().tolerate_age(Duration::from_secs(1));
    faulty.inject(Call::Put, "shared/", Fault::Denied);
    let error = run_within(rig.job(1, None, 5_000.0, checkpoints), SOON).unwrap_err();
    let text = said(&error);
    assert!(text.contains("old, more than the 1s tolerated"), "{text}");
    assert!(text.contains("memory://too old"), "it says what the storage said last: {text}");
}

/// A job that fails when told to and then begins again, each record with a key of its own.
fn failing(rig: &Rig, rate: f64) -> (JobHandle, Arc<AtomicBool>, Arc<AtomicU64>) {
    let (fails, opened) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let restart = RestartPolicy::FixedDelay { restarts: 1_000, delay: Duration::from_millis(50) };
    let job = rig.empty_job(2, rig.checkpoints()).restart(restart);
    job.source("numbers", numbers(None, rate, &rig.made))
        .without_event_time()
        .key_by("by-number", |(_, i)| *i)
        .process(TOTALS, Failing { fails: fails.clone(), opened: opened.clone() })
        .sink("out", FileSink::json_lines(rig.at("out")));
    (job.start().unwrap(), fails, opened)
}

#[test]
fn a_storage_that_is_away_between_two_attempts_is_the_restart_policys_to_judge() {
    let (rig, faulty) = Rig::in_faulty("away");
    let (job, fails, opened) = failing(&rig, 5_000.0);
    until_completed(&job, 2);
    faulty.inject(Call::List, "", Fault::Denied);
    fails.store(true, Ordering::SeqCst);
    let suspended = || job.history().iter().filter(|s| s.state == JobState::Suspended).count();
    // Once for the failure, then for the storage.
    until(&job, SOON, "tries to begin again", || suspended() >= 3);
    let before = opened.load(Ordering::SeqCst);
    faulty.heal();
    until(&job, SOON, "the next life", || opened.load(Ordering::SeqCst) >= before + 2);
    until_completed(&job, 2);
    cancelled(&job);
}

#[test]
fn the_first_checkpoint_of_a_life_uploads_what_changed() {
    let rig = Rig::in_folder("again");
    let (job, fails, opened) = failing(&rig, 50_000.0);
    let newest = || job.checkpoints().into_iter().rfind(|c| c.outcome == Outcome::Completed);
    let large = || newest().is_some_and(|c| c.full_bytes() > 2_000_000);
    until(&job, SOON, "a large state", large);
    let next_life = || {
        let (before, attempt) = (opened.load(Ordering::SeqCst), newest().unwrap().attempt);
        fails.store(true, Ordering::SeqCst);
        until(&job, SOON, "the next life", || opened.load(Ordering::SeqCst) >= before + 2);
        let of_next = |c: &AttemptRecord| c.attempt > attempt && c.outcome == Outcome::Completed;
        until(&job, SOON, "its first checkpoint", || job.checkpoints().iter().any(of_next));
        job.checkpoints().into_iter().find(of_next).unwrap()
    };
    // A compaction may come in between and make large files anew, but not in every life.
    let firsts: Vec<_> = (0..6).map(|_| next_life()).collect();
    let little = |c: &AttemptRecord| c.uploaded_bytes() < c.full_bytes() / 2;
    let shares: Vec<_> = firsts.iter().map(|c| (c.uploaded_bytes(), c.full_bytes())).collect();
    assert!(firsts.iter().any(little), "bytes uploaded, of so many: {shares:?}");
    cancelled(&job);
}
