//! `Resources`: what all state databases of a process share, as plain numbers that a memory plan can set.

use std::sync::Arc;

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
}

impl Resources {
    /// Resources of this size, for the whole process.
    pub fn new(block_cache_bytes: usize, write_buffer_bytes: usize) -> Self {
        Resources(Arc::new(Numbers { block_cache_bytes, write_buffer_bytes, background_threads: 2 }))
    }

    /// Lets this many threads flush and compact, at least 2.
    #[must_use]
    pub fn background_threads(self, threads: usize) -> Self {
        Resources(Arc::new(Numbers {
            block_cache_bytes: self.0.block_cache_bytes,
            write_buffer_bytes: self.0.write_buffer_bytes,
            background_threads: threads.max(2),
        }))
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
}

impl Default for Resources {
    /// 128 MiB for blocks, 128 MiB for write buffers, two threads.
    fn default() -> Self {
        Resources::new(128 << 20, 128 << 20)
    }
}
