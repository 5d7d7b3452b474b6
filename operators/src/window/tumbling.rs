//! The tumbling window operator: one accumulator per key and window, given when the watermark says the window is over.
// HOT: one probe per record when windows follow each other. No allocation, lock, log or clock.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_engine::{
    Collector, Counter, Data, EndKind, EventTime, Key, Keyed, Operator, OperatorContext, Record, Result,
    SideOutput, SideSlot, SignalPort, TaskError, Watermark,
};

use crate::aggregate::Aggregate;
use crate::opened::Opened;
use crate::window::assign::Grid;
use crate::window::panes::Panes;
use crate::window::{TimeWindow, Tumbling};

/// What one key came to in one window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowResult<K, V> {
    /// The key.
    pub key: K,
    /// The window.
    pub window: TimeWindow,
    /// What the aggregate gave.
    pub value: V,
}

/// The operator behind [`aggregate`](crate::prelude::WindowOps::aggregate) on [`Tumbling`] windows.
///
/// *State*: one accumulator per key and open window, beside the key in one hash table per window; forgotten when the window
/// is over. A watermark visits only the windows that it ends.
///
/// *Order*: windows are given in the order they end, the keys of one window in the order of its table, which says nothing
/// but is the same whenever records come in the same order. The time of a result is the last millisecond of its window, so downstream it is never late.
///
/// *Late records*, those whose window is over, change no result: they go to the late output if that is read, and are
/// counted as `late_records` in any case. A record behind the watermark whose window is still open is not late.
pub struct TumblingAggregate<K: Key, T: Data, A: Aggregate<T>> {
    window: Tumbling,
    aggregate: A,
    late_slot: SideSlot<T>,
    grid: Option<Grid>,
    panes: Panes<K, A::Acc>,
    watermark: Watermark,
    late: Opened<SideOutput<T>>,
    late_counter: Counter,
    /// Late records not yet in the counter.
    late_records: u64,
}

impl<K: Key, T: Data, A: Aggregate<T>> TumblingAggregate<K, T, A> {
    pub(crate) fn new(window: Tumbling, aggregate: A, late_slot: SideSlot<T>) -> Self {
        TumblingAggregate {
            window,
            aggregate,
            late_slot,
            grid: None,
            panes: Panes::default(),
            watermark: Watermark::MIN,
            late: Opened(None),
            late_counter: Counter::default(),
            late_records: 0,
        }
    }

    /// A record of another window than the one before it.
    #[inline(never)]
    fn elsewhere(&mut self, record: Record<Keyed<K, T>>) -> Result<()> {
        let Record { value: Keyed { hash, key, value }, time } = record;
        if time == EventTime::NONE {
            return Err(TaskError::user(
                "a record without event time came to a window: give its source event_time, or source_time when the \
                 source has times",
            ));
        }
        let grid =
            self.grid.ok_or_else(|| TaskError::internal("a window got a record before it was open"))?;
        let window = grid.window_of(time);
        if window.is_over(self.watermark) {
            self.late_records += 1;
            return match &mut self.late.0 {
                Some(late) => late.emit(Record { value, time }),
                None => Ok(()),
            };
        }
        let table = self.panes.table_of(window);
        let acc = table.get_or_insert_with(hash, key, || self.aggregate.create());
        self.aggregate.add(acc, &value);
        Ok(())
    }

    fn count_late(&mut self) {
        if self.late_records > 0 {
            self.late_counter.add(std::mem::take(&mut self.late_records));
        }
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> Clone for TumblingAggregate<K, T, A> {
    fn clone(&self) -> Self {
        Self::new(self.window, self.aggregate.clone(), self.late_slot.clone())
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> fmt::Debug for TumblingAggregate<K, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TumblingAggregate({:?}, {} open)", self.window, self.panes.len())
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> Operator<Keyed<K, T>> for TumblingAggregate<K, T, A> {
    type Out = WindowResult<K, A::Out>;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.grid = Some(self.window.check()?);
        self.late = Opened(self.late_slot.is_read().then(|| self.late_slot.open(cx)));
        self.late_counter = cx.counter("late_records");
        Ok(())
    }

    #[inline]
    fn process(&mut self, record: Record<Keyed<K, T>>, _: &mut impl Collector<Self::Out>) -> Result<()> {
        // A window that was used and is still open cannot be over: no need to look at the watermark.
        let Some(table) = self.panes.last_if_of(record.time) else { return self.elsewhere(record) };
        let Keyed { hash, key, value } = record.value;
        let acc = table.get_or_insert_with(hash, key, || self.aggregate.create());
        self.aggregate.add(acc, &value);
        Ok(())
    }

    fn on_batch_end(&mut self, _: &mut impl Collector<Self::Out>) -> Result<()> {
        self.count_late();
        Ok(())
    }

    fn on_watermark(&mut self, watermark: Watermark, out: &mut impl Collector<Self::Out>) -> Result<()> {
        self.watermark = watermark;
        while let Some((window, mut table)) = self.panes.take_over(watermark) {
            for (key, acc) in table.drain() {
                let value = self.aggregate.result(acc);
                out.emit(Record { value: WindowResult { key, window, value }, time: window.last() })?;
            }
            self.panes.recycle(table);
        }
        Ok(())
    }

    fn on_end(&mut self, _: EndKind, _: &mut impl Collector<Self::Out>) -> Result<()> {
        self.count_late();
        Ok(())
    }

    fn sides(&mut self) -> Option<&mut dyn SignalPort> {
        self.late.0.as_mut().map(SideOutput::signals)
    }
}

#[cfg(test)]
#[path = "tumbling_tests.rs"]
mod tests;
