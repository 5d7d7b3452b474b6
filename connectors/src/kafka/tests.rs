//! What sources and sinks do against a real broker over a real socket: the one in this process. (over 400 lines: one case after the other)

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_engine::testkit::context;
use weir_engine::{
    Closing, Data, DeadLetter, EventTime, OperatorContext, Record, RestoredItem, Result, Sink, Source,
    SourceBatch, SourceStatus, TaskError,
};

use super::*;
use crate::format::{Bytes, Decoder, Encoder, Json};

mod dry;
mod ends;
#[cfg(feature = "avro")]
mod formats;
mod kept;
mod positions;
mod watched;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Event {
    user: u64,
    n: u64,
    note: String,
}

fn event(n: u64) -> Event {
    Event { user: n % 97, n, note: "x".repeat(60) }
}

fn kafka() -> KafkaConfig {
    KafkaConfig::embedded().unwrap().patience(Duration::from_secs(60))
}

fn with_topic(topic: &str, partitions: i32) -> KafkaConfig {
    let kafka = kafka();
    kafka.embedded_broker().unwrap().create_topic(topic, partitions).unwrap();
    kafka
}

/// Writes records through a sink of its own, subtask 0 of 1.
fn write<T: Data, E: Encoder<T>>(
    sink: &KafkaSink<T, E>,
    values: impl IntoIterator<Item = (T, i64)>,
) -> Result<()> {
    let mut sink = sink.clone();
    sink.open(&context("out", 0, 1))?;
    let mut batch = Vec::with_capacity(1024);
    for (value, time) in values {
        batch.push(Record::new(value, EventTime(time)));
        if batch.len() == 1024 {
            sink.write(&mut batch)?;
        }
    }
    sink.write(&mut batch)?;
    sink.flush()?;
    sink.close(Closing::Ended);
    Ok(())
}

/// An open source and what it gave.
struct Reading<T, D> {
    source: KafkaSource<T, D>,
    records: Vec<Record<T>>,
    letters: Vec<DeadLetter>,
}

impl<T: Data, D: Decoder<T>> Reading<T, D> {
    fn open(source: &KafkaSource<T, D>, subtask: usize, parallelism: usize) -> Result<Self> {
        Self::begin(source, &context("in", subtask, parallelism), &[])
    }

    /// Opens where a checkpoint says.
    fn begin(source: &KafkaSource<T, D>, cx: &OperatorContext, restored: &[RestoredItem]) -> Result<Self> {
        let mut source = source.clone();
        source.begin(cx, restored)?;
        Ok(Reading { source, records: Vec::new(), letters: Vec::new() })
    }

    /// Reads until there are `n` records and dead letters; an error, too, after 60 s.
    fn until(&mut self, n: usize) -> Result<()> {
        let cx = context("in", 0, 1);
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.records.len() + self.letters.len() < n {
            if Instant::now() > deadline {
                let got = self.records.len();
                return Err(TaskError::internal(format!("{got} records of {n} after 60 s")));
            }
            let mut out = SourceBatch::new(1024);
            let status = self.source.poll(&mut out, Duration::from_millis(5))?;
            self.records.extend(out.records().iter().cloned());
            self.letters.extend(out.rejected().iter().cloned());
            if let SourceStatus::Idle(wait) = status {
                cx.wait(wait)?;
            }
        }
        Ok(())
    }

    /// Polls for a while, and says whether nothing came.
    fn is_quiet(&mut self) -> bool {
        let cx = context("in", 0, 1);
        let end = Instant::now() + Duration::from_millis(300);
        let before = self.records.len();
        while Instant::now() < end {
            let mut out = SourceBatch::new(1024);
            self.source.poll(&mut out, Duration::from_millis(5)).unwrap();
            self.records.extend(out.records().iter().cloned());
            cx.wait(Duration::from_millis(5)).unwrap();
        }
        before == self.records.len()
    }
}

