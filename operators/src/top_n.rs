//! Top n per key, over all that has come: the new list whenever it changes, and nothing to take back.
// HOT: a record that changes nothing costs one probe and, mostly, one comparison. One that does, a copy of the list.

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Serialize};
use weir_engine::{Collector, Data, Key, Keyed, Operator, Record, Result};
use weir_state::ttl::Ttl;

use crate::aggregate::{Kept, Score, is_comparable, rank};
use crate::argument::ArgumentError;
use crate::process::{KeyedContext, NamedState, Process, ProcessFunction, ValueState};

/// How many records a key's top list has, and what counts as one.
///
/// *Semantics*: the records of a key with the greatest scores so far, greatest first. Of equal scores the one that came first is first;
/// a score that cannot be compared (NaN) is passed over. For the least, score by [`std::cmp::Reverse`]. Records are taken in the order
/// in which they come, whatever their times: none is late.
///
/// With [`each`](Top::each) a list has at most one record of each id: the one with the greatest score, the first of equals. A lower score
/// of the same id changes nothing, so this is right for scores that only rise (counters, bids), and says the highest ever for others.
///
/// *Output*: when a record changes the list of its key, the whole new list, with the time of that record. Nothing is retracted: each list
/// replaces the one before it of the same key, as a sink that upserts by key does. A list is never shorter than the one before, but for
/// state that has expired.
///
/// *State*: the list of each key. *Forgets* a key with [`ttl`](Top::ttl), when its list has not changed for that long (or, with
/// [`Ttl::touched_by_reads`], no record of it has come); without it, never. For a top n per window use the aggregate
/// [`top`](crate::aggregate::top).
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::{OperatorInfo, testkit::{NullSink, Probe, ScriptSource, run_within}};
/// # let (job, probe) = (weir_engine::Job::named("doc").parallelism(1), Probe::new());
/// let bids = [(7, 'a', 10), (7, 'b', 30), (7, 'c', 20), (7, 'a', 40)].map(|bid| (bid, 0));
/// let bids = job.source("in", ScriptSource::of(bids)).without_event_time();
/// bids.key_by("by-item", |(item, ..)| *item)
///     .top_n("best-bids", Top::of(2).each(|(_, who, _): &(i32, char, i64)| *who), |bid| bid.2)
///     .map(|best| best.top.iter().map(|bid| bid.2).collect::<Vec<_>>())
/// #   .transform(OperatorInfo::stateless("look"), probe.clone())
///     .sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// assert_eq!(probe.values(), [vec![10], vec![30, 10], vec![30, 20], vec![40, 30]]);
/// ```
pub struct Top<T, I = fn(&T)> {
    n: usize,
    each: Option<I>,
    ttl: Option<Ttl>,
    _in: PhantomData<fn(T)>,
}

impl<T: Data> Top<T> {
    /// Lists of at most `n`, at least 1. 0 fails the start of the job.
    pub fn of(n: usize) -> Self {
        Top { n, each: None, ttl: None, _in: PhantomData }
    }

    /// At most one record of each id.
    #[must_use]
    pub fn each<Id: Kept + Eq, I: Fn(&T) -> Id + Clone + Send + 'static>(self, id: I) -> Top<T, I> {
        Top { n: self.n, each: Some(id), ttl: self.ttl, _in: PhantomData }
    }
}

impl<T, I> Top<T, I> {
    /// How long a list lives.
    #[must_use]
    pub fn ttl(self, ttl: impl Into<Option<Ttl>>) -> Self {
        Top { ttl: ttl.into(), ..self }
    }

    /// The operator behind [`top_n`](crate::prelude::PerKeyOps::top_n): what a test drives by hand.
    ///
    /// # Errors
    /// The list has no room.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::{Keyed, testkit::OpHarness};
    /// let mut harness = OpHarness::new(Top::of(1).operator::<u64, _, (), _>(|n: &i64| *n).unwrap())?;
    /// # let keyed = |value: i64| Keyed { hash: weir_state::key_hash(&7u64), key: 7u64, value };
    /// harness.batch([(keyed(3), 0), (keyed(1), 0), (keyed(5), 0)])?;
    /// let tops: Vec<_> = harness.take_values().into_iter().map(|best| best.top).collect();
    /// assert_eq!(tops, [[3], [5]]);
    /// # Ok::<(), weir_engine::TaskError>(())
    /// ```
    pub fn operator<K: Key, V: Score, Id: Kept + Eq, F>(
        self,
        score: F,
    ) -> std::result::Result<impl Operator<Keyed<K, T>, Out = TopN<K, T>>, ArgumentError>
    where
        T: Kept,
        I: Fn(&T) -> Id + Clone + Send + 'static,
        F: Fn(&T) -> V + Clone + Send + 'static,
    {
        self.check()?;
        Ok(Process::new(TopLists::<K, T, V, Id, I, F>::new(self, score)))
    }

