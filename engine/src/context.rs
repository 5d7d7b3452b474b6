//! What an operator, source or sink may know and ask of the task it runs in.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_state::store::Store;

use crate::error::{Result, TaskError};
use crate::ids::{AttemptId, OperatorUid, TaskId};
use crate::memory::MemoryBudget;
use crate::runtime::channel::{Cancel, Ringer};
use crate::runtime::stats::TaskStats;
use crate::task_state::{RestoredItem, TaskState};
use crate::time::SharedClock;

/// A count that one task writes and anyone reads; shown as a metric with the operator's uid.
///
/// ```
/// let cx = weir_engine::testkit::context("enrich", 0, 1);
/// let misses = cx.counter("cache_misses"); // weir_cache_misses_total
/// misses.add(3);
/// assert_eq!(cx.counter("cache_misses").get(), 3);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds `n`. Meant to be called once per batch, or for rare records.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Wakes a task from another thread: if it waits for input, it looks again and calls
/// [`Operator::on_quiet`](crate::Operator::on_quiet); if it is busy it does so, or calls
/// [`Operator::on_batch_end`](crate::Operator::on_batch_end), before it waits next. Never waits itself; however often it is called before
/// the task looks, that is once.
///
/// ```
/// let waker = weir_engine::testkit::context("enrich", 0, 1).waker();
/// std::thread::spawn(move || waker.wake()); // there is something for the operator
/// ```
#[derive(Clone, Debug, Default)]
pub struct TaskWaker(Option<Ringer>);

impl TaskWaker {
    pub(crate) fn of(ringer: Ringer) -> Self {
        TaskWaker(Some(ringer))
    }

    /// Wakes the task. Nothing happens when it is gone.
    pub fn wake(&self) {
        if let Some(ringer) = &self.0 {
            ringer.ring();
        }
    }
}

/// The parts of a task that its operators share. Made by the engine only.
#[derive(Clone, Debug)]
pub struct TaskContext {
    pub(crate) task: TaskId,
    pub(crate) parallelism: usize,
    pub(crate) attempt: AttemptId,
    pub(crate) key_groups: u16,
    pub(crate) clock: SharedClock,
    pub(crate) cancel: Cancel,
    /// Set when the task has a thread.
    pub(crate) waker: TaskWaker,
    /// Of the pool for asynchronous calls.
    pub(crate) async_threads: usize,
    pub(crate) stats: Arc<TaskStats>,
    pub(crate) state: Arc<TaskState>,
}

impl TaskContext {
    /// The same task as seen by one of its operators.
    pub(crate) fn of(&self, uid: &OperatorUid) -> OperatorContext {
        OperatorContext { uid: uid.clone(), task: self.clone() }
    }
}

/// What an operator, source or sink is told when it opens. It may be kept: it is cheap to clone.
///
/// ```
/// let cx = weir_engine::testkit::context("enrich", 1, 2);
/// assert_eq!((cx.uid().as_str(), cx.subtask(), cx.parallelism()), ("enrich", 1, 2));
/// assert_eq!(cx.own_key_groups(), 64..128);
/// assert!(cx.wait(std::time::Duration::from_millis(1)).is_ok() && !cx.is_cancelled());
/// ```
#[derive(Clone)]
pub struct OperatorContext {
    uid: OperatorUid,
    task: TaskContext,
}

impl OperatorContext {
    /// The operator's uid.
    pub fn uid(&self) -> &OperatorUid {
        &self.uid
    }

    /// The task it runs in.
    pub fn task(&self) -> &TaskId {
        &self.task.task
    }

    /// Which of the operator's subtasks this is, from 0.
    pub fn subtask(&self) -> usize {
        self.task.task.subtask
    }

    /// How many subtasks the operator has.
    pub fn parallelism(&self) -> usize {
        self.task.parallelism
    }

    /// The life of the job that this task belongs to.
    pub fn attempt(&self) -> AttemptId {
        self.task.attempt
    }

    /// How many key groups the job has in all.
    pub fn key_groups(&self) -> u16 {
        self.task.key_groups
    }

