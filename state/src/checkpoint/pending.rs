//! A checkpoint in the making: its files are safe from deletion until it is published, and gone when it is given up.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use tokio::sync::watch;

use super::books::Stage;
use super::error::{CheckpointError, Result};
use super::manifest::{Kind, MANIFEST_FORMAT, Manifest, Mode, OperatorState, Part};
use super::names;
use super::progress::Progress;
use super::store::Inner;
use super::upload::{self, UploadReport};
use crate::key::KEY_GROUPS;
use crate::store::LocalPart;

/// A checkpoint or savepoint that is being written; clones are the same one.
///
/// *Order*: [`CheckpointStore::begin`](super::CheckpointStore::begin) or
/// [`begin_savepoint`](super::CheckpointStore::begin_savepoint), then [`upload_part`](Self::upload_part) for each subtask (side by
/// side if wanted), then [`CheckpointStore::publish`](super::CheckpointStore::publish), or [`discard`](Self::discard). Dropping
/// the last clone without publishing discards.
#[derive(Clone, Debug)]
pub struct Pending(Arc<Guard>);

/// Discards when the last handle is gone; uploads that are still running hold only what is inside.
#[derive(Debug)]
struct Guard(Arc<Making>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.discard();
    }
}

impl Pending {
    pub(crate) fn new(making: Making) -> Self {
        Self(Arc::new(Guard(Arc::new(making))))
    }

    pub(crate) fn making(&self) -> &Arc<Making> {
        &self.0.0
    }

    /// The checkpoint's number.
    pub fn id(&self) -> u64 {
        self.making().id
    }

    /// Whether this is a checkpoint or a savepoint.
    pub fn kind(&self) -> Kind {
        self.making().kind
    }

    /// The manifest of this with these operators, for a caller without a job's plan, lineage, attempt and clock: those fields are
    /// an empty lineage, the first attempt, [`KEY_GROUPS`] and times of 0.
    pub fn manifest(&self, operators: Vec<OperatorState>) -> Manifest {
        Manifest {
            format: MANIFEST_FORMAT,
            job: self.making().store.job.clone(),
            lineage: String::new(),
            id: self.id(),
            epoch: 0,
            kind: self.kind(),
            attempt: 1,
            key_groups: KEY_GROUPS,
            triggered_ms: 0,
            completed_ms: 0,
            mode: Mode::ExactlyOnce,
            operators,
        }
    }

    /// How the uploads stand, readable at any time.
    pub fn progress(&self) -> &Progress {
        &self.making().progress
    }

    /// Uploads what one subtask of operator `uid` froze, as the part of the manifest that it becomes. Files that `previous`, the
    /// same subtask's part of a published checkpoint, has in this storage already are named again instead; a savepoint has
    /// all its files to itself. The local files must stay until this returns, and are the caller's to delete.
    ///
    /// Goes on in the background when the future is dropped, until the checkpoint is discarded.
    ///
    /// # Errors
    /// When a file cannot be read, the storage fails for good, or the checkpoint is discarded meanwhile
    /// ([`CheckpointError::Discarded`]).
    pub async fn upload_part(
        &self,
        uid: &str,
        local: LocalPart,
        previous: Option<&Part>,
    ) -> Result<UploadReport> {
        let making = self.making().clone();
        let running = making.enter()?;
        let (uid, previous) = (uid.to_owned(), previous.map(|part| part.files.clone()).unwrap_or_default());
        let task = making.store.runtime.clone().spawn(async move {
            let report = upload::part(&making, &uid, local, &previous).await;
            drop(running);
            report
        });
        match task.await {
            Ok(report) => report,
            Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
            // The runtime is shutting down.
            Err(_) => Err(CheckpointError::Discarded { id: self.id() }),
        }
    }

    /// Names the files of a part of a published checkpoint again, unchanged: for a subtask that has finished. A savepoint
    /// cannot do so.
    ///
    /// # Errors
    /// [`CheckpointError::Inconsistent`] if the storage does not keep those files for a published checkpoint of this job.
    pub fn keep_part(&self, part: &Part) -> Result<()> {
        let making = self.making();
        for file in &part.files {
            if making.kind == Kind::Savepoint || !making.reuse(&file.path) {
                return Err(CheckpointError::Inconsistent {
                    id: making.id,
                    why: format!("cannot keep '{}': no published checkpoint of the job has it", file.path),
                });
            }
        }
        Ok(())
    }

    /// Gives the checkpoint up. Returns at once: uploads that are running stop where they can, and all that was written is
    /// deleted in the background; [`CheckpointStore::idle`](super::CheckpointStore::idle) waits for that. Nothing happens
    /// after it was published.
    pub fn discard(&self) {
        self.making().discard();
    }
}

/// The inside of a [`Pending`].
#[derive(Debug)]
pub(crate) struct Making {
    /// Its entry in the books.
    number: u64,
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    /// The folder of a savepoint, below the job's.
    pub(crate) folder: Option<String>,
    pub(crate) progress: Progress,
    pub(crate) store: Arc<Inner>,
    stop: watch::Sender<bool>,
}

impl Making {
    pub(crate) fn new(store: Arc<Inner>, id: u64, kind: Kind, folder: Option<String>) -> Self {
        let number = store.books().begin();
        store.busy.send_modify(|busy| *busy += 1);
        Self {
            number,
            id,
            kind,
            folder,
            progress: Progress::default(),
            store,
            stop: watch::Sender::new(false),
        }
    }

