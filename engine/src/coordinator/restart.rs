//! What to do after a failed attempt: try again after a while, or give up. Pure.

use std::time::Duration;

use super::attempt::Failure;

/// When a failed job is started again: from its last complete checkpoint if it takes any, else from its sources'
/// beginning. A job is not started again when it failed before records flowed in its first attempt, nor once it was
/// drained or cancelled. [`crate::Job::restart`] shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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
    /// Without end, each time after a longer wait.
    Exponential {
        /// The wait before the first restart.
        first: Duration,
        /// The longest wait.
        longest: Duration,
        /// By how much each wait is longer than the one before; below 1 counts as 1.
        factor: f64,
        /// A life that ran so long makes the next wait the first one again.
        reset_after: Duration,
    },
    /// As long as failures do not come too often.
    FailureRate {
        /// The most failures within the interval; one more and the job fails.
        failures: u32,
        /// The interval, by the machine's clock.
        within: Duration,
        /// The wait before each restart.
        delay: Duration,
    },
}

/// The decision after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    RestartAfter(Duration),
    GiveUp,
}

/// A failure as the policy sees it. Times are on one monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fall {
    /// When the attempt failed.
    pub(crate) at: Duration,
    /// How long records had flowed.
    pub(crate) ran: Duration,
}

impl RestartPolicy {
    /// Decides after `failure`, the last of `falls` (oldest first). A job that could not even start the first time is not
    /// tried again: what it lacks is in its configuration.
    pub(crate) fn decide(self, failure: &Failure, falls: &[Fall]) -> Decision {
        let restarts = falls.len().saturating_sub(1);
        if failure.at_start && restarts == 0 {
            return Decision::GiveUp;
        }
        match self {
            RestartPolicy::FixedDelay { restarts: most, delay } if restarts < most as usize => {
                Decision::RestartAfter(delay)
            }
            RestartPolicy::Exponential { first, longest, factor, reset_after } => {
                // Failures in a row: those since a life that ran long enough to count as well.
                let row = falls
                    .iter()
                    .rev()
                    .skip_while(|f| f.ran >= reset_after)
                    .take_while(|f| f.ran < reset_after);
                let healthy = falls.last().is_some_and(|f| f.ran >= reset_after);
                let earlier = if healthy { 0 } else { row.count().saturating_sub(1) };
                let wait = first.as_secs_f64() * factor.max(1.0).powi(earlier.min(1_000) as i32);
                Decision::RestartAfter(Duration::try_from_secs_f64(wait).map_or(longest, |w| w.min(longest)))
            }
            RestartPolicy::FailureRate { failures, within, delay } => {
                let now = falls.last().map_or(Duration::ZERO, |f| f.at);
                let recent = falls.iter().filter(|f| now.saturating_sub(f.at) < within).count();
                if recent > failures as usize { Decision::GiveUp } else { Decision::RestartAfter(delay) }
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

    /// Failures at these seconds, each after having run for so many.
    fn falls(of: &[(u64, u64)]) -> Vec<Fall> {
        let s = Duration::from_secs;
        of.iter().map(|(at, ran)| Fall { at: s(*at), ran: s(*ran) }).collect()
    }

    fn decisions(policy: RestartPolicy, of: &[(u64, u64)]) -> Vec<Option<u64>> {
        let falls = falls(of);
        (1..=falls.len())
            .map(|n| match policy.decide(&failure(false), &falls[..n]) {
                Decision::RestartAfter(wait) => Some(wait.as_secs()),
                Decision::GiveUp => None,
            })
            .collect()
    }

    #[test]
    fn gives_up_after_so_many() {
        let policy = RestartPolicy::FixedDelay { restarts: 2, delay: Duration::from_secs(1) };
        assert_eq!(decisions(policy, &[(1, 1), (2, 1), (3, 1)]), [Some(1), Some(1), None]);
        assert_eq!(decisions(RestartPolicy::None, &[(1, 1)]), [None]);
    }

    #[test]
    fn a_first_start_that_fails_is_final() {
        let policy = RestartPolicy::FixedDelay { restarts: 2, delay: Duration::ZERO };
        assert_eq!(policy.decide(&failure(true), &falls(&[(1, 0)])), Decision::GiveUp);
        assert_eq!(
            policy.decide(&failure(true), &falls(&[(1, 5), (2, 0)])),
            Decision::RestartAfter(Duration::ZERO)
        );
    }

    #[test]
    fn waits_grow_to_the_longest_and_begin_anew_after_a_long_life() {
        let policy = RestartPolicy::Exponential {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(10),
            factor: 3.0,
            reset_after: Duration::from_secs(60),
        };
        let lives = [(1, 1), (2, 1), (3, 1), (4, 1), (100, 90), (101, 1), (102, 1)];
        assert_eq!(
            decisions(policy, &lives),
            [Some(1), Some(3), Some(9), Some(10), Some(1), Some(1), Some(3)]
        );
    }

    #[test]
    fn too_many_failures_in_an_interval_end_it() {
        let policy = RestartPolicy::FailureRate {
            failures: 2,
            within: Duration::from_secs(10),
            delay: Duration::from_secs(1),
        };
        assert_eq!(
            decisions(policy, &[(0, 1), (5, 1), (11, 1), (16, 1), (17, 1)]),
            [Some(1), Some(1), Some(1), Some(1), None]
        );
    }
}
