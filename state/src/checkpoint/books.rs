//! What this process knows of the files in the storage: who names them, who is about to, and which local file they came from.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::incremental::{self, Expired, FileId};
use super::names::CheckpointKey;

/// One lock's worth of book-keeping; nothing in here waits.
#[derive(Debug, Default)]
pub(crate) struct Books {
    /// The files of each published checkpoint that this process has read or written.
    published: BTreeMap<CheckpointKey, Arc<BTreeSet<String>>>,
    /// Checkpoints that were or are being deleted: whoever reads one at the same time must not bring it back.
    gone: BTreeSet<CheckpointKey>,
    /// The local files that stored ones came from or went to.
    known: HashMap<String, FileId>,
    making: HashMap<u64, Entry>,
    next: u64,
    /// Files that nobody names any more and that are still to be deleted.
    garbage: BTreeSet<String>,
}

/// A checkpoint in the making.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) stage: Stage,
    /// Files written for it, or being written.
    pub(crate) uploaded: BTreeSet<String>,
    /// Files of published checkpoints that it will name too.
    pub(crate) reused: HashSet<String>,
    /// How many parts are being uploaded.
    pub(crate) running: usize,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Takes files.
    #[default]
    Open,
    /// Is being published.
    Closed,
    /// Was given up; its files go.
    Discarded,
}

impl Books {
    pub(crate) fn begin(&mut self) -> u64 {
        self.next += 1;
        self.making.insert(self.next, Entry::default());
        self.next
    }

    pub(crate) fn making(&mut self, number: u64) -> Option<&mut Entry> {
        self.making.get_mut(&number)
    }

    /// False if it had ended before.
    pub(crate) fn end(&mut self, number: u64) -> bool {
        self.making.remove(&number).is_some()
    }

    /// Names a published checkpoint's file for one in the making, if any has it.
    pub(crate) fn reuse(&mut self, number: u64, path: &str) -> bool {
        if !self.holds(path) {
            return false;
        }
        self.making.get_mut(&number).is_some_and(|entry| {
            entry.reused.insert(path.to_owned());
            true
        })
    }

    /// Whether a published checkpoint names the file.
    pub(crate) fn holds(&self, path: &str) -> bool {
        self.published.values().any(|files| files.contains(path))
    }

    pub(crate) fn known(&self, path: &str) -> Option<FileId> {
        self.known.get(path).copied()
    }

    pub(crate) fn remember(&mut self, path: &str, id: Option<FileId>) {
        if let Some(id) = id {
            self.known.insert(path.to_owned(), id);
        }
    }

    pub(crate) fn publish(&mut self, key: CheckpointKey, files: BTreeSet<String>) {
        if !self.gone.contains(&key) {
            self.published.insert(key, Arc::new(files));
        }
    }

    pub(crate) fn has_read(&self, key: CheckpointKey) -> bool {
        self.published.contains_key(&key)
    }

    /// Only these count: any other was deleted by somebody. Called under the lease, when no checkpoint is being published.
    pub(crate) fn only(&mut self, keys: &[CheckpointKey]) {
        self.published.retain(|key, _| keys.contains(key));
    }

    /// These are being deleted.
    pub(crate) fn going(&mut self, keys: &[CheckpointKey]) {
        self.gone.extend(keys);
    }

    /// These could not be deleted after all.
    pub(crate) fn stayed(&mut self, keys: &[CheckpointKey]) {
        self.gone.retain(|key| !keys.contains(key));
    }

    /// Takes out what may be deleted: from now on nobody can name those files again.
    pub(crate) fn expire(&mut self, keep: usize) -> Expired {
        let in_use = self.in_use();
        let all: Vec<_> = self.published.iter().map(|(key, files)| (*key, files.clone())).collect();
        let expired = incremental::expire(&all, keep, &in_use);
        for key in &expired.manifests {
            self.published.remove(key);
        }
        self.going(&expired.manifests);
        for file in &expired.files {
            self.known.remove(file);
        }
        expired
    }

    /// Nobody names these any more: they are to be deleted, now or when the storage works again.
    pub(crate) fn discard(&mut self, files: impl IntoIterator<Item = String>) {
        self.garbage.extend(files);
    }

    /// What is to be deleted.
    pub(crate) fn garbage(&self) -> Vec<String> {
        self.garbage.iter().cloned().collect()
    }

    /// These were deleted.
    pub(crate) fn deleted(&mut self, files: &[String]) {
        for file in files {
            self.garbage.remove(file);
            self.known.remove(file);
        }
    }

    /// The files that nobody names, of those listed.
    pub(crate) fn orphans(&mut self, listed: &[String]) -> Vec<String> {
        let named: HashSet<String> =
            self.published.values().flat_map(|files| files.iter().cloned()).collect();
        let orphans = incremental::orphans(listed.iter().map(String::as_str), &named, &self.in_use());
        let orphans: Vec<String> = orphans.into_iter().map(ToOwned::to_owned).collect();
        for file in &orphans {
            self.known.remove(file);
        }
        orphans
    }

    /// The files of all checkpoints in the making.
    pub(crate) fn in_use(&self) -> HashSet<String> {
        let entries = self.making.values();
        entries.flat_map(|entry| entry.uploaded.iter().chain(&entry.reused)).cloned().collect()
    }
}
