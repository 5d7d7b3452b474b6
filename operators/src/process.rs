//! `process`: user code with states per key and timers, all of it kept at checkpoints
//! (over 400 lines: most of it says to users what holds).
// HOT: at most one probe of the state table per record. No allocation, lock, log or clock of its own.

mod collections;
mod context;
mod folds;
mod states;
mod tags;

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_engine::{
    Barrier, Collector, Counter, Data, EndKind, EventTime, Key, KeyHash, Keyed, Operator, OperatorContext,
    Record, Result, SignalPort, TaskError, Watermark,
};
use weir_state::schema::Schema;
use weir_state::store::Snapshot;
#[cfg(doc)]
use weir_state::ttl::Ttl;

use crate::kept_with;
use crate::opened::Opened;
use crate::timers::Due;
use context::{By, Kept};

pub use collections::{List, Map};
pub use context::KeyedContext;
pub use folds::{Aggregating, Reducing};
pub use states::{
    AggregatingState, ListState, MapState, Named, NamedState, ReducingState, Value, ValueState,
};
pub use tags::{Tag, TagOps, Tagged};

/// What a job does with each record of a keyed stream, given what it remembers of the key.
///
/// `Clone` is for the recipe: every subtask works with a copy of its own, so a field is no way to share anything between
/// keys of different subtasks. What must survive belongs into `State`, which is kept under the operator's uid.
///
/// *Order*: `open` once; then `process` and `on_timer`, one at a time, all on one thread.
///
/// *Late records* are processed like others; [`KeyedContext::is_late`] tells them. Timers still fire in order.
///
/// # Examples
/// Sums up per key, and gives the sum when nothing has come for the key for ten seconds of event time:
/// ```
/// # use weir_operators::prelude::*;
/// use serde::{Deserialize, Serialize};
/// # use weir_engine::{Collector, EventTime, Record, Result};
///
/// #[derive(Clone, Default, Serialize, Deserialize)]
/// struct Sum { of: i64, until: i64 }
///
/// #[derive(Clone)]
/// struct SumUntilQuiet;
/// impl ProcessFunction<String, i64> for SumUntilQuiet {
///     type Out = (String, i64);
///     type State = Sum;
///     fn process(
///         &mut self,
///         record: Record<i64>,
///         cx: &mut KeyedContext<'_, String, Sum>,
///         _out: &mut impl Collector<Self::Out>,
///     ) -> Result<()> {
///         let until = record.time.millis() + 10_000;
///         let sum = cx.state()?;
///         sum.of += record.value;
///         sum.until = sum.until.max(until);
///         cx.set_timer(EventTime(until));
///         Ok(())
///     }
///     fn on_timer(
///         &mut self,
///         time: EventTime,
///         cx: &mut KeyedContext<'_, String, Sum>,
///         out: &mut impl Collector<Self::Out>,
///     ) -> Result<()> {
///         if cx.state()?.until != time.millis() {
///             return Ok(()); // something came meanwhile
///         }
///         let sum = cx.state()?.of;
///         cx.clear_state();
///         out.emit(Record::new((cx.key().clone(), sum), time))
///     }
/// }
/// # let job = weir_engine::Job::named("doc").parallelism(1);
/// # use weir_engine::testkit::{NullSink, ScriptSource};
/// # let amounts = job.source("in", ScriptSource::of([(("a".to_owned(), 1), 0)])).source_time(weir_engine::Watermarks::monotonic());
/// amounts.key_by("by-name", |(name, _)| name.clone())
///     .process("sum-until-quiet", Amount)
///     .sink("out", NullSink);
/// # #[derive(Clone)] struct Amount;
/// # impl ProcessFunction<String, (String, i64)> for Amount {
/// #     type Out = (String, i64);
/// #     type State = Sum;
/// #     fn process(&mut self, r: Record<(String, i64)>, cx: &mut KeyedContext<'_, String, Sum>, out: &mut impl Collector<Self::Out>) -> Result<()> {
/// #         SumUntilQuiet.process(r.with(r.value.1), cx, out)
/// #     }
/// #     fn on_timer(&mut self, t: EventTime, cx: &mut KeyedContext<'_, String, Sum>, out: &mut impl Collector<Self::Out>) -> Result<()> {
/// #         SumUntilQuiet.on_timer(t, cx, out)
/// #     }
/// # }
/// # weir_engine::testkit::run_within(job, std::time::Duration::from_secs(30)).unwrap();
/// ```
pub trait ProcessFunction<K: Key, In: Data>: Clone + Send + 'static {
    /// What it gives.
    type Out: Data;
    /// What it remembers of a key: made by `Default` at first touch, kept until [`KeyedContext::clear_state`]. It has no
    /// TTL: what is to expire is a [`ValueState`] with one ([`states`](Self::states)), beside a `State` that may be `()`.
    type State: Default + Clone + Send + Serialize + DeserializeOwned + 'static;

    /// Called once, before any record of any task flows.
    ///
    /// # Errors
    /// Whatever keeps it from working; the start fails and names this operator.
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Called for each record of the keys that this subtask owns. HOT.
    ///
    /// # Errors
    /// An error fails the job.
    fn process(
        &mut self,
        record: Record<In>,
        cx: &mut KeyedContext<'_, K, Self::State>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()>;

    /// The versions that the type of `State` has had. A change of the type is a new version: checkpoints and savepoints hold
    /// values of the old one.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::{Collector, Record, Result};
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(Clone, Default, Serialize, Deserialize)]
    /// struct Sum { of: i64, count: u64 } // was an i32
    /// # #[derive(Clone)] struct Sums;
    /// impl ProcessFunction<u64, i64> for Sums {
    /// #   type Out = i64;
    ///     type State = Sum;
    ///     fn schema(&self) -> Schema<Sum> {
    ///         Schema::<Sum>::after(Schema::<i32>::first(), |old| Sum { of: old.into(), count: 0 })
    ///     }
    /// #   fn process(&mut self, r: Record<i64>, _: &mut KeyedContext<'_, u64, Sum>, out: &mut impl Collector<i64>) -> Result<()> { out.emit(r) }
    /// }
    /// ```
    fn schema(&self) -> Schema<Self::State> {
        Schema::first()
    }

    /// The states with names, beside `State`: fields of the function, each declared with its name and perhaps a [`Ttl`]. They are
    /// opened before `open` is called, and kept like `State`. One that is not given here is not open. Called once per batch.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::{Collector, Record, Result, KeyHash, Keyed, testkit::OpHarness};
    /// /// The pages that a user has not seen for an hour.
    /// #[derive(Clone)]
    /// struct News { visits: ValueState<String, u64>, seen: MapState<String, String, ()> }
    ///
    /// impl News {
    ///     fn new() -> Self {
    ///         let hour = Ttl::event_time(hours(1));
    ///         News { visits: ValueState::named("visits"), seen: MapState::named("seen").ttl(hour) }
    ///     }
    /// }
    ///
    /// impl ProcessFunction<String, String> for News {
    ///     type Out = (u64, String);
    ///     type State = ();
    ///     fn states(&mut self) -> Vec<&mut dyn NamedState<String>> {
    ///         vec![&mut self.visits, &mut self.seen]
    ///     }
    ///     fn process(&mut self, page: Record<String>, cx: &mut KeyedContext<'_, String, ()>,
    ///                out: &mut impl Collector<Self::Out>) -> Result<()> {
    ///         let visits = self.visits.get_or_insert_with(cx, || 0)?;
    ///         *visits += 1;
    ///         if !self.seen.contains(cx, &page.value)? {
    ///             out.emit(page.with((*visits, page.value.clone())))?;
    ///         }
    ///         self.seen.put(cx, page.value, ())
    ///     }
    /// }
    /// # let mut h = OpHarness::new(weir_operators::process::Process::new(News::new()))?;
    /// # let visit = |page: &str| Keyed { hash: KeyHash(7), key: "ann".to_owned(), value: page.to_owned() };
    /// # h.watermark(0)?;
    /// # h.batch([(visit("a"), 0)])?;
    /// # h.watermark(5)?;
    /// # h.batch([(visit("b"), 6)])?;
    /// # h.watermark(3_600_001)?;
    /// # h.batch([(visit("a"), 3_600_002), (visit("b"), 3_600_003)])?;
    /// # assert_eq!(h.take_values(), [(1, "a".to_owned()), (2, "b".to_owned()), (3, "a".to_owned())]);
    /// # Ok::<(), weir_engine::TaskError>(())
    /// ```
    fn states(&mut self) -> Vec<&mut dyn NamedState<K>> {
        Vec::new()
    }

    /// The side outputs, each with a type of its own: fields of the function, of which copies read what is given
    /// ([`TagOps::tagged`]). One that is not given here is not open. Called for each signal.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::{Collector, Record, Result, testkit::{NullSink, ScriptSource, run_within}};
    /// #[derive(Clone)]
    /// struct Cents { bad: Tag<String> }
    /// impl ProcessFunction<u64, String> for Cents {
    ///     type Out = u64;
    ///     type State = ();
    ///     fn tags(&mut self) -> Vec<&mut dyn Tagged> { vec![&mut self.bad] }
    ///     fn process(&mut self, r: Record<String>, _: &mut KeyedContext<'_, u64, ()>, out: &mut impl Collector<u64>) -> Result<()> {
    ///         match r.value.parse() { Ok(cents) => out.emit(r.with(cents)), Err(_) => self.bad.emit(r) }
    ///     }
    /// }
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let prices = job.source("in", ScriptSource::of([("12".to_owned(), 0)])).without_event_time();
    /// let bad = Tag::named("bad");
    /// let cents = prices.key_by("by-length", |price| price.len() as u64).process("cents", Cents { bad: bad.clone() });
    /// cents.tagged(&bad).sink("bad-prices", NullSink);
    /// cents.sink("cents-out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn tags(&mut self) -> Vec<&mut dyn Tagged> {
        Vec::new()
    }

    /// What the states need to have been made with, by name, and whether they are made with it: of the operators of this crate.
    #[doc(hidden)]
    fn kept_with(&self) -> Vec<(&'static str, bool)> {
        Vec::new()
    }

    /// Called before each batch when the operator is the first of its task. The states of the batch's keys are fetched anyway; of a
    /// [`MapState`] only the function knows which entries its records will ask for ([`MapState::prefetch_entries`]).
    ///
    /// # Errors
    /// What is kept cannot be read: pass the error on.
    fn prefetch(&mut self, batch: &[Record<Keyed<K, In>>]) -> Result<()> {
        let _ = batch;
        Ok(())
    }

    /// Called when event time has reached a timer; `cx` is that of the key which set it. What is given here goes
    /// downstream before the watermark that fired it; its time should be `time`, or later.
    ///
    /// # Errors
    /// As for `process`.
    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, K, Self::State>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let _ = (time, cx, out);
        Ok(())
    }

    /// Called when the job's clock has reached a processing timer; `cx` is that of the key which set it. `time_ms` is
    /// the time that was set, in milliseconds since the epoch; by now it is later.
    ///
    /// # Errors
    /// As for `process`.
    fn on_processing_timer(
        &mut self,
        time_ms: i64,
        cx: &mut KeyedContext<'_, K, Self::State>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let _ = (time_ms, cx, out);
        Ok(())
    }
}

