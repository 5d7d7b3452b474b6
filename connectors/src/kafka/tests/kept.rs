//! What a checkpoint or an earlier life knows is neither lost nor passed over, whatever the brokers show at a start.

use super::*;

type Numbers = Reading<u64, Json>;

fn to(kafka: &KafkaConfig, topic: &str, n: std::ops::Range<u64>) {
    write(&KafkaSink::json(kafka, topic), n.map(|n| (n, 1))).unwrap();
}

fn items(of: &[(&str, serde_json::Value)]) -> Vec<RestoredItem> {
    let item = |(key, value): &(&str, serde_json::Value)| RestoredItem {
        subtask: 0,
        key: (*key).to_owned(),
        value: value.clone(),
    };
    of.iter().map(item).collect()
}

fn sorted(reading: &Numbers) -> Vec<u64> {
    let mut all: Vec<u64> = reading.records.iter().map(|r| r.value).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_partition_of_the_checkpoint_that_is_not_shown_stops_the_start() {
    let kafka = with_topic("t", 2).patience(Duration::from_millis(300));
    let held = items(&[("t/0", 0.into()), ("t/1", 0.into()), ("t/2", 5.into())]);
    let begin = |source: KafkaSource<u64, Json>| Numbers::begin(&source, &context("in", 0, 1), &held);
    for source in
        [KafkaSource::json::<u64>(&kafka).topic("t"), KafkaSource::json::<u64>(&kafka).pattern("t+")]
    {
        let e = begin(source).err().unwrap().to_string();
        let said = "topic t, partition 2: the checkpoint stands at offset 5, and Kafka at ";
        assert!(e.starts_with(said) && e.contains("does not show that partition after 300ms"), "{e}");
    }
    // Who reads it no more does not miss it.
    let mut reading = begin(KafkaSource::json::<u64>(&kafka).partitions("t", [0, 1])).unwrap();
    reading.source.close(Closing::Stopped);
}

#[test]
fn a_topic_of_the_checkpoint_that_shows_late_is_gone_on_with() {
    let kafka = with_topic("p-a", 1);
    let broker = kafka.embedded_broker().unwrap();
    broker.create_topic("p-b", 1).unwrap();
    to(&kafka, "p-b", 0..10);
    // It does not say what is in it.
    broker.remove_topic("p-b").unwrap();
    let source = KafkaSource::json::<u64>(&kafka).pattern("p-.*");
    let held = items(&[("p-a/0", 0.into()), ("p-b/0", 4.into()), ("*", "p-.*".into())]);
    std::thread::scope(|scope| {
        let begun = scope.spawn(|| Numbers::begin(&source, &context("in", 0, 1), &held).unwrap());
        context("out", 0, 1).wait(Duration::from_millis(300)).unwrap();
        broker.create_topic("p-b", 1).unwrap();
        let mut reading = begun.join().unwrap();
        reading.until(6).unwrap();
        assert_eq!(sorted(&reading), (4..10).collect::<Vec<_>>());
        reading.source.close(Closing::Stopped);
    });
    // One that is gone as a whole was deleted: a pattern goes on without it.
    let held = items(&[("p-a/0", 0.into()), ("p-b/0", 10.into()), ("p-c/0", 4.into()), ("*", "p-.*".into())]);
    let impatient = KafkaSource::json::<u64>(&kafka.clone().patience(Duration::from_secs(2))).pattern("p-.*");
    let mut reading = Numbers::begin(&impatient, &context("in", 0, 1), &held).unwrap();
    to(&kafka, "p-a", 20..30);
    reading.until(10).unwrap();
    assert_eq!(sorted(&reading), (20..30).collect::<Vec<_>>());
    reading.source.close(Closing::Stopped);
}

/// A topic that was deleted and made anew is longer by now than it was.
#[test]
fn another_log_of_the_same_name_is_not_gone_on_with() {
    let kafka = with_topic("t", 1);
    to(&kafka, "t", 0..20);
    let begin = |last: [i64; 2]| {
        let held = items(&[("t/0", serde_json::json!({"next": 10, "last": last}))]);
        let source = KafkaSource::json::<u64>(&kafka).topic("t");
        Numbers::begin(&source, &context("in", 0, 1), &held).unwrap()
    };
    let mut other = begin([9, 999]);
    let e = other.until(10).unwrap_err().to_string();
    assert!(
        e.starts_with("topic t, partition 0: the record at offset 9 has the time 1 and not 999, "),
        "{e}"
    );
    assert!(e.contains("the topic was deleted and made anew") && other.records.is_empty(), "{e}");
    other.source.close(Closing::Stopped);
    // The same, with a marker behind it, say.
    for last in [[9, 1], [7, 1]] {
        let mut same = begin(last);
        same.until(10).unwrap();
        assert!(same.is_quiet());
        assert_eq!(sorted(&same), (10..20).collect::<Vec<_>>(), "and nothing twice");
        same.source.close(Closing::Stopped);
    }
}

/// The first life begins at the end of nothing, finds a topic and fails before a checkpoint is complete.
#[test]
fn what_a_life_found_that_came_to_nothing_is_read_whole_by_the_next() {
    let kafka = with_topic("old", 1);
    to(&kafka, "old", 0..10);
    let source = (KafkaSource::json::<u64>(&kafka).pattern("old|new-.*").from(Start::Latest))
        .discover_every(Duration::from_millis(100));
    let mut first = Numbers::open(&source, 0, 1).unwrap();
    kafka.embedded_broker().unwrap().create_topic("new-a", 1).unwrap();
    to(&kafka, "new-a", 100..150);
    first.until(50).unwrap();
    first.source.close(Closing::Stopped);
    // And this one nobody has found so far.
    kafka.embedded_broker().unwrap().create_topic("new-b", 1).unwrap();
    to(&kafka, "new-b", 150..200);
    to(&kafka, "old", 10..20);
    let mut second = Numbers::open(&source, 0, 1).unwrap();
    second.until(110).unwrap();
    assert_eq!(sorted(&second), (10..20).chain(100..200).collect::<Vec<_>>());
    second.source.close(Closing::Stopped);
}
