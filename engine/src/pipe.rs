//! How a chain of operators is typed while it is written and linked when it is deployed: one concrete type end to end
//! (over 400 lines: a trait of every signal, and its one stage).
// HOT: `Fused::emit` is the record path. No allocation, lock, log, clock or `dyn` here.

use std::any::Any;
use std::cell::RefCell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use weir_state::store::Snapshot;

use crate::context::TaskContext;
use crate::element::{Barrier, Data, EndKind, Notice, Record};
use crate::error::{Result, TaskError};
use crate::ids::OperatorUid;
use crate::operator::{Closing, Collector, HeldSignal, Operator};
use crate::protocol::ProtocolCheck;
use crate::runtime::sync;
use crate::runtime::task::TaskBody;
use crate::stream::Head;
use crate::task_state::TaskState;
use crate::time::Watermark;

/// What a linked chain looks like from its entry.
pub trait Stage<In>: Collector<In> + Send + 'static {
    /// Opens the last operator first, so that whatever one emits while opening finds its consumer open.
    ///
    /// # Errors
    /// The first operator that cannot work; so for every method here.
    fn open(&mut self, cx: &TaskContext) -> Result<()>;
    /// A batch of input is about to come.
    ///
    /// # Errors
    /// As for `open`.
    fn prefetch(&mut self, batch: &[Record<In>]) -> Result<()> {
        let _ = batch;
        Ok(())
    }
    /// A batch of input is done.
    ///
    /// # Errors
    /// As for `open`.
    fn batch_end(&mut self) -> Result<()>;
    /// No input is ready: pass on what is held back.
    ///
    /// # Errors
    /// As for `open`.
    fn quiet(&mut self) -> Result<()>;
    /// The first time, in milliseconds since the epoch, at which an operator of the chain has something to do though nothing
    /// comes.
    fn wakes_at(&self) -> Option<i64> {
        None
    }
    /// The first operator of the chain that wants no more input just now.
    fn full(&self) -> Option<&OperatorUid> {
        None
    }
    /// Some operator of the chain has more to give at once.
    fn has_more(&self) -> bool {
        false
    }
    /// Event time advances.
    ///
    /// # Errors
    /// As for `open`.
    fn watermark(&mut self, w: Watermark) -> Result<()>;
    /// Nothing will come for a while.
    ///
    /// # Errors
    /// As for `open`.
    fn idle(&mut self) -> Result<()>;
    /// Idleness is over.
    ///
    /// # Errors
    /// As for `open`.
    fn active(&mut self) -> Result<()>;
    /// A checkpoint cuts here.
    ///
    /// # Errors
    /// As for `open`.
    fn barrier(&mut self, b: Barrier) -> Result<()>;
    /// A checkpoint is complete, or was given up.
    ///
    /// # Errors
    /// As for `open`.
    fn notice(&mut self, notice: Notice) -> Result<()>;
    /// The last element.
    ///
    /// # Errors
    /// As for `open`.
    fn end(&mut self, kind: EndKind) -> Result<()>;
    /// Freezes once more what was frozen at the end: that could not be written.
    ///
    /// # Errors
    /// As for `open`.
    fn freeze_last(&mut self) -> Result<()> {
        Ok(())
    }
    /// Always called last, also for stages whose `open` failed or was never reached.
    fn close(&mut self, outcome: Closing);
}

sync::thread_local! {
    /// The operator whose code was running when this thread panicked.
    static PANICKED_IN: RefCell<Option<OperatorUid>> = const { RefCell::new(None) };
}

/// The operator that the last panic of this thread came from.
pub(crate) fn panicked_in() -> Option<OperatorUid> {
    PANICKED_IN.with(|slot| slot.borrow_mut().take())
}

/// Runs `f` as the code of `uid`: an error, or a panic, that passes through is said to come from it unless an operator
/// further in said so first. Costs nothing when all is well: the guard lives in the unwind tables only.
#[inline(always)]
pub(crate) fn blame<R>(uid: &OperatorUid, f: impl FnOnce() -> Result<R>) -> Result<R> {
    struct Guard<'a>(&'a OperatorUid);
    impl Drop for Guard<'_> {
        #[cold]
        fn drop(&mut self) {
            PANICKED_IN.with(|slot| {
                slot.borrow_mut().get_or_insert_with(|| self.0.clone());
            });
        }
    }
    let guard = Guard(uid);
    let result = f();
    mem::forget(guard);
    match result {
        Ok(r) => Ok(r),
        Err(e) => Err(blamed(e, uid)),
    }
}

