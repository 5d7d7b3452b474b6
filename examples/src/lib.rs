//! What examples have in common: options and where they come from, the recorded file, and jobs that tests run too.

use std::path::{Path, PathBuf};

pub mod config;
pub mod kafka;
pub mod mirror;
pub mod options;
pub mod service;

/// The recorded file of this repository: ten thousand events of a shop, sorted by user.
pub fn recorded_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/user_behavior_10k.csv")
}
