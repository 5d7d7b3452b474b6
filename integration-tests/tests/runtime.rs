//! Whole jobs on the runtime: routing, barriers, ends, drains, cancels, panics; nothing hangs, nothing is left behind.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weir_engine::testkit::{Line, NullSink, Probe, ScriptSource, Seen, run_within, until};
use weir_engine::*;

const SOON: Duration = Duration::from_secs(20);

/// Calls a closure per record; a one-line operator for these tests.
#[derive(Clone)]
struct Each<F>(F);

impl<T: Data, U: Data, F: FnMut(T) -> Result<U> + Clone + Send + 'static> Operator<T> for Each<F> {
    type Out = U;
    fn process(&mut self, r: Record<T>, out: &mut impl Collector<U>) -> Result<()> {
        let Record { value, time } = r;
        let value = (self.0)(value)?;
        out.emit(Record { value, time })
    }
}

fn each<T: Data, U: Data, P: Pipe<Out = T>>(
    s: Stream<T, P>,
    name: &str,
    f: impl FnMut(T) -> Result<U> + Clone + Send + 'static,
) -> Stream<U, Then<P, T, impl Operator<T, Out = U>>> {
    s.transform(OperatorInfo::named("each", name), Each(f))
}

fn tap<T: Data, P: Pipe<Out = T>>(
    s: Stream<T, P>,
    name: &str,
    probe: &Probe<T>,
) -> Stream<T, Then<P, T, Probe<T>>> {
    s.transform(OperatorInfo::named("probe", name), probe.clone())
}

fn numbers(n: u64) -> Vec<Line<u64>> {
    (0..n).map(|i| Line::Record(i, i as i64)).collect()
}

/// A sink that waits until it is let go.
#[derive(Clone)]
struct Dam {
    open: Arc<AtomicBool>,
    cx: Option<OperatorContext>,
}

impl Dam {
    fn new() -> Self {
        Dam { open: Arc::default(), cx: None }
    }
}

impl<T: Data> Sink<T> for Dam {
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.cx = Some(cx.clone());
        Ok(())
    }
    fn write(&mut self, batch: &mut Vec<Record<T>>) -> Result<()> {
        while !self.open.load(Ordering::Relaxed) {
            self.cx.as_ref().unwrap().wait(Duration::from_millis(5))?;
        }
        batch.clear();
        Ok(())
    }
}

#[test]
fn every_record_arrives_once_and_keys_stay_together() {
    for (parallelism, chaining) in [(1, true), (2, true), (3, false), (7, true)] {
        let probe = Probe::new();
        let job = Job::named("keys").parallelism(parallelism).chaining(chaining);
        let scripts = (0..3).map(|_| numbers(5000)).collect();
        let s = job.source("numbers", ScriptSource::new(scripts)).source_time(Watermarks::monotonic());
        let keyed = each(s, "same", Ok).key_by("by-rest", |n| n % 100);
        let s = keyed
            .transform(OperatorInfo::named("each", "value"), Each(|k: Keyed<u64, u64>| Ok((k.key, k.value))));
        tap(s, "probe", &probe).sink("null", NullSink);
        run_within(job, SOON).unwrap();
        let mut owner = vec![None; 100];
        let mut n = 0;
        for (subtask, seen) in probe.seen() {
            if let Seen::Record((key, _), _) = seen {
                n += 1;
                assert_eq!(*owner[key as usize].get_or_insert(subtask), subtask);
            }
        }
        assert_eq!(n, 5000 * parallelism.min(3));
    }
}

#[test]
fn watermarks_rise_to_the_end_and_come_before_it() {
    let probe = Probe::new();
    let job = Job::named("w").parallelism(2);
    let s = job.source("numbers", ScriptSource::new(vec![numbers(3000), numbers(10)]));
    tap(s.source_time(Watermarks::bounded(Duration::from_millis(5))).rebalance(), "probe", &probe)
        .sink("null", NullSink);
    run_within(job, SOON).unwrap();
    for subtask in 0..2 {
        let seen = probe.seen_by(subtask);
        let marks: Vec<i64> =
            seen.iter().filter_map(|s| if let Seen::Watermark(w) = s { Some(*w) } else { None }).collect();
        assert!(marks.is_sorted() && marks.last() == Some(&i64::MAX), "{marks:?}");
        assert_eq!(seen[seen.len() - 2..], [Seen::End(EndKind::Flush), Seen::Closed(Closing::Ended)]);
    }
}

