//! `Store`: the state of one subtask of one operator: its tables, its items, its backend, and how they are frozen and restored.

mod clocks;
mod ledger;
mod restore;
mod snapshot;
mod tables;
mod write_out;

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::backend::{BackendKind, MemoryBackend, Resources, RocksBackend, StateBackend, WriteBatch};
use crate::error::StateError;
use crate::key::KeyGroup;
use crate::keyspace;

pub(crate) use clocks::Clocks;
pub(crate) use ledger::{Cancelled, Ledger};
use restore::Target;
pub use snapshot::{Frozen, Items, LocalPart, PartFormat, RestoredPart, Snapshot};
pub use tables::TableMeta;
use tables::Tables;

/// What a store is made from.
#[derive(Clone)]
pub struct StoreConfig {
    /// The operator's uid.
    pub uid: String,
    /// Which subtask of it.
    pub subtask: usize,
    /// The key groups that the subtask owns.
    pub key_groups: Range<u16>,
    /// How many key groups the job has.
    pub groups: u16,
    /// Which backend.
    pub backend: BackendKind,
    /// Where the backend keeps its files; made if it is not there, and empty if it is. One store's alone.
    pub folder: PathBuf,
    /// What it shares with every other store of the process.
    pub resources: Resources,
    /// How many bytes the typed caches of this store may hold.
    pub cache_bytes: usize,
    /// The machine's clock, in milliseconds since the epoch. Read once per batch at most.
    pub wall_ms: Arc<dyn Fn() -> i64 + Send + Sync>,
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "StoreConfig('{}', subtask {}, groups {:?} of {}, {:?} in {})",
            self.uid,
            self.subtask,
            self.key_groups,
            self.groups,
            self.backend,
            self.folder.display()
        )
    }
}

/// The state of one subtask. Cheap to clone; a clone is the same store.
///
/// *Order*: `open`; then every table is registered; then [`unclaimed`](Self::unclaimed) tables are refused or dropped; then
/// records flow. At a barrier the task collects a [`Snapshot`], and one snapshot thread writes it out, one at a time.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    config: StoreConfig,
    restored: Vec<RestoredPart>,
    /// Opened with the first table: an operator that keeps only items has no database.
    backend: OnceLock<Arc<dyn StateBackend>>,
    tables: Mutex<Tables>,
    clocks: Arc<Clocks>,
    ledger: Arc<Ledger>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({:?}, {} parts restored)", self.0.config, self.0.restored.len())
    }
}

impl Store {
    /// Opens a store, over what a checkpoint or savepoint has kept of it.
    ///
    /// `restored`: the parts of all old subtasks of this uid, whatever groups they hold; only the groups wanted are read.
    /// One RocksDB part with just these groups is taken as it is, by links; else entries are copied.
    ///
    /// *Blocking*: reads and writes files.
    ///
    /// # Errors
    /// The parts lack a group, contradict each other or are damaged, or files cannot be read or written.
    pub fn open(config: StoreConfig, restored: Vec<RestoredPart>) -> Result<Store, StateError> {
        let event_time = restored.iter().filter_map(kept_event_time).min().unwrap_or(i64::MIN);
        let store = Store(Arc::new(Inner {
            tables: Mutex::new(Tables::new(&config.uid)),
            clocks: Arc::new(Clocks::new(config.wall_ms.clone(), event_time)),
            backend: OnceLock::new(),
            ledger: Arc::new(Ledger::new(config.cache_bytes)),
            config,
            restored,
        }));
        store.take_over()?;
        Ok(store)
    }

