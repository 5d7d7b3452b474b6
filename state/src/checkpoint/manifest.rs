//! The manifest: what a checkpoint or savepoint consists of, as readable JSON that is refused rather than guessed at.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::names::CheckpointKey;
use crate::store::{Items, PartFormat, TableMeta};

/// The format that this build writes and reads.
pub const MANIFEST_FORMAT: u32 = 1;

/// What a checkpoint or savepoint consists of. Written last, when all files it names are there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`MANIFEST_FORMAT`].
    pub format: u32,
    /// The job's name, as the user wrote it.
    pub job: String,
    /// Which line of runs this belongs to: a fresh start begins a new one, a restart goes on with that of the checkpoint it
    /// restored.
    pub lineage: String,
    /// The number of the checkpoint within the job.
    pub id: u64,
    /// The lease epoch it was published under; publishing fills it in.
    pub epoch: u64,
    /// A checkpoint or a savepoint.
    pub kind: Kind,
    /// The attempt of the job that took it.
    pub attempt: u64,
    /// How many key groups the job's keys are spread over.
    pub key_groups: u16,
    /// When it was triggered, in milliseconds since the Unix epoch.
    pub triggered_ms: i64,
    /// When its last part was there, in milliseconds since the Unix epoch.
    pub completed_ms: i64,
    /// What the checkpoint promises.
    pub mode: Mode,
    /// The state of each operator, in the plan's order.
    pub operators: Vec<OperatorState>,
}

impl Manifest {
    /// The id and the lease epoch.
    pub fn key(&self) -> CheckpointKey {
        CheckpointKey { id: self.id, epoch: self.epoch }
    }

    /// The state of an operator.
    pub fn operator(&self, uid: &str) -> Option<&OperatorState> {
        self.operators.iter().find(|operator| operator.uid == uid)
    }

    /// Every file it names, in order.
    pub fn files(&self) -> impl Iterator<Item = &StoredFile> {
        self.operators.iter().flat_map(|operator| &operator.parts).flat_map(|part| &part.files)
    }

    /// The bytes of all files it names: what a restore on an empty machine reads.
    pub fn bytes(&self) -> u64 {
        self.files().map(|file| file.bytes).sum()
    }
}

/// Whether the engine took it by itself and deletes it again, or somebody asked for it and keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Taken by the engine; shares files with others; deleted when newer ones are there.
    Checkpoint,
    /// Asked for by somebody; has all its files in its own folder; never deleted.
    Savepoint,
}

/// What a checkpoint promises of records between it and a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Barriers were aligned: each record is in the state once.
    ExactlyOnce,
    /// Barriers were not aligned: a record may be in the state twice.
    AtLeastOnce,
}

/// The state of one operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperatorState {
    /// Its uid.
    pub uid: String,
    /// What kind of operator it is, for people: `source`, `window`, …
    pub kind: String,
    /// How many subtasks it ran with.
    pub parallelism: usize,
    /// The state of each subtask.
    pub parts: Vec<Part>,
}

/// The state of one subtask of an operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Which subtask wrote it.
    pub subtask: usize,
    /// The key groups it owned.
    pub key_groups: Range<u16>,
    /// What the files are.
    pub format: PartFormat,
    /// The tables in the files.
    pub tables: Vec<TableMeta>,
    /// Small state kept in the manifest itself, such as source offsets and sink commits: list, key, value.
    pub items: Items,
    /// The files.
    pub files: Vec<StoredFile>,
    /// The subtask had come to its end: a restore need not run it again.
    pub finished: bool,
}

impl Part {
    /// The bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// A file of a part, where the storage has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFile {
    /// Its name in the local folder it came from and goes back to.
    pub name: String,
    /// Its place, relative to the job's folder for a checkpoint and to the savepoint's folder for a savepoint.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// xxh3-128 of its content, 32 hexadecimal digits.
    pub checksum: String,
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
