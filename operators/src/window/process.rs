//! User code per window: each record with what is remembered of its key in that window, and a last word when the window is over.
// HOT: one probe per record when windows follow each other. No allocation, lock, log or clock of its own.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_engine::{
    Barrier, Collector, Data, EndKind, EventTime, HeldSignal, Key, Keyed, Operator, OperatorContext,
    OperatorInfo, Pipe, Record, Result, SideSlot, SignalPort, Stream, Then, Watermark, WindowedStream,
};
use weir_state::store::Snapshot;

use crate::late::{Late, no_event_time};
use crate::opened::Opened;
use crate::progress;
use crate::window::cuts::Cutting;
use crate::window::held::{Held, gives_in_parts};
use crate::window::panes::Panes;
use crate::window::process_count::CountProcess;
use crate::window::process_sliced::SlicedProcess;
use crate::window::sliced::Sliced;
use crate::window::tumbling::{AT_ONCE, not_open};
use crate::window::{Calendar, CountWindow, Cumulate, Sliding, TimeWindow, Tumbling};

/// What a job does with each record of a window, given what it remembers of the key in that window. For what an
/// [`Aggregate`](crate::Aggregate) cannot say: results in between, several per window, or only for some.
///
/// `Clone` is for the recipe: every subtask works with a copy of its own. What must survive belongs into `State`: fields of it are the
/// values, lists and maps of the window. It is read and written as a whole, and dropped with its window.
///
/// *Order*: `process` for each record of the keys that this subtask owns, and each of the windows that it is in; `on_close` once for each key that had one in the
/// window. All on one thread. Late records, those whose windows are over, do not come here.
///
/// In sessions a function has to say what becomes of two of them that turn out to be one: [`SessionFunction`](crate::prelude::SessionFunction).
///
/// # Examples
/// Tells of the third failure within an hour as it comes, and of how many there were in the end:
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::{Collector, Record, Result, testkit::{NullSink, ScriptSource, run_within}};
/// #[derive(Clone)]
/// struct Failures;
/// impl WindowFunction<u64, String> for Failures {
///     type Out = (u64, Vec<String>);
///     type State = Vec<String>;
///     fn process(&mut self, r: Record<String>, failures: &mut Vec<String>, at: &InWindow<'_, u64>, out: &mut impl Collector<Self::Out>) -> Result<()> {
///         failures.push(r.value.clone());
///         if failures.len() == 3 { out.emit(r.with((*at.key, failures.clone()))) } else { Ok(()) }
///     }
///     fn on_close(&mut self, failures: Vec<String>, at: &InWindow<'_, u64>, out: &mut impl Collector<Self::Out>) -> Result<()> {
///         out.emit(Record::new((*at.key, failures), at.window.last()))
///     }
/// }
/// # let job = weir_engine::Job::named("doc").parallelism(1);
/// # let failures = job.source("in", ScriptSource::of([("disk".to_owned(), 0)])).source_time(weir_engine::Watermarks::monotonic());
/// failures.key_by("by-length", |what| what.len() as u64)
///     .window(Tumbling::of(hours(1)))
///     .process("failures", Failures)
///     .sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
pub trait WindowFunction<K: Key, In: Data>: Clone + Send + 'static {
    /// What it gives.
    type Out: Data;
    /// What it remembers of a key in a window: made by `Default` at its first record, dropped when the window is over.
    type State: Default + Clone + Send + Serialize + DeserializeOwned + 'static;

    /// Called for each record. HOT.
    ///
    /// # Errors
    /// An error fails the job.
    fn process(
        &mut self,
        record: Record<In>,
        state: &mut Self::State,
        at: &InWindow<'_, K>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()>;

    /// Called when the watermark says that the window is over. What is given here goes downstream before that watermark; its time should be
    /// the last millisecond of the window.
    ///
    /// # Errors
    /// As for `process`.
    fn on_close(
        &mut self,
        state: Self::State,
        at: &InWindow<'_, K>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()>;
}

/// Where a record, or what is remembered, belongs.
#[derive(Clone, Copy, Debug)]
pub struct InWindow<'a, K> {
    /// The key.
    pub key: &'a K,
    /// The window.
    pub window: TimeWindow,
}

