//! Publishing: the manifest becomes visible last, whole, once, and only under a lease that still stands.

use fail::fail_point;

use super::document;
use super::error::{CheckpointError, Result};
use super::lease::{self, Lease};
use super::manifest::{Kind, MANIFEST_FORMAT, Manifest};
use super::names;
use super::pending::{Making, Pending};
use super::saved::Saved;
use super::storage::{Created, Late};
use super::store::CheckpointStore;

impl CheckpointStore {
    /// Publishes a checkpoint or savepoint: its manifest becomes visible, whole, and under a name that nobody had before. After
    /// `Ok` it will be found by whoever looks, after a power cut too. `manifest.epoch` is filled in.
    ///
    /// # Errors
    /// * [`Fenced`](CheckpointError::Fenced): another process has taken the job over; stop.
    /// * [`Unsure`](CheckpointError::Unsure): nobody knows. Stop the attempt and restart from [`latest`](Self::latest);
    ///   let sinks neither commit nor drop what they prepared.
    /// * Any other: certainly not published, and never will be; go on, or discard it.
    pub async fn publish(&self, pending: &Pending, mut manifest: Manifest, lease: &Lease) -> Result<Saved> {
        let making = pending.making();
        let held = lease.lock().await;
        manifest.epoch = held.epoch();
        self.check(making, &manifest)?;
        if !making.close() {
            return Err(CheckpointError::Inconsistent {
                id: making.id,
                why: "is published before its uploads have ended, or after it was published or given up"
                    .into(),
            });
        }
        let published = self.put_manifest(making, &manifest, lease, held).await;
        match &published {
            Ok(()) => {
                if manifest.kind == Kind::Checkpoint {
                    let files = manifest.files().map(|file| file.path.clone()).collect();
                    self.0.books().publish(manifest.key(), files);
                }
                making.finish();
            }
            // Whoever reads the storage next decides what becomes of the files.
            Err(CheckpointError::Unsure { .. } | CheckpointError::Fenced { .. }) => making.finish(),
            Err(_) => making.reopen(),
        }
        published?;
        fail_point!("checkpoint::after_publish", |_| Err(CheckpointError::Injected(
            "checkpoint::after_publish"
        )));
        let storage = match &making.folder {
            Some(folder) => self.0.storage.below(folder),
            None => self.0.storage.clone(),
        };
        Ok(Saved::new(manifest, storage, self.0.clone()))
    }

    /// Refuses a manifest that does not fit what was uploaded.
    fn check(&self, making: &Making, manifest: &Manifest) -> Result<()> {
        let wrong = |why: String| Err(CheckpointError::Inconsistent { id: making.id, why });
        if manifest.id != making.id || manifest.kind != making.kind {
            return wrong(format!("is numbered {} and a {:?}", manifest.id, manifest.kind));
        }
        if manifest.format != MANIFEST_FORMAT {
            return wrong(format!("has format {}, not {MANIFEST_FORMAT}", manifest.format));
        }
        if manifest.job != self.0.job {
            return wrong(format!("is of job '{}', not '{}'", manifest.job, self.0.job));
        }
        match manifest.files().find(|file| !making.has(&making.absolute(&file.path))) {
            Some(file) => wrong(format!("names '{}', which it neither uploaded nor kept", file.path)),
            None => Ok(()),
        }
    }

    async fn put_manifest<'a>(
        &self,
        making: &Making,
        manifest: &Manifest,
        lease: &'a Lease,
        mut held: lease::Held<'a>,
    ) -> Result<()> {
        fail_point!("checkpoint::before_publish", |_| Err(CheckpointError::Injected(
            "checkpoint::before_publish"
        )));
        held.check().await?;
        let path = match &making.folder {
            Some(folder) => format!("{folder}/{}", names::SAVEPOINT_MANIFEST),
            None => manifest.key().path(),
        };
        let mut files: Vec<String> = manifest.files().map(|file| making.absolute(&file.path)).collect();
        files.push(path.clone());
        self.0.storage.sync_folders_of(files).await?;
        let bytes = document::write(manifest);
        let created = match manifest.kind {
            Kind::Checkpoint => self.0.storage.create(&path, bytes.clone()).await,
            // However long that takes, checkpoints are published meanwhile: it shares no file with them.
            Kind::Savepoint => {
                drop(held);
                let created = self.0.storage.create(&path, bytes.clone()).await;
                held = lease.lock().await;
                created
            }
        };
        match created {
            Ok(Created::Yes) => {
                // Between the look at the lease and the write somebody may have taken the job over, and not have seen this
                // checkpoint. Whoever did decides.
                held.check().await.map_err(|error| unsure(&self.0.job, manifest, error))?;
                if held.counts(manifest.key(), making.folder.as_deref()) {
                    return Ok(());
                }
                // This very owner has drawn a line meanwhile, since the storage had failed: it was behind it.
                if let Err(error) = self.0.storage.delete(vec![path.clone()]).await {
                    tracing::warn!(%error, "the manifest of a savepoint that does not count could not be deleted");
                }
                Err(CheckpointError::Discarded { id: making.id })
            }
            Ok(Created::No) => Err(match manifest.kind {
                Kind::Savepoint => CheckpointError::Exists {
                    what: format!("'{path}'"),
                    url: self.url().to_owned(),
                    fix: "choose another name",
                },
                Kind::Checkpoint => CheckpointError::Exists {
                    what: format!("checkpoint {}", manifest.key()),
                    url: self.url().to_owned(),
                    fix: "number checkpoints from next_id on",
                },
            }),
            Err(error) => self.find_out(making, manifest, (&path, &bytes), &mut held, error).await,
        }
    }

    /// The storage failed to write the manifest: finds out whether it is there, and keeps it from appearing later.
    async fn find_out(
        &self,
        making: &Making,
        manifest: &Manifest,
        (path, bytes): (&str, &[u8]),
        lease: &mut lease::Held<'_>,
        error: CheckpointError,
    ) -> Result<()> {
        let storage = &self.0.storage;
        // A write that may still land must not count when it does: from the next epoch on it does not. It counts if it was there
        // when that epoch began, and only then.
        if storage.late() == Late::Possible {
            match lease.advance(&self.0).await {
                Ok(()) if lease.counts(manifest.key(), making.folder.as_deref()) => {}
                Ok(()) => return Err(error),
                Err(failed) if failed.is_fenced() => return Err(failed),
                Err(_) => return Err(unsure(&self.0.job, manifest, error)),
            }
        }
        match storage.read(path).await {
            Ok(Some(found)) if found == bytes => match storage.sync(path).await {
                Ok(()) => lease.check().await.map_err(|error| unsure(&self.0.job, manifest, error)),
                Err(_) => Err(unsure(&self.0.job, manifest, error)),
            },
            Ok(_) => Err(error),
            Err(_) => Err(unsure(&self.0.job, manifest, error)),
        }
    }
}

fn unsure(job: &str, manifest: &Manifest, source: CheckpointError) -> CheckpointError {
    match source {
        CheckpointError::Fenced { .. } => source,
        source => {
            CheckpointError::Unsure { job: job.to_owned(), key: manifest.key(), source: Box::new(source) }
        }
    }
}
