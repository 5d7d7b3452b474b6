//! What a source tells checkpoints, where it begins from one, and what it tells the group, and when.

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};
use weir_engine::{Barrier, CheckpointId, Notice};

use super::*;

type Numbers = Reading<u64, Json>;

fn barrier(id: u64) -> Barrier {
    Barrier { checkpoint: CheckpointId(id) }
}

fn completed(id: u64) -> Notice {
    Notice::Completed(CheckpointId(id))
}

fn numbers(kafka: &KafkaConfig, n: std::ops::Range<u64>) {
    write(&KafkaSink::json(kafka, "t"), n.map(|n| (n, 1))).unwrap();
}

fn source(kafka: &KafkaConfig) -> KafkaSource<u64, Json> {
    KafkaSource::json::<u64>(kafka).topic("t")
}

/// What the group of the source `in` has committed of partition 0 of `t`.
fn committed(kafka: &KafkaConfig) -> Option<i64> {
    let consumer: BaseConsumer = rdkafka::ClientConfig::new()
        .set("bootstrap.servers", kafka.broker_list())
        .set("group.id", "weir-in")
        .create()
        .unwrap();
    let mut asked = TopicPartitionList::new();
    asked.add_partition("t", 0);
    let answer = consumer.committed_offsets(asked, Duration::from_secs(5)).unwrap();
    match answer.elements()[0].offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    }
}

/// Polls the source until its group has committed `offset`.
fn until_committed(reading: &mut Numbers, kafka: &KafkaConfig, offset: i64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while committed(kafka) != Some(offset) {
        assert!(Instant::now() < deadline, "{:?} is committed, not {offset}", committed(kafka));
        reading.source.poll(&mut SourceBatch::new(1024), Duration::from_millis(5)).unwrap();
    }
}

fn restored(of: &mut [Numbers]) -> Vec<RestoredItem> {
    let items = of.iter_mut().enumerate().map(|(subtask, r)| {
        let positions = r.source.positions(barrier(1)).unwrap();
        positions.into_iter().map(move |(key, value)| RestoredItem { subtask, key, value })
    });
    items.flatten().collect()
}

#[test]
fn where_a_source_begins() {
    let kafka = with_topic("t", 1);
    let sink = KafkaSink::json(&kafka, "t");
    write(&sink, (0..100).map(|n| (n, 1))).unwrap();
    let source = |start| KafkaSource::json::<u64>(&kafka).topic("t").from(start);
    let at = |offset| Start::Offsets([(("t".to_owned(), 0), offset)].into());

    let mut latest = Reading::open(&source(Start::Latest), 0, 1).unwrap();
    let mut from_40 = Reading::open(&source(at(40)), 0, 1).unwrap();
    from_40.until(60).unwrap();
    assert_eq!(from_40.records[0].value, 40);
    assert!(latest.is_quiet());
    write(&sink, [(100, 1)]).unwrap();
    latest.until(1).unwrap();
    assert_eq!(latest.records[0].value, 100);

    let e = Reading::open(&source(at(500)), 0, 1).err().unwrap().to_string();
    assert!(
        e.starts_with("topic t, partition 0: offset 500 (named by Start::Offsets) is gone, the broker has 0 up to 101 (which"),
        "{e}"
    );
}

#[test]
fn e44_what_is_committed_is_the_next_offset() {
    let kafka = with_topic("t", 1);
    numbers(&kafka, 0..10);
    let mut reading = Numbers::open(&source(&kafka), 0, 1).unwrap();
    reading.until(10).unwrap();
    let at_ten = serde_json::json!({"next": 10, "last": [9, 1]});
    assert_eq!(reading.source.positions(barrier(1)).unwrap(), [("t/0".to_owned(), at_ten)]);
    assert_eq!(reading.source.split_name(weir_engine::SplitId(0)), Some("t/0".to_owned()));
    assert_eq!(reading.source.split_name(weir_engine::SplitId(1)), None);
    assert!(reading.is_quiet());
    assert_eq!(committed(&kafka), None, "not before the checkpoint is complete");
    reading.source.on_notice(completed(1)).unwrap();
    until_committed(&mut reading, &kafka, 10);
    let client: BaseConsumer =
        rdkafka::ClientConfig::new().set("bootstrap.servers", kafka.broker_list()).create().unwrap();
    let (_, high) = client.fetch_watermarks("t", 0, Duration::from_secs(5)).unwrap();
    assert_eq!(high - committed(&kafka).unwrap(), 0, "no lag");
    reading.source.close(Closing::Ended);
}

