//! Deletes what nobody needs: old checkpoints, files that no manifest names, and what a crash left behind.

use std::fs;
use std::path::{Path, PathBuf};

use fail::fail_point;

use super::error::{CheckpointError, Result};
use super::lease::{self, Lease};
use super::names::{self, CheckpointKey};
use super::store::{CheckpointStore, counted};

/// What was deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// The checkpoints.
    pub checkpoints: Vec<CheckpointKey>,
    /// How many data files.
    pub files: usize,
    /// Manifests that cannot be read: as long as they are there nobody knows which files they name, and none is deleted.
    pub unreadable: Vec<CheckpointKey>,
}

impl CheckpointStore {
    /// Keeps the newest `keep` checkpoints (at least one), and deletes older ones: first their manifests, then the files that no
    /// other checkpoint names and none in the making uses. Savepoints are never touched.
    ///
    /// # Errors
    /// When somebody else has the job, or the storage fails. What should have gone then goes another time.
    pub async fn retain(&self, keep: usize, lease: &Lease) -> Result<Deleted> {
        let mut held = lease.lock().await;
        held.check().await?;
        let keys = self.list().await?;
        self.0.books().only(&keys);
        let unreadable = self.read_all(&keys).await?;
        if !unreadable.is_empty() {
            return Ok(Deleted { unreadable, ..Deleted::default() });
        }

        let expired = self.0.books().expire(keep);
        if !expired.manifests.is_empty() {
            // As long as a manifest is there its files are: if this fails, all of it goes another time.
            self.delete_manifests(&expired.manifests).await?;
            self.0.books().discard(expired.files);
        }
        let files = self.delete_garbage().await?;
        Ok(Deleted { checkpoints: expired.manifests, files, unreadable: Vec::new() })
    }

    /// Deletes manifests. If that fails they are looked at again another time.
    async fn delete_manifests(&self, keys: &[CheckpointKey]) -> Result<()> {
        let deleted = self.delete_manifests_for_good(keys).await;
        if deleted.is_err() {
            self.0.books().stayed(keys);
        }
        deleted
    }

    /// A power cut does not bring them back.
    async fn delete_manifests_for_good(&self, keys: &[CheckpointKey]) -> Result<()> {
        fail_point!("checkpoint::before_delete", |_| Err(CheckpointError::Injected(
            "checkpoint::before_delete"
        )));
        self.0.storage.delete(keys.iter().map(|key| key.path()).collect()).await?;
        self.0.storage.sync_folder(names::CHECKPOINTS).await
    }

    /// Deletes files that nobody names, those that an earlier try had to leave behind included; how many.
    async fn delete_garbage(&self) -> Result<usize> {
        let garbage = self.0.books().garbage();
        if garbage.is_empty() {
            return Ok(0);
        }
        fail_point!("checkpoint::before_delete", |_| Err(CheckpointError::Injected(
            "checkpoint::before_delete"
        )));
        self.0.storage.delete(garbage.clone()).await?;
        self.0.books().deleted(&garbage);
        Ok(garbage.len())
    }

    /// Deletes what crashes left behind: manifests that do not count, data files that no checkpoint names, and half-written files
    /// of a local folder. Lists the whole shared folder, so once after each start is often enough. Savepoints are never touched.
    ///
    /// # Errors
    /// When somebody else has the job, or the storage fails.
    pub async fn sweep(&self, lease: &Lease) -> Result<Deleted> {
        let mut held = lease.lock().await;
        held.check().await?;
        let keys = self.listed().await?;
        let fences = lease::fences(&self.0.storage).await?;
        let counting = counted(&keys, &fences);
        self.0.books().only(&counting);
        let unreadable = self.read_all(&counting).await?;
        if !unreadable.is_empty() {
            return Ok(Deleted { unreadable, ..Deleted::default() });
        }

        let listed: Vec<String> =
            self.0.storage.list(names::SHARED).await?.into_iter().map(|file| file.path).collect();
        let halves = self.halves().await;
        // Again, since anything above may have taken long: when nobody had overtaken us after the listing, all that is in it is
        // ours or older, whatever is written from now on.
        held.check().await?;
        let orphans = self.0.books().orphans(&listed);
        let stale: Vec<CheckpointKey> = keys.into_iter().filter(|key| !counting.contains(key)).collect();
        if !stale.is_empty() {
            self.0.books().going(&stale);
            self.delete_manifests(&stale).await?;
        }
        self.0.books().discard(orphans);
        let files = self.delete_garbage().await?;
        let halves = tokio::task::spawn_blocking(move || {
            halves.iter().filter(|half| fs::remove_file(half).is_ok()).count()
        });
        Ok(Deleted { checkpoints: stale, files: files + halves.await.unwrap_or(0), unreadable: Vec::new() })
    }

    /// Makes the books know what each of the checkpoints names; those that cannot be read come back.
    async fn read_all(&self, keys: &[CheckpointKey]) -> Result<Vec<CheckpointKey>> {
        let mut unreadable = Vec::new();
        for key in keys {
            if self.0.books().has_read(*key) {
                continue;
            }
            match self.read(*key).await {
                Ok(_) => {}
                Err(error @ (CheckpointError::Unreadable { .. } | CheckpointError::UnknownFormat { .. })) => {
                    tracing::warn!(%error, "no checkpoint files are deleted: a manifest cannot be read");
                    unreadable.push(*key);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(unreadable)
    }

    /// A local folder's files are written under the name `file#1` first; a crash leaves those behind, and no listing shows them.
    async fn halves(&self) -> Vec<PathBuf> {
        let Some(folder) = self.0.storage.folder() else { return Vec::new() };
        let in_use = self.0.books().in_use();
        let folder = folder.to_owned();
        let found = tokio::task::spawn_blocking(move || {
            let mut found = Vec::new();
            for part in [names::SHARED, names::CHECKPOINTS, names::ATTEMPTS, names::LEASE] {
                visit(&folder.join(part), &mut |file| {
                    let Ok(relative) = file.strip_prefix(&folder) else { return };
                    let relative = relative.to_string_lossy();
                    let Some((whole, number)) = relative.rsplit_once('#') else { return };
                    let half = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
                    if half && !in_use.contains(whole) {
                        found.push(file.to_owned());
                    }
                });
            }
            found
        });
        found.await.unwrap_or_default()
    }
}

/// Every file below a folder; what cannot be read is passed over.
fn visit(folder: &Path, found: &mut dyn FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => visit(&path, found),
            Ok(_) => found(&path),
            Err(_) => {}
        }
    }
}
