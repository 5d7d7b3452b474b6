//! User code in windows that overlap or grow: each record with what is remembered of its key in each of its windows.
// HOT: one probe per record and window that it is in. No allocation, lock, log or clock of its own.

use std::fmt;

use weir_engine::{
    Barrier, Collector, Data, EndKind, EventTime, HeldSignal, Key, Keyed, Operator, OperatorContext, Record,
    Result, SideSlot, SignalPort, Watermark,
};
use weir_state::keyed::{Spaces, Table};
use weir_state::store::Snapshot;

use crate::late::{Late, no_event_time};
use crate::opened::Opened;
use crate::progress;
use crate::window::cuts::{check_kept, keep_layout};
use crate::window::held::{Held, gives_in_parts};
use crate::window::panes::runs;
use crate::window::process::{InWindow, WindowFunction};
use crate::window::sliced::Sliced;
use crate::window::slices::{Cumulate, Slicing, Sliding, cut};
use crate::window::tumbling::not_open;

/// The operator behind [`process`](crate::prelude::WindowProcessOps::process) on [`Sliding`] and
/// [`Cumulate`] windows.
///
/// The function sees each record once for each window that it is in, and closes each window of a key once.
///
/// *State*: the function's, per key and open window, in the table `window_states`, forgotten when the window is over: a record touches as many as it
/// is in windows, since code of a user's own cannot be merged of slices as an [`Aggregate`](crate::Aggregate) can. A checkpoint writes what
/// changed since the one before. How windows lie cannot change while some are open.
///
/// *Order*: windows are closed in the order they end, the keys of one in an order that says nothing; many in parts, as by a
/// [`TumblingAggregate`](crate::window::TumblingAggregate). Windows that end behind the end of time are one.
///
/// *Late records* are processed in those of their windows that are not over. One of which all are over goes to the late output if that is
/// read, and is counted as `late_records` in any case.
pub struct SlicedProcess<K: Key, T: Data, F: WindowFunction<K, T>> {
    window: Sliced,
    function: F,
    kept: Opened<Kept<K, F::State>>,
    /// What is taken out of a window that is closed.
    taken: Vec<(K, F::State)>,
    watermark: Watermark,
    held: Held,
    cx: Opened<OperatorContext>,
    late: Late<T>,
}

struct Kept<K, S> {
    slicing: Slicing,
    /// By the window's end.
    windows: Spaces<K, S>,
}

impl<K: Key, T: Data, F: WindowFunction<K, T>> SlicedProcess<K, T, F> {
    /// The operator in a [`Sliding`] window: what a test of the function drives by hand.
    ///
    /// ```
    /// # use weir_operators::{prelude::*, window::SlicedProcess};
    /// # use weir_engine::{Collector, Keyed, Record, Result, testkit::OpHarness};
    /// # #[derive(Clone)] struct All;
    /// # impl WindowFunction<u64, i64> for All {
    /// #     type Out = Vec<i64>;
    /// #     type State = Vec<i64>;
    /// #     fn process(&mut self, r: Record<i64>, all: &mut Vec<i64>, _: &InWindow<'_, u64>, _: &mut impl Collector<Vec<i64>>) -> Result<()> { all.push(r.value); Ok(()) }
    /// #     fn on_close(&mut self, all: Vec<i64>, at: &InWindow<'_, u64>, out: &mut impl Collector<Vec<i64>>) -> Result<()> { out.emit(Record::new(all, at.window.last())) }
    /// # }
    /// // A function that gives all values of a window.
    /// let mut harness = OpHarness::new(SlicedProcess::sliding(Sliding::of(seconds(10)).every(seconds(5)), All))?;
    /// # let keyed = |value| Keyed { hash: weir_state::key_hash(&7u64), key: 7u64, value };
    /// harness.batch([(keyed(1), 3_000), (keyed(2), 6_000)])?;
    /// harness.watermark(60_000)?;
    /// assert_eq!(harness.take_values(), [vec![1], vec![1, 2], vec![2]]);
    /// # Ok::<(), weir_engine::TaskError>(())
    /// ```
    pub fn sliding(window: Sliding, function: F) -> Self {
        Self::new(Sliced::Sliding(window), function, SideSlot::default())
    }

    /// The operator in a [`Cumulate`] window, likewise.
    pub fn cumulating(window: Cumulate, function: F) -> Self {
        Self::new(Sliced::Cumulate(window), function, SideSlot::default())
    }

    pub(crate) fn new(window: Sliced, function: F, late: SideSlot<T>) -> Self {
        Self::with(window, function, Late::new(late))
    }

