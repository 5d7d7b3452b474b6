//! A cancel is heard while a watermark fires any number of windows or timers and nothing of what they give leaves the task.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_engine::testkit::{NullSink, until};
use weir_engine::{
    Collector, Data, EventTime, Job, OperatorContext, Pipe, Record, Result, Source, SourceBatch,
    SourceStatus, SplitId, Stream, Watermarks,
};
use weir_operators::prelude::*;

const MILLION: u64 = 1_000_000;
/// Fewer where each is a window of its own: they take longer to open, and this long enough to fire.
const WINDOWS: u64 = 100_000;
const SOON: Duration = Duration::from_secs(120);

/// So many records, one key each and `step` milliseconds apart; then one so late that everything is due; then nothing.
#[derive(Clone)]
struct Many {
    at: u64,
    records: u64,
    step: u64,
}

impl Many {
    fn records(records: u64, step: u64) -> Self {
        Many { at: 0, records, step }
    }
}

impl Source for Many {
    type Out = u64;
    fn open(&mut self, _: &OperatorContext) -> Result<()> {
        Ok(())
    }
    fn poll(&mut self, out: &mut SourceBatch<u64>, _: Duration) -> Result<SourceStatus> {
        let split = SplitId(0);
        if self.at == 0 {
            out.split_started(split);
        }
        while out.room() > 0 && self.at < self.records {
            out.push(split, self.at, EventTime((self.at * self.step) as i64));
            self.at += 1;
        }
        if out.room() > 0 && self.at == self.records {
            out.push(split, self.at, EventTime(i64::MAX / 4));
            self.at += 1;
        }
        Ok(if out.is_empty() { SourceStatus::Idle(Duration::from_secs(1)) } else { SourceStatus::More })
    }
}

/// Lets `fires` be given slowly, one after the other, and cancels the job in the midst of it.
fn cancelled_while_firing<T: Data, P: Pipe<Out = T>>(job: Job, fires: Stream<T, P>, of: u64) {
    let fired = Arc::new(AtomicU64::new(0));
    let seen = fired.clone();
    let slowly = move |_: &T| {
        seen.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(20) {
            std::hint::spin_loop();
        }
        false
    };
    fires.filter(slowly).sink("out", NullSink);
    let running = job.start().expect("it starts");
    until(&running, SOON, "the firing", || fired.load(Ordering::Relaxed) > 1_000);
    let began = Instant::now();
    running.cancel();
    assert!(running.wait().is_err(), "cancelled");
    let (took, fired) = (began.elapsed(), fired.load(Ordering::Relaxed));
    assert!(took < Duration::from_secs(1), "heard after {took:?}");
    assert!(fired < of, "it was still firing");
}

fn job(name: &str) -> Job {
    Job::named(name).parallelism(1).cancel_timeout(Duration::from_secs(60))
}

#[test]
fn a_cancel_is_heard_while_one_window_gives_a_million_keys() {
    let job = job("keys");
    let counts = job
        .source("in", Many::records(MILLION, 0))
        .source_time(Watermarks::monotonic().no_future_limit())
        .key_by("by-number", |n| *n)
        .window(Tumbling::of(seconds(1)))
        .aggregate("counts", count());
    cancelled_while_firing(job, counts, MILLION);
}

#[test]
fn a_cancel_is_heard_while_windows_of_one_key_each_fire() {
    let job = job("windows");
    // So far behind that no window is over before the last record comes.
    let watermarks = Watermarks::bounded(Duration::from_millis(2_000 * WINDOWS)).no_future_limit();
    let counts = job
        .source("in", Many::records(WINDOWS, 1_000))
        .source_time(watermarks)
        .key_by("by-number", |n| *n)
        .window(Tumbling::of(seconds(1)))
        .aggregate("counts", count());
    cancelled_while_firing(job, counts, WINDOWS);
}

/// A timer per key.
#[derive(Clone)]
struct Timer;

impl ProcessFunction<u64, u64> for Timer {
    type Out = u64;
    type State = ();
    fn process(
        &mut self,
        record: Record<u64>,
        cx: &mut KeyedContext<'_, u64, ()>,
        _: &mut impl Collector<u64>,
    ) -> Result<()> {
        cx.set_timer(EventTime(record.time.0 + 1_000));
        Ok(())
    }
    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, u64, ()>,
        out: &mut impl Collector<u64>,
    ) -> Result<()> {
        out.emit(Record::new(*cx.key(), time))
    }
}

#[test]
fn a_cancel_is_heard_while_a_million_timers_fire() {
    let job = job("timers");
    let fired = job
        .source("in", Many::records(MILLION, 0))
        .source_time(Watermarks::monotonic().no_future_limit())
        .key_by("by-number", |n| *n)
        .process("timer", Timer);
    cancelled_while_firing(job, fired, MILLION);
}
