//! Watermark strategies in whole jobs: what leaves downstream, and when.

use std::sync::Arc;

use weir_engine::testkit::{Line, ManualClock, NullSink, Probe, ScriptSource, run_within, until};
use weir_engine::{OperatorInfo, WatermarkGenerator, prelude::*};

use crate::feed::*;

/// Runs `times`, each followed by a pause, so that every watermark leaves; gives what leaves.
fn leaving(times: &[i64], watermarks: Watermarks<impl WatermarkGenerator<u64>>) -> Vec<i64> {
    let (job, probe) = (Job::named("leaving").parallelism(1), Probe::new());
    let lines = times.iter().flat_map(|t| [Line::Record(0, *t), Line::Pause(ms(1))]);
    let numbers = job.source("in", ScriptSource::new(vec![lines.collect()])).source_time(watermarks);
    numbers.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    run_within(job, SOON).expect("it runs");
    crate::feed::watermarks(&probe, 0)
}

#[test]
fn e08_a_watermark_that_goes_back_stalls_nothing() {
    let says = Watermarks::per_record(|r: &Record<u64>| Some(Watermark(r.time.0)));
    assert_eq!(leaving(&[10, 9, 11, 10, 12], says), [10, 11, 12, i64::MAX]);
}

#[test]
fn e10_times_before_the_epoch_are_times_like_others() {
    assert_eq!(leaving(&[-12, -10, -1, 0], Watermarks::monotonic()), [-13, -11, -2, -1, i64::MAX]);
    assert_eq!(leaving(&[i64::MIN + 1, -10], Watermarks::bounded(ms(5))), [-16, i64::MAX]);
}

#[test]
fn bounded_disorder_keeps_its_distance_and_the_end_closes_it() {
    assert_eq!(leaving(&[100, 90, 120], Watermarks::bounded(ms(10))), [89, 109, i64::MAX]);
}

#[test]
fn marks_in_the_stream_alone_move_event_time() {
    let marks = Watermarks::per_record(|r: &Record<u64>| {
        (r.time.0 % 10 == 0).then_some(r.time).map(|t| Watermark(t.0))
    });
    assert_eq!(leaving(&[3, 10, 17, 12, 20], marks), [10, 20, i64::MAX]);
}

/// Nothing older than a second is expected, whatever the records say.
#[derive(Clone)]
struct Punctual;
impl WatermarkGenerator<u64> for Punctual {
    fn on_records(&mut self, _: &[Record<u64>], _: EventTime) -> Option<Watermark> {
        None
    }
    fn on_clock(&mut self, now_ms: i64) -> Option<Watermark> {
        Some(Watermark(now_ms - 1_000))
    }
}

#[test]
fn a_generator_of_the_users_own_may_go_by_the_jobs_clock_even_when_idle() {
    let clock = ManualClock::at(50_000);
    let (job, probe, feed) =
        (Job::named("own").clock(Arc::new(clock.clone())).parallelism(1), Probe::new(), Feed::of(1));
    let numbers = job.source("in", feed.clone()).source_time(Watermarks::custom(Punctual).idle_after(s(2)));
    numbers.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    let running = job.start().unwrap();
    feed.give(0, [3]);
    until(&running, SOON, "the record", || probe.values().len() == 1);
    for n in 1..=4 {
        clock.advance(s(1));
        until(&running, SOON, "the clock's time", || reached(&probe) == Some(49_000 + n * 1_000));
    }
    cancel(&running);
}

#[test]
fn e01_a_quiet_split_holds_nothing_back_and_nobody_when_all_are_quiet() {
    let clock = ManualClock::at(0);
    let (job, probe, feed) =
        (Job::named("e01").clock(Arc::new(clock.clone())).parallelism(2), Probe::new(), Feed::of(2));
    let numbers = job.source("in", feed.clone()).source_time(Watermarks::monotonic().idle_after(s(2)));
    let all = numbers.rebalance().parallelism(1);
    all.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    let running = job.start().unwrap();
    feed.give(0, 1..=100);
    until(&running, SOON, "the records", || probe.values().len() == 100);
    assert_eq!(reached(&probe), None, "the other split is not idle yet");
    clock.advance(s(3));
    until(&running, SOON, "its time", || reached(&probe) == Some(99));
    cancel(&running);
}
