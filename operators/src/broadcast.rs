//! Broadcast state: rules that every subtask has whole, beside a stream, keyed or not, that is processed by them
//! (over 400 lines: half of it says to users what holds, twice, for a keyed and for an unkeyed stream).
// HOT: the rules cost a data record nothing but a reference.

mod rules;

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_engine::{
    Barrier, BroadcastStream, Collector, Data, Either, EndKind, EventTime, HeldSignal, Key, Keyed, Operator,
    OperatorContext, OperatorInfo, Pipe, Record, Result, SignalPort, Stream, Watermark,
};
use weir_state::schema::Schema;
use weir_state::store::Snapshot;

use crate::opened::Opened;
use crate::process::{KeyedContext, NamedState, Process, ProcessFunction, Tagged};
use rules::Rules;

/// What a job does with each record of a stream, given rules that come as another stream, of which every subtask has all.
///
/// *Rules* are a value that `rule` changes and `process` reads. It lies in memory, whole, in every subtask, and whole in every
/// checkpoint, written by one of them: meant for thousands of rules, not for a table of millions. It is restored in each subtask,
/// however many there are. All subtasks get the rules in one order, so with a `rule` that goes by nothing but its arguments all have the
/// same. A rule is never forgotten but by `rule`.
///
/// *Order*: `open` once; then `process` and `rule`, one at a time, all on one thread. Both streams are always read: a record is
/// processed by the rules that have come by then, however few. A job that needs rules first puts them into the first value: `Default`.
///
/// *Late records* are processed like others. Event time is the data's alone, rules hold nothing back.
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
/// # use weir_engine::{Collector, Record, Result};
/// use std::collections::BTreeSet;
///
/// /// Lets through what no rule forbids.
/// #[derive(Clone)]
/// struct Allowed;
/// impl BroadcastFunction<String, String> for Allowed {
///     type Out = String;
///     type Rules = BTreeSet<String>;
///     fn process(&mut self, word: Record<String>, forbidden: &BTreeSet<String>,
///                out: &mut impl Collector<String>) -> Result<()> {
///         if forbidden.contains(&word.value) { Ok(()) } else { out.emit(word) }
///     }
///     fn rule(&mut self, forbid: Record<String>, forbidden: &mut BTreeSet<String>,
///             _: &mut impl Collector<String>) -> Result<()> {
///         forbidden.insert(forbid.value);
///         Ok(())
///     }
/// }
/// # let job = weir_engine::Job::named("doc").parallelism(2);
/// # let words = job.source("words", ScriptSource::of([("a".to_owned(), 0)])).without_event_time();
/// # let rules = job.source("rules", ScriptSource::of([("b".to_owned(), 0)])).without_event_time();
/// words.connect_broadcast(rules).process("allowed", Allowed).sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
pub trait BroadcastFunction<In: Data, R: Data>: Clone + Send + 'static {
    /// What it gives.
    type Out: Data;
    /// The rules, as they are looked at. There is one to begin with, made by `Default`.
    type Rules: Default + Clone + Send + Serialize + DeserializeOwned + 'static;

    /// Called once, before any record of any task flows.
    ///
    /// # Errors
    /// Whatever keeps it from working; the start fails and names this operator.
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// The versions that the type of `Rules` has had: see [`ProcessFunction::schema`].
    fn schema(&self) -> Schema<Self::Rules> {
        Schema::first()
    }

    /// Called for each record of the data. HOT.
    ///
    /// # Errors
    /// An error fails the job; so for every method here.
    fn process(
        &mut self,
        record: Record<In>,
        rules: &Self::Rules,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()>;

    /// Called for each rule, in every subtask: it must go by nothing but the rule and the rules. What it gives, every subtask gives.
    ///
    /// # Errors
    /// As for `process`.
    fn rule(
        &mut self,
        rule: Record<R>,
        rules: &mut Self::Rules,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()>;
}

/// What a job does with each record of a keyed stream, given what it remembers of the key and rules that come as another stream: a
/// [`ProcessFunction`] with rules. Of the rules holds what [`BroadcastFunction`] says; of states, timers and late records, what
/// [`ProcessFunction`] says.
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
/// # use weir_engine::{Collector, Record, Result};
/// /// Tells of users who have spent more than the limit that is set at the time.
/// #[derive(Clone)]
/// struct OverLimit;
/// impl KeyedBroadcastFunction<u64, (u64, u64), u64> for OverLimit {
///     type Out = (u64, u64);
///     type State = u64;
///     type Rules = Option<u64>;
///     fn process(&mut self, r: Record<(u64, u64)>, limit: &Option<u64>, cx: &mut KeyedContext<'_, u64, u64>,
///                out: &mut impl Collector<Self::Out>) -> Result<()> {
///         *cx.state()? += r.value.1;
///         let spent = *cx.state()?;
///         if limit.is_some_and(|limit| spent > limit) { out.emit(r.with((*cx.key(), spent))) } else { Ok(()) }
///     }
///     fn rule(&mut self, limit: Record<u64>, now: &mut Option<u64>, _: &mut impl Collector<Self::Out>) -> Result<()> {
///         *now = Some(limit.value);
///         Ok(())
///     }
/// }
/// # let job = weir_engine::Job::named("doc").parallelism(2);
/// # let spent = job.source("spent", ScriptSource::of([((7, 30), 0)])).without_event_time();
/// # let limits = job.source("limits", ScriptSource::of([(10, 0)])).without_event_time();
/// let by_user = spent.key_by("by-user", |(user, _)| *user);
/// by_user.connect_broadcast(limits).process_keyed("over-limit", OverLimit).sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
pub trait KeyedBroadcastFunction<K: Key, In: Data, R: Data>: Clone + Send + 'static {
    /// What it gives.
    type Out: Data;
    /// What it remembers of a key: see [`ProcessFunction::State`].
    type State: Default + Clone + Send + Serialize + DeserializeOwned + 'static;
    /// The rules, as they are looked at. There is one to begin with, made by `Default`.
    type Rules: Default + Clone + Send + Serialize + DeserializeOwned + 'static;

    /// Called once, before any record of any task flows.
    ///
    /// # Errors
    /// Whatever keeps it from working; the start fails and names this operator.
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// The versions that the type of `State` has had: see [`ProcessFunction::schema`].
    fn schema(&self) -> Schema<Self::State> {
        Schema::first()
    }

    /// The versions that the type of `Rules` has had.
    fn rules_schema(&self) -> Schema<Self::Rules> {
        Schema::first()
    }

    /// The states with names: see [`ProcessFunction::states`].
    fn states(&mut self) -> Vec<&mut dyn NamedState<K>> {
        Vec::new()
    }

    /// The side outputs: see [`ProcessFunction::tags`].
    fn tags(&mut self) -> Vec<&mut dyn Tagged> {
        Vec::new()
    }

    /// Called for each record of the keys that this subtask owns. HOT.
    ///
    /// # Errors
    /// An error fails the job; so for every method here.
    fn process(
        &mut self,
        record: Record<In>,
        rules: &Self::Rules,
        cx: &mut KeyedContext<'_, K, Self::State>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()>;

    /// Called for each rule, in every subtask: see [`BroadcastFunction::rule`].
    ///
    /// # Errors
    /// As for `process`.
    fn rule(
        &mut self,
        rule: Record<R>,
        rules: &mut Self::Rules,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()>;

    /// Called when event time has reached a timer: see [`ProcessFunction::on_timer`].
    ///
    /// # Errors
    /// As for `process`.
    fn on_timer(
        &mut self,
        time: EventTime,
        rules: &Self::Rules,
        cx: &mut KeyedContext<'_, K, Self::State>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let _ = (time, rules, cx, out);
        Ok(())
    }

    /// Called when the machine's clock has reached a processing timer: see [`ProcessFunction::on_processing_timer`].
    ///
    /// # Errors
    /// As for `process`.
    fn on_processing_timer(
        &mut self,
        time_ms: i64,
        rules: &Self::Rules,
        cx: &mut KeyedContext<'_, K, Self::State>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let _ = (time_ms, rules, cx, out);
        Ok(())
    }
}

/// The step behind [`Stream::connect_broadcast`].
pub trait BroadcastOps<In: Data, R: Data>: Sized {
    /// Runs `function` on each record and each rule; the rules are kept under `uid`. [`BroadcastFunction`] says what holds, and shows it.
    fn process<F: BroadcastFunction<In, R>>(
        self,
        uid: &str,
        function: F,
    ) -> Stream<F::Out, impl Pipe<Out = F::Out>>;
}

impl<In: Data, R: Data> BroadcastOps<In, R> for BroadcastStream<In, R> {
    fn process<F: BroadcastFunction<In, R>>(
        self,
        uid: &str,
        function: F,
    ) -> Stream<F::Out, impl Pipe<Out = F::Out>> {
        self.transform(OperatorInfo::stateful("broadcast", uid).settles(), Broadcast::new(function))
    }
}

/// The step behind [`KeyedStream::connect_broadcast`](weir_engine::KeyedStream::connect_broadcast).
pub trait KeyedBroadcastOps<K: Key, In: Data, R: Data>: Sized {
    /// Runs `function` on each record and each rule; states, timers and rules are kept under `uid`. [`KeyedBroadcastFunction`] says what
    /// holds, and shows it.
    fn process_keyed<F: KeyedBroadcastFunction<K, In, R>>(
        self,
        uid: &str,
        function: F,
    ) -> Stream<F::Out, impl Pipe<Out = F::Out>>;
}

impl<K: Key, In: Data, R: Data> KeyedBroadcastOps<K, In, R> for BroadcastStream<Keyed<K, In>, R> {
    fn process_keyed<F: KeyedBroadcastFunction<K, In, R>>(
        self,
        uid: &str,
        function: F,
    ) -> Stream<F::Out, impl Pipe<Out = F::Out>> {
        self.transform(
            OperatorInfo::stateful("keyed_broadcast", uid).settles(),
            KeyedBroadcast::new(function),
        )
    }
}

/// The operator behind [`BroadcastOps::process`].
///
/// *State*: the rules, in memory and in each checkpoint, whole.
pub struct Broadcast<In: Data, R: Data, F: BroadcastFunction<In, R>> {
    function: F,
    rules: Opened<Rules<F::Rules>>,
    _of: PhantomData<fn(In, R)>,
}

impl<In: Data, R: Data, F: BroadcastFunction<In, R>> Broadcast<In, R, F> {
    /// The operator that runs `function`: what a test of it drives by hand.
    pub fn new(function: F) -> Self {
        Broadcast { function, rules: Opened(None), _of: PhantomData }
    }
}

impl<In: Data, R: Data, F: BroadcastFunction<In, R>> Clone for Broadcast<In, R, F> {
    fn clone(&self) -> Self {
        Broadcast::new(self.function.clone())
    }
}

impl<In: Data, R: Data, F: BroadcastFunction<In, R>> fmt::Debug for Broadcast<In, R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Broadcast({:?})", self.rules)
    }
}

