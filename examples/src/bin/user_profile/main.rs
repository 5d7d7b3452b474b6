//! The main demo: behaviour events through Kafka into a live profile that answers segment questions while it changes.

mod days;
mod direct;
mod input;
mod job;
mod live;
mod questions;
mod replay;
mod say;
mod verify;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use weir_connectors::prelude::*;
use weir_engine::http::HttpPort;
use weir_engine::prelude::*;
use weir_engine::{log, metrics};
use weir_examples::kafka::Kafka;
use weir_examples::options::Common;
use weir_examples::recorded_file;

use crate::input::Input;
use crate::live::Live;
use crate::questions::Question;
use crate::replay::{interrupted, replay};
use crate::say::{complain, say};
use crate::verify::{Verdict, verify};

/// Events carry strings between threads, and RocksDB's blocks come and go: the C library's allocator is slow with the first and
/// keeps about as much again as the second take.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Replays behaviour events through Kafka into a live user profile, asks segment questions while it changes, and checks
/// every answer against a plain loop over the input.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Events of the seeded generator instead of the recorded file.
    #[arg(long, value_name = "N")]
    events: Option<u64>,
    /// Another recorded file: rows of user_id,item_id,category_id,behavior,unix seconds.
    #[arg(long, value_name = "CSV", conflicts_with = "events")]
    file: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
    /// Reads the events itself instead of through Kafka: what survives being killed then is this process's own state.
    #[arg(long, conflicts_with_all = ["brokers", "serve", "plan"])]
    direct: bool,
    /// Writes purchases per user and day as JSON lines into this folder, exactly once.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Through a broker inside this process if none is named.
    #[command(flatten)]
    kafka: Kafka,
    /// Partitions of the topic, when it has to be created.
    #[arg(long, default_value_t = 4, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    partitions: i32,
    /// Replays at most so many events per second [default: 2,500 for the file through Kafka, else no limit].
    #[arg(long, value_name = "RECORDS/S")]
    rate: Option<f64>,
    /// Answers over HTTP (GET / lists the routes) and stays until Ctrl-C, e.g. 127.0.0.1:8080.
    #[arg(long, value_name = "ADDR")]
    serve: Option<String>,
    /// Prints the plan and ends.
    #[arg(long, value_name = "text|dot|json")]
    plan: Option<String>,
    /// Log levels, e.g. warn or info,weir_engine=debug.
    #[arg(long, default_value = "info")]
    log: String,
}

/// The recorded file is ten thousand rows: at this rate there is something to see.
const FILE_RATE: f64 = 2_500.0;

