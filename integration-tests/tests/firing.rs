//! A window with very many keys ends, or very many timers are due: barriers pass between what is given, within a time, and memory does not
//! double. With `WEIR_SOAK=1` there are a million of them, and the figures are those of `docs/benchmarks.md`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::SOON;
use weir_connectors::generator::Generator;
use weir_connectors::random::Random;
use weir_engine::prelude::*;
use weir_engine::testkit::{NullSink, until};
use weir_engine::{Barrier, KeyedStream, Operator, OperatorInfo, Pipe, Stream};
use weir_operators::prelude::*;
use weir_state::store::Snapshot;

fn soak() -> bool {
    std::env::var_os("WEIR_SOAK").is_some()
}

const DAY: i64 = 86_400_000;

/// What passes, and what had passed when a barrier came.
#[derive(Clone)]
struct Watch {
    passed: Arc<AtomicU64>,
    barriers: Arc<Mutex<Vec<(u64, Instant)>>>,
    /// After each thousand, so that a checkpoint comes while there is something left.
    pause: Duration,
    cx: Option<OperatorContext>,
}

impl<T: Data> Operator<T> for Watch {
    type Out = T;
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.cx = Some(cx.clone());
        Ok(())
    }
    fn process(&mut self, result: Record<T>, out: &mut impl Collector<T>) -> Result<()> {
        let passed = self.passed.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(cx) = self.cx.as_ref().filter(|_| passed.is_multiple_of(1_000) && !self.pause.is_zero()) {
            cx.wait(self.pause)?;
        }
        out.emit(result)
    }
    fn snapshot(&mut self, _: Barrier, _: &mut Snapshot) -> Result<()> {
        self.barriers.lock().unwrap().push((self.passed.load(Ordering::Relaxed), Instant::now()));
        Ok(())
    }
}

/// What the process has in memory, in bytes; 0 where that is not told.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1_024
}

/// One day has all the keys, again and again until a checkpoint has been taken of them; then one key comes as fast as it can, so that
/// channels are full when the barrier sets out.
fn serves_barriers_in_the_middle<R: Data, P: Pipe<Out = R>>(
    name: &str,
    operator: impl FnOnce(KeyedStream<u64, u64>) -> Stream<R, P>,
    backend: StateBackend,
    keys: u64,
    pause: Duration,
    limit: Duration,
) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::to(folder.path().join("checkpoints").display().to_string());
    let job = Job::named("fires")
        .parallelism(1)
        .state(backend.folder(folder.path().join("state")))
        .checkpoints(checkpoints.every(Duration::from_secs(3_600)));
    let watch = Watch { passed: Arc::default(), barriers: Arc::default(), pause, cx: None };
    let over = Arc::new(AtomicBool::new(false));
    let (is_over, since) = (over.clone(), Arc::new(AtomicU64::new(u64::MAX)));
    let make = move |i: u64, _: &mut Random| {
        if !is_over.load(Ordering::Relaxed) {
            return (i % keys, EventTime((i / 100) as i64 % DAY));
        }
        let more = i - since.fetch_min(i, Ordering::Relaxed).min(i);
        (keys, EventTime(DAY + (more / 10_000) as i64))
    };
    let keyed = job
        .source("keys", Generator::new(1, None, make))
        .source_time(Watermarks::bounded(Duration::from_millis(1)))
        .key_by("by-key", |key| *key);
    operator(keyed).transform(OperatorInfo::stateless("watch"), watch.clone()).sink("out", NullSink);
    let running = job.start().unwrap();
    let passed = || watch.passed.load(Ordering::Relaxed);
    let read = || running.tasks().iter().map(|task| task.records_in).max().unwrap_or(0);
    until(&running, SOON * 6, "all keys", || running.is_over() || read() > keys + 10_000);
    // What a checkpoint of them takes is no firing's doing; with the memory backend it is all of them once more.
    running.checkpoint().unwrap();
    let before = resident();
    over.store(true, Ordering::Relaxed);
    until(&running, SOON * 6, "the first result", || running.is_over() || passed() > 0);
    let (mut held, mut most) = (Vec::new(), before);
    while passed() < keys {
        let asked = Instant::now();
        running.checkpoint().unwrap();
        most = most.max(resident());
        let (at, when) = *watch.barriers.lock().unwrap().last().unwrap();
        if (1..keys).contains(&at) {
            held.push((when - asked, at));
        }
    }
    let longest = held.iter().map(|(held, _)| *held).max().unwrap_or_default();
    println!(
        "{name}, {keys} keys: {} barriers came in the middle, and waited {longest:.1?} at most ({held:.1?} after so many results); {} MiB \
         before, {} MiB at most",
        held.len(),
        before >> 20,
        most >> 20
    );
    assert!(!held.is_empty(), "no barrier came between two results");
    assert!(longest <= limit, "a barrier waited {longest:?}");
    assert!(most <= before * 2, "{before} bytes before, {most} while it was given");
    assert_eq!(passed(), keys, "each once, and nothing of the day that goes on");
    running.cancel();
    let _ = running.wait();
}

