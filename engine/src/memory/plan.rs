//! The plan: what a job asks for, laid out as shares that add up to its limit, or refused. Pure.

use serde::Serialize;

use super::config::MemoryConfig;
use super::error::{MemoryError, Shortage};
use super::limit::Limit;
use super::share::{Share, Want, divide};

/// The channels of a job, as they are charged: everything full at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChannelsAsk {
    /// Channels of all edges.
    pub channels: u64,
    /// Elements that each holds.
    pub depth: u64,
    /// Records of a full batch.
    pub batch_records: u64,
    /// What a record takes, with all that it points to.
    pub record_bytes: u64,
}

/// Batches of a channel that are not in it: one that is being filled, one that is being read, and one between them,
/// emptied and on its way back.
const BATCHES_BESIDE: u64 = 3;

impl ChannelsAsk {
    /// Batches that belong to one channel: those in it, the one being filled, the one being read, and an emptied one.
    pub fn batches(&self) -> u64 {
        self.depth.saturating_add(BATCHES_BESIDE)
    }

    /// Bytes of all channels.
    pub fn bytes(&self) -> u64 {
        let records = self.batches().saturating_mul(self.batch_records);
        self.channels.saturating_mul(records).saturating_mul(self.record_bytes)
    }
}

/// Who runs a group of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ThreadKind {
    /// Tasks of the job.
    Task,
    /// The client of a connector, or another part of the engine.
    Client,
    /// Threads that ran before the job started; their stacks are in the base.
    Before,
}

/// Threads of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadGroup {
    /// Who runs them.
    pub kind: ThreadKind,
    /// What they are called: the task's chain, the client.
    pub name: String,
    /// How many.
    pub threads: u64,
    /// The size of each stack: address space, no memory until it is touched.
    pub stack_bytes: u64,
    /// What of it, and of the kernel for it, is resident.
    pub resident_bytes: u64,
}

/// What a connector, or another part of the process, declares to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Declared {
    /// What it is.
    pub name: String,
    /// Whose: operator uids, or the engine.
    pub whose: String,
    /// How many of them.
    pub count: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Which setting makes it smaller.
    pub setting: Option<&'static str>,
}

/// Everything that a plan is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryAsk {
    /// The job.
    pub job: String,
    /// What the process may take.
    pub limit: Limit,
    /// What the system allows, when that is less than a limit that the job sets.
    pub below: Option<Limit>,
    /// How many threads it may have, if anything says so.
    pub max_threads: Option<Limit>,
    /// How many files it may have open, if anything says so.
    pub max_files: Option<Limit>,
    /// Processor cores.
    pub cores: u64,
    /// The program and what it holds before the job starts.
    pub base_bytes: u64,
    /// The channels.
    pub channels: ChannelsAsk,
    /// Every thread.
    pub threads: Vec<ThreadGroup>,
    /// What connectors take.
    pub declared: Vec<Declared>,
    /// Subtasks of operators with keyed state: each has a cache.
    pub stores: u64,
    /// RocksDB databases: subtasks of operators with any state; 0 when state is kept in memory.
    pub databases: u64,
    /// The job keeps a profile index.
    pub index: bool,
    /// Percents and minimums.
    pub config: MemoryConfig,
}

/// How much of what is left a share gets unless set, in percent; headroom has what the others leave.
const PERCENTS: [(Share, u64); 4] =
    [(Share::StateCaches, 40), (Share::BlockCache, 15), (Share::WriteBuffers, 10), (Share::Index, 15)];
/// The others may not take more percent than this: beyond it there is no room for what nobody can plan.
pub(super) const MOST_PERCENT: u64 = 95;

/// What a database keeps open of its files at least, and at most: beyond that it opens them anew.
const FILES: [u64; 2] = [32, 256];
/// What it has open beside them: its log, manifest and lock, and while it is restored what it is read from.
const FILES_BESIDE: u64 = 32;
/// What the program has open, and what a task may: sockets, input, output, an upload.
const OTHER_FILES: [u64; 2] = [128, 8];

/// More tasks than this for each core are worth a warning.
pub(crate) const TASKS_PER_CORE: u64 = 4;

