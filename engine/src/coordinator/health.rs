//! How healthy a job is: by its state, and by the age of its last complete checkpoint. Pure: time is told to it.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::checkpoint::Checkpoints;
use crate::ids::CheckpointId;
use crate::runtime::stats::as_millis;
use crate::state::{JobState, Status};

/// How well a job is, at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing is wrong.
    Green,
    /// Something is, and it is tolerated so far: a checkpoint has failed, is getting old, or no records flow.
    Yellow,
    /// It is not healthy.
    Red,
}

/// Whether a job is well, and if not why; what `GET /health` and `GET /ready` answer.
///
/// ```
/// use weir_engine::{prelude::*, testkit::*};
/// let job = Job::named("copy").parallelism(1);
/// job.source("in", ScriptSource::of([(1, 0)])).without_event_time().sink("out", NullSink);
/// let running = job.start()?;
/// running.wait()?;
/// let health = running.health();
/// assert!(health.healthy && health.ready && health.problems.is_empty());
/// assert!(health.checkpoints.is_none(), "it takes none");
/// # Ok::<(), JobError>(())
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Health {
    /// The job.
    pub job: String,
    /// The state it is in, and why.
    #[serde(flatten)]
    pub status: Status,
    /// Green, yellow at the first checkpoint that does not complete, red when it is not healthy.
    pub level: Level,
    /// False when it has failed, and when its checkpoints are older, or failed more often, than it tolerates.
    pub healthy: bool,
    /// True when it is healthy, records flow or are over, and its last complete checkpoint is no older than half of what it
    /// tolerates. A checkpoint that failed and is tolerated is no reason to ask somebody else.
    pub ready: bool,
    /// What is wrong, in words.
    pub problems: Vec<String>,
    /// How its checkpoints are, if it takes any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<CheckpointAge>,
}

/// How old the last complete checkpoint is, and how old it may become. As JSON, times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckpointAge {
    /// The last complete one of this process.
    pub last: Option<CheckpointId>,
    /// How long ago that was; without one, how long ago the job was started.
    #[serde(rename = "age_ms", serialize_with = "as_millis")]
    pub age: Duration,
    /// How old it may become ([`Checkpoints::tolerate_age`]).
    #[serde(rename = "tolerated_age_ms", serialize_with = "as_millis")]
    pub tolerated_age: Duration,
    /// How many have failed since.
    pub failures: u32,
    /// The newest one that did not complete since, and why: failed, declined or expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// How many may ([`Checkpoints::tolerate_failures`]).
    pub tolerated_failures: u32,
}

impl CheckpointAge {
    fn name(&self) -> String {
        match self.last {
            Some(id) => format!("checkpoint {id}, the last complete one, is {:.1?} old", self.age),
            None => format!("there was no complete checkpoint since the start, {:.1?} ago", self.age),
        }
    }
}

/// What is known of a job's checkpoints, whether or not an attempt is there to take any.
#[derive(Debug)]
pub(super) struct Watched {
    last: Option<CheckpointId>,
    since: Instant,
    failures: u32,
    lost: Option<String>,
    tolerated_age: Duration,
    tolerated_failures: u32,
}

impl Watched {
    pub(super) fn new(config: &Checkpoints, now: Instant) -> Self {
        Watched {
            last: None,
            since: now,
            failures: 0,
            lost: None,
            tolerated_age: config.tolerated_age,
            tolerated_failures: config.tolerated_failures,
        }
    }

    pub(super) fn completed(&mut self, id: CheckpointId, now: Instant) {
        (self.last, self.since, self.lost) = (Some(id), now, None);
    }

    pub(super) fn lost(&mut self, id: CheckpointId, why: &str) {
        self.lost = Some(format!("{id}, because {why}"));
    }

    pub(super) fn failed(&mut self, in_a_row: u32) {
        self.failures = in_a_row;
    }

    pub(super) fn at(&self, now: Instant) -> CheckpointAge {
        CheckpointAge {
            last: self.last,
            age: now.saturating_duration_since(self.since),
            tolerated_age: self.tolerated_age,
            failures: self.failures,
            lost: self.lost.clone(),
            tolerated_failures: self.tolerated_failures,
        }
    }
}

