//! Counts words: of a file when one is named, else of a few lines of its own.

use std::path::PathBuf;

use clap::Parser;
use weir_connectors::prelude::*;
use weir_engine::prelude::*;
use weir_examples::options::Common;
use weir_operators::prelude::*;

/// Counts the words of a text and prints each with its count when the text ends.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// A text file [default: a few lines about weirs].
    file: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
    /// Log levels.
    #[arg(long, default_value = "warn")]
    log: String,
}

const LINES: [&str; 3] = [
    "a weir is a low barrier across a river",
    "it regulates the flow of the river",
    "and keeps the level of the water",
];

/// Adds one per word; a timer at the end of time gives the sum.
#[derive(Clone)]
struct Count;

impl ProcessFunction<String, String> for Count {
    type Out = (String, u64);
    type State = u64;

    fn process(
        &mut self,
        _: Record<String>,
        cx: &mut KeyedContext<'_, String, u64>,
        _: &mut impl Collector<(String, u64)>,
    ) -> Result<()> {
        *cx.state()? += 1;
        cx.set_timer(EventTime(Watermark::MAX.0));
        Ok(())
    }

    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, String, u64>,
        out: &mut impl Collector<(String, u64)>,
    ) -> Result<()> {
        let count = *cx.state()?;
        out.emit(Record::new((cx.key().clone(), count), time))
    }
}

fn main() -> anyhow::Result<()> {
    let options: Options = weir_examples::config::parse();
    weir_engine::log::init(&options.log)?;
    let job = options.common.job("word-count")?;
    let lines = match options.file {
        Some(path) => job.source("file", FileSource::lines(path)).without_event_time(),
        None => job.source("lines", MemorySource::new(LINES.map(String::from))).without_event_time(),
    };
    lines
        .flat_map(|line: String| line.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>())
        .key_by("by-word", String::clone)
        .process("count", Count)
        .sink("terminal", PrintSink::with(|(word, n): &(String, u64)| format!("{n:>6} {word}")));
    job.run()?;
    Ok(())
}
