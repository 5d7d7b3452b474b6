//! Whole jobs of these operators: side outputs carry what they should, and parallelism changes no result.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_engine::testkit::{Line, NullSink, Probe, ScriptSource, run_within};
use weir_engine::{Data, Job, OperatorInfo, Pipe, Stream, Watermarks};
use weir_operators::prelude::*;
use weir_state::profile::{ProfileUpdate, Profiles, tag};

const LIMIT: Duration = Duration::from_secs(30);

/// Ends `stream` in a probe.
fn probed<T: Data, P: Pipe<Out = T>>(stream: Stream<T, P>, name: &str) -> Probe<T> {
    let probe = Probe::new();
    stream
        .transform(OperatorInfo::named("probe", name), probe.clone())
        .sink(&format!("{name}-end"), NullSink);
    probe
}

#[test]
fn e12_late_event_goes_to_the_late_output_of_a_running_job() {
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
    let windowed = events.key_by("by-parity", |n| n % 2).window(Tumbling::of(Duration::from_millis(10)));
    let (counts, late) = windowed.aggregate_with_late("counts", count());
    let (counts, late) = (probed(counts, "counts-probe"), probed(late, "late-probe"));
    run_within(job, LIMIT).unwrap();
    assert_eq!(late.values(), [3]);
    let counts: Vec<_> = counts.values().iter().map(|w| (w.key, w.window.start.0, w.value)).collect();
    assert_eq!(counts, [(1, 190, 1), (0, 300, 2)]);
}

#[test]
fn refused_updates_come_out_and_the_others_count() {
    let profiles = Profiles::named("p").int_tag("buys");
    let updates = (0..100u64).map(|user| {
        let known = if user % 10 == 0 { "typo" } else { "buys" };
        (ProfileUpdate::of(user).increment(known, 1), user as i64)
    });
    let job = Job::named("refused").parallelism(3);
    let refused = job
        .source("in", ScriptSource::of(updates))
        .parallelism(1)
        .source_time(Watermarks::monotonic())
        .update_profile_with_rejected("profile", &profiles);
    let refused = probed(refused, "refused");
    run_within(job, LIMIT).unwrap();
    let mut users: Vec<_> = refused.values().iter().map(|r| r.time).collect();
    users.sort_unstable();
    assert_eq!(users, (0..10).map(|n| Some(n * 10)).collect::<Vec<_>>());
    let answer = profiles.reader().count(&tag("buys").eq(1)).unwrap();
    assert_eq!((answer.value, answer.version.stale), (90, false));
}

#[test]
fn parallelism_changes_no_result() {
    let events: Vec<(u64, i64)> = (0..5_000).map(|n| (n * 7_919 % 97, n as i64 * 13 - 20_000)).collect();
    let mut expected = BTreeMap::new();
    for (key, time) in &events {
        *expected.entry((*key, time.div_euclid(1_000) * 1_000)).or_insert(0) += 1u64;
    }
    for parallelism in [1, 2, 7] {
        let job = Job::named("counts").parallelism(parallelism);
        let results = job
            .source("in", ScriptSource::of(events.clone()))
            .parallelism(1)
            .source_time(Watermarks::monotonic())
            .map(|key| (key, ()))
            .filter(|_| true)
            .key_by("by-key", |(key, ())| *key)
            .window(Tumbling::of(seconds(1)))
            .aggregate("counts", count());
        let results = probed(results, "results");
        run_within(job, LIMIT).unwrap();
        let got = results.values().into_iter().map(|w| ((w.key, w.window.start.0), w.value));
        assert_eq!(got.collect::<BTreeMap<_, _>>(), expected, "parallelism {parallelism}");
        assert_eq!(results.values().len(), expected.len(), "parallelism {parallelism}");
    }
}