    fn with(window: Sliced, function: F, late: Late<T>) -> Self {
        SlicedProcess {
            window,
            function,
            kept: Opened(None),
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
        let (Some(kept), Some(cx)) = (&mut self.kept.0, &self.cx.0) else { return Err(not_open()) };
        loop {
            let first = kept.windows.namespaces().next();
            let Some((end, space)) = first.filter(|(end, _)| kept.slicing.is_over((*end).into(), until))
            else {
                break;
            };
            if self.held.is_spent() {
                return Ok(None);
            }
            let more = kept.windows.map(space).pop(self.held.at_once(), &mut self.taken)?;
            self.held.gave(self.taken.len() + 1);
            // Nothing of what is given may reach a channel, which would hear it too.
            cx.not_cancelled()?;
            let window = kept.slicing.window(end.into());
            for (key, state) in self.taken.drain(..) {
                self.function.on_close(state, &InWindow { key: &key, window }, out)?;
            }
            if !more {
                kept.windows.close(end);
            }
        }
        kept.windows.batch_end()?;
        Ok(self.held.next())
    }

    fn upkeep(&mut self) -> Result<()> {
        Ok(self.kept.0.as_mut().ok_or_else(not_open)?.windows.batch_end()?)
    }
}

impl<K: Key, T: Data, F: WindowFunction<K, T>> Clone for SlicedProcess<K, T, F> {
    fn clone(&self) -> Self {
        Self::with(self.window, self.function.clone(), self.late.clone())
    }
}

impl<K: Key, T: Data, F: WindowFunction<K, T>> fmt::Debug for SlicedProcess<K, T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlicedProcess({:?})", self.window)
    }
}

impl<K: Key, T: Data, F: WindowFunction<K, T>> Operator<Keyed<K, T>> for SlicedProcess<K, T, F> {
    type Out = F::Out;
    const HOLDS_SIGNALS: bool = true;
    const RELEASES_BETWEEN_BATCHES: bool = true;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let slicing = self.window.check()?;
        slicing.is_plain()?;
        let windows = cx.store()?.spaces(Table::new("window_states"))?;
        if let Some((end, _)) = windows.namespaces().next() {
            check_kept(cx, &slicing.layout(), cut(slicing.begin(end.into())))?;
        }
        self.watermark = progress::restored(cx)?;
        self.held = Held::restored(cx, self.watermark).of_each(slicing.windows_each());
        self.kept = Opened(Some(Kept { slicing, windows }));
        self.cx = Opened(Some(cx.clone()));
        self.late.open(cx);
        Ok(())
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, T>>]) -> Result<()> {
        self.held.comes(batch.len());
        let Kept { slicing, windows } = self.kept.0.as_mut().ok_or_else(not_open)?;
        for (slice, records) in runs(|time| slicing.slices().window_of(time), batch) {
            let begin = i128::from(slice.start.0);
            let (mut end, last) = (slicing.first_end(begin), slicing.last_end(begin));
            while end <= last {
                if let Some(space) = windows.get(cut(end)) {
                    windows.map(space).prefetch(records.iter().map(|r| (r.value.hash, &r.value.key)))?;
                }
                end = slicing.next_end(end);
            }
        }
        Ok(())
    }

    fn process(&mut self, record: Record<Keyed<K, T>>, out: &mut impl Collector<F::Out>) -> Result<()> {
        let Record { value: Keyed { hash, key, value }, time } = record;
        if time == EventTime::NONE {
            return Err(no_event_time());
        }
        let Kept { slicing, windows } = self.kept.0.as_mut().ok_or_else(not_open)?;
        let slice = i128::from(slicing.slices().window_of(time).start.0);
        let (mut end, last) = (slicing.first_end(slice), slicing.last_end(slice));
        while end <= last && slicing.is_over(end, self.watermark) {
            end = slicing.next_end(end);
        }
        if end > last {
            return self.late.take(Record { value, time });
        }
        while end <= last {
            let space = windows.open(cut(end));
            let states = windows.map(space);
            let place = states.find_or_insert_with(hash, &key, F::State::default)?;
            let at = InWindow { key: &key, window: slicing.window(end) };
            self.function.process(Record { value: value.clone(), time }, states.at(place), &at, out)?;
            end = slicing.next_end(end);
        }
        Ok(())
    }

    fn on_batch_end(&mut self, _: &mut impl Collector<F::Out>) -> Result<()> {
        self.late.count();
        self.held.batch_end();
        self.upkeep()
    }

    fn on_quiet(&mut self, _: &mut impl Collector<F::Out>) -> Result<()> {
        self.held.quiet();
        self.upkeep()
    }

    fn on_watermark(&mut self, watermark: Watermark, _: &mut impl Collector<F::Out>) -> Result<()> {
        // After a restore event time first comes to where it was.
        self.watermark = self.watermark.max(watermark);
        Ok(())
    }

    fn hold(&mut self, signal: HeldSignal) {
        self.held.hold(signal);
    }

    /// A record may bring many windows about: where more are waiting to be closed than that, they go first.
    fn is_full(&self) -> bool {
        self.held.has_many()
    }

    gives_in_parts!();

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        kept.windows.freeze(into)?;
        keep_layout(&kept.slicing.layout(), into);
        self.held.keep(self.watermark, into);
        Ok(())
    }
}

#[cfg(test)]
#[path = "process_kinds_tests.rs"]
mod tests;
