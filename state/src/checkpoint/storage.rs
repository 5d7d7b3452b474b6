//! A storage of objects with retries, whose errors say which object of which storage failed to do what.

use std::collections::HashSet;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Error as ObjectError, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::document::{self, Refused};
use super::error::{CheckpointError, Result, no_space, transient};

/// How often and after what waits a call that failed for a passing reason is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Calls in all, at least 1.
    pub tries: u32,
    /// The wait after the first failure; each further one is twice as long, give or take a quarter.
    pub first: Duration,
    /// No wait is longer.
    pub longest: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { tries: 6, first: Duration::from_millis(100), longest: Duration::from_secs(10) }
    }
}

impl Retry {
    /// The wait after the given number of failures (from 1).
    pub(crate) fn wait(&self, failures: u32) -> Duration {
        let wait = self.first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.longest);
        // Uploads that failed together do not come back together.
        wait.mul_f64(0.75 + 0.5 * (super::nonce() % 1024) as f64 / 1024.0)
    }
}

/// Objects, and the same by parts where there is such an interface.
#[derive(Clone)]
pub(crate) struct Objects {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) parts: Option<Arc<dyn MultipartStore>>,
}

/// Whether a call that failed may still take effect later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// Never: when the call is back, it is decided.
    Never,
    /// A server may carry out a request whose answer nobody waited for.
    Possible,
}

/// What a listing says of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Its path below the storage's root.
    pub(crate) path: String,
    pub(crate) bytes: u64,
}

/// The outcome of [`Storage::create`].
#[derive(Debug)]
pub(crate) enum Created {
    /// Written, by this call.
    Yes,
    /// Not written: something else was there before.
    No,
}

/// A storage below one root; cheap to clone.
#[derive(Clone)]
pub(crate) struct Storage {
    url: Arc<str>,
    pub(crate) objects: Objects,
    root: Path,
    /// The local folder of the root.
    pub(super) folder: Option<PathBuf>,
    late: Late,
    pub(crate) retry: Retry,
    /// Local folders whose entries in the folders above them are known to be on the disk.
    pub(super) synced: Arc<Mutex<HashSet<PathBuf>>>,
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Storage({} {})", self.url, self.root)
    }
}

impl Storage {
    pub(crate) fn new(
        url: &str,
        objects: Objects,
        root: Path,
        folder: Option<PathBuf>,
        late: Late,
        retry: Retry,
    ) -> Self {
        Self { url: url.into(), objects, root, folder, late, retry, synced: Arc::default() }
    }

    /// The same storage, with a root further down.
    pub(crate) fn below(&self, folder: &str) -> Self {
        let mut below = self.clone();
        below.root = self.at(folder);
        below.folder = self.folder.as_ref().map(|root| root.join(folder));
        below
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn late(&self) -> Late {
        self.late
    }

    /// The local folder of the root, if the storage is one.
    pub(crate) fn folder(&self) -> Option<&std::path::Path> {
        self.folder.as_deref()
    }

    /// The object's path in the storage.
    pub(crate) fn at(&self, path: &str) -> Path {
        self.root.parts().chain(path.split('/').filter(|p| !p.is_empty()).map(Into::into)).collect()
    }

    /// The name an object has in messages.
    pub(crate) fn name(&self, path: &str) -> String {
        self.at(path).to_string()
    }

    pub(crate) fn error(
        &self,
        action: &'static str,
        path: &str,
        tries: u32,
        source: ObjectError,
    ) -> CheckpointError {
        let (url, object) = (self.url.to_string(), self.name(path));
        match source {
            ObjectError::NotFound { .. } => CheckpointError::Missing { url, object },
            source if no_space(&source) => {
                CheckpointError::NoSpace { place: url, action, object, source: source.into() }
            }
            source => CheckpointError::Storage { url, action, object, tries, source: Box::new(source) },
        }
    }

    /// Calls until it works, fails for good, or has been tried often enough.
    pub(crate) async fn retrying<T, F>(
        &self,
        action: &'static str,
        path: &str,
        mut call: impl FnMut() -> F,
    ) -> Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let mut tries = 1;
        loop {
            match call().await {
                Ok(value) => return Ok(value),
                Err(e) if transient(&e) && tries < self.retry.tries => {
                    tracing::debug!(url = %self.url, object = %self.at(path), tries, error = %e, "failed to {action}, trying again");
                    tokio::time::sleep(self.retry.wait(tries)).await;
                    tries += 1;
                }
                Err(e) => return Err(self.error(action, path, tries, e)),
            }
        }
    }

    /// The whole object; `None` if there is none.
    pub(crate) async fn read(&self, path: &str) -> Result<Option<Bytes>> {
        let at = self.at(path);
        let objects = &self.objects.objects;
        let read = || async {
            match objects.get(&at).await {
                Ok(found) => found.bytes().await.map(Some),
                Err(ObjectError::NotFound { .. }) => Ok(None),
                Err(e) => Err(e),
            }
        };
        self.retrying("read", path, read).await
    }

    /// Begins to read an object.
    pub(crate) async fn get(&self, path: &str) -> object_store::Result<GetResult> {
        self.objects.objects.get(&self.at(path)).await
    }

    /// The object's length; `None` if there is none.
    pub(crate) async fn length(&self, path: &str) -> Result<Option<u64>> {
        let at = self.at(path);
        let head = || async {
            match self.objects.objects.head(&at).await {
                Ok(meta) => Ok(Some(meta.size)),
                Err(ObjectError::NotFound { .. }) => Ok(None),
                Err(e) => Err(e),
            }
        };
        self.retrying("look up", path, head).await
    }

