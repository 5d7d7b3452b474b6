//! A storage whose call takes 38 s on one file (3 s in short): the record says who waits for what, and records go on.

use std::time::{Duration, Instant};

use weir_engine::prelude::*;
use weir_engine::testkit::until;
use weir_state::checkpoint::faults::{Call, Fault, FaultyStore};
use weir_state::checkpoint::{
    AttemptRecord, CheckpointStore, Lease, Outcome, StoreOptions, TaskRecord, UploadPhase,
};

use crate::rig::*;

const RATE: f64 = 10_000.0;
/// The files of subtask 1.
const OF_ONE: &str = "shared/totals/1/";

fn stall() -> Duration {
    Duration::from_secs(if soak() { 38 } else { 3 })
}

/// Starts the job, lets it come into its stride, and lets the storage stall on one file. Gives the path of that.
fn stalled(rig: &Rig, faulty: &FaultyStore, checkpoints: Checkpoints) -> (JobHandle, String) {
    let job = rig.job(2, None, RATE, checkpoints).start().unwrap();
    until_completed(&job, 3);
    let before = faulty.calls().len();
    // A data file: what else a checkpoint has may not have changed.
    faulty.inject_times(Call::Put, OF_ONE, Fault::Delay(stall()), 1);
    let call = || {
        let calls = faulty.calls().into_iter().skip(before);
        calls.filter(|(call, path)| *call == Call::Put && path.contains(OF_ONE)).map(|(_, path)| path).next()
    };
    until(&job, SOON, "the call that stalls", || call().is_some());
    let path = call().unwrap();
    (job, path)
}

/// Watches records go by for so long: they keep to their rate and never pause for long.
fn assert_flows(job: &JobHandle, time: Duration) {
    let (began, before) = (Instant::now(), counted(job));
    let (mut last, mut moved, mut longest) = (before, began, Duration::ZERO);
    while began.elapsed() < time {
        let now = counted(job);
        if now > last {
            longest = longest.max(moved.elapsed());
            (last, moved) = (now, Instant::now());
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    longest = longest.max(moved.elapsed());
    let (passed, due) = (last - before, RATE * began.elapsed().as_secs_f64());
    println!("{passed} records during the stall, {due:.0} were due; none for {longest:.0?} at most");
    assert!(passed as f64 > due * 0.9, "{passed} records during the stall, {due:.0} were due");
    assert!(longest < time / 3, "no record for {longest:?}");
}

fn of_one(record: &AttemptRecord) -> &TaskRecord {
    record.tasks.iter().find(|t| t.uid == TOTALS && t.subtask == 1).unwrap()
}

#[test]
fn a_stalled_call_is_named_in_the_record_of_a_checkpoint_that_waited_it_out() {
    let (rig, faulty) = Rig::in_faulty("waits it out");
    let (job, path) = stalled(&rig, &faulty, rig.checkpoints());
    let complete = completed(&job);
    assert_flows(&job, stall().mul_f64(0.9));
    assert_eq!(completed(&job), complete, "it waits");
    let ms = stall().as_millis() as u64;
    let waited = |c: &AttemptRecord| c.tasks.iter().any(|t| t.phases.upload_ms >= Some(ms));
    until(&job, SOON, "its checkpoint", || job.checkpoints().iter().any(waited));
    let record = job.checkpoints().into_iter().find(waited).unwrap();
    assert_eq!(record.outcome, Outcome::Completed);
    let of_one = of_one(&record);
    assert!(of_one.phases.upload_ms >= Some(ms), "{record:?}");
    let slowest = &of_one.slowest[0];
    assert!(slowest.upload_ms >= ms && path.ends_with(&slowest.name), "{record:?}");
    let others = record.tasks.iter().filter(|t| t.uid != TOTALS || t.subtask != 1);
    let mut files = others.flat_map(|t| &t.slowest).chain(&of_one.slowest[1..]);
    assert!(files.all(|f| f.upload_ms < ms / 2), "the others did not: {record:?}");
    cancelled(&job);
    rig.finish(3);
}

#[test]
fn records_go_on_and_checkpoints_too_while_a_call_of_one_that_was_given_up_still_hangs() {
    let (rig, faulty) = Rig::in_faulty("hangs on");
    let (job, _) = stalled(&rig, &faulty, rig.checkpoints().timeout(stall() / 6));
    let before = completed(&job);
    assert_flows(&job, stall().mul_f64(0.8));
    assert!(completed(&job) > before, "those after it complete");
    cancelled(&job);
    rig.finish(3);
}

#[test]
fn a_stalled_call_is_named_in_the_record_of_a_checkpoint_that_gave_up() {
    let (rig, faulty) = Rig::in_faulty("gives up");
    let (job, path) = stalled(&rig, &faulty, rig.checkpoints().timeout(stall() / 2));
    assert_flows(&job, stall().mul_f64(0.4));
    let expired = |c: &AttemptRecord| matches!(c.outcome, Outcome::Expired(_));
    until(&job, SOON, "the end of its time", || job.checkpoints().iter().any(expired));
    let record = job.checkpoints().into_iter().find(expired).unwrap();
    let file = &of_one(&record).unfinished[0];
    assert_eq!(
        (file.uid.as_str(), file.subtask, file.phase),
        (TOTALS, 1, UploadPhase::Sending),
        "{record:?}"
    );
    // What was done is there as well.
    let acknowledged = &record.acknowledged;
    assert!(acknowledged.tasks < acknowledged.of, "{record:?}");
    assert_eq!(acknowledged.latest_ms.is_some(), acknowledged.tasks > 0, "{record:?}");
    assert!(of_one(&record).phases.freeze_ms.is_some() && record.phases.trigger_ms.is_some(), "{record:?}");
    let mut through = record.tasks.iter().filter(|t| t.uid == TOTALS && t.phases.upload_ms.is_some());
    assert!(through.all(|t| t.full_bytes > 0 && !t.slowest.is_empty()), "{record:?}");
    let ms = stall().as_millis() as u64;
    assert!(path.ends_with(&file.name), "{record:?}");
    assert!(file.phase_ms > ms / 4 && file.phase_ms < ms, "{record:?}");
    let Outcome::Expired(why) = &record.outcome else { unreachable!() };
    let told = format!("longest: file {} of totals[1]: sending for ", file.name);
    assert!(why.contains(&told), "{why}");
    // The next one does not wait for it, nor do the records.
    assert_flows(&job, stall().mul_f64(0.4));
    until_completed(&job, 2);
    cancelled(&job);
    rig.finish(3);
    // What came late was removed.
    let rest = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let store = CheckpointStore::open(rig.url(), "gives up", StoreOptions::default()).await.unwrap();
        let lease = Lease::acquire(&store, "the test", Duration::from_secs(30)).await.unwrap();
        let rest = store.sweep(&lease).await.unwrap();
        lease.release().await.unwrap();
        rest
    });
    assert_eq!(rest.files, 0, "{rest:?}");
}

