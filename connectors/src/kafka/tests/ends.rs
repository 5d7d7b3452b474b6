//! Where a source ends when it is told to, what it selects, and where a life begins after one that came to nothing.

use weir_engine::{Barrier, CheckpointId, Notice};

use super::*;

type Numbers = Reading<u64, Json>;

fn to(kafka: &KafkaConfig, topic: &str, n: std::ops::Range<u64>) {
    write(&KafkaSink::json(kafka, topic), n.map(|n| (n, 1))).unwrap();
}

/// Reads until the source says that it ends; what it gave, in the order of the numbers.
fn to_the_end(source: &KafkaSource<u64, Json>, restored: &[RestoredItem]) -> (Vec<u64>, Numbers) {
    let mut reading = Numbers::begin(source, &context("in", 0, 1), restored).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        assert!(Instant::now() < deadline, "it does not end: {} records", reading.records.len());
        let mut out = SourceBatch::new(100);
        let status = reading.source.poll(&mut out, Duration::from_millis(5)).unwrap();
        reading.records.extend(out.records().iter().cloned());
        match status {
            SourceStatus::End => break,
            SourceStatus::Idle(wait) => context("in", 0, 1).wait(wait).unwrap(),
            SourceStatus::More => {}
        }
    }
    let mut all: Vec<u64> = reading.records.iter().map(|r| r.value).collect();
    all.sort_unstable();
    (all, reading)
}

fn positions(reading: &mut Numbers) -> Vec<RestoredItem> {
    let positions = reading.source.positions(Barrier { checkpoint: CheckpointId(1) }).unwrap();
    positions.into_iter().map(|(key, value)| RestoredItem { subtask: 0, key, value }).collect()
}

#[test]
fn a_source_ends_where_the_partitions_ended_at_its_start() {
    let kafka = with_topic("a", 3);
    kafka.embedded_broker().unwrap().create_topic("b", 2).unwrap();
    kafka.embedded_broker().unwrap().create_topic("empty", 2).unwrap();
    to(&kafka, "a", 0..300);
    to(&kafka, "b", 300..500);
    let source = KafkaSource::json::<u64>(&kafka).topics(["a", "empty", "b"]).until(Stop::Latest);
    let mut early = Numbers::open(&source, 0, 1).unwrap();
    to(&kafka, "b", 500..600);
    let (all, mut reading) = to_the_end(&source, &[]);
    assert_eq!(all, (0..600).collect::<Vec<_>>());
    assert_eq!(source.progress().snapshot().iter().map(|(_, _, next)| next).sum::<i64>(), 600);
    // The first one knows where it ended when it opened.
    let held = positions(&mut early);
    assert_eq!(held.len(), 7);
    assert_eq!(to_the_end(&source, &held).0, (0..500).collect::<Vec<_>>(), "and so does a life after it");
    let done = positions(&mut reading);
    assert_eq!(to_the_end(&source, &done).0, [] as [u64; 0], "all was read");
    early.source.close(Closing::Stopped);
    reading.source.close(Closing::Ended);
}

#[test]
fn empty_partitions_and_subtasks_without_one_end_at_once() {
    let kafka = with_topic("t", 2);
    let source = KafkaSource::json::<u64>(&kafka).topic("t").until(Stop::Latest);
    for (subtask, parallelism) in [(0, 1), (2, 3)] {
        let mut reading = Numbers::open(&source, subtask, parallelism).unwrap();
        let status = reading.source.poll(&mut SourceBatch::new(10), Duration::from_millis(5)).unwrap();
        assert_eq!(status, SourceStatus::End);
        reading.source.close(Closing::Ended);
    }
}

