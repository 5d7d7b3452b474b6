//! Runs whole jobs in tests: a hang fails in seconds, with a word on what each task waits for.

use std::time::{Duration, Instant};

use crate::job::{Job, JobError, JobHandle, JobReport};

/// Runs `job` to its end.
///
/// # Errors
/// How the job failed.
///
/// # Panics
/// When it is not over within `time`; the message says what each task is doing.
pub fn run_within(job: Job, time: Duration) -> Result<JobReport, JobError> {
    let handle = job.start()?;
    match handle.wait_for(time) {
        Some(result) => result,
        None => panic!("the job is not over within {time:?}: {}", handle.holding()),
    }
}

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not within `time`; the message says what each task is doing.
pub fn until(handle: &JobHandle, time: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + time;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {time:?}: {what}; {}", handle.holding());
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// The names of this process's threads, for tests that nothing is left behind. Linux only; empty elsewhere.
pub fn thread_names() -> Vec<String> {
    let Ok(tasks) = procfs::process::Process::myself().and_then(|me| me.tasks()) else { return Vec::new() };
    tasks.flatten().filter_map(|t| t.stat().ok()).map(|s| s.comm).collect()
}
