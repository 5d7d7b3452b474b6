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
