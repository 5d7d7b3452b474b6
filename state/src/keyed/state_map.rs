//! `StateMap`: a value per key, kept in memory as far as that reaches and frozen at barriers.
// HOT: `find`, `at` and `get_or_insert_with` of a key touched since the last barrier: one probe. No allocation, lock or clock.

use std::fmt;

use super::cache::Cache;
use super::cell::One;
use super::classes::Place;
use super::generation::Groups;
use super::home::Home;
use super::spec::Table;
use super::tour::Tour;
use super::{Key, KeyedState, State};
use crate::codec::CodecId;
use crate::error::StateError;
use crate::key::KeyHash;
use crate::store::{Snapshot, Store};

/// Values by key, over one table of a [`Store`], or over one namespace of it.
///
/// *Order*: for each batch, [`prefetch`](Self::prefetch) its keys, use the map, [`batch_end`](Self::batch_end). At a barrier
/// [`freeze`](Self::freeze).
///
/// *Errors*: those that say nothing else come from the backend: the disk failed, or a value cannot be decoded.
pub struct StateMap<K, V> {
    pub(super) cache: Cache<K, One<V, ()>, V>,
}

impl<K, V> fmt::Debug for StateMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (live, settled) = (&self.cache.live, &self.cache.settled);
        let tables = (live.bytes() + settled.bytes()) >> 20;
        write!(f, "StateMap({} live, {} settled, {tables} MiB of tables)", live.len(), settled.len())
    }
}

impl Store {
    /// Declares a table and gives the map over it.
    ///
    /// *Blocking*: as [`register`](Self::register).
    ///
    /// # Errors
    /// As [`register`](Self::register), or the declaration has a TTL, which a plain map does not honour.
    pub fn state_map<K: Key, V: State>(&self, table: Table<K, V>) -> Result<StateMap<K, V>, StateError> {
        let home = Home::without_ttl(self, &table, CodecId::ORDERED)?;
        let groups = if home.fresh { Groups::default() } else { Groups::all(self.key_groups()) };
        Ok(StateMap { cache: Cache::new(home, None, groups) })
    }
}

