//! The attempt at a checkpoint that is in flight: what each task has done for it, and the record that comes of that. Pure: time is told to it.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use serde::Serialize;
use weir_state::checkpoint::{
    Acknowledged, AttemptRecord, FileProgress, Kind, MissingChannel, Outcome, Phases, TaskRecord, UploadPhase,
};

use super::checkpoints::TaskParts;
use crate::checkpoint::{Froze, Written};
use crate::ids::TaskId;
use crate::plan::Plan;
use crate::runtime::stats::{Committed, TaskReading, as_millis};

/// How many files of a task the record names: of those that are through, and of those that are not.
const SLOWEST: usize = 5;
const UNFINISHED: usize = 20;

/// One task, as far as the checkpoint is concerned.
#[derive(Debug)]
struct Followed {
    task: TaskId,
    chain: usize,
    is_source: bool,
    /// It has frozen for the last time: no barrier reaches it.
    ended: bool,
    froze: Option<Froze>,
    parts: Option<TaskParts>,
    declined: Option<String>,
}

/// An attempt that is not over.
#[derive(Debug)]
pub(crate) struct Draft {
    record: AttemptRecord,
    began: Instant,
    /// When the sources were told.
    told: Option<Instant>,
    tasks: Vec<Followed>,
    /// By chain: its operators, and the tasks that are sources before it.
    chains: Vec<(Vec<String>, Vec<usize>)>,
    latest: Option<Instant>,
    publishing: Option<Instant>,
}

/// A checkpoint that is under way, as it stands. As JSON, times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CheckpointInFlight {
    /// Its number.
    pub id: u64,
    /// Checkpoint or savepoint.
    pub kind: Kind,
    /// When it was triggered, in milliseconds since the Unix epoch.
    pub triggered_ms: i64,
    /// For how long it has been under way.
    #[serde(rename = "lasts_ms", serialize_with = "as_millis")]
    pub lasts: Duration,
    /// How many tasks have their part in storage.
    pub acknowledged: Acknowledged,
    /// The others, in words: what each is doing, and whose barrier is missing.
    pub waits_for: String,
    /// The longest phases so far.
    pub phases: Phases,
    /// What each task has done so far.
    pub tasks: Vec<TaskRecord>,
}

/// Milliseconds from one moment to another, none if that is no later.
fn between(from: Instant, to: Instant) -> u64 {
    to.saturating_duration_since(from).as_millis() as u64
}

/// By chain: the chains that are sources and give to it, directly or through others.
fn sources_before(plan: &Plan) -> Vec<Vec<usize>> {
    let is_source = |c: usize| plan.chains[c].operators.first().is_some_and(|o| o.kind == "source");
    let mut before: Vec<Vec<usize>> = (0..plan.chains.len()).map(|c| vec![c]).collect();
    // Every chain before each: a plan has no cycles, so no way is longer than there are chains.
    for _ in 0..plan.chains.len() {
        let mut grew = false;
        for edge in &plan.edges {
            let new: Vec<usize> =
                before[edge.from].iter().copied().filter(|c| !before[edge.to].contains(c)).collect();
            grew |= !new.is_empty();
            before[edge.to].extend(new);
        }
        if !grew {
            break;
        }
    }
    before.iter_mut().for_each(|chains| chains.retain(|&c| is_source(c)));
    before
}

impl Draft {
    /// For a record that says what is attempted; `ended` are the tasks that have ended by now.
    pub(super) fn new(plan: &Plan, record: AttemptRecord, ended: &[bool], now: Instant) -> Self {
        let mut tasks = Vec::with_capacity(ended.len());
        for (chain, planned) in plan.chains.iter().enumerate() {
            let is_source = planned.operators.first().is_some_and(|o| o.kind == "source");
            for subtask in 0..planned.parallelism {
                let task = TaskId { chain: plan.first_uid(chain).into(), subtask };
                let ended = ended.get(tasks.len()).copied().unwrap_or(false);
                tasks.push(Followed {
                    task,
                    chain,
                    is_source,
                    ended,
                    froze: None,
                    parts: None,
                    declined: None,
                });
            }
        }
        let uids = |c: usize| plan.chains[c].operators.iter().map(|o| o.uid.clone()).collect::<Vec<_>>();
        let sources = |chains: Vec<usize>| {
            (0..tasks.len()).filter(|&i| chains.contains(&tasks[i].chain)).collect::<Vec<usize>>()
        };
        let before = sources_before(plan).into_iter().enumerate();
        let chains = before.map(|(c, before)| (uids(c), sources(before))).collect();
        Draft { record, began: now, told: None, tasks, chains, latest: None, publishing: None }
    }