#[test]
fn ten_thousand_keyed_records_there_and_back() {
    let kafka = with_topic("t", 5);
    let sink = KafkaSink::json(&kafka, "t").key(|e: &Event| e.user.to_string());
    std::thread::scope(|s| {
        for writer in 0..2 {
            let sink = &sink;
            s.spawn(move || {
                let share = (0..10_000).filter(|n| n % 97 % 2 == writer);
                write(sink, share.map(|n| (event(n), 1_000_000 + n as i64))).unwrap();
            });
        }
    });
    let source = KafkaSource::json::<Event>(&kafka).topic("t");
    let (mut seen, mut users) = (Vec::new(), BTreeMap::<u64, Vec<u64>>::new());
    for subtask in 0..3 {
        let mut reading = Reading::open(&source, subtask, 3).unwrap();
        let own: i64 = (assign::assign(&[5], subtask, 3).iter())
            .map(|p| {
                let at = |e: &u64| partition_of(e.to_string().as_bytes(), 5) == p.partition;
                (0..10_000u64).filter(|n| at(&(n % 97))).count() as i64
            })
            .sum();
        reading.until(own as usize).unwrap();
        assert!(reading.is_quiet());
        for record in &reading.records {
            assert_eq!(record.time, EventTime(1_000_000 + record.value.n as i64));
            assert_eq!(record.value, event(record.value.n));
            users.entry(record.value.user).or_default().push(record.value.n);
            seen.push(record.value.n);
        }
        reading.source.close(Closing::Ended);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..10_000).collect::<Vec<_>>());
    assert!(users.values().all(|of| of.is_sorted()), "records of one key stay in order");
    let read: i64 = source.progress().snapshot().iter().map(|(_, _, next)| next).sum();
    assert_eq!(read, 10_000, "{:?}", source.progress());
}

#[test]
fn bad_records_and_tombstones_become_dead_letters() {
    let kafka = with_topic("t", 1);
    let good = serde_json::to_vec(&event(1)).unwrap();
    let sink = KafkaSink::bytes(&kafka, "t");
    write(&sink, [good.clone(), b"{\"user\":".to_vec(), good].map(|payload| (payload, 7))).unwrap();
    let producer: rdkafka::producer::BaseProducer =
        rdkafka::ClientConfig::new().set("bootstrap.servers", kafka.broker_list()).create().unwrap();
    let tombstone = rdkafka::producer::BaseRecord::<str, [u8]>::to("t").key("k").partition(0);
    assert!(producer.send(tombstone).is_ok());
    rdkafka::producer::Producer::flush(&producer, Duration::from_secs(5)).unwrap();

    let source = KafkaSource::json::<Event>(&kafka).topic("t");
    let mut reading = Reading::open(&source, 0, 1).unwrap();
    reading.until(4).unwrap();
    assert_eq!(reading.records.len(), 2);
    let letters: Vec<_> =
        reading.letters.iter().map(|l| (&l.origin[..], l.partition, l.offset, &l.payload[..])).collect();
    assert_eq!(letters, [("t", 0, 1, &b"{\"user\":"[..]), ("t", 0, 3, &b""[..])]);
    assert!(
        reading.letters[0].reason.starts_with("not the expected JSON: EOF"),
        "{}",
        reading.letters[0].reason
    );
    assert!(reading.letters[1].reason.contains("tombstone"));

    let mut reading = Reading::open(&source.skip_tombstones(), 0, 1).unwrap();
    reading.until(3).unwrap();
    assert!(reading.is_quiet());
    assert_eq!((reading.records.len(), reading.letters.len()), (2, 1));
}

