//! A job's checkpoint storage as the engine uses it: opened under a lease, with threads of its own, one checkpoint at a time
//! (over 400 lines: the steps share one state behind one lock, and are read in the order they happen).

use std::collections::HashMap;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use weir_state::checkpoint::{
    AttemptRecord, CheckpointError, CheckpointStore, FileProgress, Kind, Lease, Manifest, Part, Pending,
    Saved, UploadReport,
};
use weir_state::store::LocalPart;

use super::begin::{Begun, Opened, begin, give_back, newest_of_all};
use super::config::Checkpoints;
use super::env::{folder_name, is_past_life};
use super::waits::Waits;
use crate::error::{Result as TaskResult, TaskError};
use crate::ids::CheckpointId;
use crate::time::SharedClock;

/// Threads that drive uploads, and threads that wait for the disk.
pub(super) const STORAGE_WORKERS: usize = 2;
pub(super) const STORAGE_WAITERS: usize = 8;
/// Threads that write snapshots into local files: not those that wait for the storage, which may stall while this disk does not.
pub(super) const STORAGE_WRITERS: usize = 3;
/// How long a clean end may wait for the lease to be given back.
const CLOSING: Duration = Duration::from_secs(5);

/// What became of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Publication {
    Done,
    /// It is not there and never will be.
    Failed(String),
    /// Nobody knows: the attempt must end, and the next one look.
    Unsure(String),
    /// Another process has the job: this one must end.
    Fenced(String),
}

/// Why it is not known where the next life begins.
#[derive(Debug)]
pub(crate) enum NotFound {
    /// The storage failed.
    Failed(String),
    /// Another process has the job: this one must end.
    Fenced(String),
}

/// The checkpoint in the making.
enum Making {
    None,
    /// A savepoint's folder is being looked at.
    Opening(CheckpointId),
    Open(CheckpointId, Pending),
}

struct Flight {
    making: Making,
    /// What everybody's last part is for, when the job is being stopped with a savepoint.
    stop_with: Option<String>,
    savepoint: Option<(CheckpointId, String)>,
    /// What the attempt at hand begins from.
    from: Option<Saved>,
    completed: Option<CheckpointId>,
    /// The parts of the newest checkpoint that this process completed or began from.
    previous: HashMap<(String, usize), Part>,
    publishing: Option<JoinHandle<()>>,
    /// The folder of the life at hand, in each of the job's.
    life: String,
    folders: Vec<PathBuf>,
}

/// The threads that drive uploads, those that wait for the storage, and those that write snapshots.
struct Threads(Vec<Runtime>);

impl Threads {
    fn start() -> Result<Self, String> {
        let storage = Builder::new_multi_thread()
            .worker_threads(STORAGE_WORKERS)
            .max_blocking_threads(STORAGE_WAITERS)
            .thread_name("weir-storage")
            .enable_all()
            .build();
        // Nothing drives this one: only its blocking threads are of use.
        let writers = Builder::new_current_thread()
            .max_blocking_threads(STORAGE_WRITERS)
            .thread_name("weir-snapshots")
            .build();
        let runtimes: Result<_, _> = [storage, writers].into_iter().collect();
        runtimes.map(Threads).map_err(|e| format!("cannot start the threads that write checkpoints: {e}"))
    }

    fn storage(&self) -> &Handle {
        self.0[0].handle()
    }

    fn writers(&self) -> &Handle {
        self.0[1].handle()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // A runtime must not be dropped where its threads may be waited for, and whatever they do, the job is over.
        self.0.drain(..).for_each(Runtime::shutdown_background);
    }
}

pub(crate) struct Storage {
    /// Gone once the job is over.
    threads: Mutex<Option<Threads>>,
    handle: Handle,
    writers: Handle,
    store: CheckpointStore,
    lease: Lease,
    /// Renews the lease, and ends when another process has the job.
    keeping: Mutex<Option<JoinHandle<CheckpointError>>>,
    config: Checkpoints,
    /// Checkpoints from this number on are this process's own.
    first: u64,
    flight: Mutex<Flight>,
    opened: Notify,
}

impl Storage {
    /// Opens the storage, takes the lease, and finds where to begin.
    pub(crate) async fn open(
        config: Checkpoints,
        job: String,
        clock: SharedClock,
    ) -> Result<(Arc<Self>, Begun), String> {
        let threads = Threads::start()?;
        let handle = threads.storage().clone();
        let opening = handle.spawn(begin(config.clone(), job, clock));
        match opening.await {
            Ok(Ok(Opened { store, lease, keeping, from, begun })) => {
                let storage = Arc::new(Storage {
                    writers: threads.writers().clone(),
                    threads: Mutex::new(Some(threads)),
                    handle,
                    store,
                    lease,
                    keeping: Mutex::new(Some(keeping)),
                    config,
                    first: begun.next,
                    flight: Mutex::new(Flight {
                        making: Making::None,
                        stop_with: None,
                        savepoint: None,
                        previous: HashMap::new(),
                        from,
                        completed: None,
                        publishing: None,
                        life: String::new(),
                        folders: Vec::new(),
                    }),
                    opened: Notify::new(),
                });
                Ok((storage, begun))
            }
            Ok(Err(reason)) => Err(reason),
            Err(e) => Err(format!("opening {} ended early: {e}", config.url)),
        }
    }