    /// A place in the storage that nobody has used before, for a file of the operator's subtask.
    pub(crate) fn place(&self, uid: &str, subtask: usize, name: &str) -> String {
        let folder = match &self.folder {
            Some(folder) => format!("{folder}/{}", names::FILES),
            None => names::SHARED.to_owned(),
        };
        let (uid, name) = (names::escape(uid), names::escape(name));
        format!("{folder}/{uid}/{subtask}/{:016x}-{name}", super::nonce())
    }

    /// The same place, as the manifest names it.
    pub(crate) fn relative<'a>(&self, place: &'a str) -> &'a str {
        self.folder
            .as_ref()
            .and_then(|folder| place.strip_prefix(folder.as_str())?.strip_prefix('/'))
            .unwrap_or(place)
    }

    /// The place below the job's folder that the manifest names so.
    pub(crate) fn absolute(&self, path: &str) -> String {
        match &self.folder {
            Some(folder) => format!("{folder}/{path}"),
            None => path.to_owned(),
        }
    }

    /// Something begins that writes files.
    fn enter(self: &Arc<Self>) -> Result<Running> {
        let mut books = self.store.books();
        match books.making(self.number) {
            Some(entry) if entry.stage == Stage::Open => {
                entry.running += 1;
                Ok(Running(self.clone()))
            }
            _ => Err(CheckpointError::Discarded { id: self.id }),
        }
    }

    /// Writes down a file before it is written, so that it is deleted if the checkpoint is given up.
    pub(crate) fn uploads(&self, place: &str) {
        if let Some(entry) = self.store.books().making(self.number) {
            entry.uploaded.insert(place.to_owned());
        }
    }

    /// Keeps a file of a published checkpoint from being deleted; false if the storage keeps it for none.
    pub(crate) fn reuse(&self, path: &str) -> bool {
        self.store.books().reuse(self.number, path)
    }

    /// Whether the checkpoint uploaded or keeps the file.
    pub(crate) fn has(&self, place: &str) -> bool {
        let mut books = self.store.books();
        books
            .making(self.number)
            .is_some_and(|entry| entry.uploaded.contains(place) || entry.reused.contains(place))
    }

    /// Waits for something that takes its time, unless the checkpoint is given up meanwhile.
    pub(crate) async fn unless_discarded<T>(&self, wait: impl Future<Output = T>) -> Result<T> {
        let mut stop = self.stop.subscribe();
        let stopped = pin!(stop.wait_for(|stopped| *stopped));
        match select(stopped, pin!(wait)).await {
            Either::Left(_) => Err(CheckpointError::Discarded { id: self.id }),
            Either::Right((value, _)) => Ok(value),
        }
    }

    pub(crate) fn is_discarded(&self) -> bool {
        *self.stop.borrow()
    }

    /// From now on neither published twice nor given up; false if it was already, or uploads are still running.
    pub(crate) fn close(&self) -> bool {
        let mut books = self.store.books();
        match books.making(self.number) {
            Some(entry) if entry.stage == Stage::Open && entry.running == 0 => {
                entry.stage = Stage::Closed;
                true
            }
            _ => false,
        }
    }

    /// The manifest did not get there, for certain: what was closed may be given up again.
    pub(crate) fn reopen(&self) {
        if let Some(entry) = self.store.books().making(self.number) {
            entry.stage = Stage::Open;
        }
    }

    /// Published, or left to whoever reads the storage next.
    pub(crate) fn finish(&self) {
        if self.store.books().end(self.number) {
            self.store.busy.send_modify(|busy| *busy -= 1);
        }
    }

    fn discard(self: &Arc<Self>) {
        let idle = {
            let mut books = self.store.books();
            let Some(entry) = books.making(self.number) else { return };
            if entry.stage != Stage::Open {
                return;
            }
            entry.stage = Stage::Discarded;
            entry.running == 0
        };
        self.stop.send_replace(true);
        if idle {
            self.clean();
        }
    }

    /// Deletes what was uploaded, in the background.
    fn clean(self: &Arc<Self>) {
        let making = self.clone();
        self.store.runtime.spawn(async move {
            let files: Vec<String> = {
                let mut books = making.store.books();
                books.making(making.number).map(|entry| entry.uploaded.iter().cloned().collect())
            }
            .unwrap_or_default();
            match making.store.storage.delete(files.clone()).await {
                Ok(()) => making.store.books().deleted(&files),
                Err(error) => {
                    let id = making.id;
                    tracing::warn!(checkpoint = id, %error, "files of a checkpoint that was given up could not be deleted yet");
                    if making.folder.is_none() {
                        making.store.books().discard(files);
                    }
                }
            }
            making.finish();
        });
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        // The runtime went away before the files were deleted.
        self.finish();
    }
}

/// While it lives, something writes files of the checkpoint.
#[derive(Debug)]
struct Running(Arc<Making>);

impl Drop for Running {
    fn drop(&mut self) {
        let last = {
            let mut books = self.0.store.books();
            books.making(self.0.number).is_some_and(|entry| {
                entry.running -= 1;
                entry.running == 0 && entry.stage == Stage::Discarded
            })
        };
        if last {
            self.0.clean();
        }
    }
}
