//! `ValueState`, `ReducingState`, `AggregatingState`: one value per key, set, or folded from what is added. With a TTL if asked.
// HOT: `get`, `get_mut` and `add` of a key touched since the last barrier: one probe. No allocation, lock or clock.

use std::fmt;

use super::cache::Cache;
use super::cell::One;
use super::generation::Groups;
use super::home::Home;
use super::spec::Table;
use super::{Key, KeyedState, State};
use crate::codec::CodecId;
use crate::error::StateError;
use crate::key::KeyHash;
use crate::store::{Snapshot, Store};

impl Store {
    /// Declares a table and gives a value per key.
    ///
    /// *Blocking*: as [`register`](Self::register).
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn value_state<K: Key, V: State>(&self, table: Table<K, V>) -> Result<ValueState<K, V>, StateError> {
        Ok(ValueState { cache: self.timed(&table, CodecId::ORDERED)? })
    }

    /// Declares a table and gives a value per key that added ones are merged into.
    ///
    /// # Errors
    /// As [`value_state`](Self::value_state).
    pub fn reducing_state<K: Key, V: State, F: Fn(&mut V, V)>(
        &self,
        table: Table<K, V>,
        reduce: F,
    ) -> Result<ReducingState<K, V, F>, StateError> {
        Ok(ReducingState { held: self.value_state(table)?, reduce })
    }

    /// Declares a table of accumulators and gives one per key.
    ///
    /// # Errors
    /// As [`value_state`](Self::value_state).
    pub fn aggregating_state<K: Key, In, F: Fold<In>>(
        &self,
        table: Table<K, F::Acc>,
        fold: F,
    ) -> Result<AggregatingState<K, In, F>, StateError> {
        Ok(AggregatingState { held: self.value_state(table)?, fold })
    }

    /// The cache over a table whose values may expire.
    pub(super) fn timed<K: Key, V: State, C: super::cell::Cell<K, Value = V>>(
        &self,
        table: &Table<K, V>,
        keys: CodecId,
    ) -> Result<Cache<K, C, V>, StateError> {
        let home = Home::new(self, table, keys)?;
        let groups = if home.fresh { Groups::default() } else { Groups::all(self.key_groups()) };
        Ok(Cache::new(home, None, groups))
    }
}

/// A value per key. With a TTL on its table, a value that has expired is as if it were not there.
///
/// *Order*, *Errors*: as for [`StateMap`](super::StateMap).
pub struct ValueState<K, V> {
    pub(super) cache: Cache<K, One<V, i64>, V>,
}

impl<K, V> fmt::Debug for ValueState<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ValueState({} live)", self.cache.live.len())
    }
}

impl<K: Key, V: State> ValueState<K, V> {
    /// See [`StateMap::prefetch`](super::StateMap::prefetch).
    ///
    /// # Errors
    /// The backend's.
    pub fn prefetch<'a>(&mut self, keys: impl Iterator<Item = (KeyHash, &'a K)>) -> Result<(), StateError> {
        self.cache.prefetch(keys.map(|(hash, key)| (hash.in_group(), key)))
    }

    /// The value of the key, to be read only.
    ///
    /// # Errors
    /// The backend's.
    #[inline]
    pub fn get(&mut self, hash: KeyHash, key: &K) -> Result<Option<&V>, StateError> {
        let place = self.cache.find_alive(hash.in_group(), key)?;
        Ok(place.map(|place| &self.cache.at(place).cell.value))
    }

    /// The value of the key, to be changed.
    ///
    /// # Errors
    /// The backend's.
    #[inline]
    pub fn get_mut(&mut self, hash: KeyHash, key: &K) -> Result<Option<&mut V>, StateError> {
        let place = self.cache.find_alive(hash.in_group(), key)?;
        Ok(place.map(|place| self.cache.write_at(place)))
    }

    /// The value of the key, to be changed, made if there is none.
    ///
    /// # Errors
    /// The backend's.
    #[inline]
    pub fn get_or_insert_with(
        &mut self,
        hash: KeyHash,
        key: &K,
        value: impl FnOnce() -> V,
    ) -> Result<&mut V, StateError> {
        self.cache.write_or_insert_with(hash.in_group(), key, value)
    }

    /// Gives the key this value.
    ///
    /// # Errors
    /// The backend's.
    pub fn set(&mut self, hash: KeyHash, key: &K, value: V) -> Result<(), StateError> {
        self.cache.put(hash.in_group(), key, value)
    }

    /// Takes the value of the key away. Asks no disk.
    pub fn clear(&mut self, hash: KeyHash, key: &K) {
        self.cache.remove(hash.in_group(), key);
    }

    /// Visits every key and value that is alive, in no order.
    ///
    /// # Errors
    /// The backend's.
    pub fn for_each(&mut self, mut visit: impl FnMut(&K, &V)) -> Result<(), StateError> {
        let home = self.cache.home.clone();
        self.cache.for_each(|key, value, touched| {
            if !home.is_over((touched != i64::MIN).then_some(touched)) {
                visit(key, value);
            }
        })
    }
}

