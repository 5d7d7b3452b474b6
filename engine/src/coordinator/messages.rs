//! Every control message of a job, with sender, receiver and reply.
//!
//! Messages about tasks carry the attempt: what comes from an attempt that is over is dropped. All are sent without
//! waiting, and nothing on a data thread ever waits for a reply.

use actix::Message;

use std::sync::Arc;

use weir_state::checkpoint::Manifest;

use super::checkpoints::Asked;
use crate::checkpoint::{Publication, SnapshotNews};
use crate::element::{Barrier, EndKind};
use crate::error::Result;
use crate::ids::{AttemptId, CheckpointId};

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

/// Snapshot writer → coordinator, no reply: how far a task's snapshot is.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SnapshotMail {
    pub(crate) attempt: AttemptId,
    pub(crate) news: SnapshotNews,
}

/// Storage → coordinator, no reply: the manifest is there, or is not.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Published {
    pub(crate) attempt: AttemptId,
    pub(crate) id: CheckpointId,
    pub(crate) manifest: Option<Arc<Manifest>>,
    pub(crate) outcome: Publication,
}

/// Handle → coordinator: take a checkpoint now, as a savepoint if it is named; `stop` drains the job with it. The answer goes
/// to `asked`.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct AskCheckpoint {
    pub(crate) savepoint: Option<String>,
    pub(crate) stop: bool,
    pub(crate) asked: Asked,
}
