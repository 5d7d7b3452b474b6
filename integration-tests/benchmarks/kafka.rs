//! Kafka → count per key, against a bare `BaseConsumer` loop that decodes and counts the same records.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use std::collections::HashMap;
use weir_connectors::behaviour::{Shop, behaviours_of};
use weir_connectors::prelude::*;
use weir_engine::*;
use weir_operators::prelude::*;

use crate::cli::Scale;
use crate::measure::{Comparison, alternate, peak_rss_mib};

const TOPIC: &str = "bench";
const PARTITIONS: i32 = 24;
/// What the in-process broker can keep: 5 MB a partition, at some 110 bytes a record.
const RECORDS: u64 = 720_000;

/// Counts per user; the sink hears of every record.
#[derive(Clone)]
struct Count;

impl ProcessFunction<u64, Behaviour> for Count {
    type Out = u64;
    type State = u64;
    fn process(
        &mut self,
        r: Record<Behaviour>,
        cx: &mut KeyedContext<'_, u64, u64>,
        out: &mut impl Collector<u64>,
    ) -> Result<()> {
        *cx.state()? += 1;
        let count = *cx.state()?;
        out.emit(r.with(r.value.user_id.wrapping_mul(count)))
    }
}

/// Adds up, and says how many there were after each batch.
#[derive(Clone, Default)]
struct Sum {
    total: Arc<[AtomicU64; 2]>,
    first: Arc<OnceLock<Instant>>,
}

impl Sink<u64> for Sum {
    fn write(&mut self, batch: &mut Vec<Record<u64>>) -> Result<()> {
        self.first.get_or_init(Instant::now);
        let sum = batch.iter().fold(0u64, |s, r| s.wrapping_add(r.value));
        self.total[0].fetch_add(sum, Ordering::Relaxed);
        self.total[1].fetch_add(batch.len() as u64, Ordering::Release);
        batch.clear();
        Ok(())
    }
}

/// The sum, and the time from the first record's count to the last one's: how long a client takes to find its broker and to
/// take leave of it is another matter.
type Counted = (u64, Duration);

fn weir(kafka: &KafkaConfig, n: u64) -> anyhow::Result<Counted> {
    let sink = Sum::default();
    let job = Job::named("kafka").parallelism(1);
    job.source("events", KafkaSource::json::<Behaviour>(kafka).topic(TOPIC))
        .event_time(|e| e.ts, Watermarks::bounded(Duration::from_secs(5)))
        .key_by("by-user", |e| e.user_id)
        .process("count", Count)
        .sink("sum", sink.clone());
    let running = job.start()?;
    while sink.total[1].load(Ordering::Acquire) < n && !running.is_over() {
        std::thread::park_timeout(Duration::from_micros(200));
    }
    let took = sink.first.get().map_or(Duration::ZERO, Instant::elapsed);
    running.drain(EndKind::Keep);
    running.wait()?;
    let read = sink.total[1].load(Ordering::Relaxed);
    ensure!(read == n, "{read} of {n} records");
    Ok((sink.total[0].load(Ordering::Relaxed), took))
}

fn bare(brokers: &str, n: u64) -> anyhow::Result<Counted> {
    let mut first = None;
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "bare")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "error")
        // What our source sets for this broker too, and why: it answers an empty fetch only after the whole wait.
        .set("fetch.wait.max.ms", "5")
        .set("fetch.queue.backoff.ms", "5")
        .create()?;
    let mut partitions = TopicPartitionList::new();
    for p in 0..PARTITIONS {
        partitions.add_partition_offset(TOPIC, p, Offset::Beginning)?;
    }
    consumer.assign(&partitions)?;
    let mut counts: HashMap<u64, u64> = HashMap::new();
    let (mut read, mut sum) = (0, 0u64);
    while read < n {
        let Some(message) = consumer.poll(Duration::from_secs(10)) else { continue };
        let message = message?;
        first.get_or_insert_with(Instant::now);
        let event: Behaviour =
            serde_json::from_slice(message.payload().context("a record without payload")?)?;
        let count = counts.entry(event.user_id).or_insert(0);
        *count += 1;
        sum = sum.wrapping_add(event.user_id.wrapping_mul(*count));
        read += 1;
    }
    Ok((sum, first.map_or(Duration::ZERO, |first| first.elapsed())))
}

pub(crate) fn run(scale: Scale) -> anyhow::Result<Comparison> {
    let n = if scale.smoke { 2_000 } else { RECORDS };
    let what = "in-process broker, 24 partitions of JSON → decode → key_by → count per key → sink";
    compare(&KafkaConfig::embedded()?, n, scale, what)
}

/// The same job and the same loop over `n` records that are in `kafka` by then.
pub(crate) fn compare(
    kafka: &KafkaConfig,
    n: u64,
    scale: Scale,
    what: &'static str,
) -> anyhow::Result<Comparison> {
    kafka.create_topic(TOPIC, PARTITIONS)?;
    let shop = Shop { users: 10_000, ..Shop::default() };
    let fill = Job::named("fill").parallelism(1);
    // In turn, so that every partition holds the same and none overflows.
    fill.source("events", behaviours_of(shop, 7, Some(n)))
        .source_time(Watermarks::monotonic())
        .sink("topic", KafkaSink::json(kafka, TOPIC));
    fill.start()?.wait()?;
    let brokers = kafka.broker_list().to_owned();
    let mut counts: HashMap<u64, u64> = HashMap::new();
    for i in 0..n {
        *counts.entry(shop.event(i, &mut weir_connectors::random::Random::of(7, i)).user_id).or_insert(0) +=
            1;
    }
    let expected = counts.iter().fold(0u64, |s, (k, c)| s.wrapping_add(k.wrapping_mul(c * (c + 1) / 2)));
    let check = |(sum, took): Counted| {
        ensure!(sum == expected, "sum {sum}, expected {expected}");
        Ok(Some(took))
    };
    let rounds = alternate(scale.rounds, || check(weir(kafka, n)?), || check(bare(&brokers, n)?))?;
    Ok(Comparison {
        what,
        baseline: "bare consumer",
        records: n,
        rounds,
        target: "at least 0.80 of the bare loop's throughput".into(),
        peak_rss_mib: peak_rss_mib(),
    })
}
