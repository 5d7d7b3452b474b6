//! The loop of a task: open, wait for the others, then turn after turn until the end, a failure or a cancel.
// HOT: the inner `for` is the record path.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::context::TaskContext;
use crate::element::{Barrier, Data, Notice, Record};
use crate::error::{Result, TaskError};
use crate::operator::Closing;
use crate::pipe::Stage;
use crate::runtime::input::{Control, Input, Turn, at_most};
use crate::runtime::mail::Mailbox;
use crate::runtime::stats::TaskStats;
use crate::time::Watermark;

/// A whole task with its types forgotten: one virtual call per life of a task.
pub trait TaskBody: Send {
    /// Runs the task to its end on the calling thread.
    ///
    /// # Errors
    /// Whatever ended it before its input did.
    fn run(self: Box<Self>, seat: Seat<'_>) -> Result<()>;
}

/// What a task is handed when its thread starts.
pub struct Seat<'a> {
    pub(crate) cx: &'a TaskContext,
    pub(crate) mail: &'a Mailbox,
    /// Says that every operator of the task is open.
    pub(crate) ready: &'a dyn Fn(),
}

impl std::fmt::Debug for Seat<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seat({})", self.cx.task)
    }
}

/// An input and the chain it feeds.
///
/// Its memory is its own, to the cache line, and so is that of whatever else a task looks at for each record: boxes of tasks are made one
/// after the other, and where the end of one and the beginning of the next share a line, each write of one thread takes it away from the
/// other. A source spent half of its time so, in some layouts.
#[repr(align(128))]
pub(crate) struct Task<T, C> {
    input: Box<dyn Input<T>>,
    chain: C,
}

impl<T: Data, C: Stage<T>> Task<T, C> {
    pub(crate) fn boxed(input: Box<dyn Input<T>>, chain: C) -> Box<dyn TaskBody> {
        Box::new(Task { input, chain })
    }
}

