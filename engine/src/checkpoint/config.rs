//! `Checkpoints` and `StateBackend`: what a job is told about where its state lies and how it survives.

use std::path::PathBuf;
use std::time::Duration;

use weir_state::backend::SNAPSHOT_BYTES;
use weir_state::checkpoint::StoreOptions;

use super::storage::{STORAGE_WAITERS, STORAGE_WORKERS, STORAGE_WRITERS};
use crate::memory::Footprint;

/// Where a life of the job begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartFrom {
    /// The newest complete checkpoint or savepoint of the job, if there is one. Refused when a newer one was complete and is not there any
    /// more: name an older one, then, or say [`StartFrom::Fresh`].
    #[default]
    Latest,
    /// Nothing: checkpoints that are there are left alone until the first one of this life is complete.
    Fresh,
    /// The checkpoint of this number.
    Checkpoint(u64),
    /// A savepoint: its name, or the path or URL of its folder.
    Savepoint(String),
}

/// That a job takes checkpoints, where to, and within what limits.
///
/// ```
/// # use {std::time::Duration, weir_engine::{Checkpoints, prelude::*, testkit::*}};
/// # let folder = std::env::temp_dir().join(format!("weir-doc-{}", std::process::id()));
/// let checkpoints = Checkpoints::to(folder.display().to_string()).every(Duration::from_secs(5)).retain(2);
/// let job = Job::named("copy").parallelism(1).checkpoints(checkpoints);
/// job.source("in", ScriptSource::of([(1, 0)])).without_event_time().sink("out", NullSink);
/// let report = job.run()?;
/// assert_eq!(report.checkpoints, 1, "the one at the end");
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), JobError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Checkpoints {
    pub(crate) url: String,
    pub(crate) every: Duration,
    pub(crate) min_pause: Duration,
    pub(crate) timeout: Duration,
    pub(crate) retain: usize,
    pub(crate) tolerated_failures: u32,
    pub(crate) tolerated_age: Duration,
    pub(crate) upload_rate: Option<u64>,
    pub(crate) uploads: usize,
    pub(crate) start: StartFrom,
    pub(crate) drop_state: Vec<String>,
    pub(crate) restarts: u32,
    pub(crate) restarts_within: Duration,
    pub(crate) forgive_restarts: bool,
    pub(crate) break_lease: bool,
}

impl Checkpoints {
    /// Checkpoints in the folder of this path or URL: `file:///var/weir`, a plain path, `memory://name` (gone with the
    /// process, unless [`weir_state::checkpoint::share`] has given that name to a storage of your own), or `s3://bucket/prefix` with
    /// the usual AWS variables in the environment. Every job has a folder of its own in it, by its name.
    ///
    /// By default one is taken every 10 s, may take 10 minutes, and the last 3 are kept; the job fails after more than 3 failed
    /// ones in a row, or when the last complete one is 30 minutes old; it begins from the newest.
    pub fn to(url: impl Into<String>) -> Self {
        Checkpoints {
            url: url.into(),
            every: Duration::from_secs(10),
            min_pause: Duration::ZERO,
            timeout: Duration::from_secs(600),
            retain: 3,
            tolerated_failures: 3,
            tolerated_age: Duration::from_secs(1_800),
            upload_rate: None,
            uploads: 4,
            start: StartFrom::Latest,
            drop_state: Vec::new(),
            restarts: 10,
            restarts_within: Duration::from_secs(600),
            forgive_restarts: false,
            break_lease: false,
        }
    }

    /// The threads that write checkpoints, what they write at a time, the parts of files on their way, and the buffers that files are read
    /// by.
    pub(crate) fn footprint(&self) -> Footprint {
        let parts = (self.uploads as u64).saturating_mul(StoreOptions::default().part_bytes);
        let snapshots = (STORAGE_WRITERS * SNAPSHOT_BYTES) as u64;
        let bytes = parts.saturating_add((STORAGE_WAITERS as u64) << 20).saturating_add(snapshots);
        Footprint::process("checkpoints", bytes, STORAGE_WORKERS + STORAGE_WAITERS + STORAGE_WRITERS)
            .lowered_by("Checkpoints::parallel_uploads")
    }

    /// The time from the end of one to the beginning of the next. One is in flight at a time; a savepoint is written beside them.
    #[must_use]
    pub fn every(mut self, time: Duration) -> Self {
        self.every = time;
        self
    }

    /// The least pause between two, whatever asks for them.
    #[must_use]
    pub fn min_pause(mut self, time: Duration) -> Self {
        self.min_pause = time;
        self
    }