fn main() -> ExitCode {
    match run(&weir_examples::config::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            complain(&e);
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<bool> {
    log::init(&options.log)?;
    let input = match (options.events, &options.file) {
        (Some(events), _) => Input::generated(events),
        (None, Some(file)) => Input::recorded(file)?,
        (None, None) => Input::recorded(&recorded_file())?,
    };
    if input.len() == 0 {
        bail!("there are no events: --events must be at least 1, and a file must have rows");
    }
    let rate = options.rate.or(if options.events.is_some() { None } else { Some(FILE_RATE) });
    if options.direct {
        let rate = options.rate;
        return direct::run(options.common.job(job::NAME)?, input, rate, options.out.as_deref());
    }
    // The port first: a start that fails half way should fail before it has begun anything.
    let port = options.serve.as_deref().map(HttpPort::bind).transpose()?;

    let named = options.kafka.config();
    let embedded = named.is_none();
    let kafka = match named {
        Some(kafka) => kafka,
        None => options.kafka.with(KafkaConfig::embedded()?),
    };
    let mut common = options.common.clone();
    // What the broker in this process was given goes with it.
    common.fresh |= embedded && common.savepoint.is_none() && common.checkpoint.is_none();
    let shell = common.job(job::NAME)?;
    let source = KafkaSource::json::<Behaviour>(&kafka).topic(job::TOPIC).from(Start::Latest);
    let progress = source.progress();
    let profiles = job::profiles(input.days());
    let job = job::job(shell, source, None, &profiles, options.out.as_deref());
    if let Some(format) = &options.plan {
        let plan = job.plan()?;
        match format.as_str() {
            "text" => say(plan.to_string().trim_end())?,
            "dot" => say(plan.to_dot().trim_end())?,
            "json" => say(plan.to_json())?,
            other => bail!("--plan {other}: text, dot or json"),
        }
        return Ok(true);
    }
    let serving = port.map(|port| port.profiles(&profiles).serve()).transpose()?;
    if let Some(serving) = &serving {
        say(format_args!("serving http://{}/", serving.address()))?;
    }
    kafka.create_topic(job::TOPIC, options.partitions)?;
    let running = job.start_with_signals()?;
    if let Some(serving) = &serving {
        serving.show(&running);
    }
    await_start(&running)?;

    let questions = questions::questions(&input);
    say(format_args!("\n{} events; {} segments asked for while they change:", input.len(), questions.len()))?;
    let live = Live::start(profiles.reader(), &questions)?;
    let began = Instant::now();
    replay(&input, &kafka, progress, rate, &running, |done| {
        report(done, input.len());
        // What ended the questions is said when they are stopped.
        if live.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    // While its tasks are there to be counted.
    let process = metrics::process::read();
    let stopped = interrupted(&running);
    running.drain(EndKind::Flush);
    let report = running.wait().context("the job did not finish")?;
    let seconds = began.elapsed().as_secs_f64();
    let asked = live.stop()?;

    let read = report
        .tasks
        .iter()
        .filter(|t| t.task.chain.as_str() == "behaviour")
        .map(|t| t.records_in)
        .sum::<u64>();
    say(format_args!(
        "\n{read} events in {seconds:.2} s ({:.0}/s), {asked} answers meanwhile{}",
        read as f64 / seconds,
        process.map_or(String::new(), |p| format!(
            ", {:.1} s of CPU, {} MiB at most, {} threads",
            p.cpu_seconds,
            p.peak_resident_bytes >> 20,
            p.threads
        ))
    ))?;
    if stopped {
        // There is nothing to compare with before all is read.
        say(format_args!("interrupted: {} events were left", input.len().saturating_sub(read)))?;
        return Ok(true);
    }
    let verdict = verify(&input, &profiles.reader(), &questions)?;
    say_table(&questions, &verdict)?;
    for line in verdict.differing.iter().take(10) {
        say(format_args!("differs: {line}"))?;
    }
    let equal = verdict.asked - verdict.differing.len();
    let all_equal = verdict.differing.is_empty() && read == input.len();
    if read != input.len() {
        say(format_args!("differs: {read} events arrived, {} were sent", input.len()))?;
    }
    if let Some(serving) = serving {
        say(format_args!("\nstill answering at http://{}/ until Ctrl-C", serving.address()))?;
        weir_engine::http::until_interrupted()?;
    }
    say(format_args!("verified: {equal} of {} answers equal a plain loop over the input", verdict.asked))?;
    Ok(all_equal)
}

/// Waits until records can flow, or says why they never will.
fn await_start(job: &JobHandle) -> anyhow::Result<()> {
    while job.status().state != JobState::Running && !interrupted(job) {
        if job.is_over() {
            job.wait()?;
            bail!("the job ended before it ran");
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
    Ok(())
}

/// A bar on a terminal; nothing elsewhere, where the live answers show that it goes on.
fn report(done: u64, of: u64) {
    thread_local! {
        static BAR: ProgressBar = ProgressBar::no_length().with_style(
            ProgressStyle::with_template("{bar:30} {pos} of {len} events, {per_sec}, {eta} left").unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
    }
    BAR.with(|bar| {
        bar.set_length(of);
        bar.set_position(done);
        if done >= of {
            bar.finish_and_clear();
        }
    });
}

fn say_table(questions: &[Question], verdict: &Verdict) -> anyhow::Result<()> {
    say(format_args!("\n{:>8}  {:<48}  condition", "users", "segment"))?;
    for (q, count) in questions.iter().zip(&verdict.counts) {
        say(format_args!("{count:>8}  {:<48}  {}", q.name, q.condition))?;
    }
    say("")
}
