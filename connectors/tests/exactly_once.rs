//! Whole jobs that fail, stop, grow and shrink: what a file sink shows in the end is what went in, once.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not see helpers of an integration test"
)]

mod failing;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use serde_json::Value;
use weir_connectors::behaviour::behaviours;
use weir_connectors::file::{FileSink, FileSource, JsonLines, visible_files, visible_lines};
use weir_connectors::generator::Generator;
use weir_connectors::memory::MemorySource;
use weir_connectors::random::Random;
use weir_engine::prelude::*;
use weir_engine::testkit::{run_within, until};
use weir_engine::{
    Barrier, Closing, Collector, JobState, Operator, OperatorContext, OperatorInfo, RestartPolicy, Sink,
};

use self::failing::{Failing, FailingSink, FailingSource, Trap};

const LIMIT: Duration = Duration::from_secs(60);

fn every(ms: u64, name: &str) -> Checkpoints {
    Checkpoints::to(format!("memory://{name}")).every(Duration::from_millis(ms))
}

fn restarts() -> RestartPolicy {
    RestartPolicy::FixedDelay { restarts: 100, delay: Duration::from_millis(1) }
}

type Count = Generator<fn(u64, &mut Random) -> (u64, EventTime)>;

fn count(n: u64) -> Count {
    Generator::new(1, Some(n), |i, _| (i, EventTime(i as i64)))
}

/// As they are sorted in a folder.
fn numbers(n: u64) -> Vec<String> {
    let mut lines: Vec<String> = (0..n).map(|i| i.to_string()).collect();
    lines.sort();
    lines
}

fn hidden(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.')).collect()
}

fn assert_whole(folder: &Path, expected: &[String], what: &str) {
    let seen = visible_lines(folder).unwrap();
    assert!(seen == expected, "{what}: {} lines, not {}", seen.len(), expected.len());
    assert_eq!(hidden(folder), [] as [&str; 0], "{what}");
}

/// Some turns of the first `n`, from a seed.
fn some(seed: u64, k: usize, n: u64) -> Vec<u64> {
    let mut random = Random::of(seed, 0);
    (0..k).map(|_| random.below(n)).collect()
}

#[test]
fn records_are_seen_once_whatever_fails() {
    const N: u64 = 20_000;
    let seeds = if std::env::var_os("WEIR_SOAK").is_some() { 300 } else { 6 };
    for (parallelism, seed) in (1..=seeds).map(|seed| (1 + seed as usize % 3, seed)) {
        let folder = tempfile::tempdir().unwrap();
        let what = format!("parallelism {parallelism}, seed {seed}");
        let job = Job::named("once")
            .parallelism(parallelism)
            .restart(restarts())
            .checkpoints(every(5, &format!("once-{seed}")));
        let source = FailingSource(count(N).rate(60_000.0), Trap::at(some(seed, 3, 400)));
        let sink = FailingSink(
            FileSink::json_lines(folder.path()).roll_bytes(2_000),
            Trap::at(some(seed + 100, 4, 150)),
        );
        job.source("in", source)
            .without_event_time()
            .transform(OperatorInfo::stateless("fail"), Failing(Trap::at(some(seed + 200, 3, 2 * N))))
            .rebalance()
            .sink("out", sink);
        let report = run_within(job, LIMIT).unwrap();
        assert_whole(folder.path(), &numbers(N), &what);
        println!("{what}: {} lives, {} checkpoints", report.attempts, report.checkpoints);
        assert!(report.attempts > 2, "{what}: {} lives", report.attempts);
    }
}

