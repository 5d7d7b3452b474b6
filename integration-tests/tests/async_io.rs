//! Async I/O in whole jobs: slow calls hold no checkpoint, failures lose and repeat nothing, a cancel is heard at once.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod common;

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::*;
use tempfile::TempDir;
use weir_connectors::file::{FileSink, visible_lines};
use weir_connectors::generator::Generator;
use weir_connectors::random::Random;
use weir_engine::prelude::*;
use weir_engine::testkit::{Line, NullSink, Probe, ScriptSource, Seen, run_within, until};
use weir_engine::{Cause, OperatorInfo, Source};
use weir_operators::prelude::*;

fn completed(job: &JobHandle) -> usize {
    use weir_state::checkpoint::Outcome::Completed;
    job.checkpoints().iter().filter(|c| c.outcome == Completed).count()
}

fn job_in(folder: &TempDir, parallelism: usize) -> Job {
    let checkpoints = Checkpoints::to(folder.path().join("checkpoints").display().to_string());
    Job::named("asks")
        .parallelism(parallelism)
        .state(StateBackend::memory().folder(folder.path().join("state")))
        .checkpoints(checkpoints.every(Duration::from_millis(20)).retain(2).tolerate_failures(1_000))
}

/// A call that gives no answer, and counts how often it was asked.
fn silent(asked: &Arc<AtomicU64>) -> impl AsyncFunction<u64, Out = u64, Error = String> + use<> {
    let asked = asked.clone();
    move |n: u64| {
        asked.fetch_add(1, Ordering::SeqCst);
        async move {
            pending::<()>().await;
            Ok::<_, String>(n)
        }
    }
}

/// Calls of ten minutes, more of them than there is room for: checkpoints complete all the same.
#[test]
fn a_slow_call_holds_no_checkpoint() {
    for full in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let job = job_in(&folder, 1);
        let asked = Arc::<AtomicU64>::default();
        let capacity = if full { 3 } else { 1_000 };
        job.source("numbers", ScriptSource::new(vec![numbers(100)]).endless())
            .source_time(Watermarks::monotonic())
            .map_async("asks", silent(&asked), AsyncIo::ordered(capacity, Duration::from_secs(600)))
            .sink("out", NullSink);
        let running = job.start().unwrap();
        let calls = if full { 3 } else { 100 };
        until(&running, SOON, "calls", || asked.load(Ordering::SeqCst) == calls);
        let before = completed(&running);
        until(&running, SOON, "checkpoints under open calls", || completed(&running) >= before + 3);
        let began = Instant::now();
        running.cancel();
        let _ = running.wait();
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
}

