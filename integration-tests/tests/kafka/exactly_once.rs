//! Jobs that fail, stop, grow and shrink: consumers that read what is committed see each record once, in order.

use std::time::Duration;

use weir_connectors::random::Random;
use weir_engine::JobHandle;
use weir_engine::prelude::*;
use weir_engine::testkit::{run_within, until};

use super::rig::{Rig, SOON, Trap, soak};

#[test]
fn records_are_seen_once_whatever_fails() {
    const N: u64 = 12_000;
    let seeds = if soak() { 30 } else { 3 };
    for seed in 1..=seeds {
        let rig = Rig::new("whatever-fails", 3);
        let mut random = Random::of(seed, 0);
        let trap = Trap::at((0..4).map(|_| random.below(N)));
        let parallelism = 1 + seed as usize % 3;
        let job = rig.job(parallelism, N, 8_000.0, trap, rig.checkpoints(50));
        let report = run_within(job, SOON).unwrap();
        println!("seed {seed}: {} lives, {} checkpoints", report.attempts, report.checkpoints);
        assert!(report.attempts > 2, "{} lives", report.attempts);
        rig.assert_exact(N, &format!("seed {seed}"));
    }
}

/// Runs a job until its sources have given some records, and stops it.
fn run_for_a_while(job: Job, records: u64, stop: impl FnOnce(&JobHandle)) {
    let handle = job.start().unwrap();
    let read = || handle.tasks().iter().map(|t| t.records_in).sum::<u64>() >= records;
    until(&handle, SOON, "some records", || handle.is_over() || read());
    stop(&handle);
    drop(handle.wait_for(SOON).expect("it stops"));
}

#[test]
fn a_job_that_was_stopped_goes_on_at_any_parallelism() {
    const N: u64 = 20_000;
    let rig = Rig::new("resume", 5);
    let job = |parallelism: usize, start: StartFrom| {
        rig.job(parallelism, N, 10_000.0, Trap::at([]), rig.checkpoints(50).start_from(start))
    };
    run_for_a_while(job(2, StartFrom::Latest), 6_000, |handle| handle.drain(EndKind::Keep));
    run_for_a_while(job(3, StartFrom::Latest), 6_000, |handle| {
        until(handle, SOON, "a checkpoint", || handle.is_over() || !handle.checkpoints().is_empty());
        handle.cancel();
    });
    run_for_a_while(job(4, StartFrom::Latest), 4_000, |handle| {
        drop(handle.stop_with_savepoint("by-the-way"))
    });
    run_within(job(1, StartFrom::Savepoint("by-the-way".to_owned())), SOON).unwrap();
    rig.assert_exact(N, "in the end");
    // There is nothing left to be done, and it is not done twice.
    run_within(job(2, StartFrom::Latest), SOON).unwrap();
    rig.assert_exact(N, "once more");
}

#[test]
fn what_one_checkpoint_holds_becomes_visible_when_it_is_complete_and_not_before() {
    let rig = Rig::new("when", 2);
    let hour = rig.checkpoints(3_600_000);
    let handle = rig.job(2, 1_000, 1e6, Trap::at([]), hour.min_pause(Duration::ZERO)).start().unwrap();
    // The source has ended: the last checkpoint is taken at once, and shows everything.
    handle.wait_for(SOON).expect("it ends").unwrap();
    rig.assert_exact(1_000, "at the end");
}