/// The stream of what a window function gives, still in its task.
pub type WindowProcessed<K, T, F, P, O = WindowProcess<K, T, F>> =
    Stream<<F as WindowFunction<K, T>>::Out, Then<P, Keyed<K, T>, O>>;

/// User code in a window: [`Tumbling`], [`Calendar`], [`Sliding`], [`Cumulate`] or [`CountWindow`]. For sessions see
/// [`SessionProcessOps`](crate::prelude::SessionProcessOps).
pub trait WindowProcessOps<K: Key, T: Data, P: Pipe<Out = Keyed<K, T>>>: Sized {
    /// The operator that runs a function in the window.
    type Operator<F: WindowFunction<K, T>>: Operator<Keyed<K, T>, Out = F::Out>;

    /// Runs `function` in the window. [`WindowFunction`] shows it; [`WindowProcess`], [`SlicedProcess`] and [`CountProcess`] say what is kept.
    fn process<F: WindowFunction<K, T>>(
        self,
        uid: &str,
        function: F,
    ) -> WindowProcessed<K, T, F, P, Self::Operator<F>>;

    /// Like `process`, with the late records as a stream of their own; it must be read to a sink.
    #[expect(clippy::type_complexity, reason = "two streams, each of a type that has a name")]
    fn process_with_late<F: WindowFunction<K, T>>(
        self,
        uid: &str,
        function: F,
    ) -> (WindowProcessed<K, T, F, P, Self::Operator<F>>, Stream<T>);
}

macro_rules! processes {
    ($($of:ty, $operator:ident, |$window:ident| $check:expr, $as:expr;)*) => { $(
        impl<K: Key, T: Data, P: Pipe<Out = Keyed<K, T>>> WindowProcessOps<K, T, P>
            for WindowedStream<K, T, $of, P>
        {
            type Operator<F: WindowFunction<K, T>> = $operator<K, T, F>;

            fn process<F: WindowFunction<K, T>>(
                self,
                uid: &str,
                function: F,
            ) -> WindowProcessed<K, T, F, P, $operator<K, T, F>> {
                let (keyed, $window) = self.into_parts();
                let keyed = keyed.require(uid, $check);
                let op = $operator::new($as, function, SideSlot::default());
                keyed.transform(OperatorInfo::stateful("window_process", uid).settles(), op)
            }

            fn process_with_late<F: WindowFunction<K, T>>(
                self,
                uid: &str,
                function: F,
            ) -> (WindowProcessed<K, T, F, P, $operator<K, T, F>>, Stream<T>) {
                let (keyed, $window) = self.into_parts();
                let keyed = keyed.require(uid, $check);
                let slot = SideSlot::default();
                let op = $operator::new($as, function, slot.clone());
                let results = keyed.transform(OperatorInfo::stateful("window_process", uid).settles(), op);
                let late = results.side(&slot, "late");
                (results, late)
            }
        }
    )* };
}
processes! {
    Tumbling, WindowProcess, |window| window.check().map(drop), Cutting::Tumbling(window);
    Calendar, WindowProcess, |window| window.check().map(drop), Cutting::Calendar(window);
    Sliding, SlicedProcess, |window| window.check().and_then(|slicing| slicing.is_plain()), Sliced::Sliding(window);
    Cumulate, SlicedProcess, |window| window.check().and_then(|slicing| slicing.is_plain()), Sliced::Cumulate(window);
    CountWindow, CountProcess, |window| window.check().map(drop), window;
}

