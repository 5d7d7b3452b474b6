//! What one attempt gives its tasks to remember with: where stores open, what they are restored from, who writes snapshots.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_state::backend::Resources;
use weir_state::checkpoint::{Manifest, Part};
use weir_state::key_groups_of;
use weir_state::store::{RestoredPart, Store, StoreConfig};

use super::config::StateBackend;
use super::storage::Storage;
use super::waits::Waits;
use super::writer::{SnapshotWriter, TaskSnapshot};
use crate::error::{Result, TaskError};
use crate::ids::{AttemptId, CheckpointId, OperatorUid};
use crate::memory::MemoryBudget;
use crate::task_state::RestoredItem;
use crate::time::SharedClock;

/// What an attempt begins from.
#[derive(Clone)]
pub(crate) enum RestoreFrom {
    Nothing,
    /// A manifest, and the storage that has its files.
    Checkpoint(Arc<Manifest>, Arc<Storage>),
    /// Parts that lie in local folders: for tests of one operator.
    #[cfg(any(test, feature = "testkit"))]
    Local(Arc<Vec<(OperatorUid, RestoredPart)>>),
}

pub(crate) struct StateEnv {
    pub(crate) attempt: AttemptId,
    pub(crate) key_groups: u16,
    pub(crate) backend: StateBackend,
    /// The local folders of this attempt, one on each disk.
    pub(crate) folders: Vec<PathBuf>,
    pub(crate) resources: Resources,
    pub(crate) memory: MemoryBudget,
    /// For each store.
    pub(crate) cache_bytes: usize,
    pub(crate) clock: SharedClock,
    pub(crate) from: RestoreFrom,
    pub(crate) drop_state: Vec<String>,
    pub(crate) writer: Option<Arc<dyn SnapshotWriter>>,
    /// Of the tasks of the attempt, for their stores.
    pub(crate) waits: Arc<Waits>,
}

/// A name that is safe as a folder: what is not a letter, a digit or a dash is written as its code.
pub(crate) fn folder_name(name: &str) -> String {
    let mut safe = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' => safe.push(c),
            c => safe.push_str(&format!("_{:x}_", u32::from(c))),
        }
    }
    safe
}

/// What the folders of files begin with that a store was restored from.
pub(super) const RESTORED: &str = "restored-";

/// What the folders of lives begin with.
pub(super) const LIFE: &str = "life-";

/// The folder of one life of a job, in each of the job's.
pub(crate) fn life_folder(epoch: u64, attempt: AttemptId) -> String {
    format!("{LIFE}{epoch}.{attempt}")
}

/// Whether that is the folder of a life before `own`.
pub(super) fn is_past_life(name: &str, own: &str) -> bool {
    let life = |name: &str| {
        let (epoch, attempt) = name.strip_prefix(LIFE)?.split_once('.')?;
        Some((epoch.parse::<u64>().ok()?, attempt.parse::<u32>().ok()?))
    };
    life(name).zip(life(own)).is_some_and(|(of, own)| of < own)
}

/// The local folders of a job, one on each disk. Unless the user named some, one that no other job of this machine has:
/// by where its checkpoints go, or by this process.
pub(crate) fn job_folders(backend: &StateBackend, job: &str, checkpoints: Option<&str>) -> Vec<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if !backend.folders.is_empty() {
        return backend.folders.iter().map(|f| f.join(folder_name(job))).collect();
    }
    let whose = match checkpoints {
        Some(url) => format!("{:016x}", weir_state::key_hash(url).0),
        None => format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)),
    };
    vec![std::env::temp_dir().join("weir").join(format!("{}-{whose}", folder_name(job)))]
}

impl StateEnv {
    /// For one operator without a job: state in memory.
    #[cfg(any(test, feature = "testkit"))]
    pub(crate) fn in_memory(from: RestoreFrom) -> Self {
        StateEnv {
            attempt: AttemptId::FIRST,
            key_groups: weir_state::KEY_GROUPS,
            backend: StateBackend::memory(),
            folders: vec![std::env::temp_dir()],
            resources: Resources::default(),
            memory: MemoryBudget::unplanned(),
            cache_bytes: usize::MAX,
            clock: crate::time::SystemClock::shared(),
            from,
            drop_state: Vec::new(),
            writer: None,
            waits: Arc::default(),
        }
    }

    pub(crate) fn takes_checkpoints(&self) -> bool {
        self.writer.is_some()
    }

    pub(crate) fn is_restored(&self) -> bool {
        !matches!(self.from, RestoreFrom::Nothing)
    }

    pub(crate) fn restored_from(&self) -> Option<CheckpointId> {
        match &self.from {
            RestoreFrom::Checkpoint(manifest, _) => Some(CheckpointId(manifest.id)),
            _ => None,
        }
    }

    fn parts(&self, uid: &OperatorUid) -> &[Part] {
        match &self.from {
            RestoreFrom::Checkpoint(manifest, _) => {
                let of = manifest.operators.iter().find(|o| o.uid == uid.as_str());
                of.map_or(&[], |o| &o.parts)
            }
            _ => &[],
        }
    }