    /// How long one may take before it is given up, a savepoint included.
    #[must_use]
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = time;
        self
    }

    /// How many complete ones are kept, at least 1.
    #[must_use]
    pub fn retain(mut self, checkpoints: usize) -> Self {
        self.retain = checkpoints.max(1);
        self
    }

    /// How many may fail in a row. One more fails the job. One that only waits behind backpressure does not count here, but
    /// the age does.
    #[must_use]
    pub fn tolerate_failures(mut self, checkpoints: u32) -> Self {
        self.tolerated_failures = checkpoints;
        self
    }

    /// How old the last complete one may become, for whatever reason. Older fails the job: what a restart would have to
    /// repeat has a bound.
    #[must_use]
    pub fn tolerate_age(mut self, time: Duration) -> Self {
        self.tolerated_age = time;
        self
    }

    /// The most bytes per second that all uploads of the job take together.
    #[must_use]
    pub fn upload_rate(mut self, bytes_per_second: u64) -> Self {
        self.upload_rate = Some(bytes_per_second);
        self
    }

    /// How many files are uploaded, or read back, at a time (default: 4).
    #[must_use]
    pub fn parallel_uploads(mut self, files: usize) -> Self {
        self.uploads = files.max(1);
        self
    }

    /// Where this life begins (default: the newest complete checkpoint).
    #[must_use]
    pub fn start_from(mut self, start: StartFrom) -> Self {
        self.start = start;
        self
    }

    /// Restoring may drop the state of this operator, or of this table of it (`uid/table`), when the job has no use for it
    /// any more. Without this it refuses to start.
    #[must_use]
    pub fn drop_state(mut self, of: impl Into<String>) -> Self {
        self.drop_state.push(of.into());
        self
    }

    /// How many deaths without a word the process may have within `time` (default: 10 in 10 minutes). The start that follows
    /// the last of them is refused; 0 refuses none.
    #[must_use]
    pub fn restarts_of_process(mut self, starts: u32, time: Duration) -> Self {
        (self.restarts, self.restarts_within) = (starts, time);
        self
    }

    /// Forgets how often the process has died: lifts a refusal of [`Checkpoints::restarts_of_process`].
    #[must_use]
    pub fn forgive_restarts(mut self, yes: bool) -> Self {
        self.forgive_restarts = yes;
        self
    }

    /// Takes the job from a process that is known to be gone, on another machine for instance, without waiting until its lease runs
    /// out. Should it live all the same, it is refused at its next checkpoint and ends; until then both run.
    #[must_use]
    pub fn break_lease(mut self, yes: bool) -> Self {
        self.break_lease = yes;
        self
    }
}

/// What keeps keyed state while the job runs.
///
/// ```
/// # use weir_engine::{StateBackend, prelude::*, testkit::*};
/// let job = Job::named("copy").parallelism(1).state(StateBackend::rocksdb());
/// job.source("in", ScriptSource::of([(1, 0)])).without_event_time().sink("out", NullSink);
/// job.run()?;
/// # Ok::<(), JobError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateBackend {
    pub(crate) kind: weir_state::backend::BackendKind,
    pub(crate) folders: Vec<PathBuf>,
    pub(crate) cache_bytes: Option<usize>,
}

impl StateBackend {
    /// Everything in memory; each checkpoint writes all of it. For small state, and the model that RocksDB is tested
    /// against. The default.
    pub fn memory() -> Self {
        StateBackend {
            kind: weir_state::backend::BackendKind::Memory,
            folders: Vec::new(),
            cache_bytes: None,
        }
    }

    /// A cache in memory over RocksDB on local disk: state may outgrow memory, and a checkpoint writes what changed.
    pub fn rocksdb() -> Self {
        StateBackend { kind: weir_state::backend::BackendKind::Rocks, ..StateBackend::memory() }
    }

    pub(crate) fn is_rocksdb(&self) -> bool {
        self.kind == weir_state::backend::BackendKind::Rocks
    }

    /// What so many databases take beside the shares of the memory plan: versions, readers of open files, logs. Half of
    /// that was seen of one that is just open. Beside the threads that flush and compact one has the timers.
    pub(crate) fn footprint(databases: u64) -> Footprint {
        let threads = weir_state::backend::Resources::default().threads() + 1;
        Footprint::process("RocksDB", databases << 20, threads)
    }

    /// Local files lie here; several folders, on a disk each, share the subtasks between them. Say it once per folder. By
    /// default a folder under the system's temporary one, which need not survive anything: the checkpoint does.
    #[must_use]
    pub fn folder(mut self, path: impl Into<PathBuf>) -> Self {
        self.folders.push(path.into());
        self
    }

    /// What the caches of all operators of the job may take together, in bytes (default: the share of the memory plan).
    /// Without effect with [`memory`](Self::memory), which has nowhere to evict to.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = Some(bytes);
        self
    }
}

impl Default for StateBackend {
    fn default() -> Self {
        StateBackend::memory()
    }
}