#[test]
fn a_cancel_with_a_thousand_calls_under_way_is_heard_at_once() {
    let asked = Arc::<AtomicU64>::default();
    let job = Job::named("asks").parallelism(1);
    job.source("numbers", ScriptSource::new(vec![numbers(1_000)]))
        .source_time(Watermarks::monotonic())
        .map_async("asks", silent(&asked), AsyncIo::unordered(1_000, Duration::from_secs(600)))
        .sink("out", NullSink);
    let running = job.start().unwrap();
    // The input has ended: it waits for them.
    until(&running, SOON, "calls", || asked.load(Ordering::SeqCst) == 1_000);
    let began = Instant::now();
    running.cancel();
    let _ = running.wait();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// Ends the job once: fails, at a number, for the first time that it comes by.
#[derive(Clone)]
struct FailsOnce {
    at: u64,
    done: Arc<AtomicBool>,
}

impl FailsOnce {
    fn look(&self, n: u64) -> Result<u64> {
        if n >= self.at && !self.done.swap(true, Ordering::SeqCst) {
            return Err(TaskError::user("once"));
        }
        Ok(n)
    }
}

/// So many numbers, or numbers for ever. `most` learns how many there have been.
fn made(n: Option<u64>, most: &Arc<AtomicU64>) -> impl Source<Out = u64> + use<> {
    let most = most.clone();
    let make = move |i: u64, _: &mut Random| {
        most.fetch_max(i + 1, Ordering::Relaxed);
        (i, EventTime(i as i64))
    };
    Generator::new(1, n, make).rate(20_000.0)
}

/// Twice the number, after a while; now and then it is busy.
async fn twice(n: u64) -> Result<u64, String> {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    tokio::time::sleep(Duration::from_micros(n * 7919 % 20_000)).await;
    if ASKED.fetch_add(1, Ordering::Relaxed).is_multiple_of(50) { Err("busy".into()) } else { Ok(2 * n) }
}

fn assert_each_once(folder: &TempDir, n: u64) {
    let lines = visible_lines(folder.path().join("out")).unwrap();
    let mut numbers: Vec<u64> = lines.iter().map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    let expected: Vec<u64> = (0..n).map(|n| 2 * n).collect();
    assert!(numbers == expected, "{} lines, expected {}", numbers.len(), expected.len());
}

#[test]
fn a_failure_in_the_middle_gives_every_record_once() {
    const N: u64 = 6_000;
    for parallelism in [1, 2, 7] {
        for ordered in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let restart = RestartPolicy::FixedDelay { restarts: 5, delay: Duration::ZERO };
            let job = job_in(&folder, parallelism).restart(restart);
            let time = Duration::from_secs(60);
            let io = if ordered { AsyncIo::ordered(50, time) } else { AsyncIo::unordered(50, time) };
            let io = io.retry(Retry::fixed(100, Duration::from_millis(1)));
            let stream = job
                .source("numbers", made(Some(N), &Arc::default()))
                .source_time(Watermarks::bounded(Duration::from_millis(N)))
                .map_async("asks", twice, io)
                .boundary();
            // Late enough for checkpoints with calls under way to be complete.
            let fails = FailsOnce { at: N, done: Arc::default() };
            each(stream, "fails", move |n| fails.look(n))
                .sink("out", FileSink::json_lines(folder.path().join("out")));
            let running = job.start().unwrap();
            let report = running.wait_for(SOON * 3).expect("it ends").unwrap();
            assert_eq!(report.attempts, 2);
            assert_each_once(&folder, N);
        }
    }
}

/// Lives of different widths, each stopped with calls under way, the last to the end.
#[test]
fn what_is_under_way_goes_from_life_to_life_at_any_parallelism() {
    let folder = tempfile::tempdir().unwrap();
    let most = Arc::<AtomicU64>::default();
    let start = |parallelism: usize, n: Option<u64>| {
        let job = job_in(&folder, parallelism);
        let io = AsyncIo::unordered(200, Duration::from_secs(60)).retry(Retry::fixed(100, Duration::ZERO));
        job.source("numbers", made(n, &most))
            .parallelism(1)
            .source_time(Watermarks::monotonic())
            .rebalance()
            .map_async("asks", twice, io)
            .sink("out", FileSink::json_lines(folder.path().join("out")));
        let running = job.start().unwrap();
        until(&running, SOON, "a checkpoint", || completed(&running) >= 2);
        running
    };
    // Drained to go on: nothing is waited for.
    let running = start(2, None);
    running.drain(EndKind::Keep);
    running.wait_for(SOON).expect("it ends").unwrap();
    // Cut off.
    let running = start(7, None);
    running.cancel();
    let _ = running.wait_for(SOON).expect("it ends");
    let running = start(1, None);
    running.stop_with_savepoint("between").unwrap();
    let _ = running.wait_for(SOON).expect("it ends");
    let n = most.load(Ordering::Relaxed) + 5_000;
    start(3, Some(n)).wait_for(SOON).expect("it ends").unwrap();
    assert_each_once(&folder, n);
}