    /// What the subtasks had under `list` of which `which` is true, given their key groups.
    pub(crate) fn restored(
        &self,
        uid: &OperatorUid,
        list: &str,
        which: impl Fn(&Range<u16>) -> bool,
    ) -> Vec<RestoredItem> {
        let items = |subtask: usize, groups: &Range<u16>, items: &weir_state::store::Items| {
            let list = which(groups).then(|| items.get(list).cloned().unwrap_or_default());
            let list = list.unwrap_or_default();
            list.into_iter().map(move |(key, value)| RestoredItem { subtask, key, value })
        };
        match &self.from {
            #[cfg(any(test, feature = "testkit"))]
            RestoreFrom::Local(parts) => {
                let own = parts.iter().filter(|(of, _)| of == uid);
                own.flat_map(|(_, part)| items(part.subtask, &part.key_groups, &part.items)).collect()
            }
            _ => {
                let parts = self.parts(uid).iter();
                parts.flat_map(|part| items(part.subtask, &part.key_groups, &part.items)).collect()
            }
        }
    }

    /// The folder of one operator and subtask; subtasks take turns among the disks.
    pub(crate) fn folder(&self, uid: &OperatorUid, subtask: usize) -> PathBuf {
        let base = &self.folders[subtask % self.folders.len().max(1)];
        base.join(format!("{}-{subtask}", folder_name(uid.as_str())))
    }

    /// Opens a store and reads back what the checkpoint holds of the subtask's key groups.
    pub(crate) fn open_store(&self, uid: &OperatorUid, subtask: usize, parallelism: usize) -> Result<Store> {
        fail::fail_point!("restore::before_open", |_| Err(TaskError::internal(
            "fail point restore::before_open"
        )));
        let key_groups = key_groups_of(subtask, parallelism, self.key_groups);
        let folder = self.folder(uid, subtask);
        let overlaps = |other: &Range<u16>| other.start < key_groups.end && key_groups.start < other.end;
        let restored: Vec<RestoredPart> = match &self.from {
            RestoreFrom::Nothing => Vec::new(),
            #[cfg(any(test, feature = "testkit"))]
            RestoreFrom::Local(parts) => {
                (parts.iter()).filter(|(of, _)| of == uid).map(|(_, part)| part.clone()).collect()
            }
            RestoreFrom::Checkpoint(_, storage) => {
                let all = self.parts(uid).iter().map(|part| {
                    let into = folder.join(format!("{RESTORED}{}", part.subtask));
                    // Files of other subtasks' key groups stay where they are.
                    if overlaps(&part.key_groups) && !part.files.is_empty() {
                        storage.download(uid.as_str(), part, &into, &self.waits)?;
                    }
                    Ok(restored_part(part, into))
                });
                all.collect::<Result<_>>()?
            }
        };
        let clock = self.clock.clone();
        let config = StoreConfig {
            uid: uid.to_string(),
            subtask,
            key_groups,
            groups: self.key_groups,
            backend: self.backend.kind,
            folder: folder.join("db"),
            resources: self.resources.clone(),
            cache_bytes: self.cache_bytes,
            wall_ms: Arc::new(move || clock.now_ms()),
        };
        let store = Store::open(config, restored)?;
        self.waits.add(&store);
        Ok(store)
    }

    /// Whether the job was told that this table or list of the operator may go.
    pub(crate) fn may_drop(&self, uid: &OperatorUid, what: &str) -> bool {
        let named = format!("{uid}/{what}");
        self.drop_state.iter().any(|d| *d == named || d == uid.as_str())
    }

    /// Refuses what was restored and not asked for, unless it may go.
    pub(crate) fn settle_unclaimed(&self, uid: &OperatorUid, store: Option<&Store>) -> Result<()> {
        let unclaimed = match store {
            Some(store) => store.unclaimed(),
            None => {
                let mut tables: Vec<String> =
                    self.parts(uid).iter().flat_map(|p| &p.tables).map(|t| t.name.clone()).collect();
                tables.sort();
                tables.dedup();
                tables
            }
        };
        for table in unclaimed {
            if !self.may_drop(uid, &table) {
                let named = format!("{uid}/{table}");
                return Err(TaskError::user(format!(
                    "the checkpoint holds table {table:?} of this operator, which it does not use any more: give the table \
                     its old name, or say that it may go: drop_state({named:?})"
                )));
            }
            tracing::warn!(operator = %uid, %table, "restoring drops a table, as it was told to");
            if let Some(store) = store {
                store.drop_table(&table)?;
            }
        }
        Ok(())
    }

    pub(crate) fn submit(&self, snapshot: TaskSnapshot) {
        if let Some(writer) = &self.writer {
            let folders =
                (snapshot.operators.iter()).map(|o| self.folder(&o.uid, snapshot.task.subtask)).collect();
            writer.submit(snapshot, folders, self.key_groups);
        }
    }
}

fn restored_part(part: &Part, folder: PathBuf) -> RestoredPart {
    RestoredPart {
        subtask: part.subtask,
        key_groups: part.key_groups.clone(),
        format: part.format,
        folder,
        tables: part.tables.clone(),
        items: part.items.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_before_are_told_from_those_after() {
        let own = life_folder(9, AttemptId(10));
        for past in ["life-9.9", "life-8.11", "life-1.1"] {
            assert!(is_past_life(past, &own), "{past}");
        }
        for other in ["life-9.10", "life-9.11", "life-10.1", "life-", "life-9", "db", "life-x.y"] {
            assert!(!is_past_life(other, &own), "{other}");
        }
    }
}
