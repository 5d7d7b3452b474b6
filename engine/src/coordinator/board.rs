//! What anyone may read about a job while it runs: its states, its tasks' counts, and in the end its result.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::job::{JobError, JobReport};
use crate::plan::Plan;
use crate::runtime::latch::Latch;
use crate::runtime::stats::{Activity, TaskReading, TaskStats};
use crate::state::{JobState, StateLog, Status};

pub(crate) struct Board {
    plan: Plan,
    log: Mutex<StateLog>,
    tasks: Mutex<Vec<Arc<TaskStats>>>,
    result: Latch<Result<JobReport, JobError>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    pub(crate) fn new(plan: Plan, now_ms: i64) -> Self {
        let mut log = StateLog::new(now_ms);
        log.enter(JobState::Planned, "checked", now_ms);
        Board { plan, log: Mutex::new(log), tasks: Mutex::default(), result: Latch::new() }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn enter(&self, state: JobState, why: impl Into<String>, now_ms: i64) {
        lock(&self.log).enter(state, why, now_ms);
    }

    /// The control side is gone, and with it the clock: the moment of the last state stands.
    pub(crate) fn lost(&self, reason: &str) {
        let mut log = lock(&self.log);
        let now_ms = log.current().since_ms;
        if !log.current().state.is_final() {
            log.enter(JobState::Failed, reason, now_ms);
        }
    }

    pub(crate) fn status(&self) -> Status {
        lock(&self.log).current().clone()
    }

    pub(crate) fn history(&self) -> Vec<Status> {
        lock(&self.log).entries().to_vec()
    }

    pub(crate) fn set_tasks(&self, tasks: Vec<Arc<TaskStats>>) {
        *lock(&self.tasks) = tasks;
    }

    pub(crate) fn readings(&self) -> Vec<TaskReading> {
        lock(&self.tasks).iter().map(|t| t.reading()).collect()
    }

    /// Who is still there and what each is doing: what holds a drain or a cancel.
    pub(crate) fn holding(&self) -> String {
        let alive: Vec<String> = (self.readings().iter())
            .filter(|r| r.activity.0 != Activity::Exited)
            .map(|r| format!("{} {} for {:.1?}", r.task, r.activity.0, r.activity.1))
            .collect();
        if alive.is_empty() { "nothing: every task has exited".into() } else { alive.join(", ") }
    }

    pub(crate) fn close(&self, result: Result<JobReport, JobError>) {
        self.result.open(result);
    }

    pub(crate) fn result(&self) -> &Latch<Result<JobReport, JobError>> {
        &self.result
    }
}
