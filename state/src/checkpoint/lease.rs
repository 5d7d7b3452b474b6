//! The lease on a job: one process owns it, a second is refused, and one that was overtaken can publish nothing more.
//!
//! # How it works
//!
//! Each owner creates `lease/<epoch>.json` with an epoch one greater than the greatest there is; creating a file that exists fails,
//! on every storage. The greatest epoch owns the job. Its owner renews the file from time to time; a new process may create the next
//! epoch when the owner released it, is a dead process of this machine, or was silent for longer than the lease's time to live
//! and then for most of that time again while the new process watched: clocks that differ cost time, not correctness.
//!
//! Correctness is by *fencing*. Manifests carry the epoch in their names, and an owner looks for a greater epoch before and after
//! it publishes. What it wrote in between, when it was overtaken, does not count unless the new owner saw it: taking over,
//! that one writes down the newest checkpoint it found (a [`Fence`]), and manifests of earlier epochs beyond it are never read.
//! So it does not matter how late an overtaken process's last write lands.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::{CheckpointError, Result};
use super::incremental::{self, Fence};
pub use super::lease_record::LeaseRecord;
use super::lease_record::{FORMAT, SavedBefore, Verdict};
use super::names::{self, lease_path};
use super::process::{ProcessId, living};
use super::reached::{BegunFrom, Reached};
use super::storage::Storage;
use super::store::{CheckpointStore, Inner};
use super::takeover::{claim, stays_silent};

const FIX: &str = "make sure that no process runs the job, then break its lease";

/// The right to write a job's checkpoints; clones are the same one. Dropping the last clone without
/// [`release`](Self::release) looks like a crash to whoever comes next.
#[derive(Clone)]
pub struct Lease(Arc<Shared>);

pub(super) struct Shared {
    storage: Storage,
    wall_ms: super::WallClock,
    ttl: Duration,
    nonce: String,
    predecessor: Option<LeaseRecord>,
    /// What is in the file.
    record: Mutex<LeaseRecord>,
    /// Held while the epoch may change or must not.
    serial: tokio::sync::Mutex<()>,
    /// A write under this epoch or one before may still land, and nothing keeps it from counting yet.
    unsettled: AtomicBool,
    /// Held from when what is to be in the file is settled until it is there: an older record must not land on a newer one.
    writing: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&*self.0.record()).finish()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        living().remove(&self.nonce);
    }
}

impl Shared {
    pub(super) fn record(&self) -> MutexGuard<'_, LeaseRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fenced(&self, theirs: u64, holder: String) -> CheckpointError {
        let record = self.record();
        CheckpointError::Fenced { job: record.job.clone(), ours: record.epoch, theirs, holder }
    }

    /// Refuses if somebody else has a greater epoch.
    async fn check(&self) -> Result<()> {
        let Some(newest) = newest(&self.storage).await? else {
            return Err(self.fenced(0, "nobody: its lease files were deleted".into()));
        };
        {
            let record = self.record();
            if record.released {
                let epoch = record.epoch;
                drop(record);
                return Err(self.fenced(epoch, "nobody: it released the lease".into()));
            }
            if newest == record.epoch {
                return Ok(());
            }
        }
        match read(&self.storage, newest).await? {
            Some(record) if record.nonce == self.nonce => Ok(()),
            Some(record) => Err(self.fenced(newest, record.holder())),
            None => Err(self.fenced(newest, "somebody".into())),
        }
    }
}