    /// The barrier is on its way to the sources.
    pub(super) fn told(&mut self, now: Instant) {
        self.told = Some(now);
    }

    /// Task `i` has frozen.
    pub(super) fn froze(&mut self, i: usize, froze: Froze) {
        self.tasks.get_mut(i).into_iter().for_each(|task| task.froze = Some(froze));
    }

    /// Task `i` has frozen for the last time.
    pub(super) fn ended(&mut self, i: usize) {
        self.tasks.get_mut(i).into_iter().for_each(|task| task.ended = true);
    }

    /// Task `i` has its part in storage.
    pub(super) fn wrote(&mut self, i: usize, parts: &TaskParts, now: Instant) {
        if let Some(task) = self.tasks.get_mut(i).filter(|task| task.parts.is_none()) {
            task.parts = Some(parts.clone());
            self.latest = Some(now);
        }
    }

    /// Task `i` could not take its part.
    pub(super) fn declined(&mut self, i: usize, why: &str) {
        if let Some(task) = self.tasks.get_mut(i) {
            task.declined = Some(why.to_owned());
        }
    }

    /// Every part is in storage: the manifest is being written.
    pub(super) fn publishes(&mut self, now: Instant) {
        self.publishing = Some(now);
    }

    /// Task `i`, by name.
    pub(super) fn task(&self, i: usize) -> String {
        self.tasks.get(i).map(|t| t.task.to_string()).unwrap_or_default()
    }

    /// The phases of task `i`, in words.
    pub(super) fn said(&self, i: usize) -> String {
        if i < self.tasks.len() { said(&self.phases(i, None, Instant::now())) } else { String::new() }
    }

    /// Which checkpoint it is.
    pub(super) fn record(&self) -> &AttemptRecord {
        &self.record
    }

    /// The tasks that have not frozen, and those that have and whose part is not in storage.
    pub(super) fn waits_for(&self) -> (Vec<usize>, Vec<usize>) {
        let waiting = (0..self.tasks.len()).filter(|&i| self.tasks[i].parts.is_none());
        waiting.partition(|&i| self.tasks[i].froze.is_none() && !self.tasks[i].ended)
    }

    /// How it stands; whom it waits for is said by the caller.
    pub(super) fn in_flight(
        &self,
        readings: &[TaskReading],
        files: Vec<FileProgress>,
        waits_for: String,
        now: Instant,
    ) -> CheckpointInFlight {
        let AttemptRecord { id, kind, triggered_ms, acknowledged, phases, tasks, .. } =
            self.so_far(readings, files, now);
        let lasts = now.saturating_duration_since(self.began);
        CheckpointInFlight { id, kind, triggered_ms, lasts, acknowledged, waits_for, phases, tasks }
    }

    /// The attempt is over. `files` are those that were to be uploaded.
    pub(super) fn close(
        mut self,
        outcome: Outcome,
        readings: &[TaskReading],
        files: Vec<FileProgress>,
        now: Instant,
        now_ms: i64,
    ) -> AttemptRecord {
        self.record = self.so_far(readings, files, now);
        self.record.outcome = outcome;
        self.record.ended_ms = now_ms;
        self.record
    }

    /// What the record would say if the attempt ended now.
    pub(super) fn so_far(
        &self,
        readings: &[TaskReading],
        mut files: Vec<FileProgress>,
        now: Instant,
    ) -> AttemptRecord {
        // What the storage has refused is why others were not begun.
        let refused = |file: &FileProgress| file.phase == UploadPhase::Failed && file.error.is_some();
        files.sort_by_key(|file| (!refused(file), Reverse(file.phase_ms)));
        let mut record = self.record.clone();
        record.tasks.clear();
        for (i, task) in self.tasks.iter().enumerate() {
            let own = record.tasks.len();
            let phases = self.phases(i, readings.get(i), now);
            match &task.parts {
                Some(parts) => record.tasks.extend(parts.iter().map(written)),
                None => record.tasks.extend(self.unwritten(task, &files)),
            }
            if record.tasks.len() == own {
                let uid = task.task.chain.to_string();
                record.tasks.push(TaskRecord { uid, subtask: task.task.subtask, ..TaskRecord::default() });
            }
            for operator in &mut record.tasks[own..] {
                operator.phases = phases.clone().longest(&operator.phases);
            }
            // Of the task as a whole, which the first of its operators stands for.
            record.tasks[own].declined = task.declined.clone();
            if let Some(reading) = readings.get(i).filter(|_| task.froze.is_none() && !task.ended) {
                let waited_ms = reading.aligning_for.as_millis() as u64;
                let missing = |from: &String| MissingChannel { from: from.clone(), waited_ms };
                record.tasks[own].missing = reading.aligning.iter().map(missing).collect();
            }
        }
        let longest = |all: Phases, task: &TaskRecord| all.longest(&task.phases);
        record.phases = record.tasks.iter().fold(Phases::default(), longest);
        record.phases.publish_ms = self.publishing.map(|at| between(at, now));
        record.acknowledged = Acknowledged {
            tasks: self.tasks.iter().filter(|task| task.parts.is_some()).count(),
            of: self.tasks.len(),
            latest_ms: self.latest.map(|at| between(self.began, at)),
        };
        record
    }

