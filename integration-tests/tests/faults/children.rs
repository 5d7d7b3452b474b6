//! Processes of their own, for what would spoil the others: signals, small disks, counts of files and threads.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{full_disk, ledger, restarts, terminated, waiting};

/// What a child is to do: its presence makes a child of this program.
const DO: &str = "WEIR_FAULTS_TEST";
/// The folder that it does it in.
const IN: &str = "WEIR_FAULTS_TEST_FOLDER";

/// This program, to do `what` (a word and its arguments) in a folder.
pub(crate) fn child(what: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "children::as_a_child", "--nocapture", "--test-threads", "1"]);
    command.env(DO, what).env(IN, folder);
    command
}

/// Not a test of its own: what the others run.
#[test]
fn as_a_child() {
    let Ok(what) = std::env::var(DO) else { return };
    let folder = PathBuf::from(std::env::var(IN).unwrap());
    weir_engine::log::init("warn").unwrap();
    match what.split_once(' ').unwrap_or((&what, "")) {
        ("ledger", _) => ledger::child(folder),
        ("restarts", _) => restarts::child(folder),
        ("terminated", point) => terminated::child(folder, point),
        ("waiting", _) => waiting::child(folder),
        ("full", what) => full_disk::child(folder, what),
        (other, _) => panic!("no such child: {other}"),
    }
}
