//! Why a job did not finish: the step, the operator, and what held it.

use std::time::Duration;

use crate::coordinator::Failure;
use crate::memory::MemoryError;
use crate::plan::PlanError;

/// Why a job did not finish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The job as written makes no sense.
    #[error("plan: {0}")]
    Plan(PlanError),
    /// It cannot fit into its memory, or has more threads than it may.
    #[error("memory: {0}")]
    Memory(Box<MemoryError>),
    /// A task could not be made.
    #[error("deploy: job {job:?} could not make task {task}: an operator panicked in `clone`")]
    Deploy {
        /// The job.
        job: String,
        /// The task.
        task: String,
    },
    /// A task failed and the restart policy gave up.
    #[error("{}: job {job:?}: {failure}{}", if failure.at_start { "deploy" } else { "run" }, after(history))]
    Failed {
        /// The job.
        job: String,
        /// The last failure.
        failure: Box<Failure>,
        /// Every failure, the last one included, oldest first.
        history: Vec<Failure>,
    },
    /// Somebody cancelled it.
    #[error("job {job:?} was cancelled")]
    Cancelled {
        /// The job.
        job: String,
    },
    /// The drain took too long and the job was cancelled instead.
    #[error("job {job:?} did not drain within {after:?}: held by {held_by}")]
    DrainTimedOut {
        /// The job.
        job: String,
        /// The limit.
        after: Duration,
        /// Which tasks were still there, and what each was doing.
        held_by: String,
    },
    /// Tasks did not notice the cancel; their threads are left behind.
    #[error("job {job:?} did not hear its cancel within {after:?}: threads are left behind: {held_by}")]
    Stuck {
        /// The job.
        job: String,
        /// The limit.
        after: Duration,
        /// Which tasks, and what each was doing.
        held_by: String,
    },
    /// Its checkpoints failed, or it could not begin from one.
    #[error("job {job:?}: checkpoints: {reason}")]
    Checkpoints {
        /// The job.
        job: String,
        /// What happened, and what to do.
        reason: String,
    },
    /// The control side failed.
    #[error("job {job:?}: {reason}")]
    Control {
        /// The job.
        job: String,
        /// What happened.
        reason: String,
    },
}

fn after(history: &[Failure]) -> String {
    if history.len() < 2 {
        return String::new();
    }
    let earlier: Vec<_> =
        history[..history.len() - 1].iter().map(|f| format!("attempt {}: {f}", f.attempt)).collect();
    format!(" (before that, {})", earlier.join("; "))
}

// Not `#[from]`: that would make the plan error the cause as well, and whoever prints causes would print it twice.
impl From<PlanError> for JobError {
    fn from(error: PlanError) -> Self {
        JobError::Plan(error)
    }
}

impl From<MemoryError> for JobError {
    fn from(error: MemoryError) -> Self {
        JobError::Memory(Box::new(error))
    }
}
