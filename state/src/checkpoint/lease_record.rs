//! What the file of a lease says, and whether it lets somebody else take the job over.

use serde::{Deserialize, Serialize};

use super::clock::utc;
use super::error::CheckpointError;
use super::incremental::Fence;
use super::process::{Liveness, ProcessId, living};

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
