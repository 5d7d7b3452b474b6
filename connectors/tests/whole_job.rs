//! Whole jobs over Kafka: everything arrives, a blocked writer hears cancellation, a failed start leaves nothing behind.
//!
//! One test, since it counts the threads of the process.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not see helpers of an integration test"
)]

use std::time::{Duration, Instant};

use weir_connectors::behaviour::{Behaviour, behaviours};
use weir_connectors::generator::Generator;
use weir_connectors::kafka::{KafkaConfig, KafkaSink, KafkaSource};
use weir_connectors::memory::MemorySink;
use weir_engine::testkit::{thread_names, until};
use weir_engine::{EndKind, EventTime, Job, Watermarks};

fn client_threads() -> Vec<String> {
    thread_names().into_iter().filter(|name| name.starts_with("rdk:") || name.starts_with("kafka-")).collect()
}

#[test]
fn jobs_over_kafka_and_what_they_leave() {
    everything_arrives();
    a_writer_that_nobody_reads_is_cancelled();
    a_start_that_fails_leaves_no_topic();
    let deadline = Instant::now() + Duration::from_secs(5);
    while !client_threads().is_empty() && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(client_threads(), Vec::<String>::new(), "threads of closed clients");
}

fn everything_arrives() {
    const N: u64 = 50_000;
    let kafka = KafkaConfig::embedded().unwrap();
    let job = Job::named("there-and-back").parallelism(2);
    let source = KafkaSource::json::<Behaviour>(&kafka).topic("user_behavior");
    let sink = KafkaSink::json(&kafka, "user_behavior")
        .key(|e: &Behaviour| e.user_id.to_string())
        .create_topic(3)
        .follow(source.progress());
    let arrived = MemorySink::new();
    job.source("made", behaviours(7, Some(N))).without_event_time().sink("out", sink);
    job.source("in", source)
        .event_time(|e| EventTime(e.ts).millis(), Watermarks::bounded(Duration::from_secs(5)))
        .sink("arrived", arrived.clone());
    let planned = job.plan().unwrap().client_threads();
    let before = client_threads().len();
    let handle = job.start().unwrap();
    until(&handle, Duration::from_secs(30), "all records have arrived", || {
        arrived.handle().len() >= N as usize
    });
    let clients = client_threads();
    assert!(!clients.is_empty(), "the names that are looked for at the end");
    let started = (clients.len() - before) as u64;
    assert!(started <= planned, "{started} threads of clients, {planned} are planned: {clients:?}");
    // Of the two threads that a client gets with its first connections, and the one of the broker's own, some come later.
    assert!(started + 7 >= planned, "{started} threads of clients, {planned} are planned: {clients:?}");
    handle.drain(EndKind::Keep);
    handle.wait().unwrap();

    let mut got = arrived.handle().take_values();
    let made = MemorySink::new();
    let job = Job::named("made");
    job.source("made", behaviours(7, Some(N))).without_event_time().sink("made-sink", made.clone());
    job.run().unwrap();
    let mut expected = made.handle().take_values();
    got.sort_unstable();
    expected.sort_unstable();
    assert!(got == expected, "{} records of {}", got.len(), expected.len());
}

fn a_writer_that_nobody_reads_is_cancelled() {
    let kafka = KafkaConfig::embedded().unwrap();
    let job = Job::named("blocked");
    let unread = KafkaSource::json::<u64>(&kafka).topic("t").progress();
    let numbers = Generator::new(1, None, |i, _| (i, EventTime(i as i64)));
    let sink = KafkaSink::json(&kafka, "t").create_topic(1).follow(unread);
    job.source("numbers", numbers).without_event_time().sink("out", sink);
    let handle = job.start().unwrap();
    let blocked = || handle.tasks().iter().any(|t| t.backpressured > Duration::from_millis(300));
    until(&handle, Duration::from_secs(20), "the writer waits for a reader", blocked);
    let start = Instant::now();
    handle.cancel();
    drop(handle.wait());
    assert!(start.elapsed() < Duration::from_secs(5), "cancelling took {:?}", start.elapsed());
}

fn a_start_that_fails_leaves_no_topic() {
    let kafka = KafkaConfig::embedded().unwrap().patience(Duration::from_secs(1));
    let job = Job::named("half").parallelism(2);
    let numbers = Generator::new(1, Some(10), |i, _| (i, EventTime(i as i64)));
    job.source("numbers", numbers)
        .without_event_time()
        .sink("out", KafkaSink::json(&kafka, "made").create_topic(1));
    job.source("in", KafkaSource::json::<u64>(&kafka).topic("missing"))
        .without_event_time()
        .sink("arrived", MemorySink::new());
    let e = job.run().unwrap_err();
    let text = format!("{e:#} {e:?}");
    assert!(text.contains("has no topic missing"), "{text}");
    assert!(kafka.embedded_broker().unwrap().topic_names().is_empty(), "the sink's topic is still there");
}
