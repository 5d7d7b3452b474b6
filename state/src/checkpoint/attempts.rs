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
    /// The longest that any task took for each phase; publishing and committing are the whole attempt's.
    pub phases: Phases,
    /// How many tasks had their parts in storage.
    #[serde(default)]
    pub acknowledged: Acknowledged,
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

/// How many tasks had their parts in storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    /// So many.
    pub tasks: usize,
    /// Of so many.
    pub of: usize,
    /// When the latest of them had, in milliseconds after the trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_ms: Option<u64>,
}

/// Durations in milliseconds; absent for what was not reached. How far a phase had got that was under way when the attempt
/// ended is told of triggering, start delay and alignment; of an upload, the files say it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// Sources only: from the coordinator's word until the source took it up, between two of its batches. A source in the
    /// middle of a long call shows here and nowhere else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_ms: Option<u64>,
    /// Tasks with inputs: from when the sources before it had let the barrier go until it first came here. It lay behind
    /// records all that time: that is backpressure, or one long call on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_delay_ms: Option<u64>,
    /// Tasks with inputs: from the first input's barrier to the last one's, from when the sources before it had let theirs go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub align_ms: Option<u64>,
    /// While the task's data loop stood still to set aside what its operators remember, and for what its sink flushes and
    /// prepares. Handing the barrier on is not in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze_ms: Option<u64>,
    /// Beside the data loop: from the freeze until what was set aside lay in local files, waiting for its turn included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_ms: Option<u64>,
    /// Beside the data loop: uploading these files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_ms: Option<u64>,
    /// Writing the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_ms: Option<u64>,
    /// From the manifest's being there until the sinks had committed their parts; in a sink's task, until it had. A savepoint
    /// beside a running job is not committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit_ms: Option<u64>,
}

impl Phases {
    /// The longer one of each.
    #[must_use]
    pub fn longest(self, other: &Phases) -> Phases {
        Phases {
            trigger_ms: self.trigger_ms.max(other.trigger_ms),
            start_delay_ms: self.start_delay_ms.max(other.start_delay_ms),
            align_ms: self.align_ms.max(other.align_ms),
            freeze_ms: self.freeze_ms.max(other.freeze_ms),
            write_ms: self.write_ms.max(other.write_ms),
            upload_ms: self.upload_ms.max(other.upload_ms),
            publish_ms: self.publish_ms.max(other.publish_ms),
            commit_ms: self.commit_ms.max(other.commit_ms),
        }
    }

    /// Each phase that was reached, in the order in which they follow each other: its name, and its milliseconds.
    pub fn reached(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [
            ("trigger", self.trigger_ms),
            ("start_delay", self.start_delay_ms),
            ("align", self.align_ms),
            ("freeze", self.freeze_ms),
            ("write", self.write_ms),
            ("upload", self.upload_ms),
            ("publish", self.publish_ms),
            ("commit", self.commit_ms),
        ];
        all.into_iter().filter_map(|(name, ms)| Some((name, ms?)))
    }
}

/// What one task did for a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// The operator, or the first of its chain.
    pub uid: String,
    /// The subtask.
    pub subtask: usize,
    /// Its phases: those up to the freeze are its task's, and the same for all operators of one.
    pub phases: Phases,
    /// The bytes of its state; 0 when its part was not in storage by the end.
    pub full_bytes: u64,
    /// The bytes of it that were uploaded, until the end if its part was not in storage by then.
    pub uploaded_bytes: u64,
    /// The files that took longest, longest first.
    pub slowest: Vec<FileReport>,
    /// The files that were not through when the attempt ended, at most twenty: those that the storage refused first, then the
    /// one longest in its phase.
    pub unfinished: Vec<FileProgress>,
    /// Why it declined, if it did: a snapshot or a prepare of its own that failed.
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
    /// How long it had been the one that others waited for, in milliseconds: since the barrier came on the first of them.
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
