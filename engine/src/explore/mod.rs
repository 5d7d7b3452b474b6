//! The concurrency kernel and the coordinator's decisions under orders of events that chance draws, each from a seed that
//! gives it again.
//!
//! `make explore` runs everything in here with the feature `explore`: the kernel's threads are then those of a scheduler
//! that decides at every step who goes on, and that sees when nobody can. Without the feature the same scenarios run on
//! real threads, a few times each. A failure names its seed and the one command that repeats it.
//!
//! - [`kernel`] and [`gate`]: mailbox, bell, latch, channel and gate by themselves.
//! - [`jobs`]: whole jobs, with the real task loops, exchanges and decisions, and a storage that fails as chance will.
//! - [`coordinator`]: the decisions alone, on tasks and channels that are a few numbers each, through many lives.
//! - [`flaws`]: the same with mistakes put in on purpose, which have to be found.

mod coordinator;
mod dice;
#[cfg(feature = "explore")]
mod flaws;
mod gate;
mod jobs;
mod kernel;
mod outside;
mod process;
#[cfg(feature = "explore")]
mod schedules;
mod seeds;
mod shell;
mod storage;
mod tasks;
#[cfg(not(feature = "explore"))]
mod threads;
mod world;

#[cfg(feature = "explore")]
use schedules::{explore, pick, quietly};
#[cfg(not(feature = "explore"))]
use threads::{explore, pick, quietly};

use crate::runtime::sync::thread;

/// Starts a thread of a scenario.
fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    thread::Builder::new().name(name.into()).spawn(run).expect("a thread for a scenario")
}

/// True once in `n`.
fn once_in(n: u64) -> bool {
    pick(n) == 0
}

/// What a panic on purpose says.
const ON_PURPOSE: &str = "on purpose";
