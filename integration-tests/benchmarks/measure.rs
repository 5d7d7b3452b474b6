//! Times two ways of doing the same work in alternation, and says what came out in one table and one JSON line.

use std::time::{Duration, Instant};

use weir_engine::metrics::process;

/// One run of one side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
}

/// Two sides of one benchmark.
pub(crate) struct Comparison {
    pub(crate) what: &'static str,
    pub(crate) baseline: &'static str,
    pub(crate) records: u64,
    /// `(ours, theirs)` of each round, run right after each other.
    pub(crate) rounds: Vec<(Run, Run)>,
    pub(crate) target: String,
    pub(crate) peak_rss_mib: u64,
}

/// Runs `work` once. It may say how much of its time counts; else all of it does.
fn time(work: impl FnOnce() -> anyhow::Result<Option<Duration>>) -> anyhow::Result<Run> {
    let cpu = || process::read().map_or(0.0, |r| r.cpu_seconds);
    let (began, cpu_began) = (Instant::now(), cpu());
    let counted = work()?;
    let seconds = counted.unwrap_or_else(|| began.elapsed()).as_secs_f64();
    Ok(Run { seconds, cpu_seconds: cpu() - cpu_began })
}

/// Runs both sides `rounds` times in alternation, after one round that is not counted.
pub(crate) fn alternate(
    rounds: usize,
    mut ours: impl FnMut() -> anyhow::Result<Option<Duration>>,
    mut theirs: impl FnMut() -> anyhow::Result<Option<Duration>>,
) -> anyhow::Result<Vec<(Run, Run)>> {
    if rounds > 1 {
        theirs()?;
        ours()?;
    }
    (0..rounds).map(|_| Ok((time(&mut ours)?, time(&mut theirs)?))).collect()
}

pub(crate) fn peak_rss_mib() -> u64 {
    process::read().map_or(0, |r| r.peak_resident_bytes >> 20)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

impl Comparison {
    pub(crate) fn print(&self, name: &str) {
        let n = self.records as f64;
        let per_s = |pick: fn(&(Run, Run)) -> Run| median(self.rounds.iter().map(|r| n / pick(r).seconds));
        let cpu =
            |pick: fn(&(Run, Run)) -> Run| median(self.rounds.iter().map(|r| pick(r).cpu_seconds / n * 1e6));
        let (ours, theirs) = (per_s(|r| r.0), per_s(|r| r.1));
        let (cpu_ours, cpu_theirs) = (cpu(|r| r.0), cpu(|r| r.1));
        // Pair by pair: the machine's speed drifts, the two runs of a pair saw the same machine.
        let ratio = median(self.rounds.iter().map(|(o, t)| t.seconds / o.seconds));
        // The other way round: what a record costs us for each that it costs them.
        let cpu_ratio = median(self.rounds.iter().map(|(o, t)| o.cpu_seconds / t.cpu_seconds));
        println!("{name}: {} ({} records, {} rounds, checked)", self.what, self.records, self.rounds.len());
        println!("  {:<14} {:>14} {:>12} {:>16}", "", "records/s", "ns/record", "CPU s/million");
        for (label, rate, cpu) in [("weir", ours, cpu_ours), (self.baseline, theirs, cpu_theirs)] {
            println!("  {label:<14} {rate:>14.0} {:>12.2} {cpu:>16.4}", 1e9 / rate);
        }
        println!(
            "  ratio {ratio:.3} (pair by pair), difference {:+.2} ns/record, CPU per record {cpu_ratio:.2} times theirs; target: {}",
            1e9 / ours - 1e9 / theirs,
            self.target
        );
        let json = serde_json::json!({
            "bench": name, "checked": true, "records": self.records, "records_per_s": ours.round(),
            "cpu_s_per_million": (cpu_ours * 1e4).round() / 1e4, "baseline": self.baseline,
            "baseline_records_per_s": theirs.round(), "baseline_cpu_s_per_million": (cpu_theirs * 1e4).round() / 1e4,
            "ratio": (ratio * 1e3).round() / 1e3, "cpu_ratio": (cpu_ratio * 1e3).round() / 1e3, "peak_rss_mib": self.peak_rss_mib,
        });
        println!("{json}");
    }
}