#[test]
fn a_following_sink_never_outruns_what_the_broker_keeps() {
    const N: u64 = 300_000;
    let kafka = kafka();
    let source = KafkaSource::json::<Event>(&kafka).topic("t");
    let sink = KafkaSink::json(&kafka, "t").create_topic(2).follow(source.progress());
    let start = Instant::now();
    std::thread::scope(|s| {
        s.spawn(|| write(&sink, (0..N).map(|n| (event(n), 1 + n as i64))).unwrap());
        let mut reading = Reading::open(&source, 0, 1).unwrap();
        reading.until(N as usize).unwrap();
        let mut seen: Vec<u64> = reading.records.iter().map(|r| r.value.n).collect();
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..N), "some are missing or came twice");
    });
    println!("followed: {:.0} records/s", N as f64 / start.elapsed().as_secs_f64());
}

#[test]
fn records_gone_before_they_were_read_are_an_error_and_not_silence() {
    let kafka = with_topic("t", 2).set("queued.max.messages.kbytes", "1").set("queued.min.messages", "1");
    let source = KafkaSource::json::<Event>(&kafka).topic("t");
    let sink = KafkaSink::json(&kafka, "t");
    write(&sink, (0..10).map(|n| (event(n), 1))).unwrap();
    let mut reading = Reading::open(&source, 0, 1).unwrap();
    reading.until(10).unwrap();
    write(&sink, (0..300_000).map(|n| (event(n), 1))).unwrap();
    let e = reading.until(300_010).unwrap_err().chain();
    assert!(e.contains("topic t, partition ") && e.contains(" is gone, the broker has "), "{e}");
    assert!(e.contains("records were deleted before they were read"), "{e}");
    assert!(e.contains("offset not available on the broker"), "the library's reason: {e}");
}

#[test]
fn an_unreachable_broker_stops_the_start_in_time() {
    let kafka = KafkaConfig::brokers("127.0.0.1:1").patience(Duration::from_secs(1));
    let start = Instant::now();
    let e = Reading::open(&KafkaSource::json::<u64>(&kafka).topic("t"), 0, 1).err().unwrap().chain();
    assert!(e.starts_with("Kafka at 127.0.0.1:1 did not tell about topic t within 1s: "), "{e}");
    assert!(e.contains("Connection refused"), "{e}");
    let e = write(&KafkaSink::json(&kafka, "t"), [(1u64, 1)]).unwrap_err().chain();
    assert!(e.contains("127.0.0.1:1") && e.contains("topic t"), "{e}");
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
}

#[test]
fn a_missing_topic_stops_the_start() {
    let kafka = kafka().patience(Duration::from_millis(300));
    let brokers = kafka.broker_list().to_owned();
    let e = Reading::open(&KafkaSource::json::<u64>(&kafka).topic("no"), 0, 1).err().unwrap().to_string();
    assert_eq!(e, format!("Kafka at {brokers} has no topic no after 300ms: create it, or name another"));
    let e = write(&KafkaSink::json(&kafka, "no"), [(1u64, 1)]).unwrap_err().to_string();
    assert!(e.ends_with("create it, or let the sink do so with create_topic(partitions)"), "{e}");
    assert!(kafka.embedded_broker().unwrap().topic_names().is_empty());
}

#[test]
fn a_source_waits_for_the_topic_that_its_sink_creates() {
    let kafka = kafka();
    let source = KafkaSource::json::<u64>(&kafka).topic("t");
    std::thread::scope(|s| {
        let reader = s.spawn(|| {
            let mut reading = Reading::open(&source, 0, 1)?;
            reading.until(1)
        });
        context("out", 0, 1).wait(Duration::from_millis(200)).unwrap();
        write(&KafkaSink::json(&kafka, "t").create_topic(1), [(1u64, 1)]).unwrap();
        reader.join().unwrap().unwrap();
    });
}

