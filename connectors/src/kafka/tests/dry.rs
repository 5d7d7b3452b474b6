//! A source says of each partition when it is read dry, is idle only when nothing is there, and keeps to a poll's time.

use super::*;

/// One poll: what it said, and whether it called each of these splits dry.
fn poll(
    reading: &mut Reading<u64, Json>,
    room: usize,
    budget: Duration,
    splits: &[u32],
) -> (SourceStatus, usize, Vec<u32>) {
    let mut out = SourceBatch::new(room);
    let status = reading.source.poll(&mut out, budget).unwrap();
    let said = format!("{out:?}");
    let dry = splits.iter().copied().filter(|s| said.contains(&format!("(SplitId({s}), Drained")));
    (status, out.records().len(), dry.collect())
}

/// Polls until there were `n` records and all of `splits` were called dry; says which were, and when (after how many).
fn until_dry(reading: &mut Reading<u64, Json>, n: usize, splits: &[u32]) -> Vec<(u32, usize)> {
    let (mut got, mut dry) = (0, Vec::new());
    let deadline = Instant::now() + Duration::from_secs(60);
    while got < n || splits.iter().any(|s| !dry.iter().any(|(of, _)| of == s)) {
        assert!(Instant::now() < deadline, "{got} records of {n}, dry: {dry:?}");
        let (status, records, of) = poll(reading, 16, Duration::from_millis(5), splits);
        got += records;
        dry.extend(of.into_iter().map(|split| (split, got)));
        assert!(
            records < 16 || status == SourceStatus::More,
            "a full batch is followed by another: {status:?}"
        );
        if let SourceStatus::Idle(wait) = status {
            context("in", 0, 1).wait(wait).unwrap();
        }
    }
    dry
}

/// Writes `n` to the partition that `of(n)` names.
fn write_to(kafka: &KafkaConfig, numbers: impl IntoIterator<Item = u64>, of: fn(u64) -> i32) {
    let sink = KafkaSink::json(kafka, "t").key(move |n: &u64| {
        let mut keys = (0..).map(|i: u32| i.to_string());
        keys.find(|key| partition_of(key.as_bytes(), 2) == of(*n)).unwrap()
    });
    write(&sink, numbers.into_iter().map(|n| (n, 1))).unwrap();
}

#[test]
fn a_partition_read_dry_is_told_beside_a_full_one() {
    let kafka = with_topic("t", 2).set("queued.min.messages", "100").set("queued.max.messages.kbytes", "16");
    write_to(&kafka, 0..3, |_| 0);
    write_to(&kafka, 0..60_000, |_| 1);
    let mut reading = Reading::open(&KafkaSource::json::<u64>(&kafka).topic("t"), 0, 1).unwrap();
    let dry = until_dry(&mut reading, 60_003, &[0, 1]);
    let first = dry.iter().find(|(split, _)| *split == 0).unwrap().1;
    assert!(first < 60_000, "it was dry all along, and told only at the end: {dry:?}");

    // It ends nothing: what comes later is read, and then it is dry again.
    write_to(&kafka, 0..5, |n| (n % 2) as i32);
    until_dry(&mut reading, 5, &[0, 1]);
    assert_eq!(poll(&mut reading, 16, Duration::from_millis(5), &[0, 1]).2, [] as [u32; 0], "told once");
    reading.source.close(Closing::Ended);
}

/// The client says "partition 0" and not of which topic; the watch sees where each of them ends.
#[test]
fn of_a_partition_number_of_several_topics_the_quiet_one_is_told_beside_the_busy_one() {
    const N: u64 = 100_000;
    let kafka = with_topic("a", 2);
    kafka.embedded_broker().unwrap().create_topic("b", 1).unwrap();
    let to = |topic, numbers: std::ops::Range<u64>| {
        let sink = KafkaSink::json(&kafka, topic).partition(|_: &u64| 0);
        write(&sink, numbers.map(|n| (n, 1))).unwrap();
    };
    to("b", 0..3);
    let source = KafkaSource::json::<u64>(&kafka).topics(["a", "b"]).stall_after(Duration::from_millis(150));
    let mut reading = Reading::open(&source, 0, 1).unwrap();
    let b0 = assign::PER_TOPIC;
    // So slow that the other one has more all the time.
    let (mut got, mut told) = (0, false);
    to("a", 0..N);
    while !told {
        let (_, records, dry) = poll(&mut reading, 16, Duration::from_millis(5), &[b0]);
        (got, told) = (got + records, dry.contains(&b0));
        assert!(got < N as usize, "it was dry all along, and told only at the end");
        context("in", 0, 1).wait(Duration::from_millis(5)).unwrap();
    }
    until_dry(&mut reading, N as usize + 3 - got, &[0, b0]);
    // What comes later is read, and told again once it is dry again.
    to("b", 3..5);
    until_dry(&mut reading, 2, &[0, b0]);
    reading.source.close(Closing::Ended);
}

