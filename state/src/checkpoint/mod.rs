//! Checkpoint storage: what survives the process, in a local folder, in memory, or in S3.
//!
//! # Layout
//!
//! Below `<root>/<job>/`, all of it readable JSON but for the data files:
//!
//! * `shared/<uid>/<subtask>/…`: immutable data files, each written once under a name of its own; checkpoints share them.
//! * `checkpoints/<id>-<epoch>.json`: one [`Manifest`] per checkpoint, written last, when all files it names are there.
//! * `savepoints/<name>/`: `savepoint.json` and `files/…`, with nothing outside: the folder can be moved.
//! * `attempts/<id>-<epoch>.json`: an [`AttemptRecord`] of each try, failed ones too.
//! * `lease/<epoch>.json`: who owns the job ([`lease`]).
//! * `restarts.json`: which starts followed a death ([`restarts`]).
//!
//! # Life of a checkpoint
//!
//! [`CheckpointStore::begin`] opens a [`Pending`] one; [`Pending::upload_part`] uploads each subtask's new files, and names again
//! those that the previous checkpoint has; [`CheckpointStore::publish`] writes the manifest under the job's [`Lease`];
//! [`CheckpointStore::retain`] deletes what is too old. One that is [discarded](Pending::discard), or dropped, leaves no file. What a
//! crash leaves is found by [`CheckpointStore::sweep`].
//!
//! On a restart [`CheckpointStore::latest`] gives the newest one as a [`Saved`], whose
//! [`download_part`](Saved::download_part) brings the files back, each verified against the checksum it was written with.

mod attempts;
mod bandwidth;
mod books;
mod clock;
mod document;
mod error;
#[cfg(any(test, feature = "failpoints"))]
pub mod faults;
mod files;
pub mod incremental;
pub mod lease;
mod lease_record;
mod manifest;
mod names;
mod open;
mod pending;
mod power_cut;
mod process;
mod progress;
mod publish;
mod reached;
pub mod restarts;
mod retain;
mod saved;
mod savepoints;
mod send;
mod storage;
mod store;
mod takeover;
mod upload;

#[cfg(test)]
pub(crate) mod tests;

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub use attempts::{Acknowledged, AttemptRecord, MissingChannel, Outcome, Phases, TaskRecord};
pub use bandwidth::Bandwidth;
pub use error::{CheckpointError, Result};
pub use lease::{Lease, LeaseRecord};
pub use manifest::{Kind, MANIFEST_FORMAT, Manifest, Mode, OperatorState, Part, StoredFile};
pub use names::CheckpointKey;
pub use open::share;
pub use pending::Pending;
pub use process::ProcessId;
pub use progress::{FileProgress, Progress, UploadPhase};
pub use reached::{BegunFrom, Reached};
pub use restarts::{Restart, TooManyRestarts, allow};
pub use retain::Deleted;
pub use saved::{DownloadReport, FileDownload, Saved};
pub use storage::Retry;
pub use store::{CheckpointStore, StoreOptions, WallClock};
pub use upload::{FileReport, UploadReport};

/// A number that no other call, in this process or another, is expected to give.
fn nonce() -> u64 {
    static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    SEED.hash_one(NEXT.fetch_add(1, Ordering::Relaxed))
}