/// The operator behind [`process`](crate::prelude::KeyedOps::process).
///
/// *State*: one `F::State` per key, in the table `state`, until it is cleared; the states with names in tables of these; in
/// memory as far as the job's budget for state reaches. Timers in the tables `timers` and `processing_timers`, all of them in memory: about 64 bytes and the key
/// each, and 24 bytes and the key for each change since the last checkpoint. A checkpoint writes what changed since the
/// one before.
pub struct Process<K, In: Data, F: ProcessFunction<K, In>>
where
    K: Key,
{
    function: F,
    kept: Opened<Kept<K, F::State>>,
    cx: Opened<OperatorContext>,
    refused: Counter,
    has_tags: bool,
    _in: PhantomData<fn(In)>,
}

/// How many timers fire before the states get to make room for more.
const FIRED_AT_ONCE: usize = 1_024;

impl<K: Key, In: Data, F: ProcessFunction<K, In>> Process<K, In, F> {
    /// The operator that runs `function`: what `process` adds to a stream, and what a test of it drives by hand.
    pub fn new(function: F) -> Self {
        Process {
            function,
            kept: Opened(None),
            cx: Opened(None),
            refused: Counter::default(),
            has_tags: false,
            _in: PhantomData,
        }
    }

    /// The function, as it runs.
    #[inline]
    pub(crate) fn function(&mut self) -> &mut F {
        &mut self.function
    }

