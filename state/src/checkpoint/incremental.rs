//! Which files a checkpoint uploads, which a newer one lets go: pure decisions over lists, no storage.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::manifest::StoredFile;
use super::names::{CheckpointKey, SHARED};

/// What makes a local file the same as another without reading it: the same inode, neither longer nor written since. Hard
/// links share it, copies do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The device.
    pub device: u64,
    /// The inode on it.
    pub inode: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The last time it was written, in nanoseconds since the Unix epoch.
    pub written_ns: i128,
}

/// A local file that a checkpoint is to contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its identity, where the system tells one.
    pub id: Option<FileId>,
}

/// What becomes of one local file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The storage has it: name that file again.
    Reuse(StoredFile),
    /// The storage may have it: reuse if the content's checksum is the same, else upload.
    Verify(StoredFile),
    /// The storage does not have it.
    Upload,
}

/// Decides for each file present whether it is uploaded, given the files of the previous checkpoint of the same part and what is
/// known of the local files those came from (by their place in the storage).
///
/// A name and a length alone never suffice: a store that was rebuilt counts its files from the beginning again. Only shared
/// files are named again; those of a savepoint are somebody else's to delete.
pub fn plan(
    previous: &[StoredFile],
    present: &[Present],
    known: impl Fn(&str) -> Option<FileId>,
) -> Vec<Decision> {
    let decide = |file: &Present| {
        let before = previous.iter().find(|before| {
            before.name == file.name
                && before.bytes == file.bytes
                && before.path.strip_prefix(SHARED).is_some_and(|rest| rest.starts_with("/"))
        });
        match before {
            None => Decision::Upload,
            Some(before) if file.id.is_some() && known(&before.path) == file.id => {
                Decision::Reuse(before.clone())
            }
            Some(before) => Decision::Verify(before.clone()),
        }
    };
    present.iter().map(decide).collect()
}

/// What may be deleted when only the newest `keep` checkpoints are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// The checkpoints; their manifests go first.
    pub manifests: Vec<CheckpointKey>,
    /// The files that no other checkpoint names.
    pub files: BTreeSet<String>,
}

/// Decides which of the published checkpoints go, and which files with them. Files in use (by a checkpoint in the making) stay.
pub fn expire(
    published: &[(CheckpointKey, Arc<BTreeSet<String>>)],
    keep: usize,
    in_use: &HashSet<String>,
) -> Expired {
    let mut newest: Vec<CheckpointKey> = published.iter().map(|(key, _)| *key).collect();
    newest.sort_unstable_by(|a, b| b.cmp(a));
    // The newest is never let go: there would be nothing to restore.
    let kept: HashSet<CheckpointKey> = newest.into_iter().take(keep.max(1)).collect();
    let (stays, goes): (Vec<_>, Vec<_>) = published.iter().partition(|(key, _)| kept.contains(key));
    let still: HashSet<&String> = stays.iter().flat_map(|(_, files)| files.iter()).collect();
    let files = goes.iter().flat_map(|(_, files)| files.iter());
    Expired {
        manifests: goes.iter().map(|(key, _)| *key).collect(),
        files: files.filter(|file| !still.contains(file) && !in_use.contains(*file)).cloned().collect(),
    }
}

/// The files of a listing that nobody names and no checkpoint in the making uses.
pub fn orphans<'a>(
    listed: impl IntoIterator<Item = &'a str>,
    named: &HashSet<String>,
    in_use: &HashSet<String>,
) -> Vec<&'a str> {
    listed.into_iter().filter(|file| !named.contains(*file) && !in_use.contains(*file)).collect()
}

/// Manifests of epochs below `epoch` count only up to checkpoint `base`, the newest that its owner saw when it took the job
/// over. A later one was written by a process that had lost the job and was refused afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fence {
    /// The epoch that was taken.
    pub epoch: u64,
    /// The newest checkpoint there was, if any.
    pub base: Option<u64>,
}

/// Whether a published checkpoint counts.
pub fn counts(key: CheckpointKey, fences: &[Fence]) -> bool {
    fences.iter().all(|fence| key.epoch >= fence.epoch || fence.base.is_some_and(|base| key.id <= base))
}

#[cfg(test)]
#[path = "incremental_tests.rs"]
mod tests;