    /// Writes an object, in place of any before it.
    pub(crate) async fn put(&self, path: &str, bytes: impl Into<Bytes>) -> Result<()> {
        let (at, bytes) = (self.at(path), bytes.into());
        let put =
            || async { self.objects.objects.put(&at, PutPayload::from_bytes(bytes.clone())).await.map(drop) };
        self.retrying("write", path, put).await
    }

    /// Writes an object if there is none. `bytes` must be unlike those of any other writer: it is how a write that was carried
    /// out though its answer was lost is known again.
    pub(crate) async fn create(&self, path: &str, bytes: impl Into<Bytes>) -> Result<Created> {
        let (at, bytes) = (self.at(path), bytes.into());
        let mut tries = 1;
        loop {
            let payload = PutPayload::from_bytes(bytes.clone());
            let put = match self.objects.objects.put_opts(&at, payload, PutMode::Create.into()).await {
                // A storage without conditional writes: look first. Two writers in the same instant are not kept apart.
                Err(ObjectError::NotImplemented { .. } | ObjectError::NotSupported { .. }) => {
                    match self.length(path).await? {
                        Some(_) => Err(None),
                        None => {
                            let payload = PutPayload::from_bytes(bytes.clone());
                            self.objects.objects.put(&at, payload).await.map_err(Some)
                        }
                    }
                }
                put => put.map_err(Some),
            };
            let error = match put {
                Ok(_) => return Ok(Created::Yes),
                Err(None) => None,
                Err(Some(e @ (ObjectError::AlreadyExists { .. } | ObjectError::Precondition { .. }))) => {
                    Some(e)
                }
                Err(Some(e)) if transient(&e) && tries < self.retry.tries => {
                    tracing::debug!(url = %self.url, object = %at, tries, error = %e, "failed to create, trying again");
                    tokio::time::sleep(self.retry.wait(tries)).await;
                    tries += 1;
                    continue;
                }
                Err(Some(e)) => return Err(self.error("create", path, tries, e)),
            };
            match (self.read(path).await?, error) {
                // Written by an earlier try of this very call, which may have failed because the disk was not told.
                (Some(found), _) if found == bytes => {
                    self.sync(path).await?;
                    return Ok(Created::Yes);
                }
                // S3 says so, too, when two requests for one object meet; neither need have succeeded.
                (None, Some(_)) if tries < self.retry.tries => {
                    tokio::time::sleep(self.retry.wait(tries)).await;
                    tries += 1;
                }
                (None, Some(e)) => return Err(self.error("create", path, tries, e)),
                _ => return Ok(Created::No),
            }
        }
    }

    /// Deletes objects, several at once; those that are gone already count as deleted.
    pub(crate) async fn delete(&self, paths: Vec<String>) -> Result<()> {
        let delete = |path: String| async move {
            let at = self.at(&path);
            let delete = || async {
                match self.objects.objects.delete(&at).await {
                    Err(ObjectError::NotFound { .. }) => Ok(()),
                    other => other,
                }
            };
            self.retrying("delete", &path, delete).await
        };
        stream::iter(paths).map(delete).buffer_unordered(8).try_collect().await
    }

    /// Everything below a folder, in order of path.
    pub(crate) async fn list(&self, folder: &str) -> Result<Vec<Listed>> {
        let (at, root) = (self.at(folder), &self.root);
        let list = || async {
            let below = |meta: object_store::ObjectMeta| {
                let parts = meta.location.prefix_match(root)?;
                let path = parts.map(|p| p.as_ref().to_owned()).collect::<Vec<_>>().join("/");
                Some(Listed { path, bytes: meta.size })
            };
            let listed = self.objects.objects.list(Some(&at));
            let mut listed: Vec<Listed> =
                listed.try_filter_map(|meta| async { Ok(below(meta)) }).try_collect().await?;
            listed.sort_unstable_by(|a, b| a.path.cmp(&b.path));
            Ok(listed)
        };
        self.retrying("list", folder, list).await
    }

    /// The names of the objects right below a folder, in order.
    pub(crate) async fn names(&self, folder: &str) -> Result<Vec<String>> {
        let listed = self.list(folder).await?;
        let name = |listed: Listed| {
            let name = listed.path.strip_prefix(folder)?.strip_prefix('/')?;
            (!name.contains('/')).then(|| name.to_owned())
        };
        Ok(listed.into_iter().filter_map(name).collect())
    }

    /// A document; `None` if there is none.
    pub(crate) async fn document<T: DeserializeOwned>(
        &self,
        path: &str,
        format: u32,
        fix: &'static str,
    ) -> Result<Option<T>> {
        match self.read(path).await? {
            Some(bytes) => self.parse(path, &bytes, format, fix).map(Some),
            None => Ok(None),
        }
    }

    /// A document's content, or the refusal that names it.
    pub(crate) fn parse<T: DeserializeOwned>(
        &self,
        path: &str,
        bytes: &[u8],
        format: u32,
        fix: &'static str,
    ) -> Result<T> {
        document::read(bytes, format).map_err(|refused| {
            let (url, object) = (self.url.to_string(), self.name(path));
            match refused {
                Refused::Unreadable(why) => CheckpointError::Unreadable { url, object, why, fix },
                Refused::Format(found) => {
                    CheckpointError::UnknownFormat { url, object, found, known: format }
                }
            }
        })
    }

    /// Writes a document in place of any before it.
    pub(crate) async fn put_document<T: Serialize>(&self, path: &str, value: &T) -> Result<()> {
        self.put(path, document::write(value)).await
    }
}
