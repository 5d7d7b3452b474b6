//! SIGTERM while a checkpoint is in the making, at each of its steps: a clean end in bounded time, and the next start goes on.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::children::child as process;
use crate::rig::*;

/// Where a checkpoint is held up when the signal comes, in its order.
const POINTS: &[&str] = &[
    "task::before_freeze",
    "task::after_barrier",
    "snapshot::before_write",
    "snapshot::after_write",
    "checkpoint::before_upload",
    "checkpoint::after_upload",
    "checkpoint::before_publish",
    "checkpoint::after_publish",
    "sink::before_commit",
    "sink::after_commit",
];

const N: u64 = 40_000;
/// What the child says when a checkpoint has come to the point.
const THERE: &str = "a checkpoint is at the point";
/// How the child ends when it could not drain.
const NOT_DRAINED: i32 = 3;

/// One life: a checkpoint is held up at `point` for a while, or for longer than the drain may take.
pub(crate) fn child(folder: PathBuf, point: &str) {
    let (point, hold) = match point.split_once(' ') {
        Some((point, "for-good")) => (point, Duration::from_secs(600)),
        _ => (point, Duration::from_millis(700)),
    };
    if !point.is_empty() {
        let passed = AtomicUsize::new(0);
        let held = move || {
            if passed.fetch_add(1, Ordering::SeqCst) == 3 {
                println!("{THERE}");
                let began = Instant::now();
                while began.elapsed() < hold {
                    std::thread::park_timeout(hold);
                }
            }
        };
        fail::cfg_callback(point, held).unwrap();
    }
    let rig = Rig::at_path("terminated", folder);
    // Slow enough for one signal a life.
    let rate = if point.is_empty() { 1_000_000.0 } else { 4_000.0 };
    let job = rig.job(2, Some(N), rate, rig.checkpoints()).drain_timeout(Duration::from_secs(4));
    if let Err(e) = job.run() {
        println!("{e}");
        std::process::exit(NOT_DRAINED);
    }
}

/// Lets a life come to the point and ends it there. Gives its status and how long it took.
fn life(rig: &Rig, point: &str) -> (Option<i32>, Duration, String) {
    let mut child =
        process(&format!("terminated {point}"), &rig.at("")).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let there = |said: &str| said.lines().any(|line| line.ends_with(THERE));
    while !there(&said) {
        assert!(out.read_line(&mut said).unwrap() > 0, "{point}: it ended before it was there: {said}");
    }
    let began = Instant::now();
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > Duration::from_secs(30) {
            child.kill().unwrap();
            panic!("{point}: SIGTERM does not end it");
        }
        std::thread::park_timeout(Duration::from_millis(10));
    };
    std::io::Read::read_to_string(&mut out, &mut said).unwrap();
    (status.code(), began.elapsed(), said)
}

#[test]
fn sigterm_during_a_checkpoint_ends_the_job_cleanly_and_the_next_start_goes_on() {
    let rig = Rig::in_folder("terminated");
    for point in POINTS {
        let (status, took, said) = life(&rig, point);
        assert_eq!(status, Some(0), "{point}: {said}");
        assert!(took < Duration::from_secs(15), "{point}: {took:?}");
        let lines = rig.lines();
        assert!(lines.len() < N as usize, "{point}: it was over before the signal");
    }
    // A checkpoint that never ends: the drain has its limit, and nothing is lost.
    let (status, took, said) = life(&rig, "checkpoint::before_upload for-good");
    assert_eq!(status, Some(NOT_DRAINED), "{said}");
    assert!(said.contains("did not drain within 4s"), "{said}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    let ended = process("terminated", &rig.at("")).stdout(Stdio::null()).status().unwrap();
    assert!(ended.success());
    rig.assert_exact(N);
}
