//! `AsyncIo`: how the calls of an operator are made: order, capacity, time limit, retries, cache, and what becomes of failed ones.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::Data;
use weir_engine::memory::Footprint;

use super::cache::{CacheBy, Caching, CallCache, NoCache};
use super::failed::{CallError, FailedCalls};
use super::queue::Order;
use crate::argument::{ArgumentError, positive_ms, whole_ms};

/// How often, and after what pauses, a failed call is made again. The pauses double.
///
/// ```
/// use weir_operators::prelude::*;
/// // After 100 ms, 200 ms, 400 ms and then each second.
/// let retry = Retry::exponential(10, millis(100)).at_most(seconds(1));
/// assert_eq!((retry.pause(1), retry.pause(3), retry.pause(10)), (millis(100), millis(400), seconds(1)));
/// # fn millis(n: u64) -> std::time::Duration { std::time::Duration::from_millis(n) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    retries: u32,
    first: Duration,
    factor: u32,
    most: Duration,
}

impl Retry {
    /// No second try.
    pub const NEVER: Retry = Retry { retries: 0, first: Duration::ZERO, factor: 2, most: Duration::ZERO };

    /// Up to `retries` more tries, the first `pause` after the failure, each further one after twice the pause before it, up to a
    /// minute.
    pub fn exponential(retries: u32, pause: Duration) -> Self {
        Retry { retries, first: pause, factor: 2, most: Duration::from_secs(60) }
    }

    /// Up to `retries` more tries, each `pause` after the failure.
    pub fn fixed(retries: u32, pause: Duration) -> Self {
        Retry { retries, first: pause, factor: 1, most: pause }
    }

    /// No pause is longer.
    #[must_use]
    pub fn at_most(mut self, pause: Duration) -> Self {
        self.most = pause;
        self
    }

    /// How many tries there may be after the first.
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// The pause before the retry of this number, from 1.
    pub fn pause(&self, retry: u32) -> Duration {
        let times = self.factor.saturating_pow(retry.saturating_sub(1));
        self.first.saturating_mul(times).min(self.most.max(self.first))
    }
}

/// What does not depend on types.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) order: Order,
    pub(super) capacity: usize,
    pub(super) timeout: Duration,
    pub(super) retry: Retry,
    pub(super) failed: FailedCalls,
}

/// Whether an error is worth another try.
pub(super) type Retried<E> = Arc<dyn Fn(&CallError<E>) -> bool + Send + Sync>;
/// What stands in for an answer.
pub(super) type Fallback<T, R, E> = Arc<dyn Fn(&T, &CallError<E>) -> R + Send + Sync>;

/// How calls for records of type `T` with answers of type `R` or errors of type `E` are made. The types are found by the step that it is
/// given to.
///
/// *Order*: `ordered` gives results in the order of their records; one slow call holds those behind it. `unordered` gives each result as
/// soon as it is there, but none passes a watermark: what came before a watermark leaves before it, what came behind it behind it.
///
/// *Capacity*: how many records of one subtask may be on their way at a time: their call is running, or waits to be tried again, or was
/// answered and its result may not leave yet. When it is reached the task reads no more input, which holds back whoever sends. The rest of
/// the batch at hand waits in the operator.
///
/// *Timeout*: the time of each single try, by the job's clock; one that takes longer is broken off (its future is dropped) and counts as
/// failed.
///
/// ```
/// use weir_operators::prelude::*;
/// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
/// # let job = weir_engine::Job::named("doc").parallelism(1);
/// # let users = job.source("in", ScriptSource::of([(7u64, 0)])).without_event_time();
/// # async fn city_of(user: u64) -> Result<String, std::io::Error> { Ok(format!("city {user}")) }
/// let io = AsyncIo::unordered(100, seconds(2))
///     .retry(Retry::exponential(3, seconds(1)))
///     .retry_if(|e: &CallError<std::io::Error>| e.error().is_none_or(|e| e.kind() != std::io::ErrorKind::NotFound))
///     .cache(CallCache::entries(10_000).ttl(minutes(10)))
///     .fallback(|_user, _error| "unknown".to_owned());
/// users.map_async("city", city_of, io).sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
pub struct AsyncIo<T, R, E, C = NoCache> {
    pub(super) settings: Settings,
    pub(super) retried: Option<Retried<E>>,
    pub(super) fallback: Option<Fallback<T, R, E>>,
    pub(super) cache: C,
}

