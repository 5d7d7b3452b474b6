//! Kafka to profile as a service: reads a topic for good, answers over HTTP, and goes on where it was after any end.
//!
//! `cargo run --release --bin profile_service -- --brokers kafka-1:9092 --checkpoints file:///var/weir/profile --serve 0.0.0.0:8080`

use std::path::PathBuf;

use clap::Parser;
use weir_engine::http::HttpPort;
use weir_engine::prelude::*;
use weir_examples::kafka::Kafka;
use weir_examples::options::{Common, for_good};
use weir_examples::service::{self, Service};

/// What is read from disk comes and goes in blocks, of which the C library's allocator keeps about as much again.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Keeps a live profile of the users of a topic, and answers over HTTP until it is told to stop (SIGTERM, Ctrl-C).
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(flatten)]
    kafka: Kafka,
    /// The topic: {"user_id","item_id","category_id","behavior","ts"} as JSON, ts in ms since the epoch.
    #[arg(long, default_value = "user_behavior")]
    topic: String,
    /// Records that cannot be read are written into this folder, exactly once.
    #[arg(long, value_name = "FOLDER")]
    dead_letters: Option<PathBuf>,
    /// Where it answers (GET / lists the routes).
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR")]
    serve: String,
    /// Lets who reaches that address take savepoints and stop the job: POST /job/savepoints/NAME, POST /job/stop?savepoint=NAME.
    #[arg(long)]
    control: bool,
    #[command(flatten)]
    common: Common,
    /// Log levels, e.g. warn or info,weir_engine=debug.
    #[arg(long, default_value = "info")]
    log: String,
}

fn main() -> anyhow::Result<()> {
    let options: Options = weir_examples::config::parse();
    weir_engine::log::init(&options.log)?;
    let Some(kafka) = options.kafka.config() else {
        anyhow::bail!("--brokers is missing: host:port, or several with commas")
    };
    anyhow::ensure!(options.common.checkpoints.is_some(), "--checkpoints is missing: where they go");
    let profiles = service::profiles();
    let serving = HttpPort::bind(&options.serve)?.profiles(&profiles).serve()?;
    println!("serving http://{}/", serving.address());

    let job = options.common.job("profile-service")?.restart(for_good()).on_interrupt(EndKind::Keep);
    Service { kafka, topic: options.topic, dead_letters: options.dead_letters }.build(&job, &profiles);
    let running = job.start_with_signals()?;
    serving.show(&running);
    if options.control {
        serving.control(&running);
    }
    running.wait()?;
    Ok(())
}
