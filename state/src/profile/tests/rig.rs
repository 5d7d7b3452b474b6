//! Writers of one space over stores, checkpointed and restored at any parallelism.

use super::super::*;
use crate::backend::{BackendKind, Resources, StateBackend, Write, WriteBatch};
use crate::error::StateError;
use crate::key::key_groups_of;
use crate::store::{self, Frozen, LocalPart, RestoredPart, Store, StoreConfig};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// One life of a job's profile: a store and a writer per subtask.
pub(super) struct Rig {
    pub(super) profiles: Profiles,
    pub(super) subtasks: Vec<(Store, Writer)>,
    folder: PathBuf,
    frozen: usize,
    /// Files of the last checkpoint that the one before did not have, in bytes.
    pub(super) new_bytes: u64,
    files: BTreeSet<String>,
}

/// Folders for rigs, deleted in the end.
pub(super) struct Folders {
    root: TempDir,
    lives: usize,
    backend: BackendKind,
}

impl Folders {
    pub(super) fn new() -> Self {
        Folders { root: TempDir::new().unwrap(), lives: 0, backend: BackendKind::Memory }
    }

    pub(super) fn of_rocks() -> Self {
        Folders { backend: BackendKind::Rocks, ..Self::new() }
    }

    fn next(&mut self) -> PathBuf {
        self.lives += 1;
        self.root.path().join(format!("life-{}", self.lives))
    }
}

pub(super) fn open_store(
    backend: BackendKind,
    folder: &Path,
    subtask: usize,
    of: usize,
    groups: u16,
    parts: &[RestoredPart],
) -> Store {
    let config = StoreConfig {
        uid: "profile".to_owned(),
        subtask,
        key_groups: key_groups_of(subtask, of, groups),
        groups,
        backend,
        folder: folder.join(format!("live-{subtask}")),
        resources: Resources::default(),
        cache_bytes: 1 << 20,
        wall_ms: Arc::new(|| 0),
    };
    Store::open(config, parts.to_vec()).unwrap()
}

impl Rig {
    pub(super) fn open(folders: &mut Folders, profiles: Profiles, of: usize, parts: &[RestoredPart]) -> Self {
        Self::try_open(folders, profiles, of, parts).unwrap()
    }

    pub(super) fn try_open(
        folders: &mut Folders,
        profiles: Profiles,
        of: usize,
        parts: &[RestoredPart],
    ) -> Result<Self, RestoreError> {
        let folder = folders.next();
        let subtasks = (0..of).map(|subtask| {
            let store = open_store(folders.backend, &folder, subtask, of, profiles.key_groups(), parts);
            let writer = profiles.restore_writer(&store, 1)?;
            Ok((store, writer))
        });
        let subtasks = subtasks.collect::<Result<_, RestoreError>>()?;
        Ok(Rig { subtasks, profiles, folder, frozen: 0, new_bytes: 0, files: BTreeSet::new() })
    }

    pub(super) fn apply(&mut self, update: &ProfileUpdate) {
        let (groups, of) = (self.profiles.key_groups(), self.subtasks.len());
        let subtask = update.user.key_hash().group(groups).subtask(groups, of);
        // An increment that overflows is refused, in every life alike.
        let _ = self.subtasks[subtask].1.apply(update.clone());
    }

    pub(super) fn publish(&mut self, watermark: i64) {
        self.subtasks.iter_mut().for_each(|(_, writer)| writer.publish(watermark));
    }

    /// What every subtask has at a barrier; the one named fails after some writes.
    pub(super) fn freeze(&mut self, failing: Option<(usize, usize)>) -> Vec<store::Snapshot> {
        let freeze = |(subtask, (_, writer)): (usize, &mut (Store, Writer))| {
            let mut snapshot = store::Snapshot::default();
            match failing {
                Some((at, after)) if at == subtask => {
                    snapshot.add(Box::new(Failing { piece: Box::new(writer.frozen().unwrap()), after }));
                }
                _ => writer.freeze(&mut snapshot).unwrap(),
            }
            snapshot
        };
        self.subtasks.iter_mut().enumerate().map(freeze).collect()
    }

