//! The states of a job, which may follow which, and why it is in the one it is in. Pure.

use serde::Serialize;

/// Where a job is in its life.
///
/// ```
/// use weir_engine::JobState::{Deploying, Draining, Finished, Running, Suspended};
/// assert!(Deploying.may_become(Running) && Running.may_become(Suspended) && !Draining.may_become(Running));
/// assert!(Finished.is_final() && Running.to_string() == "RUNNING");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum JobState {
    /// Written, not planned.
    Created,
    /// Planned and checked; nothing has started.
    Planned,
    /// Tasks are being made and their operators opened.
    Deploying,
    /// Tasks read back the state of the checkpoint that this attempt begins from.
    Restoring,
    /// Records flow.
    Running,
    /// Sources have stopped; what is in flight is being processed.
    Draining,
    /// Between a failure and the next attempt.
    Suspended,
    /// Over, with a cause.
    Failed,
    /// Over: ended, drained, cancelled, or cancelled because its drain took too long.
    Finished,
}

impl JobState {
    /// True when nothing can follow.
    pub fn is_final(self) -> bool {
        matches!(self, JobState::Failed | JobState::Finished)
    }

    /// May `next` follow?
    pub fn may_become(self, next: JobState) -> bool {
        use JobState::*;
        match self {
            Created => matches!(next, Planned | Failed),
            Planned => matches!(next, Deploying | Failed),
            Deploying => matches!(next, Restoring | Running | Suspended | Failed | Finished),
            Restoring => matches!(next, Running | Suspended | Failed | Finished),
            Running => matches!(next, Draining | Suspended | Failed | Finished),
            Draining => matches!(next, Suspended | Failed | Finished),
            // Again, when it cannot be found out yet where to begin.
            Suspended => matches!(next, Deploying | Suspended | Failed | Finished),
            Failed | Finished => false,
        }
    }
}

impl std::fmt::Display for JobState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            JobState::Created => "CREATED",
            JobState::Planned => "PLANNED",
            JobState::Deploying => "DEPLOYING",
            JobState::Restoring => "RESTORING",
            JobState::Running => "RUNNING",
            JobState::Draining => "DRAINING",
            JobState::Suspended => "SUSPENDED",
            JobState::Failed => "FAILED",
            JobState::Finished => "FINISHED",
        })
    }
}

/// A state with why it holds, or what it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The state.
    pub state: JobState,
    /// Why, or what for.
    pub why: String,
    /// Milliseconds since the epoch when it began.
    pub since_ms: i64,
}

/// Every state a job has been in, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct StateLog {
    entries: Vec<Status>,
}

impl StateLog {
    pub(crate) fn new(now_ms: i64) -> Self {
        StateLog {
            entries: vec![Status { state: JobState::Created, why: "written".into(), since_ms: now_ms }],
        }
    }

    pub(crate) fn current(&self) -> &Status {
        // One entry from the start on, and none is ever removed.
        &self.entries[self.entries.len() - 1]
    }

    pub(crate) fn entries(&self) -> &[Status] {
        &self.entries
    }

    /// Moves on. An illegal move is a bug: it is refused and says so in debug builds.
    pub(crate) fn enter(&mut self, state: JobState, why: impl Into<String>, now_ms: i64) {
        let from = self.current().state;
        debug_assert!(from.may_become(state), "{state} cannot follow {from}");
        if from.may_become(state) {
            self.entries.push(Status { state, why: why.into(), since_ms: now_ms });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_with_a_restart() {
        let mut log = StateLog::new(0);
        for s in [
            JobState::Planned,
            JobState::Deploying,
            JobState::Running,
            JobState::Suspended,
            JobState::Deploying,
        ] {
            log.enter(s, "x", 1);
        }
        log.enter(JobState::Failed, "boom", 2);
        assert!(log.current().state.is_final());
        assert_eq!(log.entries().len(), 7);
    }

    #[test]
    #[should_panic(expected = "RUNNING cannot follow FINISHED")]
    fn nothing_follows_the_end() {
        let mut log = StateLog::new(0);
        log.enter(JobState::Planned, "", 0);
        log.enter(JobState::Deploying, "", 0);
        log.enter(JobState::Finished, "", 0);
        log.enter(JobState::Running, "", 0);
    }
}
