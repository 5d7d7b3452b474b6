//! Checkpoints on the engine's side: what a job asks for, where stores open, who writes what was frozen, what may be restored.

mod begin;
mod config;
mod cuts;
mod env;
mod local;
mod restore;
mod storage;
mod waits;
mod writer;

pub use config::{Checkpoints, StartFrom, StateBackend};
pub(crate) use env::{RestoreFrom, StateEnv, job_folders, life_folder};
pub(crate) use local::LocalFolders;
pub(crate) use restore::{check, without_other_kinds};
pub(crate) use storage::{NotFound, Publication, Storage};
pub(crate) use waits::Waits;
pub(crate) use writer::{
    AttemptWriter, Froze, SnapshotNews, SnapshotOf, SnapshotWriter, TaskSnapshot, Written,
};
