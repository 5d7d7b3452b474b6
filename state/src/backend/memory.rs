//! The memory backend: a sorted map behind a lock. The model that other backends are tested against.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::ops::Bound;
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{Droppable, LocalFile, PortableWriter, StateBackend, Usage, Visit, Write, WriteBatch};
use crate::error::StateError;

/// The name of the one file it freezes to.
pub(crate) const FILE: &str = "state.kv";

/// Keeps everything in memory; freezes to one portable file with all of it.
pub struct MemoryBackend {
    held: RwLock<Held>,
    droppable: Droppable,
}

#[derive(Default)]
struct Held {
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: u64,
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryBackend({} keys)", self.read().map.len())
    }
}

impl MemoryBackend {
    /// An empty one. What `droppable` allows is dropped when it freezes.
    pub fn new(droppable: Droppable) -> Self {
        MemoryBackend { held: RwLock::default(), droppable }
    }

    // A panic of a writer leaves the map between two writes at worst, and the task that panicked is dropped unread.
    fn read(&self) -> RwLockReadGuard<'_, Held> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn locked(&self) -> RwLockWriteGuard<'_, Held> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn apply(&mut self, write: Write<'_>) {
        match write {
            Write::Put(key, value) => {
                self.bytes += value.len() as u64;
                match self.map.get_mut(key) {
                    Some(held) => {
                        self.bytes -= held.len() as u64;
                        held.clear();
                        held.extend_from_slice(value);
                    }
                    None => {
                        self.bytes += key.len() as u64;
                        self.map.insert(key.to_vec(), value.to_vec());
                    }
                }
            }
            Write::Delete(key) => {
                if let Some(value) = self.map.remove(key) {
                    self.bytes -= (key.len() + value.len()) as u64;
                }
            }
            Write::DeleteRange(from, to) => {
                let keys: Vec<Vec<u8>> = range(&self.map, from, to).map(|(key, _)| key.clone()).collect();
                for key in keys {
                    self.apply(Write::Delete(&key));
                }
            }
        }
    }
}

/// The entries from `from` to `to`; an empty `to` is no bound, and none lie between bounds that cross.
fn range<'a>(
    map: &'a BTreeMap<Vec<u8>, Vec<u8>>,
    from: &[u8],
    to: &[u8],
) -> impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)> + use<'a> {
    let open = to.is_empty();
    let bounds = (Bound::Included(from), if open { Bound::Unbounded } else { Bound::Excluded(from.max(to)) });
    map.range::<[u8], _>(bounds)
}

impl StateBackend for MemoryBackend {
    fn get(&self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, StateError> {
        into.clear();
        let held = self.read();
        let value = held.map.get(key);
        into.extend_from_slice(value.map_or(&[], Vec::as_slice));
        Ok(value.is_some())
    }

    fn get_many(
        &self,
        sorted_keys: &[Vec<u8>],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), StateError> {
        debug_assert!(sorted_keys.is_sorted());
        let held = self.read();
        for (at, key) in sorted_keys.iter().enumerate() {
            if let Some(value) = held.map.get(key) {
                found(at, value);
            }
        }
        Ok(())
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StateError> {
        let mut held = self.locked();
        batch.iter().for_each(|write| held.apply(write));
        Ok(())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StateError> {
        let held = self.read();
        for (key, value) in range(&held.map, from, to) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn freeze(&self, folder: &Path) -> Result<Vec<LocalFile>, StateError> {
        if let Some(parent) = folder.parent() {
            fs::create_dir_all(parent).map_err(StateError::io("create", parent))?;
        }
        fs::create_dir(folder).map_err(StateError::io("create", folder))?;
        let path = folder.join(FILE);
        let droppable = (self.droppable)();
        let mut file = PortableWriter::create(&path)?;
        let mut dropped = Vec::new();
        for (key, value) in &self.read().map {
            if droppable(key, value) {
                dropped.push(key.clone());
            } else {
                file.push(key, value)?;
            }
        }
        let bytes = file.finish()?;
        let mut held = self.locked();
        for key in dropped {
            // It may have been written anew between the two locks.
            if held.map.get(&key).is_some_and(|value| droppable(&key, value)) {
                held.apply(Write::Delete(&key));
            }
        }
        Ok(vec![LocalFile { name: FILE.to_owned(), path, bytes }])
    }

    fn usage(&self) -> Usage {
        let held = self.read();
        // A key and its value are two allocations in a node that is two thirds full: about 90 bytes beside their own.
        Usage { memtables: held.bytes + 90 * held.map.len() as u64, ..Usage::default() }
    }
}
