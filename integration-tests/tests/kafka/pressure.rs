//! Sinks that are slow or stand still: no partition stops for good, nobody is put out of a group, nothing is read twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_connectors::kafka::{KafkaSource, Stop};
use weir_connectors::memory::MemorySink;
use weir_engine::prelude::*;
use weir_engine::testkit::until;
use weir_engine::{Collector, Operator, OperatorInfo, RestartPolicy};

use super::rig::{Rig, SOON, committed, feed, soak};

/// Lets records through while it is open, and holds the thread that reads while it is not; fails once when it is told to.
#[derive(Clone, Default)]
struct Gate {
    closed: Arc<AtomicBool>,
    fails: Arc<AtomicBool>,
    passed: Arc<AtomicU64>,
}

impl Operator<u64> for Gate {
    type Out = u64;

    fn process(&mut self, record: Record<u64>, out: &mut impl Collector<u64>) -> Result<()> {
        if self.fails.swap(false, Ordering::AcqRel) {
            return Err(TaskError::external("told to fail"));
        }
        while self.closed.load(Ordering::Acquire) {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        self.passed.fetch_add(1, Ordering::Relaxed);
        out.emit(record)
    }
}

/// The limit on the time between two polls is a group's affair, and this source is nobody's member.
#[test]
fn e50_a_sink_that_stands_still_for_longer_than_the_poll_limit_costs_nothing() {
    let (limit, held) =
        if soak() { (300_000, Duration::from_secs(600)) } else { (10_000, Duration::from_secs(30)) };
    let rig = Rig::new("e50", 4);
    feed(&rig, 0..20_000);
    let kafka = (rig.kafka.clone().set("group.id", &rig.name))
        .set("max.poll.interval.ms", limit.to_string())
        .set("session.timeout.ms", "6000");
    let (gate, sink) = (Gate::default(), MemorySink::new());
    let job = Job::named(&rig.name).parallelism(1).checkpoints(rig.checkpoints(100));
    job.source("in", KafkaSource::json::<u64>(&kafka).topic(&rig.topic))
        .without_event_time()
        .transform(OperatorInfo::stateless("gate"), gate.clone())
        .sink("out", sink.clone());
    let handle = job.restart(RestartPolicy::None).start().unwrap();
    until(&handle, SOON, "some records", || handle.is_over() || gate.passed.load(Ordering::Relaxed) > 100);
    gate.closed.store(true, Ordering::Release);
    let began = Instant::now();
    while began.elapsed() < held {
        assert!(!handle.is_over(), "it ended while it was held");
        std::thread::park_timeout(Duration::from_millis(100));
    }
    feed(&rig, 20_000..21_000);
    gate.closed.store(false, Ordering::Release);
    until(&handle, SOON, "all records", || handle.is_over() || sink.handle().len() == 21_000);
    handle.drain(EndKind::Keep);
    assert_eq!(handle.wait_for(SOON).expect("it drains").unwrap().attempts, 1);
    let mut all = sink.handle().take_values();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..21_000), "once each");
    assert_eq!(committed(&rig.name, &rig.topic, 4).iter().flatten().sum::<i64>(), 21_000);
}