/// The short form says that barriers pass at all; how long they wait is measured on a quiet machine, with the long one.
fn in_the_middle<R: Data, P: Pipe<Out = R>>(
    name: &str,
    operator: impl Fn(KeyedStream<u64, u64>) -> Stream<R, P>,
) {
    // What is resident is the whole process's.
    static ONE_BY_ONE: Mutex<()> = Mutex::new(());
    let _alone = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (keys, pause, limit) = match soak() {
        true => (1_000_000, Duration::ZERO, Duration::from_millis(100)),
        false => (200_000, Duration::from_millis(2), Duration::from_secs(60)),
    };
    for (on, backend) in
        [("memory", StateBackend::memory as fn() -> StateBackend), ("RocksDB", StateBackend::rocksdb)]
    {
        serves_barriers_in_the_middle(&format!("{name} on {on}"), &operator, backend(), keys, pause, limit);
    }
}

#[test]
fn a_barrier_passes_between_the_results_of_a_window() {
    in_the_middle("tumbling", |keyed| keyed.window(Tumbling::of(days(1))).aggregate("daily", count()));
}

#[test]
fn a_barrier_passes_between_the_results_of_a_window_that_allows_lateness() {
    let window = || Tumbling::of(days(1)).allow_lateness(days(1));
    in_the_middle("tumbling, lenient", |keyed| keyed.window(window()).aggregate("daily", count()));
}

#[test]
fn a_barrier_passes_between_the_results_of_a_window_that_slides() {
    let window = || Sliding::of(days(2)).every(days(1));
    in_the_middle("sliding", |keyed| keyed.window(window()).aggregate("two-days", count()));
}

#[test]
fn a_barrier_passes_between_the_results_of_a_window_that_cumulates() {
    let window = || Cumulate::of(days(2)).every(days(1));
    in_the_middle("cumulating", |keyed| keyed.window(window()).aggregate("two-days", count()));
}

#[test]
fn a_barrier_passes_between_sessions() {
    let window = || Session::gap(hours(1));
    in_the_middle("sessions", |keyed| keyed.window(window()).aggregate("visits", count()));
}

/// Counts the records of a key, and tells at the end of the day.
#[derive(Clone)]
struct Daily;

impl ProcessFunction<u64, u64> for Daily {
    type Out = (u64, u64);
    type State = u64;
    fn process(
        &mut self,
        record: Record<u64>,
        cx: &mut KeyedContext<'_, u64, u64>,
        _: &mut impl Collector<(u64, u64)>,
    ) -> Result<()> {
        let count = cx.state()?;
        *count += 1;
        if *count == 1 && record.time.0 < DAY {
            cx.set_timer(EventTime(DAY - 1));
        }
        Ok(())
    }
    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, u64, u64>,
        out: &mut impl Collector<(u64, u64)>,
    ) -> Result<()> {
        let count = *cx.state()?;
        cx.clear_state();
        out.emit(Record::new((*cx.key(), count), time))
    }
}

#[test]
fn a_barrier_passes_between_timers() {
    in_the_middle("timers", |keyed| keyed.process("daily", Daily));
}
