//! What a source reads of a real broker, and what it tells the group.

use std::time::Instant;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use weir_connectors::kafka::{KafkaRecord, KafkaSink, KafkaSource};
use weir_connectors::memory::{MemorySink, MemorySource};
use weir_engine::prelude::*;
use weir_engine::testkit::{run_within, until};
use weir_operators::prelude::*;

use super::rig::{Rig, SOON, broker};

/// What the group of the source `in` has committed of partition 0, and the end of that.
fn committed(topic: &str) -> (Option<i64>, i64) {
    let consumer: BaseConsumer = broker().client().set("group.id", "weir-in").create().unwrap();
    let mut asked = TopicPartitionList::new();
    asked.add_partition(topic, 0);
    let answer = consumer.committed_offsets(asked, SOON).unwrap();
    let committed = match answer.elements()[0].offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    };
    (committed, consumer.fetch_watermarks(topic, 0, SOON).unwrap().1)
}

#[test]
fn e44_the_group_is_told_the_next_offset_so_that_nothing_lags() {
    let rig = Rig::new("e44", 1);
    let writer = Job::named("e44-writer").parallelism(1);
    let ten = MemorySource::new(0..10u64);
    writer.source("ten", ten).without_event_time().sink("out", KafkaSink::json(&rig.kafka, &rig.topic));
    run_within(writer, SOON).unwrap();

    let (job, sink) = (Job::named("e44").parallelism(2).checkpoints(rig.checkpoints(50)), MemorySink::new());
    let source = KafkaSource::json::<u64>(&rig.kafka).topic(&rig.topic);
    job.source("in", source).without_event_time().sink("out", sink.clone());
    let handle = job.start().unwrap();
    until(&handle, SOON, "all records", || handle.is_over() || sink.handle().len() == 10);
    let deadline = Instant::now() + SOON;
    while committed(&rig.topic) != (Some(10), 10) {
        assert!(Instant::now() < deadline && !handle.is_over(), "{:?}", committed(&rig.topic));
    }
    handle.drain(EndKind::Keep);
    handle.wait_for(SOON).expect("it drains").unwrap();
    assert_eq!(committed(&rig.topic), (Some(10), 10), "a clean stop");
}

/// Committed, aborted, committed, and one that is still open behind them.
#[test]
fn e47_markers_and_aborted_records_are_passed_over_and_open_ones_waited_for() {
    let rig = Rig::new("e47", 1);
    let producer: BaseProducer = broker().client().set("transactional.id", &rig.name).create().unwrap();
    producer.init_transactions(SOON).unwrap();
    let send = |range: std::ops::Range<u64>| {
        for n in range {
            let (key, payload) = (n.to_string(), n.to_string());
            assert!(
                producer.send(BaseRecord::to(&rig.topic).partition(0).key(&key).payload(&payload)).is_ok()
            );
        }
        producer.flush(SOON).unwrap();
    };
    for (range, commit) in [(0..100, true), (1_000..1_100, false), (100..200, true), (2_000..2_100, false)] {
        producer.begin_transaction().unwrap();
        send(range);
        let ended = if commit { producer.commit_transaction(SOON) } else { producer.abort_transaction(SOON) };
        ended.unwrap();
    }
    let (job, sink) = (Job::named("e47").parallelism(1).checkpoints(rig.checkpoints(50)), MemorySink::new());
    let source = KafkaSource::records(&rig.kafka).topic(&rig.topic);
    job.source("in", source).without_event_time().map(number).sink("out", sink.clone());
    let handle = job.start().unwrap();
    until(&handle, SOON, "what is committed", || handle.is_over() || sink.handle().len() >= 200);
    // An open transaction holds back what is committed behind it until it ends.
    producer.begin_transaction().unwrap();
    send(200..300);
    let before = handle.checkpoints().len();
    until(&handle, SOON, "more checkpoints", || handle.is_over() || handle.checkpoints().len() > before + 4);
    assert_eq!(sink.handle().len(), 200, "what is not committed is not read");
    producer.commit_transaction(SOON).unwrap();
    until(&handle, SOON, "the rest", || handle.is_over() || sink.handle().len() >= 300);
    handle.drain(EndKind::Keep);
    handle.wait_for(SOON).expect("it drains").unwrap();
    assert_eq!(sink.handle().take_values(), (0..300).collect::<Vec<u64>>());
}

fn number(record: KafkaRecord) -> u64 {
    assert_eq!(record.key, record.payload);
    std::str::from_utf8(&record.payload.unwrap()).unwrap().parse().unwrap()
}
