//! For tests of a user's own operators, sources, sinks and jobs: contexts, a hand-moved clock, harnesses, probes.

mod clock;
mod harness;
mod jobs;
mod script;

pub use clock::ManualClock;
pub use harness::{Given, OpHarness, Saved, SideProbe};
pub use jobs::{run_within, thread_names, until};
pub use script::{Line, NullSink, Probe, ScriptSource, Seen};

use std::sync::Arc;

use crate::checkpoint::{RestoreFrom, StateEnv};
use crate::context::{OperatorContext, TaskContext, TaskWaker};
use crate::ids::{AttemptId, TaskId};
use crate::runtime::channel::cancellation;
use crate::runtime::stats::TaskStats;
use crate::task_state::TaskState;
use crate::time::{SharedClock, SystemClock};

/// A context as a task would give it to the operator `uid`, with the machine's clock; its attempt is never cancelled.
///
/// ```
/// let cx = weir_engine::testkit::context("enrich", 1, 4);
/// assert_eq!((cx.task().to_string(), cx.own_key_groups()), ("enrich#1".to_string(), 32..64));
/// ```
pub fn context(uid: &str, subtask: usize, parallelism: usize) -> OperatorContext {
    context_with(uid, subtask, parallelism, RestoreFrom::Nothing)
}

/// Like [`context`], by a clock of the test's own; [`OpHarness::pause`] shows it.
pub fn context_by(clock: SharedClock, uid: &str, subtask: usize, parallelism: usize) -> OperatorContext {
    let mut cx = context(uid, subtask, parallelism).task_context().clone();
    cx.clock = clock;
    cx.of(&uid.into())
}

/// A context whose operator begins from what was saved.
fn context_with(uid: &str, subtask: usize, parallelism: usize, from: RestoreFrom) -> OperatorContext {
    let mut cx = task_context(uid);
    cx.task.subtask = subtask;
    cx.parallelism = parallelism;
    cx.state = TaskState::new(cx.task.clone(), 0, parallelism, Arc::new(StateEnv::in_memory(from)));
    cx.of(&uid.into())
}

pub(crate) fn task_context(chain: &str) -> TaskContext {
    let task = TaskId { chain: chain.into(), subtask: 0 };
    let (alive, cancel) = cancellation();
    // Forgotten, not dropped: dropping the handle would cancel.
    std::mem::forget(alive);
    TaskContext {
        stats: TaskStats::new(task.clone()),
        task: task.clone(),
        parallelism: 1,
        attempt: AttemptId::FIRST,
        key_groups: weir_state::KEY_GROUPS,
        clock: SystemClock::shared(),
        cancel,
        waker: TaskWaker::default(),
        async_threads: 2,
        state: TaskState::new(task, 0, 1, Arc::new(StateEnv::in_memory(RestoreFrom::Nothing))),
    }
}