#[test]
fn e42_only_what_a_complete_checkpoint_holds_is_committed() {
    let kafka = with_topic("t", 1);
    numbers(&kafka, 0..10);
    let mut reading = Numbers::open(&source(&kafka), 0, 1).unwrap();
    reading.until(10).unwrap();
    reading.source.positions(barrier(1)).unwrap();
    numbers(&kafka, 10..25);
    reading.until(25).unwrap();
    // The source ends while checkpoint 1 is in flight: what is complete then is that one.
    reading.source.positions(barrier(2)).unwrap();
    reading.source.positions(Barrier::LAST).unwrap();
    reading.source.on_notice(Notice::Aborted(CheckpointId(2))).unwrap();
    reading.source.on_notice(completed(2)).unwrap();
    assert!(reading.is_quiet());
    assert_eq!(committed(&kafka), None, "given up, and never heard of");
    reading.source.on_notice(completed(Barrier::LAST.checkpoint.0)).unwrap();
    reading.source.close(Closing::Ended);
    assert_eq!(committed(&kafka), Some(25), "closing waits for the last commit");
}

/// A process that stood still while another took its place hears of its last checkpoint too late.
#[test]
fn e41_an_older_life_that_is_late_takes_nothing_back() {
    let kafka = with_topic("t", 1);
    numbers(&kafka, 0..10);
    let cx = context("in", 0, 1);
    let mut older = Numbers::begin(&source(&kafka), &cx, &[]).unwrap();
    older.until(10).unwrap();
    older.source.positions(barrier(1)).unwrap();
    numbers(&kafka, 10..25);
    // Lives are told apart by the millisecond in which they began.
    cx.wait(Duration::from_millis(5)).unwrap();
    let mut newer = Numbers::open(&source(&kafka), 0, 1).unwrap();
    newer.until(25).unwrap();
    newer.source.positions(barrier(2)).unwrap();
    newer.source.on_notice(completed(2)).unwrap();
    until_committed(&mut newer, &kafka, 25);
    older.source.on_notice(completed(1)).unwrap();
    older.until(25).unwrap();
    assert!(older.is_quiet());
    assert_eq!(committed(&kafka), Some(25));
    assert_eq!(cx.counter("offset_commit_failures").get(), 1);
    older.source.close(Closing::Stopped);
    // A later life may begin anew, and says so.
    cx.wait(Duration::from_millis(5)).unwrap();
    let mut anew = Numbers::open(&source(&kafka), 0, 1).unwrap();
    let mut out = SourceBatch::new(7);
    while out.records().is_empty() {
        anew.source.poll(&mut out, Duration::from_millis(5)).unwrap();
    }
    let read = out.records().len() as i64;
    anew.source.positions(barrier(1)).unwrap();
    anew.source.on_notice(completed(1)).unwrap();
    until_committed(&mut anew, &kafka, read);
    [newer, anew].into_iter().for_each(|mut r| r.source.close(Closing::Stopped));
}