#[test]
fn e12_late_records_of_every_step_by_event_time_come_out_aside() {
    let script = vec![
        Line::Record((1u64, 1), 195),
        Line::Record((1, 2), 300),
        Line::Pause(Duration::from_millis(200)),
        Line::Record((1, 3), 50),
        Line::Record((1, 4), 305),
    ];
    let job = Job::named("late").parallelism(1);
    let source =
        job.source("in", ScriptSource::new(vec![script])).source_time(Watermarks::bounded(Duration::ZERO));
    let events = source.shared();
    let keyed = |name: &str| events.stream().key_by(name, |(key, _)| *key);
    let (sums, late_sums) =
        keyed("to-sums").over_with_late("sums", Over::rows(2), sum(|(_, n): &(u64, i32)| *n));
    let (once, late_once) =
        keyed("to-once").deduplicate_with_late("once", Keep::Last, Duration::from_millis(50));
    let rise = Pattern::begin(|_: &(u64, i32)| true).followed_by(|_| true, seconds(1));
    let (rises, late_rises) = keyed("to-rises").detect_with_late("rises", rise);
    let sums = probed(sums.map(|o| o.value), "sums-probe");
    let once = probed(once.map(|(_, n)| n), "once-probe");
    let rises = probed(rises.map(|found| (found.first.1, found.then.map(|then| then.1))), "rises-probe");
    let late = [(late_sums, "late-sums"), (late_once, "late-once"), (late_rises, "late-rises")];
    let late = late.map(|(late, name)| probed(late, name));
    run_within(job, LIMIT).unwrap();
    assert_eq!(sums.values(), [1, 3, 6]);
    assert_eq!(once.values(), [1, 4]);
    assert_eq!(rises.values(), [(1, Some(2)), (2, Some(4))]);
    late.iter().for_each(|late| assert_eq!(late.values(), [(1, 3)]));
}

#[test]
fn e16_arguments_that_cannot_be_are_plan_errors_that_name_them() {
    let refused = |add: fn(weir_engine::KeyedStream<u64, u64>), argument: &str| {
        let job = Job::named("refused").parallelism(1);
        let source = job.source("in", ScriptSource::of([(1u64, 0)])).source_time(Watermarks::monotonic());
        add(source.key_by("by-key", |n| *n));
        let error = job.plan().unwrap_err().to_string();
        assert!(error.contains(argument) && error.contains("the-uid"), "{error}");
    };
    refused(|s| s.over("the-uid", Over::rows(0), count()).sink("out", NullSink), "rows is 0");
    refused(
        |s| s.over("the-uid", Over::time(Duration::from_micros(1)), count()).sink("out", NullSink),
        "time is 1µs",
    );
    refused(|s| s.deduplicate("the-uid", Keep::First, Duration::ZERO).sink("out", NullSink), "t is 0ns");
    refused(
        |s| s.deduplicate_by_clock("the-uid", Keep::First, Duration::ZERO).sink("out", NullSink),
        "t is 0ns",
    );
    refused(
        |s| {
            let pattern = Pattern::begin(|_: &u64| true).followed_by(|_| true, Duration::ZERO);
            s.detect("the-uid", pattern).sink("out", NullSink);
        },
        "within is 0ns",
    );
    refused(|s| s.top_n("the-uid", Top::of(0), |n| *n).sink("out", NullSink), "n is 0");
}

#[test]
fn a_sum_that_overflows_stops_the_job_and_names_the_operator() {
    let job = Job::named("overflow").parallelism(1);
    job.source("in", ScriptSource::of([(i64::MAX, 0), (1, 1)]))
        .source_time(Watermarks::monotonic())
        .key_by("all", |_| 0u8)
        .window(Tumbling::of(seconds(1)))
        .aggregate("total", sum(|n: &i64| *n))
        .sink("out", NullSink);
    let error = format!("{:?}", run_within(job, LIMIT).unwrap_err());
    assert!(
        error.contains("total") && error.contains("the sum 9223372036854775808 does not fit i64"),
        "{error}"
    );
}