/// Twelve partitions, a sink that stands still and goes on, and readers that are closed and opened again in between.
#[test]
fn e49_every_partition_goes_on_after_each_stop_and_each_restart() {
    const PARTITIONS: i32 = 12;
    let time = Duration::from_secs(if soak() { 600 } else { 60 });
    let rig = Rig::new("e49", PARTITIONS);
    // A small queue, so that the client stops and goes on fetching all the time.
    let kafka = (rig.kafka.clone().set("queued.max.messages.kbytes", "64"))
        .set("queued.min.messages", "200")
        .set("fetch.message.max.bytes", "4096");
    let (gate, sink) = (Gate::default(), MemorySink::new());
    let job = Job::named(&rig.name).parallelism(3).checkpoints(rig.checkpoints(50));
    let job = job.restart(RestartPolicy::FixedDelay { restarts: 10_000, delay: Duration::from_millis(10) });
    let source = KafkaSource::json::<u64>(&kafka).topic(&rig.topic);
    let progress = source.progress();
    job.source("in", source)
        .without_event_time()
        .transform(OperatorInfo::stateless("gate"), gate.clone())
        .sink("out", sink);
    let handle = job.start().unwrap();
    let (began, mut fed, mut cycles) = (Instant::now(), 0, 0);
    while began.elapsed() < time || cycles < 4 {
        gate.closed.store(true, Ordering::Release);
        feed(&rig, fed..fed + 6_000);
        fed += 6_000;
        std::thread::park_timeout(Duration::from_millis(700));
        if cycles % 2 == 1 {
            gate.fails.store(true, Ordering::Release);
        }
        gate.closed.store(false, Ordering::Release);
        // A partition's share of what was fed is read, every time.
        let share = (fed / PARTITIONS as u64) as i64;
        let behind = || {
            let of = (0..PARTITIONS).map(|p| (p, progress.next_offset(&rig.topic, p).unwrap_or(0)));
            of.filter(|(_, next)| *next < share).collect::<Vec<_>>()
        };
        let open = Instant::now();
        until(&handle, SOON, "every partition", || handle.is_over() || behind().is_empty());
        if handle.is_over() {
            panic!("{:?} are behind {share}: {:?}", behind(), handle.wait());
        }
        println!("cycle {cycles}: all read {:.1} s after it went on", open.elapsed().as_secs_f64());
        cycles += 1;
    }
    let counters = handle.tasks();
    let stalls =
        counters.iter().flat_map(|task| &task.counters).filter(|(_, name, _)| *name == "kafka_stalls");
    assert_eq!(stalls.map(|(.., n)| *n).sum::<u64>(), 0, "a reader that is held back is no stall");
    handle.drain(EndKind::Keep);
    let report = handle.wait_for(SOON).expect("it drains").unwrap();
    assert!(cycles > 3 && report.attempts > 1, "{cycles} cycles, {} attempts", report.attempts);
}

/// Its process stood still while another took its place, say: what it has to commit then is older than what the group has.
#[test]
fn e41_an_older_attempt_that_is_late_sets_nothing_back() {
    let rig = Rig::new("e41-late", 1);
    feed(&rig, 0..1_000);
    let kafka = rig.kafka.clone().set("group.id", &rig.name);
    let begin = |name: &str, stop: Stop, gate: &Gate| {
        // Its end is its only checkpoint.
        let apart =
            Checkpoints::to(format!("memory://{}-{name}", rig.name)).every(Duration::from_secs(3_600));
        let job = Job::named(name).parallelism(1).checkpoints(apart).restart(RestartPolicy::None);
        job.source("in", KafkaSource::json::<u64>(&kafka).topic(&rig.topic).until(stop))
            .without_event_time()
            .transform(OperatorInfo::stateless("gate"), gate.clone())
            .sink("out", MemorySink::new());
        job.start().unwrap()
    };
    let held = Gate::default();
    held.closed.store(true, Ordering::Release);
    let older = begin("older", Stop::Offsets([((rig.topic.clone(), 0), 10)].into()), &held);
    until(&older, SOON, "its start", || older.is_over() || older.status().state == JobState::Running);
    // Lives are told apart by the millisecond in which they began.
    std::thread::park_timeout(Duration::from_millis(20));
    let newer = begin("newer", Stop::Latest, &Gate::default());
    newer.wait_for(SOON).expect("it ends").unwrap();
    assert_eq!(committed(&rig.name, &rig.topic, 1), [Some(1_000)]);
    held.closed.store(false, Ordering::Release);
    older.wait_for(SOON).expect("it ends").unwrap();
    assert_eq!(committed(&rig.name, &rig.topic, 1), [Some(1_000)], "and not 10");
}
