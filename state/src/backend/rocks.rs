//! The RocksDB backend, and nothing else names that crate: files on a local disk, memory shared by the whole process.
//!
//! No write-ahead log: what is not frozen is made again from the source. A checkpoint is a flush and hard links. Every
//! iterator has both bounds, so that a scan never crawls through what was deleted beside its range. (over 400 lines: nothing
//! else may name the crate)

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rocksdb::checkpoint::Checkpoint;
use rocksdb::compaction_filter::{CompactionFilter, Decision};
use rocksdb::compaction_filter_factory::{CompactionFilterContext, CompactionFilterFactory};
use rocksdb::properties::{
    COMPACTION_PENDING, ESTIMATE_PENDING_COMPACTION_BYTES, ESTIMATE_TABLE_READERS_MEM,
    NUM_ENTRIES_ACTIVE_MEM_TABLE, NUM_RUNNING_COMPACTIONS, PropName, SIZE_ALL_MEM_TABLES,
    TOTAL_SST_FILES_SIZE,
};
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, ColumnFamily, DB, DBCompressionType, DBRawIterator,
    DEFAULT_COLUMN_FAMILY_NAME, DataBlockIndexType, Env, ErrorKind, IngestExternalFileOptions, LogLevel,
    Options, ReadOptions, SstFileWriter, WriteBufferManager, WriteOptions,
};

use super::resources::LEAST_FILES;
use super::{Droppable, LocalFile, Resources, Rule, StateBackend, Usage, Visit, Write, WriteBatch};
use crate::error::StateError;

/// What every database of the process shares.
pub(super) struct Shared {
    cache: Cache,
    buffers: WriteBufferManager,
    env: Env,
}

impl Shared {
    /// Write buffers are counted in the cache: together they never outgrow the sum of both shares.
    fn new(resources: &Resources) -> Result<Self, rocksdb::Error> {
        let (blocks, buffers) = (resources.block_cache_bytes(), resources.write_buffer_bytes());
        let cache = Cache::new_lru_cache(blocks + buffers);
        let mut env = Env::new()?;
        let threads = i32::try_from(resources.threads()).unwrap_or(i32::MAX);
        // One thread flushes and is never behind compactions in a queue.
        env.set_high_priority_background_threads(1);
        env.set_background_threads((threads - 1).max(1));
        Ok(Shared {
            buffers: WriteBufferManager::new_write_buffer_manager_with_cache(buffers, false, cache.clone()),
            cache,
            env,
        })
    }

    /// Bytes of blocks, and of write buffers.
    pub(super) fn used(&self) -> (u64, u64) {
        let buffers = self.buffers.get_usage();
        (self.cache.get_usage().saturating_sub(buffers) as u64, buffers as u64)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cache, buffers) = (self.cache.get_usage(), self.buffers.get_usage());
        write!(f, "Shared({cache} bytes cached, {buffers} of them write buffers)")
    }
}

/// A RocksDB database in a folder of its own.
pub struct RocksBackend {
    db: DB,
    folder: PathBuf,
    options: Options,
    write: WriteOptions,
    read: ReadOptions,
    resources: Resources,
    /// How many files were made to be taken in.
    made: AtomicU64,
}

impl fmt::Debug for RocksBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RocksBackend({})", self.folder.display())
    }
}

impl Drop for RocksBackend {
    fn drop(&mut self) {
        // What a compaction has written so far is of no use to anyone.
        self.db.cancel_all_background_work(true);
    }
}

impl RocksBackend {
    /// Opens the database in a folder that is empty, or not there yet. What `droppable` allows is dropped when files are
    /// compacted.
    ///
    /// # Errors
    /// The folder has something in it, or files cannot be made.
    pub fn create(folder: &Path, resources: &Resources, droppable: Droppable) -> Result<Self, StateError> {
        fs::create_dir_all(folder).map_err(StateError::io("create", folder))?;
        let mut entries = fs::read_dir(folder).map_err(StateError::io("read", folder))?;
        if entries.next().is_some() {
            let taken = std::io::ErrorKind::DirectoryNotEmpty.into();
            return Err(StateError::io("begin new state, since it is not empty, in", folder)(taken));
        }
        Self::open(folder, resources, droppable)
    }

