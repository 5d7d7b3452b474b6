//! Cumulative unique visitors: how many users there were since midnight in Shanghai, every ten minutes, to the terminal.

use std::path::PathBuf;

use clap::Parser;
use jiff::Timestamp;
use jiff::tz::offset;
use weir_connectors::prelude::*;
use weir_engine::prelude::*;
use weir_examples::options::Common;
use weir_examples::recorded_file;
use weir_operators::prelude::*;

/// Counts the different users since midnight in Shanghai and prints the count for every ten minutes.
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

/// Eight hours ahead of UTC, the whole year.
const SHANGHAI_HOURS: i8 = 8;
/// Users are counted in groups, so that all subtasks have something to do.
const GROUPS: u64 = 16;

fn main() -> anyhow::Result<()> {
    let options: Options = weir_examples::config::parse();
    weir_engine::log::init(&options.log)?;
    let file = options.file.unwrap_or_else(recorded_file);
    let job = options.common.job("cumulative-uv")?;
    let days = Cumulate::of(days(1)).every(minutes(10)).offset_ms(-i64::from(SHANGHAI_HOURS) * 3_600_000);
    // The file lies sorted by user: its days are complete when all of it has been read.
    job.source("rows", FileSource::decoded(file, BehaviourCsv::default()))
        .bad_records(BadRecords::Fail)
        .event_time(|e: &Behaviour| e.ts, Watermarks::at_end())
        .key_by("by-user-group", |e| e.user_id % GROUPS)
        .window(days)
        .aggregate("users", distinct(|e: &Behaviour| e.user_id))
        // A result has the time of its window's last millisecond: those of one step are in one window here, and since no
        // user is in two groups their counts add up.
        .key_by("everything", |_| 0u8)
        .window(Tumbling::of(minutes(10)))
        .aggregate("visitors", sum(|w: &WindowResult<u64, u64>| w.value))
        .sink(
            "terminal",
            PrintSink::with(|w: &WindowResult<u8, u64>| {
                format!("{}  {:>5}", local(w.window.end.millis()), w.value)
            }),
        );
    job.run()?;
    Ok(())
}

/// The step that ends at `ms`; midnight is the end of the day that it ends.
fn local(ms: i64) -> String {
    let last = |ms| Timestamp::from_millisecond(ms).map(|t| offset(SHANGHAI_HOURS).to_datetime(t));
    match (last(ms - 1), last(ms)) {
        (Ok(day), Ok(end)) if day.date() == end.date() => end.strftime("%Y-%m-%d until %H:%M").to_string(),
        (Ok(day), _) => day.strftime("%Y-%m-%d until 24:00").to_string(),
        _ => ms.to_string(),
    }
}
