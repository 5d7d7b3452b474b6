//! How far a job is known to have come, by what lies beside the manifests: a newest manifest that is gone is noticed, not passed over.

use serde::{Deserialize, Serialize};

use super::attempts::Outcome;
use super::error::{CheckpointError, Result};
use super::lease::{self, Lease};
use super::manifest::Kind;
use super::store::CheckpointStore;

/// A checkpoint or savepoint that sinks have committed, or that a life began from: to begin from an older one shows again what came
/// after that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// Its number.
    pub id: u64,
    /// The savepoint, by name or place, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub savepoint: Option<String>,
}

/// What the last process of a job began from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BegunFrom {
    /// Nothing, when it began anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Reached>,
    /// Checkpoints from this number on are its own. As long as there is none, the next process begins from the same: sinks have thrown
    /// away by then what only others name.
    pub next: u64,
}

impl std::fmt::Display for Reached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.savepoint {
            Some(savepoint) => write!(f, "savepoint '{savepoint}' (checkpoint {})", self.id),
            None => write!(f, "checkpoint {}", self.id),
        }
    }
}

impl CheckpointStore {
    /// A number greater than that of any checkpoint or savepoint there is or is known to have been, including those that do not
    /// count and attempts that failed. Savepoints that cannot be read are passed over.
    ///
    /// # Errors
    /// When the storage fails.
    pub async fn next_id(&self) -> Result<u64> {
        let mut last = self.listed().await?.last().map_or(0, |key| key.id);
        last = last.max(self.attempt_keys().await?.last().map_or(0, |key| key.id));
        last = last.max(lease::greatest_id(&self.0.storage).await?);
        Ok(last.max(self.last_savepoint_id().await?) + 1)
    }

    /// The newest checkpoint after number `id` that is known to have been complete: by the lease, and by the records of attempts.
    /// When the newest one that is there has number `id`, this one is gone.
    ///
    /// # Errors
    /// When the storage fails.
    pub async fn reached_after(&self, id: u64, lease: &Lease) -> Result<Option<Reached>> {
        let mut newest = lease.record().reached.filter(|reached| reached.id > id);
        let after = newest.as_ref().map_or(id, |reached| reached.id);
        for key in self.attempt_keys().await?.into_iter().rev().take_while(|key| key.id > after) {
            match self.attempt(key).await {
                Ok(Some(record))
                    if record.kind == Kind::Checkpoint && record.outcome == Outcome::Completed =>
                {
                    newest = Some(Reached { id: key.id, savepoint: None });
                    break;
                }
                Ok(_) => {}
                Err(error @ (CheckpointError::Unreadable { .. } | CheckpointError::UnknownFormat { .. })) => {
                    tracing::warn!(%error, "the record of an attempt is passed over");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(newest)
    }
}
