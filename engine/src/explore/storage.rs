//! The threads behind a job's checkpoints, as one that does what is at hand in any order that is allowed, and fails.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use super::outside::{Manifest, Outside, Part, Parts};
use super::pick;
use super::shell::{Event, Mail, Pick, Published};
use super::world::Faults;
use crate::checkpoint::{SnapshotOf, SnapshotWriter, TaskSnapshot};
use crate::element::Barrier;
use crate::ids::{AttemptId, CheckpointId};
use crate::runtime::channel::{Bell, Ringer, bell, cancellation};
use crate::runtime::latch::Latch;
use crate::runtime::sync::{Mutex, MutexGuard};

/// What the storage has to do.
#[derive(Debug)]
pub(super) enum Work {
    /// Write what a task froze into local files.
    Write(AttemptId, usize, Barrier, Parts),
    Upload(AttemptId, usize, CheckpointId, Parts),
    UploadLast(AttemptId, usize, CheckpointId),
    Publish(AttemptId, Manifest),
    /// Say when nothing is being published.
    Settle(Arc<Latch<()>>),
    Close,
}

/// Which checkpoints take uploads: one, and a savepoint beside it.
#[derive(Debug, Default)]
pub(super) struct Door {
    open: BTreeSet<CheckpointId>,
    given_up: BTreeSet<CheckpointId>,
    /// This one and those before it are over.
    over: Option<CheckpointId>,
}

impl Door {
    pub(super) fn open(&mut self, id: CheckpointId) {
        assert!(!self.is_over(id), "checkpoint {id} is opened after it was given up");
        self.open.insert(id);
    }

    /// The life is over, and with it every checkpoint up to this one.
    pub(super) fn close(&mut self, id: CheckpointId) {
        self.open.clear();
        self.given_up.clear();
        self.over = self.over.max(Some(id));
    }

    pub(super) fn give_up(&mut self, id: CheckpointId) {
        self.open.remove(&id);
        self.given_up.insert(id);
    }

    fn is_over(&self, id: CheckpointId) -> bool {
        Some(id) <= self.over || self.given_up.contains(&id)
    }

    /// Whether the checkpoint takes uploads; one that was given up does not.
    ///
    /// # Panics
    /// When it does not take them yet: nobody would ask again.
    fn admits(&self, id: CheckpointId) -> bool {
        let open = self.open.contains(&id);
        assert!(open || self.is_over(id), "checkpoint {id} is uploaded to before it is open");
        open
    }
}

/// What is to be done, and what is written down on this machine.
#[derive(Debug, Default)]
pub(super) struct Shelves {
    pub(super) todo: Vec<Work>,
    last: BTreeMap<(AttemptId, usize), Parts>,
}

impl Shelves {
    /// What may be done next, by its place.
    pub(super) fn ready(&self) -> Vec<usize> {
        (0..self.todo.len()).filter(|&i| self.may_be_done(i)).collect()
    }

    /// Snapshots of one task are written one after the other; nothing is settled while something is being published.
    fn may_be_done(&self, i: usize) -> bool {
        match &self.todo[i] {
            Work::Write(attempt, index, ..) => {
                let same = |w: &Work| matches!(w, Work::Write(a, n, ..) if (a, n) == (attempt, index));
                !self.todo[..i].iter().any(same)
            }
            Work::Settle(_) => !self.todo.iter().any(|w| matches!(w, Work::Publish(..))),
            Work::Close => self.todo.len() == 1,
            _ => true,
        }
    }

