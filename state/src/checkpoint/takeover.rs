//! Taking a job over: watching an owner that seems to be gone, and drawing the line behind which its late writes do not count.

use std::collections::BTreeSet;
use std::time::Duration;

use super::clock::utc;
use super::error::{CheckpointError, Result};
use super::incremental::Fence;
use super::lease::{Lease, Shared, epochs, newest, read, saved_segments};
use super::lease_record::{FORMAT, LeaseRecord, SavedBefore};
use super::manifest::{MANIFEST_FORMAT, Manifest};
use super::names::{self, lease_path};
use super::process::ProcessId;
use super::storage::{Created, Storage};
use super::store::{CheckpointStore, Inner, MANIFEST_FIX, counted};

/// More fences than anybody has late writes.
pub(super) const FENCES: usize = 32;

impl Lease {
    /// Takes the lease away from whoever has it, and leaves it free. Its owner is refused at its next checkpoint. Returns the
    /// lease as it was, if there was one that could be read.
    ///
    /// # Errors
    /// When the storage fails.
    pub async fn break_held(store: &CheckpointStore, by: &str) -> Result<Option<LeaseRecord>> {
        let inner = &store.0;
        loop {
            let epoch = newest(&inner.storage).await?;
            let Some(epoch) = epoch else { return Ok(None) };
            let before = readable(&inner.storage, epoch).await?;
            // What earlier epochs are known by must not be lost with a file that cannot be read: the one before it is kept.
            let kept = match &before {
                Some(before) => Some(before.clone()),
                None => readable(&inner.storage, epoch.saturating_sub(1)).await?,
            };
            let now = inner.now();
            let record = LeaseRecord {
                format: FORMAT,
                job: inner.job.clone(),
                epoch: epoch + 1,
                owner: by.to_owned(),
                process: ProcessId::current(),
                nonce: format!("{:016x}", super::nonce()),
                acquired_ms: now,
                renewed_ms: now,
                ttl_ms: 0,
                released: true,
                fences: kept.as_ref().map(|kept| kept.fences.clone()).unwrap_or_default(),
                saved: kept.as_ref().and_then(|kept| kept.saved.clone()),
                reached: kept.as_ref().and_then(|kept| kept.reached.clone()),
                begun: kept.and_then(|kept| kept.begun),
            };
            let bytes = super::document::write(&record);
            if let Created::Yes = inner.storage.create(&lease_path(record.epoch), bytes).await? {
                return Ok(before);
            }
        }
    }
}

/// The record of an epoch; `None` also if it cannot be understood.
async fn readable(storage: &Storage, epoch: u64) -> Result<Option<LeaseRecord>> {
    match read(storage, epoch).await {
        Err(CheckpointError::Unreadable { .. } | CheckpointError::UnknownFormat { .. }) => Ok(None),
        read => read,
    }
}

/// Creates the file of an epoch and fences the ones before it; false if somebody else was quicker.
pub(super) async fn claim(inner: &Inner, mut record: LeaseRecord, shared: &Shared) -> Result<bool> {
    let (storage, path) = (&inner.storage, lease_path(record.epoch));
    if let Created::No = storage.create(&path, super::document::write(&record)).await? {
        return Ok(false);
    }
    shared.record().epoch = record.epoch;
    // Whatever was published until now counts: its owner may have been told so. Whatever comes later does not: its owner sees
    // this epoch when it looks again.
    let names = storage.names(names::CHECKPOINTS).await?;
    let keys: Vec<names::CheckpointKey> =
        names.iter().filter_map(|name| names::CheckpointKey::parse(name)).collect();
    // One that is missing for now, and known to have been, may be put back.
    let known =
        record.reached.as_ref().filter(|reached| reached.savepoint.is_none()).map(|reached| reached.id);
    let base = counted(&keys, &record.fences).iter().map(|key| key.id).max().max(known);
    record.fences.push(Fence { epoch: record.epoch, base });
    let surplus = record.fences.len().saturating_sub(FENCES);
    record.fences.drain(..surplus);
    record.saved = Some(SavedBefore {
        epoch: record.epoch,
        segments: counted_savepoints(storage, record.saved.as_ref()).await?,
    });
    {
        let mut own = shared.record();
        own.fences.clone_from(&record.fences);
        own.saved.clone_from(&record.saved);
        own.renewed_ms = record.renewed_ms;
        record = own.clone();
    }
    storage.put_document(&path, &record).await?;

    // The one before stays for people to look at.
    let old = epochs(storage).await?.into_iter().filter(|epoch| *epoch + 1 < record.epoch);
    storage.delete(old.map(lease_path).collect()).await?;
    Ok(true)
}

/// The folders' names of the savepoints that are there and count, by what counted before.
async fn counted_savepoints(storage: &Storage, before: Option<&SavedBefore>) -> Result<BTreeSet<String>> {
    // Those that counted and are not there may have been put away for a while.
    let mut counted = before.map(|before| before.segments.clone()).unwrap_or_default();
    for segment in saved_segments(storage).await? {
        // Whose they are only those tell that are new since the job was taken over last.
        let counts = match before {
            Some(before) if !before.segments.contains(&segment) => {
                let path = format!("{}/{segment}/{}", names::SAVEPOINTS, names::SAVEPOINT_MANIFEST);
                match storage.document::<Manifest>(&path, MANIFEST_FORMAT, MANIFEST_FIX).await {
                    Ok(manifest) => manifest.is_some_and(|m| before.counts(&segment, m.epoch)),
                    // Whoever wants to begin from it hears of that.
                    Err(CheckpointError::Unreadable { .. } | CheckpointError::UnknownFormat { .. }) => true,
                    Err(error) => return Err(error),
                }
            }
            _ => true,
        };
        if counts {
            counted.insert(segment);
        }
    }
    Ok(counted)
}

/// Watches an owner that seems to be gone: false if it is heard of after all.
pub(super) async fn stays_silent(storage: &Storage, seen: &LeaseRecord) -> Result<bool> {
    let ttl = Duration::from_millis(seen.ttl_ms);
    tracing::info!(
        job = seen.job,
        "the lease of {} ran out at {}; watching for {:.0} s whether it is renewed",
        seen.holder(),
        utc(seen.renewed_ms.saturating_add_unsigned(seen.ttl_ms)),
        (ttl * 2 / 3).as_secs_f64()
    );
    for _ in 0..4 {
        tokio::time::sleep(ttl / 6).await;
        match newest(storage).await? {
            Some(epoch) if epoch == seen.epoch => {}
            _ => return Ok(false),
        }
        let now = read(storage, seen.epoch).await?;
        match now {
            Some(now) if now.renewed_ms != seen.renewed_ms && !now.released => {
                return Err(now.held(i64::try_from(now.ttl_ms).unwrap_or(i64::MAX)));
            }
            Some(now) if now == *seen => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}