impl MemoryAsk {
    /// Threads in all.
    pub fn thread_count(&self) -> u64 {
        self.threads.iter().map(|group| group.threads).sum()
    }

    /// Tasks of the job.
    pub fn task_count(&self) -> u64 {
        self.threads.iter().filter(|g| g.kind == ThreadKind::Task).map(|group| group.threads).sum()
    }

    /// Files that are open beside those of databases, as far as that can be planned.
    pub fn other_files(&self) -> u64 {
        OTHER_FILES[0] + self.task_count().saturating_mul(OTHER_FILES[1])
    }

    /// The files that must be allowed to be open; nobody asks for more than a system allows when there is no database.
    pub fn needed_files(&self) -> u64 {
        if self.databases == 0 { 0 } else { self.other_files() + self.databases * (FILES[0] + FILES_BESIDE) }
    }

    /// Resident bytes of all stacks.
    pub fn stack_bytes(&self) -> u64 {
        let of = |group: &ThreadGroup| group.threads.saturating_mul(group.resident_bytes);
        self.threads.iter().fold(0, |sum: u64, group| sum.saturating_add(of(group)))
    }

    /// Address space of all stacks.
    pub fn stack_reserved_bytes(&self) -> u64 {
        let of = |group: &ThreadGroup| group.threads.saturating_mul(group.stack_bytes);
        self.threads.iter().fold(0, |sum: u64, group| sum.saturating_add(of(group)))
    }

    /// What a share needs whatever the limit: for those that are divided, the least that they get.
    pub fn needs(&self, share: Share) -> u64 {
        let set = self.config.minimums.iter().find(|(of, _)| *of == share).map(|(_, bytes)| *bytes);
        if !self.has(share) {
            return 0;
        }
        match share {
            Share::Base => self.base_bytes,
            Share::Channels => self.channels.bytes(),
            Share::Stacks => self.stack_bytes(),
            Share::Connectors => {
                self.declared.iter().fold(0, |sum: u64, declared| sum.saturating_add(declared.bytes))
            }
            Share::StateCaches => set.unwrap_or(self.stores << 20),
            Share::BlockCache => set.unwrap_or(8 << 20),
            // A database takes its first buffer in blocks of up to 1 MiB: with less, each write would cause a flush.
            Share::WriteBuffers => set.unwrap_or((self.databases << 20).max(4 << 20)),
            Share::Index => set.unwrap_or(16 << 20),
            Share::Headroom => set.unwrap_or(32 << 20),
        }
    }

    /// Whether the job has a use for a share.
    pub(crate) fn has(&self, share: Share) -> bool {
        match share {
            Share::StateCaches => self.stores > 0,
            Share::BlockCache | Share::WriteBuffers => self.databases > 0,
            Share::Index => self.index,
            _ => true,
        }
    }

    /// The weights of the shares that are divided.
    fn weights(&self) -> Result<Vec<(Share, u64)>, MemoryError> {
        let set = &self.config.percents;
        if let Some((share, _)) = set.iter().find(|(share, _)| !PERCENTS.iter().any(|(of, _)| of == share)) {
            return Err(MemoryError::NoPercent { share: *share });
        }
        let undivided = |share: &Share| !Share::DIVIDED.contains(share);
        if let Some((share, _)) = self.config.minimums.iter().find(|(share, _)| undivided(share)) {
            return Err(MemoryError::NoMinimum { share: *share });
        }
        let percent = |share, default| set.iter().find(|(of, _)| *of == share).map_or(default, |(_, p)| *p);
        let mut weights = PERCENTS.map(|(share, default)| (share, percent(share, default))).to_vec();
        let sum = weights.iter().fold(0u64, |sum, (_, percent)| sum.saturating_add(*percent));
        if sum > MOST_PERCENT {
            return Err(MemoryError::NoHeadroom { sum });
        }
        weights.push((Share::Headroom, 100 - sum));
        Ok(weights)
    }
}

/// The shares of one process: they add up to its limit. It displays as a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// What the process may take.
    pub limit: Limit,
    pub(crate) ask: MemoryAsk,
    pub(crate) shares: Vec<(Share, u64)>,
}

