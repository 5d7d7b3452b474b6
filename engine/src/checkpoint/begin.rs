//! The start of a process: takes the lease, settles what a crash may have left behind, and finds where to begin.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use weir_state::checkpoint::{
    Bandwidth, CheckpointError, CheckpointStore, Kind, Lease, Manifest, Saved, StoreOptions, allow,
};

use super::config::{Checkpoints, StartFrom};
use super::storage::chain;
use crate::ids::AttemptId;
use crate::time::{SharedClock, SystemClock};

/// How long the lease is good without being renewed.
const LEASE: Duration = Duration::from_secs(15);

/// Where a process begins.
pub(crate) struct Begun {
    pub(crate) manifest: Option<Arc<Manifest>>,
    /// The number of the first checkpoint it will take.
    pub(crate) next: u64,
    /// The number of its first attempt.
    pub(crate) attempt: AttemptId,
    /// In words.
    pub(crate) said: String,
}

/// What a process that has the lease works with.
pub(super) struct Opened {
    pub(super) store: CheckpointStore,
    pub(super) lease: Lease,
    /// Renews the lease, and ends when another process has the job.
    pub(super) keeping: JoinHandle<CheckpointError>,
    pub(super) from: Option<Saved>,
    pub(super) begun: Begun,
}

/// Becomes the job's one process.
pub(super) async fn begin(config: Checkpoints, job: String, clock: SharedClock) -> Result<Opened, String> {
    let options = StoreOptions {
        parallel: config.uploads,
        bandwidth: config.upload_rate.map_or_else(Bandwidth::unlimited, Bandwidth::per_second),
        wall_ms: Arc::new(move || clock.now_ms()),
        ..StoreOptions::default()
    };
    let store = CheckpointStore::open(&config.url, &job, options).await.map_err(|e| chain(&e))?;
    let lease = Lease::acquire(&store, &format!("job {job:?}"), LEASE).await.map_err(|e| chain(&e))?;
    // From now on: whatever the storage takes for what follows, nobody is to think that this process is gone.
    let keeping = tokio::spawn({
        let lease = lease.clone();
        async move { lease.keep().await }
    });
    match begin_under(&store, &lease, &config, &job).await {
        Ok((from, begun)) => Ok(Opened { store, lease, keeping, from, begun }),
        Err(reason) => {
            keeping.abort();
            // A start that is refused is no death.
            give_back(&lease).await;
            Err(reason)
        }
    }
}

/// Gives the lease back, unless somebody else has the job. If that cannot be written down it looks like a death.
pub(super) async fn give_back(lease: &Lease) {
    if let Err(e) = lease.release().await
        && !e.is_fenced()
    {
        tracing::warn!("the lease of the checkpoints could not be given back: {}", chain(&e));
    }
}

/// Finds where to begin, as the owner of the lease.
async fn begin_under(
    store: &CheckpointStore,
    lease: &Lease,
    config: &Checkpoints,
    job: &str,
) -> Result<(Option<Saved>, Begun), String> {
    let said = |e: CheckpointError| chain(&e);
    if config.forgive_restarts {
        store.reset_restarts().await.map_err(said)?;
    }
    let restarts = store.count_restart(lease).await.map_err(said)?;
    // The machine's clock: the times in the ledger are of other processes.
    let now_ms = SystemClock::shared().now_ms();
    allow(job, now_ms, &restarts, config.restarts as usize, config.restarts_within)
        .map_err(|refused| format!("{refused} (Checkpoints::forgive_restarts, or --forgive-restarts)"))?;
    match store.sweep(lease).await {
        Ok(_) => {}
        Err(e) if e.is_fenced() => return Err(said(e)),
        Err(e) => {
            tracing::warn!("what a crash may have left in {} was not removed: {}", config.url, chain(&e));
        }
    }
    let from = match &config.start {
        StartFrom::Fresh => None,
        StartFrom::Latest => newest_of_all(store).await.map_err(said)?,
        StartFrom::Checkpoint(id) => Some(store.load(*id).await.map_err(said)?),
        StartFrom::Savepoint(name) => Some(store.load_savepoint(name).await.map_err(said)?),
    };
    let next = store.next_id().await.map_err(said)?;
    let newest = store.list().await.map_err(said)?.last().copied();
    let attempt = match newest {
        Some(key) => store.load(key.id).await.map(|s| s.manifest().attempt).unwrap_or(key.id),
        None => 0,
    };
    let attempt = attempt.max(from.as_ref().map_or(0, |s| s.manifest().attempt)) + 1;
    let words = match &from {
        Some(saved) => {
            let m = saved.manifest();
            let kind = if m.kind == Kind::Savepoint { "savepoint" } else { "checkpoint" };
            format!(
                "from {kind} {} in {}, {} bytes of {}",
                m.id,
                saved.place(),
                m.bytes(),
                ago(m.completed_ms)
            )
        }
        None if config.start == StartFrom::Fresh => {
            format!("anew, as told; checkpoints go to {}", config.url)
        }
        None => format!("anew: there is no checkpoint in {} yet", config.url),
    };
    // Somebody may have thought this process gone while the storage did not answer: then the job is theirs, and what a start
    // does first, sinks throwing away what no checkpoint names, must not be done to it.
    lease.renew().await.map_err(said)?;
    let manifest = from.as_ref().map(|saved| Arc::new(saved.manifest().clone()));
    let attempt = AttemptId(u32::try_from(attempt).unwrap_or(u32::MAX));
    Ok((from, Begun { manifest, next, attempt, said: words }))
}

/// The newest checkpoint or savepoint: a job that was stopped with a savepoint goes on from there, since its sinks have
/// committed what is in it.
pub(super) async fn newest_of_all(store: &CheckpointStore) -> Result<Option<Saved>, CheckpointError> {
    let mut newest = store.latest().await?;
    for name in store.savepoints().await? {
        let saved = store.load_savepoint(&name).await?;
        if newest.as_ref().is_none_or(|n| n.manifest().id < saved.manifest().id) {
            newest = Some(saved);
        }
    }
    Ok(newest)
}

/// Seconds since the epoch say little to people; a date would need a calendar.
fn ago(ms: i64) -> String {
    let age = (SystemClock::shared().now_ms() - ms).max(0) / 1_000;
    format!("{age} s ago")
}

#[cfg(test)]
#[path = "begin_tests.rs"]
mod tests;
