//! Writes what a task froze: into its stores, out to storage, off the task's thread.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use weir_state::checkpoint::UploadReport;
use weir_state::key_groups_of;
use weir_state::store::{LocalPart, PartFormat, Snapshot, Store};

use super::cuts::remove_all;
use super::env::RESTORED;
use super::storage::{Storage, chain};
use crate::element::Barrier;
use crate::ids::{CheckpointId, OperatorUid, TaskId};

/// What one operator of a task froze, and the store it goes through, if it has one.
pub(crate) struct SnapshotOf {
    pub(crate) uid: OperatorUid,
    pub(crate) store: Option<Store>,
    pub(crate) frozen: Snapshot,
}

/// When a task froze.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Froze {
    /// The barrier came on the first input; in a source, it was taken up.
    pub(crate) came: Instant,
    /// The data loop stood still.
    pub(crate) began: Instant,
    /// The last operator had set aside what it remembers.
    pub(crate) ended: Instant,
}

/// What one task froze at a barrier.
pub(crate) struct TaskSnapshot {
    pub(crate) task: TaskId,
    pub(crate) index: usize,
    pub(crate) parallelism: usize,
    pub(crate) barrier: Barrier,
    pub(crate) froze: Froze,
    pub(crate) operators: Vec<SnapshotOf>,
}

/// One operator's part of one task, durable.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) uid: OperatorUid,
    pub(crate) parallelism: usize,
    /// From when the task froze until its store had it, local files and all.
    pub(crate) written: Duration,
    pub(crate) report: UploadReport,
}

/// What the coordinator hears of a task's snapshot.
#[derive(Debug)]
pub(crate) enum SnapshotNews {
    Froze {
        index: usize,
        barrier: Barrier,
        froze: Froze,
    },
    Written {
        index: usize,
        id: CheckpointId,
        parts: Vec<Written>,
    },
    /// The task has ended, and what it remembers is written down on this machine.
    WrittenLast {
        index: usize,
    },
    Failed {
        index: usize,
        barrier: Barrier,
        reason: String,
    },
}

/// Takes snapshots off the hands of task threads.
pub(crate) trait SnapshotWriter: Send + Sync {
    /// `folders` are the local ones of the operators, in their order. Does not wait.
    fn submit(&self, snapshot: TaskSnapshot, folders: Vec<PathBuf>, key_groups: u16);
    /// Uploads what a task that has ended wrote down, as its part of checkpoint `id`. Does not wait.
    fn submit_last(&self, index: usize, id: CheckpointId);
}

/// One operator's part of one task, in local files.
#[derive(Clone)]
struct Local {
    uid: OperatorUid,
    parallelism: usize,
    part: LocalPart,
    written: Duration,
}

type Tell = Arc<dyn Fn(SnapshotNews) + Send + Sync>;

/// The writer of one attempt.
pub(crate) struct AttemptWriter {
    storage: Arc<Storage>,
    tell: Tell,
    /// By task: what it wrote when it ended.
    last: Arc<Mutex<HashMap<usize, Vec<Local>>>>,
    /// By task: ends when what it submitted last is written. Its snapshots are written one after the other, in the order in which it
    /// froze them: an older one that is written behind a newer one would have in its files what came after its barrier.
    turns: Mutex<HashMap<usize, oneshot::Receiver<()>>>,
}

impl AttemptWriter {
    pub(crate) fn new(storage: Arc<Storage>, tell: Tell) -> Arc<Self> {
        Arc::new(AttemptWriter { storage, tell, last: Arc::default(), turns: Mutex::default() })
    }

    /// The end of the turn before, and of this one. Whoever asks first has the first turn.
    fn turn(&self, index: usize) -> (Option<oneshot::Receiver<()>>, oneshot::Sender<()>) {
        let (end, ended) = oneshot::channel();
        (self.turns.lock().unwrap_or_else(PoisonError::into_inner).insert(index, ended), end)
    }
}

impl SnapshotWriter for AttemptWriter {
    fn submit(&self, snapshot: TaskSnapshot, folders: Vec<PathBuf>, key_groups: u16) {
        let (storage, tell, last) = (self.storage.clone(), self.tell.clone(), self.last.clone());
        let (before, end) = self.turn(snapshot.index);
        let (index, barrier, froze) = (snapshot.index, snapshot.barrier, snapshot.froze);
        let cuts: Vec<PathBuf> = folders.iter().map(|f| cut_folder(f, barrier.checkpoint)).collect();
        tell(SnapshotNews::Froze { index, barrier, froze });
        self.storage.spawn(async move {
            let own = storage.clone();
            if let Some(before) = before {
                // An end without a word is one, too.
                let _ = before.await;
            }
            let written = storage.write(move || write(&own, snapshot, folders, key_groups)).await;
            // Only writing takes turns: an upload that hangs must not keep the next snapshot in memory.
            drop(end);
            let news = match written {
                Err(reason) => SnapshotNews::Failed { index, barrier, reason },
                Ok(locals) if barrier == Barrier::LAST => {
                    last.lock().unwrap_or_else(PoisonError::into_inner).insert(index, locals);
                    SnapshotNews::WrittenLast { index }
                }
                Ok(locals) => upload(&storage, locals, index, barrier).await,
            };
            if matches!(news, SnapshotNews::Failed { .. }) {
                // It may have been written after the checkpoint was given up: nobody else knows of these files then. And the last
                // one is written again, in the same place.
                let removed = storage.write(move || {
                    remove_all(cuts);
                    Ok(())
                });
                drop(removed.await);
            }
            tell(news);
        });
    }

