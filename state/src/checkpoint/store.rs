//! A job's checkpoints in a storage: begun, published atomically under the job's lease, listed, and read back.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use object_store::ObjectStore;
use object_store::multipart::MultipartStore;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use super::bandwidth::Bandwidth;
use super::books::Books;
use super::error::{CheckpointError, Result};
use super::incremental::{Fence, counts};
use super::lease;
use super::manifest::{Kind, MANIFEST_FORMAT, Manifest};
use super::names::{self, CheckpointKey};
use super::open::{self, Want};
use super::pending::{Making, Pending};
use super::saved::Saved;
use super::storage::{Late, Objects, Retry, Storage};

/// Gives the time of day in milliseconds since the Unix epoch.
pub type WallClock = Arc<dyn Fn() -> i64 + Send + Sync>;

pub(crate) const MANIFEST_FIX: &str = "restore from another checkpoint or savepoint by name, or start fresh";

/// How a storage is used.
#[derive(Clone)]
pub struct StoreOptions {
    /// How many files, or parts of large files, are uploaded or downloaded at once: all jobs' tasks together.
    pub parallel: usize,
    /// Larger files are uploaded in parts of this many bytes; S3 wants at least 5 MiB. `parallel` times this is the memory
    /// that uploads may take.
    pub part_bytes: u64,
    /// The limit on uploads; clones of one value share it, so one for the process limits the process.
    pub bandwidth: Bandwidth,
    /// What is done about failures that may pass.
    pub retry: Retry,
    /// Settings for S3 by their `AWS_…` names in lower case, such as `aws_endpoint`, over those in the environment.
    pub s3: Vec<(String, String)>,
    /// How many attempt records are kept.
    pub records: usize,
    /// The time of day.
    pub wall_ms: WallClock,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            parallel: 4,
            part_bytes: 8 << 20,
            bandwidth: Bandwidth::unlimited(),
            retry: Retry::default(),
            s3: Vec::new(),
            records: 100,
            wall_ms: Arc::new(system_ms),
        }
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.s3.iter().map(|(key, _)| key.as_str()).collect();
        f.debug_struct("StoreOptions")
            .field("parallel", &self.parallel)
            .field("part_bytes", &self.part_bytes)
            .field("bandwidth", &self.bandwidth)
            .field("retry", &self.retry)
            .field("s3", &keys)
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}

fn system_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX))
}

/// The checkpoints, savepoints, attempt records, lease and restart ledger of one job; cheap to clone.
///
/// All calls are asynchronous and must run on the tokio runtime it was opened on, with time and I/O enabled; waiting for the local
/// disk is done on that runtime's blocking threads.
#[derive(Clone, Debug)]
pub struct CheckpointStore(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) job: String,
    /// Its root is the job's folder.
    pub(crate) storage: Storage,
    pub(crate) options: StoreOptions,
    pub(crate) slots: Semaphore,
    /// Of the slots, those that savepoints may take.
    pub(crate) savepoint_slots: Semaphore,
    pub(crate) runtime: Handle,
    /// How many checkpoints are in the making.
    pub(crate) busy: watch::Sender<usize>,
    books: Mutex<Books>,
}

impl Inner {
    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> i64 {
        (self.options.wall_ms)()
    }
}

impl CheckpointStore {
    /// Opens the storage of a job: a local folder (a path, or `file:///path`), `memory://name` (lives as long as the process, the
    /// same for everybody who names it), or `s3://bucket/prefix` (credentials, region and endpoint from the `AWS_…`
    /// environment variables; plain http only for this machine). A folder is made if it is not there.
    ///
    /// # Errors
    /// [`CheckpointError::Open`] says what is wrong and what to do.
    pub async fn open(url: &str, job: &str, options: StoreOptions) -> Result<Self> {
        let storage = open::open(url, Want::Writable, &options).await?;
        Ok(Self::on(storage, job, options))
    }