#[test]
fn a_topic_is_removed_only_when_this_start_made_it_and_nothing_flowed() {
    let kafka = kafka();
    let topics = || kafka.embedded_broker().unwrap().topic_names();
    let sink = KafkaSink::<u64, Json>::json(&kafka, "t").create_topic(2);
    let opened = || {
        let mut copies = [sink.clone(), sink.clone()];
        for (i, copy) in copies.iter_mut().enumerate() {
            copy.open(&context("out", i, 2)).unwrap();
        }
        copies
    };
    let mut copies = opened();
    assert_eq!(topics(), ["t"]);
    copies.iter_mut().for_each(|copy| copy.close(Closing::NeverRan));
    assert!(topics().is_empty());
    for outcome in [Closing::Stopped, Closing::NeverRan, Closing::Ended, Closing::NeverRan] {
        opened().iter_mut().for_each(|copy| copy.close(outcome));
        assert_eq!(topics(), ["t"], "an earlier life may have written to it: {outcome:?}");
    }
}

#[test]
fn a_subtask_without_a_partition_stays_idle() {
    let kafka = with_topic("t", 1);
    let source = KafkaSource::json::<u64>(&kafka).topic("t");
    let mut reading = Reading::open(&source, 1, 2).unwrap();
    let mut out = SourceBatch::new(10);
    let status = reading.source.poll(&mut out, Duration::from_millis(5)).unwrap();
    assert!(matches!(status, SourceStatus::Idle(_)) && out.is_empty());
    reading.source.close(Closing::Ended);
}

#[test]
fn several_topics_in_one_source() {
    let kafka = with_topic("a", 2);
    kafka.embedded_broker().unwrap().create_topic("b", 3).unwrap();
    for (topic, first) in [("a", 0), ("b", 1000)] {
        write(&KafkaSink::json(&kafka, topic), (first..first + 500).map(|n| (n, 1))).unwrap();
    }
    let source = KafkaSource::json::<u64>(&kafka).topics(["a", "b", "a"]);
    let mut all = Vec::new();
    for subtask in 0..2 {
        let mut reading = Reading::open(&source, subtask, 2).unwrap();
        let own: usize = (assign::assign(&[2, 3], subtask, 2).iter())
            .map(|p| if p.topic == 0 { 250 } else { 167 - usize::from(p.partition == 2) })
            .sum();
        reading.until(own).unwrap();
        all.extend(reading.records.iter().map(|r| r.value));
    }
    all.sort_unstable();
    assert_eq!(all, (0..500).chain(1000..1500).collect::<Vec<u64>>());
}

#[test]
fn an_outage_is_ridden_out() {
    let kafka = with_topic("t", 1).set("reconnect.backoff.max.ms", "200");
    let sink = KafkaSink::json(&kafka, "t");
    write(&sink, (0..10).map(|n| (n, 1))).unwrap();
    let mut reading = Reading::open(&KafkaSource::json::<u64>(&kafka).topic("t"), 0, 1).unwrap();
    reading.until(10).unwrap();
    let mut out = sink.clone();
    out.open(&context("out", 0, 1)).unwrap();
    let broker = kafka.embedded_broker().unwrap();
    broker.down(true);
    assert!(reading.is_quiet());
    out.write(&mut vec![Record::new(10, EventTime(1))]).unwrap();
    broker.down(false);
    out.flush().unwrap();
    reading.until(11).unwrap();
    assert_eq!(reading.records[10].value, 10);
    out.close(Closing::Ended);
}

#[test]
fn records_that_are_not_delivered_fail_the_flush() {
    let kafka = with_topic("t", 1).set("message.timeout.ms", "500");
    let mut sink = KafkaSink::json(&kafka, "t");
    sink.open(&context("out", 0, 1)).unwrap();
    kafka.embedded_broker().unwrap().down(true);
    sink.write(&mut vec![Record::new(1u64, EventTime(1)), Record::new(2, EventTime(1))]).unwrap();
    let e = sink.flush().unwrap_err().chain();
    assert!(
        e.starts_with("2 records for topic t were not delivered, the first of them to partition 0 ("),
        "{e}"
    );
    assert!(e.contains("timed out"), "{e}");
    sink.close(Closing::Stopped);
}

