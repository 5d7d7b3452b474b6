//! The record that every attempt at a checkpoint leaves, failed ones too: who took how long in which phase, and why it ended.

use serde::{Deserialize, Serialize};

use super::error::Result;
use super::manifest::{Kind, Mode};
use super::names::{self, ATTEMPTS, CheckpointKey};
use super::progress::FileProgress;
use super::store::CheckpointStore;
use super::upload::FileReport;

const FORMAT: u32 = 1;
const FIX: &str = "delete it";

/// One attempt at a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// [`AttemptRecord::FORMAT`].
    pub format: u32,
    /// The checkpoint's number.
    pub id: u64,
    /// The lease epoch it was taken under.
    pub epoch: u64,
    /// The attempt of the job.
    pub attempt: u64,
    /// Checkpoint or savepoint.
    pub kind: Kind,
    /// What it promises.
    pub mode: Mode,
    /// When it was triggered, in milliseconds since the Unix epoch.
    pub triggered_ms: i64,
    /// When it ended.
    pub ended_ms: i64,
    /// How it ended.
    pub outcome: Outcome,
    /// How long each phase took, from its first task's beginning to its last task's end.
    pub phases: Phases,
    /// What each task did.
    pub tasks: Vec<TaskRecord>,
}

impl AttemptRecord {
    /// The format that this build writes and reads.
    pub const FORMAT: u32 = FORMAT;

    /// The bytes of all state.
    pub fn full_bytes(&self) -> u64 {
        self.tasks.iter().map(|task| task.full_bytes).sum()
    }

    /// The bytes that were uploaded.
    pub fn uploaded_bytes(&self) -> u64 {
        self.tasks.iter().map(|task| task.uploaded_bytes).sum()
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome", content = "why")]
pub enum Outcome {
    /// Published.
    Completed,
    /// The storage failed.
    Failed(String),
    /// It took longer than allowed; says what was still missing.
    Expired(String),
    /// A task could not take its part; says which, and why.
    Declined(String),
    /// The job stopped or restarted meanwhile.
    Aborted(String),
}

/// Durations in milliseconds; absent for what was not reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// From the coordinator's word to the barrier's leaving the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_ms: Option<u64>,
    /// From the first input's barrier to the last one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub align_ms: Option<u64>,
    /// While the task's data loop stood still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze_ms: Option<u64>,
    /// Writing out and uploading, beside the data loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_ms: Option<u64>,
    /// Writing the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_ms: Option<u64>,
}

/// What one task did for a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// The operator, or the first of its chain.
    pub uid: String,
    /// The subtask.
    pub subtask: usize,
    /// Its phases.
    pub phases: Phases,
    /// The bytes of its state.
    pub full_bytes: u64,
    /// The bytes of it that were uploaded.
    pub uploaded_bytes: u64,
    /// The files that took longest, longest first.
    pub slowest: Vec<FileReport>,
    /// The files that were not through when the attempt ended, the one longest in its phase first.
    pub unfinished: Vec<FileProgress>,
    /// Why it declined, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declined: Option<String>,
    /// The inputs whose barrier had not come.
    pub missing: Vec<MissingChannel>,
}

impl TaskRecord {
    /// Keeps the `n` files of a report that took longest, longest first.
    pub fn keep_slowest(&mut self, mut files: Vec<FileReport>, n: usize) {
        files.sort_by_key(|file| std::cmp::Reverse(file.queue_ms + file.upload_ms));
        files.truncate(n);
        self.slowest = files;
    }
}

/// An input whose barrier had not come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingChannel {
    /// The producer: operator and subtask.
    pub from: String,
    /// How long the task had been waiting for it, in milliseconds.
    pub waited_ms: u64,
}

impl CheckpointStore {
    /// Writes down an attempt, and deletes the oldest records beyond the number kept.
    ///
    /// # Errors
    /// When the storage fails.
    pub async fn record_attempt(&self, record: &AttemptRecord) -> Result<()> {
        let key = CheckpointKey { id: record.id, epoch: record.epoch };
        self.0.storage.put_document(&names::attempt_path(key), record).await?;
        let mut keys = self.attempt_keys().await?;
        keys.truncate(keys.len().saturating_sub(self.0.options.records.max(1)));
        self.0.storage.delete(keys.into_iter().map(names::attempt_path).collect()).await
    }

    /// The newest attempts, newest first, at most `n`.
    ///
    /// # Errors
    /// When the storage fails or a record cannot be read.
    pub async fn attempts(&self, n: usize) -> Result<Vec<AttemptRecord>> {
        let keys = self.attempt_keys().await?;
        let mut records = Vec::new();
        for key in keys.into_iter().rev().take(n) {
            // It may have been deleted since.
            records.extend(self.attempt(key).await?);
        }
        Ok(records)
    }

    /// The record of one; `None` if it was deleted.
    pub(crate) async fn attempt(&self, key: CheckpointKey) -> Result<Option<AttemptRecord>> {
        self.0.storage.document(&names::attempt_path(key), FORMAT, FIX).await
    }

    /// Oldest first.
    pub(crate) async fn attempt_keys(&self) -> Result<Vec<CheckpointKey>> {
        let names = self.0.storage.names(ATTEMPTS).await?;
        Ok(names.iter().filter_map(|name| CheckpointKey::parse(name)).collect())
    }
}
