//! `MapState`: a map per key, each entry read, written and expiring by itself.
// HOT: `get` and `put` in a map touched since the last barrier: one probe for the key, one for the entry's key and its hash.

use std::fmt;

use super::bundle::Bundle;
use super::cache::Cache;
use super::classes::Place;
use super::generation::{DIRTY, Entry, SEEN};
use super::layer::Sub;
use super::spec::Table;
use super::{Key, KeyedState, State};
use crate::codec::CodecId;
use crate::error::StateError;
use crate::key::KeyHash;
use crate::store::{Snapshot, Store};

impl Store {
    /// Declares a table of entries and gives a map of them per key.
    ///
    /// *Blocking*: as [`register`](Self::register).
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn map_state<K: Key, M: Key, V: State>(
        &self,
        table: Table<K, V>,
    ) -> Result<MapState<K, M, V>, StateError> {
        Ok(MapState { cache: self.timed(&table, CodecId::NESTED)? })
    }
}

/// A map per key, of any size: only what is asked for is read, and only what changed is written. [`entries`](Self::entries)
/// reads all of one.
///
/// With a TTL an entry expires one TTL after it was put (or read, where that counts). An entry may have an empty value: it is
/// there until it expires or is removed.
///
/// *Order*, *Errors*: as for [`StateMap`](super::StateMap).
pub struct MapState<K, M, V> {
    cache: Cache<K, Bundle<M, V>, V>,
}

impl<K, M, V> fmt::Debug for MapState<K, M, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MapState({} live)", self.cache.live.len())
    }
}