/// Runs the closing code of `uid`. The work is over by then, so a panic in it fails nothing and keeps nobody else from
/// closing; it is logged.
pub(crate) fn closing(uid: &OperatorUid, close: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(close)) {
        tracing::error!(operator = %uid, "panicked while it was closed: {}", panic_message(panic.as_ref()));
    }
}

/// What a panic said.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic with a payload that is not text".to_owned(),
    }
}

#[cold]
#[inline(never)]
fn blamed(e: TaskError, uid: &OperatorUid) -> TaskError {
    // An echo of a neighbour's death is nobody's fault in this task.
    if e.cause().is_primary() { e.at(uid) } else { e }
}

/// One operator and everything after it, as a single concrete type.
pub(crate) struct Fused<Op, Next> {
    op: Op,
    uid: OperatorUid,
    next: Next,
    state: Option<Arc<TaskState>>,
    opened: bool,
    check: ProtocolCheck,
}

impl<Op, Next> Fused<Op, Next> {
    pub(crate) fn new(op: Op, uid: OperatorUid, next: Next) -> Self {
        Fused { op, uid, next, state: None, opened: false, check: ProtocolCheck::default() }
    }
}

impl<Op, Next> Fused<Op, Next> {
    /// Freezes what the operator has to remember.
    fn snapshot<In: Data>(&mut self, b: Barrier) -> Result<()>
    where
        Op: Operator<In>,
    {
        let mut frozen = Snapshot::default();
        blame(&self.uid, || self.op.snapshot(b, &mut frozen))?;
        if let Some(state) = &self.state {
            state.froze(&self.uid, frozen);
        }
        Ok(())
    }
}

impl<Op, Next> Fused<Op, Next> {
    /// Lets an operator that holds signals back give what it may: compiled to nothing for all others.
    #[inline(always)]
    fn release<In: Data>(&mut self) -> Result<()>
    where
        Op: Operator<In>,
        Next: Stage<Op::Out>,
    {
        // One that has very many to give goes on when there is room for them.
        if Op::HOLDS_SIGNALS && !(self.op.has_more() && self.next.full().is_some()) {
            self.release_held()
        } else {
            Ok(())
        }
    }

    fn release_held<In: Data>(&mut self) -> Result<()>
    where
        Op: Operator<In>,
        Next: Stage<Op::Out>,
    {
        let Fused { op, uid, next, state, .. } = self;
        while let Some(signal) = blame(uid, || op.release(next))? {
            match signal {
                HeldSignal::Watermark(w) => {
                    if let Some(state) = state {
                        state.watermark(uid, w);
                    }
                    op.sides().map_or(Ok(()), |s| s.watermark(w))?;
                    next.watermark(w)?;
                }
                HeldSignal::Idle => {
                    op.sides().map_or(Ok(()), |s| s.idle())?;
                    next.idle()?;
                }
                HeldSignal::Active => {
                    op.sides().map_or(Ok(()), |s| s.active())?;
                    next.active()?;
                }
            }
        }
        Ok(())
    }
}

impl<In: Data, Op: Operator<In>, Next: Stage<Op::Out>> Collector<In> for Fused<Op, Next> {
    #[inline]
    fn emit(&mut self, record: Record<In>) -> Result<()> {
        self.check.passes();
        let Fused { op, uid, next, .. } = self;
        blame(uid, || op.process(record, next))?;
        if Op::RELEASES_BETWEEN_BATCHES { Ok(()) } else { self.release() }
    }
}

impl<In: Data, Op: Operator<In>, Next: Stage<Op::Out>> Stage<In> for Fused<Op, Next> {
    fn open(&mut self, cx: &TaskContext) -> Result<()> {
        self.next.open(cx)?;
        blame(&self.uid, || self.op.open(&cx.of(&self.uid)))?;
        self.opened = true;
        self.state = Some(cx.state.clone());
        blame(&self.uid, || cx.state.opened(&self.uid))
    }

    #[inline]
    fn prefetch(&mut self, batch: &[Record<In>]) -> Result<()> {
        blame(&self.uid, || self.op.prefetch(batch))
    }

    fn batch_end(&mut self) -> Result<()> {
        let Fused { op, uid, next, .. } = self;
        blame(uid, || op.on_batch_end(next))?;
        self.release()?;
        self.next.batch_end()
    }

    fn quiet(&mut self) -> Result<()> {
        let Fused { op, uid, next, .. } = self;
        blame(uid, || op.on_quiet(next))?;
        self.release()?;
        self.op.sides().map_or(Ok(()), |s| s.quiet())?;
        self.next.quiet()
    }