/// Drained to go on later with calls that never end: they are for the next life, which has them answered.
#[test]
fn a_drain_that_keeps_does_not_wait_for_the_network() {
    let folder = tempfile::tempdir().unwrap();
    let source = || ScriptSource::new(vec![numbers(50)]).endless();
    let asked = Arc::<AtomicU64>::default();
    let job = job_in(&folder, 1);
    job.source("numbers", source())
        .source_time(Watermarks::monotonic())
        .map_async("asks", silent(&asked), AsyncIo::ordered(10, Duration::from_secs(600)))
        .sink("out", NullSink);
    let running = job.start().unwrap();
    until(&running, SOON, "calls", || asked.load(Ordering::SeqCst) == 10);
    running.drain(EndKind::Keep);
    running.wait_for(SOON).expect("it ends").unwrap();

    let (job, probe) = (job_in(&folder, 2), Probe::new());
    let answered = |n: u64| async move { Ok::<_, String>(n) };
    let all = job.source("numbers", source()).source_time(Watermarks::monotonic()).map_async(
        "asks",
        answered,
        AsyncIo::ordered(10, Duration::from_secs(600)),
    );
    all.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    let running = job.start().unwrap();
    until(&running, SOON, "all of them", || probe.values().len() >= 50);
    let mut values = probe.values();
    values.sort_unstable();
    assert_eq!(values, (0..50).collect::<Vec<_>>());
    running.cancel();
    let _ = running.wait();
}

#[test]
fn a_drain_that_flushes_waits_for_answers_and_for_watermarks_behind_them() {
    let (job, probe) = (Job::named("asks").parallelism(1), Probe::new());
    let slow = |n: u64| async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok::<_, String>(n)
    };
    let asked = job
        .source("numbers", ScriptSource::new(vec![numbers(20)]))
        .source_time(Watermarks::monotonic())
        .map_async("asks", slow, AsyncIo::ordered(100, Duration::from_secs(60)));
    asked.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    run_within(job, SOON).unwrap();
    let seen = probe.seen_by(0);
    let mut watermark = i64::MIN;
    for seen in &seen {
        match seen {
            Seen::Record(n, at) => assert!(*at > watermark && *at == *n as i64, "{n} after {watermark}"),
            Seen::Watermark(at) => watermark = *at,
            _ => {}
        }
    }
    assert_eq!((probe.values(), watermark), ((0..20).collect(), i64::MAX));
}

#[test]
fn a_panic_and_an_error_name_the_operator() {
    for panics in [true, false] {
        let job = Job::named("asks").parallelism(1);
        let fails = move |n: u64| async move {
            assert!(!panics || n < 7, "cannot ask for {n}");
            if n < 7 { Ok(n) } else { Err("connection refused") }
        };
        let asked = job
            .source("numbers", ScriptSource::new(vec![numbers(100)]))
            .source_time(Watermarks::monotonic())
            .map_async("asks", fails, AsyncIo::ordered(10, Duration::from_secs(60)));
        each(asked, "after", Ok).sink("out", NullSink);
        let Err(JobError::Failed { failure, .. }) = run_within(job, SOON) else { panic!("it did not fail") };
        assert_eq!(failure.uid.as_str(), "asks");
        if panics {
            assert_eq!(failure.cause, Cause::Panicked);
            assert!(failure.message.starts_with("cannot ask for "), "{}", failure.message);
        } else {
            assert!(failure.message.ends_with("connection refused"), "{}", failure.message);
        }
    }
}

/// Timeouts go by the machine's clock in a job that has it, though nothing else happens.
#[test]
fn a_call_without_an_answer_has_its_fallback_in_time() {
    let (job, probe) = (Job::named("asks").parallelism(1), Probe::new());
    let io = AsyncIo::ordered(10, Duration::from_millis(100)).fallback(|n, _| n + 1_000);
    let asked = job
        .source("numbers", ScriptSource::new(vec![numbers(5)]).endless())
        .source_time(Watermarks::monotonic())
        .boundary()
        .map_async("asks", silent(&Arc::default()), io);
    asked.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    let running = job.start().unwrap();
    until(&running, SOON, "fallbacks", || probe.values().len() == 5);
    assert_eq!(probe.values(), [1_000, 1_001, 1_002, 1_003, 1_004]);
    running.cancel();
    let _ = running.wait();
}

