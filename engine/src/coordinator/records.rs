//! The coordinator's side of the records of checkpoints: begun at the trigger, closed whatever becomes of them, and told of while they last.

use std::time::Instant;

use actix::Context;
use weir_state::checkpoint::{
    Acknowledged, AttemptRecord, FileProgress, Kind, Mode, Outcome as Ended, Phases,
};

use super::Coordinator;
use super::checkpoint::{Checkpoints as Machine, Lost, Purpose};
use super::draft::{Draft, add_commits, said};
use crate::checkpoint::Froze;
use crate::element::Barrier;
use crate::error::TaskError;
use crate::ids::CheckpointId;
use crate::metrics;

/// The phases of checkpoints are logged with this target, at debug.
pub(super) const TARGET: &str = "checkpoint";
/// A record in storage is written again for a commit that took so long: it lies there by then.
const COMMIT_KEPT_MS: u64 = 1_000;

impl Coordinator {
    /// A checkpoint is triggered.
    pub(super) fn begin_record(&mut self, id: CheckpointId, purpose: &Purpose, epoch: u64) {
        let now_ms = self.life.clock.now_ms();
        let record = AttemptRecord {
            format: AttemptRecord::FORMAT,
            id: id.0,
            epoch,
            attempt: u64::from(self.attempt_id.0),
            kind: if purpose.savepoint().is_some() { Kind::Savepoint } else { Kind::Checkpoint },
            mode: Mode::ExactlyOnce,
            triggered_ms: now_ms,
            ended_ms: now_ms,
            outcome: Ended::Aborted(String::new()),
            phases: Phases::default(),
            acknowledged: Acknowledged::default(),
            tasks: Vec::new(),
        };
        let machine = self.keeper.as_ref().and_then(|keeper| keeper.machine.as_ref());
        let ended = machine.map(Machine::ended_tasks).unwrap_or_default();
        let draft = Draft::new(&self.plan, record, ended, Instant::now());
        self.board.drafts(|drafts| drafts.insert(id, draft));
    }

    /// What is known of one in flight.
    pub(super) fn of_draft(&self, id: CheckpointId, with: impl FnOnce(&mut Draft)) {
        self.board.drafts(|drafts| {
            if let Some(draft) = drafts.get_mut(&id) {
                with(draft);
            }
        });
    }

    /// A task has frozen, for one in flight or for the last time.
    pub(super) fn froze_record(&self, index: usize, barrier: Barrier, froze: Froze) {
        if barrier == Barrier::LAST {
            return self.board.drafts(|drafts| drafts.values_mut().for_each(|draft| draft.ended(index)));
        }
        self.of_draft(barrier.checkpoint, |draft| {
            draft.froze(index, froze);
            let at = barrier.checkpoint;
            tracing::debug!(target: TARGET, checkpoint = %at, task = %draft.task(index), "froze: {}", draft.said(index));
        });
    }

    /// The attempt at a checkpoint is over: its record is shown, and kept beside the checkpoints. Then who asked for it hears of it.
    pub(super) fn close_record(
        &mut self,
        id: CheckpointId,
        outcome: Ended,
        files: Vec<FileProgress>,
        answer: &Result<String, String>,
    ) {
        let (now, now_ms) = (Instant::now(), self.life.clock.now_ms());
        let draft = self.board.drafts(|drafts| drafts.remove(&id));
        let Some(keeper) = &mut self.keeper else { return };
        let asked = keeper.making.remove(&id).unwrap_or_default();
        let Some(draft) = draft else { return };
        let record = draft.close(outcome, &self.board.readings(), files, now, now_ms);
        tracing::debug!(
            target: TARGET, job = %self.plan.job, checkpoint = record.id, outcome = ?record.outcome,
            bytes = record.full_bytes(), uploaded = record.uploaded_bytes(), "took {} ms: {}",
            record.ended_ms - record.triggered_ms, said(&record.phases)
        );
        metrics::checkpoints::over(&self.plan.job, &record);
        self.board.add_checkpoint(record.clone());
        if let Some(storage) = &keeper.storage {
            storage.keep_record(record);
        }
        asked.into_iter().for_each(|asked| asked.open(answer.clone()));
    }

    /// What the record says of one that did not complete, and that in words.
    pub(super) fn ended(&self, lost: &Lost, files: &[FileProgress]) -> (Ended, String) {
        match lost {
            Lost::Failed(reason) => (Ended::Failed(reason.clone()), reason.clone()),
            Lost::Declined(reason) => (Ended::Declined(reason.clone()), reason.clone()),
            Lost::Expired { unfrozen, unwritten } => {
                let mut waits = vec![self.board.waited_for(unfrozen, unwritten)];
                let uploading = files.iter().filter(|file| !file.phase.is_over());
                let longest = uploading.max_by_key(|file| file.phase_ms);
                waits.extend(longest.map(|file| format!("longest: {file}")));
                let timeout = self.keeper.as_ref().map(|keeper| keeper.config.timeout).unwrap_or_default();
                let why = format!("it took longer than {timeout:?}, waiting for {}", waits.join("; "));
                (Ended::Expired(why.clone()), why)
            }
            Lost::Attempt => {
                let why = self.keeper.as_ref().map(|keeper| keeper.over_for.clone()).unwrap_or_default();
                (Ended::Aborted(why.clone()), why)
            }
        }
    }

    /// A task has exited with an error: if that was in its part of one in flight, it has declined that.
    pub(super) fn checkpoint_declined(&mut self, cx: &mut Context<Self>, index: usize, error: &TaskError) {
        let Some(id) = error.declines() else { return };
        let Some(task) = self.board.reading(index).map(|r| r.task) else { return };
        let (uid, subtask) = (error.uid().unwrap_or(&task.chain), task.subtask);
        let reason = format!("{uid}[{subtask}]: {}", error.chain());
        self.of_draft(id, |draft| draft.declined(index, &reason));
        self.with_machine(cx, |machine, now| machine.declined(id, reason, now));
    }

    /// Says in the record of the last complete one how long its sinks took to commit, once all have.
    pub(super) fn look_at_commits(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        let Some((id, since)) = keeper.committing else { return };
        let commits = self.board.commits();
        if commits.iter().any(|(sink, _)| sink.checkpoint < Some(id)) {
            return;
        }
        keeper.committing = None;
        let Some(record) = self.board.amend(id, |record| add_commits(record, since, &commits)) else {
            return;
        };
        let Some(ms) = record.phases.commit_ms else { return };
        tracing::debug!(target: TARGET, job = %self.plan.job, checkpoint = %id, "sinks have committed in {ms} ms");
        metrics::checkpoints::phase(&self.plan.job, "commit", ms);
        if ms >= COMMIT_KEPT_MS
            && let Some(storage) = &keeper.storage
        {
            storage.keep_record(record);
        }
    }
}