    /// The key groups whose records come to this subtask after a `key_by`.
    pub fn own_key_groups(&self) -> Range<u16> {
        weir_state::key_groups_of(self.subtask(), self.parallelism(), self.task.key_groups)
    }

    /// The clock that processing time comes from.
    pub fn clock(&self) -> &SharedClock {
        &self.task.clock
    }

    /// A counter shown as the metric `weir_<name>_total` with this operator's uid; in one subtask the same name gives the
    /// same counter. Takes a lock: to be called in `open`, not per record.
    pub fn counter(&self, name: &'static str) -> Counter {
        self.task.stats.counter(&self.uid, name)
    }

    /// Where the operator's keyed state lies: one store per operator and subtask. The first call, to be made in `open`, reads
    /// back what the checkpoint holds of the key groups that are now this subtask's.
    ///
    /// *Blocking*: while it does.
    ///
    /// # Errors
    /// When the store cannot be opened, or a file of the checkpoint is missing or damaged: it is named.
    pub fn store(&self) -> Result<Store> {
        self.task.state.store(&self.uid)
    }

    /// True when the job takes checkpoints, so that its next life may go back to the last complete one.
    pub fn takes_checkpoints(&self) -> bool {
        self.task.state.takes_checkpoints()
    }

    /// What the job's memory is planned to be, and where an operator says what it takes of it
    /// ([`MemoryBudget::meter`]).
    pub fn memory(&self) -> &MemoryBudget {
        self.task.state.memory()
    }

    /// True when this life of the job began from a checkpoint or savepoint.
    pub fn is_restored(&self) -> bool {
        self.task.state.is_restored()
    }

    /// What all subtasks of this operator, of however many there were, put under `list` into the checkpoint that this life
    /// began from (a source's positions are under `positions`); nothing when it began anew.
    pub fn restored(&self, list: &str) -> Vec<RestoredItem> {
        self.task.state.restored(&self.uid, list, |_| true)
    }

    /// As [`restored`](Self::restored), of those subtasks alone that had key groups which this one has now: at an unchanged
    /// parallelism, of the one that this one takes over from. Of all of them when no key group tells, as in a subtask without any.
    pub fn restored_of_own_keys(&self, list: &str) -> Vec<RestoredItem> {
        let own = self.own_key_groups();
        let shared = |of: &Range<u16>| of.start.max(own.start) < of.end.min(own.end);
        let of_own = self.task.state.restored(&self.uid, list, shared);
        if of_own.is_empty() { self.restored(list) } else { of_own }
    }

    /// What wakes this task from another thread.
    pub fn waker(&self) -> TaskWaker {
        self.task.waker.clone()
    }

    pub(crate) fn async_threads(&self) -> usize {
        self.task.async_threads
    }

    /// True once the attempt has been cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.task.cancel.is_cancelled()
    }

    /// An error once the attempt has been cancelled, for code that works long in one call, such as firing a million windows:
    /// it asks about once per thousand results. Costs about as much as a lock that nobody holds.
    ///
    /// # Errors
    /// When the attempt is cancelled: pass the error on.
    ///
    /// ```
    /// let cx = weir_engine::testkit::context("enrich", 0, 1);
    /// assert!(cx.not_cancelled().is_ok());
    /// ```
    pub fn not_cancelled(&self) -> Result<()> {
        if self.is_cancelled() { Err(TaskError::cancelled()) } else { Ok(()) }
    }

    /// Waits for `time` to pass, by the machine's clock, whatever the job's.
    ///
    /// *Blocking*: up to `time`; counted as backpressure, since what an operator waits for is downstream of it.
    ///
    /// # Errors
    /// At once when the attempt is cancelled: pass the error on.
    pub fn wait(&self, time: Duration) -> Result<()> {
        let _blocked = self.task.stats.blocked(&self.uid);
        self.task.cancel.wait(time)
    }

    pub(crate) fn task_context(&self) -> &TaskContext {
        &self.task
    }
}

impl std::fmt::Debug for OperatorContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OperatorContext({} in {})", self.uid, self.task.task)
    }
}
