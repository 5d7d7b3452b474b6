//! The job under test: running totals per key, each written once; and what it would write without a fault.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use weir_connectors::file::{FileSink, visible_lines};
use weir_connectors::generator::Generator;
use weir_connectors::random::Random;
use weir_engine::Source;
use weir_engine::prelude::*;
use weir_engine::testkit::until;
use weir_operators::prelude::*;
use weir_state::checkpoint::faults::FaultyStore;

/// How long anything may take that does not take its time on purpose.
pub(crate) const SOON: Duration = Duration::from_secs(60);

pub(crate) fn soak() -> bool {
    std::env::var_os("WEIR_SOAK").is_some()
}

/// The uid of the operator with the state.
pub(crate) const TOTALS: &str = "totals";

/// Record `i`: its key and `i`, so many a second. All records of a key come from one subtask, in their order. `made` learns
/// how many there have been.
pub(crate) fn numbers(
    n: Option<u64>,
    rate: f64,
    made: &Arc<AtomicU64>,
) -> impl Source<Out = (u64, u64)> + use<> {
    let made = made.clone();
    let make = move |i: u64, _: &mut Random| {
        made.fetch_max(i + 1, Ordering::Relaxed);
        ((key(i), i), EventTime(i as i64))
    };
    Generator::new(1, n, make).rate(rate)
}

pub(crate) fn key(i: u64) -> u64 {
    i % 128 + 128 * (i / 128 % 7)
}

/// Where there are two inputs, the numbers of the second begin here, and its keys. They count as they would in the first.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Gives each record's number with the total of its key by then.
#[derive(Clone)]
pub(crate) struct Totals;

impl ProcessFunction<u64, (u64, u64)> for Totals {
    type Out = (u64, u64);
    type State = u64;
    fn process(
        &mut self,
        record: Record<(u64, u64)>,
        cx: &mut KeyedContext<'_, u64, u64>,
        out: &mut impl Collector<(u64, u64)>,
    ) -> Result<()> {
        let (_, i) = record.value;
        let total = cx.state()?;
        *total += i % SECOND;
        let told = (i, *total);
        out.emit(record.with(told))
    }
}

/// What the first `n` records leave.
pub(crate) fn expected(n: u64) -> Vec<String> {
    let mut totals = BTreeMap::new();
    let line = |i: u64| {
        let total = totals.entry(key(i)).or_insert(0u64);
        *total += i;
        format!("[{i},{total}]")
    };
    let mut lines: Vec<String> = (0..n).map(line).collect();
    lines.sort();
    lines
}

/// Where a job's lives leave what outlives them.
pub(crate) struct Rig {
    root: PathBuf,
    name: String,
    url: String,
    /// How many records there have been, in all lives.
    pub(crate) made: Arc<AtomicU64>,
    _folder: Option<TempDir>,
}

impl Rig {
    /// Checkpoints go into a folder.
    pub(crate) fn in_folder(name: &str) -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let rig = Rig::at_path(name, folder.path().to_owned());
        Rig { _folder: Some(folder), ..rig }
    }

    /// Everything goes into this folder.
    pub(crate) fn at_path(name: &str, root: PathBuf) -> Rig {
        let url = root.join("checkpoints").display().to_string();
        Rig { root, name: name.to_owned(), url, made: Arc::default(), _folder: None }
    }

    /// Checkpoints go into a storage that fails on command.
    pub(crate) fn in_faulty(name: &str) -> (Rig, FaultyStore) {
        let faulty = FaultyStore::memory();
        let objects = Arc::new(faulty.clone());
        weir_state::checkpoint::share(name, objects.clone(), Some(objects));
        (Rig { url: format!("memory://{name}"), ..Rig::in_folder(name) }, faulty)
    }

    pub(crate) fn at(&self, what: &str) -> PathBuf {
        self.root.join(what)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// One every 20 ms, and as many failures as there are.
    pub(crate) fn checkpoints(&self) -> Checkpoints {
        Checkpoints::to(&self.url).every(Duration::from_millis(20)).retain(2).tolerate_failures(10_000)
    }

    pub(crate) fn empty_job(&self, parallelism: usize, checkpoints: Checkpoints) -> Job {
        Job::named(&self.name)
            .parallelism(parallelism)
            .state(StateBackend::rocksdb().folder(self.at("state")))
            .checkpoints(checkpoints)
    }

    /// The totals of `n` records, or for ever, at a rate.
    pub(crate) fn job(&self, parallelism: usize, n: Option<u64>, rate: f64, checkpoints: Checkpoints) -> Job {
        let job = self.empty_job(parallelism, checkpoints);
        totals(&job, numbers(n, rate, &self.made), &self.at("out"));
        job
    }

    /// Some more records than all lives have read.
    pub(crate) fn enough(&self) -> u64 {
        self.made.load(Ordering::Relaxed) + 5_000
    }

    /// One more life, without a fault, reads on to the end: the output is that of the run that never failed.
    pub(crate) fn finish(&self, parallelism: usize) {
        let n = self.enough();
        finished(self.job(parallelism, Some(n), 1_000_000.0, self.checkpoints()));
        self.assert_exact(n);
    }

    /// What readers of the output see.
    pub(crate) fn lines(&self) -> Vec<String> {
        visible_lines(self.at("out")).unwrap()
    }

    pub(crate) fn assert_exact(&self, n: u64) {
        assert_lines(&self.at("out"), n);
    }
}

pub(crate) fn totals(job: &Job, source: impl Source<Out = (u64, u64)>, out: &Path) {
    job.source("numbers", source)
        .without_event_time()
        .key_by("by-key", |(key, _)| *key)
        .process(TOTALS, Totals)
        .sink("out", FileSink::json_lines(out));
}

/// Each line once, none more, as the run that never failed leaves them.
pub(crate) fn assert_lines(out: &Path, n: u64) {
    let (lines, expected) = (visible_lines(out).unwrap(), expected(n));
    let odd = lines.iter().find(|l| expected.binary_search(l).is_err());
    assert!(
        lines == expected,
        "{} lines, expected {}; one that is wrong: {odd:?}",
        lines.len(),
        expected.len()
    );
}

/// How many records the stateful tasks have had.
pub(crate) fn counted(job: &JobHandle) -> u64 {
    let tasks = job.tasks();
    tasks.iter().filter(|t| t.task.chain.as_str() == TOTALS).map(|t| t.records_in).sum()
}

pub(crate) fn completed(job: &JobHandle) -> usize {
    use weir_state::checkpoint::Outcome::Completed;
    job.checkpoints().iter().filter(|c| c.outcome == Completed).count()
}

/// The number of the newest complete checkpoint.
pub(crate) fn newest(job: &JobHandle) -> u64 {
    use weir_state::checkpoint::Outcome::Completed;
    job.checkpoints().iter().filter(|c| c.outcome == Completed).map(|c| c.id).max().unwrap_or(0)
}

/// Waits until `more` checkpoints have completed after those that have.
pub(crate) fn until_completed(job: &JobHandle, more: u64) {
    let wanted = newest(job) + more;
    until(job, SOON, "checkpoints", || newest(job) >= wanted);
}

pub(crate) fn cancelled(job: &JobHandle) {
    job.cancel();
    let ended = job.wait_for(SOON).expect("it hears a cancel");
    assert!(matches!(ended, Err(JobError::Cancelled { .. })), "{ended:?}");
}

pub(crate) fn finished(job: Job) {
    weir_engine::testkit::run_within(job, SOON).unwrap();
}
