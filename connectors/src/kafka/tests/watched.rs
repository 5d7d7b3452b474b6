//! What a source finds while it runs, and partitions that stop.

use rdkafka::TopicPartitionList;
use rdkafka::consumer::Consumer;
use weir_engine::{Barrier, CheckpointId};

use super::*;

type Numbers = Reading<u64, Json>;

fn to(kafka: &KafkaConfig, topic: &str, n: std::ops::Range<u64>) {
    write(&KafkaSink::json(kafka, topic), n.map(|n| (n, 1))).unwrap();
}

fn sorted(reading: &Numbers) -> Vec<u64> {
    let mut all: Vec<u64> = reading.records.iter().map(|r| r.value).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_topic_that_comes_later_is_read_from_its_beginning() {
    let kafka = kafka();
    let source = (KafkaSource::json::<u64>(&kafka).pattern("new-.*").from(Start::Latest))
        .discover_every(Duration::from_millis(100));
    let mut readings: Vec<Numbers> = (0..2).map(|s| Numbers::open(&source, s, 2).unwrap()).collect();
    let deadline = Instant::now() + Duration::from_secs(30);
    for (topic, first) in [("new-a", 0), ("new-b", 100)] {
        kafka.embedded_broker().unwrap().create_topic(topic, 2).unwrap();
        to(&kafka, topic, first..first + 100);
        while readings.iter().map(|r| r.records.len() as u64).sum::<u64>() < first + 100 {
            assert!(Instant::now() < deadline, "{topic} is not found");
            for reading in &mut readings {
                let mut out = SourceBatch::new(1024);
                reading.source.poll(&mut out, Duration::from_millis(5)).unwrap();
                reading.records.extend(out.records().iter().cloned());
            }
        }
    }
    assert!(readings.iter().all(|r| r.records.len() == 100), "each reads its share");
    // A life that goes on from here knows that it has seen them, and that what it has not seen is new.
    let mut items = Vec::new();
    for (subtask, reading) in readings.iter_mut().enumerate() {
        let positions = reading.source.positions(Barrier { checkpoint: CheckpointId(1) }).unwrap();
        items.extend(positions.into_iter().map(|(key, value)| RestoredItem { subtask, key, value }));
    }
    let keys: Vec<_> = items.iter().map(|item| &item.key[..]).collect();
    assert_eq!(keys, ["new-a/0", "new-b/0", "*", "new-a/1", "new-b/1"]);
    readings.into_iter().for_each(|mut r| r.source.close(Closing::Stopped));
    kafka.embedded_broker().unwrap().create_topic("new-c", 1).unwrap();
    to(&kafka, "new-c", 200..300);
    let mut again = Numbers::begin(&source, &context("in", 0, 1), &items).unwrap();
    again.until(100).unwrap();
    assert!(again.is_quiet());
    assert_eq!(sorted(&again), (200..300).collect::<Vec<_>>());
    again.source.close(Closing::Stopped);
}

/// What the client library is known to do at times: it fetches a partition no more, and says nothing.
#[test]
fn a_partition_that_stops_is_told_of_and_the_others_are_not() {
    let kafka = with_topic("t", 2);
    to(&kafka, "t", 0..100);
    let source = KafkaSource::json::<u64>(&kafka).topic("t").stall_after(Duration::from_millis(300));
    let cx = context("in", 0, 1);
    let mut reading = Numbers::begin(&source, &cx, &[]).unwrap();
    reading.until(100).unwrap();
    assert!(reading.is_quiet() && reading.is_quiet() && reading.is_quiet());
    let stalls = cx.counter("kafka_stalls");
    assert_eq!(stalls.get(), 0, "nothing to read is no stall");
    let mut stopped = TopicPartitionList::new();
    stopped.add_partition("t", 1);
    reading.source.client().pause(&stopped).unwrap();
    to(&kafka, "t", 100..200);
    reading.until(150).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while stalls.get() == 0 {
        assert!(Instant::now() < deadline, "nobody says that it has stopped");
        assert!(reading.is_quiet(), "the other one was read");
    }
    reading.source.client().resume(&stopped).unwrap();
    reading.until(200).unwrap();
    assert_eq!(sorted(&reading), (0..200).collect::<Vec<_>>(), "once each");
    reading.source.close(Closing::Ended);
}