/// A service that takes 20 ms for each of 200 records: with room for 10 at a time that is 400 ms, no less and not much more.
#[test]
fn the_rate_is_the_capacity_over_the_latency() {
    let at_once = Arc::new(Mutex::new((0u64, 0u64)));
    let counts = at_once.clone();
    let slow = move |n: u64| {
        let counts = counts.clone();
        async move {
            {
                let mut at_once = counts.lock().unwrap();
                at_once.0 += 1;
                at_once.1 = at_once.1.max(at_once.0);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            counts.lock().unwrap().0 -= 1;
            Ok::<_, String>(n)
        }
    };
    let job = Job::named("asks").parallelism(1);
    job.source("numbers", ScriptSource::new(vec![numbers(200)]))
        .source_time(Watermarks::monotonic())
        .map_async("asks", slow, AsyncIo::unordered(10, Duration::from_secs(60)))
        .sink("out", NullSink);
    let began = Instant::now();
    run_within(job, SOON).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(400));
    assert_eq!(at_once.lock().unwrap().1, 10);
}

#[derive(Clone)]
struct Names(Arc<Mutex<BTreeMap<u64, u64>>>);

impl Lookup<u64> for Names {
    type Value = String;
    type Error = String;
    async fn get(&self, user: &u64) -> Result<Option<String>, String> {
        *self.0.lock().unwrap().entry(*user).or_default() += 1;
        Ok((!user.is_multiple_of(3)).then(|| format!("user {user}")))
    }
}

#[test]
fn a_lookup_join_asks_once_for_each_key_and_subtask() {
    let asked = Arc::<Mutex<BTreeMap<u64, u64>>>::default();
    let (job, probe) = (Job::named("joins").parallelism(1), Probe::new());
    // One at a time, so that an answer is there before the same is asked again.
    let io = AsyncIo::ordered(1, Duration::from_secs(60)).cache(CallCache::entries(100));
    let joined = job
        .source("numbers", ScriptSource::new(vec![numbers(1_000)]))
        .source_time(Watermarks::monotonic())
        .lookup_join("names", |n| n % 10, Names(asked.clone()), io);
    joined.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    run_within(job, SOON).unwrap();
    let expected: Vec<(u64, String)> = (0..1_000)
        .filter(|n| !(n % 10u64).is_multiple_of(3))
        .map(|n| (n, format!("user {}", n % 10)))
        .collect();
    assert_eq!(probe.values(), expected);
    assert_eq!(*asked.lock().unwrap(), (0..10).map(|user| (user, 1)).collect());
}

#[test]
fn a_lookup_join_behind_a_key_by_asks_once_for_each_key() {
    let asked = Arc::<Mutex<BTreeMap<u64, u64>>>::default();
    let (job, probe) = (Job::named("joins").parallelism(3), Probe::new());
    let io = AsyncIo::ordered(1, Duration::from_secs(60)).cache(CallCache::entries(100));
    let joined = job
        .source("numbers", ScriptSource::new(vec![numbers(1_000)]))
        .source_time(Watermarks::monotonic())
        .key_by("by-user", |n| n % 10)
        .left_lookup_join("names", |n| n % 10, Names(asked.clone()), io);
    joined.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    run_within(job, SOON).unwrap();
    let mut values = probe.values();
    values.sort();
    let name = |n: u64| (!(n % 10).is_multiple_of(3)).then(|| format!("user {}", n % 10));
    assert_eq!(values, (0..1_000).map(|n| (n, name(n))).collect::<Vec<_>>());
    assert_eq!(*asked.lock().unwrap(), (0..10).map(|user| (user, 1)).collect());
}

#[test]
fn the_plan_counts_the_threads_and_refuses_what_cannot_be() {
    let asks = |io: AsyncIo<u64, u64, String>, threads: usize| {
        let job = Job::named("asks").parallelism(2).async_threads(threads);
        let script = ScriptSource::new(vec![vec![Line::Record(1u64, 0)]]);
        let asked = job.source("numbers", script).without_event_time().map_async(
            "first",
            silent(&Arc::default()),
            io.clone(),
        );
        asked.map_async("second", silent(&Arc::default()), io).sink("out", NullSink);
        job.plan()
    };
    let io = || AsyncIo::ordered(10, Duration::from_secs(1));
    assert_eq!(asks(io(), 3).unwrap().client_threads(), 3, "one pool for both");
    for (io, threads, said) in [
        (AsyncIo::ordered(0, Duration::from_secs(1)), 2, "capacity is 0"),
        (AsyncIo::ordered(1, Duration::ZERO), 2, "timeout is 0ns"),
        (io(), 0, "threads"),
    ] {
        let error = asks(io, threads).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}