impl<In: Data, R: Data, F: BroadcastFunction<In, R>> Operator<Either<In, R>> for Broadcast<In, R, F> {
    type Out = F::Out;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.rules = Opened(Some(Rules::open(cx, self.function.schema())?));
        self.function.open(cx)
    }

    #[inline]
    fn process(&mut self, record: Record<Either<In, R>>, out: &mut impl Collector<F::Out>) -> Result<()> {
        let rules = self.rules.0.as_mut().ok_or_else(rules::not_open)?;
        let Record { value, time } = record;
        match value {
            Either::Left(value) => self.function.process(Record { value, time }, rules.read(), out),
            Either::Right(value) => self.function.rule(Record { value, time }, rules.change(), out),
        }
    }

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        self.rules.0.as_mut().ok_or_else(rules::not_open)?.keep(into)
    }
}

/// A function with its rules, as one that knows of the keyed side only.
struct Ruled<K: Key, In: Data, R: Data, F: KeyedBroadcastFunction<K, In, R>> {
    function: F,
    rules: Opened<Rules<F::Rules>>,
    _of: PhantomData<fn(K, In, R)>,
}

impl<K: Key, In: Data, R: Data, F: KeyedBroadcastFunction<K, In, R>> Clone for Ruled<K, In, R, F> {
    fn clone(&self) -> Self {
        Ruled { function: self.function.clone(), rules: Opened(None), _of: PhantomData }
    }
}

