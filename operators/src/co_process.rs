//! `co_process`: user code over two keyed streams, with states per key and timers that both share.
// HOT: one match per record beyond what `process` costs.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_engine::{Collector, Data, Either, EventTime, Key, Keyed, OperatorContext, Record, Result};
use weir_state::schema::Schema;

#[cfg(doc)]
use crate::process::MapState;
use crate::process::{KeyedContext, NamedState, ProcessFunction, Tagged};

/// What a job does with each record of two connected keyed streams, given what it remembers of the key: a
/// [`ProcessFunction`] with two inputs. State, states with names and timers are the key's, whichever side touches them.
///
/// *Order*: `open` once; then `left`, `right` and the timers, one at a time, all on one thread. Between the two sides there is no
/// order: who needs one keeps what comes in state and waits for the watermark with a timer. Both sides are always read.
///
/// *Late records* are processed like others; [`KeyedContext::is_late`] tells them. Event time is where the slower side is.
///
/// *State* is kept as [`ProcessFunction`] says: until it is cleared.
///
/// # Examples
/// Pairs each request with its answer, whichever is there first, and tells of requests that nobody answered in time:
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
/// # use weir_engine::{Collector, EventTime, Record, Result};
/// # use serde::{Deserialize, Serialize};
/// #[derive(Clone, Default, Serialize, Deserialize)]
/// struct Open { request: Option<String>, answer: Option<String> }
///
/// #[derive(Clone)]
/// struct Answered;
/// impl CoProcessFunction<u64, String, String> for Answered {
///     type Out = String;
///     type State = Open;
///     fn left(&mut self, request: Record<String>, cx: &mut KeyedContext<'_, u64, Open>,
///             out: &mut impl Collector<String>) -> Result<()> {
///         if let Some(answer) = cx.state()?.answer.take() {
///             cx.clear_state();
///             return out.emit(request.with(format!("{}: {answer}", request.value)));
///         }
///         cx.set_timer(EventTime(request.time.millis() + 5_000));
///         cx.state()?.request = Some(request.value);
///         Ok(())
///     }
///     fn right(&mut self, answer: Record<String>, cx: &mut KeyedContext<'_, u64, Open>,
///              out: &mut impl Collector<String>) -> Result<()> {
///         if let Some(request) = cx.state()?.request.take() {
///             cx.clear_state();
///             return out.emit(answer.with(format!("{request}: {}", answer.value)));
///         }
///         cx.set_timer(EventTime(answer.time.millis() + 5_000));
///         cx.state()?.answer = Some(answer.value);
///         Ok(())
///     }
///     fn on_timer(&mut self, time: EventTime, cx: &mut KeyedContext<'_, u64, Open>,
///                 out: &mut impl Collector<String>) -> Result<()> {
///         let Some(open) = cx.existing_state()? else { return Ok(()) };
///         let request = open.request.take();
///         cx.clear_state();
///         request.map_or(Ok(()), |request| out.emit(Record::new(format!("{request}: nobody"), time)))
///     }
/// }
/// # let job = weir_engine::Job::named("doc").parallelism(1);
/// # let text = |uid: &str| {
/// #     let lines = job.source(uid, ScriptSource::of([("7 who", 0)])).source_time(weir_engine::Watermarks::monotonic());
/// #     lines.map(|line| line.to_owned())
/// # };
/// # let id = |line: &String| line.split(' ').next().and_then(|id| id.parse().ok()).unwrap_or(0u64);
/// let requests = text("requests").key_by("by-request", id);
/// requests.connect(text("answers").key_by("by-answer", id)).co_process("answered", Answered).sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
pub trait CoProcessFunction<K: Key, A: Data, B: Data>: Clone + Send + 'static {
    /// What it gives.
    type Out: Data;
    /// What it remembers of a key: see [`ProcessFunction::State`].
    type State: Default + Clone + Send + Serialize + DeserializeOwned + 'static;

    /// Called once, before any record of any task flows.
    ///
    /// # Errors
    /// Whatever keeps it from working; the start fails and names this operator.
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Called for each record of the left stream, of the keys that this subtask owns. HOT.
    ///
    /// # Errors
    /// An error fails the job; so for every method here.
    fn left(
        &mut self,
        record: Record<A>,
        cx: &mut KeyedContext<'_, K, Self::State>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()>;

    /// Called for each record of the right stream, of the keys that this subtask owns. HOT.
    ///
    /// # Errors
    /// As for `left`.
    fn right(
        &mut self,
        record: Record<B>,
        cx: &mut KeyedContext<'_, K, Self::State>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()>;

    /// The versions that the type of `State` has had: see [`ProcessFunction::schema`].
    fn schema(&self) -> Schema<Self::State> {
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

    /// Called before each batch, of both sides or of one: see [`ProcessFunction::prefetch`] and [`MapState::prefetch_entries`].
    ///
    /// # Errors
    /// What is kept cannot be read: pass the error on.
    fn prefetch(&mut self, batch: &[Record<Keyed<K, Either<A, B>>>]) -> Result<()> {
        let _ = batch;
        Ok(())
    }

    /// Called when event time has reached a timer: see [`ProcessFunction::on_timer`].
    ///
    /// # Errors
    /// As for `left`.
    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, K, Self::State>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let _ = (time, cx, out);
        Ok(())
    }

    /// Called when the job's clock has reached a processing timer: see [`ProcessFunction::on_processing_timer`].
    ///
    /// # Errors
    /// As for `left`.
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

/// A [`CoProcessFunction`] as a [`ProcessFunction`] over both sides: give it to [`Process::new`](crate::process::Process::new), and
/// that to a harness, to drive one by hand.
pub struct CoProcess<A, B, F> {
    function: F,
    _of: PhantomData<fn(A, B)>,
}

impl<A, B, F> CoProcess<A, B, F> {
    /// Gives each side to its method of `function`.
    pub fn new(function: F) -> Self {
        CoProcess { function, _of: PhantomData }
    }
}

impl<A, B, F: Clone> Clone for CoProcess<A, B, F> {
    fn clone(&self) -> Self {
        CoProcess::new(self.function.clone())
    }
}

impl<A, B, F> fmt::Debug for CoProcess<A, B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CoProcess")
    }
}

impl<K: Key, A: Data, B: Data, F: CoProcessFunction<K, A, B>> ProcessFunction<K, Either<A, B>>
    for CoProcess<A, B, F>
{
    type Out = F::Out;
    type State = F::State;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.function.open(cx)
    }

    #[inline]
    fn process(
        &mut self,
        record: Record<Either<A, B>>,
        cx: &mut KeyedContext<'_, K, F::State>,
        out: &mut impl Collector<F::Out>,
    ) -> Result<()> {
        let Record { value, time } = record;
        match value {
            Either::Left(value) => self.function.left(Record { value, time }, cx, out),
            Either::Right(value) => self.function.right(Record { value, time }, cx, out),
        }
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

    fn prefetch(&mut self, batch: &[Record<Keyed<K, Either<A, B>>>]) -> Result<()> {
        self.function.prefetch(batch)
    }

    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, K, F::State>,
        out: &mut impl Collector<F::Out>,
    ) -> Result<()> {
        self.function.on_timer(time, cx, out)
    }

    fn on_processing_timer(
        &mut self,
        time_ms: i64,
        cx: &mut KeyedContext<'_, K, F::State>,
        out: &mut impl Collector<F::Out>,
    ) -> Result<()> {
        self.function.on_processing_timer(time_ms, cx, out)
    }
}

#[cfg(test)]
#[path = "co_process_tests.rs"]
mod tests;
