//! What answers are remembered in: bounded, with a time to live by the job's clock, one per subtask and so without a lock.

use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use quick_cache::unsync::Cache;
use weir_engine::Data;
use weir_engine::memory::Footprint;

use crate::argument::{ArgumentError, positive_ms};

/// How many answers each subtask remembers, and for how long. It is no state: a restart begins without, and subtasks do not share it, so
/// it serves best behind a `key_by` that brings equal questions to one subtask.
///
/// The answers that are asked for again stay longest (quick_cache's policy, a variant of S3-FIFO). One that is older than its time to live
/// by the job's clock is asked for anew.
///
/// ```
/// use weir_operators::prelude::*;
/// let cache = CallCache::entries(100_000).ttl(minutes(10)).negative_ttl(seconds(30));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallCache {
    entries: usize,
    ttl: Option<Duration>,
    negative_ttl: Option<Duration>,
    negatives: bool,
}

/// An entry: what a small key and answer take, and the table's own part.
const ENTRY_BYTES: u64 = 256;

impl CallCache {
    /// Remembers so many answers; at least one.
    pub fn entries(entries: usize) -> Self {
        CallCache { entries, ttl: None, negative_ttl: None, negatives: true }
    }

    /// How long an answer holds: whole milliseconds, at least one (default: until it is displaced).
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long it holds that there is nothing under a key, for a lookup (default: as long as any answer).
    #[must_use]
    pub fn negative_ttl(mut self, ttl: Duration) -> Self {
        self.negative_ttl = Some(ttl);
        self
    }

    /// Does not remember that there is nothing under a key: each lookup of it asks again.
    #[must_use]
    pub fn without_negatives(mut self) -> Self {
        self.negatives = false;
        self
    }

    fn checked(&self) -> Result<(), ArgumentError> {
        if self.entries == 0 {
            return Err(ArgumentError::Zero { name: "entries of the cache" });
        }
        self.ttl.map_or(Ok(0), |ttl| positive_ms("ttl", ttl))?;
        self.negative_ttl.map_or(Ok(0), |ttl| positive_ms("negative_ttl", ttl))?;
        Ok(())
    }
}

/// How answers of type `R` to questions of type `Q` are remembered: not at all, by the question itself ([`CallCache`]), or by a key of it
/// ([`CacheBy`]).
pub trait Caching<Q, R>: Clone + Send + 'static {
    /// What one subtask remembers.
    type Answers: Answers<Q, R>;
    /// Empty.
    fn make(&self) -> Self::Answers;
    /// Why it cannot be.
    ///
    /// # Errors
    /// It has no room, or a time makes no sense.
    fn check(&self) -> Result<(), ArgumentError>;
    /// What it may take.
    fn footprint(&self) -> Footprint;
}

/// The answers that one subtask remembers.
pub trait Answers<Q, R>: Send + 'static {
    /// The answer, if it still holds at `now`.
    fn get(&mut self, question: &Q, now: Duration) -> Option<R>;
    /// An answer that came at `now`. `negative`: it says that there is nothing.
    fn put(&mut self, question: &Q, answer: &R, negative: bool, now: Duration);
    /// Whether anything is ever remembered.
    const REMEMBERS: bool = true;
}

/// Remembers nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoCache;

impl<Q, R> Caching<Q, R> for NoCache {
    type Answers = NoCache;
    fn make(&self) -> NoCache {
        NoCache
    }
    fn check(&self) -> Result<(), ArgumentError> {
        Ok(())
    }
    fn footprint(&self) -> Footprint {
        Footprint::none()
    }
}

impl<Q, R> Answers<Q, R> for NoCache {
    const REMEMBERS: bool = false;
    fn get(&mut self, _: &Q, _: Duration) -> Option<R> {
        None
    }
    fn put(&mut self, _: &Q, _: &R, _: bool, _: Duration) {}
}

/// Answers by key, each with the moment from which it does not hold.
pub struct ByKey<K, R> {
    rules: CallCache,
    answers: Cache<K, (R, Option<Duration>)>,
}

impl<K, R> fmt::Debug for ByKey<K, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByKey({:?})", self.rules)
    }
}

impl<K: Hash + Eq, R: Clone> ByKey<K, R> {
    fn new(rules: CallCache) -> Self {
        ByKey { rules, answers: Cache::new(rules.entries) }
    }

    fn get(&mut self, key: &K, now: Duration) -> Option<R> {
        let (answer, until) = self.answers.get(key)?;
        if until.is_none_or(|until| now < until) {
            return Some(answer.clone());
        }
        self.answers.remove(key);
        None
    }

    fn put(&mut self, key: K, answer: &R, negative: bool, now: Duration) {
        let ttl = match negative {
            true if !self.rules.negatives => return,
            true => self.rules.negative_ttl.or(self.rules.ttl),
            false => self.rules.ttl,
        };
        // A time to live beyond the clock's end has no end.
        self.answers.insert(key, (answer.clone(), ttl.and_then(|ttl| now.checked_add(ttl))));
    }
}

impl<Q: Hash + Eq + Data, R: Data> Caching<Q, R> for CallCache {
    type Answers = ByKey<Q, R>;
    fn make(&self) -> ByKey<Q, R> {
        ByKey::new(*self)
    }
    fn check(&self) -> Result<(), ArgumentError> {
        self.checked()
    }
    fn footprint(&self) -> Footprint {
        let bytes = (self.entries as u64).saturating_mul(ENTRY_BYTES);
        Footprint::per_subtask("cached answers", bytes, 0).lowered_by("CallCache::entries")
    }
}

impl<Q: Hash + Eq + Data, R: Data> Answers<Q, R> for ByKey<Q, R> {
    fn get(&mut self, question: &Q, now: Duration) -> Option<R> {
        ByKey::get(self, question, now)
    }
    fn put(&mut self, question: &Q, answer: &R, negative: bool, now: Duration) {
        ByKey::put(self, question.clone(), answer, negative, now);
    }
}

/// A cache whose key is what `F` makes of the question.
#[derive(Clone, Copy)]
pub struct CacheBy<F> {
    pub(super) rules: CallCache,
    pub(super) key: F,
}

impl<F> fmt::Debug for CacheBy<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CacheBy({:?})", self.rules)
    }
}

/// The answers of a [`CacheBy`].
pub struct Keyed<K, R, F> {
    answers: ByKey<K, R>,
    key: F,
}

impl<K, R, F> fmt::Debug for Keyed<K, R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.answers, f)
    }
}

impl<Q: Data, K, R, F> Caching<Q, R> for CacheBy<F>
where
    K: Hash + Eq + Data,
    R: Data,
    F: Fn(&Q) -> K + Clone + Send + 'static,
{
    type Answers = Keyed<K, R, F>;
    fn make(&self) -> Self::Answers {
        Keyed { answers: ByKey::new(self.rules), key: self.key.clone() }
    }
    fn check(&self) -> Result<(), ArgumentError> {
        self.rules.checked()
    }
    fn footprint(&self) -> Footprint {
        <CallCache as Caching<u64, u64>>::footprint(&self.rules)
    }
}

impl<Q: Data, K, R, F> Answers<Q, R> for Keyed<K, R, F>
where
    K: Hash + Eq + Data,
    R: Data,
    F: Fn(&Q) -> K + Send + 'static,
{
    fn get(&mut self, question: &Q, now: Duration) -> Option<R> {
        self.answers.get(&(self.key)(question), now)
    }
    fn put(&mut self, question: &Q, answer: &R, negative: bool, now: Duration) {
        self.answers.put((self.key)(question), answer, negative, now);
    }
}