    /// Opens a database over the files of a frozen one. They are linked into `folder` where they never change, else copied;
    /// `frozen` stays as it is.
    ///
    /// # Errors
    /// As for [`create`](Self::create), or the frozen files are damaged.
    pub fn adopt(
        frozen: &Path,
        folder: &Path,
        resources: &Resources,
        droppable: Droppable,
    ) -> Result<Self, StateError> {
        fs::create_dir_all(folder).map_err(StateError::io("create", folder))?;
        for name in files_of(frozen)? {
            let (from, to) = (frozen.join(&name), folder.join(&name));
            if !name.ends_with(".sst") || fs::hard_link(&from, &to).is_err() {
                fs::copy(&from, &to).map_err(StateError::io("copy", &from))?;
            }
        }
        Self::open(folder, resources, droppable)
    }

    fn open(folder: &Path, resources: &Resources, droppable: Droppable) -> Result<Self, StateError> {
        let failed = fails("open", folder);
        let shared = resources.shared(Shared::new).map_err(&failed)?;
        let mut options = options(shared, resources).map_err(&failed)?;
        options.set_compaction_filter_factory(Expired(droppable));
        let db = DB::open_cf_with_opts(&options, folder, [(DEFAULT_COLUMN_FAMILY_NAME, options.clone())])
            .map_err(&failed)?;
        let mut write = WriteOptions::default();
        write.disable_wal(true);
        Ok(RocksBackend {
            db,
            folder: folder.to_owned(),
            options,
            write,
            read: ReadOptions::default(),
            resources: resources.clone(),
            made: AtomicU64::new(0),
        })
    }

    fn column(&self) -> &ColumnFamily {
        self.db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).expect("every database has its default column family")
    }

    fn number(&self, property: &PropName) -> u64 {
        self.db.property_int_value(property).ok().flatten().unwrap_or(0)
    }

    /// A key behind all keys there are, and all that a batch puts.
    fn behind_the_last(&self, batch: &WriteBatch) -> Vec<u8> {
        let mut all = self.db.raw_iterator();
        all.seek_to_last();
        let put = batch.iter().filter_map(|write| match write {
            Write::Put(key, _) => Some(key),
            _ => None,
        });
        let mut key = put.max().max(all.key()).unwrap_or(&[]).to_vec();
        key.push(0);
        key
    }

    /// A name for a file to be taken in. None is used twice: should one stay behind, it is another name of a file of the database.
    fn new_file(&self) -> PathBuf {
        self.folder.join(format!("made-{}.tmp", self.made.fetch_add(1, Ordering::Relaxed)))
    }

    /// Makes a file, whole and sorted, one of the database's own. Nothing stays behind, whatever happens.
    fn take_in(&self, file: &Path) -> Result<(), StateError> {
        let mut moved = IngestExternalFileOptions::default();
        moved.set_move_files(true);
        let taken = self.db.ingest_external_file_opts(&moved, vec![file]);
        remove(file)?;
        taken.map_err(fails("write", &self.folder))
    }

    /// Takes in sorted keys and values as whole files, which costs no compaction.
    pub(crate) fn bulk_load(&self) -> BulkLoad<'_> {
        BulkLoad { into: self, writer: SstFileWriter::create(&self.options), open: None }
    }
}

