//! Against a real broker: the source and a bare client loop, exactly-once and at-least-once sinks, and latency from end to end.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Message, Offset, TopicPartitionList};
use weir_connectors::kafka::ExactlyOnce;
use weir_connectors::prelude::*;
use weir_connectors::random::Random;
use weir_engine::*;
use weir_integration_tests::broker::RealBroker;

use crate::cli::Scale;
use crate::kafka;
use crate::measure::{Comparison, alternate, peak_rss_mib};

const PARTITIONS: i32 = 4;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// One for all benchmarks; it ends with the process.
fn broker() -> anyhow::Result<&'static RealBroker> {
    static BROKER: OnceLock<RealBroker> = OnceLock::new();
    if let Some(broker) = BROKER.get() {
        return Ok(broker);
    }
    let broker = RealBroker::start()?;
    Ok(BROKER.get_or_init(|| broker))
}

/// Its address, and a name for a topic that nobody has used.
fn fresh(what: &str) -> anyhow::Result<(KafkaConfig, String)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let kafka = KafkaConfig::brokers(broker()?.address()).patience(Duration::from_secs(60));
    let topic = format!("{what}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    ensure!(kafka.create_topic(&topic, PARTITIONS)?, "{topic} is there already");
    Ok((kafka, topic))
}

pub(crate) fn source(scale: Scale) -> anyhow::Result<Comparison> {
    let kafka = KafkaConfig::brokers(broker()?.address()).patience(Duration::from_secs(60));
    let what = "real broker, 24 partitions of JSON → decode → key_by → count per key → sink";
    kafka::compare(&kafka, scale.records(2_000_000), scale, what)
}

fn reader(topic: &str) -> anyhow::Result<BaseConsumer> {
    let consumer: BaseConsumer = broker()?
        .client()
        .set("group.id", "bench-reader")
        .set("enable.partition.eof", "true")
        .set("enable.auto.commit", "false")
        .set("fetch.queue.backoff.ms", "5")
        .create()?;
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&all)?;
    Ok(consumer)
}

