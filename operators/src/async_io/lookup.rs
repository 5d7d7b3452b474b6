//! The lookup join: each record with what an outside table has under its key.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::{Data, OperatorContext, Result};

use super::cache::{Answers, Caching};
use super::config::{AsyncIo, Fallback, Retried};
use super::operator::Calling;
use crate::opened::Opened;

/// A table outside the job, asked by key.
///
/// What holds of [`AsyncFunction`](super::AsyncFunction) holds of it: it runs on the threads for asynchronous calls, at least once
/// per question.
///
/// ```
/// use weir_operators::prelude::*;
/// # use std::{collections::HashMap, convert::Infallible};
/// #[derive(Clone)]
/// struct Names(HashMap<u64, String>);
/// impl Lookup<u64> for Names {
///     type Value = String;
///     type Error = Infallible; // this one is in memory
///     async fn get(&self, user: &u64) -> Result<Option<String>, Infallible> {
///         Ok(self.0.get(user).cloned())
///     }
/// }
/// ```
pub trait Lookup<K>: Clone + Send + Sync + 'static {
    /// What is under a key.
    type Value: Data;
    /// What goes wrong: any error, or a text.
    type Error: Into<Box<dyn Error + Send + Sync>> + Send + 'static;

    /// Called once per subtask, before any record of any task flows, on the task's thread with the calls' runtime at hand. May block.
    ///
    /// # Errors
    /// Whatever keeps it from working; the start fails and names this operator.
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// What is under `key` now, if there is something.
    ///
    /// # Errors
    /// It cannot be told: retried, replaced by a fallback, or the end of the job, as [`AsyncIo`] says. That there is nothing is no
    /// error.
    fn get(&self, key: &K) -> impl Future<Output = Result<Option<Self::Value>, Self::Error>> + Send;
}

/// What becomes of a record and what was found.
pub(crate) trait Join<T, V>: Clone + Send + 'static {
    type Out: Data;
    fn join(input: T, found: Option<V>) -> Option<Self::Out>;
}

/// Records without a match are left out.
#[derive(Clone)]
pub(crate) struct Inner;

impl<T: Data, V: Data> Join<T, V> for Inner {
    type Out = (T, V);
    fn join(input: T, found: Option<V>) -> Option<(T, V)> {
        found.map(|value| (input, value))
    }
}

/// Every record is given.
#[derive(Clone)]
pub(crate) struct Left;

impl<T: Data, V: Data> Join<T, V> for Left {
    type Out = (T, Option<V>);
    fn join(input: T, found: Option<V>) -> Option<(T, Option<V>)> {
        Some((input, found))
    }
}

/// A table, the key it is asked by, and how.
pub(crate) struct Looked<T, K, L: Lookup<K>, F, C: Caching<K, Option<L::Value>>, J> {
    pub(super) lookup: L,
    pub(super) shared: Opened<Arc<L>>,
    pub(super) key: F,
    pub(super) io: AsyncIo<T, Option<L::Value>, L::Error, C>,
    pub(super) answers: Opened<C::Answers>,
    pub(super) join: J,
}

impl<T, K, L: Lookup<K>, F: Clone, C: Caching<K, Option<L::Value>>, J: Clone> Clone
    for Looked<T, K, L, F, C, J>
{
    fn clone(&self) -> Self {
        Looked {
            lookup: self.lookup.clone(),
            shared: Opened(None),
            key: self.key.clone(),
            io: self.io.clone(),
            answers: Opened(None),
            join: self.join.clone(),
        }
    }
}

impl<T, K, L, F, C, J> Calling<T> for Looked<T, K, L, F, C, J>
where
    T: Data,
    K: Send + Sync + 'static,
    L: Lookup<K>,
    F: Fn(&T) -> K + Clone + Send + 'static,
    C: Caching<K, Option<L::Value>>,
    J: Join<T, L::Value>,
{
    type Answer = Option<L::Value>;
    type Error = L::Error;
    type Out = J::Out;
    const REMEMBERS: bool = C::Answers::REMEMBERS;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.lookup.open(cx)?;
        self.shared = Opened(Some(Arc::new(self.lookup.clone())));
        self.answers = Opened(Some(self.io.cache.make()));
        Ok(())
    }

    fn call(&self, input: &T) -> impl Future<Output = Result<Option<L::Value>, L::Error>> + Send + 'static {
        let lookup = self.shared.0.clone().unwrap_or_else(|| Arc::new(self.lookup.clone()));
        let key = (self.key)(input);
        async move { lookup.get(&key).await }
    }

    fn remembered(&mut self, input: &T, now: Duration) -> Option<Option<L::Value>> {
        let key = (self.key)(input);
        self.answers.0.as_mut()?.get(&key, now)
    }

    fn remember(&mut self, input: &T, answer: &Option<L::Value>, now: Duration) {
        let key = (self.key)(input);
        if let Some(answers) = &mut self.answers.0 {
            answers.put(&key, answer, answer.is_none(), now);
        }
    }

    fn retried(&self) -> Option<&Retried<L::Error>> {
        self.io.retried.as_ref()
    }

    fn fallback(&self) -> Option<&Fallback<T, Option<L::Value>, L::Error>> {
        self.io.fallback.as_ref()
    }

    fn result(&self, input: T, found: Option<L::Value>) -> Option<J::Out> {
        J::join(input, found)
    }
}