    /// What a task has done whose part is not in storage, for each of its operators that has files under way.
    fn unwritten(&self, task: &Followed, files: &[FileProgress]) -> Vec<TaskRecord> {
        let mut records: Vec<TaskRecord> = Vec::new();
        let own = |file: &&FileProgress| {
            file.subtask == task.task.subtask && self.chains[task.chain].0.contains(&file.uid)
        };
        for file in files.iter().filter(own) {
            let at = records.iter().position(|record| record.uid == file.uid).unwrap_or_else(|| {
                let (uid, subtask) = (file.uid.clone(), file.subtask);
                records.push(TaskRecord { uid, subtask, ..TaskRecord::default() });
                records.len() - 1
            });
            records[at].uploaded_bytes += file.sent;
            if file.phase != UploadPhase::Done && records[at].unfinished.len() < UNFINISHED {
                records[at].unfinished.push(file.clone());
            }
        }
        records
    }

    /// The phases of a task up to its freeze.
    fn phases(&self, i: usize, reading: Option<&TaskReading>, now: Instant) -> Phases {
        let task = &self.tasks[i];
        let (froze, Some(told)) = (task.froze, self.told) else { return Phases::default() };
        if task.ended && froze.is_none() {
            return Phases::default();
        }
        let mut phases = Phases { freeze_ms: froze.map(|f| between(f.began, f.ended)), ..Phases::default() };
        if task.is_source {
            phases.trigger_ms = Some(between(told, froze.map_or(now, |f| f.came)));
            return phases;
        }
        // A source that is busy is not to show as delay or alignment of those behind it: it shows as its own trigger.
        let (mut left, mut all) = (told, true);
        for source in self.chains[task.chain].1.iter().map(|&s| &self.tasks[s]) {
            match source.froze {
                Some(froze) => left = left.max(froze.ended),
                None => all &= source.ended,
            }
        }
        let left = if all { left } else { now };
        let aligning = reading.filter(|r| !r.aligning.is_empty());
        let came = froze.map(|f| f.came).or_else(|| now.checked_sub(aligning?.aligning_for));
        phases.align_ms = came.map(|came| between(came.max(left), froze.map_or(now, |f| f.began)));
        phases.start_delay_ms = came.or(all.then_some(now)).map(|came| between(left, came));
        phases
    }
}

/// Adds to the record of a complete checkpoint when its sinks had committed, `since` being when they were told.
pub(super) fn add_commits(record: &mut AttemptRecord, since: Instant, commits: &[(Committed, Instant)]) {
    for (sink, at) in commits {
        let commit_ms = Some(between(since, *at));
        record.phases.commit_ms = record.phases.commit_ms.max(commit_ms);
        let of = |task: &&mut TaskRecord| task.uid == sink.uid.as_str() && task.subtask == sink.subtask;
        record.tasks.iter_mut().filter(of).for_each(|task| task.phases.commit_ms = commit_ms);
    }
}

/// Phases in words, for the log.
pub(super) fn said(phases: &Phases) -> String {
    phases.reached().map(|(name, ms)| format!("{name} {ms} ms")).collect::<Vec<_>>().join(", ")
}

/// What one operator of a task has in storage.
fn written(written: &Written) -> TaskRecord {
    let mut record = TaskRecord {
        uid: written.uid.to_string(),
        subtask: written.report.part.subtask,
        phases: Phases {
            write_ms: Some(written.written.as_millis() as u64),
            upload_ms: Some(written.report.upload_ms),
            ..Phases::default()
        },
        full_bytes: written.report.bytes,
        uploaded_bytes: written.report.uploaded_bytes,
        ..TaskRecord::default()
    };
    record.keep_slowest(written.report.files.clone(), SLOWEST);
    record
}

#[cfg(test)]
#[path = "draft_tests.rs"]
mod tests;