/// The operator behind [`process`](WindowProcessOps::process) in [`Tumbling`] and [`Calendar`] windows.
///
/// *State*: the function's, per key and open window, in the table `window_states`, forgotten when the window is over; in memory as far as the job's
/// budget reaches. A checkpoint writes what changed since the one before. Size, offset or calendar cannot change while windows are open.
///
/// *Order*: windows are closed in the order they end, the keys of one in an order that says nothing; many in parts, as by a
/// [`TumblingAggregate`](crate::window::TumblingAggregate).
///
/// *Late records*, those whose window is over, go to the late output if that is read, and are counted as `late_records` in any case.
pub struct WindowProcess<K: Key, T: Data, F: WindowFunction<K, T>> {
    window: Cutting,
    function: F,
    panes: Opened<Panes<K, F::State>>,
    /// What is taken out of a window that is closed.
    taken: Vec<(K, F::State)>,
    watermark: Watermark,
    held: Held,
    cx: Opened<OperatorContext>,
    late: Late<T>,
}

impl<K: Key, T: Data, F: WindowFunction<K, T>> WindowProcess<K, T, F> {
    /// The operator in a [`Tumbling`] window: what a test of the function drives by hand.
    ///
    /// ```
    /// # use weir_operators::{prelude::*, window::WindowProcess};
    /// # use weir_engine::{Collector, Keyed, Record, Result, testkit::OpHarness};
    /// /// The longest of each hour.
    /// #[derive(Clone)]
    /// struct Longest;
    /// impl WindowFunction<u64, String> for Longest {
    ///     type Out = String;
    ///     type State = String;
    ///     fn process(&mut self, r: Record<String>, longest: &mut String, _: &InWindow<'_, u64>, _: &mut impl Collector<String>) -> Result<()> {
    ///         if r.value.len() > longest.len() { *longest = r.value }
    ///         Ok(())
    ///     }
    ///     fn on_close(&mut self, longest: String, at: &InWindow<'_, u64>, out: &mut impl Collector<String>) -> Result<()> {
    ///         out.emit(Record::new(longest, at.window.last()))
    ///     }
    /// }
    /// let mut harness = OpHarness::new(WindowProcess::tumbling(Tumbling::of(hours(1)), Longest))?;
    /// # let keyed = |value: &str| Keyed { hash: weir_state::key_hash(&7u64), key: 7u64, value: value.to_owned() };
    /// harness.batch([(keyed("a"), 0), (keyed("abc"), 5), (keyed("ab"), 9)])?;
    /// harness.watermark(3_599_999)?;
    /// assert_eq!(harness.take_values(), ["abc"]);
    /// # Ok::<(), weir_engine::TaskError>(())
    /// ```
    pub fn tumbling(window: Tumbling, function: F) -> Self {
        Self::new(Cutting::Tumbling(window), function, SideSlot::default())
    }

    /// The operator in a [`Calendar`] window, likewise.
    pub fn calendar(window: Calendar, function: F) -> Self {
        Self::new(Cutting::Calendar(window), function, SideSlot::default())
    }

    pub(crate) fn new(window: Cutting, function: F, late: SideSlot<T>) -> Self {
        Self::with(window, function, Late::new(late))
    }

    fn with(window: Cutting, function: F, late: Late<T>) -> Self {
        WindowProcess {
            window,
            function,
            panes: Opened(None),
            taken: Vec::new(),
            watermark: Watermark::MIN,
            held: Held::default(),
            cx: Opened(None),
            late,
        }
    }

