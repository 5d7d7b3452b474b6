//! Sliding sum per key, 5 minutes by 1 minute, against tumbling windows of 1 minute over the same records, both in Weir.

use anyhow::ensure;
use weir_engine::prelude::*;
use weir_operators::prelude::*;

use crate::cli::Scale;
use crate::exchange::pair;
use crate::measure::{Comparison, alternate, peak_rss_mib};
use crate::windows::{Pair, ms, slid, tumbled, weir};

/// Twenty windows slide by.
const MINUTES: u64 = 20;

fn compare(
    scale: Scale,
    keys: u64,
    per_key: u64,
    what: &'static str,
    target: &str,
) -> anyhow::Result<Comparison> {
    // A smoke run has fewer keys, and minutes that are as much shorter.
    let (keys, minute) = if scale.smoke { (keys / 1_000, 60) } else { (keys, 60_000) };
    let per_minute = keys * per_key;
    let n = per_minute * MINUTES;
    let make = move |i: u64| -> (Pair, i64) { (pair(i, keys), (i * minute as u64 / per_minute) as i64) };
    let of: fn(Pair) -> u64 = |pair| pair.1;
    let (all_slid, all_tumbled) =
        (slid(n, keys, (5 * minute, minute), make, of), tumbled(n, keys, minute, make, of));
    ensure!(all_slid.values == 5 * all_tumbled.values, "each record is in five windows");
    let memory = |job: Job| job.state(StateBackend::memory());
    let ours = || {
        let window = Sliding::of(ms(5 * minute)).every(ms(minute));
        let (got, _) = weir(n, make, window, sum(|pair: &Pair| pair.1), memory)?;
        ensure!(got == all_slid, "{got:?}, expected {all_slid:?}");
        Ok(None)
    };
    let theirs = || {
        let (got, _) = weir(n, make, Tumbling::of(ms(minute)), sum(|pair: &Pair| pair.1), memory)?;
        ensure!(got == all_tumbled, "{got:?}, expected {all_tumbled:?}");
        Ok(None)
    };
    Ok(Comparison {
        what,
        baseline: "tumbling 1 min",
        records: n,
        rounds: alternate(scale.rounds, ours, theirs)?,
        target: target.into(),
        peak_rss_mib: peak_rss_mib(),
    })
}

/// 100,000 records a second.
pub(crate) fn dense(scale: Scale) -> anyhow::Result<Comparison> {
    compare(
        scale,
        100_000,
        60,
        "sliding sum per key, 5 min by 1 min, 100,000 keys, one record a second of each, memory, parallelism 2",
        "at most 1.3 times the CPU per record",
    )
}

/// 16,667 records a second: half of what a slide costs is not for records but for keys, of each of which a result is given.
pub(crate) fn sparse(scale: Scale) -> anyhow::Result<Comparison> {
    compare(
        scale,
        100_000,
        10,
        "sliding sum per key, 5 min by 1 min, 100,000 keys, ten records a minute of each, memory, parallelism 2",
        "none: five minutes' results every minute are most of the work",
    )
}