impl StateBackend for RocksBackend {
    fn get(&self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, StateError> {
        into.clear();
        let value = self.db.get_pinned_opt(key, &self.read).map_err(fails("read", &self.folder))?;
        if let Some(value) = &value {
            into.extend_from_slice(value);
        }
        Ok(value.is_some())
    }

    fn get_many(
        &self,
        sorted_keys: &[Vec<u8>],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), StateError> {
        debug_assert!(sorted_keys.is_sorted());
        let values = self.db.batched_multi_get_cf_opt(self.column(), sorted_keys, true, &self.read);
        for (at, value) in values.into_iter().enumerate() {
            if let Some(value) = value.map_err(fails("read", &self.folder))? {
                found(at, &value);
            }
        }
        Ok(())
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StateError> {
        let mut writes = rocksdb::WriteBatch::with_capacity_bytes(batch.bytes() + 8 * batch.len() + 16);
        for write in batch.iter() {
            match write {
                Write::Put(key, value) => writes.put(key, value),
                Write::Delete(key) => writes.delete(key),
                Write::DeleteRange(from, []) => {
                    let behind = self.behind_the_last(batch);
                    writes.delete_range(from, from.max(&behind));
                }
                Write::DeleteRange(from, to) if from < to => writes.delete_range(from, to),
                Write::DeleteRange(..) => {}
            }
        }
        self.db.write_opt(writes, &self.write).map_err(fails("write", &self.folder))
    }

    /// A file made in order costs half of what a write buffer does that is flushed. Where the buffer has something already it will be
    /// flushed, and one file is better than two.
    fn write_sorted(&self, sorted: &WriteBatch) -> Result<(), StateError> {
        // A file of deletes is marked for compaction when it is flushed, but not when it is taken in.
        let others = sorted.iter().filter(|write| !matches!(write, Write::Put(..))).count();
        if self.number(NUM_ENTRIES_ACTIVE_MEM_TABLE) > 0 || 2 * others > sorted.len() || sorted.has_ranges() {
            return self.write(sorted);
        }
        let path = self.new_file();
        let made = || {
            let mut file = SstFileWriter::create(&self.options);
            file.open(&path)?;
            for write in sorted.iter() {
                match write {
                    Write::Put(key, value) => file.put(key, value)?,
                    Write::Delete(key) | Write::DeleteRange(key, _) => file.delete(key)?,
                }
            }
            file.finish()
        };
        if let Err(error) = made() {
            remove(&path)?;
            return Err(fails("write", &self.folder)(error));
        }
        self.take_in(&path)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StateError> {
        scan(&self.db, &self.folder, from, to, visit)
    }

    fn freeze(&self, folder: &Path) -> Result<Vec<LocalFile>, StateError> {
        let failed = fails("freeze", &self.folder);
        if let Some(parent) = folder.parent() {
            fs::create_dir_all(parent).map_err(StateError::io("create", parent))?;
        }
        self.db.flush().map_err(&failed)?;
        Checkpoint::new(&self.db).and_then(|links| links.create_checkpoint(folder)).map_err(&failed)?;
        let file = |name: String| {
            let path = folder.join(&name);
            let bytes = fs::metadata(&path).map_err(StateError::io("read", &path))?.len();
            Ok(LocalFile { name, path, bytes })
        };
        files_of(folder)?.into_iter().map(file).collect()
    }

    fn usage(&self) -> Usage {
        Usage {
            memtables: self.number(SIZE_ALL_MEM_TABLES),
            table_readers: self.number(ESTIMATE_TABLE_READERS_MEM),
            block_cache: self.resources.used().0,
            disk: self.number(TOTAL_SST_FILES_SIZE),
            to_compact: self
                .number(ESTIMATE_PENDING_COMPACTION_BYTES)
                .max(self.number(NUM_RUNNING_COMPACTIONS))
                .max(self.number(COMPACTION_PENDING)),
        }
    }

    fn levels(&self) -> Result<BTreeMap<String, u32>, StateError> {
        let files = self.db.live_files().map_err(fails("list the files of", &self.folder))?;
        // Their names begin with a slash.
        let name = |file: &str| file.trim_start_matches('/').to_owned();
        Ok(files.into_iter().map(|file| (name(&file.name), u32::try_from(file.level).unwrap_or(0))).collect())
    }
}

/// A frozen database that is only read.
#[derive(Debug)]
pub(crate) struct FrozenRocks {
    db: DB,
    folder: PathBuf,
}

impl FrozenRocks {
    /// Opens the files of a frozen database; changes nothing in their folder.
    ///
    /// # Errors
    /// They cannot be read, or are damaged.
    pub(crate) fn open(folder: &Path, resources: &Resources) -> Result<Self, StateError> {
        let failed = fails("open", folder);
        let shared = resources.shared(Shared::new).map_err(&failed)?;
        let mut options = options(shared, resources).map_err(&failed)?;
        // It is read from one end to the other, once, beside the database that it becomes.
        options.set_max_open_files(LEAST_FILES as i32);
        let db = DB::open_for_read_only(&options, folder, false).map_err(&failed)?;
        Ok(FrozenRocks { db, folder: folder.to_owned() })
    }

    /// As [`StateBackend::scan`].
    ///
    /// # Errors
    /// The files cannot be read, or are damaged.
    pub(crate) fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StateError> {
        scan(&self.db, &self.folder, from, to, visit)
    }
}

/// Sorted keys and values on their way into a database as whole files.
pub(crate) struct BulkLoad<'a> {
    into: &'a RocksBackend,
    writer: SstFileWriter<'a>,
    open: Option<PathBuf>,
}

impl Drop for BulkLoad<'_> {
    fn drop(&mut self) {
        if let Some(file) = &self.open {
            // After an error, which has been told.
            let _ = remove(file);
        }
    }
}

impl BulkLoad<'_> {
    /// Adds a key greater than the one before.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        let failed = fails("load", &self.into.folder);
        if self.open.is_none() {
            let file = self.into.new_file();
            self.writer.open(&file).map_err(&failed)?;
            self.open = Some(file);
        }
        self.writer.put(key, value).map_err(&failed)?;
        if self.writer.file_size() >= FILE { self.end_file() } else { Ok(()) }
    }

    /// Takes in what is left.
    pub(crate) fn finish(mut self) -> Result<(), StateError> {
        self.end_file()
    }

    fn end_file(&mut self) -> Result<(), StateError> {
        let Some(file) = &self.open else { return Ok(()) };
        self.writer.finish().map_err(fails("load", &self.into.folder))?;
        self.into.take_in(file)?;
        self.open = None;
        Ok(())
    }
}