impl<K: Key, In: Data, R: Data, F: KeyedBroadcastFunction<K, In, R>> ProcessFunction<K, In>
    for Ruled<K, In, R, F>
{
    type Out = F::Out;
    type State = F::State;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.rules = Opened(Some(Rules::open(cx, self.function.rules_schema())?));
        self.function.open(cx)
    }

    fn schema(&self) -> Schema<F::State> {
        self.function.schema()
    }

    fn states(&mut self) -> Vec<&mut dyn NamedState<K>> {
        self.function.states()
    }

    fn tags(&mut self) -> Vec<&mut dyn Tagged> {
        self.function.tags()
    }

    #[inline]
    fn process(
        &mut self,
        record: Record<In>,
        cx: &mut KeyedContext<'_, K, F::State>,
        out: &mut impl Collector<F::Out>,
    ) -> Result<()> {
        let rules = self.rules.0.as_ref().ok_or_else(rules::not_open)?;
        self.function.process(record, rules.read(), cx, out)
    }

    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, K, F::State>,
        out: &mut impl Collector<F::Out>,
    ) -> Result<()> {
        let rules = self.rules.0.as_ref().ok_or_else(rules::not_open)?;
        self.function.on_timer(time, rules.read(), cx, out)
    }

    fn on_processing_timer(
        &mut self,
        time_ms: i64,
        cx: &mut KeyedContext<'_, K, F::State>,
        out: &mut impl Collector<F::Out>,
    ) -> Result<()> {
        let rules = self.rules.0.as_ref().ok_or_else(rules::not_open)?;
        self.function.on_processing_timer(time_ms, rules.read(), cx, out)
    }
}

