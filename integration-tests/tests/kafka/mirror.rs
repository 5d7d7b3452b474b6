//! The `mirror` example under `kill -9` at random moments, with kills of the broker mixed in: the copy is the original.
//!
//! Ten kills; fifty with `WEIR_SOAK`. `WEIR_SEED` repeats a run's choices, not its scheduling.

use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use weir_connectors::kafka::KafkaConfig;
use weir_connectors::random::Random;
use weir_engine::prelude::*;
use weir_examples::mirror::Mirror;

use super::children;
use super::rig::{Rig, SOON, broker, read_committed, soak};

const PARTITIONS: i32 = 4;

fn mirror(brokers: &str, topic: &str) -> Mirror {
    let kafka = KafkaConfig::brokers(brokers)
        .patience(Duration::from_secs(60))
        .set("reconnect.backoff.max.ms", "500");
    Mirror {
        from: kafka.clone(),
        topic: topic.to_owned(),
        to: kafka,
        copy: format!("{topic}-copy"),
        name: format!("{topic}-mirror"),
        accept_duplicates: false,
    }
}

/// The process that is killed. It runs until then.
pub(crate) fn child(told: &[&str]) {
    let &[brokers, topic, folder, parallelism] = told else { panic!("{told:?}") };
    let folder = Path::new(folder);
    let checkpoints = Checkpoints::to(folder.join("checkpoints").display().to_string())
        .every(Duration::from_millis(100))
        .forgive_restarts(true);
    let job = Job::named("mirror")
        .parallelism(parallelism.parse().unwrap())
        .state(StateBackend::rocksdb().folder(folder.join("state")))
        .restart(weir_engine::RestartPolicy::FixedDelay { restarts: 100, delay: Duration::from_millis(100) })
        .checkpoints(checkpoints);
    mirror(brokers, topic).build(&job);
    job.run().unwrap();
}

fn begin(topic: &str, folder: &Path, parallelism: u64) -> Child {
    let (folder, parallelism) = (folder.display().to_string(), parallelism.to_string());
    children::begin("mirror", &[broker().address(), topic, &folder, &parallelism])
}

fn payload(n: u64) -> Option<Vec<u8>> {
    (!n.is_multiple_of(97)).then(|| format!("record {n} {}", "x".repeat(n as usize % 200)).into_bytes())
}

/// Writes `n` records, some without a key, some tombstones, at about so many a second.
fn feed(topic: &str, from: u64, rate: u64, stop: &AtomicBool) -> u64 {
    let producer: BaseProducer = broker()
        .client()
        .set("enable.idempotence", "true")
        .set("message.timeout.ms", "300000")
        .set("reconnect.backoff.max.ms", "500")
        .create()
        .unwrap();
    let (mut n, began) = (from, Instant::now());
    while !stop.load(Ordering::Acquire) {
        while n - from < (began.elapsed().as_secs_f64() * rate as f64) as u64 {
            let (key, payload) = (format!("key-{}", n % 31), payload(n));
            let number = n.to_string();
            let headers = OwnedHeaders::new().insert(Header { key: "n", value: Some(&number) });
            let mut record: BaseRecord<'_, str, [u8]> = BaseRecord::to(topic)
                .partition((n % PARTITIONS as u64) as i32)
                .timestamp(1_000 + n as i64)
                .headers(headers);
            record.key = (n % 5 != 0).then_some(&key[..]);
            record.payload = payload.as_deref();
            // Its queue fills while the broker is away.
            while let Err((e, back)) = producer.send(record) {
                assert_eq!(e.rdkafka_error_code(), Some(RDKafkaErrorCode::QueueFull), "{e}");
                producer.poll(Duration::from_millis(20));
                record = back;
            }
            n += 1;
        }
        producer.poll(Duration::from_millis(5));
    }
    producer.flush(SOON).unwrap();
    n
}

/// How long one answer of the broker is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lets the feeder end however the test does: a scope waits for its threads.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Waits until more is in the topic than there is now.
fn until_more(topic: &str, child: &mut Child) {
    let consumer: BaseConsumer = broker().client().create().unwrap();
    // A broker that is just back does not answer everything yet.
    let all = || -> Option<i64> {
        (0..PARTITIONS).map(|p| Some(consumer.fetch_watermarks(topic, p, PATIENCE).ok()?.1)).sum()
    };
    let (began, mut before, deadline) = (Instant::now(), None, Instant::now() + SOON);
    while before.is_none_or(|before| all().is_none_or(|now| now <= before)) {
        before = before.or_else(all);
        assert!(Instant::now() < deadline, "no life writes");
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    println!("written after {:.1} s", began.elapsed().as_secs_f64());
}

#[test]
fn killed_at_random_moments_the_copy_is_the_original() {
    let kills = if soak() { 50 } else { 10 };
    let rig = Rig::new("mirror", PARTITIONS);
    assert!(rig.kafka.create_topic(&format!("{}-copy", rig.topic), PARTITIONS).unwrap());
    let seed = std::env::var("WEIR_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64));
    println!("WEIR_SEED={seed}");
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::of(seed, 0);
    let (topic, stop) = (&rig.topic[..], AtomicBool::new(false));
    let n = std::thread::scope(|scope| {
        let feeder = scope.spawn(|| feed(topic, 0, 2_000, &stop));
        let stops = Stops(&stop);
        for kill in 0..kills {
            let mut child = begin(topic, folder.path(), 1 + random.below(3));
            if kill % 2 == 0 {
                // Whatever the machine is busy with, some lives get as far as to write.
                until_more(&format!("{topic}-copy"), &mut child);
            }
            std::thread::park_timeout(Duration::from_millis(random.below(4_000)));
            if kill % 4 == 3 {
                broker().kill().unwrap();
                std::thread::park_timeout(Duration::from_millis(random.below(1_500)));
                broker().restart().unwrap();
            }
            assert!(child.try_wait().unwrap().is_none(), "kill {kill} of seed {seed}: it ended by itself");
            child.kill().unwrap();
            child.wait().unwrap();
        }
        drop(stops);
        feeder.join().unwrap()
    });
    // What the feeder's client gave up while a broker was away is not in the original: that is what counts, not `n`.
    let original = read_committed(topic, PARTITIONS);
    assert!(original.len() as u64 > n * 99 / 100, "{} records of {n} were fed", original.len());
    let mut child = begin(topic, folder.path(), 2);
    let copy = format!("{topic}-copy");
    let deadline = Instant::now() + 5 * SOON;
    let mut seen = read_committed(&copy, PARTITIONS);
    let before = seen.len();
    while seen.len() < original.len() && Instant::now() < deadline {
        std::thread::park_timeout(Duration::from_millis(300));
        seen = read_committed(&copy, PARTITIONS);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    println!("{n} records, {before} of them before the last life");
    assert!(before > 0, "no life got as far as to write");
    for partition in 0..PARTITIONS {
        let of = |all: &[(i32, super::rig::Seen)]| {
            let of = all.iter().filter(|(p, _)| *p == partition);
            // Offsets are the copy's own.
            of.map(|(_, seen)| super::rig::Seen { offset: 0, ..seen.clone() }).collect::<Vec<_>>()
        };
        let (original, copy) = (of(&original), of(&seen));
        let odd = original.iter().zip(&copy).position(|(one, other)| one != other);
        assert!(
            original == copy,
            "seed {seed}, partition {partition}: {} records, {} in the copy, the first that differs is {odd:?}: {:?} and {:?}",
            original.len(),
            copy.len(),
            odd.map(|i| &original[i]),
            odd.map(|i| &copy[i])
        );
    }
}