/// Removes a file that may be gone.
fn remove(file: &Path) -> Result<(), StateError> {
    match fs::remove_file(file) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(StateError::io("remove", file)(e)),
        _ => Ok(()),
    }
}

fn scan(db: &DB, folder: &Path, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StateError> {
    let mut bounds = ReadOptions::default();
    bounds.set_iterate_lower_bound(from);
    if !to.is_empty() {
        if to <= from {
            return Ok(());
        }
        bounds.set_iterate_upper_bound(to);
    }
    let mut at: DBRawIterator<'_> = db.raw_iterator_opt(bounds);
    at.seek_to_first();
    while let Some((key, value)) = at.item() {
        if visit(key, value).is_break() {
            return Ok(());
        }
        at.next();
    }
    at.status().map_err(fails("read", folder))
}

/// The files of a frozen database that make it up; logs and descriptions are not among them.
fn files_of(folder: &Path) -> Result<Vec<String>, StateError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(StateError::io("read", folder))? {
        let entry = entry.map_err(StateError::io("read", folder))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".sst") || name == "CURRENT" || name.starts_with("MANIFEST-") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn fails<'a>(doing: &'static str, folder: &'a Path) -> impl Fn(rocksdb::Error) -> StateError + 'a {
    move |error| match error.kind() {
        ErrorKind::Corruption => StateError::Damaged { path: folder.to_owned(), what: error.into_string() },
        _ => StateError::Backend { doing, folder: folder.to_owned(), source: error.into() },
    }
}

/// Files are about this large: small enough that a change in a small range of keys rewrites little.
const FILE: u64 = 32 << 20;

fn options(shared: &Shared, resources: &Resources) -> Result<Options, rocksdb::Error> {
    // What was not frozen is of no use to anyone once the database closes.
    let mut options = Options::default().get_options_from_string("avoid_flush_during_shutdown=true")?;
    options.create_if_missing(true);
    options.set_env(&shared.env);
    options.set_write_buffer_manager(&shared.buffers);
    options.set_max_background_jobs(i32::try_from(resources.threads()).unwrap_or(i32::MAX));
    options.set_write_buffer_size((resources.write_buffer_bytes() / 4).clamp(1 << 20, 64 << 20));
    options.set_max_write_buffer_number(4);
    options.set_memtable_whole_key_filtering(true);
    options.set_memtable_prefix_bloom_ratio(0.02);
    options.set_target_file_size_base(FILE);
    options.set_max_bytes_for_level_base(4 * FILE);
    options.set_compression_type(DBCompressionType::Lz4);
    // Checkpoints and jobs come and go for weeks: what is open and what is logged must stay bounded.
    options.set_max_open_files(resources.files());
    // Into its own folder, one file: a hundred lines of options for each database pass any level.
    options.set_log_level(LogLevel::Warn);
    options.set_keep_log_file_num(1);
    options.set_max_log_file_size(1 << 20);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    // Timers and windows delete in runs: a file that is half deletes is compacted before scans crawl through it.
    options.add_compact_on_deletion_collector_factory(16 << 10, 8 << 10, 0.5);

    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&shared.cache);
    blocks.set_bloom_filter(10.0, false);
    blocks.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    // Indexes and filters are cut into pieces of which only those in use are in the cache: no cliff when state outgrows it.
    blocks.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    blocks.set_partition_filters(true);
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_cache_index_and_filter_blocks_with_high_priority(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    blocks.set_pin_top_level_index_and_filter(true);
    options.set_block_based_table_factory(&blocks);
    Ok(options)
}

/// Drops what has expired when files are compacted.
struct Expired(Droppable);

impl CompactionFilterFactory for Expired {
    type Filter = ExpiredBy;
    fn create(&mut self, _: CompactionFilterContext) -> ExpiredBy {
        ExpiredBy((self.0)())
    }
    fn name(&self) -> &CStr {
        c"weir.expired"
    }
}

struct ExpiredBy(Rule);

impl CompactionFilter for ExpiredBy {
    fn filter(&mut self, _: u32, key: &[u8], value: &[u8]) -> Decision {
        if (self.0)(key, value) { Decision::Remove } else { Decision::Keep }
    }
    fn name(&self) -> &CStr {
        c"weir.expired"
    }
}

#[cfg(test)]
#[path = "rocks_tests.rs"]
mod tests;
