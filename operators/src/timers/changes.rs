//! What changed among the timers between two barriers, written by the snapshot thread and read back at a restore.
//!
//! A row per timer. Key: group, table, time (as a namespace: in the order of the numbers), the user's key, by the codec of
//! keys. Value: how many timers its subtask had set before it, u64 BE. Frozen by a golden test; another layout is version 2.

use std::collections::{BTreeMap, HashSet};
use std::mem::take;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_engine::{Key, KeyHash};
use weir_state::backend::WriteBatch;
use weir_state::codec::{Codec, CodecError, CodecId, Ordered};
use weir_state::store::{Frozen, Snapshot, Store, TableMeta};
use weir_state::{KeyGroup, StateError, key_hash, keyspace};

use super::{GROUP_BITS, Place};

const LAYOUT: u32 = 1;
/// Rows are written in batches of about this many bytes.
const BATCH: usize = 1 << 20;
/// The dead are not worth a look before there are so many.
const FEW: usize = 1_024;

/// What was done to the timers, in three lists that cost an append each.
#[derive(Debug)]
pub(super) struct Changes<K> {
    /// Timers that were set.
    set: Vec<(Place, K)>,
    /// The numbers of those of them that fired or were deleted again.
    dead: Vec<u64>,
    /// Timers from before the barrier that fired or were deleted.
    gone: Vec<(Place, K)>,
}

impl<K> Default for Changes<K> {
    fn default() -> Self {
        Changes { set: Vec::new(), dead: Vec::new(), gone: Vec::new() }
    }
}

impl<K> Changes<K> {
    /// These timers are set, and there is nothing else.
    pub(super) fn all(timers: impl Iterator<Item = (Place, K)>) -> Self {
        Changes { set: timers.collect(), ..Changes::default() }
    }

    pub(super) fn set(&mut self, place: Place, key: K) {
        self.set.push((place, key));
    }

    /// A timer of `set` is no more.
    pub(super) fn dead(&mut self, place: Place) {
        self.dead.push(place.number);
        // So that jobs whose timers come and go between two barriers keep no trace of each.
        if self.dead.len() >= FEW.max(self.set.len() / 2) {
            self.bury();
        }
    }

    /// A timer of before the barrier is no more.
    pub(super) fn gone(&mut self, place: Place, key: K) {
        self.gone.push((place, key));
    }

    fn bury(&mut self) {
        self.dead.sort_unstable();
        let dead = take(&mut self.dead);
        self.set.retain(|(place, _)| dead.binary_search(&place.number).is_err());
    }

    fn is_empty(&self) -> bool {
        self.set.len() == self.dead.len() && self.gone.is_empty()
    }
}

/// A timer that is set, as the queue holds it.
type Timer<K> = (Place, (KeyHash, K));

/// Rows to be put or, without a value, deleted.
type Rows = BTreeMap<Vec<u8>, Option<u64>>;

/// What was frozen and is not in frozen files yet.
#[derive(Debug)]
struct Unwritten<K> {
    /// Which barrier it was frozen at.
    generation: u64,
    /// What came before `changes`, and was tried to be written already.
    rows: Rows,
    changes: Changes<K>,
}

/// What the task and the snapshot thread both need of the table.
struct Shared<K> {
    uid: String,
    name: &'static str,
    id: u16,
    /// What could not be written; it goes with the next generation that is.
    returned: Mutex<Vec<Unwritten<K>>>,
}

impl<K> Shared<K> {
    fn returned(&self) -> MutexGuard<'_, Vec<Unwritten<K>>> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The table that the timers are kept in.
pub(super) struct Table<K> {
    shared: Arc<Shared<K>>,
    generation: u64,
}

impl<K: Key> Table<K> {
    /// Declares the table.
    ///
    /// # Errors
    /// The store refuses it.
    pub(super) fn open(store: &Store, name: &'static str) -> Result<Self, StateError> {
        let id =
            store.register(TableMeta { key_codec: CodecId::NAMESPACED, ..TableMeta::raw(name, LAYOUT) })?;
        let uid = store.uid().to_owned();
        Ok(Table { shared: Arc::new(Shared { uid, name, id, returned: Mutex::default() }), generation: 0 })
    }