    /// Closes what this turn may of what comes before the first signal that waits; that signal when all of it was.
    #[inline(never)]
    fn give(&mut self, out: &mut impl Collector<F::Out>) -> Result<Option<HeldSignal>> {
        let Some(until) = self.held.until() else { return Ok(self.held.next()) };
        let (Some(panes), Some(cx)) = (&mut self.panes.0, &self.cx.0) else { return Err(not_open()) };
        let mut unheard = 0;
        while let Some((window, space)) = panes.first_over(until) {
            if self.held.is_spent() {
                return Ok(None);
            }
            let more = panes.pop(space, self.held.at_once(), &mut self.taken)?;
            self.held.gave(self.taken.len() + 1);
            unheard += self.taken.len() + 1;
            if unheard > AT_ONCE {
                // Nothing of what is given may reach a channel, which would hear it too.
                cx.not_cancelled()?;
                unheard = 0;
            }
            for (key, state) in self.taken.drain(..) {
                self.function.on_close(state, &InWindow { key: &key, window }, out)?;
            }
            if !more {
                panes.close(window);
            }
        }
        panes.batch_end()?;
        Ok(self.held.next())
    }
}

impl<K: Key, T: Data, F: WindowFunction<K, T>> Clone for WindowProcess<K, T, F> {
    fn clone(&self) -> Self {
        Self::with(self.window.clone(), self.function.clone(), self.late.clone())
    }
}

impl<K: Key, T: Data, F: WindowFunction<K, T>> fmt::Debug for WindowProcess<K, T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowProcess({:?}, {:?})", self.window, self.panes)
    }
}

impl<K: Key, T: Data, F: WindowFunction<K, T>> Operator<Keyed<K, T>> for WindowProcess<K, T, F> {
    type Out = F::Out;
    const HOLDS_SIGNALS: bool = true;
    const RELEASES_BETWEEN_BATCHES: bool = true;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let cuts = self.window.check()?;
        let layout = cuts.layout();
        self.panes = Opened(Some(Panes::open(cx, "window_states", cuts, layout)?));
        self.watermark = progress::restored(cx)?;
        self.held = Held::restored(cx, self.watermark);
        self.cx = Opened(Some(cx.clone()));
        self.late.open(cx);
        Ok(())
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, T>>]) -> Result<()> {
        self.held.comes(batch.len());
        self.panes.0.as_mut().ok_or_else(not_open)?.prefetch(batch)
    }

    #[inline]
    fn process(&mut self, record: Record<Keyed<K, T>>, out: &mut impl Collector<F::Out>) -> Result<()> {
        let Record { value: Keyed { hash, key, value }, time } = record;
        let panes = self.panes.0.as_mut().ok_or_else(not_open)?;
        // A window that was used since the last watermark is not over.
        let (window, states) = match panes.last_window(time) {
            Some(window) => (window, panes.last().ok_or_else(not_open)?),
            None => {
                if time == EventTime::NONE {
                    return Err(no_event_time());
                }
                let window = panes.window_of(time);
                if window.is_over(self.watermark) {
                    return self.late.take(Record { value, time });
                }
                (window, panes.map_of(window))
            }
        };
        let place = states.find_or_insert_with(hash, &key, F::State::default)?;
        self.function.process(Record { value, time }, states.at(place), &InWindow { key: &key, window }, out)
    }

    fn on_batch_end(&mut self, _: &mut impl Collector<F::Out>) -> Result<()> {
        self.late.count();
        self.held.batch_end();
        self.panes.0.as_mut().map_or(Ok(()), Panes::batch_end)
    }

    fn on_quiet(&mut self, _: &mut impl Collector<F::Out>) -> Result<()> {
        self.held.quiet();
        self.panes.0.as_mut().map_or(Ok(()), Panes::batch_end)
    }

    fn on_watermark(&mut self, watermark: Watermark, _: &mut impl Collector<F::Out>) -> Result<()> {
        // After a restore event time first comes to where it was.
        self.watermark = self.watermark.max(watermark);
        self.panes.0.as_mut().ok_or_else(not_open)?.forget_last_if_over(self.watermark);
        Ok(())
    }

    fn hold(&mut self, signal: HeldSignal) {
        self.held.hold(signal);
    }

    gives_in_parts!();

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        self.panes.0.as_mut().ok_or_else(not_open)?.freeze(into)?;
        self.held.keep(self.watermark, into);
        Ok(())
    }
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