/// The operator behind [`KeyedBroadcastOps::process_keyed`].
///
/// *State*: the rules, in memory and in each checkpoint, whole; and what [`Process`] keeps.
pub struct KeyedBroadcast<K: Key, In: Data, R: Data, F: KeyedBroadcastFunction<K, In, R>> {
    inner: Process<K, In, Ruled<K, In, R, F>>,
}

impl<K: Key, In: Data, R: Data, F: KeyedBroadcastFunction<K, In, R>> KeyedBroadcast<K, In, R, F> {
    /// The operator that runs `function`: what a test of it drives by hand.
    pub fn new(function: F) -> Self {
        let ruled = Ruled { function, rules: Opened(None), _of: PhantomData };
        KeyedBroadcast { inner: Process::new(ruled) }
    }
}

impl<K: Key, In: Data, R: Data, F: KeyedBroadcastFunction<K, In, R>> Clone for KeyedBroadcast<K, In, R, F> {
    fn clone(&self) -> Self {
        KeyedBroadcast { inner: self.inner.clone() }
    }
}

impl<K: Key, In: Data, R: Data, F: KeyedBroadcastFunction<K, In, R>> fmt::Debug
    for KeyedBroadcast<K, In, R, F>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyedBroadcast({:?})", self.inner)
    }
}

impl<K: Key, In: Data, R: Data, F: KeyedBroadcastFunction<K, In, R>> Operator<Either<Keyed<K, In>, R>>
    for KeyedBroadcast<K, In, R, F>
{
    type Out = F::Out;
    const HOLDS_SIGNALS: bool = true;
    const RELEASES_BETWEEN_BATCHES: bool = true;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.inner.open(cx)
    }

    fn prefetch(&mut self, batch: &[Record<Either<Keyed<K, In>, R>>]) -> Result<()> {
        self.inner.comes(batch.len());
        self.inner.prefetch_keys(batch.iter().filter_map(|record| match &record.value {
            Either::Left(keyed) => Some((keyed.hash, &keyed.key)),
            Either::Right(_) => None,
        }))
    }

    #[inline]
    fn process(
        &mut self,
        record: Record<Either<Keyed<K, In>, R>>,
        out: &mut impl Collector<F::Out>,
    ) -> Result<()> {
        let Record { value, time } = record;
        match value {
            Either::Left(value) => self.inner.process(Record { value, time }, out),
            Either::Right(value) => {
                // What event time has reached goes by the rules that there were.
                self.inner.finish(out)?;
                let Ruled { function, rules, .. } = self.inner.function();
                let rules = rules.0.as_mut().ok_or_else(rules::not_open)?;
                function.rule(Record { value, time }, rules.change(), out)
            }
        }
    }

    fn on_batch_end(&mut self, out: &mut impl Collector<F::Out>) -> Result<()> {
        self.inner.on_batch_end(out)
    }

    fn on_quiet(&mut self, out: &mut impl Collector<F::Out>) -> Result<()> {
        self.inner.on_quiet(out)
    }

    fn wakes_at(&self) -> Option<i64> {
        self.inner.wakes_at()
    }

    fn on_watermark(&mut self, watermark: Watermark, out: &mut impl Collector<F::Out>) -> Result<()> {
        self.inner.on_watermark(watermark, out)
    }

    fn hold(&mut self, signal: HeldSignal) {
        self.inner.hold(signal);
    }

    #[inline]
    fn release(&mut self, out: &mut impl Collector<F::Out>) -> Result<Option<HeldSignal>> {
        self.inner.release(out)
    }

    fn has_more(&self) -> bool {
        self.inner.has_more()
    }

    fn snapshot(&mut self, barrier: Barrier, into: &mut Snapshot) -> Result<()> {
        self.inner.snapshot(barrier, into)?;
        self.inner.function().rules.0.as_mut().ok_or_else(rules::not_open)?.keep(into)
    }

    fn on_end(&mut self, kind: EndKind, out: &mut impl Collector<F::Out>) -> Result<()> {
        self.inner.on_end(kind, out)
    }

    fn sides(&mut self) -> Option<&mut dyn SignalPort> {
        self.inner.sides()
    }
}

#[cfg(test)]
#[path = "broadcast/tests.rs"]
mod tests;
