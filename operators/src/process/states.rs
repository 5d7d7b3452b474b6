//! States with names, beside the one state that every process function has: what all kinds share, and the values.
// HOT: an access is one probe of a table. No allocation, lock, log or clock of its own.

use std::fmt;
use std::marker::PhantomData;

use weir_engine::{Key, KeyHash, Result, TaskError};
use weir_state::StateError;
use weir_state::keyed::{self, KeyedState, State, Table};
use weir_state::schema::Schema;
use weir_state::store::{Snapshot, Store};
use weir_state::ttl::Ttl;

use super::KeyedContext;
use super::collections::{List, Map};
use super::folds::{Aggregating, Reducing};
#[cfg(doc)]
use crate::aggregate::Aggregate;
use sealed::{Held, Kind};

/// A state of a process function, declared in a field of it: a [`ValueState`], [`ListState`], [`MapState`],
/// [`ReducingState`] or [`AggregatingState`]. It is open once the function gives it in
/// [`ProcessFunction::states`](super::ProcessFunction::states), which shows how all this is used.
///
/// A copy is the declaration alone, as the recipe of an operator must be: what is kept stays with the original.
///
/// *Errors* of every access: what is kept cannot be read, or the state is not open. Pass them on.
pub struct Named<K: Key, D: Kind<K>> {
    table: Table<K, D::Value>,
    kind: D,
    held: Option<D::Held>,
}

/// Any [`Named`] state.
pub trait NamedState<K: Key>: Held<K> {}
impl<K: Key, D: Kind<K>> NamedState<K> for Named<K, D> {}

/// A value per key.
pub type ValueState<K, V> = Named<K, Value<V>>;
/// A list per key. It is written as a whole: for what grows to thousands, a [`MapState`] writes less. With a TTL each element
/// expires by itself.
pub type ListState<K, T> = Named<K, List<T>>;
/// A map per key, of any size: only what is asked for is read, and only what changed is written. With a TTL each entry
/// expires by itself.
pub type MapState<K, M, V> = Named<K, Map<M, V>>;
/// A value per key that others are merged into, by `F: Fn(&mut V, V)`.
pub type ReducingState<K, V, F> = Named<K, Reducing<V, F>>;
/// An [`Aggregate`] per key.
pub type AggregatingState<K, In, A> = Named<K, Aggregating<In, A>>;

pub(super) mod sealed {
    use super::*;

    /// What the operator does with a state.
    pub trait Held<K> {
        /// # Errors
        /// The store refuses it.
        fn open(&mut self, store: &Store) -> Result<()>;
        /// # Errors
        /// What is kept cannot be read.
        fn prefetch(&mut self, keys: &[(KeyHash, &K)]) -> Result<()>;
        /// # Errors
        /// What is kept cannot be written.
        fn batch_end(&mut self) -> Result<()>;
        /// # Errors
        /// The attempt is being cancelled.
        fn freeze(&mut self, into: &mut Snapshot) -> Result<()>;
    }

    /// How a state keeps what.
    pub trait Kind<K: Key>: Clone {
        /// What its table is declared with.
        type Value: State;
        /// What is there once it is open.
        type Held: KeyedState;
        /// # Errors
        /// The store refuses it.
        fn open(&self, store: &Store, table: Table<K, Self::Value>) -> Result<Self::Held, StateError>;
        /// # Errors
        /// What is kept cannot be read.
        fn prefetch(held: &mut Self::Held, keys: &[(KeyHash, &K)]) -> Result<(), StateError>;
        /// Forgets what is kept of a key.
        fn clear(held: &mut Self::Held, hash: KeyHash, key: &K);
    }
}

impl<K: Key, D: Kind<K>> Named<K, D> {
    pub(super) fn new(name: &str, kind: D) -> Self {
        Named { table: Table::new(name), kind, held: None }
    }

    /// The versions that the type of what is kept (of a list's element, a map's value, an accumulator) has had:
    /// [`ProcessFunction::schema`](super::ProcessFunction::schema) shows it.
    #[must_use]
    pub fn schema(self, schema: Schema<D::Value>) -> Self {
        Named { table: self.table.schema(schema), ..self }
    }

    /// How long what is kept lives. It may be turned on and off and changed over what a checkpoint holds: with a TTL turned
    /// on, all of that counts as touched at the restore. Event time is where the last watermark was; the machine's
    /// clock is read once per batch.
    #[must_use]
    pub fn ttl(self, ttl: impl Into<Option<Ttl>>) -> Self {
        Named { table: self.table.ttl(ttl), ..self }
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.table.name()
    }