    /// Writes snapshots out: the parts, if no subtask failed.
    pub(super) fn settle(&mut self, snapshots: Vec<store::Snapshot>) -> Option<Vec<RestoredPart>> {
        self.frozen += 1;
        std::fs::create_dir_all(&self.folder).unwrap();
        let (mut parts, mut files) = (Vec::new(), Vec::new());
        for (subtask, (snapshot, (store, _))) in snapshots.into_iter().zip(&self.subtasks).enumerate() {
            let folder = self.folder.join(format!("chk-{}-{subtask}", self.frozen));
            // All are written before one that failed counts.
            parts.push(store.write_out(snapshot, &folder).ok().map(|part| {
                files.extend(part.files.iter().map(|file| (format!("{subtask}/{}", file.name), file.bytes)));
                restored(part, folder)
            }));
        }
        let new = files.iter().filter(|(name, _)| !(name.ends_with(".sst") && self.files.contains(name)));
        self.new_bytes = new.map(|(_, bytes)| bytes).sum();
        self.files = files.into_iter().map(|(name, _)| name).collect();
        parts.into_iter().collect()
    }

    pub(super) fn checkpoint(&mut self) -> Vec<RestoredPart> {
        let snapshots = self.freeze(None);
        self.settle(snapshots).unwrap()
    }

    /// All keys and values of all stores.
    pub(super) fn bytes(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all = Vec::new();
        for (store, _) in &self.subtasks {
            let mut take = |key: &[u8], value: &[u8]| {
                all.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            };
            store.backend().scan(&[], &[], &mut take).unwrap();
        }
        all
    }

    /// What there is, published now.
    pub(super) fn seen(&mut self) -> Snapshot {
        self.publish(0);
        self.profiles.reader().snapshot()
    }
}

fn restored(part: LocalPart, folder: PathBuf) -> RestoredPart {
    let LocalPart { subtask, key_groups, format, tables, items, .. } = part;
    RestoredPart { subtask, key_groups, format, folder, tables, items }
}

/// Every user in ordinal order: by key group, then by first appearance.
pub(super) fn users(snapshot: &Snapshot) -> Vec<UserId> {
    snapshot.ids(&Predicate::all(), Page::first(usize::MAX)).unwrap().value
}

/// A piece whose writing breaks off after some entries.
struct Failing {
    piece: Box<dyn Frozen>,
    after: usize,
}

impl Frozen for Failing {
    fn write(
        &mut self,
        out: &mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let mut left = self.after;
        self.piece.write(&mut |batch| {
            let mut some = WriteBatch::default();
            for write in batch.iter().take(left) {
                if let Write::Put(key, value) = write {
                    some.put(key, value);
                }
            }
            left = left.saturating_sub(batch.len());
            out(&some)?;
            if left == 0 { Err(StateError::Cancelled { uid: "profile".to_owned() }) } else { Ok(()) }
        })?;
        Err(StateError::Cancelled { uid: "profile".to_owned() })
    }

    fn settled(self: Box<Self>, written: bool) {
        self.piece.settled(written);
    }
}

/// Counts what a piece writes: keys and bytes.
pub(super) fn written(writer: &Writer, backend: &dyn StateBackend) -> (Vec<Vec<u8>>, usize) {
    let mut piece = writer.frozen().unwrap();
    let (mut keys, mut bytes) = (Vec::new(), 0);
    let write = |batch: &WriteBatch| {
        for write in batch.iter() {
            let Write::Put(key, value) = write else { panic!("a profile only puts: {write:?}") };
            keys.push(key.to_vec());
            bytes += key.len() + value.len();
        }
        backend.write(batch)
    };
    piece.write(&mut { write }).unwrap();
    Box::new(piece).settled(true);
    (keys, bytes)
}
