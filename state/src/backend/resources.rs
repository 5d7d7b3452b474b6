//! `Resources`: what all state databases of a process share, as plain numbers that a memory plan can set.

use std::sync::{Arc, OnceLock};

use super::rocks::Shared;

/// RocksDB takes no less.
pub(super) const LEAST_FILES: usize = 20;

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
    open_files: usize,
    /// Made with the first database.
    shared: OnceLock<Shared>,
}

impl Resources {
    /// Resources of this size, for the whole process.
    pub fn new(block_cache_bytes: usize, write_buffer_bytes: usize) -> Self {
        Resources(Arc::new(Numbers {
            block_cache_bytes,
            write_buffer_bytes,
            background_threads: 2,
            open_files: 256,
            shared: OnceLock::new(),
        }))
    }

    fn with(&self, change: impl FnOnce(&mut Numbers)) -> Self {
        let Numbers { block_cache_bytes, write_buffer_bytes, background_threads, open_files, .. } = *self.0;
        let shared = OnceLock::new();
        let mut numbers =
            Numbers { block_cache_bytes, write_buffer_bytes, background_threads, open_files, shared };
        change(&mut numbers);
        Resources(Arc::new(numbers))
    }

    /// Lets this many threads flush and compact, at least 2. These are other resources: set it before any clone is used.
    #[must_use]
    pub fn background_threads(self, threads: usize) -> Self {
        self.with(|numbers| numbers.background_threads = threads.max(2))
    }

    /// Lets each database keep so many of its files open, at least 20; the others it opens anew. These are other resources: set it
    /// before any clone is used.
    #[must_use]
    pub fn open_files(self, of_each: usize) -> Self {
        self.with(|numbers| numbers.open_files = of_each.max(LEAST_FILES))
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

    /// How many of its files a database may keep open.
    pub(super) fn files(&self) -> i32 {
        i32::try_from(self.0.open_files).unwrap_or(i32::MAX)
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