impl Health {
    pub(super) fn of(job: &str, status: Status, checkpoints: Option<CheckpointAge>) -> Self {
        // Problems are why a job is not healthy, doubts why it is not ready, warnings why it is not green.
        let (mut problems, mut doubts, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
        match status.state {
            JobState::Failed => problems.push(format!("the job has failed: {}", status.why)),
            // Over and done: nothing is awaited any more, and what it left can be read.
            JobState::Finished => {}
            state => {
                if !matches!(state, JobState::Running | JobState::Draining) {
                    doubts.push(format!("no records flow: {state}, {}", status.why));
                }
                if let Some(c) = &checkpoints {
                    if c.age > c.tolerated_age {
                        problems.push(format!("{}, more than the {:?} tolerated", c.name(), c.tolerated_age));
                    } else if c.age > c.tolerated_age / 2 {
                        doubts.push(format!(
                            "{}, more than half of the {:?} tolerated",
                            c.name(),
                            c.tolerated_age
                        ));
                    }
                    if c.failures > c.tolerated_failures {
                        problems.push(format!(
                            "{} checkpoints failed in a row, more than the {} tolerated",
                            c.failures, c.tolerated_failures
                        ));
                    }
                    if let Some(lost) = &c.lost {
                        warnings.push(format!(
                            "the last checkpoint did not complete: {lost}; {} failed in a row, {} are tolerated",
                            c.failures, c.tolerated_failures
                        ));
                    }
                }
            }
        }
        let (healthy, ready) = (problems.is_empty(), problems.is_empty() && doubts.is_empty());
        problems.extend(doubts);
        problems.extend(warnings);
        let level = match (healthy, problems.is_empty()) {
            (false, _) => Level::Red,
            (true, false) => Level::Yellow,
            (true, true) => Level::Green,
        };
        Health { job: job.to_owned(), status, level, healthy, ready, problems, checkpoints }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// In this state, so many seconds after the start, of 10 tolerated.
    fn health(state: JobState, completed: Option<(u64, u64)>, failures: u32, now: u64) -> Health {
        let config = Checkpoints::to("memory://health").tolerate_age(10 * SECOND).tolerate_failures(2);
        let start = Instant::now();
        let mut watched = Watched::new(&config, start);
        if let Some((id, at)) = completed {
            watched.completed(CheckpointId(id), start + at as u32 * SECOND);
        }
        watched.failed(failures);
        let status = Status { state, why: "so".into(), since_ms: 0 };
        Health::of("j", status, Some(watched.at(start + now as u32 * SECOND)))
    }

    fn told(h: &Health) -> (bool, bool) {
        (h.healthy, h.ready)
    }

    #[test]
    fn a_checkpoint_that_ages_makes_the_job_unready_and_then_unhealthy() {
        for (now, expected) in
            [(5, (true, true)), (6, (true, false)), (10, (true, false)), (11, (false, false))]
        {
            assert_eq!(told(&health(JobState::Running, None, 0, now)), expected, "at {now}, from the start");
            assert_eq!(
                told(&health(JobState::Running, Some((7, 20)), 0, now + 20)),
                expected,
                "{now} after 7"
            );
        }
        let problems = health(JobState::Suspended, Some((7, 20)), 0, 31).problems;
        assert_eq!(
            problems,
            [
                "checkpoint 7, the last complete one, is 11.0s old, more than the 10s tolerated",
                "no records flow: SUSPENDED, so"
            ]
        );
    }

    #[test]
    fn checkpoints_that_fail_too_often_make_the_job_unhealthy() {
        assert_eq!(told(&health(JobState::Running, None, 2, 1)), (true, true));
        let failing = health(JobState::Running, None, 3, 1);
        assert_eq!(told(&failing), (false, false));
        assert_eq!(failing.problems, ["3 checkpoints failed in a row, more than the 2 tolerated"]);
    }

    #[test]
    fn the_first_checkpoint_that_does_not_complete_turns_health_yellow_at_once() {
        let config = Checkpoints::to("memory://health").tolerate_age(10 * SECOND).tolerate_failures(2);
        let start = Instant::now();
        let mut watched = Watched::new(&config, start);
        watched.completed(CheckpointId(6), start);
        let status = Status { state: JobState::Running, why: "so".into(), since_ms: 0 };
        let at = |watched: &Watched| Health::of("j", status.clone(), Some(watched.at(start)));
        assert_eq!(at(&watched).level, Level::Green);
        watched.failed(1);
        watched.lost(CheckpointId(7), "disk full");
        let yellow = at(&watched);
        assert_eq!((yellow.level, told(&yellow)), (Level::Yellow, (true, true)));
        let said =
            "the last checkpoint did not complete: 7, because disk full; 1 failed in a row, 2 are tolerated";
        assert_eq!(yellow.problems, [said]);
        watched.failed(3);
        assert_eq!(at(&watched).level, Level::Red);
        watched.failed(0);
        watched.completed(CheckpointId(8), start);
        assert_eq!((at(&watched).level, at(&watched).problems), (Level::Green, vec![]));
    }

    #[test]
    fn states_count_as_well() {
        for state in [JobState::Planned, JobState::Deploying, JobState::Restoring, JobState::Suspended] {
            assert_eq!(told(&health(state, None, 0, 1)), (true, false), "{state}");
        }
        assert_eq!(told(&health(JobState::Draining, None, 0, 1)), (true, true));
        assert_eq!(told(&health(JobState::Failed, None, 0, 1)), (false, false));
        assert_eq!(told(&health(JobState::Finished, None, 9, 1_000)), (true, true));
    }
}