#[test]
fn a_cancel_ends_a_restore_that_waits_for_the_storage() {
    let (rig, faulty) = Rig::in_faulty("restore");
    let first = rig.job(2, None, RATE, rig.checkpoints()).start().unwrap();
    until_completed(&first, 2);
    cancelled(&first);
    let before = faulty.calls().len();
    faulty.inject(Call::Get, "/shared/", Fault::Delay(10 * SOON));
    let second = rig.job(2, None, RATE, rig.checkpoints()).start().unwrap();
    let reads = || {
        let mut calls = faulty.calls().into_iter().skip(before);
        calls.any(|(call, path)| call == Call::Get && path.contains("/shared/"))
    };
    until(&second, SOON, "a file that is read", reads);
    // No thread is left behind.
    cancelled(&second);
    faulty.heal();
    rig.finish(3);
}

#[test]
fn a_savepoint_whose_files_stall_holds_no_checkpoint_up() {
    let (rig, faulty) = Rig::in_faulty("slow savepoint");
    let job = rig.job(2, None, RATE, rig.checkpoints()).start().unwrap();
    until_completed(&job, 2);
    // For longer than the test.
    faulty.inject(Call::Put, "savepoints/", Fault::Delay(Duration::from_secs(3_600)));
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| job.savepoint("slow"));
        let stalls =
            || faulty.calls().iter().any(|(c, path)| *c == Call::Put && path.contains("savepoints/"));
        until(&job, SOON, "the savepoint", stalls);
        until_completed(&job, 5);
        assert!(!asked.is_finished(), "it hangs");
        // One that fails does not take it along, nor does it take turns with another that is refused.
        faulty.inject_times(Call::Put, "shared/", Fault::Denied, 1);
        let failed = |c: &AttemptRecord| matches!(c.outcome, Outcome::Failed(_));
        until(&job, SOON, "one that fails", || job.checkpoints().iter().any(failed));
        until_completed(&job, 2);
        let again = job.savepoint("slow").unwrap_err();
        assert!(again.contains("is being taken; choose another name"), "{again}");
        assert!(!asked.is_finished(), "it still hangs");
        cancelled(&job);
        let why = asked.join().unwrap().unwrap_err();
        assert!(why.contains("the attempt was cancelled"), "{why}");
    });
    faulty.heal();
    rig.finish(3);
}

#[test]
fn a_job_that_is_being_stopped_with_a_savepoint_takes_no_second_order_to_stop() {
    let (rig, faulty) = Rig::in_faulty("slow stop");
    let job = rig.job(2, None, RATE, rig.checkpoints()).start().unwrap();
    until_completed(&job, 2);
    // For longer than the test.
    faulty.inject(Call::Put, "savepoints/one/", Fault::Delay(Duration::from_secs(3_600)));
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| job.stop_with_savepoint("one"));
        let stalls =
            || faulty.calls().iter().any(|(c, path)| *c == Call::Put && path.contains("savepoints/one/"));
        until(&job, SOON, "the savepoint", stalls);
        let again = job.stop_with_savepoint("two").unwrap_err();
        assert_eq!(again, "the job is being stopped with savepoint 'one' already");
        cancelled(&job);
        let why = asked.join().unwrap().unwrap_err();
        assert!(why.contains("the attempt was cancelled"), "{why}");
    });
    faulty.heal();
    rig.finish(3);
}