#[test]
fn properties_that_would_lose_records_are_refused() {
    let kafka = with_topic("t", 1).set("auto.offset.reset", "latest");
    let e = Reading::open(&KafkaSource::json::<u64>(&kafka).topic("t"), 0, 1).err().unwrap().to_string();
    assert!(e.starts_with("Kafka property auto.offset.reset=latest cannot be used: "), "{e}");
    let e = Reading::open(&KafkaSource::json::<u64>(&with_topic("t", 1)), 0, 1).err().unwrap().to_string();
    assert!(e.contains("reads no topic"), "{e}");
    let kafka = with_topic("t", 1).set("no.such.property", "1");
    let e = Reading::open(&KafkaSource::json::<u64>(&kafka).topic("t"), 0, 1).err().unwrap().chain();
    assert!(e.contains("no.such.property"), "{e}");
}

#[test]
fn what_cannot_be_written_is_a_dead_letter_or_fails_the_job() {
    #[derive(Clone)]
    struct Odd;
    impl Encoder<u64> for Odd {
        fn encode(&mut self, n: &u64, out: &mut Vec<u8>) -> std::result::Result<(), String> {
            out.extend(std::iter::repeat_n(b'x', *n as usize));
            if n.is_multiple_of(2) { Err(format!("{n} is even")) } else { Ok(()) }
        }
    }
    let kafka = with_topic("t", 1);
    let sink = KafkaSink::encoded(&kafka, "t", Odd);
    let e = write(&sink, [(4u64, 1)]).unwrap_err().to_string();
    assert_eq!(e, "a record for Kafka topic t: 4 is even");
    let large = 2_000_001;
    let e = write(&sink, [(large, 1)]).unwrap_err().to_string();
    assert!(e.starts_with("a record for Kafka topic t: 2000001 bytes for partition 0 are more than"), "{e}");

    let letters = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let taken = std::sync::Arc::clone(&letters);
    let sink = sink.reject_to(move |letter| taken.lock().unwrap().push(letter));
    write(&sink, [1, 4, large, 3].map(|n| (n, 1))).unwrap();
    let mut reading = Reading::open(&KafkaSource::bytes(&kafka).topic("t"), 0, 1).unwrap();
    reading.until(2).unwrap();
    let lengths: Vec<_> = reading.records.iter().map(|r| r.value.len()).collect();
    assert_eq!(lengths, [1, 3]);
    let letters = letters.lock().unwrap();
    let first = &letters[0];
    assert_eq!(
        (first.uid.as_str(), first.origin.as_str(), first.partition, first.offset),
        ("out", "t", -1, -1)
    );
    assert_eq!((first.reason.as_str(), first.payload.as_slice()), ("4 is even", &b"xxxx"[..]));
    assert!(letters.len() == 2 && letters[1].payload.len() == large as usize);
}

/// Not a benchmark, only an order of magnitude: printed with `--nocapture`.
#[test]
fn rates_against_the_broker_in_this_process() {
    const N: u64 = 60_000;
    let kafka = with_topic("t", 2);
    let start = Instant::now();
    write(&KafkaSink::json(&kafka, "t"), (0..N).map(|n| (event(n), 1))).unwrap();
    let wrote = start.elapsed();
    let start = Instant::now();
    let source = KafkaSource::decoded::<Vec<u8>, _>(&kafka, Bytes).topic("t");
    let mut reading = Reading::open(&source, 0, 1).unwrap();
    let opened = start.elapsed();
    let begin = Instant::now();
    reading.until(N as usize).unwrap();
    let read = begin.elapsed();
    let begin = Instant::now();
    reading.source.close(Closing::Ended);
    let rate = |time: Duration| N as f64 / time.as_secs_f64();
    println!(
        "wrote {:.0}/s, opened in {opened:?}, read {:.0}/s, closed in {:?}",
        rate(wrote),
        rate(read),
        begin.elapsed()
    );
}
