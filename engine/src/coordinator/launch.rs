//! Gives a job a thread of its own for its actors, and forwards signals to it.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr};
use tokio::sync::oneshot;

use super::{Board, Coordinator, Interrupt, LifeConfig};
use crate::graph::Graph;
use crate::job::JobError;
use crate::plan::Plan;
use crate::runtime::latch::Latch;
use crate::signals::listen;

/// Tells whoever waits for a job that its control thread is gone, when it goes without a result: a panic in it (of the
/// job's own clock, say) must not leave anybody waiting. The tasks are cancelled by the coordinator's own end.
struct LastWord {
    board: Arc<Board>,
    job: String,
}

impl Drop for LastWord {
    fn drop(&mut self) {
        if self.board.result().get().is_none() {
            let reason = "its control thread ended without a result; the panic above says why".to_owned();
            self.board.lost(&reason);
            self.board.close(Err(JobError::Control { job: self.job.clone(), reason }));
        }
    }
}

/// Starts a System of its own for the job on a thread of its own; gives the address once it runs.
pub(crate) fn launch(
    graph: Graph,
    plan: Plan,
    life: LifeConfig,
    board: Arc<Board>,
    signals: bool,
) -> Result<(Addr<Coordinator>, std::thread::JoinHandle<()>), JobError> {
    let job = plan.job.clone();
    let end = LastWord { board: board.clone(), job: job.clone() };
    let address = Arc::new(Latch::new());
    let given = address.clone();
    let thread = std::thread::Builder::new()
        .name("weir-control".into())
        .spawn(move || {
            let _end = end;
            actix::System::new().block_on(async move {
                let (over, end) = oneshot::channel();
                let coordinator = Coordinator::new(graph, plan, life, board, over).start();
                let listener = coordinator.clone();
                let _listening = match signals.then(|| listen(move || listener.do_send(Interrupt))) {
                    Some(Err(e)) => {
                        tracing::warn!("cannot listen for signals: Ctrl-C will not drain the job: {e}");
                        None
                    }
                    Some(Ok(listening)) => Some(listening),
                    None => None,
                };
                given.open(coordinator);
                // The sender lives in the coordinator; if that dies without a word there is nothing to wait for either.
                let _ = end.await;
            });
        })
        .map_err(|e| JobError::Control { job: job.clone(), reason: format!("cannot start a thread: {e}") })?;
    match address.wait(Some(Duration::from_secs(30))) {
        Some(address) => Ok((address, thread)),
        None => {
            Err(JobError::Control { job, reason: "the control thread did not come up within 30 s".into() })
        }
    }
}