impl<T: Data, C: Stage<T>> TaskBody for Task<T, C> {
    fn run(mut self: Box<Self>, seat: Seat<'_>) -> Result<()> {
        let Task { input, chain } = &mut *self;
        let mut outcome = Closing::NeverRan;
        // Closes on every way out, a panic included. Closing itself neither fails nor panics (see `pipe::closing`).
        let result = catch_unwind(AssertUnwindSafe(|| open_and_run(&mut **input, chain, seat, &mut outcome)));
        if let Ok(Ok(())) = result {
            outcome = Closing::Ended;
        }
        input.close(outcome);
        chain.close(outcome);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

fn open_and_run<T: Data, C: Stage<T>>(
    input: &mut dyn Input<T>,
    chain: &mut C,
    seat: Seat<'_>,
    outcome: &mut Closing,
) -> Result<()> {
    let Seat { cx, mail, ready } = seat;
    chain.open(cx)?;
    input.open(cx)?;
    cx.stats.ready();
    ready();
    // An order to drain may be there already: it stays where it is until the source asks for it.
    while !mail.may_run() {
        mail.bell.wait(None, &cx.cancel)?;
    }
    *outcome = Closing::Stopped;
    cx.stats.running();
    turns(input, chain, cx, mail)
}

/// A place where a crash test makes a task fail.
fn fails(point: &'static str) -> Result<()> {
    // Without the feature there is nothing to ask.
    let _ = point;
    fail::fail_point!(point, |_| Err(TaskError::internal(format!("fail point {point}"))));
    Ok(())
}

fn turns<T: Data, C: Stage<T>>(
    input: &mut dyn Input<T>,
    chain: &mut C,
    cx: &TaskContext,
    mail: &Mailbox,
) -> Result<()> {
    let mut batch: Vec<Record<T>> = Vec::new();
    loop {
        if cx.cancel.is_cancelled() {
            return Err(TaskError::cancelled());
        }
        let was_full = chain.full().is_some();
        let turn = if was_full {
            input.next_order(&mut batch, cx, mail)?
        } else {
            input.next(&mut batch, cx, mail)?
        };
        match turn {
            Turn::Batch => {
                chain.prefetch(&batch)?;
                TaskStats::add(&cx.stats.records_in, batch.len() as u64);
                TaskStats::add(&cx.stats.batches_in, 1);
                for record in batch.drain(..) {
                    chain.emit(record)?;
                }
                chain.batch_end()?;
            }
            Turn::Quiet => {
                chain.quiet()?;
                if chain.has_more() {
                    continue;
                }
                let most = at_most(chain.wakes_at(), cx);
                match chain.full() {
                    // It has room again: whether there is input was not asked in this turn.
                    None if was_full => {}
                    None => input.wait(cx, mail, most)?,
                    Some(full) => input.wait_for_room(full, cx, mail, most)?,
                }
            }
            Turn::Watermark(w) => {
                chain.watermark(w)?;
                cx.stats.watermark.store(w.0, std::sync::atomic::Ordering::Relaxed);
            }
            Turn::Idle => chain.idle()?,
            Turn::Active => chain.active()?,
            Turn::Barrier(b) => {
                fails("task::before_freeze")?;
                cx.state.stands_still(b);
                chain.barrier(b)?;
                fails("task::after_barrier")?;
                cx.state.submit(b, cx.stats.take_came(b));
            }
            Turn::Notice(notice) => {
                fails("task::before_notice")?;
                chain.notice(notice)?;
            }
            Turn::End(kind) => {
                debug_assert!(
                    kind != crate::EndKind::Flush
                        || cx.stats.watermark.load(std::sync::atomic::Ordering::Relaxed) == Watermark::MAX.0
                );
                fails("task::before_end")?;
                chain.end(kind)?;
                fails("task::after_end")?;
                return last_checkpoint(input, chain, cx, mail);
            }
        }
    }
}

/// The task has said its last word. What it remembers, and what its sink has prepared, wait for a checkpoint to be
/// complete that has them in it.
fn last_checkpoint<T: Data, C: Stage<T>>(
    input: &mut dyn Input<T>,
    chain: &mut C,
    cx: &TaskContext,
    mail: &Mailbox,
) -> Result<()> {
    if !cx.state.takes_checkpoints() {
        return Ok(());
    }
    cx.state.submit(Barrier::LAST, None);
    let _idle = cx.stats.committing();
    loop {
        match mail.take() {
            Some(Control::Notice(notice)) => {
                input.notice(notice)?;
                chain.notice(notice)?;
            }
            Some(Control::Released) => {
                let last = Notice::Completed(Barrier::LAST.checkpoint);
                input.notice(last)?;
                return chain.notice(last);
            }
            Some(Control::LastFailed(reason)) => {
                return Err(TaskError::external(format!("its last snapshot could not be kept: {reason}")));
            }
            Some(Control::FreezeLast) => {
                chain.freeze_last()?;
                input.freeze_last()?;
                cx.state.submit(Barrier::LAST, None);
            }
            Some(_) => {}
            None => mail.bell.wait(None, &cx.cancel)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::element::EndKind;
    use crate::ids::OperatorUid;
    use crate::operator::Collector;
    use crate::runtime::mail::mailbox;
    use crate::testkit::task_context;
    use crate::time::EventTime;

    /// Full from a record on, until it is quiet.
    #[derive(Default)]
    struct OneAtATime(Option<OperatorUid>);

    impl Collector<i64> for OneAtATime {
        fn emit(&mut self, _: Record<i64>) -> Result<()> {
            self.0 = Some("one".into());
            Ok(())
        }
    }

    impl Stage<i64> for OneAtATime {
        fn open(&mut self, _: &TaskContext) -> Result<()> {
            Ok(())
        }
        fn batch_end(&mut self) -> Result<()> {
            Ok(())
        }
        fn quiet(&mut self) -> Result<()> {
            self.0 = None;
            Ok(())
        }
        fn full(&self) -> Option<&OperatorUid> {
            self.0.as_ref()
        }
        fn watermark(&mut self, _: Watermark) -> Result<()> {
            Ok(())
        }
        fn idle(&mut self) -> Result<()> {
            Ok(())
        }
        fn active(&mut self) -> Result<()> {
            Ok(())
        }
        fn barrier(&mut self, _: Barrier) -> Result<()> {
            Ok(())
        }
        fn notice(&mut self, _: Notice) -> Result<()> {
            Ok(())
        }
        fn end(&mut self, _: EndKind) -> Result<()> {
            Ok(())
        }
        fn close(&mut self, _: Closing) {}
    }

    /// Gives so many records, as soon as it is asked, and fails when anybody waits for more.
    struct Ready(usize);

    impl Input<i64> for Ready {
        fn open(&mut self, _: &TaskContext) -> Result<()> {
            Ok(())
        }
        fn next(&mut self, batch: &mut Vec<Record<i64>>, _: &TaskContext, _: &Mailbox) -> Result<Turn> {
            if self.0 == 0 {
                return Ok(Turn::End(EndKind::Keep));
            }
            self.0 -= 1;
            batch.push(Record::new(1, EventTime(0)));
            Ok(Turn::Batch)
        }
        fn next_order(&mut self, _: &mut Vec<Record<i64>>, _: &TaskContext, _: &Mailbox) -> Result<Turn> {
            Ok(Turn::Quiet)
        }
        fn wait(&mut self, _: &TaskContext, _: &Mailbox, _: Option<Duration>) -> Result<()> {
            Err(TaskError::internal("there was input"))
        }
        fn close(&mut self, _: Closing) {}
    }

    #[test]
    fn a_chain_that_makes_room_while_it_is_quiet_gets_input_at_once() {
        let (cx, (_sender, mail)) = (task_context("t"), mailbox());
        turns(&mut Ready(5), &mut OneAtATime::default(), &cx, &mail).unwrap();
        assert_eq!(cx.stats.records_in.load(std::sync::atomic::Ordering::Relaxed), 5);
    }
}
