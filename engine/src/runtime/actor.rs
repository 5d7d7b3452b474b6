//! The actor shell of a task: an address, control forwarding, the thread it owns, and one exit report.

use std::thread::JoinHandle;
use std::time::Duration;

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message};

use crate::coordinator::{Coordinator, TaskExited, TaskReady};
use crate::error::{Result, TaskError};
use crate::ids::AttemptId;
use crate::runtime::input::Control;
use crate::runtime::mail::MailSender;
use crate::runtime::pump::{self, Pump};

/// The outside of one task. Its handlers only forward; nothing here ever waits.
pub(crate) struct TaskActor {
    pub(crate) attempt: AttemptId,
    /// Index of the task in its attempt.
    pub(crate) index: usize,
    pub(crate) coordinator: Addr<Coordinator>,
    pub(crate) mail: MailSender,
    pub(crate) pump: Option<Pump>,
    pub(crate) thread: Option<JoinHandle<()>>,
    pub(crate) exit: Option<Result<()>>,
}

/// Coordinator → task. No reply. Forwarded to the thread, which reads it between two batches.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Tell(pub(crate) Control);

/// Thread → its own actor, last: the loop is over, and this is how.
#[derive(Message)]
#[rtype(result = "()")]
struct PumpDone(Result<()>);

/// How long after `PumpDone` the thread is looked at again; it has nothing left to do but return.
const JOIN_POLL: Duration = Duration::from_micros(200);

impl Actor for TaskActor {
    type Context = Context<Self>;

    fn started(&mut self, cx: &mut Context<Self>) {
        let Some(pump) = self.pump.take() else { return };
        let (coordinator, attempt, index) = (self.coordinator.clone(), self.attempt, self.index);
        let ready = move || coordinator.do_send(TaskReady { attempt, index });
        let own = cx.address();
        match pump::spawn(pump, ready, move |exit| own.do_send(PumpDone(exit))) {
            Ok(thread) => self.thread = Some(thread),
            Err(e) => cx.notify(PumpDone(Err(TaskError::external("cannot start a thread").caused_by(e)))),
        }
    }
}

impl Handler<Tell> for TaskActor {
    type Result = ();

    fn handle(&mut self, Tell(control): Tell, _: &mut Context<Self>) {
        self.mail.post(control);
    }
}

impl Handler<PumpDone> for TaskActor {
    type Result = ();

    fn handle(&mut self, PumpDone(exit): PumpDone, cx: &mut Context<Self>) {
        self.exit = Some(exit);
        self.join(cx);
    }
}

impl TaskActor {
    /// Joins the thread once it has returned (a join before that would hold up every actor here), then reports.
    fn join(&mut self, cx: &mut Context<Self>) {
        if self.thread.as_ref().is_some_and(|t| !t.is_finished()) {
            cx.run_later(JOIN_POLL, Self::join);
            return;
        }
        // The panic, if any, was caught inside; the join itself cannot fail.
        let _ = self.thread.take().map(JoinHandle::join);
        if let Some(exit) = self.exit.take() {
            self.coordinator.do_send(TaskExited { attempt: self.attempt, index: self.index, exit });
        }
        cx.stop();
    }
}
