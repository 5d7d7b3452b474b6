//! A disk that is full: the checkpoint says so, the job goes on or fails as it was told to, and with space again all is well.
//!
//! The disk is a small one in memory that only a child process sees. Where none can be made that way the tests say that they
//! skipped (`WEIR_MAY_SKIP`).

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use weir_engine::prelude::*;
use weir_engine::testkit::{run_within, until};
use weir_state::checkpoint::Outcome;

use crate::children::child as process;
use crate::rig::*;

/// What is on the small disk, and what the failed checkpoint must say.
const STATE: &str = "state";
const CHECKPOINTS: &str = "checkpoints";

/// No small disk could be made.
const NO_DISK: i32 = 77;

fn full(disk: &Path) -> PathBuf {
    let ballast = disk.join("ballast");
    let mut file = fs::File::create(&ballast).unwrap();
    let piece = vec![7; 1 << 20];
    while file.write_all(&piece).is_ok() {}
    // To the last byte.
    while file.write_all(&[7]).is_ok() {}
    ballast
}

fn says_full(outcome: &Outcome, disk: &Path) -> bool {
    matches!(outcome, Outcome::Failed(why)
        if why.to_lowercase().contains("no space left") && why.contains(&disk.display().to_string()))
}

/// What says that caches hold a small part of the state, so that they write and read all the time.
const EVICTED: &str = "evicted";

pub(crate) fn child(folder: PathBuf, what: &str) {
    let (what, evicted) = match what.split_once(' ') {
        Some((what, EVICTED)) => (what, true),
        _ => (what, false),
    };
    let disk = folder.join(what);
    let rig = Rig::at_path("full disk", folder);
    let job = |parallelism: usize, checkpoints: Checkpoints| {
        let job = rig.job(parallelism, None, 5_000.0, checkpoints);
        let state = StateBackend::rocksdb().folder(rig.at("state"));
        if evicted { job.state(state.cache_bytes(4 << 10)) } else { job }
    };

    // Failures are tolerated: records go on, and so do checkpoints once there is room.
    let tolerant = job(2, rig.checkpoints()).start().unwrap();
    until_completed(&tolerant, 2);
    let ballast = full(&disk);
    let failed = || tolerant.checkpoints().iter().filter(|c| says_full(&c.outcome, &disk)).count();
    let told = || tolerant.is_over() || failed() >= 3;
    until(&tolerant, SOON, "three checkpoints that find no room", told);
    assert!(!tolerant.is_over(), "{:?}", tolerant.wait());
    let before = counted(&tolerant);
    until(&tolerant, SOON, "records", || tolerant.is_over() || counted(&tolerant) > before + 1_000);
    let why = tolerant.checkpoints().into_iter().rev().find(|c| says_full(&c.outcome, &disk)).unwrap();
    println!("{:?}", why.outcome);
    fs::remove_file(ballast).unwrap();
    until_completed(&tolerant, 2);
    cancelled(&tolerant);

    // None is: the job fails, and the next start goes on.
    let job = job(3, rig.checkpoints().tolerate_failures(0)).start().unwrap();
    until_completed(&job, 2);
    let ballast = full(&disk);
    let error = job.wait_for(SOON).expect("it fails").unwrap_err();
    let text = error.to_string();
    println!("{text}");
    assert!(matches!(error, JobError::Checkpoints { .. }), "{text}");
    assert!(text.to_lowercase().contains("no space left"), "{text}");
    fs::remove_file(ballast).unwrap();
    until_given_back(&rig);
    rig.finish(2);
}

/// A lease that could not be given back for want of room runs out by itself: this process still lives.
fn until_given_back(rig: &Rig) {
    let began = Instant::now();
    while let Err(e) = run_within(rig.job(2, Some(0), 1_000.0, rig.checkpoints()), SOON) {
        assert!(e.to_string().contains("is being run by") && began.elapsed() < SOON, "{e}");
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

/// Runs the child where `what` of its folder is a disk of its own.
fn on_a_small_disk(what: &str, how: &str) {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join(what);
    fs::create_dir(&disk).unwrap();
    let child = process(format!("full {what} {how}").trim_end(), folder.path());
    let program = child.get_program().to_owned();
    let mount =
        format!("mount -t tmpfs -o size=256m weir '{}' || exit {NO_DISK}; exec \"$@\"", disk.display());
    let mut last = None;
    // As root, or as root of a namespace of one's own.
    for how in [&["-m"][..], &["-r", "-m"][..]] {
        let mut command = Command::new("unshare");
        command.args(how).args(["sh", "-c", &mount, "sh"]).arg(&program).args(child.get_args());
        command.envs(child.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let Ok(output) = command.output() else { break };
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let all = format!("{}\n{}", said(&output.stdout), said(&output.stderr));
        if output.status.success() {
            return println!("{all}");
        }
        let none = output.status.code() == Some(NO_DISK) || said(&output.stderr).contains("unshare");
        assert!(none, "{all}");
        last = Some(all);
    }
    weir_integration_tests::skipped("a full disk", &format!("no small one can be made: {last:?}"));
}

#[test]
fn a_full_disk_under_local_state_costs_checkpoints_only() {
    on_a_small_disk(STATE, "");
}

#[test]
fn a_full_disk_under_the_checkpoints_costs_checkpoints_only() {
    on_a_small_disk(CHECKPOINTS, "");
}

#[test]
fn a_full_disk_under_state_that_is_evicted_costs_checkpoints_only() {
    on_a_small_disk(STATE, EVICTED);
}
