//! The options that every example has, and what they make of a job.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use weir_engine::RestartPolicy;
use weir_engine::memory::MemoryConfig;
use weir_engine::prelude::*;

/// Where keyed state lies while the job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum State {
    /// A cache over RocksDB on local disk.
    Rocksdb,
    /// Memory alone.
    Memory,
}

/// Parallelism, logs, state and checkpoints.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Subtasks of each operator [default: the number of cores].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub parallelism: Option<usize>,
    /// What keeps keyed state.
    #[arg(long, value_enum, default_value_t = State::Rocksdb)]
    pub state: State,
    /// Local files of the state lie here; once per disk [default: a temporary folder].
    #[arg(long, value_name = "FOLDER")]
    pub state_folder: Vec<PathBuf>,
    /// Takes checkpoints to this folder or URL (file:///…, s3://bucket/prefix), and begins from the newest one there is. `user_profile` begins
    /// anew when its broker is in the process.
    #[arg(long, env = "WEIR_CHECKPOINTS", value_name = "URL")]
    pub checkpoints: Option<String>,
    /// The time between two checkpoints, in milliseconds.
    #[arg(long, default_value_t = 1_000, value_name = "MS")]
    pub checkpoint_every: u64,
    /// Begins anew, whatever checkpoints there are.
    #[arg(long, conflicts_with_all = ["savepoint", "checkpoint"])]
    pub fresh: bool,
    /// Begins from this savepoint: its name, or the path or URL of its folder.
    #[arg(long, value_name = "SAVEPOINT")]
    pub savepoint: Option<String>,
    /// Begins from the checkpoint of this number, though there may be a newer one: sinks show again what came after it.
    #[arg(long, value_name = "ID", conflicts_with = "savepoint")]
    pub checkpoint: Option<u64>,
    /// State of an operator (uid), or of one of its tables (uid/table), that may be dropped when the job begins from a
    /// checkpoint.
    #[arg(long, value_name = "UID")]
    pub drop_state: Vec<String>,
    /// Starts although the process has died too often of late.
    #[arg(long)]
    pub forgive_restarts: bool,
    /// Takes the job from a process that is known to be gone, without waiting until its lease runs out.
    #[arg(long)]
    pub break_lease: bool,
    /// The most memory that the process plans with, in MiB [default: the lowest of the cgroup's limit, ulimit -v and the machine's memory].
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u64>,
}

impl Common {
    /// How many subtasks each operator has.
    pub fn parallelism(&self) -> usize {
        self.parallelism.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// A job with all of them.
    ///
    /// # Errors
    /// When one makes no sense without another.
    pub fn job(&self, name: &str) -> anyhow::Result<Job> {
        let mut state = match self.state {
            State::Rocksdb => StateBackend::rocksdb(),
            State::Memory => StateBackend::memory(),
        };
        for folder in &self.state_folder {
            state = state.folder(folder);
        }
        let mut job = Job::named(name).parallelism(self.parallelism()).state(state);
        if let Some(mib) = self.memory {
            job = job.memory(MemoryConfig::new().limit(mib.saturating_mul(1 << 20)));
        }
        match &self.checkpoints {
            Some(url) => Ok(job.checkpoints(self.checkpoints(url))),
            None if self.savepoint.is_some() => {
                bail!("--savepoint needs --checkpoints: where the job's own go")
            }
            None if self.checkpoint.is_some() => {
                bail!("--checkpoint needs --checkpoints: where it is")
            }
            None => Ok(job),
        }
    }

    fn checkpoints(&self, url: &str) -> Checkpoints {
        let start = match (&self.savepoint, self.checkpoint) {
            (Some(savepoint), _) => StartFrom::Savepoint(savepoint.clone()),
            (None, Some(id)) => StartFrom::Checkpoint(id),
            (None, None) if self.fresh => StartFrom::Fresh,
            (None, None) => StartFrom::Latest,
        };
        let checkpoints = Checkpoints::to(url)
            .every(Duration::from_millis(self.checkpoint_every))
            .start_from(start)
            .forgive_restarts(self.forgive_restarts)
            .break_lease(self.break_lease);
        self.drop_state.iter().fold(checkpoints, |all, uid| all.drop_state(uid))
    }
}

/// The restarts of a job that is to run for good: again and again, with ever longer pauses while it goes on failing.
pub fn for_good() -> RestartPolicy {
    RestartPolicy::Exponential {
        first: Duration::from_secs(1),
        longest: Duration::from_secs(60),
        factor: 2.0,
        reset_after: Duration::from_secs(600),
    }
}
