//! `process`: user code with a state per key and event-time timers.
// HOT: at most one probe of the state table per record. No allocation, lock, log or clock of its own.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_engine::{
    Collector, Counter, Data, EndKind, EventTime, Key, KeyHash, Keyed, Operator, OperatorContext, Record,
    Result, Watermark,
};

use crate::state_table::{Place, StateTable};
use crate::timers::Timers;

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
///         let sum = cx.state();
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
///         if cx.state().until != time.millis() {
///             return Ok(()); // something came meanwhile
///         }
///         let sum = cx.state().of;
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
    /// What it remembers of a key: made by `Default` at first touch, kept until [`KeyedContext::clear_state`].
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
}

/// The key at hand: its state, its timers, and where event time stands.
///
/// Timers are unique per key and time: setting one again changes nothing. They fire when the watermark reaches them, in
/// the order of their times, those of one time in the order in which they were set. A timer set at or before the
/// watermark fires at the next advance, as in Flink. While timers fire, one set at or before the time that is firing waits
/// for the next advance too, so that no advance can last for ever.
///
/// When the stream ends for good (watermark [`Watermark::MAX`]) every timer fires, and none can be set any more: attempts
/// are counted (`timers_refused`) and logged. Code that gives something in two steps asks for that watermark in
/// `on_timer`. When the job is drained to be continued, nothing fires.
pub struct KeyedContext<'a, K, S> {
    key: &'a K,
    hash: KeyHash,
    /// Where the state of the key is, once looked up.
    place: Option<Place>,
    table: &'a mut StateTable<K, S>,
    timers: &'a mut Timers<K>,
    watermark: Watermark,
    subtask: usize,
}

impl<K: fmt::Debug, S> fmt::Debug for KeyedContext<'_, K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyedContext({:?} at {:?})", self.key, self.watermark)
    }
}

impl<K: Key, S: Default> KeyedContext<'_, K, S> {
    /// The key.
    #[inline]
    pub fn key(&self) -> &K {
        self.key
    }

    /// The state of the key, made by `Default` if there is none. Only the first call per record looks it up.
    #[inline]
    pub fn state(&mut self) -> &mut S {
        let place = match self.place {
            Some(place) => place,
            None => self.table.find_or_insert_with(self.hash, self.key, S::default),
        };
        self.place = Some(place);
        self.table.at(place)
    }

    /// The state of the key, if there is one: for a timer that must not bring a forgotten key back.
    #[inline]
    pub fn existing_state(&mut self) -> Option<&mut S> {
        if self.place.is_none() {
            self.place = self.table.find(self.hash, self.key);
        }
        self.place.map(|place| self.table.at(place))
    }

    /// Forgets the state of the key. Its timers stay. State that is never cleared stays as long as the job.
    pub fn clear_state(&mut self) {
        self.place = None;
        self.table.remove(self.hash, self.key);
    }

    /// Asks for `on_timer` with this key when event time reaches `time`.
    pub fn set_timer(&mut self, time: EventTime) {
        self.timers.set(self.hash, self.key, time);
    }

    /// Takes a timer of this key back; nothing happens when there is none.
    pub fn delete_timer(&mut self, time: EventTime) {
        self.timers.delete(self.hash, self.key, time);
    }

    /// Where event time stands: in `on_timer`, at the watermark that is firing.
    #[inline]
    pub fn watermark(&self) -> Watermark {
        self.watermark
    }

    /// True when a record of this time comes after the watermark that promised there would be none.
    #[inline]
    pub fn is_late(&self, time: EventTime) -> bool {
        self.watermark.is_late(time)
    }

    /// Which subtask this is, from 0.
    pub fn subtask(&self) -> usize {
        self.subtask
    }
}

/// The operator behind [`process`](crate::prelude::KeyedOps::process).
///
/// *State*: one `F::State` per key, beside the key in one hash table, until it is cleared. About 64 bytes and the key
/// per timer, until it fires or is deleted.
pub struct Process<K, In: Data, F: ProcessFunction<K, In>>
where
    K: Key,
{
    function: F,
    table: StateTable<K, F::State>,
    timers: Timers<K>,
    watermark: Watermark,
    subtask: usize,
    refused: Counter,
    _in: PhantomData<fn(In)>,
}

impl<K: Key, In: Data, F: ProcessFunction<K, In>> Process<K, In, F> {
    /// The operator that runs `function`: what `process` adds to a stream, and what a test of it drives by hand.
    pub fn new(function: F) -> Self {
        Process {
            function,
            table: StateTable::default(),
            timers: Timers::default(),
            watermark: Watermark::MIN,
            subtask: 0,
            refused: Counter::default(),
            _in: PhantomData,
        }
    }
}

impl<K: Key, In: Data, F: ProcessFunction<K, In>> Clone for Process<K, In, F> {
    fn clone(&self) -> Self {
        Process::new(self.function.clone())
    }
}

impl<K: Key, In: Data, F: ProcessFunction<K, In>> fmt::Debug for Process<K, In, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({} keys)", self.table.len())
    }
}

impl<K: Key, In: Data, F: ProcessFunction<K, In>> Operator<Keyed<K, In>> for Process<K, In, F> {
    type Out = F::Out;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.subtask = cx.subtask();
        self.refused = cx.counter("timers_refused");
        self.function.open(cx)
    }

    #[inline]
    fn process(&mut self, record: Record<Keyed<K, In>>, out: &mut impl Collector<F::Out>) -> Result<()> {
        let Record { value: Keyed { hash, key, value }, time } = record;
        let mut cx = KeyedContext {
            key: &key,
            hash,
            place: None,
            table: &mut self.table,
            timers: &mut self.timers,
            watermark: self.watermark,
            subtask: self.subtask,
        };
        self.function.process(Record { value, time }, &mut cx, out)
    }

    fn on_watermark(&mut self, watermark: Watermark, out: &mut impl Collector<F::Out>) -> Result<()> {
        self.watermark = watermark;
        self.timers.advance(watermark);
        while let Some(due) = self.timers.next_due() {
            let mut cx = KeyedContext {
                key: &due.key,
                hash: due.hash,
                place: None,
                table: &mut self.table,
                timers: &mut self.timers,
                watermark,
                subtask: self.subtask,
            };
            self.function.on_timer(due.time, &mut cx, out)?;
        }
        Ok(())
    }

    fn on_end(&mut self, _: EndKind, _: &mut impl Collector<F::Out>) -> Result<()> {
        let refused = self.timers.refused();
        if refused > 0 {
            self.refused.add(refused);
            tracing::warn!(
                refused,
                subtask = self.subtask,
                "timers were set while the last watermark fired: they will never fire"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
