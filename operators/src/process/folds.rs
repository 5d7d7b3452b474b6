//! The states with names that take many values and keep one: [`ReducingState`](super::ReducingState) and
//! [`AggregatingState`](super::AggregatingState).
// HOT: an access is one probe of a table. No allocation, lock, log or clock of its own.

use std::fmt;
use std::marker::PhantomData;

use weir_engine::{Key, KeyHash, Result};
use weir_state::StateError;
use weir_state::keyed::{self, Fold, State, Table};
use weir_state::store::Store;

use super::KeyedContext;
use super::states::Named;
use super::states::sealed::Kind;
use crate::aggregate::Aggregate;

/// See [`ReducingState`](super::ReducingState).
pub struct Reducing<V, F> {
    reduce: F,
    _value: PhantomData<fn() -> V>,
}

impl<V, F: Clone> Clone for Reducing<V, F> {
    fn clone(&self) -> Self {
        Reducing { reduce: self.reduce.clone(), _value: PhantomData }
    }
}

impl<V, F> fmt::Debug for Reducing<V, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reducing")
    }
}

impl<K: Key, V: State, F: Fn(&mut V, V) + Clone> Kind<K> for Reducing<V, F> {
    type Value = V;
    type Held = keyed::ReducingState<K, V, F>;
    fn open(&self, store: &Store, table: Table<K, V>) -> Result<Self::Held, StateError> {
        store.reducing_state(table, self.reduce.clone())
    }
    fn prefetch(held: &mut Self::Held, keys: &[(KeyHash, &K)]) -> Result<(), StateError> {
        held.prefetch(keys.iter().copied())
    }
    fn clear(held: &mut Self::Held, hash: KeyHash, key: &K) {
        held.clear(hash, key);
    }
}

impl<K: Key, V: State, F: Fn(&mut V, V) + Clone> Named<K, Reducing<V, F>> {
    /// A state of this name, unique within the function, that merges what is added by `reduce`.
    #[expect(clippy::self_named_constructors, reason = "users say ValueState::named and so on")]
    pub fn named(name: &str, reduce: F) -> Self {
        Named::new(name, Reducing { reduce, _value: PhantomData })
    }

    /// Merges a value into the one there is, or makes it that.
    ///
    /// # Errors
    /// What is kept cannot be read.
    #[inline]
    pub fn add<S>(&mut self, cx: &KeyedContext<'_, K, S>, value: V) -> Result<()> {
        let (hash, key) = cx.at();
        Ok(self.held()?.add(hash, key, value)?)
    }

    /// What was added came to; nothing when nothing was.
    ///
    /// # Errors
    /// As for `add`.
    #[inline]
    pub fn get<S>(&mut self, cx: &KeyedContext<'_, K, S>) -> Result<Option<&V>> {
        let (hash, key) = cx.at();
        Ok(self.held()?.get(hash, key)?)
    }
}

/// See [`AggregatingState`](super::AggregatingState).
pub struct Aggregating<In, A> {
    aggregate: A,
    _in: PhantomData<fn(In)>,
}

impl<In, A: Clone> Clone for Aggregating<In, A> {
    fn clone(&self) -> Self {
        Aggregating { aggregate: self.aggregate.clone(), _in: PhantomData }
    }
}

impl<In, A> fmt::Debug for Aggregating<In, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Aggregating")
    }
}

/// An aggregate, as the state below knows it.
#[derive(Clone, Debug)]
pub struct Folding<A>(A);

impl<In, A: Aggregate<In>> Fold<In> for Folding<A> {
    type Acc = A::Acc;
    type Out = A::Out;
    fn create(&self) -> A::Acc {
        self.0.create()
    }
    #[inline]
    fn add(&self, acc: &mut A::Acc, value: &In) {
        self.0.add(acc, value);
    }
    fn result(&self, acc: &A::Acc) -> A::Out {
        self.0.result(acc.clone())
    }
}

impl<K: Key, In, A: Aggregate<In>> Kind<K> for Aggregating<In, A> {
    type Value = A::Acc;
    type Held = keyed::AggregatingState<K, In, Folding<A>>;
    fn open(&self, store: &Store, table: Table<K, A::Acc>) -> Result<Self::Held, StateError> {
        store.aggregating_state(table, Folding(self.aggregate.clone()))
    }
    fn prefetch(held: &mut Self::Held, keys: &[(KeyHash, &K)]) -> Result<(), StateError> {
        held.prefetch(keys.iter().copied())
    }
    fn clear(held: &mut Self::Held, hash: KeyHash, key: &K) {
        held.clear(hash, key);
    }
}

impl<K: Key, In, A: Aggregate<In>> Named<K, Aggregating<In, A>> {
    /// A state of this name, unique within the function, that computes `aggregate` of what is added.
    #[expect(clippy::self_named_constructors, reason = "users say ValueState::named and so on")]
    pub fn named(name: &str, aggregate: A) -> Self {
        Named::new(name, Aggregating { aggregate, _in: PhantomData })
    }

    /// Takes a value in.
    ///
    /// # Errors
    /// What is kept cannot be read.
    #[inline]
    pub fn add<S>(&mut self, cx: &KeyedContext<'_, K, S>, value: &In) -> Result<()> {
        let (hash, key) = cx.at();
        Ok(self.held()?.add(hash, key, value)?)
    }

    /// What was added comes to; nothing when nothing was.
    ///
    /// # Errors
    /// As for `add`.
    #[inline]
    pub fn get<S>(&mut self, cx: &KeyedContext<'_, K, S>) -> Result<Option<A::Out>> {
        let (hash, key) = cx.at();
        Ok(self.held()?.get(hash, key)?)
    }
}
