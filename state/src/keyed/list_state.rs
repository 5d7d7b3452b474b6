//! `ListState`: a list per key, written as a whole; with a TTL each element expires by itself.
// HOT: `push` to a list touched since the last barrier: one probe, and what a `Vec` costs.

use std::fmt;

use super::cache::Cache;
use super::cell::One;
use super::home::Home;
use super::spec::Table;
use super::{Key, KeyedState, State};
use crate::codec::CodecId;
use crate::error::StateError;
use crate::key::KeyHash;
use crate::schema::Listed;
use crate::store::{Snapshot, Store};

impl Store {
    /// Declares a table of elements and gives a list of them per key. The versions declared are those of the element's type.
    ///
    /// *Blocking*: as [`register`](Self::register).
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn list_state<K: Key, T: State>(&self, table: Table<K, T>) -> Result<ListState<K, T>, StateError> {
        Ok(ListState { cache: self.timed(&table.of_lists(), CodecId::ORDERED)? })
    }
}

/// A list per key. It is written as a whole: for what grows to thousands, a [`MapState`](super::MapState) writes less.
///
/// With a TTL an element expires one TTL after it was pushed (or read, where that counts). Reads do not see it from then on, and
/// what is only pushed to drops what has expired once that is half of it.
///
/// *Order*, *Errors*: as for [`StateMap`](super::StateMap).
pub struct ListState<K, T> {
    pub(super) cache: Cache<K, One<Listed<T>, i64>, Listed<T>>,
}

impl<K, T> fmt::Debug for ListState<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ListState({} live)", self.cache.live.len())
    }
}

impl<K: Key, T: State> ListState<K, T> {
    /// See [`StateMap::prefetch`](super::StateMap::prefetch).
    ///
    /// # Errors
    /// The backend's.
    pub fn prefetch<'a>(&mut self, keys: impl Iterator<Item = (KeyHash, &'a K)>) -> Result<(), StateError> {
        self.cache.prefetch(keys.map(|(hash, key)| (hash.in_group(), key)))
    }

    /// Appends an element.
    ///
    /// # Errors
    /// The backend's.
    #[inline]
    pub fn push(&mut self, hash: KeyHash, key: &K, element: T) -> Result<(), StateError> {
        let at = self.stamp();
        let list = writable(&mut self.cache, hash, key)?;
        list.push(element, at);
        Ok(())
    }

    /// Appends elements.
    ///
    /// # Errors
    /// The backend's.
    pub fn extend(
        &mut self,
        hash: KeyHash,
        key: &K,
        elements: impl IntoIterator<Item = T>,
    ) -> Result<(), StateError> {
        let at = self.stamp();
        let mut elements = elements.into_iter().peekable();
        if elements.peek().is_none() {
            return Ok(());
        }
        let list = writable(&mut self.cache, hash, key)?;
        elements.for_each(|element| list.push(element, at));
        Ok(())
    }

    /// Puts elements in place of all there are; none is as [`clear`](Self::clear).
    ///
    /// # Errors
    /// The backend's.
    pub fn set(&mut self, hash: KeyHash, key: &K, elements: Vec<T>) -> Result<(), StateError> {
        if elements.is_empty() {
            self.clear(hash, key);
            return Ok(());
        }
        let touched = self.stamp().map_or(Vec::new(), |at| vec![at; elements.len()]);
        self.cache.put(hash.in_group(), key, Listed { touched, elements })
    }

    /// The elements, in the order they were pushed; none when there is no list.
    ///
    /// # Errors
    /// The backend's.
    pub fn get(&mut self, hash: KeyHash, key: &K) -> Result<&[T], StateError> {
        let slot = hash.in_group();
        let Some(place) = self.cache.find_alive(slot, key)? else { return Ok(&[]) };
        if self.cache.home.ttl.is_some() {
            let home = self.cache.home.clone();
            if self.cache.at(place).cell.value.has(|at| home.is_over(at)) {
                // Not by `write_at`: what is left gets no older or younger.
                let list = &mut self.cache.at_mut(place).cell.value;
                list.remove_if(|at| home.is_over(at));
                if list.elements.is_empty() {
                    self.cache.remove(slot, key);
                    return Ok(&[]);
                }
            }
            if home.reads_touch() {
                let now = home.now();
                let list = &mut self.cache.at_mut(place).cell.value;
                list.touched = vec![now; list.elements.len()];
            }
        }
        Ok(&self.cache.at(place).cell.value.elements)
    }

    /// Takes the list away. Asks no disk.
    pub fn clear(&mut self, hash: KeyHash, key: &K) {
        self.cache.remove(hash.in_group(), key);
    }

    /// The time that a new element carries.
    fn stamp(&self) -> Option<i64> {
        let home: &Home<K, Listed<T>> = &self.cache.home;
        home.ttl.map(|_| home.now())
    }
}

/// The list of a key, made if there is none. One that nobody reads would keep what has expired for ever: that goes once the element
/// in the middle has, so that it costs nothing to speak of per element.
#[inline]
fn writable<'a, K: Key, T: State>(
    cache: &'a mut Cache<K, One<Listed<T>, i64>, Listed<T>>,
    hash: KeyHash,
    key: &K,
) -> Result<&'a mut Listed<T>, StateError> {
    let home = cache.home.ttl.map(|_| cache.home.clone());
    let list = cache.write_or_insert_with(hash.in_group(), key, Listed::default)?;
    if let Some(home) = home
        && list.is_over_in_the_middle(|at| home.is_over(at))
    {
        list.remove_if(|at| home.is_over(at));
    }
    Ok(list)
}

impl<K: Key, T: State> KeyedState for ListState<K, T> {
    fn batch_end(&mut self) -> Result<(), StateError> {
        self.cache.batch_end()
    }
    fn freeze(&mut self, snapshot: &mut Snapshot) -> Result<(), StateError> {
        self.cache.freeze(snapshot)
    }
}
