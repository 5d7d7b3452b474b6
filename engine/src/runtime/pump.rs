//! The thread of a task: spawned under the task's name, its panic caught, its exit a value.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use crate::context::{TaskContext, TaskWaker};
use crate::error::{Result, TaskError};
use crate::pipe::{panic_message, panicked_in};
use crate::runtime::mail::Mailbox;
use crate::runtime::task::{Seat, TaskBody};

/// What a thread needs to be a task.
pub(crate) struct Pump {
    pub(crate) body: Box<dyn TaskBody>,
    pub(crate) cx: TaskContext,
    pub(crate) mail: Mailbox,
}

/// Starts the thread. `ready` is called when every operator is open, `done` exactly once, last.
pub(crate) fn spawn(
    pump: Pump,
    ready: impl Fn() + Send + 'static,
    done: impl FnOnce(Result<()>) + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(pump.cx.task.to_string()).spawn(move || live(pump, ready, done))
}

/// The whole life of a task, on the calling thread.
pub(crate) fn live(pump: Pump, ready: impl Fn(), done: impl FnOnce(Result<()>)) {
    let Pump { body, mut cx, mail } = pump;
    cx.waker = TaskWaker::of(mail.ringer.clone());
    let run = || body.run(Seat { cx: &cx, mail: &mail, ready: &ready });
    // What a panic may have left half done is dropped inside `run`, unread.
    let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let uid = panicked_in().unwrap_or_else(|| cx.task.chain.clone());
        Err(TaskError::panicked(panic_message(payload.as_ref())).at(&uid))
    });
    let result = result.map_err(|e| match cx.state.freezes_for() {
        Some(checkpoint) => e.in_snapshot(checkpoint),
        None => e,
    });
    cx.stats.exited();
    drop((cx, mail));
    done(result);
}