    /// Fetches what is kept of these keys, but what the function alone knows of.
    pub(crate) fn prefetch_keys<'a>(
        &mut self,
        keys: impl Iterator<Item = (KeyHash, &'a K)> + Clone,
    ) -> Result<()> {
        self.kept()?.prefetch(keys.clone())?;
        let mut states = self.function.states();
        if !states.is_empty() {
            let keys: Vec<_> = keys.collect();
            states.iter_mut().try_for_each(|state| state.prefetch(&keys))?;
        }
        Ok(())
    }

    /// Fires the timers that are due by `now`.
    fn fire(&mut self, by: By, now: i64, out: &mut impl Collector<F::Out>) -> Result<()> {
        self.kept()?.timers(by).advance(now);
        let mut fired = 0;
        while let Some(due) = self.kept()?.timers(by).next_due() {
            if fired % FIRED_AT_ONCE == 0 {
                // A million may be due at once, and none of them may reach a channel, which would hear it too.
                self.cx.0.as_ref().ok_or_else(not_open)?.not_cancelled()?;
                self.upkeep()?;
                self.prefetch_due(by, &due)?;
            }
            fired += 1;
            let Some(kept) = &mut self.kept.0 else { return Err(not_open()) };
            let mut cx = KeyedContext::new(&due.key, due.hash, kept);
            match by {
                By::EventTime => {
                    cx.time_passes(due.time);
                    self.function.on_timer(due.time, &mut cx, out)?;
                }
                By::ProcessingTime => self.function.on_processing_timer(due.time.0, &mut cx, out)?,
            }
        }
        Ok(())
    }