impl Lease {
    /// Takes the job over as `owner`. The lease is good for `ttl` without being renewed.
    ///
    /// *Blocking*: when the owner seems to be gone but cannot be asked (another machine, a clock that jumped), it is watched for
    /// two thirds of its time to live before it is overtaken.
    ///
    /// # Errors
    /// [`CheckpointError::Held`] when somebody has it; when the storage fails.
    pub async fn acquire(store: &CheckpointStore, owner: &str, ttl: Duration) -> Result<Self> {
        let inner = &store.0;
        let here = ProcessId::current();
        let nonce = format!("{:016x}", super::nonce());
        loop {
            let (epoch, before) = match newest(&inner.storage).await? {
                None => (0, None),
                // Deleted since: look again.
                Some(epoch) => match read(&inner.storage, epoch).await? {
                    Some(record) => (epoch, Some(record)),
                    None => continue,
                },
            };
            if let Some(before) = &before {
                match before.judge(&here, inner.now()) {
                    Verdict::Free | Verdict::Dead => {}
                    Verdict::Held { wait_ms } => return Err(before.held(wait_ms)),
                    Verdict::Silent => {
                        if !stays_silent(&inner.storage, before).await? {
                            continue;
                        }
                    }
                }
            }
            let now = inner.now();
            let record = LeaseRecord {
                format: FORMAT,
                job: inner.job.clone(),
                epoch: epoch + 1,
                owner: owner.to_owned(),
                process: here.clone(),
                nonce: nonce.clone(),
                acquired_ms: now,
                renewed_ms: now,
                ttl_ms: super::progress::millis(ttl),
                released: false,
                fences: before.as_ref().map(|before| before.fences.clone()).unwrap_or_default(),
                saved: before.as_ref().and_then(|before| before.saved.clone()),
                reached: before.as_ref().and_then(|before| before.reached.clone()),
                begun: before.as_ref().and_then(|before| before.begun.clone()),
            };
            living().insert(nonce.clone());
            let lease = Self(Arc::new(Shared {
                storage: inner.storage.clone(),
                wall_ms: inner.options.wall_ms.clone(),
                ttl,
                nonce: nonce.clone(),
                predecessor: before.filter(|before| !before.released),
                record: Mutex::new(record.clone()),
                serial: tokio::sync::Mutex::new(()),
                unsettled: AtomicBool::new(false),
                writing: tokio::sync::Mutex::new(()),
            }));
            if claim(inner, record, &lease.0).await? {
                return Ok(lease);
            }
            // Somebody was quicker: see who.
        }
    }

    /// The epoch: greater than that of any owner before.
    pub fn epoch(&self) -> u64 {
        self.0.record().epoch
    }

    /// What is in the lease's file.
    pub fn record(&self) -> LeaseRecord {
        self.0.record().clone()
    }

    /// The owner before, if it did not stop as it should.
    pub fn predecessor(&self) -> Option<&LeaseRecord> {
        self.0.predecessor.as_ref()
    }

    /// Keeps in mind, and with the next renewal or the release in the storage, that sinks commit this one or a life begins from it: a
    /// later start notices when it is gone. What is older than what is known changes nothing.
    pub fn reach(&self, reached: Reached) {
        let mut record = self.0.record();
        if record.reached.as_ref().is_none_or(|known| known.id < reached.id) {
            record.reached = Some(reached);
        }
    }

    /// Keeps in mind, and with the next renewal or the release in the storage, what the job begins from. Gives what was there before.
    pub fn begin(&self, begun: Option<BegunFrom>) -> Option<BegunFrom> {
        std::mem::replace(&mut self.0.record().begun, begun)
    }

    /// Something is being written under this lease that nobody waits for any more.
    pub fn doubt(&self) {
        self.0.unsettled.store(true, Ordering::Release);
    }

    /// Sees to it that nothing which was written under this lease and has not landed by now will count, should that not be certain
    /// after a storage's failure. To be called before a job begins again from the newest checkpoint.
    ///
    /// # Errors
    /// [`CheckpointError::Fenced`] when somebody else has the job; when the storage fails.
    pub async fn settle(&self, store: &CheckpointStore) -> Result<()> {
        let mut held = self.lock().await;
        if self.0.unsettled.load(Ordering::Acquire) {
            held.advance(&store.0).await?;
        }
        Ok(())
    }

    /// Says that the owner lives.
    ///
    /// # Errors
    /// [`CheckpointError::Fenced`] when somebody else has the job; when the storage fails.
    pub async fn renew(&self) -> Result<()> {
        let _writing = self.0.writing.lock().await;
        self.0.check().await?;
        let record = {
            let mut record = self.0.record();
            record.renewed_ms = (self.0.wall_ms)();
            record.clone()
        };
        self.0.storage.put_document(&lease_path(record.epoch), &record).await
    }

    /// Renews three times in the lease's time to live, for as long as it is polled; returns why it must stop: somebody else has the
    /// job. A storage that fails is not a reason: until somebody else takes the job, it is ours.
    pub async fn keep(&self) -> CheckpointError {
        loop {
            tokio::time::sleep(self.0.ttl / 3).await;
            match self.renew().await {
                Err(error) if error.is_fenced() => return error,
                Err(error) => tracing::warn!(%error, "the lease could not be renewed; trying again"),
                Ok(()) => {}
            }
        }
    }

    /// Gives the job up, so that the next process can take it at once.
    ///
    /// # Errors
    /// When the storage fails: the next process then sees that this one is dead, or waits for the lease to run out.
    pub async fn release(&self) -> Result<()> {
        let _serial = self.0.serial.lock().await;
        let _writing = self.0.writing.lock().await;
        self.0.check().await?;
        let record = {
            let mut record = self.0.record();
            record.released = true;
            record.renewed_ms = (self.0.wall_ms)();
            record.clone()
        };
        self.0.storage.put_document(&lease_path(record.epoch), &record).await
    }

