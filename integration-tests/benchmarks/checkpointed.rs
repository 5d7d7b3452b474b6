//! What checkpoints and RocksDB cost the keyed count of `exchange`, against the same job in memory without checkpoints.

use std::time::{Duration, Instant};

use anyhow::ensure;
use weir_engine::prelude::*;

use crate::cli::Scale;
use crate::exchange::{expected, weir};
use crate::measure::{Comparison, alternate, peak_rss_mib};

/// How long a run should take; a quarter less when the machine is faster than it was in the trial.
const RUN: Duration = Duration::from_secs(75);
/// Tells how fast the job is on this machine.
const TRIAL: u64 = 50_000_000;

/// Long runs: three pairs are enough to see a few percent.
fn rounds(scale: Scale) -> usize {
    if scale.smoke { 1 } else { 3.min(scale.rounds) }
}

/// So many that a run takes as long as it should.
fn records(scale: Scale) -> anyhow::Result<u64> {
    if scale.smoke {
        return Ok(TRIAL / 10);
    }
    let began = Instant::now();
    weir(TRIAL, |job| job.state(StateBackend::memory()))?;
    let trials = RUN.as_secs_f64() / began.elapsed().as_secs_f64();
    Ok((trials * TRIAL as f64) as u64 / 2 * 2)
}

fn compare(
    scale: Scale,
    what: &'static str,
    every: Duration,
    least: u64,
    state: fn() -> StateBackend,
    target: &str,
) -> anyhow::Result<Comparison> {
    let n = records(scale)?;
    let wanted = expected(n);
    let folder = tempfile::tempdir()?;
    let mut ours = || {
        let url = folder.path().display().to_string();
        let checkpoints = Checkpoints::to(url).every(every).start_from(StartFrom::Fresh);
        let (got, complete) = weir(n, |job| job.state(state()).checkpoints(checkpoints))?;
        ensure!(got == wanted, "sum and records {got:?}, expected {wanted:?}");
        ensure!(scale.smoke || complete >= least, "{complete} checkpoints completed, {least} are wanted");
        Ok(None)
    };
    let mut theirs = || {
        let (got, _) = weir(n, |job| job.state(StateBackend::memory()))?;
        ensure!(got == wanted, "sum and records {got:?}, expected {wanted:?}");
        Ok(None)
    };
    // One pair at a time: a minute needs no warming up.
    let mut pairs = Vec::new();
    for _ in 0..rounds(scale) {
        pairs.extend(alternate(1, &mut ours, &mut theirs)?);
    }
    Ok(Comparison {
        what,
        baseline: "memory, none",
        records: n,
        rounds: pairs,
        target: target.into(),
        peak_rss_mib: peak_rss_mib(),
    })
}

/// RocksDB with a checkpoint every 5 s.
pub(crate) fn count(scale: Scale) -> anyhow::Result<Comparison> {
    compare(
        scale,
        "keyed count, 100,000 keys, RocksDB, a checkpoint every 5 s",
        Duration::from_secs(5),
        10,
        StateBackend::rocksdb,
        "at least 0.7 of memory without checkpoints",
    )
}

/// A checkpoint every second, on what state is kept in anyway.
pub(crate) fn every_second(scale: Scale) -> anyhow::Result<Comparison> {
    compare(
        scale,
        "keyed count, 100,000 keys, RocksDB, a checkpoint every second",
        Duration::from_secs(1),
        40,
        StateBackend::rocksdb,
        "at least 0.9 of the job without checkpoints",
    )
}
