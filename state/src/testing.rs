//! What the tests of stores and maps share: configurations, parts, and a backend that counts what is written to it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::backend::{BackendKind, LocalFile, Resources, StateBackend, Usage, Visit, WriteBatch};
use crate::error::StateError;
use crate::store::{Frozen, LocalPart, RestoredPart, Snapshot, Store, StoreConfig};

pub(crate) const KINDS: [BackendKind; 2] = [BackendKind::Memory, BackendKind::Rocks];

/// A job's state in a temporary folder, over its attempts.
pub(crate) struct Bench {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) backend: BackendKind,
    pub(crate) cache_bytes: usize,
    pub(crate) wall_ms: Arc<AtomicI64>,
    resources: Resources,
    names: usize,
}

impl Bench {
    pub(crate) fn new(backend: BackendKind, cache_bytes: usize) -> Self {
        Bench {
            folder: tempfile::tempdir().unwrap(),
            backend,
            cache_bytes,
            wall_ms: Arc::new(AtomicI64::new(1_000)),
            resources: Resources::new(4 << 20, 4 << 20),
            names: 0,
        }
    }

    /// A path that nothing is at.
    pub(crate) fn path(&mut self) -> PathBuf {
        self.names += 1;
        self.folder.path().join(self.names.to_string())
    }

    /// The store of a subtask of operator "totals" with these of eight groups.
    pub(crate) fn store(&mut self, groups: Range<u16>, restored: &[LocalPart]) -> Store {
        self.try_store(groups, restored).unwrap()
    }

    pub(crate) fn try_store(
        &mut self,
        groups: Range<u16>,
        restored: &[LocalPart],
    ) -> Result<Store, StateError> {
        let clock = self.wall_ms.clone();
        let config = StoreConfig {
            uid: "totals".to_owned(),
            subtask: usize::from(groups.start),
            key_groups: groups,
            groups: 8,
            backend: self.backend,
            folder: self.path(),
            resources: self.resources.clone(),
            cache_bytes: self.cache_bytes,
            wall_ms: Arc::new(move || clock.load(Ordering::Relaxed)),
        };
        Store::open(config, restored.iter().cloned().map(fetched).collect())
    }

    pub(crate) fn write_out(&mut self, store: &Store, snapshot: Snapshot) -> LocalPart {
        store.write_out(snapshot, &self.path()).unwrap()
    }

    pub(crate) fn savepoint(&mut self, store: &Store, snapshot: Snapshot) -> LocalPart {
        let folder = self.path();
        std::fs::create_dir(&folder).unwrap();
        store.write_portable(snapshot, &folder.join("state.kv")).unwrap()
    }

    /// Writes all of a snapshot and then fails.
    pub(crate) fn fail(&mut self, store: &Store, mut snapshot: Snapshot) {
        struct Fails;
        impl Frozen for Fails {
            fn write(
                &mut self,
                _: &mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
            ) -> Result<(), StateError> {
                Err(StateError::Cancelled { uid: "totals".to_owned() })
            }
            fn settled(self: Box<Self>, written: bool) {
                assert!(!written);
            }
        }
        snapshot.add(Box::new(Fails));
        store.write_out(snapshot, &self.path()).unwrap_err();
    }
}

/// A backend that takes no writes while told so, as one does whose disk is full.
#[derive(Debug)]
pub(crate) struct Refusing {
    pub(crate) below: Arc<dyn StateBackend>,
    pub(crate) refuses: Arc<AtomicBool>,
}

impl StateBackend for Refusing {
    fn get(&self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, StateError> {
        self.below.get(key, into)
    }
    fn get_many(&self, keys: &[Vec<u8>], found: &mut dyn FnMut(usize, &[u8])) -> Result<(), StateError> {
        self.below.get_many(keys, found)
    }
    fn write(&self, batch: &WriteBatch) -> Result<(), StateError> {
        if self.refuses.load(Ordering::Relaxed) {
            let source = "no space left on device".into();
            return Err(StateError::Backend { doing: "write", folder: PathBuf::new(), source });
        }
        self.below.write(batch)
    }
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StateError> {
        self.below.scan(from, to, visit)
    }
    fn freeze(&self, folder: &Path) -> Result<Vec<LocalFile>, StateError> {
        self.below.freeze(folder)
    }
    fn usage(&self) -> Usage {
        self.below.usage()
    }
    fn levels(&self) -> Result<BTreeMap<String, u32>, StateError> {
        self.below.levels()
    }
}

/// A part as another machine would have it.
pub(crate) fn fetched(part: LocalPart) -> RestoredPart {
    let LocalPart { subtask, key_groups, format, tables, items, files } = part;
    let folder = files.first().map_or(PathBuf::new(), |f| f.path.parent().map(Path::to_owned).unwrap());
    RestoredPart { subtask, key_groups, format, folder, tables, items }
}
