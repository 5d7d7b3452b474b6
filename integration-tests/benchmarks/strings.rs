//! `make bench NAME=chain`: the benchmark whose records carry strings, on the allocator that the example uses for them.

mod chain;
mod cli;
mod measure;

use std::process::ExitCode;

/// Both sides use it. A source and a sink hold some hundred records at a time, and the system's allocator keeps only seven
/// freed strings per thread and size at hand.
#[cfg(not(feature = "system-allocator"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    cli::run(&[("chain", chain::run)])
}
