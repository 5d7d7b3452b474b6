//! `MemoryConfig`: what a job says about its memory and threads.

use super::share::Share;

/// The limit of a job's process and how it is divided. Everything has a default: the limit is found (cgroup, `ulimit -v`,
/// else the machine's memory), and what channels, threads and connectors leave is divided by percent.
///
/// ```
/// use weir_engine::{memory::{MemoryConfig, Share}, prelude::*, testkit::*};
/// let config = MemoryConfig::new().limit(2 << 30).record_bytes(1_000).percent(Share::BlockCache, 30);
/// let job = Job::named("large records").parallelism(2).memory(config);
/// job.source("in", ScriptSource::of([(1, 0)])).without_event_time().boundary().sink("out", NullSink);
/// let plan = job.memory_plan()?;
/// assert_eq!((plan.limit.amount, plan.bytes(Share::Channels)), (2 << 30, 2 * 11 * 1024 * 1_000));
/// # Ok::<(), JobError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    pub(crate) limit: Option<u64>,
    pub(crate) record_bytes: u64,
    pub(crate) max_threads: Option<u64>,
    pub(crate) stack_resident_bytes: u64,
    pub(crate) percents: Vec<(Share, u64)>,
    pub(crate) minimums: Vec<(Share, u64)>,
}

/// A record in a channel, when nobody says better: its inline part and what it points to.
pub(crate) const RECORD_BYTES: u64 = 256;

/// What a thread is charged of its stack, and for itself. A stack is address space until it is touched, so its size says
/// little: of the threads of the `user_profile` example, tasks with 2 MiB and librdkafka's with 8 MiB, each has touched 24 to
/// 40 KiB when it ends (`Rss` of the stacks in `/proc/PID/smaps`). The kernel keeps some 30 KiB more for a thread: its own
/// stack of 16 KiB, its records, page tables. This is twice the sum; code that recurses deep, or keeps large arrays on the
/// stack, says so with [`MemoryConfig::stack_resident_bytes`].
pub(crate) const STACK_RESIDENT: u64 = 128 << 10;

impl Default for MemoryConfig {
    fn default() -> Self {
        MemoryConfig {
            limit: None,
            record_bytes: RECORD_BYTES,
            max_threads: None,
            stack_resident_bytes: STACK_RESIDENT,
            percents: Vec::new(),
            minimums: Vec::new(),
        }
    }
}

impl MemoryConfig {
    /// Everything by default.
    pub fn new() -> Self {
        MemoryConfig::default()
    }

    /// What the whole process may take, in bytes (default: found). It is a promise of the plan, not a fence: the system's own
    /// limit is what ends a process. Two jobs in one process know nothing of each other: give each its part.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// What a record takes in memory, with all that it points to (default: 256 B): channels are planned for so much.
    #[must_use]
    pub fn record_bytes(mut self, bytes: u64) -> Self {
        self.record_bytes = bytes;
        self
    }

    /// How many threads the process may have (default: as many as the cgroup's `pids.max` allows). The plan refuses more.
    #[must_use]
    pub fn max_threads(mut self, threads: u64) -> Self {
        self.max_threads = Some(threads);
        self
    }

    /// How much of its stack a task's thread touches, in bytes (default: 128 KiB, the kernel's part of a thread included);
    /// at most the whole stack counts.
    #[must_use]
    pub fn stack_resident_bytes(mut self, bytes: u64) -> Self {
        self.stack_resident_bytes = bytes;
        self
    }

    /// How much of what base, channels, stacks and connectors leave a share gets, in percent. The defaults: state caches 40,
    /// block cache 15, write buffers 10, index 15; headroom has the rest and cannot be set. The part of a share that the job
    /// has no use for is divided among the others.
    #[must_use]
    pub fn percent(mut self, share: Share, percent: u64) -> Self {
        self.percents.retain(|(of, _)| *of != share);
        self.percents.push((share, percent));
        self
    }

    /// The least that a share gets if the job has a use for it, in bytes; below it the plan is refused. The defaults: state
    /// caches 1 MiB a store, block cache 8 MiB, write buffers 1 MiB a store, index 16 MiB, headroom 32 MiB.
    #[must_use]
    pub fn minimum(mut self, share: Share, bytes: u64) -> Self {
        self.minimums.retain(|(of, _)| *of != share);
        self.minimums.push((share, bytes));
        self
    }
}
