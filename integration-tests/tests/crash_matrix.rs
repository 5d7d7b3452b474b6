//! Every fail point of the protocol, at every parallelism and on every backend: the output is that of the run without it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use fail::FailScenario;
use weir_connectors::file::{FileSink, visible_lines};
use weir_connectors::generator::Generator;
use weir_engine::prelude::*;
use weir_operators::prelude::*;

/// Where a step of the protocol can fail, and how often it passes first.
const POINTS: &[&str] = &[
    "task::before_freeze",
    "task::after_barrier",
    "task::before_notice",
    "task::before_end",
    "task::after_end",
    "snapshot::before_write",
    "snapshot::after_write",
    "checkpoint::before_upload",
    "checkpoint::after_upload",
    "checkpoint::before_publish",
    "checkpoint::after_publish",
    "checkpoint::before_delete",
    "sink::before_commit",
    "sink::after_commit",
    "restore::before_open",
];

const RECORDS: u64 = 6_000;
const KEYS: u64 = 97;
const WINDOW_MS: i64 = 500;

/// Key, window and sum of every window, as the sink writes them.
fn expected() -> Vec<String> {
    let mut sums = BTreeMap::new();
    for i in 0..RECORDS {
        *sums.entry((i * 31 % KEYS, i as i64 / WINDOW_MS * WINDOW_MS)).or_insert(0u64) += i;
    }
    let mut lines: Vec<String> =
        sums.iter().map(|((k, start), sum)| format!("[{k},{start},{sum}]")).collect();
    lines.sort();
    lines
}

fn run(folder: &Path, parallelism: usize, state: StateBackend) -> Result<Vec<String>, JobError> {
    let (out, checkpoints) = (folder.join("out"), folder.join("checkpoints"));
    let checkpoints = Checkpoints::to(checkpoints.display().to_string())
        .every(Duration::from_millis(20))
        .retain(1)
        .tolerate_failures(100);
    let policy = RestartPolicy::FixedDelay { restarts: 5, delay: Duration::ZERO };
    let job = Job::named("matrix")
        .parallelism(parallelism)
        .state(state.folder(folder.join("state")))
        .checkpoints(checkpoints)
        .restart(policy);
    // One record a millisecond of event time, its key a function of its number.
    job.source("numbers", Generator::new(1, Some(RECORDS), |i, _| ((i * 31 % KEYS, i), EventTime(i as i64))))
        .max_rate(12_000.0)
        .source_time(Watermarks::monotonic())
        .key_by("by-key", |(key, _)| *key)
        .window(Tumbling::of(Duration::from_millis(WINDOW_MS as u64)))
        .aggregate("sums", sum(|(_, i): &(u64, u64)| *i))
        .map(|w: WindowResult<u64, u64>| (w.key, w.window.start.millis(), w.value))
        .sink("files", FileSink::json_lines(&out));
    job.run()?;
    Ok(visible_lines(&out).expect("its files"))
}

/// The job with one fail point armed: it passes `passes` times, fails once, and passes from then on.
fn with_failure(point: &str, passes: usize, parallelism: usize, state: StateBackend) {
    let scenario = FailScenario::setup();
    let folder = tempfile::tempdir().expect("a folder");
    if point == "restore::before_open" {
        // Nothing is restored unless something else has failed.
        fail::cfg("task::before_notice", "5*off->1*return->off").expect("a fail point");
    }
    fail::cfg(point, &format!("{passes}*off->1*return->off")).expect("a fail point");
    let case = format!("{point} after {passes}, parallelism {parallelism}, {state:?}");
    let lines = run(folder.path(), parallelism, state).unwrap_or_else(|e| panic!("{case}: {e}"));
    assert!(lines == expected(), "{case}: {} rows, expected {}", lines.len(), expected().len());
    scenario.teardown();
}

fn matrix(state: fn() -> StateBackend) {
    let soak = std::env::var_os("WEIR_SOAK").is_some();
    let passes: &[usize] = if soak { &[0, 1, 2, 5, 11] } else { &[2] };
    for point in POINTS {
        for parallelism in [1, 2, 3] {
            match *point {
                // Each subtask opens its store once, in the first life in vain.
                "restore::before_open" => with_failure(point, parallelism, parallelism, state()),
                // What happens once for each task fails the first time.
                "task::before_end" | "task::after_end" => with_failure(point, 0, parallelism, state()),
                _ => passes.iter().for_each(|passes| with_failure(point, *passes, parallelism, state())),
            }
        }
    }
}

#[test]
fn every_fail_point_at_every_parallelism_in_memory() {
    matrix(StateBackend::memory);
}

#[test]
fn every_fail_point_at_every_parallelism_on_rocksdb() {
    matrix(StateBackend::rocksdb);
}
