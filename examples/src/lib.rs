//! What examples have in common: options for parallelism, logs, state and checkpoints, the recorded file, and a job that tests run too.

use std::path::{Path, PathBuf};

pub mod mirror;
pub mod options;

/// The recorded file of this repository: ten thousand events of a shop, sorted by user.
pub fn recorded_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/user_behavior_10k.csv")
}
