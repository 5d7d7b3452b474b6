//! `Ordered`: the records of each key in the order of their times, however they come: buffered until the watermark passes them.
//!
//! What OVER aggregates, deduplication and patterns share. A record waits in state until event time has passed it; then its key's
//! records are given in the order of their times, those of one time in the order in which they came. So what follows depends on
//! times alone, not on how producers interleave. Late records never get here: [`Timely`] sees to that.
// HOT: a record that waits costs one probe of its map, and one of the key's state when it is the first of its time.

mod fifo;
mod timely;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_engine::{Collector, Data, EventTime, Key, Keyed, Record, Result, Watermark};

use crate::aggregate::Kept;
use crate::process::{KeyedContext, MapState, NamedState, ProcessFunction};

pub(crate) use fifo::{Fifo, Span};
pub(crate) use timely::Timely;

/// The records of one key and time, in the order in which they came: at least one, mostly just one, which allocates nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Peers<T> {
    first: T,
    more: Vec<T>,
}

impl<T> Peers<T> {
    /// The one that came first.
    pub(crate) fn into_first(self) -> T {
        self.first
    }

    /// The one that came last.
    pub(crate) fn into_last(mut self) -> T {
        self.more.pop().unwrap_or(self.first)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.first).chain(&self.more)
    }
}

impl<T> IntoIterator for Peers<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::iter::Once<T>, std::vec::IntoIter<T>>;
    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self.first).chain(self.more)
    }
}

/// What is kept of a key: how many of its times wait, and what the function keeps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Line<S> {
    waiting: u64,
    pub(crate) kept: S,
}

/// The context of a function over ordered records.
pub(crate) type LineContext<'a, K, S> = KeyedContext<'a, K, Line<S>>;

/// What is done with the records of a key, given in the order of their times.
pub(crate) trait InOrder<K: Key, T: Kept>: Clone + Send + 'static {
    /// What it gives.
    type Out: Data;
    /// What it keeps of a key, beside the states with names.
    type State: Default + Clone + Send + Serialize + DeserializeOwned + 'static;

    /// The states with names.
    fn states(&mut self) -> Vec<&mut dyn NamedState<K>> {
        Vec::new()
    }

    /// As of a process function.
    fn kept_with(&self) -> Vec<(&'static str, bool)> {
        Vec::new()
    }

    /// All records of one key and time; times ascend.
    ///
    /// # Errors
    /// What is kept cannot be read, or the consumer is lost; so for every method here.
    fn records(
        &mut self,
        time: EventTime,
        records: Peers<T>,
        cx: &mut LineContext<'_, K, Self::State>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()>;

    /// No record of this key at or before `time` comes any more. Called at the times that were asked for by [`wake`], and at
    /// others; with the end of time when the input has ended and the key has no record left.
    ///
    /// # Errors
    /// As for `records`.
    fn passed(
        &mut self,
        time: EventTime,
        cx: &mut LineContext<'_, K, Self::State>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()>;

    /// True when nothing needs to be kept of the key.
    fn is_over(state: &Self::State) -> bool;
}

/// Asks for `passed` at `time`. When the input has ended it is called anyway, and no timer can be set any more.
pub(crate) fn wake<K: Key, S>(cx: &mut LineContext<'_, K, S>, time: i64)
where
    S: Default + Clone + Send + Serialize + DeserializeOwned + 'static,
{
    if cx.watermark() != Watermark::MAX {
        cx.set_timer(EventTime(time));
    }
}

/// A process function that gives its records to another one in the order of their times.
#[derive(Clone, Debug)]
pub(crate) struct Ordered<K: Key, T: Kept, F> {
    function: F,
    /// By time. A value is empty only while it is taken out.
    pending: MapState<K, i64, Option<Peers<T>>>,
}

impl<K: Key, T: Kept, F: InOrder<K, T>> Ordered<K, T, F> {
    pub(crate) fn new(function: F) -> Self {
        Ordered { function, pending: MapState::named("pending") }
    }
}

impl<K: Key, T: Kept, F: InOrder<K, T>> ProcessFunction<K, T> for Ordered<K, T, F> {
    type Out = F::Out;
    type State = Line<F::State>;

    fn states(&mut self) -> Vec<&mut dyn NamedState<K>> {
        let mut states = self.function.states();
        states.push(&mut self.pending);
        states
    }

    fn kept_with(&self) -> Vec<(&'static str, bool)> {
        self.function.kept_with()
    }

    fn process(
        &mut self,
        record: Record<T>,
        cx: &mut KeyedContext<'_, K, Self::State>,
        _: &mut impl Collector<F::Out>,
    ) -> Result<()> {
        let Record { value, time } = record;
        if let Some(Some(peers)) = self.pending.get_mut(cx, &time.0)? {
            peers.more.push(value);
            return Ok(());
        }
        self.pending.put(cx, time.0, Some(Peers { first: value, more: Vec::new() }))?;
        cx.state()?.waiting += 1;
        cx.set_timer(time);
        Ok(())
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, T>>]) -> Result<()> {
        self.pending.prefetch_entries(batch.iter().map(|r| (r.value.hash, &r.value.key, &r.time.0)))
    }

    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, K, Self::State>,
        out: &mut impl Collector<F::Out>,
    ) -> Result<()> {
        if cx.existing_state()?.is_none() {
            // A timer of what is forgotten by now.
            return Ok(());
        }
        let at_end = cx.watermark() == Watermark::MAX;
        if let Some(peers) = self.pending.get_mut(cx, &time.0)?.and_then(Option::take) {
            self.pending.remove(cx, &time.0)?;
            cx.state()?.waiting -= 1;
            if at_end {
                // What would have been woken in between was not, as no timer could be set.
                self.function.passed(EventTime(time.0.saturating_sub(1)), cx, out)?;
            }
            self.function.records(time, peers, cx, out)?;
        }
        let ended = at_end && cx.state()?.waiting == 0;
        self.function.passed(if ended { EventTime(i64::MAX) } else { time }, cx, out)?;
        let state = cx.state()?;
        if state.waiting == 0 && F::is_over(&state.kept) {
            cx.clear_state();
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "ordered/tests.rs"]
mod tests;
