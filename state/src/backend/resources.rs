//! `Resources`: what all state databases of a process share, as plain numbers that a memory plan can set.

use std::sync::{Arc, OnceLock};

use super::rocks::Shared;

/// The memory and threads that every RocksDB of the process shares. Cheap to clone; a clone is the same resources.
///
/// All databases together use at most about `block_cache_bytes + write_buffer_bytes`: files' indexes and filters are in the
/// block cache, and write buffers are flushed when together they reach their share.
#[derive(Clone, Debug)]
pub struct Resources(Arc<Numbers>);

#[derive(Debug)]
struct Numbers {
    block_cache_bytes: usize,
    write_buffer_bytes: usize,
    background_threads: usize,
    /// Made with the first database.
    shared: OnceLock<Shared>,
}

impl Resources {
    /// Resources of this size, for the whole process.
    pub fn new(block_cache_bytes: usize, write_buffer_bytes: usize) -> Self {
        Resources::of(block_cache_bytes, write_buffer_bytes, 2)
    }

    fn of(block_cache_bytes: usize, write_buffer_bytes: usize, background_threads: usize) -> Self {
        let shared = OnceLock::new();
        Resources(Arc::new(Numbers { block_cache_bytes, write_buffer_bytes, background_threads, shared }))
    }

    /// Lets this many threads flush and compact, at least 2. These are other resources: set it before any clone is used.
    #[must_use]
    pub fn background_threads(self, threads: usize) -> Self {
        Resources::of(self.0.block_cache_bytes, self.0.write_buffer_bytes, threads.max(2))
    }

    /// What the databases share, made by the first of them.
    pub(super) fn shared<E>(&self, make: impl FnOnce(&Self) -> Result<Shared, E>) -> Result<&Shared, E> {
        match self.0.shared.get() {
            Some(shared) => Ok(shared),
            None => {
                // Two that come first at once make two, and the second is dropped unused.
                let made = make(self)?;
                Ok(self.0.shared.get_or_init(|| made))
            }
        }
    }

    /// The memory for blocks, indexes and filters of files.
    pub fn block_cache_bytes(&self) -> usize {
        self.0.block_cache_bytes
    }

    /// The memory for writes that are not yet in a file.
    pub fn write_buffer_bytes(&self) -> usize {
        self.0.write_buffer_bytes
    }

    /// How many threads flush and compact.
    pub fn threads(&self) -> usize {
        self.0.background_threads
    }

    /// What all databases together take now, in bytes: blocks, indexes and filters of files, and writes that are not yet in a
    /// file. Both are 0 before the first database.
    pub fn used(&self) -> (u64, u64) {
        self.0.shared.get().map_or((0, 0), Shared::used)
    }
}

impl Default for Resources {
    /// 128 MiB for blocks, 128 MiB for write buffers, two threads.
    fn default() -> Self {
        Resources::new(128 << 20, 128 << 20)
    }
}
