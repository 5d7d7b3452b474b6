//! One life of a job as a pure decision: who is ready, who exited, what to do next, and what the cause was.

use crate::error::{Cause, Domain, Result, TaskError};
use crate::ids::{AttemptId, OperatorUid, TaskId};

/// Why an attempt failed: the first cause of its own, and who merely went down with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which life of the job.
    pub attempt: AttemptId,
    /// True when it happened before records flowed.
    pub at_start: bool,
    /// The task that failed.
    pub task: TaskId,
    /// The operator whose code failed.
    pub uid: OperatorUid,
    /// What stopped it.
    pub cause: Cause,
    /// Whose fault it was.
    pub domain: Domain,
    /// The message with its chain of causes.
    pub message: String,
    /// Other failures of their own in the same attempt: task and message.
    pub also: Vec<(TaskId, String)>,
    /// How many tasks went down only because a neighbour did.
    pub echoes: usize,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verb = match (self.cause, self.at_start) {
            (Cause::Panicked, false) => "panicked",
            (Cause::Panicked, true) => "panicked while opening",
            (_, true) => "could not open",
            (_, false) => "failed",
        };
        write!(f, "operator {:?} subtask {} {verb}: {}", self.uid.as_str(), self.task.subtask, self.message)?;
        for (task, message) in &self.also {
            write!(f, "; also {task}: {message}")?;
        }
        Ok(())
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Finished,
    Cancelled,
    Failed(Failure),
}

/// What a job does once an attempt is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It has finished.
    Finish,
    /// It must not go on, whatever its restart policy says, because of this.
    GiveUp(String),
    /// It was cancelled.
    Cancelled,
    /// It has failed: the restart policy decides.
    Failed(Failure),
}

impl Outcome {
    /// What comes after it. `fatal` is why the job must not go on: its checkpoints fail, or another process has it.
    /// `lost` is a failure of no task's own, for which the attempt was cancelled.
    pub(crate) fn then(self, fatal: Option<String>, lost: Option<Failure>) -> After {
        match (self, fatal, lost) {
            (Outcome::Finished, ..) => After::Finish,
            // Whatever else went wrong meanwhile: another attempt would meddle with what is another process's by now.
            (_, Some(reason), _) => After::GiveUp(reason),
            (Outcome::Failed(failure), None, _) | (Outcome::Cancelled, None, Some(failure)) => {
                After::Failed(failure)
            }
            (Outcome::Cancelled, None, None) => After::Cancelled,
        }
    }
}

/// What the coordinator has to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Every task is open: let records flow.
    Run,
    /// End every wait of the attempt.
    Cancel,
    /// Every task has exited.
    Over(Outcome),
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Phase {
    Opening,
    Running,
    Stopping,
}

/// Follows the tasks of one attempt. No I/O, no threads, no clock.
#[derive(Debug)]
pub(crate) struct Attempt {
    id: AttemptId,
    tasks: Vec<TaskId>,
    ready: Vec<bool>,
    exits: Vec<Option<Result<()>>>,
    /// Indexes of exits with a cause of their own, in the order they were heard.
    primary: Vec<usize>,
    phase: Phase,
    opened: bool,
    cancelled: bool,
}

