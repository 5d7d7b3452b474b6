//! Side outputs: a second way out of an operator (late records, dead letters), with the same signals as the main one.

use std::sync::{Arc, Mutex, PoisonError};

use crate::context::{OperatorContext, TaskContext};
use crate::element::{Barrier, Data, EndKind, Record};
use crate::error::Result;
use crate::operator::Collector;
use crate::pipe::Stage;
use crate::runtime::edge::Edge;
use crate::runtime::exchange::Exchange;
use crate::time::Watermark;

/// Passes signals on to whoever reads a side output.
pub trait SignalPort {
    /// No input is ready: pass on what is held back.
    ///
    /// # Errors
    /// When the consumer is lost or the attempt is cancelled; so for every method here.
    fn quiet(&mut self) -> Result<()>;
    /// Event time advances.
    ///
    /// # Errors
    /// As for `quiet`.
    fn watermark(&mut self, w: Watermark) -> Result<()>;
    /// Nothing will come for a while.
    ///
    /// # Errors
    /// As for `quiet`.
    fn idle(&mut self) -> Result<()>;
    /// Idleness is over.
    ///
    /// # Errors
    /// As for `quiet`.
    fn active(&mut self) -> Result<()>;
    /// A checkpoint cuts here.
    ///
    /// # Errors
    /// As for `quiet`.
    fn barrier(&mut self, b: Barrier) -> Result<()>;
    /// The last element.
    ///
    /// # Errors
    /// As for `quiet`.
    fn end(&mut self, kind: EndKind) -> Result<()>;
}

impl<T: Data> SignalPort for Exchange<T> {
    fn quiet(&mut self) -> Result<()> {
        Stage::quiet(self)
    }
    fn watermark(&mut self, w: Watermark) -> Result<()> {
        Stage::watermark(self, w)
    }
    fn idle(&mut self) -> Result<()> {
        Stage::idle(self)
    }
    fn active(&mut self) -> Result<()> {
        Stage::active(self)
    }
    fn barrier(&mut self, b: Barrier) -> Result<()> {
        Stage::barrier(self, b)
    }
    fn end(&mut self, kind: EndKind) -> Result<()> {
        Stage::end(self, kind)
    }
}

/// The edges that leave from one place of the plan; each reader of that place adds one.
pub(crate) type Legs<T> = Arc<Mutex<Vec<Arc<Edge<T>>>>>;

pub(crate) fn exchange_of<T: Data>(legs: &Legs<T>, cx: &TaskContext) -> Exchange<T> {
    let edges = legs.lock().unwrap_or_else(PoisonError::into_inner);
    Exchange::new(edges.iter().map(|edge| edge.take_tx(cx.task.subtask)), cx.clone())
}

/// The recipe of a side output: part of an operator before it opens.
///
/// ```
/// use weir_engine::{Operator, OperatorInfo, SideOutput, SideSlot, SignalPort, prelude::*, testkit::*};
/// struct Small { large: SideSlot<i64>, out: Option<SideOutput<i64>> }
/// # impl Clone for Small { fn clone(&self) -> Self { Small { large: self.large.clone(), out: None } } }
/// # impl Operator<i64> for Small {
/// #     type Out = i64;
/// fn open(&mut self, cx: &OperatorContext) -> Result<()> { self.out = Some(self.large.open(cx)); Ok(()) }
/// fn sides(&mut self) -> Option<&mut dyn SignalPort> { self.out.as_mut().map(SideOutput::signals) }
/// #     fn process(&mut self, r: Record<i64>, out: &mut impl Collector<i64>) -> Result<()> {
/// #         match &mut self.out { Some(large) if r.value > 9 => large.emit(r), _ => out.emit(r) }
/// #     }
/// # }
/// # let (job, probe) = (Job::named("split").parallelism(1), Probe::new());
/// let (numbers, slot) = (ScriptSource::of([(1, 0), (10, 5)]), SideSlot::default());
/// let small = Small { large: slot.clone(), out: None };
/// let small = job.source("in", numbers).without_event_time().transform(OperatorInfo::stateless("small"), small);
/// small.side(&slot, "large").transform(OperatorInfo::stateless("look"), probe.clone()).sink("large", NullSink);
/// # small.sink("rest", NullSink);
/// # job.run()?;
/// assert_eq!(probe.values(), [10]);
/// # Ok::<(), JobError>(())
/// ```
pub struct SideSlot<T> {
    pub(crate) legs: Legs<T>,
}

impl<T> Clone for SideSlot<T> {
    fn clone(&self) -> Self {
        SideSlot { legs: self.legs.clone() }
    }
}

impl<T> Default for SideSlot<T> {
    fn default() -> Self {
        SideSlot { legs: Arc::default() }
    }
}

impl<T> std::fmt::Debug for SideSlot<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SideSlot")
    }
}

impl<T: Data> SideSlot<T> {
    /// True when somebody reads it. What is emitted into one that nobody reads goes nowhere.
    pub fn is_read(&self) -> bool {
        !self.legs.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The side output of one subtask; called once, in `open`. A slot that somebody reads and that its operator does not
    /// open, or whose signals it does not give to [`crate::Operator::sides`], fails the job.
    ///
    /// # Panics
    /// When somebody reads it and it is opened later than in `open`.
    pub fn open(&self, cx: &OperatorContext) -> SideOutput<T> {
        SideOutput { exchange: exchange_of(&self.legs, cx.task_context()) }
    }
}

/// A side output of one subtask. An operator that has one returns it from [`crate::Operator::sides`].
pub struct SideOutput<T> {
    exchange: Exchange<T>,
}

impl<T> std::fmt::Debug for SideOutput<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SideOutput")
    }
}

impl<T: Data> SideOutput<T> {
    /// Where signals go on; what `sides` returns.
    pub fn signals(&mut self) -> &mut dyn SignalPort {
        &mut self.exchange
    }
}

impl<T: Data> Collector<T> for SideOutput<T> {
    fn emit(&mut self, record: Record<T>) -> Result<()> {
        self.exchange.emit(record)
    }
}
