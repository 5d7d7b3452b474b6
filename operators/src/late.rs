//! Late records of one subtask: to the late output if somebody reads it, counted as `late_records` in any case; and those
//! without a time.

use std::mem::take;

use weir_engine::{
    Collector, Counter, Data, OperatorContext, Record, Result, SideOutput, SideSlot, SignalPort, TaskError,
};

use crate::opened::Opened;

/// Where late records go.
pub(crate) struct Late<T: Data> {
    slot: SideSlot<T>,
    output: Opened<SideOutput<T>>,
    counter: Counter,
    /// Those not yet in the counter.
    uncounted: u64,
}

impl<T: Data> Clone for Late<T> {
    fn clone(&self) -> Self {
        Late::new(self.slot.clone())
    }
}

impl<T: Data> Late<T> {
    pub(crate) fn new(slot: SideSlot<T>) -> Self {
        Late { slot, output: Opened(None), counter: Counter::default(), uncounted: 0 }
    }

    pub(crate) fn open(&mut self, cx: &OperatorContext) {
        self.output = Opened(self.slot.is_read().then(|| self.slot.open(cx)));
        self.counter = cx.counter("late_records");
    }

    /// A record came too late to change anything.
    pub(crate) fn take(&mut self, record: Record<T>) -> Result<()> {
        self.uncounted += 1;
        match &mut self.output.0 {
            Some(output) => output.emit(record),
            None => Ok(()),
        }
    }

    /// Called once per batch.
    pub(crate) fn count(&mut self) {
        if self.uncounted > 0 {
            self.counter.add(take(&mut self.uncounted));
        }
    }

    pub(crate) fn signals(&mut self) -> Option<&mut dyn SignalPort> {
        self.output.0.as_mut().map(SideOutput::signals)
    }
}

#[cold]
pub(crate) fn no_event_time() -> TaskError {
    TaskError::user(
        "a record without event time came to an operator that goes by it: give its source event_time, or source_time when \
         the source has times",
    )
}
