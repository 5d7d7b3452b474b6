//! Copies a Kafka topic into another, exactly once: kill it at any moment and start it again.
//!
//! `cargo run --release --bin mirror -- --brokers kafka-1:9092 --topic orders --to orders-copy --checkpoints file:///var/weir/mirror`

use clap::Parser;
use weir_connectors::kafka::KafkaConfig;
use weir_examples::kafka::Kafka;
use weir_examples::mirror::Mirror;
use weir_examples::options::{Common, for_good};

/// Copies a Kafka topic into another, exactly once for those who read what is committed.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(flatten)]
    kafka: Kafka,
    /// The topic to read.
    #[arg(long)]
    topic: String,
    /// The brokers to write to [default: those that are read from].
    #[arg(long, value_name = "HOST:PORT,…")]
    to_brokers: Option<String>,
    /// The topic to write, which is there and has at least as many partitions.
    #[arg(long)]
    to: String,
    /// The sink's name in the cluster that is written, which no other may have [default: made of both topics].
    #[arg(long)]
    name: Option<String>,
    /// Begins from a checkpoint of which it is not known what is visible: records may come twice.
    #[arg(long)]
    accept_duplicates: bool,
    #[command(flatten)]
    common: Common,
    /// Log levels.
    #[arg(long, default_value = "info")]
    log: String,
}

fn main() -> anyhow::Result<()> {
    let options: Options = weir_examples::config::parse();
    weir_engine::log::init(&options.log)?;
    anyhow::ensure!(options.common.checkpoints.is_some(), "exactly once needs --checkpoints: where they go");
    let Some(from) = options.kafka.config() else {
        anyhow::bail!("--brokers is missing: those to read from")
    };
    let to = options.to_brokers.as_deref().map(|list| options.kafka.with(KafkaConfig::brokers(list)));
    let mirror = Mirror {
        to: to.unwrap_or_else(|| from.clone()),
        from,
        name: options.name.clone().unwrap_or_else(|| default_name(&options.topic, &options.to)),
        topic: options.topic.clone(),
        copy: options.to.clone(),
        accept_duplicates: options.accept_duplicates,
    };
    let job = options.common.job("mirror")?.restart(for_good());
    mirror.build(&job);
    job.run()?;
    Ok(())
}

/// Names may have dashes, so the length of the first tells where it ends: two mirrors never share a name.
fn default_name(topic: &str, to: &str) -> String {
    format!("mirror-{topic}-{to}-{}", topic.len())
}
