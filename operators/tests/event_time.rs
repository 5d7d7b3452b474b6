//! Event time as windows see it: what a record from the future, a silent input and times before the epoch do to results.

use std::sync::Arc;
use std::time::Duration;

use weir_engine::prelude::*;
use weir_engine::testkit::{Line, ManualClock, NullSink, Probe, ScriptSource, run_within, until};
use weir_engine::{OperatorInfo, TaskReading};
use weir_operators::prelude::*;

const LIMIT: Duration = Duration::from_secs(30);
const DAY: i64 = 86_400_000;
const NOW: i64 = 1_700_000_000_000;

/// Counts per window of ten seconds; gives the windows' starts and counts, and the late records.
fn counting(job: &Job, source: ScriptSource<u64>, watermarks: Watermarks) -> (Probe<(i64, u64)>, Probe<u64>) {
    let (results, late) = (Probe::new(), Probe::new());
    let (counts, too_late) = job
        .source("in", source)
        .source_time(watermarks)
        .key_by("all", |_| 0u8)
        .window(Tumbling::of(seconds(10)))
        .aggregate_with_late("counts", count());
    let counts = counts.map(|w| (w.window.start.0, w.value));
    counts.transform(OperatorInfo::stateless("look"), results.clone()).sink("out", NullSink);
    too_late.transform(OperatorInfo::stateless("look"), late.clone()).sink("late", NullSink);
    (results, late)
}

fn skewed(tasks: &[TaskReading]) -> u64 {
    let counters = tasks.iter().flat_map(|t| &t.counters);
    counters.filter(|(_, name, _)| *name == "far_future_records").map(|(.., n)| n).sum()
}

#[test]
fn e06_ten_honest_records_behind_one_from_tomorrow_are_counted() {
    let job = Job::named("e06").parallelism(1).clock(Arc::new(ManualClock::at(NOW)));
    let mut script = vec![Line::Record(0, NOW), Line::Record(1, NOW + DAY), Line::Pause(Duration::ZERO)];
    script.extend((1..=10).map(|i| Line::Record(1 + i as u64, NOW + i)));
    let (results, late) = counting(&job, ScriptSource::new(vec![script]), Watermarks::bounded(seconds(5)));
    let report = run_within(job, LIMIT).unwrap();
    assert_eq!((results.values(), late.values()), (vec![(NOW, 11)], vec![]));
    assert_eq!(skewed(&report.tasks), 1);
}

#[test]
fn total_silence_closes_the_last_window_when_a_bound_is_set() {
    let clock = ManualClock::at(0);
    let job = Job::named("silent").parallelism(1).clock(Arc::new(clock.clone()));
    let watermarks = Watermarks::bounded(seconds(5)).advance_when_silent(seconds(3));
    let (results, _) = counting(&job, ScriptSource::of([(1, -2_000), (2, 1_000)]).endless(), watermarks);
    let running = job.start().unwrap();
    until(&running, LIMIT, "both", || running.tasks().iter().any(|t| t.records_in == 2));
    assert!(running.wait_for(Duration::from_millis(200)).is_none(), "it has been seen dry");
    // The watermark stands at -4001.
    clock.advance(seconds(3));
    assert!(running.wait_for(Duration::from_millis(200)).is_none());
    assert_eq!(results.values(), Vec::new(), "at -1001 no window is over");
    clock.advance(seconds(2));
    until(&running, LIMIT, "the window before the epoch", || results.values() == [(-10_000, 1)]);
    clock.advance(seconds(10));
    until(&running, LIMIT, "the other", || results.values() == [(-10_000, 1), (0, 1)]);
    running.cancel();
    assert!(running.wait().is_err(), "cancelled");
}