    /// Fetches what is kept of a key whose timer fires, and of those that come next.
    fn prefetch_due(&mut self, by: By, due: &Due<K>) -> Result<()> {
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        let mut states = self.function.states();
        if !kept.has_state() && states.is_empty() {
            return Ok(());
        }
        let soon = kept.timers(by).soon_due(FIRED_AT_ONCE - 1).map(|(hash, key)| (hash, key.clone()));
        let keys: Vec<(KeyHash, K)> = [(due.hash, due.key.clone())].into_iter().chain(soon).collect();
        let keys: Vec<(KeyHash, &K)> = keys.iter().map(|(hash, key)| (*hash, key)).collect();
        kept.prefetch(keys.iter().copied())?;
        states.iter_mut().try_for_each(|state| state.prefetch(&keys))
    }

    /// Lets every state take back what was frozen, and make room.
    fn upkeep(&mut self) -> Result<()> {
        self.kept()?.batch_end()?;
        self.function.states().into_iter().try_for_each(|state| state.batch_end())
    }

    /// What is to be done now and then: the upkeep of the states, and firing by the job's clock.
    fn now_and_then(&mut self, out: &mut impl Collector<F::Out>) -> Result<()> {
        self.upkeep()?;
        // Nobody asks what time it is while there is nothing to wait for.
        match self.kept()?.processing_time_due() {
            Some(now) => self.fire(By::ProcessingTime, now, out),
            None => Ok(()),
        }
    }