impl<T, R, E, C: Clone> Clone for AsyncIo<T, R, E, C> {
    fn clone(&self) -> Self {
        AsyncIo {
            settings: self.settings,
            retried: self.retried.clone(),
            fallback: self.fallback.clone(),
            cache: self.cache.clone(),
        }
    }
}

impl<T, R, E, C> fmt::Debug for AsyncIo<T, R, E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncIo({:?})", self.settings)
    }
}

impl<T, R, E> AsyncIo<T, R, E> {
    /// Results in the order of their records. `capacity`: at least one; `timeout`: whole milliseconds, at least one.
    pub fn ordered(capacity: usize, timeout: Duration) -> Self {
        Self::new(Order::Ordered, capacity, timeout)
    }

    /// Results as they come, between two watermarks. `capacity`: at least one; `timeout`: whole milliseconds, at least one.
    pub fn unordered(capacity: usize, timeout: Duration) -> Self {
        Self::new(Order::Unordered, capacity, timeout)
    }

    fn new(order: Order, capacity: usize, timeout: Duration) -> Self {
        let settings =
            Settings { order, capacity, timeout, retry: Retry::NEVER, failed: FailedCalls::default() };
        AsyncIo { settings, retried: None, fallback: None, cache: NoCache }
    }

    /// Remembers answers by the whole question: the record, or the key of a lookup.
    #[must_use]
    pub fn cache(self, cache: CallCache) -> AsyncIo<T, R, E, CallCache> {
        self.with(cache)
    }

    /// Remembers answers by what `key` makes of the question: only that may decide the answer.
    ///
    /// ```
    /// use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let clicks = job.source("in", ScriptSource::of([((7u64, "home"), 0)])).without_event_time();
    /// # let clicks = clicks.map(|(user, page)| (user, page.to_owned()));
    /// # let city_of = |click: (u64, String)| async move { Ok::<_, std::io::Error>(format!("city of {}", click.0)) };
    /// let io = AsyncIo::ordered(100, seconds(2)).cache_by(|click: &(u64, String)| click.0, CallCache::entries(1_000));
    /// clicks.map_async("city", city_of, io).sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    #[must_use]
    pub fn cache_by<K: Hash + Eq + Data, F>(self, key: F, cache: CallCache) -> AsyncIo<T, R, E, CacheBy<F>>
    where
        F: Fn(&T) -> K + Clone + Send + 'static,
    {
        self.with(CacheBy { rules: cache, key })
    }

    fn with<C>(self, cache: C) -> AsyncIo<T, R, E, C> {
        AsyncIo { settings: self.settings, retried: self.retried, fallback: self.fallback, cache }
    }
}

impl<T, R, E, C> AsyncIo<T, R, E, C> {
    /// Makes failed calls again (default: never). While it waits a record keeps its place.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.settings.retry = retry;
        self
    }

    /// Makes only those calls again whose error `retried` says yes to (default: all, timeouts too).
    #[must_use]
    pub fn retry_if(mut self, retried: impl Fn(&CallError<E>) -> bool + Send + Sync + 'static) -> Self {
        self.retried = Some(Arc::new(retried));
        self
    }

    /// What stands in for the answer of a call that failed for good. It is not cached; counted as `fallback_calls`.
    #[must_use]
    pub fn fallback(mut self, value: impl Fn(&T, &CallError<E>) -> R + Send + Sync + 'static) -> Self {
        self.fallback = Some(Arc::new(value));
        self
    }

    /// What happens to a record whose call failed for good and that has no fallback (default: the job fails).
    #[must_use]
    pub fn on_failed(mut self, failed: FailedCalls) -> Self {
        self.settings.failed = failed;
        self
    }

    pub(super) fn check<Q>(&self) -> Result<(), ArgumentError>
    where
        C: Caching<Q, R>,
    {
        if self.settings.capacity == 0 {
            return Err(ArgumentError::Zero { name: "capacity" });
        }
        positive_ms("timeout", self.settings.timeout)?;
        whole_ms("pause", self.settings.retry.first)?;
        whole_ms("at_most", self.settings.retry.most)?;
        self.cache.check()
    }

    pub(super) fn footprint<Q>(&self) -> Footprint
    where
        C: Caching<Q, R>,
    {
        let records = (self.settings.capacity as u64).saturating_add(super::operator::WAITING_AT_MOST as u64);
        let calls = Footprint::per_subtask("calls under way", records.saturating_mul(CALL_BYTES), 0);
        calls.lowered_by("capacity").and(self.cache.footprint())
    }
}

/// A call: the record, twice, its future, and its places in the tables.
const CALL_BYTES: u64 = 2 << 10;
