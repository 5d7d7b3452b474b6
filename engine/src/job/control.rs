//! `JobControl`: asks a job for checkpoints and savepoints, and drains it; for whoever is given that power.

use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::{AskCheckpoint, Asked, Board, Coordinator, Drain};
use crate::element::EndKind;
use crate::runtime::address::Address;
use crate::runtime::latch::Latch;

/// The power over a job that a handle has, without the power to wait for it.
#[derive(Clone)]
pub(crate) struct JobControl {
    pub(super) board: Arc<Board>,
    pub(super) address: Address<Coordinator>,
}

impl std::fmt::Debug for JobControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JobControl({})", self.board.plan().job)
    }
}

impl JobControl {
    /// Stops the sources and lets what is in flight be processed.
    pub(crate) fn drain(&self, kind: EndKind) {
        self.address.send(Drain(kind));
    }

    /// Takes a checkpoint, or a savepoint of a name, and stops with it if so wanted. Gives the number or the address.
    ///
    /// *Blocking*: until it is complete.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn save(&self, savepoint: Option<&str>, stop: bool) -> Result<String, String> {
        let asked = Asked::new(Latch::new());
        self.address.send(AskCheckpoint { savepoint: savepoint.map(Into::into), stop, asked: asked.clone() });
        // Nobody answers when the control thread is gone; the job is over then.
        loop {
            if let Some(answer) = asked.wait(Some(Duration::from_millis(50))) {
                return answer;
            }
            if self.board.result().get().is_some() && asked.get().is_none() {
                return Err("the job is over".to_owned());
            }
        }
    }
}
