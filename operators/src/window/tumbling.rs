//! The tumbling window operator: one accumulator per key and window, given when the watermark says the window is over.
// HOT: one probe per record when windows follow each other. No allocation, lock, log or clock.

use std::fmt;

use weir_engine::{
    Barrier, Collector, Data, EndKind, EventTime, HeldSignal, Key, Keyed, Operator, OperatorContext, Record,
    Result, SideSlot, SignalPort, TaskError, Watermark,
};
use weir_state::store::Snapshot;

use crate::aggregate::Aggregate;
use crate::late::{Late, no_event_time};
use crate::opened::Opened;
use crate::progress;
use crate::window::cuts::Cutting;
use crate::window::held::{Held, gives_in_parts};
use crate::window::panes::Panes;
use crate::window::{Pane, WindowResult};

/// The operator behind [`aggregate`](crate::prelude::WindowOps::aggregate) on [`Tumbling`](crate::Tumbling) and
/// [`Calendar`](crate::window::Calendar) windows.
///
/// *State*: one accumulator per key and open window in the table `windows`, forgotten when the window is over; in memory as far
/// as the job's budget for state reaches. A checkpoint writes what changed since the one before; a window that opens and
/// ends between two is never written. A watermark visits only the windows that it ends. How far event time had come is kept
/// too: after a restore no window is given again, and what was late stays late. The size and the offset, or the calendar,
/// cannot change while windows are open.
///
/// *Order*: windows are given in the order they end, the keys of one window in an order that says nothing. The time of a
/// result is the last millisecond of its window, so downstream it is never late. Many are given in parts, between which the task
/// reads on and barriers are served; the watermark goes on behind the last. A restore gives what was left, and only that.
///
/// *Late records*, those whose window is over, change no result: they go to the late output if that is read, and are
/// counted as `late_records` in any case. A record behind the watermark whose window is still open is not late.
///
/// # Examples
/// A test drives it by hand, and moves event time:
/// ```
/// # use weir_operators::{prelude::*, window::Window};
/// # use weir_engine::{Keyed, SideSlot, testkit::OpHarness};
/// let operator = Tumbling::of(seconds(10)).operator(count(), SideSlot::default());
/// let mut harness = OpHarness::new(operator)?;
/// # let keyed = |key: u64, value: i64| Keyed { hash: weir_state::key_hash(&key), key, value };
/// harness.batch([(keyed(7, 0), 3_000), (keyed(7, 0), 9_999), (keyed(7, 0), 10_000)])?;
/// harness.watermark(9_998)?;
/// assert!(harness.take().is_empty());
/// harness.watermark(9_999)?;
/// let results = harness.take_values();
/// assert_eq!((results.len(), results[0].key, results[0].value), (1, 7, 2));
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
pub struct TumblingAggregate<K: Key, T: Data, A: Aggregate<T>> {
    window: Cutting,
    aggregate: A,
    panes: Opened<Panes<K, A::Acc>>,
    /// What is taken out of a window and not yet given.
    taken: Vec<(K, A::Acc)>,
    watermark: Watermark,
    held: Held,
    cx: Opened<OperatorContext>,
    late: Late<T>,
}

impl<K: Key, T: Data, A: Aggregate<T>> TumblingAggregate<K, T, A> {
    pub(crate) fn new(window: Cutting, aggregate: A, late: SideSlot<T>) -> Self {
        TumblingAggregate {
            window,
            aggregate,
            panes: Opened(None),
            taken: Vec::new(),
            watermark: Watermark::MIN,
            held: Held::default(),
            cx: Opened(None),
            late: Late::new(late),
        }
    }

    /// A record of another window than the one before it.
    #[inline(never)]
    fn elsewhere(&mut self, record: Record<Keyed<K, T>>) -> Result<()> {
        let Record { value: Keyed { hash, key, value }, time } = record;
        if time == EventTime::NONE {
            return Err(no_event_time());
        }
        let panes = self.panes.0.as_mut().ok_or_else(not_open)?;
        let window = panes.window_of(time);
        if window.is_over(self.watermark) {
            return self.late.take(Record { value, time });
        }
        let accumulators = panes.map_of(window);
        let acc = accumulators.get_or_insert_with(hash, key, || self.aggregate.create())?;
        self.aggregate.add(acc, &value);
        Ok(())
    }

    /// Gives what this turn may of what comes before the first signal that waits; that signal when all of it was given.
    #[inline(never)]
    fn give(&mut self, out: &mut impl Collector<WindowResult<K, A::Out>>) -> Result<Option<HeldSignal>> {
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
            for (key, acc) in self.taken.drain(..) {
                let value = self.aggregate.result(acc);
                let value = WindowResult { key, window, value, pane: Pane::ONLY };
                out.emit(Record { value, time: window.last() })?;
            }
            if !more {
                panes.close(window);
            }
        }
        panes.batch_end()?;
        Ok(self.held.next())
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> Clone for TumblingAggregate<K, T, A> {
    fn clone(&self) -> Self {
        TumblingAggregate {
            window: self.window.clone(),
            aggregate: self.aggregate.clone(),
            panes: Opened(None),
            taken: Vec::new(),
            watermark: Watermark::MIN,
            held: Held::default(),
            cx: Opened(None),
            late: self.late.clone(),
        }
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> fmt::Debug for TumblingAggregate<K, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TumblingAggregate({:?}, {:?})", self.window, self.panes)
    }
}

/// How many results are taken out of a window at a time.
pub(super) const AT_ONCE: usize = 1_024;

#[cold]
pub(super) fn not_open() -> TaskError {
    TaskError::internal("a window was used before it was open")
}

impl<K: Key, T: Data, A: Aggregate<T>> Operator<Keyed<K, T>> for TumblingAggregate<K, T, A> {
    type Out = WindowResult<K, A::Out>;
    const HOLDS_SIGNALS: bool = true;
    const RELEASES_BETWEEN_BATCHES: bool = true;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let cuts = self.window.check()?;
        let layout = cuts.layout();
        self.panes = Opened(Some(Panes::open(cx, "windows", cuts, layout)?));
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
    fn process(&mut self, record: Record<Keyed<K, T>>, _: &mut impl Collector<Self::Out>) -> Result<()> {
        // A window that was used and is still open cannot be over: no need to look at the watermark.
        let last = self.panes.0.as_mut().and_then(|panes| panes.last_if_of(record.time));
        let Some(accumulators) = last else { return self.elsewhere(record) };
        let Keyed { hash, key, value } = record.value;
        let acc = accumulators.get_or_insert_with(hash, key, || self.aggregate.create())?;
        self.aggregate.add(acc, &value);
        Ok(())
    }

    fn on_batch_end(&mut self, _: &mut impl Collector<Self::Out>) -> Result<()> {
        self.late.count();
        self.held.batch_end();
        self.panes.0.as_mut().map_or(Ok(()), Panes::batch_end)
    }

    fn on_quiet(&mut self, _: &mut impl Collector<Self::Out>) -> Result<()> {
        self.held.quiet();
        self.panes.0.as_mut().map_or(Ok(()), Panes::batch_end)
    }

    fn on_watermark(&mut self, watermark: Watermark, _: &mut impl Collector<Self::Out>) -> Result<()> {
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
#[path = "tumbling_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "restore_tests.rs"]
mod restore_tests;