#[test]
fn a_panic_names_operator_subtask_and_message_and_no_echo() {
    let job = Job::named("boom").parallelism(2).chaining(false);
    let scripts = vec![numbers(100_000), numbers(100_000)];
    let s = job.source("numbers", ScriptSource::new(scripts)).source_time(Watermarks::monotonic());
    let s = each(s, "before", Ok).rebalance();
    let s = each(s, "culprit", |n: u64| if n == 77_777 { panic!("cannot stand {n}") } else { Ok(n) });
    each(s, "after", Ok).sink("null", NullSink);
    let Err(JobError::Failed { failure, .. }) = run_within(job, SOON) else { panic!("it did not fail") };
    assert_eq!((failure.uid.as_str(), failure.cause), ("culprit", Cause::Panicked));
    assert_eq!(failure.message, "cannot stand 77777");
    assert!(failure.also.iter().all(|(_, m)| m == "cannot stand 77777"));
}

#[test]
fn a_fused_panic_and_a_fused_error_blame_the_right_operator() {
    for panics in [true, false] {
        let job = Job::named("fused").parallelism(1);
        let s = job.source("numbers", ScriptSource::of([(1u64, 1)])).source_time(Watermarks::monotonic());
        let s = each(s, "first", Ok);
        let s = each(s, "second", move |n: u64| {
            if panics {
                panic!("no")
            }
            Err::<u64, _>(TaskError::user(format!("no {n}")))
        });
        each(s, "third", Ok).sink("null", NullSink);
        let Err(JobError::Failed { failure, .. }) = run_within(job, SOON) else { panic!("it did not fail") };
        assert_eq!(failure.uid.as_str(), "second");
    }
}

#[test]
fn a_source_error_and_a_sink_error_are_named() {
    let job = Job::named("src").parallelism(1);
    let s = job.source("reader", ScriptSource::<u64>::new(vec![vec![Line::Fail("disk gone")]]));
    s.source_time(Watermarks::monotonic()).sink("null", NullSink);
    let e = run_within(job, SOON).unwrap_err();
    assert_eq!(e.to_string(), "run: job \"src\": operator \"reader\" subtask 0 failed: disk gone");
}

#[test]
fn diamonds_of_depth_one_cut_exactly_at_ten_thousand_barriers() {
    const BARRIERS: u64 = 10_000;
    // Two sources; each record says which source it is from and how many of it came before.
    let script = |source: u64| {
        let mut lines = Vec::new();
        for b in 1..=BARRIERS {
            for k in 0..(b % 3) {
                lines.push(Line::Record((source, b * 10 + k), b as i64));
            }
            lines.push(Line::Barrier(b));
        }
        lines
    };
    let (left, right, joined) = (Probe::new(), Probe::new(), Probe::new());
    let job = Job::named("diamond").parallelism(2).channel_depth(1);
    let source = job.source("two", ScriptSource::new(vec![script(0), script(1)]));
    let fork = source.source_time(Watermarks::monotonic()).shared();
    let b = tap(fork.stream(), "left", &left).rebalance();
    let c = tap(fork.stream(), "right", &right);
    let keyed = b.union(c).key_by("by-both", |v: &(u64, u64)| *v);
    let s = keyed.transform(
        OperatorInfo::named("each", "value"),
        Each(|k: Keyed<(u64, u64), (u64, u64)>| Ok(k.value)),
    );
    tap(s, "joined", &joined).sink("null", NullSink);
    run_within(job, Duration::from_secs(120)).unwrap();
    for subtask in 0..2 {
        // At each cut: exactly the records before the barrier, each twice (once per side), none from behind it.
        let (mut before, mut barrier) = (0, 0);
        for seen in joined.seen_by(subtask) {
            match seen {
                Seen::Record((_, n), _) => {
                    assert_eq!(n / 10, barrier + 1, "a record from the other side of barrier {barrier}");
                    before += 1;
                }
                Seen::Barrier(b) => {
                    barrier += 1;
                    assert_eq!(b, barrier);
                }
                _ => {}
            }
        }
        assert_eq!(barrier, BARRIERS);
        assert!(before > 0);
    }
    let total = joined.values().len() as u64;
    let per_source: u64 = (1..=BARRIERS).map(|b| b % 3).sum();
    assert_eq!(total, per_source * 2 * 2);
}