/// It was alone with its number when it was read dry first.
#[test]
fn a_partition_whose_number_comes_to_be_shared_is_told_dry_again() {
    let kafka = with_topic("t-a", 1);
    let source = KafkaSource::json::<u64>(&kafka).pattern("t-.*").discover_every(Duration::from_millis(100));
    let mut reading = Reading::open(&source, 0, 1).unwrap();
    until_dry(&mut reading, 0, &[0]);
    kafka.embedded_broker().unwrap().create_topic("t-b", 1).unwrap();
    write(&KafkaSink::json(&kafka, "t-b"), [(1u64, 1)]).unwrap();
    reading.until(1).unwrap();
    write(&KafkaSink::json(&kafka, "t-a"), [(2u64, 1)]).unwrap();
    until_dry(&mut reading, 1, &[0, assign::PER_TOPIC]);
    reading.source.close(Closing::Ended);
}

#[test]
fn a_poll_of_nothing_but_tombstones_keeps_to_its_time() {
    const N: i64 = 5_000;
    let kafka = with_topic("t", 1);
    let producer: rdkafka::producer::BaseProducer =
        rdkafka::ClientConfig::new().set("bootstrap.servers", kafka.broker_list()).create().unwrap();
    for _ in 0..N {
        let tombstone = rdkafka::producer::BaseRecord::<str, [u8]>::to("t").key("k").partition(0);
        assert!(producer.send(tombstone).is_ok());
    }
    rdkafka::producer::Producer::flush(&producer, Duration::from_secs(5)).unwrap();

    let source = KafkaSource::json::<u64>(&kafka).topic("t").skip_tombstones();
    let mut reading = Reading::open(&source, 0, 1).unwrap();
    let read = || source.progress().next_offset("t", 0).unwrap();
    let (mut full, deadline) = (0, Instant::now() + Duration::from_secs(20));
    while read() < N {
        assert!(Instant::now() < deadline, "{} of {N}", read());
        let before = read();
        let (status, records, _) = poll(&mut reading, 16, Duration::ZERO, &[]);
        assert!(records == 0 && read() - before <= 256, "{before} to {}", read());
        full += i32::from(status == SourceStatus::More);
        if let SourceStatus::Idle(wait) = status {
            context("in", 0, 1).wait(wait).unwrap();
        }
    }
    assert!(full > 0, "a poll that ran out of time was called idle");
    reading.source.close(Closing::Ended);
}

#[test]
fn a_sink_names_the_topic_that_cannot_be() {
    let kafka = with_topic("t", 1);
    for (topic, partitions, said) in [
        ("t", 0, "topic t cannot have 0 partitions"),
        ("new", -1, "topic new cannot have -1 partitions"),
        ("a b", 1, "\"a b\" cannot be a topic's name"),
    ] {
        let e = write(&KafkaSink::json(&kafka, topic).create_topic(partitions), [(1u64, 1)]).unwrap_err();
        assert!(e.chain().starts_with(said), "{}", e.chain());
    }
    let e = write(&KafkaSink::json(&kafka, "a\0b"), [(1u64, 1)]).unwrap_err();
    assert!(e.to_string().starts_with("\"a\\0b\" cannot be"), "{e}");
    let e = Reading::open(&KafkaSource::json::<u64>(&kafka).topic("a\0b"), 0, 1).err().unwrap();
    assert!(e.to_string().starts_with("\"a\\0b\" cannot be"), "{e}");
    assert_eq!(kafka.embedded_broker().unwrap().topic_names(), ["t"]);
}