    /// Brings the state of the restored parts into the backend.
    fn take_over(&self) -> Result<(), StateError> {
        let Inner { config, restored, clocks, .. } = &*self.0;
        let wanted = &config.key_groups;
        let parts: Vec<&RestoredPart> = restored.iter().filter(|part| !part.tables.is_empty()).collect();
        if parts.is_empty() {
            return Ok(());
        }
        if let Some(missing) = restore::missing_group(restored, wanted.clone()) {
            return Err(StateError::MissingGroups {
                uid: config.uid.clone(),
                wanted: wanted.clone(),
                missing,
            });
        }
        let overlap =
            |part: &RestoredPart| part.key_groups.start < wanted.end && wanted.start < part.key_groups.end;
        // The parts that are read first: theirs are the numbers to keep.
        let (read, others): (Vec<&RestoredPart>, _) = parts.into_iter().partition(|part| overlap(part));
        let mut numbered = Vec::new();
        for part in read {
            numbered.push((part, self.tables().restore(&part.tables)?));
        }
        for part in others {
            self.tables().restore(&part.tables)?;
        }
        let droppable = clocks.droppable();
        let opened: Arc<dyn StateBackend> = match (config.backend, &numbered[..]) {
            (BackendKind::Rocks, [(part, numbers)])
                if part.format == PartFormat::Rocks
                    && part.key_groups == *wanted
                    && numbers.iter().all(|(old, new)| old == new) =>
            {
                let folder = &part.folder;
                Arc::new(RocksBackend::adopt(folder, &config.folder, &config.resources, droppable)?)
            }
            (BackendKind::Rocks, _) => {
                let rocks = RocksBackend::create(&config.folder, &config.resources, droppable)?;
                for (part, numbers) in &numbered {
                    let into = if restore::keeps_order(numbers) {
                        Target::Files(rocks.bulk_load())
                    } else {
                        Target::Batches(&rocks, WriteBatch::default())
                    };
                    restore::copy(part, wanted, numbers, &config.resources, into)?;
                }
                Arc::new(rocks)
            }
            (BackendKind::Memory, _) => {
                let memory = MemoryBackend::new(droppable);
                for (part, numbers) in &numbered {
                    let into = Target::Batches(&memory, WriteBatch::default());
                    restore::copy(part, wanted, numbers, &config.resources, into)?;
                }
                Arc::new(memory)
            }
        };
        self.0.backend.get_or_init(|| opened);
        Ok(())
    }

    fn opened(&self) -> Result<&Arc<dyn StateBackend>, StateError> {
        let Inner { config, backend, clocks, .. } = &*self.0;
        if let Some(backend) = backend.get() {
            return Ok(backend);
        }
        let droppable = clocks.droppable();
        let opened: Arc<dyn StateBackend> = match config.backend {
            BackendKind::Memory => Arc::new(MemoryBackend::new(droppable)),
            BackendKind::Rocks => {
                Arc::new(RocksBackend::create(&config.folder, &config.resources, droppable)?)
            }
        };
        Ok(backend.get_or_init(|| opened))
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when it was opened over a checkpoint or savepoint.
    pub fn is_restored(&self) -> bool {
        !self.0.restored.is_empty()
    }

    /// The items kept under a list by all old subtasks, with the subtask that kept each.
    pub fn restored_items(&self, list: &str) -> Vec<(usize, String, serde_json::Value)> {
        let of = |part: &RestoredPart| {
            let items = part.items.get(list).cloned().unwrap_or_default();
            let subtask = part.subtask;
            items.into_iter().map(move |(key, value)| (subtask, key, value))
        };
        self.0.restored.iter().flat_map(of).collect()
    }

    /// The operator's uid.
    pub fn uid(&self) -> &str {
        &self.0.config.uid
    }

    /// The key groups that the subtask owns.
    pub fn key_groups(&self) -> Range<u16> {
        self.0.config.key_groups.clone()
    }

    /// How many key groups the job has.
    pub fn groups(&self) -> u16 {
        self.0.config.groups
    }

    /// The backend, for tables with a layout of their own.
    ///
    /// # Panics
    /// When no table was restored or registered: such a store has no backend.
    pub fn backend(&self) -> &Arc<dyn StateBackend> {
        self.0.backend.get().expect("a table is registered before its bytes are touched")
    }

    /// Declares a table and gives its number, for keys by [`keyspace`].
    ///
    /// *Blocking*: the first one may open a database.
    ///
    /// # Errors
    /// The table was restored and does not fit the declaration, is declared twice, or the backend cannot be opened.
    pub fn register(&self, meta: TableMeta) -> Result<u16, StateError> {
        self.register_meta(meta).map(|meta| meta.id)
    }

    /// What its caches share.
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.0.ledger
    }

