//! Event time in whole jobs: what a source says about time, what it does not believe, and what comes back after a restore.

mod alignment;
mod feed;
mod guards;
mod restore;
mod silence;
mod strategies;
