//! What feeds a task's chain: a gate on channels or a source, behind one call per batch.

use std::time::Duration;

use crate::context::TaskContext;
use crate::element::{Barrier, EndKind, Notice, Record};
use crate::error::Result;
use crate::ids::OperatorUid;
use crate::operator::Closing;
use crate::runtime::mail::Mailbox;
use crate::time::Watermark;

/// Control mail of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// Every task of the attempt is open: records may flow.
    Run,
    /// To sources: put this barrier into the stream at the next batch edge.
    Barrier(Barrier),
    /// To sources: stop reading, then end the stream so.
    Drain(EndKind),
    /// A checkpoint is complete, or was given up.
    Notice(Notice),
    /// The last snapshot of this task is in a complete checkpoint: it may go.
    Released,
    /// The last snapshot of this task could not be written.
    LastFailed(String),
    /// To a task that has ended: its last snapshot could not be written; it is to freeze once more.
    FreezeLast,
}

/// The next thing a chain has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Process the batch.
    Batch,
    /// Nothing is ready: pass on what is held back, then call `wait`.
    Quiet,
    Watermark(Watermark),
    Idle,
    /// The end of idleness. A batch may have come in with it: it is given by the next turn.
    Active,
    Barrier(Barrier),
    /// A checkpoint is complete, or was given up.
    Notice(Notice),
    End(EndKind),
}

/// The longest wait between two looks at a clock: the machine's may be set, and one that a test moves by hand wakes nobody.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// So that an operator whose time stays past is called again and again, but does not keep a processor busy.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// How long a task may wait whose chain has something to do at `wakes_at`. Without such a time no clock is read.
pub(crate) fn at_most(wakes_at: Option<i64>, cx: &TaskContext) -> Option<Duration> {
    let left = wakes_at?.saturating_sub(cx.clock.now_ms());
    Some(Duration::from_millis(left.max(0) as u64).clamp(SHORTEST_WAIT, LONGEST_WAIT))
}

/// Where a task's elements come from. One virtual call per batch.
pub(crate) trait Input<T>: Send {
    /// Opens what is outside; called after the chain is open.
    fn open(&mut self, cx: &TaskContext) -> Result<()>;

    /// The next turn, without waiting. `batch` comes in empty and is filled for [`Turn::Batch`].
    fn next(&mut self, batch: &mut Vec<Record<T>>, cx: &TaskContext, mail: &Mailbox) -> Result<Turn>;

    /// The next turn when the chain wants no input: orders, and what was taken in already; nothing is read.
    fn next_order(&mut self, batch: &mut Vec<Record<T>>, cx: &TaskContext, mail: &Mailbox) -> Result<Turn>;

    /// After [`Turn::Quiet`] when the chain of `full` wants no input: waits for mail, or to be woken. Hears cancellation.
    fn wait_for_room(
        &mut self,
        full: &OperatorUid,
        cx: &TaskContext,
        mail: &Mailbox,
        most: Option<Duration>,
    ) -> Result<()> {
        let _blocked = cx.stats.blocked(full);
        if mail.has_mail() { Ok(()) } else { mail.bell.wait(most, &cx.cancel) }
    }

    /// After [`Turn::Quiet`]: waits until there may be something to do, `most` at most when given. Hears mail and
    /// cancellation.
    fn wait(&mut self, cx: &TaskContext, mail: &Mailbox, most: Option<Duration>) -> Result<()>;

    /// What became of a checkpoint, once the input has ended; before that it is said by a turn.
    fn notice(&mut self, notice: Notice) -> Result<()> {
        let _ = notice;
        Ok(())
    }

    /// Freezes once more what was frozen at the end.
    fn freeze_last(&mut self) -> Result<()> {
        Ok(())
    }

    /// Always called last.
    fn close(&mut self, outcome: Closing);
}
