//! Whole jobs over Kafka that take checkpoints: what the group is told, where a job goes on, what its feeder waits for.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not see helpers of an integration test"
)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_connectors::file::{FileSink, visible_lines};
use weir_connectors::generator::Generator;
use weir_connectors::kafka::{KafkaConfig, KafkaSink, KafkaSource, Start};
use weir_connectors::memory::{MemoryHandle, MemorySink};
use weir_engine::prelude::*;
use weir_engine::testkit::{run_within, until};
use weir_engine::{Collector, JobHandle, Operator, OperatorContext, OperatorInfo, RestartPolicy, Sink};

const LIMIT: Duration = Duration::from_secs(60);

fn kafka(topic: &str, partitions: i32) -> KafkaConfig {
    let kafka = KafkaConfig::embedded().unwrap();
    kafka.create_topic(topic, partitions).unwrap();
    kafka
}

/// Writes the numbers from `first` up to `end`.
fn write(kafka: &KafkaConfig, first: u64, end: u64) {
    let job = Job::named("writer").parallelism(1);
    let numbers = Generator::new(1, Some(end - first), move |i, _| (first + i, EventTime(1)));
    job.source("numbers", numbers).without_event_time().sink("out", KafkaSink::json(kafka, "t"));
    run_within(job, LIMIT).unwrap();
}

fn every(ms: u64, name: &str) -> Checkpoints {
    Checkpoints::to(format!("memory://kafka-{name}")).every(Duration::from_millis(ms))
}

/// A job that reads the topic from where the group stands.
fn reader<S: Sink<u64>>(kafka: &KafkaConfig, checkpoints: Checkpoints, sink: S) -> JobHandle {
    let job = Job::named("reader").parallelism(2).checkpoints(checkpoints);
    let source = KafkaSource::json::<u64>(kafka).topic("t").from(Start::Group);
    job.source("in", source).without_event_time().sink("out", sink);
    job.start().unwrap()
}

fn until_arrived(handle: &JobHandle, arrived: &MemoryHandle<u64>, n: usize) {
    until(handle, LIMIT, "all have arrived", || arrived.len() >= n);
}

/// Every checkpoint is given up, since the sink takes longer to flush than one may take.
#[test]
fn e42_checkpoints_that_fail_tell_the_group_nothing() {
    #[derive(Clone)]
    struct Slow(MemorySink<u64>, Option<OperatorContext>);
    impl Sink<u64> for Slow {
        fn open(&mut self, cx: &OperatorContext) -> Result<()> {
            self.1 = Some(cx.clone());
            self.0.open(cx)
        }
        fn write(&mut self, batch: &mut Vec<Record<u64>>) -> Result<()> {
            self.0.write(batch)
        }
        fn flush(&mut self) -> Result<()> {
            self.1.as_ref().unwrap().wait(Duration::from_millis(200))
        }
    }
    let kafka = kafka("t", 3);
    write(&kafka, 0, 1_000);
    let first = MemorySink::new();
    let failing = every(10, "e42-fail").timeout(Duration::from_millis(30)).tolerate_failures(u32::MAX);
    let handle = reader(&kafka, failing, Slow(first.clone(), None));
    until_arrived(&handle, &first.handle(), 1_000);
    until(&handle, LIMIT, "some have failed", || handle.checkpoints().len() > 3);
    let outcomes: BTreeSet<String> =
        handle.checkpoints().iter().map(|c| format!("{:?}", c.outcome)).collect();
    assert!(outcomes.iter().all(|o| !o.contains("Completed")), "{outcomes:?}");
    handle.cancel();
    drop(handle.wait());

    write(&kafka, 1_000, 1_500);
    let next = MemorySink::new();
    let handle = reader(&kafka, every(10, "e42-next"), next.clone());
    until_arrived(&handle, &next.handle(), 1_500);
    handle.drain(EndKind::Keep);
    handle.wait().unwrap();
    let mut got = next.handle().take_values();
    got.sort_unstable();
    assert!(got.iter().copied().eq(0..1_500), "nothing is skipped, nothing comes twice: {}", got.len());
}

#[test]
fn e42_a_clean_stop_tells_the_group_everything() {
    let kafka = kafka("t", 3);
    let (mut written, mut all) = (0, Vec::new());
    for life in 0..3 {
        write(&kafka, written, written + 700);
        written += 700;
        let arrived = MemorySink::new();
        // A job of its own each time: only the group remembers.
        let handle = reader(&kafka, every(3_600_000, &format!("e42-stop-{life}")), arrived.clone());
        until_arrived(&handle, &arrived.handle(), 700);
        handle.drain(EndKind::Keep);
        handle.wait().unwrap();
        all.extend(arrived.handle().take_values());
    }
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..written), "{} of {written}", all.len());
}

