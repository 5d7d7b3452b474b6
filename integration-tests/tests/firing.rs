//! A window with very many keys ends: barriers pass between its results, within a time, and memory does not double.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::SOON;
use weir_connectors::generator::Generator;
use weir_connectors::random::Random;
use weir_engine::prelude::*;
use weir_engine::testkit::{NullSink, until};
use weir_engine::{Barrier, Operator, OperatorInfo};
use weir_operators::prelude::*;
use weir_operators::window::Window;
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

impl Operator<WindowResult<u64, u64>> for Watch {
    type Out = WindowResult<u64, u64>;
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.cx = Some(cx.clone());
        Ok(())
    }
    fn process(&mut self, result: Record<Self::Out>, out: &mut impl Collector<Self::Out>) -> Result<()> {
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
fn serves_barriers_in_the_middle<W: Window<u64, u64>>(
    window: W,
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
    job.source("keys", Generator::new(1, None, make))
        .source_time(Watermarks::bounded(Duration::from_millis(1)))
        .key_by("by-key", |key| *key)
        .window(window)
        .aggregate("daily", count())
        .transform(OperatorInfo::stateless("watch"), watch.clone())
        .sink("out", NullSink);
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
    println!(
        "{}, {keys} keys: barriers waited {held:.1?} after so many results; {before} bytes before, {most} at most",
        W::NAME
    );
    assert!(!held.is_empty(), "no barrier came between two results");
    let longest = held.iter().map(|(held, _)| *held).max().unwrap();
    assert!(longest <= limit, "a barrier waited {longest:?}");
    assert!(most <= before * 2, "{before} bytes before, {most} while it was given");
    assert_eq!(passed(), keys, "each once, and nothing of the day that goes on");
    running.cancel();
    let _ = running.wait();
}

/// The short form says that barriers pass at all; how long they wait is measured on a quiet machine, with the long one.
#[test]
fn a_barrier_passes_between_the_results_of_a_window() {
    let backend = [StateBackend::memory as fn() -> StateBackend, StateBackend::rocksdb];
    let (keys, pause, limit) = match soak() {
        true => (1_000_000, Duration::ZERO, Duration::from_millis(100)),
        false => (200_000, Duration::from_millis(2), Duration::from_secs(2)),
    };
    let day = Tumbling::of(days(1));
    for backend in backend {
        serves_barriers_in_the_middle(day, backend(), keys, pause, limit);
        serves_barriers_in_the_middle(day.allow_lateness(days(1)), backend(), keys, pause, limit);
    }
}