impl<K: Key, M: Key, V: State> MapState<K, M, V> {
    /// Looks the entries of a batch up at once, so that the calls that follow need no disk.
    ///
    /// # Errors
    /// The backend's.
    pub fn prefetch<'a>(
        &mut self,
        entries: impl Iterator<Item = (KeyHash, &'a K, &'a M)>,
    ) -> Result<(), StateError> {
        if self.cache.complete {
            return Ok(());
        }
        let mut wanted = Vec::new();
        for (hash, key, inner) in entries {
            let Some(place) = self.cache.find(hash.in_group(), key)? else { continue };
            if !self.cache.live.at_mut(place).0.cell.knows(inner) {
                let mut bytes = Vec::with_capacity(48);
                self.cache.home.coder.key(self.cache.layout, key, &mut bytes)?;
                self.cache.home.coder.inner_key(inner, &mut bytes)?;
                wanted.push((bytes, (hash.in_group(), key, inner)));
            }
        }
        wanted.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        wanted.dedup_by(|a, b| a.0 == b.0);
        let (keys, wanted): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
        let mut found = vec![None; keys.len()];
        self.cache.home.backend.get_many(&keys, &mut |at, value| found[at] = Some(value.to_vec()))?;
        for ((slot, key, inner), value) in wanted.into_iter().zip(found) {
            let Some(place) = self.cache.find(slot, key)? else { continue };
            let home = self.cache.home.clone();
            let (cell, _) = self.cache.read_on(place);
            if !cell.knows(inner) {
                cell.take_in(&home, inner.clone(), value.as_deref())?;
            }
        }
        Ok(())
    }

    /// The value of an entry, to be read only.
    ///
    /// # Errors
    /// The backend's.
    #[inline]
    pub fn get(&mut self, hash: KeyHash, key: &K, inner: &M) -> Result<Option<&V>, StateError> {
        let Some(place) = self.cache.find(hash.in_group(), key)? else { return Ok(None) };
        Ok(self.read(place, key, inner)?.and_then(|sub| sub.value.as_ref()))
    }

    /// The value of an entry, to be changed.
    ///
    /// # Errors
    /// The backend's.
    pub fn get_mut(&mut self, hash: KeyHash, key: &K, inner: &M) -> Result<Option<&mut V>, StateError> {
        let Some(place) = self.cache.find(hash.in_group(), key)? else { return Ok(None) };
        let now = self.cache.home.now();
        if self.read(place, key, inner)?.is_none() {
            return Ok(None);
        }
        Ok(self.cache.at_mut(place).cell.change(inner).and_then(|sub| {
            sub.touch(now);
            sub.value.as_mut()
        }))
    }

    /// True when the entry is there, whatever its value.
    ///
    /// # Errors
    /// The backend's.
    pub fn contains(&mut self, hash: KeyHash, key: &K, inner: &M) -> Result<bool, StateError> {
        Ok(self.get(hash, key, inner)?.is_some())
    }

    /// The entry at a place that has a value which is alive. Counts as a read.
    fn read(&mut self, place: Place, key: &K, inner: &M) -> Result<Option<&Sub<M, V>>, StateError> {
        let Cache { live, heavy, home, layout, .. } = &mut self.cache;
        let (Entry { cell, .. }, marks) = live.at_mut(place);
        *marks |= SEEN;
        if !cell.knows(inner) {
            heavy.loosen(place, marks);
        }
        let prefix = |into: &mut Vec<u8>| home.coder.key(*layout, key, into).map(drop);
        let alive = |sub: &&Sub<M, V>| sub.value.is_some();
        if home.ttl.is_none() {
            return Ok(cell.find(home, prefix, inner)?.filter(alive));
        }
        let Some(sub) = cell.find(home, prefix, inner)?.filter(alive) else { return Ok(None) };
        if home.is_over(sub.millis()) {
            heavy.loosen(place, marks);
            *marks |= DIRTY;
            cell.remove(inner);
            return Ok(None);
        }
        if home.reads_touch() {
            heavy.loosen(place, marks);
            *marks |= DIRTY;
            cell.touch(inner, home.now());
        }
        Ok(cell.find(home, prefix, inner)?.filter(alive))
    }

    /// Gives an entry a value.
    ///
    /// # Errors
    /// The backend's.
    pub fn put(&mut self, hash: KeyHash, key: &K, inner: M, value: V) -> Result<(), StateError> {
        let slot = hash.in_group();
        let place = match self.cache.find(slot, key)? {
            Some(place) => place,
            None => self.cache.insert(slot, key.clone(), Bundle::empty())?,
        };
        let now = self.cache.home.now();
        self.cache.at_mut(place).cell.put(inner, value, now);
        Ok(())
    }

    /// Takes an entry away. Asks no disk.
    ///
    /// # Errors
    /// The backend's.
    pub fn remove(&mut self, hash: KeyHash, key: &K, inner: &M) -> Result<(), StateError> {
        if let Some(place) = self.cache.find(hash.in_group(), key)? {
            self.cache.at_mut(place).cell.remove(inner);
        }
        Ok(())
    }

    /// All entries of a key, in no order. The first call reads what is not in memory.
    ///
    /// # Errors
    /// The backend's.
    pub fn entries(
        &mut self,
        hash: KeyHash,
        key: &K,
    ) -> Result<impl Iterator<Item = (&M, &V)> + use<'_, K, M, V>, StateError> {
        let place = self.cache.find(hash.in_group(), key)?;
        if let Some(place) = place {
            let home = self.cache.home.clone();
            let mut prefix = Vec::new();
            home.coder.key(self.cache.layout, key, &mut prefix)?;
            let (cell, marks) = self.cache.read_on(place);
            cell.complete(&home, &prefix)?;
            if home.ttl.is_some() && cell.read_all(&home) {
                *marks |= DIRTY;
            }
        }
        Ok(place.into_iter().flat_map(|place| self.cache.at(place).cell.iter()))
    }

    /// True when a key has no entry. Reads no more than it takes to know, and is no read of any entry.
    ///
    /// # Errors
    /// The backend's.
    pub fn is_empty(&mut self, hash: KeyHash, key: &K) -> Result<bool, StateError> {
        let Some(place) = self.cache.find(hash.in_group(), key)? else { return Ok(true) };
        let home = self.cache.home.clone();
        let mut prefix = Vec::new();
        home.coder.key(self.cache.layout, key, &mut prefix)?;
        self.cache.read_on(place).0.is_empty(&home, &prefix)
    }

    /// Takes all entries of a key away. Asks no disk.
    pub fn clear(&mut self, hash: KeyHash, key: &K) {
        self.cache.remove(hash.in_group(), key);
    }
}

impl<K: Key, M: Key, V: State> KeyedState for MapState<K, M, V> {
    fn batch_end(&mut self) -> Result<(), StateError> {
        self.cache.batch_end()
    }
    fn freeze(&mut self, snapshot: &mut Snapshot) -> Result<(), StateError> {
        self.cache.freeze(snapshot)
    }
}

#[cfg(test)]
#[path = "map_state_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "map_ttl_tests.rs"]
mod ttl_tests;