    /// The clocks that its TTLs go by.
    pub(crate) fn clocks(&self) -> &Arc<Clocks> {
        &self.0.clocks
    }

    /// True when no snapshot is being written out: what is frozen now is frozen at once.
    pub fn is_settled(&self) -> bool {
        self.0.ledger.is_settled()
    }

    /// Breaks off every wait of a cache for a snapshot, now and later: the task is cancelled.
    pub fn cancel(&self) {
        self.0.ledger.cancel();
    }

    /// How many bytes the typed caches of this store hold.
    pub fn cached_bytes(&self) -> usize {
        self.0.ledger.used()
    }

    /// How long the task has waited so far for snapshots to be written, at barriers and for lack of memory.
    pub fn waited(&self) -> Duration {
        self.0.ledger.waited()
    }

    /// As [`register`](Self::register), with all that is now known of the table.
    pub(crate) fn register_meta(&self, meta: TableMeta) -> Result<TableMeta, StateError> {
        self.opened()?;
        let mut tables = self.tables();
        let meta = tables.register(meta, self.0.clocks.now())?.clone();
        self.0.clocks.set_rules(tables.claimed());
        Ok(meta)
    }

    /// The restored tables that nobody has registered. They stay in every further checkpoint until they are dropped.
    pub fn unclaimed(&self) -> Vec<String> {
        self.tables().unclaimed()
    }

    /// Forgets a table and all that is in it. Before records flow; nothing happens when there is none of that name.
    ///
    /// # Errors
    /// The backend cannot be written.
    pub fn drop_table(&self, name: &str) -> Result<(), StateError> {
        let Some(id) = self.tables().remove(name) else { return Ok(()) };
        self.0.clocks.set_rules(self.tables().claimed());
        let mut batch = WriteBatch::default();
        for group in self.key_groups() {
            let prefix = keyspace::prefix(KeyGroup(group), id);
            batch.delete_range(&prefix, &keyspace::after_prefix(&prefix));
        }
        self.opened()?.write(&batch)
    }

    /// Moves the clock that event-time TTLs go by to a time on the way to the next watermark; never back. For an operator whose timers
    /// fire: each is to find what is there at its own time, however far the watermark jumps. Cheap: no lock.
    pub fn event_time_passes(&self, ms: i64) {
        if ms < i64::MAX {
            self.0.clocks.pass(ms);
        }
    }

    /// True when a table that was claimed has a TTL by event time. Takes a lock.
    pub fn expires_by_event_time(&self) -> bool {
        self.0.clocks.has_event_time_rule()
    }

    /// Moves the clock that event-time TTLs go by to a watermark; never back. The last watermark of all, `i64::MAX`, is the end of
    /// the input and no time: nothing expires by it, and a later life that has more input goes on from the time before.
    pub fn event_time(&self, watermark_ms: i64) {
        if watermark_ms < i64::MAX && self.0.clocks.advance(watermark_ms) {
            let mut tables = self.tables();
            tables.event_time_begins(watermark_ms);
            self.0.clocks.set_rules(tables.claimed());
        }
    }
}

fn kept_event_time(part: &RestoredPart) -> Option<i64> {
    // Earlier versions kept the end of the input as a time.
    part.items.get(snapshot::OWN_ITEMS)?.get(snapshot::EVENT_TIME)?.as_i64().filter(|ms| *ms < i64::MAX)
}

#[cfg(test)]
#[path = "store/store_tests.rs"]
mod tests;
