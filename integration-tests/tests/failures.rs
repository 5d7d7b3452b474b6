//! What fails is named: operator, subtask, message; what only went down with it is not.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use weir_engine::testkit::{Line, ManualClock, NullSink, ScriptSource, run_within, until};
use weir_engine::*;

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

/// Panics where it is told to.
#[derive(Clone, Copy, PartialEq)]
enum Where {
    Open,
    Process,
    BatchEnd,
    Quiet,
    Watermark,
    Snapshot,
    End,
    Close,
}

#[derive(Clone)]
struct Panics(Where);

impl Panics {
    fn at(&self, here: Where) {
        assert!(self.0 != here, "told to");
    }
}

impl Operator<u64> for Panics {
    type Out = u64;
    fn open(&mut self, _: &OperatorContext) -> Result<()> {
        self.at(Where::Open);
        Ok(())
    }
    fn process(&mut self, r: Record<u64>, out: &mut impl Collector<u64>) -> Result<()> {
        self.at(Where::Process);
        out.emit(r)
    }
    fn on_batch_end(&mut self, _: &mut impl Collector<u64>) -> Result<()> {
        self.at(Where::BatchEnd);
        Ok(())
    }
    fn on_quiet(&mut self, _: &mut impl Collector<u64>) -> Result<()> {
        self.at(Where::Quiet);
        Ok(())
    }
    fn on_watermark(&mut self, _: Watermark, _: &mut impl Collector<u64>) -> Result<()> {
        self.at(Where::Watermark);
        Ok(())
    }
    fn snapshot(&mut self, _: Barrier, _: &mut weir_engine::Snapshot) -> Result<()> {
        self.at(Where::Snapshot);
        Ok(())
    }
    fn on_end(&mut self, _: EndKind, _: &mut impl Collector<u64>) -> Result<()> {
        self.at(Where::End);
        Ok(())
    }
    fn close(&mut self, _: Closing) {
        self.at(Where::Close);
    }
}

#[test]
fn a_panic_anywhere_in_an_operator_names_it() {
    use Where::*;
    for here in [Open, Process, BatchEnd, Quiet, Watermark, Snapshot, End] {
        let job = Job::named("where").parallelism(2);
        let script = vec![
            Line::Record(1, 1),
            Line::Barrier(1),
            Line::Pause(Duration::from_millis(30)),
            Line::Record(2, 2),
        ];
        let s = job.source("numbers", ScriptSource::new(vec![script])).source_time(Watermarks::monotonic());
        let s = each(s, "before", Ok).transform(OperatorInfo::named("panics", "culprit"), Panics(here));
        each(s, "after", Ok).sink("null", NullSink);
        let Err(JobError::Failed { failure, .. }) = run_within(job, SOON) else { panic!("it did not fail") };
        assert_eq!((failure.uid.as_str(), failure.cause), ("culprit", Cause::Panicked));
        assert_eq!((failure.message.as_str(), failure.at_start), ("told to", here == Open));
    }
}

#[test]
fn a_panic_while_closing_neither_fails_a_job_nor_hides_a_failure_nor_keeps_others_from_closing() {
    for fails in [false, true] {
        let closed = Arc::default();
        // The sink has run, not only opened, before anything fails: else it may be told that it never ran.
        let wrote = Arc::new(std::sync::Barrier::new(if fails { 2 } else { 1 }));
        let (job, door) =
            (Job::named("closing").parallelism(1), Closes(Arc::clone(&wrote), Arc::clone(&closed)));
        let script = vec![Line::Record(1u64, 1), Line::Pause(Duration::from_millis(1)), Line::Record(2, 2)];
        let s = job.source("numbers", ScriptSource::new(vec![script])).source_time(Watermarks::monotonic());
        let s = s.transform(OperatorInfo::named("panics", "closer"), Panics(Where::Close));
        let s = each(s, "fails", move |n| {
            if n < 2 || !fails {
                return Ok(n);
            }
            wrote.wait();
            Err(TaskError::user("the cause"))
        });
        s.rebalance().sink("door", door);
        let result = run_within(job, SOON);
        assert_eq!(result.is_err(), fails);
        if let Err(JobError::Failed { failure, .. }) = result {
            assert_eq!((failure.uid.as_str(), failure.message.as_str()), ("fails", "the cause"));
        }
        assert_eq!(*closed.lock().unwrap(), [if fails { Closing::Stopped } else { Closing::Ended }]);
    }
}