impl Attempt {
    pub(crate) fn new(id: AttemptId, tasks: Vec<TaskId>) -> Self {
        let n = tasks.len();
        Attempt {
            id,
            tasks,
            ready: vec![false; n],
            exits: (0..n).map(|_| None).collect(),
            primary: Vec::new(),
            phase: Phase::Opening,
            opened: false,
            cancelled: false,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Task `i` has opened all its operators.
    pub(crate) fn ready(&mut self, i: usize) -> Step {
        self.ready[i] = true;
        if self.phase == Phase::Opening && self.ready.iter().all(|r| *r) {
            self.phase = Phase::Running;
            self.opened = true;
            return Step::Run;
        }
        Step::Nothing
    }

    /// Somebody asked for the attempt to be cancelled.
    pub(crate) fn cancel(&mut self) -> Step {
        if self.phase == Phase::Stopping {
            return Step::Nothing;
        }
        self.phase = Phase::Stopping;
        self.cancelled = true;
        Step::Cancel
    }

    /// Task `i` is gone. The first failure stops the attempt; the last exit ends it.
    pub(crate) fn exited(&mut self, i: usize, exit: Result<()>) -> Step {
        if self.exits[i].is_some() {
            return Step::Nothing;
        }
        let failed = exit.is_err();
        if exit.as_ref().is_err_and(|e| e.cause().is_primary()) {
            self.primary.push(i);
        }
        self.exits[i] = Some(exit);
        if self.exits.iter().all(Option::is_some) {
            return Step::Over(self.outcome());
        }
        if failed && self.phase != Phase::Stopping {
            self.phase = Phase::Stopping;
            return Step::Cancel;
        }
        Step::Nothing
    }

    fn outcome(&self) -> Outcome {
        let failed = |i: &usize| matches!(self.exits[*i], Some(Err(_)));
        // Without a cause of its own, a neighbour that was lost says more than the cancel that followed.
        let lost = |i: &usize| matches!(&self.exits[*i], Some(Err(e)) if e.cause() != Cause::Cancelled);
        let all = || 0..self.exits.len();
        let first = self.primary.first().copied().or_else(|| all().find(lost)).or_else(|| all().find(failed));
        let Some(first) = first else { return Outcome::Finished };
        if self.primary.is_empty() && self.cancelled {
            return Outcome::Cancelled;
        }
        let error = |i: usize| self.exits[i].as_ref().and_then(|e| e.as_ref().err());
        let text = |i: usize| error(i).map_or_else(String::new, TaskError::chain);
        let echoes = (0..self.exits.len()).filter(|i| failed(i) && !self.primary.contains(i)).count();
        Outcome::Failed(Failure {
            attempt: self.id,
            at_start: !self.opened,
            task: self.tasks[first].clone(),
            uid: error(first)
                .and_then(|e| e.uid().cloned())
                .unwrap_or_else(|| self.tasks[first].chain.clone()),
            cause: error(first).map_or(Cause::Failed, TaskError::cause),
            domain: error(first).map_or(Domain::Internal, TaskError::domain),
            message: text(first),
            also: self.primary.iter().skip(1).map(|i| (self.tasks[*i].clone(), text(*i))).collect(),
            echoes,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attempt(n: usize) -> Attempt {
        Attempt::new(AttemptId::FIRST, (0..n).map(|i| TaskId { chain: "c".into(), subtask: i }).collect())
    }

    #[test]
    fn runs_when_the_last_one_is_ready_and_finishes_with_the_last_exit() {
        let mut a = attempt(2);
        assert_eq!(a.ready(1), Step::Nothing);
        assert_eq!(a.ready(0), Step::Run);
        assert_eq!(a.exited(0, Ok(())), Step::Nothing);
        assert_eq!(a.exited(1, Ok(())), Step::Over(Outcome::Finished));
    }

    #[test]
    fn an_echo_heard_first_is_not_the_cause() {
        let mut a = attempt(3);
        (0..3).for_each(|i| drop(a.ready(i)));
        assert_eq!(a.exited(0, Err(TaskError::downstream_lost())), Step::Cancel);
        assert_eq!(a.exited(1, Err(TaskError::panicked("boom").at(&"op".into()))), Step::Nothing);
        let Step::Over(Outcome::Failed(f)) = a.exited(2, Err(TaskError::cancelled())) else {
            panic!("not over")
        };
        assert_eq!((f.uid.as_str(), f.task.subtask, f.cause, f.echoes), ("op", 1, Cause::Panicked, 2));
        assert_eq!(f.to_string(), "operator \"op\" subtask 1 panicked: boom");
    }

    #[test]
    fn a_failure_while_opening_cancels_the_others_and_says_so() {
        let mut a = attempt(2);
        a.ready(0);
        assert_eq!(a.exited(1, Err(TaskError::external("no broker").at(&"k".into()))), Step::Cancel);
        let Step::Over(Outcome::Failed(f)) = a.exited(0, Err(TaskError::cancelled())) else {
            panic!("not over")
        };
        assert!(f.at_start);
        assert_eq!(f.to_string(), "operator \"k\" subtask 1 could not open: no broker");
    }

    #[test]
    fn a_cancel_is_not_a_failure_unless_something_failed_by_itself() {
        let mut a = attempt(2);
        assert_eq!(a.cancel(), Step::Cancel);
        assert_eq!(a.cancel(), Step::Nothing);
        a.exited(0, Err(TaskError::cancelled()));
        assert_eq!(a.exited(1, Err(TaskError::upstream_lost())), Step::Over(Outcome::Cancelled));
    }

    #[test]
    fn a_job_that_must_not_go_on_is_not_started_again_because_a_task_failed_too() {
        let failed = || {
            let mut a = attempt(2);
            (0..2).for_each(|i| drop(a.ready(i)));
            assert_eq!(a.cancel(), Step::Cancel);
            a.exited(0, Err(TaskError::user("x")));
            let Step::Over(outcome) = a.exited(1, Err(TaskError::cancelled())) else { panic!("not over") };
            outcome
        };
        let Outcome::Failed(failure) = failed() else { panic!("a cause of its own is a failure") };
        let fenced = || Some("another process has it".to_owned());
        assert_eq!(failed().then(None, None), After::Failed(failure.clone()));
        assert_eq!(failed().then(fenced(), None), After::GiveUp("another process has it".into()));
        assert_eq!(
            Outcome::Cancelled.then(fenced(), Some(failure.clone())),
            After::GiveUp("another process has it".into())
        );
        assert_eq!(Outcome::Cancelled.then(None, Some(failure.clone())), After::Failed(failure));
        assert_eq!(Outcome::Cancelled.then(None, None), After::Cancelled);
        assert_eq!(Outcome::Finished.then(fenced(), None), After::Finish);
    }

    proptest! {
        /// In whatever order tasks exit, the attempt is over exactly when the last one did, and is cancelled at most once.
        #[test]
        fn over_exactly_once(order in Just((0..6usize).collect::<Vec<_>>()).prop_shuffle(), kinds in proptest::collection::vec(0u8..4, 6)) {
            let mut a = attempt(6);
            (0..6).for_each(|i| drop(a.ready(i)));
            let mut cancels = 0;
            for (n, i) in order.iter().enumerate() {
                let exit = match kinds[*i] {
                    0 => Ok(()),
                    1 => Err(TaskError::user("x")),
                    2 => Err(TaskError::upstream_lost()),
                    _ => Err(TaskError::panicked("y")),
                };
                let step = a.exited(*i, exit);
                cancels += usize::from(step == Step::Cancel);
                prop_assert_eq!(matches!(step, Step::Over(_)), n == 5);
                if let Step::Over(outcome) = step {
                    let primary = kinds.iter().any(|k| *k == 1 || *k == 3);
                    match outcome {
                        Outcome::Failed(f) => prop_assert_eq!(f.cause.is_primary(), primary),
                        _ => prop_assert!(kinds.iter().all(|k| *k == 0)),
                    }
                }
            }
            prop_assert!(cancels <= 1);
        }
    }
}
