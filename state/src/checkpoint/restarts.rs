//! How often a job's process died: kept in its storage across processes, so that a job that dies at every start stops starting.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::clock::{span, utc};
use super::error::Result;
use super::lease::{Lease, LeaseRecord};
use super::names::RESTARTS;
use super::store::CheckpointStore;

const FORMAT: u32 = 1;
const FIX: &str = "reset the restart history";
/// Older ones are forgotten.
const KEPT: usize = 100;

/// A start that followed the death of the process before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// When the new process found out, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// Who had died.
    pub died: String,
    /// When that one had started, in milliseconds since the Unix epoch.
    pub started_ms: i64,
    /// When it was last heard of.
    pub heard_ms: i64,
}

/// Why a job is not started: its process died too often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooManyRestarts {
    /// The job.
    pub job: String,
    /// The starts that count, oldest first.
    pub restarts: Vec<Restart>,
    /// How many are allowed.
    pub limit: usize,
    /// Within what time.
    pub within: Duration,
    /// How long until one is allowed again, in milliseconds.
    pub wait_ms: i64,
}

impl std::error::Error for TooManyRestarts {}

impl fmt::Display for TooManyRestarts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, restarts, limit, within, wait_ms } = self;
        let within = i64::try_from(within.as_millis()).unwrap_or(i64::MAX);
        write!(
            f,
            "job '{job}' is not started: its process died {} times within {} (limit {limit})",
            restarts.len(),
            span(within)
        )?;
        for (i, restart) in restarts.iter().rev().take(5).enumerate() {
            let (before, died) = (if i == 0 { ", last " } else { ", " }, &restart.died);
            let lived = span(restart.heard_ms.saturating_sub(restart.started_ms));
            write!(f, "{before}found at {}: {died} after at least {lived}", utc(restart.at_ms))?;
        }
        let wait = span(wait_ms.saturating_add(999));
        write!(
            f,
            "; find out from its logs why it dies, then reset the restart history to start it at once, or wait {wait}"
        )
    }
}

/// Decides whether a job may start now, given the starts that followed a death: fewer than `limit` of them within the last
/// `within`. Times that lie further ahead than that are a clock gone wrong and do not count.
///
/// # Errors
/// Names the times, and how long to wait.
pub fn allow(
    job: &str,
    now_ms: i64,
    restarts: &[Restart],
    limit: usize,
    within: Duration,
) -> Result<(), TooManyRestarts> {
    let span_ms = i64::try_from(within.as_millis()).unwrap_or(i64::MAX);
    let counts = |restart: &&Restart| {
        let age = now_ms.saturating_sub(restart.at_ms);
        age < span_ms && age > span_ms.saturating_neg()
    };
    let mut counted: Vec<Restart> = restarts.iter().filter(counts).cloned().collect();
    if counted.len() < limit || limit == 0 {
        return Ok(());
    }
    counted.sort_by_key(|restart| restart.at_ms);
    // Enough of the oldest have to grow too old.
    let last = counted[counted.len() - limit].at_ms;
    Err(TooManyRestarts {
        job: job.to_owned(),
        wait_ms: last.saturating_add(span_ms).saturating_sub(now_ms),
        restarts: counted,
        limit,
        within,
    })
}

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
struct Ledger {
    format: u32,
    restarts: Vec<Restart>,
}

impl CheckpointStore {
    /// The starts of this job that followed the death of the process before, oldest first.
    ///
    /// # Errors
    /// When the storage fails or the ledger cannot be read.
    pub async fn restarts(&self) -> Result<Vec<Restart>> {
        let ledger: Option<Ledger> = self.0.storage.document(RESTARTS, FORMAT, FIX).await?;
        Ok(ledger.map(|ledger| ledger.restarts).unwrap_or_default())
    }

    /// Writes down that this start followed a death, if the lease says so, and returns all such starts.
    ///
    /// # Errors
    /// When the storage fails or the ledger cannot be read.
    pub async fn count_restart(&self, lease: &Lease) -> Result<Vec<Restart>> {
        let mut restarts = self.restarts().await?;
        if let Some(died) = lease.predecessor() {
            restarts.push(self.restart_after(died));
            let surplus = restarts.len().saturating_sub(KEPT);
            restarts.drain(..surplus);
            self.0
                .storage
                .put_document(RESTARTS, &Ledger { format: FORMAT, restarts: restarts.clone() })
                .await?;
        }
        Ok(restarts)
    }

    fn restart_after(&self, died: &LeaseRecord) -> Restart {
        Restart {
            at_ms: self.0.now(),
            died: died.holder(),
            started_ms: died.acquired_ms,
            heard_ms: died.renewed_ms,
        }
    }

    /// Forgets all restarts.
    ///
    /// # Errors
    /// When the storage fails.
    pub async fn reset_restarts(&self) -> Result<()> {
        self.0.storage.delete(vec![RESTARTS.to_owned()]).await
    }
}

#[cfg(test)]
#[path = "restarts_tests.rs"]
mod tests;