#[test]
fn barriers_from_outside_reach_every_sink_while_data_flows() {
    let probe = Probe::new();
    let job = Job::named("inject").parallelism(2);
    let s = job.source("numbers", ScriptSource::new(vec![numbers(10), numbers(10)]).endless());
    tap(s.source_time(Watermarks::monotonic()).rebalance(), "probe", &probe).sink("null", NullSink);
    let handle = job.start().unwrap();
    until(&handle, SOON, "running", || handle.status().state == JobState::Running);
    for id in 1..=50 {
        handle.inject_barrier(Barrier { checkpoint: CheckpointId(id) });
        until(&handle, SOON, "the barrier", || (0..2).all(|i| probe.seen_by(i).contains(&Seen::Barrier(id))));
    }
    handle.cancel();
    assert_eq!(handle.wait().unwrap_err(), JobError::Cancelled { job: "inject".into() });
}

#[test]
fn cancel_ends_every_wait_with_full_channels() {
    let job = Job::named("full").parallelism(2).channel_depth(1).chaining(false);
    let s = job.source("numbers", ScriptSource::new(vec![numbers(500_000), numbers(500_000)]));
    let s = each(s.source_time(Watermarks::monotonic()), "a", Ok).rebalance();
    each(s, "b", Ok).sink("dam", Dam::new());
    let handle = job.start().unwrap();
    until(&handle, SOON, "full channels", || {
        handle.tasks().iter().filter(|t| matches!(t.activity.0, Activity::Blocked(_))).count() == 8
    });
    let asked = Instant::now();
    handle.cancel();
    assert_eq!(handle.wait().unwrap_err(), JobError::Cancelled { job: "full".into() });
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
}

#[test]
fn a_drain_with_full_channels_ends_when_the_sink_is_let_go() {
    for kind in [EndKind::Keep, EndKind::Flush] {
        let (dam, probe) = (Dam::new(), Probe::new());
        let job = Job::named("drain").parallelism(2).channel_depth(1).chaining(false);
        let s = job.source("numbers", ScriptSource::new(vec![numbers(50_000), numbers(50_000)]).endless());
        tap(s.source_time(Watermarks::monotonic()).rebalance(), "probe", &probe).sink("dam", dam.clone());
        let handle = job.start().unwrap();
        until(&handle, SOON, "backpressure", || {
            handle
                .tasks()
                .iter()
                .any(|t| t.task.chain.as_str() == "numbers" && matches!(t.activity.0, Activity::Blocked(_)))
        });
        handle.drain(kind);
        assert!(handle.wait_for(Duration::from_millis(200)).is_none());
        assert_eq!(handle.status().state, JobState::Draining);
        dam.open.store(true, Ordering::Relaxed);
        let report = handle.wait().unwrap();
        let read: u64 =
            report.tasks.iter().filter(|t| t.task.chain.as_str() == "numbers").map(|t| t.records_in).sum();
        assert_eq!(probe.values().len() as u64, read);
        assert!(probe.seen().iter().any(|(_, s)| *s == Seen::End(kind)));
        assert_eq!(probe.seen().iter().any(|(_, s)| *s == Seen::Watermark(i64::MAX)), kind == EndKind::Flush);
    }
}

#[test]
fn a_drain_that_takes_too_long_says_what_holds_it() {
    let job = Job::named("slow").parallelism(1).drain_timeout(Duration::from_millis(300));
    let s = job.source("numbers", ScriptSource::new(vec![numbers(100)]).endless());
    s.source_time(Watermarks::monotonic()).rebalance().sink("dam", Dam::new());
    let handle = job.start().unwrap();
    until(&handle, SOON, "the dam", || {
        handle.tasks().iter().any(|t| matches!(t.activity.0, Activity::Blocked(_)))
    });
    handle.drain(EndKind::Keep);
    let Err(JobError::DrainTimedOut { held_by, .. }) = handle.wait() else { panic!("it drained") };
    assert!(held_by.contains("dam#0 waiting for dam"), "{held_by}");
}

