//! What the file of a lease says, and whether it lets somebody else take the job over.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::clock::utc;
use super::error::CheckpointError;
use super::incremental::Fence;
use super::process::{Liveness, ProcessId, living};
use super::reached::{BegunFrom, Reached};

pub(crate) const FORMAT: u32 = 1;

/// What the file of a lease says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    pub(crate) format: u32,
    /// The job.
    pub job: String,
    /// The epoch: each owner's is greater than the one before.
    pub epoch: u64,
    /// Who took it, as it called itself.
    pub owner: String,
    /// The owner's process.
    pub process: ProcessId,
    /// Tells this lease from any other of the same process.
    pub(crate) nonce: String,
    /// When it was taken, by the owner's clock, in milliseconds since the Unix epoch.
    pub acquired_ms: i64,
    /// When it was last renewed.
    pub renewed_ms: i64,
    /// How long it is good without being renewed.
    pub ttl_ms: u64,
    /// Its owner stopped as it should.
    pub released: bool,
    /// What earlier owners' manifests count for.
    pub(crate) fences: Vec<Fence>,
    /// Which of earlier owners' savepoints count; absent when an earlier version took the lease: then all do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) saved: Option<SavedBefore>,
    /// The newest one that sinks have committed or a life began from, as far as its owners have said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<Reached>,
    /// What the last owner that began the job began it from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<BegunFrom>,
}

/// Which savepoints of the epochs before one count: those that were there when it was taken. A later one was completed by a process
/// that had lost the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedBefore {
    /// The epoch that was taken.
    pub(crate) epoch: u64,
    /// Their folders' names.
    pub(crate) segments: BTreeSet<String>,
}

impl SavedBefore {
    /// Whether the savepoint in this folder, of this epoch, counts.
    pub(crate) fn counts(&self, segment: &str, epoch: u64) -> bool {
        epoch >= self.epoch || self.segments.contains(segment)
    }
}

impl LeaseRecord {
    /// Who has it, for a message.
    pub fn holder(&self) -> String {
        format!("'{}' (process {} on {})", self.owner, self.process.pid, self.process.host)
    }

    /// Whether somebody else may take the job over, by this process's clock and what it can see.
    pub(crate) fn judge(&self, here: &ProcessId, now_ms: i64) -> Verdict {
        if self.released {
            return Verdict::Free;
        }
        let liveness = match self.process.liveness(here) {
            // This very process: a lease that was dropped is dead, though the process is not.
            Liveness::Alive if self.process == *here && !living().contains(&self.nonce) => Liveness::Dead,
            liveness => liveness,
        };
        if liveness == Liveness::Dead {
            return Verdict::Dead;
        }
        let ttl = i64::try_from(self.ttl_ms).unwrap_or(i64::MAX);
        let silent = now_ms.saturating_sub(self.renewed_ms);
        // A time far ahead is a clock gone wrong, here or there.
        match silent >= ttl || silent < ttl.saturating_neg() {
            true => Verdict::Silent,
            false => Verdict::Held { wait_ms: ttl - silent },
        }
    }

    pub(crate) fn held(&self, wait_ms: i64) -> CheckpointError {
        CheckpointError::Held {
            job: self.job.clone(),
            holder: self.holder(),
            since: utc(self.acquired_ms),
            heard: utc(self.renewed_ms),
            wait_s: wait_ms.max(0).cast_unsigned().div_ceil(1000),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nobody has it.
    Free,
    /// Its owner is gone for certain.
    Dead,
    /// Its owner has not been heard of for too long, if the clocks agree.
    Silent,
    /// Its owner was heard of lately.
    Held { wait_ms: i64 },
}