impl<K: Key, V: State> KeyedState for ValueState<K, V> {
    fn batch_end(&mut self) -> Result<(), StateError> {
        self.cache.batch_end()
    }
    fn freeze(&mut self, snapshot: &mut Snapshot) -> Result<(), StateError> {
        self.cache.freeze(snapshot)
    }
}

/// A value per key; what is added is merged into it.
///
/// *Order*, *Errors*: as for [`StateMap`](super::StateMap).
pub struct ReducingState<K, V, F> {
    held: ValueState<K, V>,
    reduce: F,
}

impl<K, V, F> fmt::Debug for ReducingState<K, V, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReducingState({:?})", self.held)
    }
}

impl<K: Key, V: State, F: Fn(&mut V, V)> ReducingState<K, V, F> {
    /// See [`StateMap::prefetch`](super::StateMap::prefetch).
    ///
    /// # Errors
    /// The backend's.
    pub fn prefetch<'a>(&mut self, keys: impl Iterator<Item = (KeyHash, &'a K)>) -> Result<(), StateError> {
        self.held.prefetch(keys)
    }

    /// Merges a value into that of the key, or makes it the value.
    ///
    /// # Errors
    /// The backend's.
    #[inline]
    pub fn add(&mut self, hash: KeyHash, key: &K, value: V) -> Result<(), StateError> {
        let slot = hash.in_group();
        match self.held.cache.find_alive(slot, key)? {
            Some(place) => (self.reduce)(self.held.cache.write_at(place), value),
            None => self.held.cache.put(slot, key, value)?,
        }
        Ok(())
    }

    /// What was added came to; nothing when nothing was.
    ///
    /// # Errors
    /// The backend's.
    pub fn get(&mut self, hash: KeyHash, key: &K) -> Result<Option<&V>, StateError> {
        self.held.get(hash, key)
    }

    /// Forgets what was added. Asks no disk.
    pub fn clear(&mut self, hash: KeyHash, key: &K) {
        self.held.clear(hash, key);
    }
}

impl<K: Key, V: State, F: Fn(&mut V, V)> KeyedState for ReducingState<K, V, F> {
    fn batch_end(&mut self) -> Result<(), StateError> {
        self.held.batch_end()
    }
    fn freeze(&mut self, snapshot: &mut Snapshot) -> Result<(), StateError> {
        self.held.freeze(snapshot)
    }
}

/// How what is added becomes an accumulator, and that a result.
pub trait Fold<In> {
    /// What is kept.
    type Acc: State;
    /// What is asked for.
    type Out;

    /// The accumulator of nothing.
    fn create(&self) -> Self::Acc;
    /// Takes one in.
    fn add(&self, acc: &mut Self::Acc, value: &In);
    /// What it comes to.
    fn result(&self, acc: &Self::Acc) -> Self::Out;
}

/// An accumulator per key.
///
/// *Order*, *Errors*: as for [`StateMap`](super::StateMap).
pub struct AggregatingState<K, In, F: Fold<In>> {
    held: ValueState<K, F::Acc>,
    fold: F,
}

impl<K, In, F: Fold<In>> fmt::Debug for AggregatingState<K, In, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AggregatingState({:?})", self.held)
    }
}

impl<K: Key, In, F: Fold<In>> AggregatingState<K, In, F> {
    /// See [`StateMap::prefetch`](super::StateMap::prefetch).
    ///
    /// # Errors
    /// The backend's.
    pub fn prefetch<'a>(&mut self, keys: impl Iterator<Item = (KeyHash, &'a K)>) -> Result<(), StateError> {
        self.held.prefetch(keys)
    }

    /// Takes a value into the accumulator of the key.
    ///
    /// # Errors
    /// The backend's.
    #[inline]
    pub fn add(&mut self, hash: KeyHash, key: &K, value: &In) -> Result<(), StateError> {
        let acc = self.held.get_or_insert_with(hash, key, || self.fold.create())?;
        self.fold.add(acc, value);
        Ok(())
    }

    /// What was added comes to; nothing when nothing was.
    ///
    /// # Errors
    /// The backend's.
    pub fn get(&mut self, hash: KeyHash, key: &K) -> Result<Option<F::Out>, StateError> {
        let acc = self.held.get(hash, key)?;
        Ok(acc.map(|acc| self.fold.result(acc)))
    }

    /// Forgets what was added. Asks no disk.
    pub fn clear(&mut self, hash: KeyHash, key: &K) {
        self.held.clear(hash, key);
    }
}

impl<K: Key, In, F: Fold<In>> KeyedState for AggregatingState<K, In, F> {
    fn batch_end(&mut self) -> Result<(), StateError> {
        self.held.batch_end()
    }
    fn freeze(&mut self, snapshot: &mut Snapshot) -> Result<(), StateError> {
        self.held.freeze(snapshot)
    }
}

#[cfg(test)]
#[path = "states_tests.rs"]
mod tests;