#[test]
fn e40_a_checkpoint_whose_prepare_failed_loses_nothing() {
    const N: u64 = 10_000;
    #[derive(Clone)]
    struct PrepareFails(FileSink<u64, JsonLines>, Arc<AtomicI64>);
    impl Sink<u64> for PrepareFails {
        fn open(&mut self, cx: &OperatorContext) -> Result<()> {
            self.0.open(cx)
        }
        fn write(&mut self, batch: &mut Vec<Record<u64>>) -> Result<()> {
            self.0.write(batch)
        }
        fn flush(&mut self) -> Result<()> {
            self.0.flush()
        }
        fn prepare(&mut self, barrier: Barrier) -> Result<Option<Value>> {
            if barrier.checkpoint.0 == 2 && self.1.fetch_sub(1, Ordering::Relaxed) == 1 {
                return Err(TaskError::external("the outside does not take it"));
            }
            self.0.prepare(barrier)
        }
        fn commit(&mut self, prepared: Value) -> Result<()> {
            self.0.commit(prepared)
        }
        fn recover(&mut self, prepared: Option<Vec<Value>>) -> Result<()> {
            self.0.recover(prepared)
        }
        fn close(&mut self, outcome: Closing) {
            self.0.close(outcome);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let job = Job::named("e40").parallelism(2).restart(restarts()).checkpoints(every(20, "e40"));
    let sink = PrepareFails(FileSink::json_lines(folder.path()), Arc::new(AtomicI64::new(1)));
    job.source("in", count(N).rate(50_000.0)).without_event_time().sink("out", sink);
    let report = run_within(job, LIMIT).unwrap();
    assert_eq!(report.attempts, 2);
    assert_whole(folder.path(), &numbers(N), "e40");
}

/// Runs a job until its source has given some records, and stops it as `stop` says.
fn run_for_a_while(job: Job, records: u64, stop: impl FnOnce(&weir_engine::JobHandle)) {
    let handle = job.start().unwrap();
    let read = || handle.tasks().iter().map(|t| t.records_in).sum::<u64>() >= records;
    until(&handle, LIMIT, "some records", || handle.is_over() || read());
    stop(&handle);
    drop(handle.wait_for(LIMIT).expect("it stops"));
}

#[test]
fn a_job_that_was_stopped_goes_on_at_any_parallelism() {
    const N: u64 = 30_000;
    let folder = tempfile::tempdir().unwrap();
    let job_from = |parallelism: usize, start: StartFrom| {
        let checkpoints = every(10, "resume").start_from(start);
        let job = Job::named("resume").parallelism(parallelism).checkpoints(checkpoints);
        let stream = job.source("in", count(N).rate(40_000.0)).without_event_time();
        stream.rebalance().sink("out", FileSink::json_lines(folder.path()));
        job
    };
    let job = |parallelism: usize| job_from(parallelism, StartFrom::Latest);
    run_for_a_while(job(2), 5_000, |handle| handle.drain(EndKind::Keep));
    let drained = visible_lines(folder.path()).unwrap().len();
    assert!((1..N as usize).contains(&drained), "{drained}");
    assert_eq!(hidden(folder.path()), [] as [&str; 0], "a clean stop shows everything");
    run_for_a_while(job(3), 5_000, |handle| {
        until(handle, LIMIT, "a checkpoint", || handle.is_over() || !handle.checkpoints().is_empty());
        handle.cancel();
    });
    run_for_a_while(job(7), 3_000, |handle| drop(handle.stop_with_savepoint("by-the-way").unwrap()));
    run_within(job_from(1, StartFrom::Savepoint("by-the-way".to_owned())), LIMIT).unwrap();
    assert_whole(folder.path(), &numbers(N), "in the end");
    // There is nothing left to be done, and it is not done twice.
    let report = run_within(job(2), LIMIT).unwrap();
    assert_eq!(report.tasks.iter().map(|t| t.records_in).sum::<u64>(), 0);
    assert_whole(folder.path(), &numbers(N), "once more");
}

#[test]
fn files_and_vectors_are_read_on() {
    let input = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..5u64).map(|f| input.path().join(format!("{f}.csv"))).collect();
    for (f, path) in files.iter().enumerate() {
        let rows: String = (0..3_000).map(|i| format!("{}\n", i * 5 + f)).collect();
        std::fs::write(path, format!("id\n{rows}")).unwrap();
    }
    #[derive(Clone, serde::Deserialize)]
    struct Row {
        id: u64,
    }
    #[derive(Clone)]
    struct Id;
    impl Operator<Row> for Id {
        type Out = u64;

        fn process(&mut self, row: Record<Row>, out: &mut impl Collector<u64>) -> Result<()> {
            out.emit(row.with(row.value.id))
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let job = |parallelism: usize, seed: u64| {
        let job = Job::named("read-on")
            .parallelism(parallelism)
            .restart(restarts())
            .checkpoints(every(5, "read-on"));
        let of_files = FileSource::csv::<Row>(&files[0]).and_all(&files[1..]).with_header();
        let of_files = job
            .source("files", FailingSource(of_files, Trap::at(some(seed, 2, 60))))
            .max_rate(40_000.0)
            .without_event_time()
            .transform(OperatorInfo::stateless("id"), Id);
        let of_vector = job
            .source(
                "vector",
                FailingSource(MemorySource::new(15_000..30_000u64), Trap::at(some(seed + 1, 2, 60))),
            )
            .max_rate(40_000.0)
            .without_event_time();
        of_files.union(of_vector).sink("out", FileSink::json_lines(folder.path()));
        job
    };
    for (parallelism, seed) in [(2, 10), (3, 20)] {
        run_for_a_while(job(parallelism, seed), 6_000, |handle| handle.drain(EndKind::Keep));
    }
    run_within(job(1, 30), LIMIT).unwrap();
    assert_whole(folder.path(), &numbers(30_000), "files and a vector");
}

/// A restart begins from the last checkpoint, which a savepoint is none of: what it counts is not shown for its sake.
#[test]
fn a_savepoint_on_the_way_shows_nothing_twice() {
    const N: u64 = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let strike = Arc::new(AtomicBool::new(false));
    #[derive(Clone)]
    struct Switch(Arc<AtomicBool>);
    impl Operator<u64> for Switch {
        type Out = u64;

        fn process(&mut self, record: Record<u64>, out: &mut impl Collector<u64>) -> Result<()> {
            if self.0.swap(false, Ordering::Relaxed) {
                Err(TaskError::user("struck"))
            } else {
                out.emit(record)
            }
        }
    }
    let job = |parallelism: usize, start: StartFrom| {
        let job = Job::named("savepoint").parallelism(parallelism).restart(restarts());
        let job = job.checkpoints(every(3_600_000, "savepoint").start_from(start));
        job.source("in", count(N).rate(20_000.0))
            .without_event_time()
            .transform(OperatorInfo::stateless("fail"), Switch(strike.clone()))
            .sink("out", FileSink::json_lines(folder.path()));
        job
    };
    run_for_a_while(job(2, StartFrom::Latest), 500, |handle| {
        handle.checkpoint().unwrap();
        let shown = || visible_lines(folder.path()).unwrap().len();
        until(handle, LIMIT, "what it holds is shown", || shown() > 0);
        let read = || handle.tasks().iter().map(|t| t.records_in).sum::<u64>();
        let before = read();
        until(handle, LIMIT, "more records", || read() > before + 500);
        handle.savepoint("on-the-way").unwrap();
        strike.store(true, Ordering::Relaxed);
        let fell = || handle.history().iter().any(|status| status.state == JobState::Suspended);
        until(handle, LIMIT, "a restart", fell);
    });
    assert_whole(folder.path(), &numbers(N), "in the end");
}

#[test]
fn beginning_anew_adds_to_what_is_seen() {
    const N: u64 = 5_000;
    let folder = tempfile::tempdir().unwrap();
    let job = |checkpoints: Checkpoints| {
        let job = Job::named("fresh").parallelism(2).checkpoints(checkpoints);
        job.source("in", count(N).rate(50_000.0))
            .without_event_time()
            .sink("out", FileSink::json_lines(folder.path()));
        job
    };
    run_for_a_while(job(every(10, "fresh")), 1_000, |handle| handle.cancel());
    let before = visible_lines(folder.path()).unwrap();
    run_within(job(every(10, "fresh").start_from(StartFrom::Fresh)), LIMIT).unwrap();
    let mut expected = [before, numbers(N)].concat();
    expected.sort();
    assert_whole(folder.path(), &expected, "both");
}

#[test]
fn without_checkpoints_the_end_shows_everything() {
    const N: u64 = 5_000;
    let folder = tempfile::tempdir().unwrap();
    let job = Job::named("bare").parallelism(2).restart(restarts());
    // Both subtasks wait for the whole of one source, so that neither has ended when it fails.
    job.source("in", count(N))
        .parallelism(1)
        .without_event_time()
        .transform(OperatorInfo::stateless("fail"), Failing(Trap::at([100, 3_000, 6_000])))
        .rebalance()
        .sink("out", FileSink::json_lines(folder.path()));
    let report = run_within(job, LIMIT).unwrap();
    assert_eq!(report.attempts, 4);
    assert_whole(folder.path(), &numbers(N), "bare");
}

/// CSV and the shop's events: the columns come back as they went in.
#[test]
fn a_csv_file_is_read_back() {
    const N: u64 = 3_000;
    let folder = tempfile::tempdir().unwrap();
    let made = |sink: FileSink<_, weir_connectors::file::CsvRows>| {
        let job = Job::named("csv").parallelism(2).restart(restarts()).checkpoints(every(5, "csv"));
        job.source("in", FailingSource(behaviours(7, Some(N)).rate(20_000.0), Trap::at([9, 40])))
            .without_event_time()
            .sink("out", sink);
        job
    };
    run_within(made(FileSink::csv(folder.path()).with_header()), LIMIT).unwrap();
    let files = visible_files(folder.path()).unwrap();
    let job = Job::named("back");
    let back = weir_connectors::memory::MemorySink::new();
    let source = FileSource::csv::<weir_connectors::behaviour::Behaviour>(&files[0])
        .and_all(&files[1..])
        .with_header();
    job.source("in", source).without_event_time().sink("out", back.clone());
    run_within(job, LIMIT).unwrap();
    let job = Job::named("again");
    let again = weir_connectors::memory::MemorySink::new();
    job.source("in", behaviours(7, Some(N))).without_event_time().sink("out", again.clone());
    run_within(job, LIMIT).unwrap();
    let (mut got, mut expected) = (back.handle().take_values(), again.handle().take_values());
    got.sort_unstable();
    expected.sort_unstable();
    assert!(got == expected, "{} of {}", got.len(), expected.len());
}