    fn submit_last(&self, index: usize, id: CheckpointId) {
        let locals = self.last.lock().unwrap_or_else(PoisonError::into_inner).get(&index).cloned();
        let (storage, tell) = (self.storage.clone(), self.tell.clone());
        self.storage.spawn(async move {
            let barrier = Barrier { checkpoint: id };
            tell(upload(&storage, locals.unwrap_or_default(), index, barrier).await);
        });
    }
}

/// Writes what was frozen into the stores, and these into local files.
fn write(
    storage: &Storage,
    snapshot: TaskSnapshot,
    folders: Vec<PathBuf>,
    groups: u16,
) -> Result<Vec<Local>, String> {
    let TaskSnapshot { task, parallelism, barrier, froze, operators, .. } = snapshot;
    fail::fail_point!("snapshot::before_write", |_| Err("fail point snapshot::before_write".to_owned()));
    let portable = storage.is_savepoint(barrier.checkpoint);
    let mut locals = Vec::with_capacity(operators.len());
    for (SnapshotOf { uid, store, frozen }, folder) in operators.into_iter().zip(folders) {
        // One that was given up must not hold up those behind it.
        if barrier != Barrier::LAST && !storage.in_the_making().contains(&barrier.checkpoint) {
            return Err(format!("checkpoint {} is over", barrier.checkpoint));
        }
        let part = match store {
            None => LocalPart {
                subtask: task.subtask,
                key_groups: key_groups_of(task.subtask, parallelism, groups),
                format: PartFormat::Portable,
                tables: Vec::new(),
                items: frozen.into_items(),
                files: Vec::new(),
            },
            Some(store) => {
                let cut = cut_folder(&folder, barrier.checkpoint);
                forget_older_cuts(&folder, storage.completed(), &storage.in_the_making());
                let written = if portable {
                    portable_part(&store, frozen, &cut)
                } else {
                    store.write_out(frozen, &cut).map_err(|e| chain(&e))
                };
                written.map_err(|e| {
                    let uid = uid.as_str();
                    format!("operator {uid:?} subtask {} could not write its state: {e}", task.subtask)
                })?
            }
        };
        locals.push(Local { uid, parallelism, part, written: froze.ended.elapsed() });
    }
    fail::fail_point!("snapshot::after_write", |_| Err("fail point snapshot::after_write".to_owned()));
    Ok(locals)
}

fn portable_part(store: &Store, frozen: Snapshot, cut: &Path) -> Result<LocalPart, String> {
    fs::create_dir_all(cut).map_err(|e| format!("cannot create {}: {e}", cut.display()))?;
    store.write_portable(frozen, &cut.join("state.weir")).map_err(|e| chain(&e))
}

async fn upload(storage: &Arc<Storage>, locals: Vec<Local>, index: usize, barrier: Barrier) -> SnapshotNews {
    let id = barrier.checkpoint;
    let mut parts = Vec::with_capacity(locals.len());
    for Local { uid, parallelism, part, written } in locals {
        let subtask = part.subtask;
        match storage.upload(uid.as_str(), part, id).await {
            Ok(report) => parts.push(Written { uid, parallelism, written, report }),
            Err(e) => {
                let uid = uid.as_str();
                let reason = format!("operator {uid:?} subtask {subtask} could not upload its state: {e}");
                return SnapshotNews::Failed { index, barrier, reason };
            }
        }
    }
    SnapshotNews::Written { index, id, parts }
}

const CUT: &str = "cut-";

/// Where the files of a store as of a checkpoint lie.
pub(super) fn cut_folder(folder: &Path, checkpoint: CheckpointId) -> PathBuf {
    folder.join(format!("{CUT}{checkpoint}"))
}

/// The newest complete one stays: a restart on this machine takes its files instead of downloading them. What the store was
/// restored from is in that, as far as it is still of use. Those in the making are being read.
fn forget_older_cuts(folder: &Path, completed: Option<CheckpointId>, making: &[CheckpointId]) {
    let Some(completed) = completed else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let id = name.strip_prefix(CUT).and_then(|id| id.parse::<u64>().ok());
        let is_old = |id: u64| id < completed.0 && !making.contains(&CheckpointId(id));
        if id.is_some_and(is_old) || name.starts_with(RESTORED) {
            // What cannot be removed now is found again at the next checkpoint.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
