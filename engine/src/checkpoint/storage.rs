//! A job's checkpoint storage as the engine uses it: opened under a lease, with threads of its own, one checkpoint at a time and a
//! savepoint beside it (over 400 lines: the steps share one state behind one lock, and are read in the order they happen).

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use weir_state::checkpoint::{
    AttemptRecord, BegunFrom, CheckpointError, CheckpointStore, FileProgress, Kind, Lease, Manifest, Part,
    Pending, Reached, Saved, UploadReport,
};
use weir_state::store::LocalPart;

use super::begin::{Begun, Opened, begin, give_back, gone, newest_of_all, reached_by};
use super::config::Checkpoints;
use super::cuts::local_copies;
use super::local::LocalFolders;
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
/// How long it may wait for local files to be removed.
const CLEARING: Duration = Duration::from_secs(60);

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
    /// The newest one is not there any more: the job must not go on from an older one unasked.
    Gone(String),
}

/// A checkpoint in the making.
pub(super) enum Making {
    /// A savepoint's folder is being looked at.
    Opening,
    Open(Pending),
}

/// A manifest on its way.
struct Publishing {
    task: JoinHandle<()>,
    /// Of a savepoint: it may take as long as it likes.
    savepoint: bool,
}

#[derive(Default)]
pub(super) struct Flight {
    pub(super) making: HashMap<CheckpointId, Making>,
    /// What everybody's last part is for, when the job is being stopped with a savepoint.
    stop_with: Option<String>,
    /// Those of the attempt at hand that are savepoints, by name.
    savepoints: HashMap<CheckpointId, String>,
    /// What the attempt at hand begins from.
    from: Option<Saved>,
    completed: Option<CheckpointId>,
    /// The newest that sinks of this process have committed, or that one of its lives began from.
    reached: Option<u64>,
    /// The parts of the newest checkpoint that this process completed or began from.
    previous: HashMap<(String, usize), Part>,
    publishing: Vec<Publishing>,
    /// The folder of the life at hand, in each of the job's.
    pub(super) life: String,
    pub(super) local: Arc<LocalFolders>,
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
    pub(super) handle: Handle,
    pub(super) writers: Handle,
    pub(super) store: CheckpointStore,
    pub(super) lease: Lease,
    /// Renews the lease, and ends when another process has the job.
    keeping: Mutex<Option<JoinHandle<CheckpointError>>>,
    config: Checkpoints,
    /// Checkpoints from this number on are this process's own.
    first: u64,
    /// What the process before began from.
    before: Option<BegunFrom>,
    flight: Mutex<Flight>,
    opened: Notify,
    /// Local files of other lives are being removed.
    pub(super) forgetting: AtomicBool,
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
                    before: begun.before.clone(),
                    flight: Mutex::new(Flight { from, ..Flight::default() }),
                    opened: Notify::new(),
                    forgetting: AtomicBool::new(false),
                });
                Ok((storage, begun))
            }
            Ok(Err(reason)) => Err(reason),
            Err(e) => Err(format!("opening {} ended early: {e}", config.url)),
        }
    }

    pub(super) fn flight(&self) -> MutexGuard<'_, Flight> {
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

    /// The job begins: from now on sinks may commit what it begins from.
    pub(crate) fn accepted(&self) {
        let flight = self.flight();
        flight.from.iter().for_each(|saved| self.lease.reach(reached_by(saved)));
    }

    /// The job does not begin after all: nothing was done to what sinks have prepared.
    pub(crate) fn refused(&self) {
        drop(self.lease.begin(self.before.clone()));
    }

    /// An attempt begins; its local files lie in `life`, in each of the folders.
    pub(crate) fn begin_attempt(&self, life: String, local: Arc<LocalFolders>) {
        let mut flight = self.flight();
        flight.life = life;
        flight.local = local;
        flight.making.clear();
        flight.savepoints.clear();
        // As long as this life has none of its own, a restart takes what it was restored from.
        flight.completed = None;
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
                self.flight().making.insert(id, Making::Open(pending));
                self.opened.notify_waiters();
            }
            Some(name) => {
                let mut flight = self.flight();
                flight.making.insert(id, Making::Opening);
                flight.savepoints.insert(id, name.clone());
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
            Ok(pending) if flight.making.contains_key(&id) => {
                flight.making.insert(id, Making::Open(pending));
                Ok(())
            }
            // It has been given up since.
            Ok(pending) => {
                pending.discard();
                return Err(format!("checkpoint {id} is over"));
            }
            Err(reason) => {
                flight.making.remove(&id);
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
        last || flight.savepoints.contains_key(&id)
    }

    /// Waits for the checkpoint to be open for uploads; none when it is over. Holds no thread meanwhile: to open a savepoint
    /// takes one of those that wait for the disk, and there may be more tasks than these.
    async fn pending(&self, id: CheckpointId) -> Option<Pending> {
        loop {
            // Before the look: what is told right after it is not missed.
            let mut told = pin!(self.opened.notified());
            told.as_mut().enable();
            match self.flight().making.get(&id)? {
                Making::Open(pending) => return Some(pending.clone()),
                Making::Opening => {}
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

    /// The files that were to be uploaded for a checkpoint, wherever they stand.
    pub(crate) fn files(&self, id: CheckpointId) -> Vec<FileProgress> {
        self.open_pending(id).map_or_else(Vec::new, |pending| pending.progress().files())
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
        let (savepoint, stops_with) = {
            let flight = self.flight();
            (flight.savepoints.get(&id).cloned(), flight.stop_with.clone())
        };
        let is_savepoint = savepoint.is_some();
        // Sinks commit it, but for a savepoint that somebody asked for and may remove.
        let commits = savepoint.is_none() || savepoint == stops_with;
        let reaches = commits.then_some(Reached { id: id.0, savepoint });
        let task = self.handle.spawn(async move {
            match own.store.publish(&pending, manifest, &own.lease).await {
                Ok(saved) => {
                    let manifest = Arc::new(saved.manifest().clone());
                    own.published(id, saved, reaches);
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
        let publishing = &mut self.flight().publishing;
        publishing.retain(|publishing| !publishing.task.is_finished());
        publishing.push(Publishing { task, savepoint: is_savepoint });
    }

    fn open_pending(&self, id: CheckpointId) -> Option<Pending> {
        match self.flight().making.get(&id)? {
            Making::Open(pending) => Some(pending.clone()),
            Making::Opening => None,
        }
    }

    fn published(&self, id: CheckpointId, saved: Saved, reaches: Option<Reached>) {
        let mut flight = self.flight();
        flight.making.remove(&id);
        if let Some(reached) = reaches {
            flight.reached = flight.reached.max(Some(id.0));
            self.lease.reach(reached);
        }
        if saved.manifest().kind == Kind::Checkpoint {
            flight.completed = Some(id);
            flight.previous = parts_of(&saved);
            flight.from = Some(saved);
        } else {
            drop(flight);
            // A whole copy of the state, for the upload alone.
            self.forget_cuts(id);
        }
    }

    /// Old checkpoints go; what cannot be removed now goes another time.
    async fn tidy(self: &Arc<Self>) {
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

    /// The checkpoint is given up.
    pub(crate) fn give_up(&self, id: CheckpointId) {
        if let Some(Making::Open(pending)) = self.flight().making.remove(&id) {
            pending.discard();
        }
        self.opened.notify_waiters();
        self.forget_cuts(id);
    }

    /// The newest checkpoint or savepoint, as the storage tells: a manifest may be there although nobody heard of it. One that
    /// this process did not take counts only if it began from it. A savepoint counts because another process would begin from
    /// it: a life from before it would have its sinks throw away what it holds.
    ///
    /// # Errors
    /// The storage fails; or, said apart, another process has the job.
    pub(crate) async fn newest(self: Arc<Self>) -> Result<Option<Arc<Manifest>>, NotFound> {
        let publishing = std::mem::take(&mut self.flight().publishing);
        for Publishing { task, savepoint } in publishing {
            if savepoint && !task.is_finished() {
                // It is not waited for: if it is not there by then, it does not count when it is.
                self.lease.doubt();
            } else {
                // Its outcome is in storage.
                let _ = task.await;
            }
        }
        let own = self.clone();
        let found = self.handle.spawn(async move {
            // What may still land must not count once the job has begun from an older one.
            own.lease.settle(&own.store).await?;
            let newest = newest_of_all(&own.store).await?.filter(|saved| saved.manifest().id >= own.first);
            let reached = own.flight().reached;
            if let Some(reached) = reached.filter(|id| newest.as_ref().is_none_or(|n| n.manifest().id < *id))
            {
                return Err(gone(&own.store, &Reached { id: reached, savepoint: None }, newest.as_ref()));
            }
            newest.iter().for_each(|saved| own.lease.reach(reached_by(saved)));
            // What a life does first, sinks throwing away what no checkpoint names, must not be done to another process's.
            own.lease.renew().await?;
            Ok::<_, CheckpointError>(newest)
        });
        let found = found.await.map_err(|e| NotFound::Failed(e.to_string()))?;
        let found = found.map_err(|e| match e {
            CheckpointError::Fenced { .. } => NotFound::Fenced(chain(&e)),
            CheckpointError::Gone { .. } => NotFound::Gone(chain(&e)),
            e => NotFound::Failed(chain(&e)),
        })?;
        let mut flight = self.flight();
        if let Some(saved) = found {
            flight.reached = flight.reached.max(Some(saved.manifest().id));
            flight.from = Some(saved);
        }
        Ok(flight.from.as_ref().map(|saved| Arc::new(saved.manifest().clone())))
    }

    /// Brings a part's files back. Called on a task's own thread, which is held up no longer than until `waits` are cancelled.
    pub(crate) fn download(&self, uid: &str, part: &Part, into: &Path, waits: &Waits) -> TaskResult<()> {
        let (from, folders) = {
            let flight = self.flight();
            (flight.from.clone(), flight.local.paths())
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
        let publishing = std::mem::take(&mut self.flight().publishing);
        let own = self.clone();
        let closing = self.handle.spawn(async move {
            for Publishing { task, .. } in publishing.into_iter().filter(|p| !p.savepoint) {
                let _ = task.await;
            }
            // What hangs must not keep the lease from being given back: whatever lands later does not count.
            let _ = tokio::time::timeout(CLOSING / 2, own.store.idle()).await;
            give_back(&own.lease).await;
        });
        // Whatever storage does, the job is over.
        let _ = tokio::time::timeout(CLOSING, closing).await;
        if clean {
            let local = self.flight().local.clone();
            let clearing = self.handle.spawn_blocking(move || local.clear());
            let _ = tokio::time::timeout(CLEARING, clearing).await;
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