    fn flight(&self) -> MutexGuard<'_, Flight> {
        self.flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `task` on the storage's threads.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(task));
    }

    /// Writes a snapshot on one of the threads that are for that.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        snapshot: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let written = self.writers.spawn_blocking(snapshot).await;
        written.unwrap_or_else(|e| Err(format!("writing it ended early: {e}")))
    }

    /// Resolves when another process has the job.
    pub(crate) async fn fenced(self: Arc<Self>) -> String {
        let keeping = self.keeping.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeping) = keeping
            && let Ok(error) = keeping.await
        {
            return chain(&error);
        }
        // Somebody waits already, or the threads are gone since the job is over.
        std::future::pending().await
    }

    /// An attempt begins; its local files lie in `life`, in each of `folders`.
    pub(crate) fn begin_attempt(&self, life: String, folders: Vec<PathBuf>) {
        let mut flight = self.flight();
        flight.life = life;
        flight.folders = folders;
        flight.making = Making::None;
        // What was restored need not be uploaded again, as far as its files are still the same by then.
        flight.previous = flight.from.as_ref().map_or_else(HashMap::new, parts_of);
    }

    /// A checkpoint begins, now and not when the answer is waited for: uploads may come at once. A savepoint's name is free, or
    /// this fails.
    pub(crate) fn begin_checkpoint(
        self: Arc<Self>,
        id: CheckpointId,
        savepoint: Option<String>,
    ) -> impl Future<Output = Result<(), String>> {
        match &savepoint {
            None => {
                let pending = self.store.begin(id.0);
                self.flight().making = Making::Open(id, pending);
                self.opened.notify_waiters();
            }
            Some(name) => {
                let mut flight = self.flight();
                flight.making = Making::Opening(id);
                flight.savepoint = Some((id, name.clone()));
            }
        }
        async move {
            match savepoint {
                None => Ok(()),
                Some(name) => self.begin_savepoint(id, name).await,
            }
        }
    }

    async fn begin_savepoint(&self, id: CheckpointId, name: String) -> Result<(), String> {
        let store = self.store.clone();
        let begun = self.handle.spawn(async move { store.begin_savepoint(id.0, &name).await }).await;
        let begun = begun.map_err(|e| e.to_string()).and_then(|b| b.map_err(|e| chain(&e)));
        let mut flight = self.flight();
        let outcome = match begun {
            Ok(pending) if matches!(flight.making, Making::Opening(open) if open == id) => {
                flight.making = Making::Open(id, pending);
                Ok(())
            }
            Ok(pending) => {
                pending.discard();
                return Err(format!("checkpoint {id} is over"));
            }
            Err(reason) => {
                // Another one may have begun since.
                if matches!(flight.making, Making::Opening(open) if open == id) {
                    flight.making = Making::None;
                }
                Err(reason)
            }
        };
        self.opened.notify_waiters();
        outcome
    }

    /// Whether a savepoint may have that name.
    pub(crate) async fn may_save_as(self: Arc<Self>, name: String) -> Result<(), String> {
        let store = self.store.clone();
        let free = self.handle.spawn(async move { store.may_begin_savepoint(&name).await }).await;
        free.map_err(|e| e.to_string())?.map_err(|e| chain(&e))
    }

    /// The job is being stopped, and what its tasks leave is a savepoint.
    pub(crate) fn stop_with(&self, name: &str) {
        self.flight().stop_with = Some(name.to_owned());
    }

    /// Is what is frozen for this checkpoint to be portable?
    pub(crate) fn is_savepoint(&self, id: CheckpointId) -> bool {
        let flight = self.flight();
        let last = id == crate::Barrier::LAST.checkpoint && flight.stop_with.is_some();
        last || flight.savepoint.as_ref().is_some_and(|(of, _)| *of == id)
    }

    /// Waits for the checkpoint to be open for uploads; none when it is over. Holds no thread meanwhile: to open a savepoint
    /// takes one of those that wait for the disk, and there may be more tasks than these.
    async fn pending(&self, id: CheckpointId) -> Option<Pending> {
        loop {
            // Before the look: what is told right after it is not missed.
            let mut told = pin!(self.opened.notified());
            told.as_mut().enable();
            match &self.flight().making {
                Making::Open(open, pending) if *open == id => return Some(pending.clone()),
                Making::Opening(opening) if *opening == id => {}
                _ => return None,
            }
            told.await;
        }
    }

    /// Uploads one part; what the checkpoint before has is not uploaded again.
    pub(crate) async fn upload(
        self: &Arc<Self>,
        uid: &str,
        local: LocalPart,
        id: CheckpointId,
    ) -> Result<UploadReport, String> {
        let Some(pending) = self.pending(id).await else { return Err(format!("checkpoint {id} is over")) };
        let previous = self.flight().previous.get(&(uid.to_owned(), local.subtask)).cloned();
        let report = pending.upload_part(uid, local, previous.as_ref()).await;
        report.map_err(|e| chain(&e))
    }

    /// Files on their way to storage, the one longest in its phase first.
    pub(crate) fn uploading(&self) -> Vec<FileProgress> {
        match &self.flight().making {
            Making::Open(_, pending) => pending.progress().pending(),
            Making::None | Making::Opening(_) => Vec::new(),
        }
    }

    /// Publishes the manifest. `tell` hears what became of it.
    pub(crate) fn publish(
        self: &Arc<Self>,
        id: CheckpointId,
        manifest: Manifest,
        tell: impl FnOnce(Publication, Option<Arc<Manifest>>) + Send + 'static,
    ) {
        let Some(pending) = self.open_pending(id) else {
            return tell(Publication::Failed(format!("checkpoint {id} is over")), None);
        };
        let own = self.clone();
        let task = self.handle.spawn(async move {
            match own.store.publish(&pending, manifest, &own.lease).await {
                Ok(saved) => {
                    let manifest = Arc::new(saved.manifest().clone());
                    own.published(id, saved);
                    tell(Publication::Done, Some(manifest));
                    own.tidy().await;
                }
                Err(e) if e.is_fenced() => tell(Publication::Fenced(chain(&e)), None),
                Err(e @ CheckpointError::Unsure { .. }) => tell(Publication::Unsure(chain(&e)), None),
                Err(e) => {
                    pending.discard();
                    tell(Publication::Failed(chain(&e)), None);
                }
            }
        });
        self.flight().publishing = Some(task);
    }

    fn open_pending(&self, id: CheckpointId) -> Option<Pending> {
        match &self.flight().making {
            Making::Open(open, pending) if *open == id => Some(pending.clone()),
            _ => None,
        }
    }

    fn published(&self, id: CheckpointId, saved: Saved) {
        let mut flight = self.flight();
        flight.making = Making::None;
        if saved.manifest().kind == Kind::Checkpoint {
            flight.completed = Some(id);
            flight.previous = parts_of(&saved);
            flight.from = Some(saved);
        }
    }

    /// Old checkpoints go; what cannot be removed now goes another time.
    async fn tidy(&self) {
        match self.store.retain(self.config.retain, &self.lease).await {
            Ok(deleted) if !deleted.unreadable.is_empty() => {
                tracing::warn!(unreadable = ?deleted.unreadable, "old checkpoints are kept: some manifests cannot be read");
            }
            Ok(_) => {}
            Err(e) => {
                tracing::warn!("old checkpoints could not be removed: {}", chain(&e));
                // The other lives' files may be those of a process that has overtaken this one.
                if e.is_fenced() {
                    return;
                }
            }
        }
        self.forget_other_lives();
    }

    /// Local files of lives before this one: once this one has a checkpoint of its own nobody needs them. Those of a life after
    /// it are somebody else's, who has overtaken this process without its knowing yet.
    fn forget_other_lives(&self) {
        let (life, folders) = {
            let flight = self.flight();
            (flight.life.clone(), flight.folders.clone())
        };
        for entry in folders.iter().flat_map(|f| fs::read_dir(f).into_iter().flatten().flatten()) {
            if entry.file_name().to_str().is_some_and(|n| is_past_life(n, &life)) {
                // What cannot be removed is found again after the next checkpoint.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// The checkpoint is given up.
    pub(crate) fn give_up(&self, id: CheckpointId) {
        let mut flight = self.flight();
        let making = std::mem::replace(&mut flight.making, Making::None);
        match making {
            Making::Open(open, pending) if open == id => pending.discard(),
            Making::Opening(open) if open == id => {}
            other => flight.making = other,
        }
        drop(flight);
        self.opened.notify_waiters();
    }

    /// The newest checkpoint or savepoint, as the storage tells: a manifest may be there although nobody heard of it. One that
    /// this process did not take counts only if it began from it. A savepoint counts because another process would begin from
    /// it: a life from before it would have its sinks throw away what it holds.
    ///
    /// # Errors
    /// The storage fails; or, said apart, another process has the job.
    pub(crate) async fn newest(self: Arc<Self>) -> Result<Option<Arc<Manifest>>, NotFound> {
        let publishing = self.flight().publishing.take();
        if let Some(publishing) = publishing {
            // Its outcome is in storage.
            let _ = publishing.await;
        }
        let own = self.clone();
        let found = self.handle.spawn(async move {
            let newest = newest_of_all(&own.store).await?;
            // What a life does first, sinks throwing away what no checkpoint names, must not be done to another process's.
            own.lease.renew().await?;
            Ok::<_, CheckpointError>(newest.filter(|saved| saved.manifest().id >= own.first))
        });
        let found = found.await.map_err(|e| NotFound::Failed(e.to_string()))?;
        let found = found.map_err(|e| match e.is_fenced() {
            true => NotFound::Fenced(chain(&e)),
            false => NotFound::Failed(chain(&e)),
        })?;
        let mut flight = self.flight();
        if let Some(saved) = found {
            flight.from = Some(saved);
        }
        Ok(flight.from.as_ref().map(|saved| Arc::new(saved.manifest().clone())))
    }

    /// Brings a part's files back. Called on a task's own thread, which is held up no longer than until `waits` are cancelled.
    pub(crate) fn download(&self, uid: &str, part: &Part, into: &Path, waits: &Waits) -> TaskResult<()> {
        let (from, folders) = {
            let flight = self.flight();
            (flight.from.clone(), flight.folders.clone())
        };
        let Some(from) = from else {
            return Err(TaskError::internal("a part was restored of no checkpoint"));
        };
        let reuse = local_copies(&folders, uid, part.subtask);
        let read = waits.unless_cancelled(from.download_part(part, into, &reuse));
        let report = self.handle.block_on(read)?;
        let report = report.map_err(|e| TaskError::external("cannot read its state back").caused_by(e))?;
        tracing::info!(
            operator = uid,
            subtask = part.subtask,
            downloaded = report.downloaded_bytes,
            reused = report.reused_bytes,
            "restore state read back in {} ms",
            report.download_ms
        );
        Ok(())
    }

    pub(crate) fn completed(&self) -> Option<CheckpointId> {
        self.flight().completed
    }

    /// Where a savepoint of that name lies.
    pub(crate) fn savepoint_address(&self, name: &str) -> String {
        self.store.savepoint_url(name)
    }

    /// The lease epoch, for records.
    pub(crate) fn epoch(&self) -> u64 {
        self.lease.epoch()
    }

    /// Keeps the record of an attempt at a checkpoint, if the storage lets us.
    pub(crate) fn keep_record(&self, record: AttemptRecord) {
        let store = self.store.clone();
        self.spawn(async move {
            if let Err(e) = store.record_attempt(&record).await {
                tracing::warn!(
                    checkpoint = record.id,
                    "the record of a checkpoint could not be kept: {}",
                    chain(&e)
                );
            }
        });
    }

    /// The job is over: gives the lease back, removes local files, ends the threads. After anything but a clean end, local
    /// files stay for the next process.
    pub(crate) async fn close(self: Arc<Self>, clean: bool) {
        let publishing = self.flight().publishing.take();
        let own = self.clone();
        let closing = self.handle.spawn(async move {
            if let Some(publishing) = publishing {
                let _ = publishing.await;
            }
            own.store.idle().await;
            give_back(&own.lease).await;
        });
        // Whatever storage does, the job is over.
        let _ = tokio::time::timeout(CLOSING, closing).await;
        if clean {
            for folder in &self.flight().folders {
                let _ = fs::remove_dir_all(folder);
            }
        }
        drop(self.threads.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// The parts of a checkpoint, by operator and subtask.
fn parts_of(saved: &Saved) -> HashMap<(String, usize), Part> {
    let operators = saved.manifest().operators.iter();
    operators.flat_map(|o| o.parts.iter().map(|p| ((o.uid.clone(), p.subtask), p.clone()))).collect()
}

/// An error and its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        text.push_str(": ");
        text.push_str(&e.to_string());
        cause = e.source();
    }
    text
}

/// Folders of files that this machine may still have of the operator, whichever life they are of.
fn local_copies(folders: &[PathBuf], uid: &str, subtask: usize) -> Vec<PathBuf> {
    let own = format!("{}-{subtask}", folder_name(uid));
    let subfolders = |of: PathBuf| fs::read_dir(of).into_iter().flatten().flatten().map(|e| e.path());
    (folders.iter().cloned())
        .flat_map(subfolders)
        .flat_map(|attempt| subfolders(attempt.join(&own)))
        .filter(|cut| cut.is_dir())
        .collect()
}
