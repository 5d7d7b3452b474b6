//! Async I/O: a call to the outside for each record, many at a time, made on threads that are not the task's.

mod cache;
mod config;
mod counts;
#[cfg(test)]
mod desk;
mod failed;
mod kept;
mod keyed;
pub(crate) mod lookup;
mod operator;
mod ops;
mod queue;

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::{Data, OperatorContext, Result};

pub use cache::{Answers, ByKey, CacheBy, Caching, CallCache, Keyed, NoCache};
pub use config::{AsyncIo, Retry};
pub use failed::{CallError, FailedCall, FailedCalls};
pub use lookup::Lookup;
pub use ops::AsyncOps;

use crate::opened::Opened;
use config::{Fallback, Retried};
use operator::Calling;

/// A call to the outside: what `map_async` makes for each record. A closure or function that gives a future is one.
///
/// *Where it runs*: on the threads for asynchronous calls, which all jobs of the process share
/// ([`Job::async_threads`](weir_engine::Job::async_threads)), from the first line of `call` on. It must not block a thread: what has no
/// asynchronous client goes through `tokio::task::spawn_blocking`.
///
/// *How often*: at least once per record. A call whose time is over is broken off at its next `await`; it, a failed one, and one
/// whose answer was not given before a restart are made again. What it does outside should bear that.
///
/// *Panics* in it fail the job, with the operator's name.
///
/// ```
/// use weir_operators::prelude::*;
/// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
/// # struct Client; impl Client { async fn city(&self, user: u64) -> Option<String> { (user == 7).then(|| "Oslo".into()) } }
/// #[derive(Clone)]
/// struct CityOf(std::sync::Arc<Client>);
///
/// impl AsyncFunction<u64> for CityOf {
///     type Out = (u64, String);
///     type Error = String;
///     async fn call(&self, user: u64) -> Result<(u64, String), String> {
///         let city = self.0.city(user).await.ok_or_else(|| format!("no such user: {user}"))?;
///         Ok((user, city))
///     }
/// }
/// # let job = weir_engine::Job::named("doc").parallelism(1);
/// # let users = job.source("in", ScriptSource::of([(7u64, 0)])).without_event_time();
/// # let client = std::sync::Arc::new(Client);
/// users.map_async("city", CityOf(client), AsyncIo::ordered(100, seconds(2))).sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
pub trait AsyncFunction<T>: Clone + Send + Sync + 'static {
    /// What it gives.
    type Out: Data;
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

    /// Makes the call.
    ///
    /// # Errors
    /// Whatever went wrong: retried, replaced by a fallback, or the end of the job, as [`AsyncIo`] says.
    fn call(&self, input: T) -> impl Future<Output = Result<Self::Out, Self::Error>> + Send;
}

impl<T, R, E, F, Fut> AsyncFunction<T> for F
where
    F: Fn(T) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send,
    R: Data,
    E: Into<Box<dyn Error + Send + Sync>> + Send + 'static,
{
    type Out = R;
    type Error = E;
    fn call(&self, input: T) -> impl Future<Output = Result<R, E>> + Send {
        self(input)
    }
}

/// A function, and how its calls are made.
pub(crate) struct Mapped<T, F: AsyncFunction<T>, C: Caching<T, F::Out>> {
    function: F,
    shared: Opened<Arc<F>>,
    io: AsyncIo<T, F::Out, F::Error, C>,
    answers: Opened<C::Answers>,
}

impl<T, F: AsyncFunction<T>, C: Caching<T, F::Out>> Mapped<T, F, C> {
    fn new(function: F, io: AsyncIo<T, F::Out, F::Error, C>) -> Self {
        Mapped { function, shared: Opened(None), io, answers: Opened(None) }
    }
}

impl<T, F: AsyncFunction<T>, C: Caching<T, F::Out>> Clone for Mapped<T, F, C> {
    fn clone(&self) -> Self {
        Mapped::new(self.function.clone(), self.io.clone())
    }
}

impl<T: Data, F: AsyncFunction<T>, C: Caching<T, F::Out>> Calling<T> for Mapped<T, F, C> {
    type Answer = F::Out;
    type Error = F::Error;
    type Out = F::Out;
    const REMEMBERS: bool = C::Answers::REMEMBERS;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.function.open(cx)?;
        self.shared = Opened(Some(Arc::new(self.function.clone())));
        self.answers = Opened(Some(self.io.cache.make()));
        Ok(())
    }

    fn call(&self, input: &T) -> impl Future<Output = Result<F::Out, F::Error>> + Send + 'static {
        // Opened before; a clone of the recipe would do as well.
        let function = self.shared.0.clone().unwrap_or_else(|| Arc::new(self.function.clone()));
        let input = input.clone();
        async move { function.call(input).await }
    }

    fn remembered(&mut self, input: &T, now: Duration) -> Option<F::Out> {
        self.answers.0.as_mut()?.get(input, now)
    }

    fn remember(&mut self, input: &T, answer: &F::Out, now: Duration) {
        if let Some(answers) = &mut self.answers.0 {
            answers.put(input, answer, false, now);
        }
    }

    fn retried(&self) -> Option<&Retried<F::Error>> {
        self.io.retried.as_ref()
    }

    fn fallback(&self) -> Option<&Fallback<T, F::Out, F::Error>> {
        self.io.fallback.as_ref()
    }

    fn result(&self, _: T, answer: F::Out) -> Option<F::Out> {
        Some(answer)
    }
}

#[cfg(test)]
mod tests;
