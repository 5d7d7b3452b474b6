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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clock::utc;
use super::error::{CheckpointError, Result};
use super::incremental::{self, Fence};
pub use super::lease_record::LeaseRecord;
use super::lease_record::{FORMAT, Verdict};
use super::names::{self, lease_path};
use super::process::{ProcessId, living};
use super::storage::{Created, Storage};
use super::store::{CheckpointStore, Inner, counted};

const FIX: &str = "make sure that no process runs the job, then break its lease";
/// More fences than anybody has late writes.
const FENCES: usize = 32;

/// The right to write a job's checkpoints; clones are the same one. Dropping the last clone without
/// [`release`](Self::release) looks like a crash to whoever comes next.
#[derive(Clone)]
pub struct Lease(Arc<Shared>);

struct Shared {
    storage: Storage,
    wall_ms: super::WallClock,
    ttl: Duration,
    nonce: String,
    predecessor: Option<LeaseRecord>,
    /// What is in the file.
    record: Mutex<LeaseRecord>,
    /// Held while the epoch may change or must not.
    serial: tokio::sync::Mutex<()>,
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
    fn record(&self) -> MutexGuard<'_, LeaseRecord> {
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
                writing: tokio::sync::Mutex::new(()),
            }));
            if claim(inner, record, &lease.0).await? {
                return Ok(lease);
            }
            // Somebody was quicker: see who.
        }
    }

    /// Takes the lease away from whoever has it, and leaves it free. Its owner is refused at its next checkpoint. Returns the
    /// lease as it was, if there was one that could be read.
    ///
    /// # Errors
    /// When the storage fails.
    pub async fn break_held(store: &CheckpointStore, by: &str) -> Result<Option<LeaseRecord>> {
        let inner = &store.0;
        loop {
            let epoch = newest(&inner.storage).await?;
            let before = match epoch {
                Some(epoch) => match read(&inner.storage, epoch).await {
                    Err(CheckpointError::Unreadable { .. } | CheckpointError::UnknownFormat { .. }) => None,
                    read => read?,
                },
                None => return Ok(None),
            };
            let now = inner.now();
            let record = LeaseRecord {
                format: FORMAT,
                job: inner.job.clone(),
                epoch: epoch.unwrap_or(0) + 1,
                owner: by.to_owned(),
                process: ProcessId::current(),
                nonce: format!("{:016x}", super::nonce()),
                acquired_ms: now,
                renewed_ms: now,
                ttl_ms: 0,
                released: true,
                fences: before.as_ref().map(|before| before.fences.clone()).unwrap_or_default(),
            };
            let bytes = super::document::write(&record);
            if let Created::Yes = inner.storage.create(&lease_path(record.epoch), bytes).await? {
                return Ok(before);
            }
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
    pub(crate) async fn lock(&self) -> Result<Held<'_>> {
        Ok(Held { shared: &self.0, _serial: self.0.serial.lock().await })
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

    /// Whether a manifest counts, by what was there when the owner's epochs began.
    pub(crate) fn counts(&self, key: names::CheckpointKey) -> bool {
        incremental::counts(key, &self.shared.record().fences)
    }

    /// Takes the next epoch for the same owner: a write under the old one that has not landed by now never counts.
    pub(crate) async fn advance(&mut self, inner: &Inner) -> Result<()> {
        let _writing = self.shared.writing.lock().await;
        self.check().await?;
        let record = {
            let mut record = self.shared.record().clone();
            record.epoch += 1;
            record.renewed_ms = inner.now();
            record
        };
        let (epoch, shared) = (record.epoch, self.shared);
        match claim(inner, record, shared).await? {
            true => Ok(()),
            false => Err(shared.fenced(epoch, "somebody".into())),
        }
    }
}

/// Creates the file of an epoch and fences the ones before it; false if somebody else was quicker.
async fn claim(inner: &Inner, mut record: LeaseRecord, shared: &Shared) -> Result<bool> {
    let (storage, path) = (&inner.storage, lease_path(record.epoch));
    if let Created::No = storage.create(&path, super::document::write(&record)).await? {
        return Ok(false);
    }
    *shared.record() = record.clone();
    // Whatever was published until now counts: its owner may have been told so. Whatever comes later does not: its owner sees
    // this epoch when it looks again.
    let names = storage.names(names::CHECKPOINTS).await?;
    let keys: Vec<names::CheckpointKey> =
        names.iter().filter_map(|name| names::CheckpointKey::parse(name)).collect();
    let base = counted(&keys, &record.fences).iter().map(|key| key.id).max();
    record.fences.push(Fence { epoch: record.epoch, base });
    let surplus = record.fences.len().saturating_sub(FENCES);
    record.fences.drain(..surplus);
    shared.record().fences.clone_from(&record.fences);
    storage.put_document(&path, &record).await?;

    // The one before stays for people to look at.
    let old = epochs(storage).await?.into_iter().filter(|epoch| *epoch + 1 < record.epoch);
    storage.delete(old.map(lease_path).collect()).await?;
    Ok(true)
}

/// Watches an owner that seems to be gone: false if it is heard of after all.
async fn stays_silent(storage: &Storage, seen: &LeaseRecord) -> Result<bool> {
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

/// The epochs there are, in no particular order.
async fn epochs(storage: &Storage) -> Result<Vec<u64>> {
    let names = storage.names(names::LEASE).await?;
    Ok(names.iter().filter_map(|name| names::lease_epoch(name)).collect())
}

async fn newest(storage: &Storage) -> Result<Option<u64>> {
    Ok(epochs(storage).await?.into_iter().max())
}

async fn read(storage: &Storage, epoch: u64) -> Result<Option<LeaseRecord>> {
    storage.document(&lease_path(epoch), FORMAT, FIX).await
}

/// What says which manifests count.
pub(crate) async fn fences(storage: &Storage) -> Result<Vec<Fence>> {
    loop {
        let Some(epoch) = newest(storage).await? else { return Ok(Vec::new()) };
        if let Some(record) = read(storage, epoch).await? {
            return Ok(record.fences);
        }
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
