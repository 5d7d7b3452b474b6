//! Backends keep bytes by key, in order, and freeze them into files. They know nothing of types, caches or checkpoints.

mod batch;
mod memory;
mod portable;
mod resources;
mod rocks;
mod staged;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::StateError;

pub use batch::{Write, WriteBatch};
pub(crate) use memory::FILE as PORTABLE_FILE;
pub use memory::MemoryBackend;
pub use portable::{PortableReader, PortableWriter};
pub use resources::Resources;
pub use rocks::RocksBackend;
pub(crate) use rocks::{BulkLoad, FrozenRocks};
pub use staged::SNAPSHOT_BYTES;
pub(crate) use staged::Staged;

/// Which backend keeps the state of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// A sorted map in memory: the reference, and enough for small state. Every checkpoint writes all of it.
    Memory,
    /// RocksDB on a local disk: state may be larger than memory, and a checkpoint uploads only files that are new.
    Rocks,
}

/// One file of a frozen state, complete and never written again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalFile {
    /// Its name within the part. A file of the same name, of the same store, has the same bytes if its name ends in `.sst`.
    pub name: String,
    /// Where it lies.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
}

/// What a backend uses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Memory of writes that are not yet in a file; with the memory backend, all keys and values.
    pub memtables: u64,
    /// Memory of what is kept open of each file, outside the block cache.
    pub table_readers: u64,
    /// Memory of the block cache: of the whole process, the same in every store's usage.
    pub block_cache: u64,
    /// Bytes on disk.
    pub disk: u64,
    /// Bytes that compactions have yet to rewrite, by the backend's estimate; at least one while a compaction runs.
    pub to_compact: u64,
}

/// Tells which keys and values have expired, by one moment. Called for each of them when files are rewritten.
pub type Rule = Box<dyn Fn(&[u8], &[u8]) -> bool + Send>;

/// Gives the rule by which a backend may drop keys and values, for the moment at which it is asked.
pub type Droppable = Arc<dyn Fn() -> Rule + Send + Sync>;

/// What a scan calls for each key and value: go on, or stop.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A sorted map of bytes with atomic batches and frozen copies. Shared between a task and its snapshot thread.
///
/// *Blocking*: every call may read or write a disk.
pub trait StateBackend: Send + Sync + fmt::Debug {
    /// Looks a key up: its value replaces what is in `into`. False when it has none; `into` is then empty.
    ///
    /// # Errors
    /// The database cannot be read.
    fn get(&self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, StateError>;

    /// Looks many keys up, which must be in order: calls `found` with the place of each key that has a value, in order.
    ///
    /// # Errors
    /// The database cannot be read; `found` may have been called for some.
    fn get_many(
        &self,
        sorted_keys: &[Vec<u8>],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), StateError>;

    /// Applies a batch: all of it or, after an error, perhaps none. Durable only once frozen.
    ///
    /// # Errors
    /// The database cannot be written.
    fn write(&self, batch: &WriteBatch) -> Result<(), StateError>;

    /// As [`write`](Self::write), of puts and deletes in the order of their keys, one of each at most: where that costs less, as one file.
    ///
    /// # Errors
    /// The database cannot be written.
    fn write_sorted(&self, sorted: &WriteBatch) -> Result<(), StateError> {
        self.write(sorted)
    }

    /// Visits the keys from `from` (inclusive) to `to` (exclusive; empty: no bound) in order, as they are when the scan
    /// begins, until told to stop. `visit` must not write to this backend.
    ///
    /// # Errors
    /// The database cannot be read; `visit` may have been called for some.
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StateError>;

    /// Makes what is there now into files of a new folder, sharing the bytes of files that are there already.
    ///
    /// # Errors
    /// The folder is there already, or the files cannot be made.
    fn freeze(&self, folder: &Path) -> Result<Vec<LocalFile>, StateError>;

    /// What it uses now.
    fn usage(&self) -> Usage;

    /// The files it has now, by name, and the level of compaction that each is at: 0 are those just flushed.
    ///
    /// # Errors
    /// The database cannot be read.
    fn levels(&self) -> Result<BTreeMap<String, u32>, StateError> {
        Ok(BTreeMap::new())
    }
}
