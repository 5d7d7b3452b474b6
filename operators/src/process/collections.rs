//! The states with names that hold many things of a key: [`ListState`](super::ListState) and [`MapState`](super::MapState).
// HOT: an access is one probe of a table. No allocation, lock, log or clock of its own.

use std::marker::PhantomData;

use weir_engine::{Key, KeyHash, Result};
use weir_state::StateError;
use weir_state::keyed::{self, State, Table};
use weir_state::store::Store;

use super::KeyedContext;
use super::states::Named;
use super::states::sealed::Kind;

/// See [`ListState`](super::ListState).
#[derive(Debug)]
pub struct List<T>(PhantomData<fn() -> T>);

impl<T> Clone for List<T> {
    fn clone(&self) -> Self {
        List(PhantomData)
    }
}

impl<K: Key, T: State> Kind<K> for List<T> {
    type Value = T;
    type Held = keyed::ListState<K, T>;
    fn open(&self, store: &Store, table: Table<K, T>) -> Result<Self::Held, StateError> {
        store.list_state(table)
    }
    fn prefetch(held: &mut Self::Held, keys: &[(KeyHash, &K)]) -> Result<(), StateError> {
        held.prefetch(keys.iter().copied())
    }
    fn clear(held: &mut Self::Held, hash: KeyHash, key: &K) {
        held.clear(hash, key);
    }
}

impl<K: Key, T: State> Named<K, List<T>> {
    /// A state of this name, unique within the function.
    #[expect(clippy::self_named_constructors, reason = "users say ValueState::named and so on")]
    pub fn named(name: &str) -> Self {
        Named::new(name, List(PhantomData))
    }

    /// The elements, in the order they were pushed; none when there is no list.
    ///
    /// # Errors
    /// As said of [`Named`](super::Named).
    #[inline]
    pub fn get<S>(&mut self, cx: &KeyedContext<'_, K, S>) -> Result<&[T]> {
        let (hash, key) = cx.at();
        Ok(self.held()?.get(hash, key)?)
    }

    /// Appends an element.
    ///
    /// # Errors
    /// As said of [`Named`](super::Named).
    #[inline]
    pub fn push<S>(&mut self, cx: &KeyedContext<'_, K, S>, element: T) -> Result<()> {
        let (hash, key) = cx.at();
        Ok(self.held()?.push(hash, key, element)?)
    }

    /// Appends elements.
    ///
    /// # Errors
    /// As said of [`Named`](super::Named).
    pub fn extend<S>(
        &mut self,
        cx: &KeyedContext<'_, K, S>,
        elements: impl IntoIterator<Item = T>,
    ) -> Result<()> {
        let (hash, key) = cx.at();
        Ok(self.held()?.extend(hash, key, elements)?)
    }

    /// Puts elements in place of all there are.
    ///
    /// # Errors
    /// As said of [`Named`](super::Named).
    pub fn set<S>(&mut self, cx: &KeyedContext<'_, K, S>, elements: Vec<T>) -> Result<()> {
        let (hash, key) = cx.at();
        Ok(self.held()?.set(hash, key, elements)?)
    }
}

/// See [`MapState`](super::MapState).
#[derive(Debug)]
pub struct Map<M, V>(PhantomData<fn() -> (M, V)>);

impl<M, V> Clone for Map<M, V> {
    fn clone(&self) -> Self {
        Map(PhantomData)
    }
}

impl<K: Key, M: Key, V: State> Kind<K> for Map<M, V> {
    type Value = V;
    type Held = keyed::MapState<K, M, V>;
    fn open(&self, store: &Store, table: Table<K, V>) -> Result<Self::Held, StateError> {
        store.map_state(table)
    }
    /// Which entries will be asked for is not known.
    fn prefetch(_: &mut Self::Held, _: &[(KeyHash, &K)]) -> Result<(), StateError> {
        Ok(())
    }
    fn clear(held: &mut Self::Held, hash: KeyHash, key: &K) {
        held.clear(hash, key);
    }
}

impl<K: Key, M: Key, V: State> Named<K, Map<M, V>> {
    /// A state of this name, unique within the function.
    #[expect(clippy::self_named_constructors, reason = "users say ValueState::named and so on")]
    pub fn named(name: &str) -> Self {
        Named::new(name, Map(PhantomData))
    }

    /// The value of an entry, if there is one.
    ///
    /// # Errors
    /// As said of [`Named`](super::Named).
    #[inline]
    pub fn get<S>(&mut self, cx: &KeyedContext<'_, K, S>, entry: &M) -> Result<Option<&V>> {
        let (hash, key) = cx.at();
        Ok(self.held()?.get(hash, key, entry)?)
    }

    /// The value of an entry, if there is one, to be changed.
    ///
    /// # Errors
    /// As said of [`Named`](super::Named).
    #[inline]
    pub fn get_mut<S>(&mut self, cx: &KeyedContext<'_, K, S>, entry: &M) -> Result<Option<&mut V>> {
        let (hash, key) = cx.at();
        Ok(self.held()?.get_mut(hash, key, entry)?)
    }

    /// True when the entry is there, whatever its value.
    ///
    /// # Errors
    /// As said of [`Named`](super::Named).
    pub fn contains<S>(&mut self, cx: &KeyedContext<'_, K, S>, entry: &M) -> Result<bool> {
        let (hash, key) = cx.at();
        Ok(self.held()?.contains(hash, key, entry)?)
    }

    /// Gives an entry a value.
    ///
    /// # Errors
    /// As said of [`Named`](super::Named).
    #[inline]
    pub fn put<S>(&mut self, cx: &KeyedContext<'_, K, S>, entry: M, value: V) -> Result<()> {
        let (hash, key) = cx.at();
        Ok(self.held()?.put(hash, key, entry, value)?)
    }

    /// Takes an entry away.
    ///
    /// # Errors
    /// As said of [`Named`](super::Named).
    pub fn remove<S>(&mut self, cx: &KeyedContext<'_, K, S>, entry: &M) -> Result<()> {
        let (hash, key) = cx.at();
        Ok(self.held()?.remove(hash, key, entry)?)
    }

    /// Fetches entries at once, so that asking for them needs no disk: for
    /// [`ProcessFunction::prefetch`](super::ProcessFunction::prefetch). While all that is used is in memory this does nothing.
    ///
    /// # Errors
    /// As said of [`Named`](super::Named).
    pub fn prefetch_entries<'a>(
        &mut self,
        entries: impl Iterator<Item = (KeyHash, &'a K, &'a M)>,
    ) -> Result<()> {
        Ok(self.held()?.prefetch(entries)?)
    }

    /// All entries, in no order. Reads those that are not in memory.
    ///
    /// # Errors
    /// As said of [`Named`](super::Named).
    pub fn entries<S>(
        &mut self,
        cx: &KeyedContext<'_, K, S>,
    ) -> Result<impl Iterator<Item = (&M, &V)> + use<'_, K, M, V, S>> {
        let (hash, key) = cx.at();
        Ok(self.held()?.entries(hash, key)?)
    }

    /// True when there is no entry. Reads no more than it takes to know.
    ///
    /// # Errors
    /// As said of [`Named`](super::Named).
    pub fn is_empty<S>(&mut self, cx: &KeyedContext<'_, K, S>) -> Result<bool> {
        let (hash, key) = cx.at();
        Ok(self.held()?.is_empty(hash, key)?)
    }
}
