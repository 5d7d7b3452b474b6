//! Whole jobs that wait for the clock: a processing timer fires close to its time, whatever the input does meanwhile.

use std::sync::Arc;
use std::time::Duration;

use weir_engine::testkit::{Line, ManualClock, NullSink, Probe, ScriptSource, until};
use weir_engine::{
    Checkpoints, Collector, Job, JobHandle, OperatorContext, OperatorInfo, Record, Result, SharedClock,
    Source, SourceBatch, SourceStatus, SplitId,
};
use weir_operators::prelude::*;

const SOON: Duration = Duration::from_secs(30);
/// Another test may have the processor for that long.
const CLOSE_MS: i64 = 1_000;

/// Sets a timer so many milliseconds ahead, once per key, and tells when it was set for and when it fired.
#[derive(Clone)]
struct After(i64);

impl ProcessFunction<u64, u64> for After {
    type Out = (i64, i64);
    type State = bool;
    fn process(
        &mut self,
        _: Record<u64>,
        cx: &mut KeyedContext<'_, u64, bool>,
        _: &mut impl Collector<(i64, i64)>,
    ) -> Result<()> {
        if !std::mem::replace(cx.state()?, true) {
            cx.set_processing_timer(cx.now_ms() + self.0);
        }
        Ok(())
    }
    fn on_processing_timer(
        &mut self,
        time_ms: i64,
        cx: &mut KeyedContext<'_, u64, bool>,
        out: &mut impl Collector<(i64, i64)>,
    ) -> Result<()> {
        out.emit(Record::new((time_ms, cx.now_ms()), weir_engine::EventTime::NONE))
    }
}

/// What fires of the job with this source.
fn start(job: Job, source: impl Source<Out = u64>, after: Duration) -> (JobHandle, Probe<(i64, i64)>) {
    let probe = Probe::new();
    job.source("in", source)
        .without_event_time()
        .key_by("by-parity", |n| n % 2)
        .process("after", After(after.as_millis() as i64))
        .transform(OperatorInfo::stateless("look"), probe.clone())
        .sink("out", NullSink);
    (job.start().expect("it starts"), probe)
}

fn end(running: &JobHandle) {
    running.cancel();
    assert!(running.wait().is_err(), "cancelled");
}

fn has_read(running: &JobHandle, records: u64) -> bool {
    running.tasks().iter().any(|t| t.task.chain.as_str() == "after" && t.records_in >= records)
}

/// One record, then silence.
fn one_record() -> ScriptSource<u64> {
    ScriptSource::new(vec![vec![Line::Record(1, 0)]]).endless()
}

#[test]
fn a_processing_timer_of_a_quiet_task_fires_close_to_its_time() {
    let job = Job::named("quiet").parallelism(1);
    let (running, fired) = start(job, one_record(), Duration::from_millis(300));
    until(&running, SOON, "the timer", || !fired.values().is_empty());
    let (set, now) = fired.values()[0];
    assert!((0..CLOSE_MS).contains(&(now - set)), "{} ms late", now - set);
    end(&running);
}

/// Numbers without a pause.
#[derive(Clone)]
struct Busy(u64);

impl Source for Busy {
    type Out = u64;
    fn open(&mut self, _: &OperatorContext) -> Result<()> {
        Ok(())
    }
    fn poll(&mut self, out: &mut SourceBatch<u64>, _: Duration) -> Result<SourceStatus> {
        while out.room() > 0 {
            self.0 += 1;
            out.push(SplitId(0), self.0, weir_engine::EventTime::NONE);
        }
        Ok(SourceStatus::More)
    }
}

#[test]
fn a_processing_timer_of_a_busy_task_fires_close_to_its_time() {
    let job = Job::named("busy").parallelism(1);
    let (running, fired) = start(job, Busy(0), Duration::from_millis(200));
    until(&running, SOON, "both timers", || fired.values().len() == 2);
    for (set, now) in fired.values() {
        assert!((0..CLOSE_MS).contains(&(now - set)), "{} ms late", now - set);
    }
    end(&running);
}

#[test]
fn a_clock_that_is_moved_by_hand_fires_what_is_due_by_it() {
    let clock = ManualClock::at(5_000);
    let job = Job::named("by-hand").parallelism(1).clock(Arc::new(clock.clone()));
    let (running, fired) = start(job, one_record(), Duration::from_secs(3_600));
    until(&running, SOON, "the record", || has_read(&running, 1));
    clock.advance(Duration::from_millis(3_599_999));
    // Two looks at the clock may go by, and nothing comes of them.
    assert!(running.wait_for(Duration::from_millis(120)).is_none());
    assert_eq!(fired.values(), []);
    clock.advance(Duration::from_millis(1));
    until(&running, SOON, "the timer", || !fired.values().is_empty());
    assert_eq!(fired.values(), [(3_605_000, 3_605_000)]);
    end(&running);
}

#[test]
fn e22_an_overdue_processing_timer_fires_after_a_restore_without_any_input() {
    let job = |now: i64| {
        let clock: SharedClock = Arc::new(ManualClock::at(now));
        let checkpoints = Checkpoints::to("memory://processing-timers").every(Duration::from_secs(3_600));
        Job::named("overdue").parallelism(1).clock(clock).checkpoints(checkpoints)
    };
    let (running, fired) = start(job(1_000), one_record(), Duration::from_secs(60));
    until(&running, SOON, "the record", || has_read(&running, 1));
    running.checkpoint().expect("a checkpoint");
    end(&running);
    assert_eq!(fired.values(), []);
    let (again, fired) = start(job(200_000), one_record(), Duration::from_secs(60));
    until(&again, SOON, "the timer", || !fired.values().is_empty());
    assert_eq!(fired.values(), [(61_000, 200_000)]);
    assert!(!has_read(&again, 1), "nothing was read again");
    end(&again);
}