/// Meets another at the barrier with all it writes, and notes how it was closed.
#[derive(Clone)]
struct Closes(Arc<std::sync::Barrier>, Arc<Mutex<Vec<Closing>>>);

impl<T: Data> Sink<T> for Closes {
    fn write(&mut self, batch: &mut Vec<Record<T>>) -> Result<()> {
        batch.clear();
        self.0.wait();
        Ok(())
    }
    fn close(&mut self, outcome: Closing) {
        self.1.lock().unwrap().push(outcome);
    }
}

#[test]
fn streams_of_two_jobs_do_not_join() {
    let (one, other) = (Job::named("one"), Job::named("other"));
    let a = one.source("a", ScriptSource::of([(1u64, 1)])).source_time(Watermarks::monotonic());
    let b = other.source("b", ScriptSource::of([(1u64, 1)])).source_time(Watermarks::monotonic());
    a.union(b).sink("null", NullSink);
    for job in [one, other] {
        let error = job.start().unwrap_err().to_string();
        assert!(error.contains("\"one\"") && error.contains("\"other\""), "{error}");
    }
}

#[test]
fn what_is_written_after_the_start_belongs_to_nothing() {
    let restart = RestartPolicy::FixedDelay { restarts: 1, delay: Duration::from_millis(200) };
    let job = Job::named("late").parallelism(1).restart(restart);
    let script = vec![Line::Record(1u64, 1), Line::Fail("again")];
    let shared =
        job.source("numbers", ScriptSource::new(vec![script])).source_time(Watermarks::monotonic()).shared();
    shared.stream().sink("null", NullSink);
    let handle = job.start().unwrap();
    shared.stream().sink("too late", NullSink);
    let error = handle.wait_for(Duration::MAX).expect("a wait without end ends with the job").unwrap_err();
    assert!(matches!(error, JobError::Failed { ref history, .. } if history.len() == 2), "{error}");
}

/// A clock that panics when it is told to.
#[derive(Debug)]
struct BrokenClock(AtomicBool, SharedClock);

impl Clock for BrokenClock {
    fn now_ms(&self) -> i64 {
        assert!(!self.0.load(Ordering::Relaxed), "the clock is broken");
        self.1.now_ms()
    }
    fn elapsed(&self) -> Duration {
        self.1.elapsed()
    }
}

#[test]
fn a_dead_control_thread_is_told() {
    let clock = Arc::new(BrokenClock(AtomicBool::new(false), SystemClock::shared()));
    let job = Job::named("broken").parallelism(1).clock(clock.clone());
    let s =
        job.source("numbers", ScriptSource::of([(1u64, 1)]).endless()).source_time(Watermarks::monotonic());
    s.sink("null", NullSink);
    let handle = job.start().unwrap();
    until(&handle, SOON, "running", || handle.status().state == JobState::Running);
    clock.0.store(true, Ordering::Relaxed);
    let error = handle.wait_for(SOON).expect("whoever waits is told").unwrap_err();
    assert!(matches!(error, JobError::Control { .. }), "{error}");
    assert_eq!(handle.status().state, JobState::Failed);
}

#[test]
fn the_least_event_time_and_the_least_clock_kill_nothing() {
    let clock = ManualClock::at(i64::MIN);
    let job = Job::named("least").parallelism(1).clock(Arc::new(clock.clone()));
    let s = job.source("numbers", ScriptSource::of([(i64::MIN, 0), (i64::MAX - 1, 0)]).endless());
    s.event_time(|n| *n, Watermarks::monotonic().no_future_limit()).sink("null", NullSink);
    let handle = job.start().unwrap();
    until(&handle, SOON, "both", || handle.tasks().iter().any(|t| t.records_in == 2));
    clock.jump_to(i64::MAX);
    std::thread::park_timeout(Duration::from_millis(1200));
    assert_eq!(handle.status().state, JobState::Running);
    handle.drain(EndKind::Keep);
    handle.wait().unwrap();
}
