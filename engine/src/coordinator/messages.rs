//! Every control message of a job, with sender, receiver and reply.
//!
//! Messages about tasks carry the attempt: what comes from an attempt that is over is dropped. All are sent without
//! waiting, and nothing on a data thread ever waits for a reply.

use actix::Message;

use crate::element::{Barrier, EndKind};
use crate::error::Result;
use crate::ids::AttemptId;

/// Task thread → coordinator, no reply: every operator of the task is open.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct TaskReady {
    pub(crate) attempt: AttemptId,
    pub(crate) index: usize,
}

/// Task actor → coordinator, no reply: exactly one per task and attempt, sent after the thread is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct TaskExited {
    pub(crate) attempt: AttemptId,
    pub(crate) index: usize,
    pub(crate) exit: Result<()>,
}

/// Handle → coordinator, no reply: stop the sources, process what is in flight, end so.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Drain(pub(crate) EndKind);

/// Handle → coordinator, no reply: end every wait now; no flush, no end.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Cancel;

/// Signal listener → coordinator, no reply: the first drains, the second cancels.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Interrupt;

/// Handle → coordinator, no reply: put a barrier into every source's stream at its next batch edge.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct InjectBarrier(pub(crate) Barrier);
