//! The command line of the benchmark programs: which to run, how large, how often.

use std::process::ExitCode;

use clap::Parser;

use crate::measure::Comparison;

/// Benchmarks of Weir. The last line of each is one JSON object.
#[derive(Parser)]
struct Options {
    /// Which to run; all when none is named. A name also stands for those that begin with it and a dash.
    names: Vec<String>,
    /// Small sizes and one round: proves that the benchmarks build, run and check. Its times mean nothing.
    #[arg(long)]
    smoke: bool,
    /// Rounds per benchmark; the two sides alternate and medians are reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// How much to do.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) rounds: usize,
    pub(crate) smoke: bool,
}

impl Scale {
    /// `full` records, or a thousandth of it in a smoke run.
    pub(crate) fn records(self, full: u64) -> u64 {
        if self.smoke { full / 1000 } else { full }
    }
}

/// True when a name on the command line stands for this benchmark.
fn stands_for(name: &str, benchmark: &str) -> bool {
    benchmark.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

pub(crate) type Benchmark = fn(Scale) -> anyhow::Result<Comparison>;

/// Runs those of `all` that the command line names. A wrong result ends it without a time.
pub(crate) fn run(all: &[(&str, Benchmark)]) -> ExitCode {
    let options = Options::parse();
    let known: Vec<_> = all.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = options.names.iter().find(|n| !known.iter().any(|known| stands_for(n, known))) {
        eprintln!("there is no benchmark {unknown:?}: choose among {}", known.join(", "));
        return ExitCode::FAILURE;
    }
    let scale = Scale { rounds: if options.smoke { 1 } else { options.rounds.max(1) }, smoke: options.smoke };
    for &(name, benchmark) in all {
        if !options.names.is_empty() && !options.names.iter().any(|n| stands_for(n, name)) {
            continue;
        }
        match benchmark(scale) {
            Ok(comparison) => comparison.print(name),
            Err(e) => {
                eprintln!("{name}: the result is wrong or the run failed, so no time is printed: {e:#}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