#[test]
fn a_task_that_never_returns_is_given_up_and_named() {
    let release = Arc::new(AtomicBool::new(false));
    let stop = release.clone();
    let job = Job::named("stuck").parallelism(1).cancel_timeout(Duration::from_millis(300));
    let s = job.source("numbers", ScriptSource::of([(1u64, 1)])).source_time(Watermarks::monotonic());
    let s = each(s, "spins", move |n| {
        while !stop.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        Ok(n)
    });
    s.sink("null", NullSink);
    let handle = job.start().unwrap();
    until(&handle, SOON, "busy", || handle.tasks().iter().any(|t| t.activity.0 == Activity::Busy));
    handle.cancel();
    let Err(JobError::Stuck { held_by, .. }) = handle.wait() else { panic!("it heard") };
    assert!(held_by.contains("numbers#0 in operator code"), "{held_by}");
    release.store(true, Ordering::Relaxed);
}

/// Refuses to open, or records how it was closed.
#[derive(Clone)]
struct Door {
    opens: bool,
    closed: Arc<Mutex<Vec<Closing>>>,
}

impl<T: Data> Sink<T> for Door {
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        if self.opens || cx.subtask() == 0 { Ok(()) } else { Err(TaskError::external("no such door")) }
    }
    fn write(&mut self, _: &mut Vec<Record<T>>) -> Result<()> {
        unreachable!("no record flows before every operator is open")
    }
    fn close(&mut self, outcome: Closing) {
        self.closed.lock().unwrap().push(outcome);
    }
}

#[test]
fn a_start_that_fails_half_way_closes_what_it_opened() {
    let closed = Arc::default();
    let job = Job::named("half").parallelism(2);
    let s = job.source("numbers", ScriptSource::new(vec![numbers(10), numbers(10)]));
    s.source_time(Watermarks::monotonic()).sink("door", Door { opens: false, closed: Arc::clone(&closed) });
    let e = run_within(job, SOON).unwrap_err();
    assert_eq!(
        e.to_string(),
        "deploy: job \"half\": operator \"door\" subtask 1 could not open: no such door"
    );
    assert_eq!(*closed.lock().unwrap(), [Closing::NeverRan]);
}

#[test]
fn restarts_as_often_as_allowed_and_keeps_the_history() {
    let job = Job::named("again")
        .parallelism(1)
        .restart(RestartPolicy::FixedDelay { restarts: 2, delay: Duration::from_millis(10) });
    let s = job
        .source("numbers", ScriptSource::new(vec![vec![Line::Record(1u64, 1), Line::Panic("third rail")]]));
    s.source_time(Watermarks::monotonic()).sink("null", NullSink);
    let handle = job.start().unwrap();
    let Err(JobError::Failed { history, failure, .. }) = handle.wait() else { panic!("it did not fail") };
    assert_eq!((history.len(), failure.attempt), (3, AttemptId(3)));
    let states: Vec<_> = handle.history().iter().map(|s| s.state).collect();
    assert_eq!(states.iter().filter(|s| **s == JobState::Suspended).count(), 2);
    assert_eq!(states.last(), Some(&JobState::Failed));
    assert!(handle.status().why.contains("third rail"));
}

#[test]
fn a_rate_cap_holds() {
    let job = Job::named("rate").parallelism(2);
    let s =
        job.source("numbers", ScriptSource::new(vec![numbers(100_000), numbers(100_000)])).max_rate(2000.0);
    s.source_time(Watermarks::monotonic()).sink("null", NullSink);
    let handle = job.start().unwrap();
    until(&handle, SOON, "running", || handle.status().state == JobState::Running);
    let began = Instant::now();
    assert!(handle.wait_for(Duration::from_millis(1500)).is_none());
    let read: u64 = handle.tasks().iter().map(|t| t.records_in).sum();
    let most = began.elapsed().as_secs_f64() * 2000.0 + 250.0;
    handle.cancel();
    let _ = handle.wait();
    assert!(read as f64 <= most && read > 1000, "{read} of at most {most}");
}

#[test]
fn broadcast_gives_every_record_to_every_subtask() {
    let probe = Probe::new();
    let job = Job::named("all").parallelism(3);
    let s = job
        .source("numbers", ScriptSource::new(vec![numbers(1000)]))
        .parallelism(1)
        .source_time(Watermarks::monotonic());
    tap(s.broadcast(), "probe", &probe).sink("null", NullSink);
    run_within(job, SOON).unwrap();
    for i in 0..3 {
        let n = probe.seen_by(i).iter().filter(|s| matches!(s, Seen::Record(..))).count();
        assert_eq!(n, 1000);
    }
}