    /// The timers that were restored, in order.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) fn kept(&self, store: &Store) -> Result<Vec<Timer<K>>, StateError> {
        let mut kept = Vec::new();
        if !store.is_restored() {
            return Ok(kept);
        }
        for group in store.key_groups() {
            let prefix = keyspace::prefix(KeyGroup(group), self.shared.id);
            let mut read = Ok(());
            store.backend().scan(&prefix, &keyspace::after_prefix(&prefix), &mut |key, value| {
                read = self.shared.read(group, key, value).map(|timer| kept.push(timer));
                if read.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            read?;
        }
        kept.sort_unstable_by_key(|(place, _)| *place);
        Ok(kept)
    }

    /// Adds what changed to the snapshot, with whatever could not be written before.
    pub(super) fn freeze(&mut self, changes: Changes<K>, into: &mut Snapshot) {
        if changes.is_empty() && self.shared.returned().is_empty() {
            return;
        }
        self.generation += 1;
        let unwritten = Unwritten { generation: self.generation, rows: Rows::new(), changes };
        into.add(Box::new(FrozenTimers { unwritten, shared: self.shared.clone() }));
    }
}

impl<K: Key> Shared<K> {
    fn failed(&self, doing: &str, source: CodecError) -> StateError {
        let (uid, table) = (self.uid.clone(), self.name.to_owned());
        StateError::Codec { uid, table, doing: doing.to_owned(), source }
    }

    fn key(&self, place: Place, key: &K) -> Result<Vec<u8>, StateError> {
        let group = KeyGroup((place.number & ((1 << GROUP_BITS) - 1)) as u16);
        let mut row = Vec::with_capacity(32);
        row.extend_from_slice(&keyspace::prefix(group, self.id));
        row.extend_from_slice(&keyspace::namespace(place.time));
        Ordered::encode(key, &mut row).map_err(|e| self.failed("encode the key of a timer", e))?;
        Ok(row)
    }

    fn read(&self, group: u16, row: &[u8], value: &[u8]) -> Result<Timer<K>, StateError> {
        let damaged = || StateError::Misused {
            uid: self.uid.clone(),
            table: self.name.to_owned(),
            what: "it holds what is no timer: restore from another checkpoint or savepoint".to_owned(),
        };
        let (time, key) =
            row.get(keyspace::PREFIX..).and_then(|r| r.split_first_chunk()).ok_or_else(damaged)?;
        let set_before = u64::from_be_bytes(value.try_into().map_err(|_| damaged())?);
        let key: K = Ordered::decode(key).map_err(|e| self.failed("decode the key of a timer", e))?;
        let number = set_before << GROUP_BITS | u64::from(group);
        Ok((Place { time: keyspace::namespace_of(*time), number }, (key_hash(&key), key)))
    }

    /// Applies changes to rows: what has gone had been there before anything was set.
    fn apply(&self, changes: &Changes<K>, rows: &mut Rows) -> Result<(), StateError> {
        for (place, key) in &changes.gone {
            rows.insert(self.key(*place, key)?, None);
        }
        let dead: HashSet<u64> = changes.dead.iter().copied().collect();
        for (place, key) in changes.set.iter().filter(|(place, _)| !dead.contains(&place.number)) {
            rows.insert(self.key(*place, key)?, Some(place.number >> GROUP_BITS));
        }
        Ok(())
    }
}

/// The changes up to one barrier, with those of earlier ones that could not be written.
struct FrozenTimers<K> {
    unwritten: Unwritten<K>,
    shared: Arc<Shared<K>>,
}

impl<K: Key> FrozenTimers<K> {
    /// All that is to be written, in the order in which it happened. After an error everything is where it was.
    fn rows(&mut self) -> Result<&Rows, StateError> {
        let FrozenTimers { unwritten: mine, shared } = self;
        let mut returned = shared.returned();
        returned.sort_unstable_by_key(|older| older.generation);
        let (older, newer): (Vec<_>, Vec<_>) =
            take(&mut *returned).into_iter().partition(|other| other.generation < mine.generation);
        *returned = newer;
        let mut rows = Rows::new();
        let mut applied = Ok(());
        for part in older.iter().chain([&*mine]) {
            rows.extend(part.rows.iter().map(|(key, value)| (key.clone(), *value)));
            applied = applied.and_then(|()| shared.apply(&part.changes, &mut rows));
        }
        if applied.is_err() {
            returned.extend(older);
        } else {
            (mine.rows, mine.changes) = (rows, Changes::default());
        }
        applied.map(|()| &mine.rows)
    }
}

impl<K: Key> Frozen for FrozenTimers<K> {
    fn write(
        &mut self,
        out: &mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let mut batch = WriteBatch::default();
        for (key, value) in self.rows()? {
            match value {
                Some(number) => batch.put(key, &number.to_be_bytes()),
                None => batch.delete(key),
            }
            if batch.bytes() >= BATCH {
                out(&batch)?;
                batch.clear();
            }
        }
        if batch.is_empty() { Ok(()) } else { out(&batch) }
    }

    fn settled(self: Box<Self>, written: bool) {
        if !written {
            let FrozenTimers { unwritten, shared } = *self;
            shared.returned().push(unwritten);
        }
    }
}

#[cfg(test)]
#[path = "changes_tests.rs"]
mod tests;