#[test]
fn an_end_that_is_still_to_be_written_is_waited_for() {
    let kafka = with_topic("t", 2);
    to(&kafka, "t", 0..10);
    let until = |offset| Stop::Offsets([(("t".to_owned(), 0), offset)].into());
    let source = KafkaSource::json::<u64>(&kafka).partitions("t", [0]);
    let (all, reading) = to_the_end(&source.clone().until(until(3)), &[]);
    assert_eq!(all.len(), 3);
    drop(reading);
    let mut reading = Numbers::open(&source.clone().until(until(20)), 0, 1).unwrap();
    assert!(reading.until(5).is_ok() && reading.is_quiet());
    to(&kafka, "t", 10..100);
    reading.until(20).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut out = SourceBatch::new(100);
    while reading.source.poll(&mut out, Duration::from_millis(5)).unwrap() != SourceStatus::End {
        assert!(Instant::now() < deadline, "it does not end");
    }
    assert!(out.is_empty(), "records behind the end");
    reading.source.close(Closing::Ended);
    let e =
        Numbers::open(&source.until(Stop::Offsets([(("t".to_owned(), 1), 1)].into())), 0, 1).err().unwrap();
    assert!(
        e.to_string().starts_with("Stop::Offsets names partition 1 of topic t, of which 1 are read"),
        "{e}"
    );
}

#[test]
fn partitions_that_are_named_are_read_and_no_others() {
    let kafka = with_topic("t", 5);
    to(&kafka, "t", 0..500);
    let source = KafkaSource::json::<u64>(&kafka).partitions("t", [4, 1]);
    let (all, mut reading) = to_the_end(&source.clone().until(Stop::Latest), &[]);
    assert_eq!(all.len(), 200);
    let names: Vec<_> = positions(&mut reading).into_iter().map(|item| item.key).collect();
    assert_eq!(names, ["t/1", "t/4"]);
    let e = Numbers::open(&source.partitions("t", [5]), 0, 1).err().unwrap().to_string();
    assert_eq!(e, "KafkaSource::partitions names partition 5 of topic t, which has 5");
}

#[test]
fn a_pattern_finds_topics_by_their_whole_names() {
    let kafka = with_topic("orders-eu", 2);
    for topic in ["orders-us", "old-orders-us", "orders-"] {
        kafka.embedded_broker().unwrap().create_topic(topic, 1).unwrap();
    }
    to(&kafka, "orders-eu", 0..10);
    to(&kafka, "orders-us", 10..20);
    to(&kafka, "old-orders-us", 20..30);
    to(&kafka, "orders-", 30..40);
    let source =
        KafkaSource::json::<u64>(&kafka).pattern("orders-[a-z]+").topic("orders-").until(Stop::Latest);
    assert_eq!(to_the_end(&source, &[]).0, (0..20).chain(30..40).collect::<Vec<_>>());
    let none = KafkaSource::json::<u64>(&kafka.patience(Duration::from_millis(300))).pattern("nothing");
    let e = Numbers::open(&none, 0, 1).err().unwrap().to_string();
    assert!(e.contains("has no topic that matches ^(?:nothing)$ after 300ms"), "{e}");
}

/// The first life begins at the end, reads and fails before a checkpoint is complete: nothing is skipped.
#[test]
fn latest_is_the_end_at_the_first_start_and_not_at_each_restart() {
    let kafka = with_topic("t", 2);
    to(&kafka, "t", 0..100);
    let source = KafkaSource::json::<u64>(&kafka).topic("t").from(Start::Latest);
    let mut first = Numbers::open(&source, 0, 1).unwrap();
    to(&kafka, "t", 100..110);
    first.until(10).unwrap();
    first.source.close(Closing::Stopped);
    to(&kafka, "t", 110..120);
    let mut second = Numbers::open(&source, 0, 1).unwrap();
    second.until(20).unwrap();
    let mut seen: Vec<u64> = second.records.iter().map(|r| r.value).collect();
    seen.sort_unstable();
    assert_eq!(seen, (100..120).collect::<Vec<_>>());
    // From a complete checkpoint on it is the checkpoint that knows.
    positions(&mut second);
    second.source.on_notice(Notice::Completed(CheckpointId(1))).unwrap();
    second.source.close(Closing::Stopped);
    let mut anew = Numbers::open(&source, 0, 1).unwrap();
    assert!(anew.is_quiet(), "without it the job begins anew");
    anew.source.close(Closing::Stopped);
}

#[test]
fn a_source_that_ends_discovers_nothing() {
    let kafka = with_topic("t", 1);
    let source = KafkaSource::json::<u64>(&kafka).topic("t").until(Stop::Latest);
    let e = Numbers::open(&source.discover_every(Duration::from_secs(1)), 0, 1).err().unwrap();
    assert!(e.to_string().contains("leave discover_every out"), "{e}");
}