    /// Does it; the answer is for the coordinator.
    pub(super) fn work(
        &mut self,
        i: usize,
        door: &Door,
        outside: &Outside,
        mut fails: impl FnMut(u64) -> bool,
        pick: Pick<'_>,
    ) -> Option<Mail> {
        match self.todo.remove(i) {
            Work::Close => None,
            Work::Settle(latch) => {
                latch.open(());
                None
            }
            Work::Write(attempt, index, barrier, _) if fails(10) => {
                Some((attempt, Event::Failed(index, barrier)))
            }
            Work::Write(attempt, index, Barrier::LAST, parts) => {
                self.last.insert((attempt, index), parts);
                Some((attempt, Event::WrittenLast(index)))
            }
            Work::Write(attempt, index, barrier, parts) => {
                self.todo.push(Work::Upload(attempt, index, barrier.checkpoint, parts));
                None
            }
            Work::UploadLast(attempt, index, id) => {
                let parts = self.last.get(&(attempt, index)).cloned().expect("it was written when it ended");
                self.todo.push(Work::Upload(attempt, index, id, parts));
                None
            }
            Work::Upload(attempt, index, id, _) if !door.admits(id) || fails(10) => {
                Some((attempt, Event::Failed(index, Barrier { checkpoint: id })))
            }
            Work::Upload(attempt, index, id, parts) => Some((attempt, Event::Written(index, id, parts))),
            Work::Publish(attempt, manifest) => {
                let id = manifest.id;
                let outcome = match fails(6) {
                    false => Published::Done,
                    true if pick(4) == 0 => Published::Fenced,
                    true if pick(2) == 0 => Published::Failed,
                    true => Published::Unsure,
                };
                if outcome == Published::Done || (outcome == Published::Unsure && pick(2) == 0) {
                    outside.publish(manifest);
                }
                Some((attempt, Event::Published(id, outcome)))
            }
        }
    }
}

/// A queue that wakes its only reader.
pub(super) struct Inbox<T> {
    queue: Mutex<VecDeque<T>>,
    ringer: Ringer,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> (Arc<Self>, Bell) {
        let (ringer, bell) = bell();
        (Arc::new(Inbox { queue: Mutex::new(VecDeque::new()), ringer }), bell)
    }

    pub(super) fn put(&self, item: T) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(item);
        self.ringer.ring();
    }

    pub(super) fn take(&self) -> Option<T> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// The storage as a thread.
pub(super) struct Storage {
    pub(super) work: Arc<Inbox<Work>>,
    door: Mutex<Door>,
}

impl Storage {
    pub(super) fn new(work: Arc<Inbox<Work>>) -> Arc<Self> {
        Arc::new(Storage { work, door: Mutex::default() })
    }

    pub(super) fn door(&self) -> MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn run(&self, bell: &Bell, mail: &Inbox<Mail>, outside: &Outside, faults: &Faults) {
        let (_alive, never) = cancellation();
        let mut shelves = Shelves::default();
        loop {
            shelves.todo.extend(std::iter::from_fn(|| self.work.take()));
            let ready = shelves.ready();
            if ready.is_empty() {
                bell.wait(None, &never).expect("nobody cancels the storage");
                continue;
            }
            let next = ready[pick(ready.len() as u64) as usize];
            if matches!(shelves.todo[next], Work::Close) {
                return;
            }
            let fails = |one_in| faults.strike(one_in);
            let answer = shelves.work(next, &self.door(), outside, fails, &mut pick);
            answer.into_iter().for_each(|m| mail.put(m));
        }
    }
}

/// Takes snapshots off the hands of task threads.
pub(super) struct Writer {
    pub(super) attempt: AttemptId,
    pub(super) storage: Arc<Storage>,
    pub(super) mail: Arc<Inbox<Mail>>,
}

impl SnapshotWriter for Writer {
    fn submit(&self, snapshot: TaskSnapshot, _: Vec<PathBuf>, _: u16) {
        let TaskSnapshot { task, index, barrier, operators, .. } = snapshot;
        self.mail.put((self.attempt, Event::Froze(index, barrier)));
        let part =
            |of: SnapshotOf| Part { uid: of.uid, subtask: task.subtask, items: of.frozen.into_items() };
        let parts = Arc::new(operators.into_iter().map(part).collect());
        self.storage.work.put(Work::Write(self.attempt, index, barrier, parts));
    }

    fn submit_last(&self, _: usize, _: CheckpointId) {
        unreachable!("the coordinator of a scenario asks the storage itself");
    }
}
