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

/// Starts a System of its own for the job on a thread of its own; gives the address once it runs.
pub(crate) fn launch(
    graph: Graph,
    plan: Plan,
    life: LifeConfig,
    board: Arc<Board>,
    signals: bool,
) -> Result<(Addr<Coordinator>, std::thread::JoinHandle<()>), JobError> {
    let job = plan.job.clone();
    let address = Arc::new(Latch::new());
    let given = address.clone();
    let thread = std::thread::Builder::new()
        .name("weir-control".into())
        .spawn(move || {
            actix::System::new().block_on(async move {
                let (over, end) = oneshot::channel();
                let coordinator = Coordinator::new(graph, plan, life, board, over).start();
                if signals {
                    actix::spawn(forward_signals(coordinator.clone()));
                }
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

async fn forward_signals(coordinator: Addr<Coordinator>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        tracing::warn!("cannot listen for signals: Ctrl-C will not drain the job");
        return;
    };
    loop {
        tokio::select! {
            heard = interrupt.recv() => if heard.is_none() { return },
            heard = terminate.recv() => if heard.is_none() { return },
        }
        coordinator.do_send(Interrupt);
    }
}
