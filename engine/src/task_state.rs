//! What the operators of one task remember: their stores, what the last checkpoint restored, what they froze at a barrier.

use std::fmt;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weir_state::store::{Snapshot, Store};

use crate::checkpoint::{Froze, SnapshotOf, StateEnv, TaskSnapshot};
use crate::element::Barrier;
use crate::error::Result;
use crate::ids::{CheckpointId, OperatorUid, TaskId};
use crate::memory::{MemoryBudget, Metered, Share};
use crate::time::Watermark;

/// The list in a checkpoint that holds a source's positions.
pub(crate) const POSITIONS: &str = "positions";

/// A value that a subtask put into the checkpoint that this life began from.
///
/// ```
/// let cx = weir_engine::testkit::context("in", 0, 1);
/// assert!(!cx.is_restored() && cx.restored("positions").is_empty());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RestoredItem {
    /// The subtask that put it there, of however many there were.
    pub subtask: usize,
    /// Its key in the list.
    pub key: String,
    /// The value.
    pub value: serde_json::Value,
}

/// Shared by the operators of one task; only its thread touches it, and at most once per signal.
pub(crate) struct TaskState {
    task: TaskId,
    /// Index of the task in its attempt.
    index: usize,
    parallelism: usize,
    env: Arc<StateEnv>,
    stores: Mutex<Vec<(OperatorUid, Store)>>,
    /// What their caches take.
    metered: Mutex<Vec<Metered>>,
    frozen: Mutex<Vec<(OperatorUid, Snapshot)>>,
    /// At which barrier the task stands still, since when, and when the last of its operators had frozen.
    still: Mutex<Option<(CheckpointId, Instant, Instant)>>,
}

impl fmt::Debug for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskState({})", self.task)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TaskState {
    pub(crate) fn new(task: TaskId, index: usize, parallelism: usize, env: Arc<StateEnv>) -> Arc<Self> {
        Arc::new(TaskState {
            task,
            index,
            parallelism,
            env,
            stores: Mutex::default(),
            metered: Mutex::default(),
            frozen: Mutex::default(),
            still: Mutex::default(),
        })
    }

    pub(crate) fn memory(&self) -> &MemoryBudget {
        &self.env.memory
    }

    pub(crate) fn takes_checkpoints(&self) -> bool {
        self.env.takes_checkpoints()
    }

    pub(crate) fn is_restored(&self) -> bool {
        self.env.is_restored()
    }

    /// The checkpoint or savepoint of this job that this life began from.
    pub(crate) fn restored_from(&self) -> Option<CheckpointId> {
        self.env.restored_from()
    }

    pub(crate) fn restored(
        &self,
        uid: &OperatorUid,
        list: &str,
        which: impl Fn(&Range<u16>) -> bool,
    ) -> Vec<RestoredItem> {
        self.env.restored(uid, list, which)
    }

    /// The store of `uid`, opened at the first call: what it held at the checkpoint is read back then.
    pub(crate) fn store(&self, uid: &OperatorUid) -> Result<Store> {
        let mut stores = lock(&self.stores);
        if let Some((_, store)) = stores.iter().find(|(of, _)| of == uid) {
            return Ok(store.clone());
        }
        let store = self.env.open_store(uid, self.task.subtask, self.parallelism)?;
        let metered = self.env.memory.meter(Share::StateCaches, store.cache_meter());
        lock(&self.metered).push(metered);
        stores.push((uid.clone(), store.clone()));
        Ok(store)
    }

    /// `uid` has opened: whatever was restored for it and that it did not ask for would be lost without a word.
    pub(crate) fn opened(&self, uid: &OperatorUid) -> Result<()> {
        let store = lock(&self.stores).iter().find(|(of, _)| of == uid).map(|(_, s)| s.clone());
        self.env.settle_unclaimed(uid, store.as_ref())
    }

    /// Whether the job was told that what the checkpoint holds of `uid` under this name may go.
    pub(crate) fn may_drop(&self, uid: &OperatorUid, what: &str) -> bool {
        self.env.may_drop(uid, what)
    }

    /// `uid` has acted upon a watermark: from now on its states with a time to live go by it.
    pub(crate) fn watermark(&self, uid: &OperatorUid, w: Watermark) {
        if let Some((_, store)) = lock(&self.stores).iter().find(|(of, _)| of == uid) {
            store.event_time(w.0);
        }
    }

    /// A barrier has been taken up: until the chain has frozen the task does nothing else. The first call counts.
    pub(crate) fn stands_still(&self, barrier: Barrier) {
        let now = Instant::now();
        lock(&self.still).get_or_insert((barrier.checkpoint, now, now));
    }

    /// The checkpoint that an operator of the task takes its snapshot for, or has failed to.
    pub(crate) fn freezes_for(&self) -> Option<CheckpointId> {
        lock(&self.still).map(|(checkpoint, ..)| checkpoint)
    }

    /// What `uid` froze at the barrier at hand.
    pub(crate) fn froze(&self, uid: &OperatorUid, snapshot: Snapshot) {
        if let Some((.., until)) = &mut *lock(&self.still) {
            *until = Instant::now();
        }
        let mut frozen = lock(&self.frozen);
        match frozen.iter_mut().find(|(of, _)| of == uid) {
            Some((_, already)) => already.append(snapshot),
            None => frozen.push((uid.clone(), snapshot)),
        }
    }

    /// The whole chain has frozen: another thread writes it out. `came` is when the barrier first came on an input, if there are
    /// inputs.
    pub(crate) fn submit(&self, barrier: Barrier, came: Option<Instant>) {
        let (_, began, ended) = lock(&self.still).take().unwrap_or_else(|| {
            let now = Instant::now();
            (barrier.checkpoint, now, now)
        });
        let stores = lock(&self.stores);
        let of = |uid: &OperatorUid| stores.iter().find(|(of, _)| of == uid).map(|(_, s)| s.clone());
        let operators = (mem::take(&mut *lock(&self.frozen)).into_iter())
            .map(|(uid, frozen)| SnapshotOf { store: of(&uid), uid, frozen })
            .collect();
        self.env.submit(TaskSnapshot {
            task: self.task.clone(),
            index: self.index,
            parallelism: self.parallelism,
            barrier,
            froze: Froze { came: came.unwrap_or(began), began, ended },
            operators,
        });
    }
}
