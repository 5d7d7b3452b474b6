//! From a job's plan and the machine it stands on to what its memory plan is made from.

use super::config::MemoryConfig;
use super::footprint::{Footprint, Per};
use super::limit::{self, Limit};
use super::plan::{ChannelsAsk, Declared, MemoryAsk, ThreadGroup, ThreadKind};
use crate::checkpoint::StateBackend;
use crate::metrics::process;
use crate::plan::{Plan, PlannedChain, PlannedOperator};
use crate::runtime::batch_size::BATCH;

/// What a plan depends on outside the job.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    /// What the process may take.
    pub(crate) memory: Limit,
    /// How many threads it may have.
    pub(crate) threads: Option<Limit>,
    /// How many files it may open.
    pub(crate) files: Option<Limit>,
    /// Cores.
    pub(crate) cores: u64,
    /// What the process has resident now.
    pub(crate) resident_bytes: u64,
    /// Threads that run now.
    pub(crate) running: u64,
    /// The stack of a task's thread.
    pub(crate) task_stack_bytes: u64,
    /// The stack of a thread that a C library starts.
    pub(crate) client_stack_bytes: u64,
}

/// The program alone, its allocator started: what is resident before a job is less than what its first records touch.
const BASE_AT_LEAST: u64 = 32 << 20;
/// The standard library's stack for a thread, unless `RUST_MIN_STACK` says otherwise.
const TASK_STACK: u64 = 2 << 20;
/// What C libraries take when the stack's limit is unlimited.
const CLIENT_STACK: u64 = 8 << 20;

impl Surroundings {
    /// This process on this machine, now.
    pub(crate) fn here() -> Self {
        let now = process::read().unwrap_or_default();
        let set = std::env::var("RUST_MIN_STACK").ok().and_then(|bytes| bytes.parse().ok());
        Surroundings {
            memory: limit::memory(&limit::file),
            threads: limit::threads(&limit::file),
            files: limit::files(&limit::file),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
            resident_bytes: now.resident_bytes,
            running: now.threads,
            task_stack_bytes: set.unwrap_or(TASK_STACK),
            client_stack_bytes: limit::stack(&limit::file).unwrap_or(CLIENT_STACK),
        }
    }
}

/// What `plan` asks for on such a machine. `engine` is what the engine itself starts for this job beside its tasks;
/// `rocksdb` says that state is kept there.
pub(crate) fn ask(
    plan: &Plan,
    config: &MemoryConfig,
    here: &Surroundings,
    engine: &[Footprint],
    rocksdb: bool,
) -> MemoryAsk {
    let subtasks = |wanted: &dyn Fn(&PlannedOperator) -> bool| -> u64 {
        let of = |c: &PlannedChain| c.operators.iter().filter(|op| wanted(op)).count() * c.parallelism;
        plan.chains.iter().map(|chain| of(chain) as u64).sum()
    };
    // A source remembers its positions in the checkpoint itself.
    let databases = if rocksdb { subtasks(&|op| op.stateful && op.kind != "source") } else { 0 };
    let limit = config.limit.map_or_else(|| here.memory.clone(), Limit::set);
    let mut threads: Vec<ThreadGroup> = (0..plan.chains.len())
        .map(|i| ThreadGroup {
            kind: ThreadKind::Task,
            name: plan.first_uid(i),
            threads: plan.chains[i].parallelism as u64,
            stack_bytes: here.task_stack_bytes,
            resident_bytes: config.stack_resident_bytes.min(here.task_stack_bytes),
        })
        .collect();
    let mut declared = declared(plan);
    let below = (databases > 0).then(|| StateBackend::footprint(databases));
    engine.iter().chain(&below).for_each(|footprint| add(&mut declared, footprint, "the engine", 1));
    threads.extend(declared.iter().filter(|d| d.threads > 0).map(|d| ThreadGroup {
        kind: ThreadKind::Client,
        name: format!("{} ({})", d.declared.name, d.declared.whose),
        threads: d.threads,
        stack_bytes: here.client_stack_bytes,
        resident_bytes: config.stack_resident_bytes.min(here.client_stack_bytes),
    }));
    if here.running > 0 {
        let name = "before the start".into();
        let (kind, threads_now) = (ThreadKind::Before, here.running);
        threads.push(ThreadGroup { kind, name, threads: threads_now, stack_bytes: 0, resident_bytes: 0 });
    }
    MemoryAsk {
        job: plan.job.clone(),
        below: Some(here.memory.clone()).filter(|there_is| there_is.amount < limit.amount),
        limit,
        max_threads: config.max_threads.map(Limit::set).or_else(|| here.threads.clone()),
        max_files: here.files.clone(),
        cores: here.cores,
        base_bytes: here.resident_bytes.max(BASE_AT_LEAST),
        channels: ChannelsAsk {
            channels: plan.edges.iter().map(|edge| edge.channels as u64).sum(),
            depth: plan.channel_depth as u64,
            batch_records: BATCH as u64,
            record_bytes: config.record_bytes,
        },
        threads,
        declared: declared.into_iter().map(|d| d.declared).collect(),
        stores: subtasks(&|op| op.stateful && op.kind != "source" && !op.index),
        databases,
        index: subtasks(&|op| op.index) > 0,
        config: config.clone(),
    }
}

/// A declaration and the threads that go with it.
pub(crate) struct Counted {
    declared: Declared,
    per: Per,
    pub(crate) threads: u64,
}

/// What all operators of a plan declare.
pub(crate) fn declared(plan: &Plan) -> Vec<Counted> {
    let mut all = Vec::new();
    for chain in &plan.chains {
        for operator in &chain.operators {
            add(&mut all, &operator.footprint, &operator.uid, chain.parallelism);
        }
    }
    all
}

/// Adds what `footprint` says of an operator with so many subtasks. What the process has one of is counted once.
fn add(all: &mut Vec<Counted>, footprint: &Footprint, whose: &str, subtasks: usize) {
    for part in &footprint.parts {
        let count = part.times(subtasks) as u64;
        let (bytes, threads) = (part.memory_bytes.saturating_mul(count), part.threads as u64 * count);
        let same =
            |c: &&mut Counted| part.per == Per::Process && c.per == part.per && c.declared.name == part.name;
        match all.iter_mut().find(same) {
            Some(counted) => {
                counted.declared.bytes = counted.declared.bytes.max(bytes);
                counted.threads = counted.threads.max(threads);
                counted.declared.whose = format!("{}, {whose}", counted.declared.whose);
            }
            None => {
                let (name, setting) = (part.name.clone(), part.setting);
                let declared = Declared { name, whose: whose.to_owned(), count, bytes, setting };
                all.push(Counted { declared, per: part.per, threads });
            }
        }
    }
}

#[cfg(test)]
#[path = "ask_tests.rs"]
mod tests;