impl<K: Key, V: State> StateMap<K, V> {
    /// Looks the keys of a batch up at once, so that the calls that follow need no disk. While everything that is used is in
    /// memory this does nothing.
    ///
    /// # Errors
    /// The backend's.
    pub fn prefetch<'a>(&mut self, keys: impl Iterator<Item = (KeyHash, &'a K)>) -> Result<(), StateError> {
        self.cache.prefetch(keys.map(|(hash, key)| (hash.in_group(), key)))
    }

    /// Where the key is.
    ///
    /// # Errors
    /// The backend's.
    #[inline]
    pub fn find(&mut self, hash: KeyHash, key: &K) -> Result<Option<Place>, StateError> {
        self.cache.find(hash.in_group(), key)
    }

    /// Where the key is, put there if it was not; it is cloned only then.
    ///
    /// # Errors
    /// The backend's.
    #[inline(always)]
    pub fn find_or_insert_with(
        &mut self,
        hash: KeyHash,
        key: &K,
        value: impl FnOnce() -> V,
    ) -> Result<Place, StateError> {
        match self.cache.find(hash.in_group(), key)? {
            Some(place) => Ok(place),
            None => self.insert_absent(hash, key.clone(), value()),
        }
    }

    /// The value at a place, to be changed. A place is good until the map is used in any other way.
    ///
    /// # Panics
    /// When the place is stale and empty.
    #[inline]
    pub fn at(&mut self, place: Place) -> &mut V {
        &mut self.cache.at_mut(place).cell.value
    }

    /// The value at a place, to be read only.
    ///
    /// # Panics
    /// When the place is stale and empty.
    #[inline]
    pub fn peek(&self, place: Place) -> &V {
        &self.cache.at(place).cell.value
    }

    /// The value of the key, to be read only.
    ///
    /// # Errors
    /// The backend's.
    #[inline]
    pub fn get(&mut self, hash: KeyHash, key: &K) -> Result<Option<&V>, StateError> {
        let place = self.cache.find(hash.in_group(), key)?;
        Ok(place.map(|place| &self.cache.read(place).cell.value))
    }

    /// The value of the key, made if there is none.
    ///
    /// # Errors
    /// The backend's.
    #[inline(always)]
    pub fn get_or_insert_with(
        &mut self,
        hash: KeyHash,
        key: K,
        value: impl FnOnce() -> V,
    ) -> Result<&mut V, StateError> {
        let place = match self.cache.find(hash.in_group(), &key)? {
            Some(place) => place,
            None => self.insert_absent(hash, key, value())?,
        };
        Ok(self.at(place))
    }

    /// Out of the way of who finds what is there.
    #[inline(never)]
    fn insert_absent(&mut self, hash: KeyHash, key: K, value: V) -> Result<Place, StateError> {
        self.cache.insert(hash.in_group(), key, One { value, touched: () })
    }

    /// Gives the key this value, whatever it had. Asks no disk.
    ///
    /// # Errors
    /// The map is being drained.
    pub fn insert(&mut self, hash: KeyHash, key: K, value: V) -> Result<(), StateError> {
        match self.cache.find_in_memory(hash.in_group(), &key) {
            Some(place) => *self.at(place) = value,
            None => drop(self.cache.insert(hash.in_group(), key, One { value, touched: () })?),
        }
        Ok(())
    }

    /// Forgets the key. Asks no disk.
    pub fn remove(&mut self, hash: KeyHash, key: &K) {
        self.cache.remove(hash.in_group(), key);
    }

    /// Forgets the key and gives the value it had.
    ///
    /// # Errors
    /// The backend's.
    pub fn take(&mut self, hash: KeyHash, key: &K) -> Result<Option<V>, StateError> {
        let value = self.get(hash, key)?.cloned();
        if value.is_some() {
            self.remove(hash, key);
        }
        Ok(value)
    }

    /// Takes about `most` entries out and appends them to `out`; false when those were the last, and then the map is as new.
    ///
    /// A barrier may come between two calls, and keys that are left may be asked for, changed and removed. Nothing may be added from the
    /// first call until it gives false.
    ///
    /// # Errors
    /// The backend's.
    pub fn pop(&mut self, most: usize, out: &mut Vec<(K, V)>) -> Result<bool, StateError> {
        self.cache.pop(most, out)
    }

    /// Takes everything out.
    ///
    /// # Errors
    /// The backend's.
    pub fn drain(&mut self) -> Result<Vec<(K, V)>, StateError> {
        let mut all = Vec::new();
        while self.pop(usize::MAX / 2, &mut all)? {}
        Ok(all)
    }

    /// Forgets everything. Asks no disk.
    pub fn clear(&mut self) {
        self.cache.void_all();
    }

    /// Visits every key and value, in no order. What is only in the backend is read, and not kept in memory. `visit` must not
    /// wait for anything: the thread that writes a snapshot, and the backend, may wait for it.
    ///
    /// # Errors
    /// The backend's.
    pub fn for_each(&mut self, mut visit: impl FnMut(&K, &V)) -> Result<(), StateError> {
        self.cache.for_each(|key, value, ()| visit(key, value))
    }

    /// Visits about `most` keys and values that the tour has not come to, in no order; false when those were the last. A tour
    /// begins as `Tour::default()`. Nothing is held between two calls, so that one may wait there, but nothing else may
    /// be done with the map before the tour is at its end or given up. `visit` should only take what is needed.
    ///
    /// # Errors
    /// The backend's.
    pub fn visit_some(
        &mut self,
        tour: &mut Tour,
        most: usize,
        visit: impl FnMut(&K, &V),
    ) -> Result<bool, StateError> {
        self.cache.visit_some(tour, most, visit)
    }

    /// Ends a batch: takes back what was frozen and is written by now, and makes room if the store's budget asks for it.
    ///
    /// *Blocking*: writes to the backend when memory is short. Waits for the snapshot to be written when that is not done and
    /// memory is very short ([`Store::waited`]).
    ///
    /// # Errors
    /// The backend's, or the wait was cancelled.
    pub fn batch_end(&mut self) -> Result<(), StateError> {
        self.cache.batch_end()
    }

    /// Adds to the snapshot what changed since the last barrier. Costs nothing per entry.
    ///
    /// *Blocking*: waits until every earlier snapshot of the store is settled ([`Store::is_settled`]).
    ///
    /// # Errors
    /// The wait was cancelled.
    pub fn freeze(&mut self, snapshot: &mut Snapshot) -> Result<(), StateError> {
        self.cache.freeze(snapshot)
    }

    /// How many entries are in memory.
    pub fn cached(&self) -> usize {
        self.cache.entries()
    }
}

impl<K: Key, V: State> KeyedState for StateMap<K, V> {
    fn batch_end(&mut self) -> Result<(), StateError> {
        self.cache.batch_end()
    }
    fn freeze(&mut self, snapshot: &mut Snapshot) -> Result<(), StateError> {
        self.cache.freeze(snapshot)
    }
}

#[cfg(test)]
#[path = "state_map_tests.rs"]
mod tests;
