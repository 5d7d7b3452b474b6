//! Whole jobs with windows of every kind: parallelism changes no result, late records come out, mistakes fail the plan.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_engine::testkit::{Line, NullSink, Probe, ScriptSource, run_within};
use weir_engine::{Data, Job, KeyedStream, OperatorInfo, Pipe, Stream, Watermarks};
use weir_operators::prelude::*;
use weir_operators::window::Window;

const LIMIT: Duration = Duration::from_secs(30);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Ends `stream` in a probe.
fn probed<T: Data, P: Pipe<Out = T>>(stream: Stream<T, P>, name: &str) -> Probe<T> {
    let probe = Probe::new();
    stream
        .transform(OperatorInfo::named("probe", name), probe.clone())
        .sink(&format!("{name}-end"), NullSink);
    probe
}

fn events() -> Vec<(u64, i64)> {
    (0..3_000).map(|n| (n * 7_919 % 97, n as i64 * 13 - 20_000)).collect()
}

/// By key and bounds: how many. Each is given once.
type Counts = BTreeMap<(u64, i64, i64), u64>;

fn counts<W: Window<u64, u64>>(window: W, parallelism: usize) -> Counts {
    let job = Job::named("counts").parallelism(parallelism);
    let source = job.source("in", ScriptSource::of(events())).parallelism(1);
    let keyed: KeyedStream<u64, u64> =
        source.source_time(Watermarks::monotonic()).key_by("by-key", |key| *key);
    let results = probed(keyed.window(window).aggregate("counts", count()), "results");
    run_within(job, LIMIT).expect("the job ends");
    let given = results.values();
    let counts: Counts = given.iter().map(|w| ((w.key, w.window.start.0, w.window.end.0), w.value)).collect();
    assert_eq!(counts.len(), given.len(), "a window is given once");
    counts
}

/// Every window of `windows` with the records that are in it.
fn expected(windows: impl Fn(i64) -> Vec<(i64, i64)>) -> Counts {
    let mut counts = Counts::new();
    for (key, time) in events() {
        for (start, end) in windows(time) {
            *counts.entry((key, start, end)).or_insert(0) += 1;
        }
    }
    counts
}

#[test]
fn parallelism_changes_no_result_of_any_window() {
    let sliding = expected(|time| {
        let last = time.div_euclid(500) * 500;
        (0..4).map(|n| (last - n * 500, last - n * 500 + 2_000)).collect()
    });
    let cumulating = expected(|time| {
        let start = time.div_euclid(2_000) * 2_000;
        (1..5).map(|n| (start, start + n * 500)).filter(|(_, end)| time < *end).collect()
    });
    let days = expected(|time| {
        let (hour, day) = (3_600_000, 86_400_000);
        let start = (time + 8 * hour).div_euclid(day) * day - 8 * hour;
        vec![(start, start + day)]
    });
    let mut sessions = Counts::new();
    let mut open = BTreeMap::<u64, (i64, i64, u64)>::new();
    for (key, time) in events() {
        // The gap is longer than a key's round, but for the last keys of each.
        let session = open.entry(key).or_insert((time, time, 0));
        if time >= session.1 + 1_262 {
            sessions.insert((key, session.0, session.1 + 1_262), session.2);
            *session = (time, time, 0);
        }
        *session = (session.0, time, session.2 + 1);
    }
    sessions.extend(open.into_iter().map(|(key, (start, last, n))| ((key, start, last + 1_262), n)));

    for parallelism in [1, 2, 7] {
        assert_eq!(counts(Sliding::of(seconds(2)).every(ms(500)), parallelism), sliding);
        assert_eq!(counts(Cumulate::of(seconds(2)).every(ms(500)), parallelism), cumulating);
        assert_eq!(counts(Calendar::days("Asia/Shanghai"), parallelism), days);
        assert_eq!(counts(Session::gap(ms(1_262)), parallelism), sessions);
        assert_eq!(counts(Tumbling::of(seconds(2)).allow_lateness(seconds(1)), parallelism).len(), {
            expected(|time| vec![(time.div_euclid(2_000) * 2_000, time.div_euclid(2_000) * 2_000 + 2_000)])
                .len()
        });
    }
}

#[test]
fn e12_late_records_of_a_sliding_window_come_out_of_a_running_job() {
    let script = vec![
        Line::Record(1u64, 195),
        Line::Record(2, 300),
        Line::Pause(Duration::from_millis(200)),
        Line::Record(3, 50),
        Line::Record(4, 305),
    ];
    let job = Job::named("late").parallelism(1);
    let events =
        job.source("in", ScriptSource::new(vec![script])).source_time(Watermarks::bounded(Duration::ZERO));
    let windowed = events.key_by("by-parity", |n| n % 2).window(Sliding::of(ms(10)).every(ms(5)));
    let (counts, late) = windowed.aggregate_with_late("counts", count());
    let (counts, late) = (probed(counts, "counts-probe"), probed(late, "late-probe"));
    run_within(job, LIMIT).unwrap();
    assert_eq!(late.values(), [3]);
    let counts: Vec<_> = counts.values().iter().map(|w| (w.key, w.window.start.0, w.value)).collect();
    assert_eq!(counts, [(1, 190, 1), (1, 195, 1), (0, 295, 1), (0, 300, 2), (0, 305, 1)]);
}

#[test]
fn e16_windows_that_cannot_be_are_plan_errors_that_name_the_parameter() {
    fn plan_of<W: Window<u64, u64>>(window: W) -> String {
        let job = Job::named("wrong").parallelism(1);
        let source = job.source("in", ScriptSource::of(events())).source_time(Watermarks::monotonic());
        source.key_by("by-key", |key| *key).window(window).aggregate("counts", count()).sink("out", NullSink);
        job.plan().unwrap_err().to_string()
    }
    let zero = Duration::ZERO;
    for (refused, parameter) in [
        (plan_of(Tumbling::of(zero)), "size"),
        (plan_of(Sliding::of(zero).every(ms(1))), "size"),
        (plan_of(Sliding::of(ms(1)).every(zero)), "slide"),
        (plan_of(Sliding::of(ms(1)).every(ms(2))), "slide"),
        (plan_of(Cumulate::of(ms(10)).every(ms(3))), "step"),
        (plan_of(Session::gap(zero)), "gap"),
        (plan_of(Calendar::days("Mars/Olympus_Mons")), "time zone"),
        (plan_of(CountWindow::of(0)), "count"),
        (plan_of(Tumbling::of(ms(1)).early_every(0)), "early_every"),
    ] {
        assert!(refused.contains(parameter) && refused.contains("counts"), "{refused}");
    }
}
