//! `process`: user code with states per key and timers, all of it kept at checkpoints.

mod collections;
mod context;
mod folds;
mod operator;
mod states;
mod tags;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_engine::{Collector, Data, EventTime, Key, Keyed, OperatorContext, Record, Result};
use weir_state::schema::Schema;
#[cfg(doc)]
use weir_state::ttl::Ttl;

pub use collections::{List, Map};
pub use context::KeyedContext;
pub use folds::{Aggregating, Reducing};
pub use operator::Process;
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

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "process/restore_tests.rs"]
mod restore_tests;
