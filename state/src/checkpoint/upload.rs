//! Uploads the files of one subtask's snapshot: several at once, within the bandwidth limit, with retries, hashed as they are read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fail::fail_point;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::error::{CheckpointError, Result};
use super::files::{checksum_of, look_at};
use super::incremental::{self, Decision, Present};
use super::manifest::{Part, StoredFile};
use super::pending::Making;
use super::progress::{Note, UploadPhase, millis};
use super::send::{send, slot};
use crate::backend::LocalFile;
use crate::store::LocalPart;

/// What became of one subtask's snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct UploadReport {
    /// What the manifest says of it.
    pub part: Part,
    /// What was done for each file, in the snapshot's order.
    pub files: Vec<FileReport>,
    /// The bytes of all files: the full size.
    pub bytes: u64,
    /// The bytes of those that were uploaded: the increment.
    pub uploaded_bytes: u64,
    /// How long it took, in milliseconds.
    pub upload_ms: u64,
}

/// What was done for one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileReport {
    /// Its local name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The storage had it already.
    pub reused: bool,
    /// How long it waited for other uploads, in milliseconds.
    pub queue_ms: u64,
    /// How long the upload itself took, waiting for the bandwidth limit and for retries included, in milliseconds.
    pub upload_ms: u64,
    /// How often the storage failed meanwhile.
    pub failures: u32,
}

/// Uploads what `previous` does not have.
pub(crate) async fn part(
    making: &Arc<Making>,
    uid: &str,
    local: LocalPart,
    previous: &[StoredFile],
) -> Result<UploadReport> {
    fail_point!("checkpoint::before_upload", |_| Err(CheckpointError::Injected("checkpoint::before_upload")));
    let started = Instant::now();
    let LocalPart { subtask, key_groups, format, tables, items, files } = local;
    let files = look_at(files).await?;
    let present: Vec<Present> = files.iter().map(|(_, present)| present.clone()).collect();
    let decisions = {
        let books = making.store.books();
        incremental::plan(previous, &present, |path| books.known(path))
    };
    let files: Vec<(LocalFile, Present, Decision)> = files
        .into_iter()
        .zip(decisions)
        .map(|((file, present), decision)| (file, present, decision))
        .collect();

    // When one fails the others are not begun any more, but those under way come to their end: a write that nobody waits for
    // could land after the checkpoint's files were deleted.
    let failed = AtomicBool::new(false);
    let mut uploads = Vec::with_capacity(files.len());
    for (index, (file, present, decision)) in files.into_iter().enumerate() {
        let reused = match decision {
            // A savepoint has all its files to itself.
            Decision::Reuse(stored) if making.folder.is_none() && making.reuse(&stored.path) => Err(stored),
            decision => Ok((decision, making.progress.add(uid, subtask, &file.name, present.bytes))),
        };
        let failed = &failed;
        uploads.push(async move {
            let done = match reused {
                Err(stored) => Ok((stored, FileReport::reused(&present, started))),
                Ok((_, note)) if failed.load(Ordering::Relaxed) => {
                    note.phase(UploadPhase::Failed);
                    Err(CheckpointError::Discarded { id: making.id })
                }
                Ok((decision, note)) => {
                    let done = one(making, uid, subtask, &file, &present, decision, &note).await;
                    note.phase(if done.is_ok() { UploadPhase::Done } else { UploadPhase::Failed });
                    done
                }
            };
            failed.fetch_or(done.is_err(), Ordering::Relaxed);
            (index, done)
        });
    }
    let parallel = making.store.options.parallel.max(1);
    let mut done: Vec<(usize, Result<_>)> = stream::iter(uploads).buffer_unordered(parallel).collect().await;
    // The first that failed says why; those after it were only not begun.
    if let Some(cause) = done.iter().position(|(_, done)| done.is_err()) {
        return Err(done.swap_remove(cause).1.expect_err("it is the one that failed"));
    }
    // The manifest and the report are in the snapshot's order.
    done.sort_unstable_by_key(|(index, _)| *index);
    let files: Vec<(StoredFile, FileReport)> = done.into_iter().filter_map(|(_, done)| done.ok()).collect();
    fail_point!("checkpoint::after_upload", |_| Err(CheckpointError::Injected("checkpoint::after_upload")));

    let (stored, files): (Vec<StoredFile>, Vec<FileReport>) = files.into_iter().unzip();
    Ok(UploadReport {
        bytes: files.iter().map(|file| file.bytes).sum(),
        uploaded_bytes: files.iter().filter(|file| !file.reused).map(|file| file.bytes).sum(),
        upload_ms: millis(started.elapsed()),
        files,
        part: Part { subtask, key_groups, format, tables, items, files: stored, finished: false },
    })
}

impl FileReport {
    fn reused(file: &Present, started: Instant) -> Self {
        let upload_ms = millis(started.elapsed());
        Self { name: file.name.clone(), bytes: file.bytes, reused: true, queue_ms: 0, upload_ms, failures: 0 }
    }
}

/// One file that the storage does not have for certain.
async fn one(
    making: &Making,
    uid: &str,
    subtask: usize,
    file: &LocalFile,
    present: &Present,
    decision: Decision,
    note: &Note,
) -> Result<(StoredFile, FileReport)> {
    let queued = Instant::now();
    let permit = slot(making).await?;
    let queue_ms = millis(queued.elapsed());
    let started = Instant::now();
    let report = |reused: bool| FileReport {
        name: file.name.clone(),
        bytes: present.bytes,
        reused,
        queue_ms,
        upload_ms: millis(started.elapsed()),
        failures: note.failures(),
    };

    if let Decision::Verify(stored) | Decision::Reuse(stored) = decision
        && making.folder.is_none()
        && making.store.books().holds(&stored.path)
    {
        note.phase(UploadPhase::Reading);
        let checksum = checksum_of(&file.path, present.bytes).await?;
        if checksum == stored.checksum && making.reuse(&stored.path) {
            making.store.books().remember(&stored.path, present.id);
            return Ok((stored, report(true)));
        }
    }

    let place = making.place(uid, subtask, &file.name);
    making.uploads(&place);
    let checksum = send(making, file, present.bytes, &place, note, permit).await?;
    making.store.books().remember(&place, present.id);
    let path = making.relative(&place).to_owned();
    let stored = StoredFile { name: file.name.clone(), path, bytes: present.bytes, checksum };
    Ok((stored, report(false)))
}