    /// The same over any object storage: for tests that put faults in between. `parts` is the same storage's interface for
    /// uploads in parts, if it has one.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn over(
        objects: Arc<dyn ObjectStore>,
        parts: Option<Arc<dyn MultipartStore>>,
        job: &str,
        options: StoreOptions,
    ) -> Self {
        let url = objects.to_string();
        let root = object_store::path::Path::default();
        let storage =
            Storage::new(&url, Objects { objects, parts }, root, None, Late::Possible, options.retry);
        Self::on(storage, job, options)
    }

    fn on(storage: Storage, job: &str, options: StoreOptions) -> Self {
        Self(Arc::new(Inner {
            job: job.to_owned(),
            storage: storage.below(&names::escape(job)),
            slots: Semaphore::new(options.parallel.max(1)),
            savepoint_slots: Semaphore::new(options.parallel.saturating_sub(1).max(1)),
            runtime: Handle::current(),
            busy: watch::Sender::new(0),
            books: Mutex::default(),
            options,
        }))
    }

    /// The storage's URL as it was given.
    pub fn url(&self) -> &str {
        self.0.storage.url()
    }

    /// The job's name.
    pub fn job(&self) -> &str {
        &self.0.job
    }

    /// How it is used.
    pub fn options(&self) -> &StoreOptions {
        &self.0.options
    }

    // ---- writing

    /// Begins checkpoint `id`, which must be greater than that of any checkpoint there is ([`next_id`](Self::next_id)).
    pub fn begin(&self, id: u64) -> Pending {
        Pending::new(Making::new(self.0.clone(), id, Kind::Checkpoint, None))
    }

    /// Waits until no checkpoint is in the making and the files of those that were given up are deleted.
    pub async fn idle(&self) {
        let mut busy = self.0.busy.subscribe();
        let _ = busy.wait_for(|busy| *busy == 0).await;
    }

    // ---- reading

    /// The newest checkpoint; `None` if there is none.
    ///
    /// # Errors
    /// When the storage fails, or the newest manifest cannot be read: an older one is never taken in its place unasked. Use
    /// [`load`](Self::load) to name one.
    pub async fn latest(&self) -> Result<Option<Saved>> {
        match self.list().await?.last() {
            Some(key) => self.read(*key).await.map(Some),
            None => Ok(None),
        }
    }

    /// The checkpoints there are, oldest first.
    ///
    /// # Errors
    /// When the storage fails, or the lease file that says which of them count cannot be read.
    pub async fn list(&self) -> Result<Vec<CheckpointKey>> {
        let keys = self.listed().await?;
        let fences = lease::fences(&self.0.storage).await?;
        Ok(counted(&keys, &fences))
    }

    /// Every manifest in the storage, whether it counts or not.
    pub(crate) async fn listed(&self) -> Result<Vec<CheckpointKey>> {
        let names = self.0.storage.names(names::CHECKPOINTS).await?;
        let mut keys: Vec<CheckpointKey> =
            names.iter().filter_map(|name| CheckpointKey::parse(name)).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    /// The checkpoint of that number.
    ///
    /// # Errors
    /// [`CheckpointError::NotFound`] says which there are; when its manifest cannot be read.
    pub async fn load(&self, id: u64) -> Result<Saved> {
        let keys = self.list().await?;
        match keys.iter().rev().find(|key| key.id == id) {
            Some(key) => self.read(*key).await,
            None => Err(CheckpointError::NotFound {
                what: format!("checkpoint {id} of job '{}'", self.0.job),
                url: self.url().to_owned(),
                known: listing(keys.iter().map(|key| key.id.to_string())),
            }),
        }
    }

    pub(crate) async fn read(&self, key: CheckpointKey) -> Result<Saved> {
        let manifest: Option<Manifest> =
            self.0.storage.document(&key.path(), MANIFEST_FORMAT, MANIFEST_FIX).await?;
        let manifest = manifest.ok_or_else(|| CheckpointError::Missing {
            url: self.url().to_owned(),
            object: self.0.storage.name(&key.path()),
        })?;
        let files: BTreeSet<String> = manifest.files().map(|file| file.path.clone()).collect();
        self.0.books().publish(key, files);
        Ok(Saved::new(manifest, self.0.storage.clone(), self.0.clone()))
    }
}

/// The keys that count.
pub(crate) fn counted(keys: &[CheckpointKey], fences: &[Fence]) -> Vec<CheckpointKey> {
    keys.iter().copied().filter(|key| counts(*key, fences)).collect()
}

/// What there is, for a message.
pub(crate) fn listing(names: impl DoubleEndedIterator<Item = String>) -> String {
    let mut newest: Vec<String> = names.rev().take(11).collect();
    let more = newest.len() > 10;
    newest.truncate(10);
    newest.reverse();
    match (newest.is_empty(), more) {
        (true, _) => "none".into(),
        (false, true) => format!("…, {}", newest.join(", ")),
        (false, false) => newest.join(", "),
    }
}
