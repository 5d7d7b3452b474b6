//! Calls that failed for good: to the dead letters, counted, or the end of the job.

use std::mem::take;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_engine::{
    Collector, Counter, Data, OperatorContext, Record, Result, SharedClock, SideOutput, SideSlot, SignalPort,
};

use crate::opened::Opened;

/// What happens to a record whose call failed for good, when there is no fallback value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailedCalls {
    /// The job fails, and goes on from its last checkpoint if its restart policy says so: then the call is made again.
    #[default]
    Fail,
    /// The record goes to the dead letters: it is counted as `failed_calls`, logged (a line a second at most), and given whole to who
    /// reads them.
    DeadLetter,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError<E> {
    /// It gave no answer in time.
    TimedOut {
        /// The time it had.
        after: Duration,
    },
    /// It gave this error.
    Failed(E),
}

impl<E> CallError<E> {
    /// True when it gave no answer in time.
    pub fn is_timeout(&self) -> bool {
        matches!(self, CallError::TimedOut { .. })
    }

    /// The error that it gave, if it gave one.
    pub fn error(&self) -> Option<&E> {
        if let CallError::Failed(error) = self { Some(error) } else { None }
    }
}

/// A record whose call failed for good. Its event time is that of the record that carries it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedCall<T> {
    /// The record.
    pub input: T,
    /// Why the last try failed.
    pub reason: String,
    /// How often it was tried.
    pub tries: u32,
    /// Whether the last try gave no answer in time.
    pub timed_out: bool,
}

/// A log line for those that nobody reads at most so often.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// The dead letters of one subtask.
pub(super) struct DeadCalls<T: Data> {
    slot: SideSlot<FailedCall<T>>,
    output: Opened<SideOutput<FailedCall<T>>>,
    counter: Counter,
    uncounted: u64,
    unlogged: u64,
    logged_at: Option<Duration>,
    last: String,
}

impl<T: Data> Clone for DeadCalls<T> {
    fn clone(&self) -> Self {
        DeadCalls::new(self.slot.clone())
    }
}

impl<T: Data> DeadCalls<T> {
    pub(super) fn new(slot: SideSlot<FailedCall<T>>) -> Self {
        DeadCalls {
            slot,
            output: Opened(None),
            counter: Counter::default(),
            uncounted: 0,
            unlogged: 0,
            logged_at: None,
            last: String::new(),
        }
    }

    pub(super) fn open(&mut self, cx: &OperatorContext) {
        self.output = Opened(self.slot.is_read().then(|| self.slot.open(cx)));
        self.counter = cx.counter("failed_calls");
    }

    pub(super) fn take(&mut self, record: Record<FailedCall<T>>) -> Result<()> {
        self.uncounted += 1;
        self.last.clone_from(&record.value.reason);
        match &mut self.output.0 {
            Some(output) => output.emit(record),
            None => Ok(()),
        }
    }

    /// Called once per batch.
    pub(super) fn count(&mut self, cx: &OperatorContext, clock: &SharedClock) {
        if self.uncounted == 0 && self.unlogged == 0 {
            return;
        }
        self.unlogged += self.uncounted;
        self.counter.add(take(&mut self.uncounted));
        let now = clock.elapsed();
        if self.logged_at.is_none_or(|at| now >= at + LOG_EVERY) {
            let (n, reason) = (take(&mut self.unlogged), &self.last);
            tracing::warn!(operator = %cx.uid(), "{n} records to the dead letters: their calls failed, the last one: {reason}");
            self.logged_at = Some(now);
        }
    }

    /// Called when nothing more can fail: what the limit of the log still held back is told, too.
    pub(super) fn count_the_last(&mut self, cx: &OperatorContext, clock: &SharedClock) {
        self.logged_at = None;
        self.count(cx, clock);
    }

    pub(super) fn signals(&mut self) -> Option<&mut dyn SignalPort> {
        self.output.0.as_mut().map(SideOutput::signals)
    }
}
