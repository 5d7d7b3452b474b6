//! A job's savepoints: begun, found by name or place, and told from those that a process completed after it had lost the job.

use super::error::{CheckpointError, Result};
use super::lease;
use super::manifest::{Kind, MANIFEST_FORMAT, Manifest};
use super::names;
use super::open::{self, Want};
use super::pending::{Making, Pending};
use super::saved::Saved;
use super::store::{CheckpointStore, MANIFEST_FIX, listing};

impl CheckpointStore {
    /// Begins savepoint `name`, which takes part in the numbering as checkpoint `id`. What an earlier try of this name left
    /// behind is removed.
    ///
    /// # Errors
    /// [`CheckpointError::Exists`] if there is a savepoint of that name, [`CheckpointError::BadName`]; when the storage fails.
    pub async fn begin_savepoint(&self, id: u64, name: &str) -> Result<Pending> {
        self.may_begin_savepoint(name).await?;
        let folder = folder_of(name);
        let left = self.0.storage.list(&folder).await?;
        self.0.storage.delete(left.into_iter().map(|file| file.path).collect()).await?;
        Ok(Pending::new(Making::new(self.0.clone(), id, Kind::Savepoint, Some(folder))))
    }

    /// Says whether a savepoint of that name may be begun; changes nothing.
    ///
    /// # Errors
    /// The name is not one, or is taken by a complete savepoint, or the storage fails.
    pub async fn may_begin_savepoint(&self, name: &str) -> Result<()> {
        if !names::is_reversible(name) || name.contains(['/', '\\']) {
            return Err(CheckpointError::BadName {
                name: name.to_owned(),
                why: "it must have 1 to 40 characters, none of them a slash",
            });
        }
        if self.0.storage.length(&manifest_of(name)).await?.is_none() {
            return Ok(());
        }
        match self.named(name).await {
            // Nobody may begin from it: it is in nobody's way.
            Ok(None) | Err(CheckpointError::Disowned { .. }) => Ok(()),
            Ok(Some(_)) | Err(CheckpointError::Unreadable { .. } | CheckpointError::UnknownFormat { .. }) => {
                Err(CheckpointError::Exists {
                    what: format!("savepoint '{name}'"),
                    url: self.url().to_owned(),
                    fix: "choose another name, or delete its folder",
                })
            }
            Err(error) => Err(error),
        }
    }

    /// The savepoints of this job, by name, in order. Half-written ones are not among them.
    ///
    /// # Errors
    /// When the storage fails.
    pub async fn savepoints(&self) -> Result<Vec<String>> {
        let segments = lease::saved_segments(&self.0.storage).await?;
        Ok(segments.iter().map(|segment| names::unescape(segment)).collect())
    }

    /// The savepoint of this job with the greatest number; `None` if there is none. One that a process completed after it had
    /// lost the job is passed over.
    ///
    /// # Errors
    /// When the storage fails, or a savepoint's manifest cannot be read: it might be the newest.
    pub async fn newest_savepoint(&self) -> Result<Option<Saved>> {
        let mut newest: Option<Saved> = None;
        for name in self.savepoints().await? {
            match self.named(&name).await {
                Ok(saved) => {
                    let newer =
                        |saved: &Saved| newest.as_ref().is_none_or(|n| n.manifest().id < saved.manifest().id);
                    if let Some(saved) = saved.filter(newer) {
                        newest = Some(saved);
                    }
                }
                Err(error @ CheckpointError::Disowned { .. }) => {
                    tracing::warn!(%error, "a savepoint is passed over");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(newest)
    }

    /// The greatest number that a savepoint of the job has, whether it counts or not. Those that cannot be read are passed over.
    pub(super) async fn last_savepoint_id(&self) -> Result<u64> {
        let mut last = 0;
        for name in self.savepoints().await? {
            match self.manifest_named(&name).await {
                Ok(manifest) => last = last.max(manifest.map_or(0, |manifest| manifest.id)),
                Err(error @ (CheckpointError::Unreadable { .. } | CheckpointError::UnknownFormat { .. })) => {
                    tracing::warn!(%error, "a savepoint is passed over when checkpoints are numbered");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(last)
    }

    /// Where a savepoint of that name lies, or would: what [`load_savepoint`](Self::load_savepoint) takes.
    pub fn savepoint_url(&self, name: &str) -> String {
        format!("{}{}", self.savepoints_url(), names::escape(name))
    }

    fn savepoints_url(&self) -> String {
        let (url, job) = (self.url().trim_end_matches('/'), names::escape(self.job()));
        format!("{url}/{job}/{}/", names::SAVEPOINTS)
    }

    /// A savepoint: of this job by name, or of any job by the URL or path of its folder (or of the `savepoint.json` in it),
    /// wherever it was moved to.
    ///
    /// # Errors
    /// [`CheckpointError::NotFound`] says which there are; [`CheckpointError::Disowned`]; when its manifest cannot be read.
    pub async fn load_savepoint(&self, path_or_name: &str) -> Result<Saved> {
        let given = path_or_name.strip_suffix(names::SAVEPOINT_MANIFEST).unwrap_or(path_or_name);
        let is_path = given.contains(['/', '\\']);
        // The address of one of this job's own is as good as its name.
        let own = given.trim_end_matches('/').strip_prefix(&self.savepoints_url());
        let own =
            own.map(names::unescape).filter(|name| self.savepoint_url(name) == given.trim_end_matches('/'));
        let name = own.or_else(|| (!is_path).then(|| path_or_name.to_owned()));
        let (found, url) = match &name {
            Some(name) => (self.named(name).await?, self.url().to_owned()),
            None => {
                let storage = open::open(given, Want::Readable, &self.0.options).await?;
                let manifest: Option<Manifest> =
                    storage.document(names::SAVEPOINT_MANIFEST, MANIFEST_FORMAT, MANIFEST_FIX).await?;
                let url = storage.url().to_owned();
                (manifest.map(|manifest| Saved::new(manifest, storage, self.0.clone())), url)
            }
        };
        match found {
            Some(saved) => Ok(saved),
            None => Err(CheckpointError::NotFound {
                what: match &name {
                    None => format!("a savepoint ({})", names::SAVEPOINT_MANIFEST),
                    Some(name) => format!("savepoint '{name}' of job '{}'", self.job()),
                },
                url,
                known: listing(self.savepoints().await?.into_iter()),
            }),
        }
    }

    async fn manifest_named(&self, name: &str) -> Result<Option<Manifest>> {
        self.0.storage.document(&manifest_of(name), MANIFEST_FORMAT, MANIFEST_FIX).await
    }

    /// The savepoint of that name, if there is one that counts.
    async fn named(&self, name: &str) -> Result<Option<Saved>> {
        let Some(manifest) = self.manifest_named(name).await? else { return Ok(None) };
        let before = lease::saved_before(&self.0.storage).await?;
        if before.is_some_and(|before| !before.counts(&names::escape(name), manifest.epoch)) {
            return Err(CheckpointError::Disowned {
                name: name.to_owned(),
                url: self.url().to_owned(),
                job: self.job().to_owned(),
                epoch: manifest.epoch,
            });
        }
        Ok(Some(Saved::new(manifest, self.0.storage.below(&folder_of(name)), self.0.clone())))
    }
}

fn folder_of(name: &str) -> String {
    format!("{}/{}", names::SAVEPOINTS, names::escape(name))
}

fn manifest_of(name: &str) -> String {
    format!("{}/{}", folder_of(name), names::SAVEPOINT_MANIFEST)
}
