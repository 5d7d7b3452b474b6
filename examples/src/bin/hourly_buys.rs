//! Hourly trade volume: purchases per hour of event time, to the terminal.

use std::path::PathBuf;

use clap::Parser;
use jiff::Timestamp;
use weir_connectors::prelude::*;
use weir_engine::prelude::*;
use weir_examples::options::Common;
use weir_examples::recorded_file;
use weir_operators::prelude::*;

/// Counts purchases per hour of event time and prints each hour when it is over.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Rows of user_id,item_id,category_id,behavior,unix seconds, in any order [default: the recorded file].
    file: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
    /// Log levels.
    #[arg(long, default_value = "warn")]
    log: String,
}

fn main() -> anyhow::Result<()> {
    let options: Options = weir_examples::config::parse();
    weir_engine::log::init(&options.log)?;
    let file = options.file.unwrap_or_else(recorded_file);
    let job = options.common.job("hourly-buys")?;
    // The file lies sorted by user: its hours are complete when all of it has been read.
    job.source("rows", FileSource::decoded(file, BehaviourCsv::default()))
        .bad_records(BadRecords::Fail)
        .event_time(|e: &Behaviour| e.ts, Watermarks::at_end())
        .filter(|e| e.behavior == Action::Buy)
        .key_by("everything", |_| 0u8)
        .window(Tumbling::of(hours(1)))
        .aggregate("buys", count())
        .sink(
            "terminal",
            PrintSink::with(|w: &WindowResult<u8, u64>| {
                format!("{}  {:>5}", hour(w.window.start.millis()), w.value)
            }),
        );
    job.run()?;
    Ok(())
}

fn hour(ms: i64) -> String {
    Timestamp::from_millisecond(ms)
        .map_or_else(|_| ms.to_string(), |t| t.strftime("%Y-%m-%d %H:00Z").to_string())
}