    /// Keeps the epoch as it is while something is written under it.
    pub(crate) async fn lock(&self) -> Held<'_> {
        Held { shared: &self.0, _serial: self.0.serial.lock().await }
    }
}

/// A lease whose epoch nobody else of this process changes.
pub(crate) struct Held<'a> {
    shared: &'a Shared,
    _serial: tokio::sync::MutexGuard<'a, ()>,
}

impl Held<'_> {
    pub(crate) fn epoch(&self) -> u64 {
        self.shared.record().epoch
    }

    /// Refuses if somebody else has a greater epoch.
    pub(crate) async fn check(&mut self) -> Result<()> {
        self.shared.check().await
    }

    /// Whether a manifest counts, by what was there when the owner's epochs began; that of a savepoint by its folder.
    pub(crate) fn counts(&self, key: names::CheckpointKey, savepoint: Option<&str>) -> bool {
        let record = self.shared.record();
        match savepoint {
            None => incremental::counts(key, &record.fences),
            Some(folder) => {
                let segment = folder.rsplit('/').next().unwrap_or(folder);
                record.saved.as_ref().is_none_or(|before| before.counts(segment, key.epoch))
            }
        }
    }

    /// Takes the next epoch for the same owner: a write under the old one that has not landed by now never counts.
    pub(crate) async fn advance(&mut self, inner: &Inner) -> Result<()> {
        let _writing = self.shared.writing.lock().await;
        // Until it is done: if it fails half-way, somebody has to try again.
        self.shared.unsettled.store(true, Ordering::Release);
        self.check().await?;
        // An earlier try may have got there though it failed: that epoch is ours, too.
        let taken = newest(&self.shared.storage).await?.unwrap_or(0);
        let record = {
            let mut record = self.shared.record().clone();
            record.epoch = record.epoch.max(taken) + 1;
            record.renewed_ms = inner.now();
            record
        };
        let (epoch, shared) = (record.epoch, self.shared);
        match claim(inner, record, shared).await? {
            true => {
                shared.unsettled.store(false, Ordering::Release);
                Ok(())
            }
            false => Err(shared.fenced(epoch, "somebody".into())),
        }
    }
}

/// The epochs there are, in no particular order.
pub(super) async fn epochs(storage: &Storage) -> Result<Vec<u64>> {
    let names = storage.names(names::LEASE).await?;
    Ok(names.iter().filter_map(|name| names::lease_epoch(name)).collect())
}

pub(super) async fn newest(storage: &Storage) -> Result<Option<u64>> {
    Ok(epochs(storage).await?.into_iter().max())
}

pub(super) async fn read(storage: &Storage, epoch: u64) -> Result<Option<LeaseRecord>> {
    storage.document(&lease_path(epoch), FORMAT, FIX).await
}

/// The newest record.
async fn newest_record(storage: &Storage) -> Result<Option<LeaseRecord>> {
    loop {
        let Some(epoch) = newest(storage).await? else { return Ok(None) };
        if let Some(record) = read(storage, epoch).await? {
            return Ok(Some(record));
        }
    }
}

/// What says which manifests count.
pub(crate) async fn fences(storage: &Storage) -> Result<Vec<Fence>> {
    Ok(newest_record(storage).await?.map(|record| record.fences).unwrap_or_default())
}

/// What says which savepoints count; `None` when all do.
pub(crate) async fn saved_before(storage: &Storage) -> Result<Option<SavedBefore>> {
    Ok(newest_record(storage).await?.and_then(|record| record.saved))
}

/// The greatest number of a checkpoint that the lease knows of.
pub(crate) async fn greatest_id(storage: &Storage) -> Result<u64> {
    let record = newest_record(storage).await?;
    let known = record.iter().flat_map(|record| {
        let reached = record.reached.iter().map(|reached| reached.id);
        record.fences.iter().filter_map(|fence| fence.base).chain(reached)
    });
    Ok(known.max().unwrap_or(0))
}

/// The folders' names of the savepoints there are, whether they count or not.
pub(crate) async fn saved_segments(storage: &Storage) -> Result<Vec<String>> {
    let listed = storage.list(names::SAVEPOINTS).await?;
    let segment = |path: &str| {
        let path = path.strip_prefix(names::SAVEPOINTS)?.strip_prefix('/')?;
        let segment = path.strip_suffix(names::SAVEPOINT_MANIFEST)?.strip_suffix('/')?;
        (!segment.contains('/')).then(|| segment.to_owned())
    };
    Ok(listed.iter().filter_map(|file| segment(&file.path)).collect())
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
