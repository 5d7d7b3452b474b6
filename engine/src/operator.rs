//! The contract an operator author implements, and the collector that takes what it gives.

use weir_state::store::Snapshot;

use crate::context::OperatorContext;
use crate::element::{Barrier, Data, EndKind, Notice, Record};
use crate::error::Result;
use crate::side::SignalPort;
use crate::time::Watermark;

/// Where a record goes next: the next operator of the task, by a plain call, or a channel.
pub trait Collector<T> {
    /// Passes `record` on.
    ///
    /// *Blocking*: waits while the consumer's channel is full: that is the backpressure.
    ///
    /// # Errors
    /// When the attempt is being cancelled, a neighbour died or an operator further down failed: return it at once.
    fn emit(&mut self, record: Record<T>) -> Result<()>;
}

/// A signal that an operator may let wait behind records that it has not given yet; see [`Operator::HOLDS_SIGNALS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldSignal {
    /// Event time advances.
    Watermark(Watermark),
    /// Nothing will come for a while.
    Idle,
    /// Idleness is over.
    Active,
}

/// A step of a stream. `Clone` is for the recipe: one copy per subtask and attempt is taken before `open`.
///
/// *Order*: `open`; then `process` any number of times, interleaved with `on_batch_end`, `on_quiet`, `on_watermark` and
/// `snapshot`; then `on_end` once; then `close`. All on one thread, so an operator holds no lock. After a failure or a
/// cancel nothing more is called but `close`, and that only when `open` succeeded.
///
/// ```
/// use weir_engine::{Operator, prelude::*, testkit::OpHarness};
/// #[derive(Clone)]
/// struct Double;
/// impl Operator<i64> for Double {
///     type Out = i64;
///     fn process(&mut self, r: Record<i64>, out: &mut impl Collector<i64>) -> Result<()> {
///         out.emit(r.with(r.value * 2))
///     }
/// }
/// # let mut harness = OpHarness::new(Double)?;
/// # harness.send(21, 0)?;
/// # assert_eq!(harness.take_values(), [42]);
/// # Ok::<(), TaskError>(())
/// ```
pub trait Operator<In: Data>: Clone + Send + 'static {
    /// What it gives.
    type Out: Data;

    /// Whether watermarks and idleness wait for the operator: it is given them by [`Operator::hold`], and they go downstream, and to
    /// its side outputs, when it gives them back by [`Operator::release`]. Barriers and the end never wait so.
    const HOLDS_SIGNALS: bool = false;

    /// Whether what it holds back leaves between batches only: then `release` is not called after `process`, so that holding signals costs
    /// nothing per record.
    const RELEASES_BETWEEN_BATCHES: bool = false;

    /// Called once, before any record of any task flows. May block; an error fails the start and names this operator.
    ///
    /// # Errors
    /// Whatever keeps the operator from working.
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Called before each batch of input when the operator is the first of its task: state that is not in memory can be
    /// fetched for all of it at once.
    ///
    /// # Errors
    /// As for `process`.
    fn prefetch(&mut self, batch: &[Record<In>]) -> Result<()> {
        let _ = batch;
        Ok(())
    }

    /// Called for each record. HOT: no allocation, lock, log or clock read that the operator's meaning does not need.
    ///
    /// # Errors
    /// An error fails the job; a record that is merely bad belongs in a side output.
    fn process(&mut self, record: Record<In>, out: &mut impl Collector<Self::Out>) -> Result<()>;

    /// Called after each batch of input.
    ///
    /// # Errors
    /// As for `process`.
    fn on_batch_end(&mut self, out: &mut impl Collector<Self::Out>) -> Result<()> {
        let _ = out;
        Ok(())
    }

    /// Called when no input is ready, again and again while that lasts: pass on, or publish, what is being held back.
    ///
    /// # Errors
    /// As for `process`.
    fn on_quiet(&mut self, out: &mut impl Collector<Self::Out>) -> Result<()> {
        let _ = out;
        Ok(())
    }

    /// When, by the job's clock (milliseconds since the epoch), it has something to do though nothing comes: a timer by
    /// processing time, say. While no input is ready the task wakes by then and calls `on_quiet`; while input comes,
    /// `on_batch_end` is for that. Asked once per pause, after `on_quiet`; one that has no such time keeps the default.
    ///
    /// A time that is past already is come back to within a millisecond. By a clock that is moved by hand a task notices
    /// within 50 ms of the machine's.
    fn wakes_at(&self) -> Option<i64> {
        None
    }

    /// Called when event time advances, before the watermark goes downstream: fire timers and windows here. Who
    /// may have very many to fire asks [`OperatorContext::not_cancelled`] now and then; barriers wait until it is done, unless it
    /// gives them part by part from [`Operator::release`] ([`Operator::has_more`]).
    ///
    /// # Errors
    /// As for `process`.
    fn on_watermark(&mut self, watermark: Watermark, out: &mut impl Collector<Self::Out>) -> Result<()> {
        let _ = (watermark, out);
        Ok(())
    }

    /// Takes a signal in, with [`Operator::HOLDS_SIGNALS`] only; of a watermark `on_watermark` has been called before.
    fn hold(&mut self, signal: HeldSignal) {
        let _ = signal;
    }

    /// Called after each of the other methods that may give records, `hold` and `on_end` included, with
    /// [`Operator::HOLDS_SIGNALS`] only, and again until it gives `None`: gives the records that go before the next signal which may
    /// pass, then that signal. May wait for room, as `emit` may.
    ///
    /// # Errors
    /// As for `process`.
    fn release(&mut self, out: &mut impl Collector<Self::Out>) -> Result<Option<HeldSignal>> {
        let _ = out;
        Ok(None)
    }

    /// True while it wants no more input: then the task reads none, but goes on hearing orders (a source's barriers among them) and
    /// calling `on_quiet`. What is behind the operator in the batch at hand comes all the same.
    fn is_full(&self) -> bool {
        false
    }

    /// True while it has more to give and could do so at once: then the task looks for input but does not wait for it, and calls
    /// `on_quiet` again. For who gives very many results in parts, with the watermark that brought them about held behind
    /// ([`Operator::HOLDS_SIGNALS`]), so that barriers are served between two parts. While what comes next in the task is full, it is
    /// not asked to release anything, except at the end.
    fn has_more(&self) -> bool {
        false
    }

    /// Called at a barrier, before it goes downstream: what the operator knows now is what the checkpoint holds. Freezes
    /// rather than writes: what it adds to `into` is encoded and written by another thread while the task goes on. Called
    /// once more after `on_end`, with [`Barrier::LAST`].
    ///
    /// # Errors
    /// As for `process`.
    fn snapshot(&mut self, barrier: Barrier, into: &mut Snapshot) -> Result<()> {
        let _ = (barrier, into);
        Ok(())
    }

    /// Called when a checkpoint is complete, or was given up; not for every one.
    ///
    /// # Errors
    /// As for `process`.
    fn on_notice(&mut self, notice: Notice) -> Result<()> {
        let _ = notice;
        Ok(())
    }

    /// Called once after the last record. With [`EndKind::Flush`] a watermark of [`Watermark::MAX`] came before it, so
    /// windows have fired; with [`EndKind::Keep`] nothing is to be fired.
    ///
    /// # Errors
    /// As for `process`.
    fn on_end(&mut self, kind: EndKind, out: &mut impl Collector<Self::Out>) -> Result<()> {
        let _ = (kind, out);
        Ok(())
    }

    /// The operator's side outputs, if it has any; signals are passed on to them for it.
    fn sides(&mut self) -> Option<&mut dyn SignalPort> {
        None
    }

    /// Called last, also after a failure, its own included; `outcome` says how the task ended. Must not block for long,
    /// and must not panic: after a panic in the task that would end the process.
    fn close(&mut self, outcome: Closing) {
        let _ = outcome;
    }
}

/// How a task is being closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Every element was processed.
    Ended,
    /// The start failed or was cancelled before any record flowed: undo what `open` made outside the process.
    NeverRan,
    /// The attempt failed or was cancelled while it ran.
    Stopped,
}
