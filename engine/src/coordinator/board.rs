//! What anyone may read about a job while it runs: its states, its tasks' counts, and in the end its result.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use weir_state::checkpoint::AttemptRecord;

use super::draft::{CheckpointInFlight, Draft};
use super::health::{CheckpointAge, Health, Watched};
use crate::checkpoint::{Checkpoints, Storage};
use crate::ids::CheckpointId;
use crate::job::{JobError, JobReport};
use crate::memory::MemoryBudget;
use crate::plan::Plan;
use crate::runtime::latch::Latch;
use crate::runtime::stats::{Activity, Committed, TaskReading, TaskStats};
use crate::state::{JobState, StateLog, Status};

/// How many past checkpoints are shown.
const RECORDS: usize = 100;

pub(crate) struct Board {
    plan: Plan,
    memory: MemoryBudget,
    log: Mutex<StateLog>,
    tasks: Mutex<Vec<Arc<TaskStats>>>,
    checkpoints: Mutex<VecDeque<AttemptRecord>>,
    drafts: Mutex<BTreeMap<CheckpointId, Draft>>,
    /// Where its files go; gone with the job.
    storage: Mutex<Weak<Storage>>,
    watched: Mutex<Option<Watched>>,
    result: Latch<Result<JobReport, JobError>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    pub(crate) fn new(plan: Plan, memory: MemoryBudget, now_ms: i64) -> Self {
        let mut log = StateLog::new(now_ms);
        log.enter(JobState::Planned, "checked", now_ms);
        Board {
            plan,
            memory,
            log: Mutex::new(log),
            tasks: Mutex::default(),
            checkpoints: Mutex::default(),
            drafts: Mutex::default(),
            storage: Mutex::default(),
            watched: Mutex::default(),
            result: Latch::new(),
        }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn memory(&self) -> &MemoryBudget {
        &self.memory
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

    /// What one task counts about itself.
    pub(crate) fn reading(&self, index: usize) -> Option<TaskReading> {
        lock(&self.tasks).get(index).map(|t| t.reading())
    }

    pub(crate) fn readings(&self) -> Vec<TaskReading> {
        lock(&self.tasks).iter().map(|t| t.reading()).collect()
    }

    /// The job takes checkpoints, from now on.
    pub(super) fn watch_checkpoints(&self, config: &Checkpoints) {
        *lock(&self.watched) = Some(Watched::new(config, Instant::now()));
    }

    pub(super) fn checkpoint_completed(&self, id: CheckpointId) {
        lock(&self.watched).iter_mut().for_each(|w| w.completed(id, Instant::now()));
    }

    pub(super) fn checkpoint_failures(&self, in_a_row: u32) {
        lock(&self.watched).iter_mut().for_each(|w| w.failed(in_a_row));
    }

    /// One did not complete, while records flow.
    pub(super) fn checkpoint_lost(&self, id: CheckpointId, why: &str) {
        lock(&self.watched).iter_mut().for_each(|w| w.lost(id, why));
    }

    /// How old the last complete checkpoint is, if the job takes any.
    pub(crate) fn checkpoint_age(&self) -> Option<CheckpointAge> {
        lock(&self.watched).as_ref().map(|w| w.at(Instant::now()))
    }

    pub(crate) fn health(&self) -> Health {
        Health::of(&self.plan.job, self.status(), self.checkpoint_age())
    }

    /// Who is still there and what each is doing: what holds a drain or a cancel.
    pub(crate) fn holding(&self) -> String {
        let alive: Vec<String> = (self.readings().iter())
            .filter(|r| r.activity.0 != Activity::Exited)
            .map(|r| format!("{} {} for {:.1?}", r.task, r.activity.0, r.activity.1))
            .collect();
        if alive.is_empty() { "nothing: every task has exited".into() } else { alive.join(", ") }
    }

    /// What is known of the checkpoints in flight: one, and a savepoint beside it.
    pub(super) fn drafts<R>(&self, with: impl FnOnce(&mut BTreeMap<CheckpointId, Draft>) -> R) -> R {
        with(&mut lock(&self.drafts))
    }

    /// The job's checkpoints go there.
    pub(super) fn watch_storage(&self, storage: &Arc<Storage>) {
        *lock(&self.storage) = Arc::downgrade(storage);
    }

    /// The checkpoints in flight, as they stand.
    pub(crate) fn in_flight(&self) -> Vec<CheckpointInFlight> {
        let (readings, storage) = (self.readings(), lock(&self.storage).upgrade());
        let drafts = lock(&self.drafts);
        let in_flight = drafts.iter().map(|(id, draft)| {
            let files = storage.as_ref().map(|storage| storage.files(*id)).unwrap_or_default();
            let (unfrozen, unwritten) = draft.waits_for();
            let waits_for = self.waited_for(&unfrozen, &unwritten);
            draft.in_flight(&readings, files, waits_for, Instant::now())
        });
        in_flight.collect()
    }

    /// What the sinks that are there have committed, and when.
    pub(super) fn commits(&self) -> Vec<(Committed, Instant)> {
        lock(&self.tasks).iter().filter_map(|task| task.last_commit()).collect()
    }

    /// Changes the record of a checkpoint that is over, if it is still shown; gives it.
    pub(super) fn amend(
        &self,
        id: CheckpointId,
        with: impl FnOnce(&mut AttemptRecord),
    ) -> Option<AttemptRecord> {
        let mut records = lock(&self.checkpoints);
        let record = records.iter_mut().rfind(|record| record.id == id.0)?;
        with(record);
        Some(record.clone())
    }

    /// A checkpoint is over, complete or not.
    pub(crate) fn add_checkpoint(&self, record: AttemptRecord) {
        let mut records = lock(&self.checkpoints);
        if records.len() == RECORDS {
            records.pop_front();
        }
        records.push_back(record);
    }

    pub(crate) fn checkpoints(&self) -> Vec<AttemptRecord> {
        lock(&self.checkpoints).iter().cloned().collect()
    }

    /// The tasks that a checkpoint waits for: those that have not frozen, with what each is doing, and those still writing.
    pub(crate) fn waited_for(&self, unfrozen: &[usize], unwritten: &[usize]) -> String {
        let readings = self.readings();
        let frozen = unfrozen.iter().filter_map(|i| readings.get(*i)).map(|r| {
            let missing = if r.aligning.is_empty() {
                String::new()
            } else {
                format!(", barrier missing from {}", r.aligning.join(" and "))
            };
            format!("{} ({} for {:.1?}{missing})", r.task, r.activity.0, r.activity.1)
        });
        let written =
            unwritten.iter().filter_map(|i| readings.get(*i)).map(|r| format!("{} (writing)", r.task));
        frozen.chain(written).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn close(&self, result: Result<JobReport, JobError>) {
        lock(&self.drafts).clear();
        self.result.open(result);
    }

    pub(crate) fn result(&self) -> &Latch<Result<JobReport, JobError>> {
        &self.result
    }
}
