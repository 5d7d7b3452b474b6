//! The start of a process: takes the lease, settles what a crash may have left behind, and finds where to begin.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use weir_state::checkpoint::{
    Bandwidth, BegunFrom, CheckpointError, CheckpointStore, Kind, Lease, Manifest, Reached, Saved,
    StoreOptions, allow,
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
    /// What the process before began from.
    pub(super) before: Option<BegunFrom>,
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
    let lease = take_lease(&store, &format!("job {job:?}"), config.break_lease).await?;
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

/// Takes the lease, away from whoever has it if that is wanted.
async fn take_lease(store: &CheckpointStore, owner: &str, break_it: bool) -> Result<Lease, String> {
    let taken = match Lease::acquire(store, owner, LEASE).await {
        Err(held @ CheckpointError::Held { .. }) if break_it => {
            tracing::warn!("the lease is broken, as told: {}", chain(&held));
            Lease::break_held(store, owner).await.map_err(|e| chain(&e))?;
            Lease::acquire(store, owner, LEASE).await
        }
        taken => taken,
    };
    taken.map_err(|e| match e {
        CheckpointError::Held { .. } => format!("{} (Checkpoints::break_lease, or --break-lease)", chain(&e)),
        e => chain(&e),
    })
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
    let (from, named) = match &config.start {
        StartFrom::Fresh => (None, None),
        StartFrom::Latest => latest(store, lease).await.map_err(said)?,
        StartFrom::Checkpoint(id) => (Some(store.load(*id).await.map_err(said)?), None),
        StartFrom::Savepoint(name) => {
            (Some(store.load_savepoint(name).await.map_err(said)?), Some(name.clone()))
        }
    };
    // Only now: a start that is refused because a manifest is missing leaves the files that it names, for it may be put back.
    match store.sweep(lease).await {
        Ok(_) => {}
        Err(e) if e.is_fenced() => return Err(said(e)),
        Err(e) => {
            tracing::warn!("what a crash may have left in {} was not removed: {}", config.url, chain(&e));
        }
    }
    // A savepoint of another job counts from elsewhere: what comes after it has greater numbers all the same.
    let after = from.as_ref().map_or(0, |saved| saved.manifest().id) + 1;
    let next = store.next_id().await.map_err(said)?.max(after);
    let begun = from.as_ref().map(|saved| Reached { id: saved.manifest().id, savepoint: named });
    let before = lease.begin(Some(BegunFrom { from: begun, next }));
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
        None if config.start == StartFrom::Fresh || newest.is_some() => {
            format!("anew, as told; checkpoints go to {}", config.url)
        }
        None => format!("anew: there is no checkpoint in {} yet", config.url),
    };
    // Somebody may have thought this process gone while the storage did not answer: then the job is theirs, and what a start
    // does first, sinks throwing away what no checkpoint names, must not be done to it.
    lease.renew().await.map_err(said)?;
    let manifest = from.as_ref().map(|saved| Arc::new(saved.manifest().clone()));
    let attempt = AttemptId(u32::try_from(attempt).unwrap_or(u32::MAX));
    Ok((from, Begun { manifest, next, attempt, said: words, before }))
}

/// The newest checkpoint or savepoint: a job that was stopped with a savepoint goes on from there, since its sinks have
/// committed what is in it.
pub(super) async fn newest_of_all(store: &CheckpointStore) -> Result<Option<Saved>, CheckpointError> {
    let (checkpoint, savepoint) = (store.latest().await?, store.newest_savepoint().await?);
    Ok(checkpoint.into_iter().chain(savepoint).max_by_key(|saved| saved.manifest().id))
}

/// Where a plain start begins: the newest one, unless a newer one is known to have been and is not there any more. A process that
/// completed none is followed from where it was told to begin; then that savepoint's name comes with it.
async fn latest(
    store: &CheckpointStore,
    lease: &Lease,
) -> Result<(Option<Saved>, Option<String>), CheckpointError> {
    let newest = newest_of_all(store).await?;
    let id = newest.as_ref().map_or(0, |saved| saved.manifest().id);
    let begun = lease.record().begun.filter(|begun| id < begun.next);
    // Unless it completed one, which is gone.
    if let Some(BegunFrom { from, next }) = begun
        && store.reached_after(next.saturating_sub(1), lease).await?.is_none()
    {
        match from {
            Some(from) if from.id == id && from.savepoint.is_none() => return Ok((newest, None)),
            Some(from) => {
                let again = match &from.savepoint {
                    Some(savepoint) => store.load_savepoint(savepoint).await,
                    None => store.load(from.id).await,
                };
                match again {
                    Ok(saved) => {
                        tracing::warn!(
                            "the process before began from {from} and completed no checkpoint: so does this one"
                        );
                        return Ok((Some(saved), from.savepoint));
                    }
                    Err(e) if from.id < id => return Err(e),
                    // It is newer than what is there: see below.
                    Err(error) => tracing::warn!(%error, "what the process before began from cannot be had"),
                }
            }
            None if newest.is_some() => {
                tracing::warn!("the process before began anew and completed no checkpoint: so does this one");
                return Ok((None, None));
            }
            None => {}
        }
    }
    match store.reached_after(id, lease).await? {
        Some(reached) => Err(gone(store, &reached, newest.as_ref())),
        None => Ok((newest, None)),
    }
}

/// What a life that begins from this will have sinks commit.
pub(super) fn reached_by(saved: &Saved) -> Reached {
    let manifest = saved.manifest();
    let savepoint = (manifest.kind == Kind::Savepoint).then(|| saved.place());
    Reached { id: manifest.id, savepoint }
}

/// The refusal to begin from an older one than the job had come to.
pub(super) fn gone(store: &CheckpointStore, reached: &Reached, newest: Option<&Saved>) -> CheckpointError {
    let accept = "StartFrom::Savepoint, or --savepoint; StartFrom::Fresh, or --fresh";
    let newest = match newest.map(reached_by) {
        None => format!("none ({accept})"),
        Some(newest @ Reached { savepoint: Some(_), .. }) => format!("{newest} ({accept})"),
        Some(newest) => {
            let id = newest.id;
            format!("{newest} (StartFrom::Checkpoint({id}), or --checkpoint {id}; {accept})")
        }
    };
    CheckpointError::Gone {
        job: store.job().to_owned(),
        gone: reached.to_string(),
        newest,
        url: store.url().to_owned(),
    }
}

/// Seconds since the epoch say little to people; a date would need a calendar.
fn ago(ms: i64) -> String {
    let age = (SystemClock::shared().now_ms() - ms).max(0) / 1_000;
    format!("{age} s ago")
}

#[cfg(test)]
#[path = "begin_tests.rs"]
mod tests;
