//! Runs whole jobs in tests: a hang fails in seconds, with a word on what each task waits for.

use std::time::{Duration, Instant};

use crate::job::{Job, JobError, JobHandle, JobReport};

/// Runs `job` to its end.
///
/// *Blocking*: until then, `time` at most.
///
/// # Errors
/// Why the job could not start, or how it failed.
///
/// # Panics
/// When it is not over within `time`; the message says what each task is doing. The job is left running.
///
/// ```
/// use {std::time::Duration, weir_engine::{prelude::*, testkit::*}};
/// let job = Job::named("copy").parallelism(1);
/// job.source("in", ScriptSource::of([(1, 0)])).without_event_time().sink("out", NullSink);
/// assert_eq!(run_within(job, Duration::from_secs(10))?.tasks[0].records_in, 1);
/// # Ok::<(), JobError>(())
/// ```
pub fn run_within(job: Job, time: Duration) -> Result<JobReport, JobError> {
    let handle = job.start()?;
    match handle.wait_for(time) {
        Some(result) => result,
        None => panic!("the job is not over within {time:?}: {}", handle.holding()),
    }
}

/// Waits until `condition` holds; [`JobHandle`] shows it. It is asked about every millisecond.
///
/// *Blocking*: until then, `time` at most.
///
/// # Panics
/// When it does not within `time`; the message says `what` was waited for and what each task is doing.
pub fn until(handle: &JobHandle, time: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < time, "not within {time:?}: {what}; {}", handle.holding());
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// The names of this process's threads, each cut to the 15 bytes that Linux keeps, for tests that nothing is left behind.
/// Empty elsewhere.
pub fn thread_names() -> Vec<String> {
    let Ok(tasks) = procfs::process::Process::myself().and_then(|me| me.tasks()) else { return Vec::new() };
    tasks.flatten().filter_map(|t| t.stat().ok()).map(|s| s.comm).collect()
}
