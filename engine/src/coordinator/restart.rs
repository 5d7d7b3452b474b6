//! What to do after a failed attempt: try again after a while, or give up. Pure.

use std::time::Duration;

use super::attempt::Failure;

/// When a failed job is started again. It starts from its sources' beginning until checkpoints give it a better place.
/// A job is not started again when it failed before records flowed in its first attempt, nor once it was drained or
/// cancelled. [`crate::Job::restart`] shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestartPolicy {
    /// Never.
    #[default]
    None,
    /// So many times, after so long each.
    FixedDelay {
        /// The most restarts.
        restarts: u32,
        /// The wait before each, by the machine's clock.
        delay: Duration,
    },
}

/// The decision after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    RestartAfter(Duration),
    GiveUp,
}

impl RestartPolicy {
    /// Decides after `failure`, with `restarts` made before. A job that could not even start the first time is not tried
    /// again: what it lacks is in its configuration.
    pub(crate) fn decide(self, failure: &Failure, restarts: u32) -> Decision {
        match self {
            RestartPolicy::FixedDelay { restarts: most, delay }
                if restarts < most && !(failure.at_start && restarts == 0) =>
            {
                Decision::RestartAfter(delay)
            }
            _ => Decision::GiveUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Cause, Domain};
    use crate::ids::{AttemptId, TaskId};

    fn failure(at_start: bool) -> Failure {
        Failure {
            attempt: AttemptId::FIRST,
            at_start,
            task: TaskId { chain: "c".into(), subtask: 0 },
            uid: "c".into(),
            cause: Cause::Failed,
            domain: Domain::External,
            message: String::new(),
            also: vec![],
            echoes: 0,
        }
    }

    #[test]
    fn gives_up_after_so_many() {
        let policy = RestartPolicy::FixedDelay { restarts: 2, delay: Duration::from_secs(1) };
        let decisions: Vec<_> = (0..3).map(|n| policy.decide(&failure(false), n)).collect();
        let again = Decision::RestartAfter(Duration::from_secs(1));
        assert_eq!(decisions, [again, again, Decision::GiveUp]);
        assert_eq!(RestartPolicy::None.decide(&failure(false), 0), Decision::GiveUp);
    }

    #[test]
    fn a_first_start_that_fails_is_final() {
        let policy = RestartPolicy::FixedDelay { restarts: 2, delay: Duration::ZERO };
        assert_eq!(policy.decide(&failure(true), 0), Decision::GiveUp);
        assert_eq!(policy.decide(&failure(true), 1), Decision::RestartAfter(Duration::ZERO));
    }
}