/// Fails at these records, counted over all lives.
#[derive(Clone)]
struct Failing(Arc<AtomicU64>, [u64; 3]);

impl Operator<u64> for Failing {
    type Out = u64;

    fn process(&mut self, record: Record<u64>, out: &mut impl Collector<u64>) -> Result<()> {
        if self.1.contains(&self.0.fetch_add(1, Ordering::Relaxed)) {
            return Err(TaskError::external("struck"));
        }
        out.emit(record)
    }
}

fn restarts() -> RestartPolicy {
    RestartPolicy::FixedDelay { restarts: 10, delay: Duration::from_millis(1) }
}

#[test]
fn a_topic_is_read_once_over_failures_and_stops() {
    const N: u64 = 20_000;
    let kafka = kafka("t", 5);
    write(&kafka, 0, N);
    let folder = tempfile::tempdir().unwrap();
    let records = Arc::new(AtomicU64::new(0));
    let job = |parallelism: usize, fails: [u64; 3]| {
        let job =
            Job::named("once").parallelism(parallelism).restart(restarts()).checkpoints(every(10, "once"));
        let source = KafkaSource::json::<u64>(&kafka).topic("t");
        job.source("in", source)
            .max_rate(40_000.0)
            .without_event_time()
            .transform(OperatorInfo::stateless("fail"), Failing(records.clone(), fails))
            .sink("out", FileSink::json_lines(folder.path()));
        job.start().unwrap()
    };
    let shown = || visible_lines(folder.path()).unwrap().len() as u64;
    for (life, (parallelism, fails)) in
        [(2, [900, 3_000, u64::MAX]), (3, [7_500; 3]), (1, [12_000; 3])].into_iter().enumerate()
    {
        let handle = job(parallelism, fails);
        let enough = [N / 4, N / 2, N][life];
        until(&handle, LIMIT, "enough is shown", || shown() >= enough);
        if life == 1 {
            handle.cancel()
        } else {
            handle.drain(EndKind::Keep)
        }
        drop(handle.wait());
    }
    let mut expected: Vec<String> = (0..N).map(|i| i.to_string()).collect();
    expected.sort();
    assert!(visible_lines(folder.path()).unwrap() == expected, "{} of {N}", shown());
}

/// The broker in this process keeps little. A reader that goes back to its last checkpoint finds everything after it.
#[test]
fn a_feeder_waits_for_the_checkpoints_of_its_reader() {
    const N: u64 = 250_000;
    let kafka = kafka("t", 2);
    let source = KafkaSource::json::<(u64, String)>(&kafka).topic("t");
    let progress = source.progress();
    let feeder = Job::named("feeder").parallelism(1);
    let note = "x".repeat(60);
    let made = Generator::new(1, Some(N), move |i, _| ((i, note.clone()), EventTime(1)));
    feeder
        .source("made", made)
        .without_event_time()
        .sink("out", KafkaSink::json(&kafka, "t").follow(progress.clone()));

    #[derive(Clone)]
    struct Number;
    impl Operator<(u64, String)> for Number {
        type Out = u64;

        fn process(&mut self, r: Record<(u64, String)>, out: &mut impl Collector<u64>) -> Result<()> {
            out.emit(r.with(r.value.0))
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let job = Job::named("behind").parallelism(2).restart(restarts()).checkpoints(every(50, "behind"));
    job.source("in", source)
        .without_event_time()
        .transform(OperatorInfo::stateless("number"), Number)
        .transform(OperatorInfo::stateless("fail"), Failing(Arc::default(), [60_000, 120_000, 200_000]))
        .sink("out", FileSink::json_lines(folder.path()));
    let reader = job.start().unwrap();
    let feeder = feeder.start().unwrap();
    let settled = || (0..2).filter_map(|p| progress.settled_offset("t", p)).sum::<i64>();
    until(&reader, LIMIT, "everything is in a checkpoint", || settled() == N as i64 || reader.is_over());
    feeder.wait().unwrap();
    reader.drain(EndKind::Keep);
    assert_eq!(reader.wait().unwrap().attempts, 4);
    let mut numbers: Vec<u64> =
        visible_lines(folder.path()).unwrap().iter().map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(0..N), "{} of {N}", numbers.len());
}