    fn wakes_at(&self) -> Option<i64> {
        self.op.wakes_at().into_iter().chain(self.next.wakes_at()).min()
    }

    fn watermark(&mut self, w: Watermark) -> Result<()> {
        self.check.watermark(w);
        let Fused { op, uid, next, .. } = self;
        // Fire first, then let time pass downstream.
        blame(uid, || op.on_watermark(w, next))?;
        if Op::HOLDS_SIGNALS {
            self.op.hold(HeldSignal::Watermark(w));
            return self.release();
        }
        // What fired found what was there before this watermark.
        if let Some(state) = &self.state {
            state.watermark(&self.uid, w);
        }
        self.op.sides().map_or(Ok(()), |s| s.watermark(w))?;
        self.next.watermark(w)
    }

    fn full(&self) -> Option<&OperatorUid> {
        if self.op.is_full() { Some(&self.uid) } else { self.next.full() }
    }

    fn has_more(&self) -> bool {
        (self.op.has_more() && self.next.full().is_none()) || self.next.has_more()
    }

    fn idle(&mut self) -> Result<()> {
        self.check.passes();
        if Op::HOLDS_SIGNALS {
            self.op.hold(HeldSignal::Idle);
            return self.release();
        }
        self.op.sides().map_or(Ok(()), |s| s.idle())?;
        self.next.idle()
    }

    fn active(&mut self) -> Result<()> {
        self.check.passes();
        if Op::HOLDS_SIGNALS {
            self.op.hold(HeldSignal::Active);
            return self.release();
        }
        self.op.sides().map_or(Ok(()), |s| s.active())?;
        self.next.active()
    }

    fn barrier(&mut self, b: Barrier) -> Result<()> {
        self.check.passes();
        self.snapshot(b)?;
        self.op.sides().map_or(Ok(()), |s| s.barrier(b))?;
        self.next.barrier(b)
    }

    fn end(&mut self, kind: EndKind) -> Result<()> {
        self.check.end();
        let Fused { op, uid, next, .. } = self;
        blame(uid, || op.on_end(kind, next))?;
        if Op::HOLDS_SIGNALS {
            self.release_held()?;
        }
        self.snapshot(Barrier::LAST)?;
        self.op.sides().map_or(Ok(()), |s| s.end(kind))?;
        self.next.end(kind)
    }

    fn freeze_last(&mut self) -> Result<()> {
        self.snapshot(Barrier::LAST)?;
        self.next.freeze_last()
    }

    fn notice(&mut self, notice: Notice) -> Result<()> {
        blame(&self.uid, || self.op.on_notice(notice))?;
        self.next.notice(notice)
    }

    fn close(&mut self, outcome: Closing) {
        if mem::take(&mut self.opened) {
            closing(&self.uid, || self.op.close(outcome));
        }
        self.next.close(outcome);
    }
}

/// What a chain looks like while the user writes it. Linking makes the tasks of one subtask's chain.
pub trait Pipe: Send + 'static {
    /// What comes out of its last operator.
    type Out: Data;
    /// The task that feeds this chain and then `next`.
    fn link<N: Stage<Self::Out>>(&self, next: N, cx: &TaskContext) -> Box<dyn TaskBody>;
    /// The empty chain, if that is what it is.
    ///
    /// # Errors
    /// The chain itself when there is something in it.
    fn into_head(self) -> std::result::Result<Head<Self::Out>, Self>
    where
        Self: Sized,
    {
        Err(self)
    }
}

/// A chain with one more operator at its end.
pub struct Then<P, T, Op> {
    pub(crate) before: Before<P, T>,
    pub(crate) op: Op,
    pub(crate) uid: OperatorUid,
}

impl<P, T, Op> std::fmt::Debug for Then<P, T, Op> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Then({})", self.uid)
    }
}

/// What comes before an operator: the rest of its chain, or a task boundary that was cut in front of it.
pub(crate) enum Before<P, T> {
    Chain(P),
    Cut(Head<T>),
}

impl<T: Data, P: Pipe<Out = T>, Op: Operator<T>> Pipe for Then<P, T, Op> {
    type Out = Op::Out;

    fn link<N: Stage<Op::Out>>(&self, next: N, cx: &TaskContext) -> Box<dyn TaskBody> {
        let fused = Fused::new(self.op.clone(), self.uid.clone(), next);
        match &self.before {
            Before::Chain(pipe) => pipe.link(fused, cx),
            Before::Cut(head) => head.link(fused, cx),
        }
    }
}