impl MemoryPlan {
    /// Lays the shares out. Base, channels, stacks and connectors get what they need; what they leave is divided among the
    /// others by percent, each getting its minimum at least.
    ///
    /// # Errors
    /// When that cannot fit, with every share, what is needed, what there is and what to change; when there are more
    /// threads than allowed; when the percents make no sense.
    pub fn of(ask: &MemoryAsk) -> Result<MemoryPlan, MemoryError> {
        if ask.channels.record_bytes == 0 {
            return Err(MemoryError::RecordBytes);
        }
        let weights = ask.weights()?;
        if ask.max_threads.as_ref().is_some_and(|max| ask.thread_count() > max.amount) {
            return Err(MemoryError::Threads(Box::new(ask.clone())));
        }
        if ask.max_files.as_ref().is_some_and(|max| ask.needed_files() > max.amount) {
            return Err(MemoryError::Files(Box::new(ask.clone())));
        }
        let too_small = || MemoryError::TooSmall(Box::new(Shortage { ask: ask.clone() }));
        let fixed = Share::ALL.into_iter().filter(|share| !Share::DIVIDED.contains(share));
        let mut shares: Vec<(Share, u64)> = fixed.map(|share| (share, ask.needs(share))).collect();
        let fixed = shares.iter().try_fold(0u64, |sum, (_, bytes)| sum.checked_add(*bytes));
        let rest = fixed.and_then(|fixed| ask.limit.amount.checked_sub(fixed)).ok_or_else(too_small)?;

        let divided: Vec<(Share, u64)> = weights.into_iter().filter(|(share, _)| ask.has(*share)).collect();
        let want = |&(share, weight): &(Share, u64)| Want { weight, least: ask.needs(share) };
        let parts = divide(rest, &divided.iter().map(want).collect::<Vec<_>>()).ok_or_else(too_small)?;
        shares.extend(divided.iter().map(|(share, _)| *share).zip(parts));
        Ok(MemoryPlan { limit: ask.limit.clone(), ask: ask.clone(), shares })
    }

    /// Everything is headroom: for one operator without a job.
    #[cfg(any(test, feature = "testkit"))]
    pub(super) fn unlimited() -> MemoryPlan {
        let ask = MemoryAsk {
            job: String::new(),
            limit: Limit::set(u64::MAX),
            below: None,
            max_threads: None,
            max_files: None,
            cores: 1,
            base_bytes: 0,
            channels: ChannelsAsk::default(),
            threads: Vec::new(),
            declared: Vec::new(),
            stores: 0,
            databases: 0,
            index: false,
            config: MemoryConfig::new(),
        };
        MemoryPlan { limit: ask.limit.clone(), shares: vec![(Share::Headroom, u64::MAX)], ask }
    }

    /// What a share gets, in bytes; 0 when the job has no use for it.
    pub fn bytes(&self, share: Share) -> u64 {
        self.shares.iter().find(|(of, _)| *of == share).map_or(0, |(_, bytes)| *bytes)
    }

    /// What the cache of one store gets: one subtask of one operator with keyed state.
    pub fn cache_bytes_per_store(&self) -> usize {
        whole(self.bytes(Share::StateCaches) / self.ask.stores.max(1))
    }

    /// RocksDB's block cache, one for all databases of the job.
    pub fn block_cache_bytes(&self) -> usize {
        whole(self.bytes(Share::BlockCache))
    }

    /// RocksDB's write buffers, all databases together.
    pub fn write_buffer_bytes(&self) -> usize {
        whole(self.bytes(Share::WriteBuffers))
    }

    /// How many of its files a RocksDB database may keep open.
    pub fn open_files_per_database(&self) -> usize {
        let Some(max) = &self.ask.max_files else { return whole(FILES[1]) };
        let all = max.amount.saturating_sub(self.ask.other_files());
        let each = (all / self.ask.databases.max(1)).saturating_sub(FILES_BESIDE);
        whole(each.clamp(FILES[0], FILES[1]))
    }

    /// What the profile index may take.
    pub fn index_bytes(&self) -> usize {
        whole(self.bytes(Share::Index))
    }

    /// Every thread of the process, by who runs it.
    pub fn threads(&self) -> &[ThreadGroup] {
        &self.ask.threads
    }
}

/// On a machine whose addresses are shorter nothing can be larger than they reach.
fn whole(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