    /// Forgets what is kept of the key. Asks no disk.
    ///
    /// # Errors
    /// The state is not open.
    pub fn clear<S>(&mut self, cx: &KeyedContext<'_, K, S>) -> Result<()> {
        let (hash, key) = cx.at();
        D::clear(self.held()?, hash, key);
        Ok(())
    }

    #[inline]
    pub(super) fn held(&mut self) -> Result<&mut D::Held> {
        match &mut self.held {
            Some(held) => Ok(held),
            None => Err(not_open(self.table.name())),
        }
    }
}

#[cold]
fn not_open(name: &str) -> TaskError {
    TaskError::user(format!("the state '{name}' is not open: give it in `ProcessFunction::states`"))
}

impl<K: Key, D: Kind<K>> Clone for Named<K, D> {
    fn clone(&self) -> Self {
        Named { table: self.table.clone(), kind: self.kind.clone(), held: None }
    }
}

impl<K: Key, D: Kind<K>> fmt::Debug for Named<K, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {}", self.table, if self.held.is_some() { "open" } else { "not open" })
    }
}

impl<K: Key, D: Kind<K>> Held<K> for Named<K, D> {
    fn open(&mut self, store: &Store) -> Result<()> {
        self.held = Some(self.kind.open(store, self.table.clone())?);
        Ok(())
    }
    fn prefetch(&mut self, keys: &[(KeyHash, &K)]) -> Result<()> {
        Ok(D::prefetch(self.held()?, keys)?)
    }
    fn batch_end(&mut self) -> Result<()> {
        Ok(self.held()?.batch_end()?)
    }
    fn freeze(&mut self, into: &mut Snapshot) -> Result<()> {
        Ok(self.held()?.freeze(into)?)
    }
}

/// See [`ValueState`].
#[derive(Debug)]
pub struct Value<V>(PhantomData<fn() -> V>);

impl<V> Clone for Value<V> {
    fn clone(&self) -> Self {
        Value(PhantomData)
    }
}

impl<K: Key, V: State> Kind<K> for Value<V> {
    type Value = V;
    type Held = keyed::ValueState<K, V>;
    fn open(&self, store: &Store, table: Table<K, V>) -> Result<Self::Held, StateError> {
        store.value_state(table)
    }
    fn prefetch(held: &mut Self::Held, keys: &[(KeyHash, &K)]) -> Result<(), StateError> {
        held.prefetch(keys.iter().copied())
    }
    fn clear(held: &mut Self::Held, hash: KeyHash, key: &K) {
        held.clear(hash, key);
    }
}

impl<K: Key, V: State> Named<K, Value<V>> {
    /// A state of this name, unique within the function.
    #[expect(clippy::self_named_constructors, reason = "users say ValueState::named and so on")]
    pub fn named(name: &str) -> Self {
        Named::new(name, Value(PhantomData))
    }

    /// The value, if there is one.
    ///
    /// # Errors
    /// As said of [`Named`].
    #[inline]
    pub fn get<S>(&mut self, cx: &KeyedContext<'_, K, S>) -> Result<Option<&V>> {
        let (hash, key) = cx.at();
        Ok(self.held()?.get(hash, key)?)
    }

    /// The value, if there is one, to be changed.
    ///
    /// # Errors
    /// As said of [`Named`].
    #[inline]
    pub fn get_mut<S>(&mut self, cx: &KeyedContext<'_, K, S>) -> Result<Option<&mut V>> {
        let (hash, key) = cx.at();
        Ok(self.held()?.get_mut(hash, key)?)
    }

    /// The value, to be changed, made if there is none.
    ///
    /// # Errors
    /// As said of [`Named`].
    #[inline]
    pub fn get_or_insert_with<S>(
        &mut self,
        cx: &KeyedContext<'_, K, S>,
        value: impl FnOnce() -> V,
    ) -> Result<&mut V> {
        let (hash, key) = cx.at();
        Ok(self.held()?.get_or_insert_with(hash, key, value)?)
    }

    /// Puts a value in place of what there was.
    ///
    /// # Errors
    /// As said of [`Named`].
    #[inline]
    pub fn set<S>(&mut self, cx: &KeyedContext<'_, K, S>, value: V) -> Result<()> {
        let (hash, key) = cx.at();
        Ok(self.held()?.set(hash, key, value)?)
    }
}

#[cfg(test)]
#[path = "states_tests.rs"]
mod tests;
