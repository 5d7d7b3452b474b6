//! What a job's lives leave on local disks: reused as long as it is of use, and removed once it is of none.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::env::{RESTORED, folder_name};
use super::local::LocalFolders;
use super::storage::Storage;
use super::writer::cut_folder;
use crate::ids::CheckpointId;

impl Storage {
    /// Every task of the attempt is open: what it was restored from lies in its own folders now, and nobody needs those of the lives
    /// before it.
    pub(crate) fn flows(self: &Arc<Self>) {
        self.forget_other_lives();
    }

    /// The attempt is over. When its tasks were never all open, its files are copies of what the life before has, or parts of them.
    pub(crate) fn attempt_over(&self, opened: bool) {
        let (life, local) = self.life();
        if !opened && !life.is_empty() {
            drop(self.handle.spawn_blocking(move || {
                remove_all(local.paths().into_iter().map(|folder| folder.join(&life)));
            }));
        }
    }

    fn life(&self) -> (String, Arc<LocalFolders>) {
        let flight = self.flight();
        (flight.life.clone(), flight.local.clone())
    }

    /// Removes the local files of other lives, one call at a time: a disk may be slow, and there are few threads to wait for it.
    pub(super) fn forget_other_lives(self: &Arc<Self>) {
        if self.forgetting.swap(true, Ordering::AcqRel) {
            // What is there too is found after the next checkpoint.
            return;
        }
        let own = self.clone();
        drop(self.handle.spawn_blocking(move || {
            let (life, local) = own.life();
            remove_all(local.other_lives(&life));
            own.forgetting.store(false, Ordering::Release);
        }));
    }

    /// Removes the local files of a snapshot that nobody will restore from. Hard links though they are, they keep what the
    /// database has let go of.
    pub(super) fn forget_cuts(&self, id: CheckpointId) {
        let (life, local) = self.life();
        drop(self.writers.spawn_blocking(move || {
            let lives = local.paths().into_iter().map(|folder| folder.join(&life));
            let operators = lives.flat_map(|life| fs::read_dir(life).into_iter().flatten().flatten());
            remove_all(operators.map(|operator| cut_folder(&operator.path(), id)));
        }));
    }

    /// Those that are being made: their local files are being read.
    pub(super) fn in_the_making(&self) -> Vec<CheckpointId> {
        self.flight().making.keys().copied().collect()
    }
}

/// Removes folders; what cannot be removed now is found again another time, or goes with the life.
pub(super) fn remove_all(folders: impl IntoIterator<Item = PathBuf>) {
    for folder in folders {
        let _ = fs::remove_dir_all(folder);
    }
}

/// Folders of files that this machine may still have of the operator, whichever life they are of: its subtask's own, and what other
/// subtasks have restored of it.
pub(super) fn local_copies(folders: &[PathBuf], uid: &str, subtask: usize) -> Vec<PathBuf> {
    let (begin, restored) = (format!("{}-", folder_name(uid)), format!("{RESTORED}{subtask}"));
    let below = |of: &Path| fs::read_dir(of).into_iter().flatten().flatten().map(|e| e.path());
    let mut copies = Vec::new();
    for operator in folders.iter().flat_map(|folder| below(folder)).flat_map(|life| below(&life)) {
        let name = operator.file_name().and_then(|name| name.to_str()).and_then(|n| n.strip_prefix(&begin));
        match name.and_then(|number| number.parse::<usize>().ok()) {
            Some(own) if own == subtask => copies.extend(below(&operator).filter(|cut| cut.is_dir())),
            Some(_) => copies.push(operator.join(&restored)),
            None => {}
        }
    }
    copies
}