    #[inline]
    fn kept(&mut self) -> Result<&mut Kept<K, F::State>> {
        self.kept.0.as_mut().ok_or_else(not_open)
    }
}

#[cold]
fn not_open() -> TaskError {
    TaskError::internal("a process function was used before it was open")
}

impl<K: Key, In: Data, F: ProcessFunction<K, In>> Clone for Process<K, In, F> {
    fn clone(&self) -> Self {
        Process::new(self.function.clone())
    }
}

impl<K: Key, In: Data, F: ProcessFunction<K, In>> fmt::Debug for Process<K, In, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({:?})", self.kept)
    }
}

impl<K: Key, In: Data, F: ProcessFunction<K, In>> Operator<Keyed<K, In>> for Process<K, In, F> {
    type Out = F::Out;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.refused = cx.counter("timers_refused");
        self.cx = Opened(Some(cx.clone()));
        self.kept = Opened(Some(Kept::open(cx, self.function.schema())?));
        let needed = self.function.kept_with();
        if !needed.is_empty() && cx.is_restored() && self.kept()?.holds_any()? {
            kept_with::check(&needed, cx)?;
        }
        let store = cx.store()?;
        self.function.states().into_iter().try_for_each(|state| state.open(&store))?;
        for tag in self.function.tags() {
            tag.open(cx);
            self.has_tags = true;
        }
        self.function.open(cx)
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, In>>]) -> Result<()> {
        self.prefetch_keys(batch.iter().map(|r| (r.value.hash, &r.value.key)))?;
        self.function.prefetch(batch)
    }

    #[inline]
    fn process(&mut self, record: Record<Keyed<K, In>>, out: &mut impl Collector<F::Out>) -> Result<()> {
        let Record { value: Keyed { hash, key, value }, time } = record;
        let Some(kept) = &mut self.kept.0 else { return Err(not_open()) };
        self.function.process(Record { value, time }, &mut KeyedContext::new(&key, hash, kept), out)
    }

    fn on_batch_end(&mut self, out: &mut impl Collector<F::Out>) -> Result<()> {
        self.now_and_then(out)
    }

    fn on_quiet(&mut self, out: &mut impl Collector<F::Out>) -> Result<()> {
        self.now_and_then(out)
    }

    fn wakes_at(&self) -> Option<i64> {
        self.kept.0.as_ref().and_then(Kept::first_processing_timer)
    }

    fn on_watermark(&mut self, watermark: Watermark, out: &mut impl Collector<F::Out>) -> Result<()> {
        // After a restore event time first comes to where it was: what it reached there has fired.
        if self.kept()?.event_time_reaches(watermark) {
            self.fire(By::EventTime, watermark.0, out)?;
            // With what expires by this watermark.
            self.kept()?.event_time_has_reached(watermark);
            self.upkeep()?;
        }
        Ok(())
    }

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        kept_with::keep(&self.function.kept_with(), into);
        self.kept()?.freeze(into)?;
        self.function.states().into_iter().try_for_each(|state| state.freeze(into))
    }

    fn on_end(&mut self, _: EndKind, _: &mut impl Collector<F::Out>) -> Result<()> {
        let kept = self.kept()?;
        let (refused, subtask) = (kept.timers(By::EventTime).refused(), kept.subtask);
        if refused > 0 {
            self.refused.add(refused);
            tracing::warn!(
                refused,
                subtask,
                "timers were set while the last watermark fired: they will never fire"
            );
        }
        Ok(())
    }

    fn sides(&mut self) -> Option<&mut dyn SignalPort> {
        if self.has_tags { Some(self) } else { None }
    }
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "process/restore_tests.rs"]
mod restore_tests;
