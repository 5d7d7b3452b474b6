//! `make bench`: each benchmark checks its result, compares with a baseline in the same run, and prints a table and JSON.

mod checkpointed;
mod cli;
mod exchange;
mod kafka;
mod measure;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run(&[
        ("exchange", exchange::run),
        ("kafka", kafka::run),
        ("count", checkpointed::count),
        ("checkpoints", checkpointed::every_second),
    ])
}