    pub(crate) fn check(&self) -> std::result::Result<(), ArgumentError> {
        if self.n == 0 { Err(ArgumentError::Zero { name: "n" }) } else { Ok(()) }
    }
}

impl<T, I: Clone> Clone for Top<T, I> {
    fn clone(&self) -> Self {
        Top { n: self.n, each: self.each.clone(), ttl: self.ttl, _in: PhantomData }
    }
}

impl<T, I> fmt::Debug for Top<T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = if self.each.is_some() { ", one of each" } else { "" };
        write!(f, "Top({}{each}, {:?})", self.n, self.ttl)
    }
}

/// The top list of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopN<K, T> {
    /// The key.
    pub key: K,
    /// Its records with the greatest scores, greatest first.
    pub top: Vec<T>,
}

/// A record of a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ranked<V, Id, T> {
    score: V,
    id: Option<Id>,
    record: T,
}

/// How a list is to be changed: what goes out of it, and where the new one goes in after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    out: Option<usize>,
    at: usize,
}

/// What a record changes in a list of at most `n`.
fn change<V: PartialOrd, Id: Eq, T>(
    list: &[Ranked<V, Id, T>],
    score: &V,
    id: Option<&Id>,
    n: usize,
) -> Option<Change> {
    let above = |held: &V| score.partial_cmp(held) == Some(Ordering::Greater);
    // Most records of a long stream are below a list that is full.
    if list.len() >= n && list.last().is_none_or(|last| !above(&last.score)) || !is_comparable(score) {
        return None;
    }
    let same = id.and_then(|id| list.iter().position(|held| held.id.as_ref() == Some(id)));
    if same.is_some_and(|same| !above(&list[same].score)) {
        return None;
    }
    let at = rank(list.iter().map(|held| &held.score), score, n)?;
    Some(Change { out: same.or_else(|| (list.len() == n).then(|| n - 1)), at })
}

/// Keeps top lists.
pub(crate) struct TopLists<K: Key, T: Kept, V: Score, Id: Kept + Eq, I, F> {
    top: Top<T, I>,
    score: F,
    lists: ValueState<K, Vec<Ranked<V, Id, T>>>,
}

impl<K: Key, T: Kept, V: Score, Id: Kept + Eq, I, F> TopLists<K, T, V, Id, I, F> {
    pub(crate) fn new(top: Top<T, I>, score: F) -> Self {
        TopLists { lists: ValueState::named("top").ttl(top.ttl), top, score }
    }
}

impl<K: Key, T: Kept, V: Score, Id: Kept + Eq, I: Clone, F: Clone> Clone for TopLists<K, T, V, Id, I, F> {
    fn clone(&self) -> Self {
        TopLists::new(self.top.clone(), self.score.clone())
    }
}

impl<K, T, V, Id, I, F> ProcessFunction<K, T> for TopLists<K, T, V, Id, I, F>
where
    K: Key,
    T: Kept,
    V: Score,
    Id: Kept + Eq,
    I: Fn(&T) -> Id + Clone + Send + 'static,
    F: Fn(&T) -> V + Clone + Send + 'static,
{
    type Out = TopN<K, T>;
    type State = ();

    fn states(&mut self) -> Vec<&mut dyn NamedState<K>> {
        vec![&mut self.lists]
    }

    fn process(
        &mut self,
        record: Record<T>,
        cx: &mut KeyedContext<'_, K, ()>,
        out: &mut impl Collector<TopN<K, T>>,
    ) -> Result<()> {
        let Record { value, time } = record;
        let score = (self.score)(&value);
        let id = self.top.each.as_ref().map(|id| id(&value));
        // Looked at first: a checkpoint writes only lists that have changed.
        let list = self.lists.get(cx)?.map_or(&[][..], Vec::as_slice);
        let Some(Change { out: gone, at }) = change(list, &score, id.as_ref(), self.top.n) else {
            return Ok(());
        };
        let list = self.lists.get_or_insert_with(cx, Vec::new)?;
        if let Some(gone) = gone {
            list.remove(gone);
        }
        list.insert(at, Ranked { score, id, record: value });
        // A life before this one may have kept more.
        list.truncate(self.top.n);
        let top = list.iter().map(|held| held.record.clone()).collect();
        out.emit(Record::new(TopN { key: cx.key().clone(), top }, time))
    }
}

#[cfg(test)]
#[path = "top_n_tests.rs"]
mod tests;
