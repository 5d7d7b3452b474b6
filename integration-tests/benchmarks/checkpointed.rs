//! What checkpoints and RocksDB cost the keyed count of `exchange`, against the same job in memory without checkpoints.

use std::time::Duration;

use anyhow::ensure;
use weir_engine::prelude::*;

use crate::cli::Scale;
use crate::exchange::{expected, weir};
use crate::measure::{Comparison, alternate, peak_rss_mib};

/// Enough for about a minute at 80 M records/s.
const RECORDS: u64 = 5_000_000_000;

/// Long runs: a pair is enough to see a few percent.
fn rounds(scale: Scale) -> usize {
    if scale.smoke { 1 } else { 2.min(scale.rounds) }
}

fn compare(
    scale: Scale,
    what: &'static str,
    every: Duration,
    least: u64,
    state: fn() -> StateBackend,
    target: &str,
) -> anyhow::Result<Comparison> {
    let n = scale.records(RECORDS);
    let wanted = expected(n);
    let folder = tempfile::tempdir()?;
    let ours = || {
        let url = folder.path().display().to_string();
        let checkpoints = Checkpoints::to(url).every(every).start_from(StartFrom::Fresh);
        let (got, complete) = weir(n, |job| job.state(state()).checkpoints(checkpoints))?;
        ensure!(got == wanted, "sum and records {got:?}, expected {wanted:?}");
        ensure!(scale.smoke || complete >= least, "{complete} checkpoints completed, {least} are wanted");
        Ok(None)
    };
    let theirs = || {
        let (got, _) = weir(n, |job| job.state(StateBackend::memory()))?;
        ensure!(got == wanted, "sum and records {got:?}, expected {wanted:?}");
        Ok(None)
    };
    let rounds = alternate(rounds(scale), ours, theirs)?;
    Ok(Comparison {
        what,
        baseline: "memory, none",
        records: n,
        rounds,
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