/// How many committed records are in a topic that nobody writes to any more.
fn count(topic: &str) -> anyhow::Result<u64> {
    let (consumer, mut ended, mut records) = (reader(topic)?, 0, 0);
    while ended < PARTITIONS {
        match consumer.poll(PATIENCE).context("the topic does not end")? {
            Ok(_) => records += 1,
            Err(KafkaError::PartitionEOF(_)) => ended += 1,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(records)
}

/// Writes `n` records of a hundred bytes, with a checkpoint every second; says how long the job took.
fn written(n: u64, exactly_once: bool) -> anyhow::Result<Option<Duration>> {
    let (kafka, topic) = fresh("bench-sink")?;
    let folder = tempfile::tempdir()?;
    let job = Job::named(&topic)
        .parallelism(1)
        .state(StateBackend::rocksdb().folder(folder.path().join("state")))
        .checkpoints(
            Checkpoints::to(folder.path().join("checkpoints").display().to_string())
                .every(Duration::from_secs(1)),
        );
    let record = |i: u64, _: &mut Random| (format!("{i:0100}").into_bytes(), EventTime(1 + i as i64));
    let mut sink = KafkaSink::bytes(&kafka, &topic).key(|record: &Vec<u8>| record[90..].to_vec());
    if exactly_once {
        sink = sink.exactly_once(ExactlyOnce::named(&topic));
    }
    job.source("records", Generator::new(1, Some(n), record)).without_event_time().sink("out", sink);
    let began = Instant::now();
    job.run()?;
    let took = began.elapsed();
    let found = count(&topic)?;
    ensure!(found == n, "{found} records of {n} are in the topic");
    Ok(Some(took))
}

pub(crate) fn exactly_once(scale: Scale) -> anyhow::Result<Comparison> {
    let n = scale.records(2_000_000);
    let rounds = alternate(scale.rounds, || written(n, true), || written(n, false))?;
    Ok(Comparison {
        what: "records of 100 bytes → Kafka sink on a real broker, a checkpoint every second: exactly once",
        baseline: "at least once",
        records: n,
        rounds,
        target: "at least 0.70 of the throughput at least once".into(),
        peak_rss_mib: peak_rss_mib(),
    })
}

/// Copies a topic, record by record, until `over` says so.
fn relay(kafka: &KafkaConfig, from: &str, to: &str) -> anyhow::Result<JobHandle> {
    let job = Job::named("relay").parallelism(1);
    let kafka = kafka.clone().set("linger.ms", "0");
    job.source("in", KafkaSource::bytes(&kafka).topic(from))
        .without_event_time()
        .sink("out", KafkaSink::<Vec<u8>, _>::bytes(&kafka, to));
    Ok(job.start()?)
}

/// The same by a bare client.
fn bare_relay(from: &str, to: &str, n: u64) -> anyhow::Result<()> {
    let producer: BaseProducer =
        broker()?.client().set("linger.ms", "0").set("enable.idempotence", "true").create()?;
    let (consumer, mut copied) = (reader(from)?, 0);
    while copied < n {
        let message = match consumer.poll(PATIENCE).context("nothing comes")? {
            Ok(message) => message,
            Err(KafkaError::PartitionEOF(_)) => continue,
            Err(e) => return Err(e.into()),
        };
        let payload = message.payload().context("a record without a payload")?;
        put(&producer, to, (copied % PARTITIONS as u64) as i32, payload)?;
        copied += 1;
    }
    producer.flush(PATIENCE)?;
    Ok(())
}

fn put(producer: &BaseProducer, topic: &str, partition: i32, payload: &[u8]) -> anyhow::Result<()> {
    let mut record = BaseRecord::<(), [u8]>::to(topic).partition(partition).payload(payload);
    while let Err((e, back)) = producer.send(record) {
        ensure!(e.rdkafka_error_code() == Some(rdkafka::types::RDKafkaErrorCode::QueueFull), "{e}");
        producer.poll(Duration::from_millis(1));
        record = back;
    }
    producer.poll(Duration::ZERO);
    Ok(())
}

/// Waits until so many records are in a topic.
fn until_there(topic: &str, n: u64, running: &JobHandle) -> anyhow::Result<()> {
    let asker: BaseConsumer = broker()?.client().create()?;
    let began = Instant::now();
    loop {
        let mut there = 0;
        for partition in 0..PARTITIONS {
            there += asker.fetch_watermarks(topic, partition, PATIENCE)?.1 as u64;
        }
        if there >= n {
            return Ok(());
        }
        ensure!(!running.is_over() && began.elapsed() < PATIENCE, "{there} records of {n}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Sends records at a rate through the job, each with the time at which it was due, and says how long they took, sorted, in
/// nanoseconds.
fn paced(rate: f64, time: Duration) -> anyhow::Result<Vec<u64>> {
    let ((kafka, from), (_, to)) = (fresh("bench-from")?, fresh("bench-to")?);
    let running = relay(&kafka, &from, &to)?;
    let n = ((rate * time.as_secs_f64()) as u64).max(100);
    let consumer = reader(&to)?;
    let producer: BaseProducer = broker()?.client().set("linger.ms", "0").create()?;
    // How clients come to their partitions is not what is measured.
    for partition in 0..PARTITIONS {
        put(&producer, &from, partition, &[0; 8])?;
    }
    let mut warm = 0;
    while warm < PARTITIONS {
        match consumer.poll(PATIENCE).context("nothing comes")? {
            Ok(_) => warm += 1,
            Err(KafkaError::PartitionEOF(_)) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let (began, failed) = (Instant::now(), AtomicBool::new(false));
    let took = std::thread::scope(|scope| {
        let (from, producer, failed) = (&from, &producer, &failed);
        let writer = scope.spawn(move || -> anyhow::Result<()> {
            let sent = (0..n).try_for_each(|i| {
                let due = Duration::from_secs_f64(i as f64 / rate);
                while began.elapsed() < due {
                    producer.poll(Duration::ZERO);
                    std::thread::park_timeout(
                        (due.saturating_sub(began.elapsed())).min(Duration::from_micros(200)),
                    );
                }
                put(producer, from, (i % PARTITIONS as u64) as i32, &(due.as_nanos() as u64).to_le_bytes())
            });
            failed.store(sent.is_err(), Ordering::Release);
            sent?;
            Ok(producer.flush(PATIENCE)?)
        });
        let mut took = Vec::with_capacity(n as usize);
        let mut heard = Instant::now();
        while took.len() < n as usize {
            match consumer.poll(Duration::from_secs(1)) {
                Some(Ok(message)) => {
                    let due = message.payload().context("no payload")?.try_into().map(u64::from_le_bytes)?;
                    took.push((began.elapsed().as_nanos() as u64).saturating_sub(due));
                    heard = Instant::now();
                }
                Some(Err(KafkaError::PartitionEOF(_))) => {}
                Some(Err(e)) => return Err(e.into()),
                None if failed.load(Ordering::Acquire) || heard.elapsed() > PATIENCE => {
                    bail!("{} records of {n} came", took.len())
                }
                None => {}
            }
        }
        writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        Ok::<_, anyhow::Error>(took)
    });
    running.drain(EndKind::Keep);
    running.wait()?;
    let mut took = took?;
    took.sort_unstable();
    Ok(took)
}

/// First how fast records can be copied, by the job and by a bare client; then how long they take at shares of the job's rate.
pub(crate) fn latency(scale: Scale) -> anyhow::Result<Comparison> {
    let n = scale.records(1_000_000);
    let (kafka, from) = fresh("bench-full")?;
    let producer: BaseProducer = broker()?.client().create()?;
    for i in 0..n {
        put(&producer, &from, (i % PARTITIONS as u64) as i32, &i.to_le_bytes())?;
    }
    producer.flush(PATIENCE)?;
    let weir = || -> anyhow::Result<Option<Duration>> {
        let to = fresh("bench-copy")?.1;
        let began = Instant::now();
        let running = relay(&kafka, &from, &to)?;
        until_there(&to, n, &running)?;
        let took = began.elapsed();
        running.drain(EndKind::Keep);
        running.wait()?;
        Ok(Some(took))
    };
    let bare = || -> anyhow::Result<Option<Duration>> {
        let to = fresh("bench-copy")?.1;
        let began = Instant::now();
        bare_relay(&from, &to, n)?;
        Ok(Some(began.elapsed()))
    };
    let rounds = alternate(scale.rounds, weir, bare)?;
    let mut seconds: Vec<f64> = rounds.iter().map(|(ours, _)| ours.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    let capacity = n as f64 / seconds[seconds.len() / 2];
    let time = Duration::from_secs(if scale.smoke { 1 } else { 20 });
    for share in [10, 50, 80] {
        let rate = if scale.smoke { 200.0 } else { capacity * f64::from(share) / 100.0 };
        let took = paced(rate, time)?;
        let at = |permille: usize| took[(took.len() * permille / 1000).min(took.len() - 1)] as f64 / 1e6;
        println!(
            "broker-latency: at {share} % of capacity ({rate:.0} records/s): p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, {} records",
            at(500),
            at(990),
            at(999),
            took.len()
        );
    }
    Ok(Comparison {
        what: "real broker → Kafka source → Kafka sink, at least once, linger.ms=0 → real broker",
        baseline: "bare clients",
        records: n,
        rounds,
        target: "p99 below 10 ms at 50 % of capacity (the lines above)".into(),
        peak_rss_mib: peak_rss_mib(),
    })
}