/// A commit that was asked for without knowing may come after those of a later life.
#[test]
fn e41_a_group_that_does_not_say_what_it_has_is_told_nothing_until_it_does() {
    let kafka = with_topic("t", 1);
    numbers(&kafka, 0..10);
    let cx = context("in", 0, 1);
    let mut reading = Numbers::begin(&source(&kafka), &cx, &[]).unwrap();
    reading.until(10).unwrap();
    kafka.embedded_broker().unwrap().refuse_committed(1);
    reading.source.positions(barrier(1)).unwrap();
    reading.source.on_notice(completed(1)).unwrap();
    assert_eq!(cx.counter("offset_commit_failures").get(), 1);
    assert!(reading.is_quiet());
    assert_eq!(committed(&kafka), None);
    reading.source.positions(barrier(2)).unwrap();
    reading.source.on_notice(completed(2)).unwrap();
    until_committed(&mut reading, &kafka, 10);
    reading.source.close(Closing::Stopped);

    // The last one is made up for at the end.
    numbers(&kafka, 10..15);
    let mut reading = Numbers::open(&source(&kafka), 0, 1).unwrap();
    reading.until(15).unwrap();
    kafka.embedded_broker().unwrap().refuse_committed(1);
    reading.source.positions(Barrier::LAST).unwrap();
    reading.source.on_notice(completed(Barrier::LAST.checkpoint.0)).unwrap();
    reading.source.close(Closing::Ended);
    assert_eq!(committed(&kafka), Some(15));
}

#[test]
fn e42_a_later_notice_does_not_commit_more_than_its_own() {
    let kafka = with_topic("t", 1);
    numbers(&kafka, 0..10);
    let mut reading = Numbers::open(&source(&kafka), 0, 1).unwrap();
    reading.until(10).unwrap();
    reading.source.positions(barrier(7)).unwrap();
    numbers(&kafka, 10..25);
    reading.until(25).unwrap();
    reading.source.positions(Barrier::LAST).unwrap();
    reading.source.on_notice(completed(7)).unwrap();
    until_committed(&mut reading, &kafka, 10);
    for _ in 0..2 {
        reading.source.on_notice(completed(Barrier::LAST.checkpoint.0)).unwrap();
        until_committed(&mut reading, &kafka, 25);
    }
    reading.source.close(Closing::Ended);
}

