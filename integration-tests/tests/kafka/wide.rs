//! Ten topics of 21 partitions each and ten sinks in one process: its threads and its memory are those of the printed plan.

use std::time::Duration;

use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use weir_connectors::kafka::{KafkaConfig, KafkaRecord, KafkaSink, KafkaSource};
use weir_engine::memory::MemoryConfig;
use weir_engine::metrics::process;
use weir_engine::prelude::*;
use weir_engine::testkit::until;
use weir_operators::prelude::*;

use super::children;
use super::rig::{Rig, SOON, broker, read_committed};

const TOPICS: usize = 10;
const PARTITIONS: i32 = 21;
/// Of each topic.
const RECORDS: usize = 2_100;
const THREADS: u64 = 64;
const MEMORY: u64 = 2 << 30;

fn names(name: &str) -> impl Iterator<Item = (String, String)> {
    (0..TOPICS).map(move |i| (format!("{name}-in-{i}"), format!("{name}-out-{i}")))
}

/// The process that is looked at.
pub(crate) fn child(told: &[&str]) {
    let &[brokers, name] = told else { panic!("{told:?}") };
    let kafka = KafkaConfig::brokers(brokers).patience(Duration::from_secs(60));
    let source = KafkaSource::records(&kafka).topics(names(name).map(|(topic, _)| topic));
    let progress = source.progress();
    // Checkpoints would take a thread for each task more.
    let job =
        Job::named("wide").parallelism(1).memory(MemoryConfig::new().limit(MEMORY).max_threads(THREADS));
    let all = job.source("in", source).without_event_time().shared();
    for (i, (topic, out)) in names(name).enumerate() {
        let own = all.stream().filter(move |record: &KafkaRecord| *record.topic == *topic);
        own.sink(&format!("out-{i}"), KafkaSink::records(&kafka, out));
    }
    let handle = job.start().unwrap();
    let planned: u64 = handle.memory().plan().threads().iter().map(|group| group.threads).sum();
    let (mut threads, mut resident) = (0, 0);
    let mut look = || {
        let now = process::read().expect("the system tells about this process");
        threads = now.threads.max(threads);
        resident = now.resident_bytes.max(resident);
    };
    let wanted = (TOPICS * RECORDS) as i64;
    until(&handle, 2 * SOON, "all records", || {
        look();
        handle.is_over() || progress.snapshot().iter().map(|(_, _, next)| next).sum::<i64>() == wanted
    });
    handle.drain(EndKind::Keep);
    until(&handle, SOON, "its end", || {
        look();
        handle.is_over()
    });
    handle.wait().unwrap();
    assert!(threads <= planned && planned <= THREADS, "{threads} threads, {planned} planned");
    assert!(resident <= MEMORY, "{resident} bytes");
}

#[test]
fn ten_topics_of_21_partitions_and_ten_sinks_keep_to_the_plan() {
    let rig = Rig::new("wide", 1);
    let producer: BaseProducer = broker().client().create().unwrap();
    for (topic, out) in names(&rig.name) {
        for topic in [&topic, &out] {
            assert!(rig.kafka.create_topic(topic, PARTITIONS).unwrap());
        }
        for n in 0..RECORDS {
            let (key, payload) = (n.to_string(), format!("{topic} {n}"));
            let record =
                BaseRecord::to(&topic).partition((n as i32) % PARTITIONS).key(&key).payload(&payload);
            assert!(producer.send(record).is_ok(), "its queue takes all of them");
        }
        producer.flush(SOON).unwrap();
    }
    let mut child = children::begin("wide", &[broker().address(), &rig.name]);
    assert!(child.wait().unwrap().success(), "its output says why");
    for (topic, out) in names(&rig.name) {
        let mut seen: Vec<_> = read_committed(&out, PARTITIONS)
            .into_iter()
            .map(|(_, record)| String::from_utf8(record.payload.unwrap()).unwrap())
            .collect();
        seen.sort();
        let mut wanted: Vec<_> = (0..RECORDS).map(|n| format!("{topic} {n}")).collect();
        wanted.sort();
        assert!(seen == wanted, "{out}: {} records", seen.len());
    }
}
