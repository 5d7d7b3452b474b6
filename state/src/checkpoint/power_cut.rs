//! What a storage in a local folder does so that a power cut takes nothing back; other storages do that by themselves.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{MutexGuard, PoisonError};

use super::error::Result;
use super::files::{blocking, sync_folder};
use super::storage::Storage;

impl Storage {
    /// Makes an object that is there outlive a power cut: for a local folder, where writing it may have failed half-way.
    pub(crate) async fn sync(&self, path: &str) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let file = folder.join(path);
        let opened = file.clone();
        let sync = move || {
            fs::File::open(&opened)?.sync_all()?;
            sync_folder(opened.parent().unwrap_or(&opened))
        };
        blocking("sync", &file, sync).await
    }

    /// Makes what was deleted from a local folder stay deleted after a power cut.
    pub(crate) async fn sync_folder(&self, folder: &str) -> Result<()> {
        let Some(root) = &self.folder else { return Ok(()) };
        let folder = root.join(folder);
        let synced = folder.clone();
        blocking("sync folder", &folder, move || match sync_folder(&synced) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            synced => synced,
        })
        .await
    }

    /// Makes the local folders on the way to these objects outlive a power cut. The storage does so for folders it makes, but one
    /// that was made by a process that died, or whose sync failed, would never be looked at again.
    pub(crate) async fn sync_folders_of(&self, paths: Vec<String>) -> Result<()> {
        let Some(root) = self.folder.clone() else { return Ok(()) };
        let mut folders: Vec<PathBuf> = Vec::new();
        for path in paths {
            let file = root.join(path);
            let above = file.ancestors().skip(1).take_while(|folder| folder.starts_with(&root));
            let synced = self.synced();
            folders.extend(above.filter(|folder| !synced.contains(*folder)).map(ToOwned::to_owned));
        }
        folders.sort_unstable();
        folders.dedup();
        if folders.is_empty() {
            return Ok(());
        }
        let synced = blocking("sync folders below", &root, move || {
            // Those that are not there yet are made, and synced, with their first object.
            folders.retain(|folder| folder.is_dir());
            // A folder's own entry is in the one above it.
            folders.iter().try_for_each(|folder| sync_folder(folder.parent().unwrap_or(folder)))?;
            Ok(folders)
        })
        .await?;
        self.synced().extend(synced);
        Ok(())
    }

    fn synced(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.synced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