#[test]
fn e43_a_refused_commit_is_counted_and_fails_nothing() {
    let kafka = with_topic("t", 1);
    kafka.embedded_broker().unwrap().refuse_commits(2);
    numbers(&kafka, 0..10);
    let cx = context("in", 0, 1);
    let mut reading = Numbers::begin(&source(&kafka), &cx, &[]).unwrap();
    let failures = cx.counter("offset_commit_failures");
    for (id, failed) in [(1, 1), (2, 2), (3, 2)] {
        reading.until(reading.records.len() + 10).unwrap();
        reading.source.positions(barrier(id)).unwrap();
        reading.source.on_notice(completed(id)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while failures.get() < failed {
            assert!(Instant::now() < deadline, "{} failures", failures.get());
            reading.source.poll(&mut SourceBatch::new(1024), Duration::from_millis(5)).unwrap();
        }
        numbers(&kafka, 0..10);
    }
    until_committed(&mut reading, &kafka, 30);
    assert_eq!(failures.get(), 2);
    reading.source.close(Closing::Ended);
}

/// A group that somebody else is a member of takes no offsets from us. Reading goes on all the same.
#[test]
fn e43_a_group_with_members_refuses_and_reading_goes_on() {
    let kafka = with_topic("t", 1);
    numbers(&kafka, 0..10);
    let member: BaseConsumer = rdkafka::ClientConfig::new()
        .set("bootstrap.servers", kafka.broker_list())
        .set("group.id", "weir-in")
        .set("auto.offset.reset", "latest")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    member.subscribe(&["t"]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while member.assignment().unwrap().count() == 0 {
        assert!(Instant::now() < deadline, "it does not join");
        drop(member.poll(Duration::from_millis(20)));
    }
    let cx = context("in", 0, 1);
    let mut reading = Numbers::begin(&source(&kafka), &cx, &[]).unwrap();
    for id in 1..4u64 {
        reading.until(10 * id as usize).unwrap();
        reading.source.positions(barrier(id)).unwrap();
        reading.source.on_notice(completed(id)).unwrap();
        while cx.counter("offset_commit_failures").get() < id {
            assert!(Instant::now() < deadline, "{} failures", cx.counter("offset_commit_failures").get());
            drop(member.poll(Duration::ZERO));
            reading.source.poll(&mut SourceBatch::new(1024), Duration::from_millis(5)).unwrap();
        }
        numbers(&kafka, 10 * id..10 * id + 10);
    }
    reading.until(40).unwrap();
    assert!(reading.records.iter().map(|r| r.value).eq(0..40));
    reading.source.close(Closing::Ended);
}

#[test]
fn a_source_goes_on_where_the_group_stands() {
    let kafka = with_topic("t", 1);
    numbers(&kafka, 0..10);
    let from_group = source(&kafka).from(Start::Group);
    let mut reading = Numbers::open(&from_group, 0, 1).unwrap();
    reading.until(10).unwrap();
    reading.source.positions(Barrier::LAST).unwrap();
    reading.source.on_notice(completed(Barrier::LAST.checkpoint.0)).unwrap();
    reading.source.close(Closing::Ended);
    numbers(&kafka, 10..15);
    let mut reading = Numbers::open(&from_group, 0, 1).unwrap();
    reading.until(5).unwrap();
    assert!(reading.is_quiet());
    assert_eq!(reading.records.iter().map(|r| r.value).collect::<Vec<_>>(), [10, 11, 12, 13, 14]);
    reading.source.close(Closing::Ended);
}

#[test]
fn every_partition_goes_to_its_new_owner() {
    let kafka = with_topic("t", 5);
    numbers(&kafka, 0..500);
    let source = source(&kafka).from(Start::Latest);
    let earliest = source.clone().from(Start::Earliest);
    let (mut items, mut all) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + Duration::from_secs(30);
    for parallelism in [2, 3, 7, 1] {
        let mut readings: Vec<Numbers> = (0..parallelism)
            .map(|s| {
                let first = if items.is_empty() { &earliest } else { &source };
                Numbers::begin(first, &context("in", s, parallelism), &items).unwrap()
            })
            .collect();
        for (s, reading) in readings.iter_mut().enumerate() {
            let own = assign::assign(&[5], s, parallelism).len();
            // Not all that is there, but for the last time.
            let n = if parallelism == 1 { 500 - all.len() } else { own * 10 };
            while reading.records.len() < n {
                assert!(Instant::now() < deadline, "{} of {n}", reading.records.len());
                let mut out = SourceBatch::new(n - reading.records.len());
                reading.source.poll(&mut out, Duration::from_millis(5)).unwrap();
                reading.records.extend(out.records().iter().cloned());
            }
        }
        items = restored(&mut readings);
        assert_eq!(items.len(), 5);
        for mut reading in readings {
            all.extend(reading.records.iter().map(|r| r.value));
            reading.source.close(Closing::Stopped);
        }
    }
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..500), "{} records", all.len());
}

#[test]
fn an_offset_of_a_checkpoint_that_is_gone_is_an_error() {
    let kafka = with_topic("t", 1);
    numbers(&kafka, 0..10);
    let item = |offset: i64| [RestoredItem { subtask: 0, key: "t/0".into(), value: offset.into() }];
    let e = Numbers::begin(&source(&kafka), &context("in", 0, 1), &item(11)).err().unwrap().to_string();
    assert!(
        e.starts_with(
            "topic t, partition 0: offset 11 (of the checkpoint) is gone, the broker has 0 up to 10"
        ),
        "{e}"
    );
    assert!(e.contains("the log is shorter than that"), "{e}");
    let mut at_end = Numbers::begin(&source(&kafka), &context("in", 0, 1), &item(10)).unwrap();
    numbers(&kafka, 10..11);
    at_end.until(1).unwrap();
    assert_eq!(at_end.records[0].value, 10);
}
