//! Each key and window once, with its newest result: in the order of time, over saves and restores, whatever comes late.

use super::*;
use crate::aggregate::count;
use crate::fleet::Fleet;
use crate::window::Timing;
use proptest::prelude::*;
use std::collections::BTreeMap;
use weir_engine::testkit::{Given, NullSink, OpHarness, ScriptSource, context, run_within};
use weir_engine::{EventTime, Job, KeyedStream, Watermarks};
use weir_state::key_hash;

use crate::prelude::*;

type Harness = OpHarness<Keyed<u64, WindowResult<u64, i64>>, LatestPerWindow<u64, i64>>;

fn window(start: i64, end: i64) -> TimeWindow {
    TimeWindow { start: EventTime(start), end: EventTime(end) }
}

fn result(key: u64, window: TimeWindow, value: i64, number: u32) -> WindowResult<u64, i64> {
    WindowResult { key, window, value, pane: Pane { number, timing: Timing::Early } }
}

fn send(h: &mut Harness, result: WindowResult<u64, i64>) {
    let (key, time) = (result.key, result.window.last().0);
    h.send(Keyed { hash: key_hash(&key), key, value: result }, time).unwrap();
}

/// `(key, end, value)`, and watermarks as those of key 0.
fn given(h: &mut Harness) -> Vec<(u64, i64, i64)> {
    let row = |given: Given<WindowResult<u64, i64>>| match given {
        Given::Record(Record { value, time }) => {
            assert_eq!(time, value.window.last());
            Some((value.key, value.window.end.0, value.value))
        }
        Given::Signal(HeldSignal::Watermark(w)) => Some((0, w.0, 0)),
        Given::Signal(_) => None,
    };
    h.take_given().into_iter().filter_map(row).collect()
}

#[test]
fn the_newest_result_comes_when_no_newer_one_can() {
    let cx = context("under-test", 0, 1);
    let mut h = OpHarness::with(LatestPerWindow::new(20), &cx).unwrap();
    let (one, two) = (window(0, 10), window(5, 15));
    send(&mut h, result(1, one, 5, 0));
    send(&mut h, result(1, two, 6, 0));
    send(&mut h, result(1, one, 7, 1));
    h.watermark(28).unwrap();
    assert_eq!(given(&mut h), [(0, 8, 0)]);
    send(&mut h, result(1, one, 8, 2));
    h.watermark(29).unwrap();
    assert_eq!(given(&mut h), [(1, 10, 8), (0, 9, 0)]);
    send(&mut h, result(1, one, 9, 3));
    send(&mut h, result(2, two, 1, 0));
    h.end(EndKind::Flush).unwrap();
    let mut rows = given(&mut h);
    rows.sort_unstable();
    assert_eq!(rows, [(0, i64::MAX, 0), (1, 15, 6), (2, 15, 1)]);
    assert_eq!(cx.counter("late_records").get(), 1);
}

#[test]
fn a_window_that_was_given_is_not_given_again_by_a_life_that_waits_longer() {
    let mut before = Harness::new(LatestPerWindow::new(5)).unwrap();
    send(&mut before, result(1, window(0, 10), 5, 0));
    before.watermark(20).unwrap();
    assert_eq!(given(&mut before), [(1, 10, 5), (0, 15, 0)]);
    let saved = before.save(1).unwrap();
    let mut after = Harness::restored(LatestPerWindow::new(50), &[&saved], 0, 1).unwrap();
    send(&mut after, result(1, window(0, 10), 6, 1));
    send(&mut after, result(1, window(10, 20), 7, 0));
    after.end(EndKind::Flush).unwrap();
    assert_eq!(given(&mut after).first(), Some(&(1, 20, 7)));
}

#[test]
fn event_time_that_has_hardly_begun_begins_later() {
    let mut h = OpHarness::new(LatestPerWindow::new(20)).unwrap();
    h.watermark(i64::MIN + 5).unwrap();
    h.idle(true).unwrap();
    h.idle(false).unwrap();
    h.watermark(i64::MIN + 21).unwrap();
    assert_eq!(given(&mut h), [(0, i64::MIN + 1, 0)]);
}

fn windows(job: &Job, latest: bool) {
    let numbers = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(Watermarks::monotonic());
    let window = || Tumbling::of(seconds(1));
    let per_key = numbers
        .key_by("by-key", |n| *n)
        .window(window().allow_lateness(seconds(2)))
        .aggregate("per-key", count());
    if latest {
        let settled = per_key.latest_per_window("settled", seconds(2)).map(|w| w.value);
        settled
            .key_by("all", |_| ())
            .window(window())
            .aggregate("all-keys", sum(|n: &u64| *n))
            .sink("out", NullSink);
    } else {
        let counts = per_key.map(|w| w.value);
        counts
            .key_by("all", |_| ())
            .window(window())
            .aggregate("all-keys", sum(|n: &u64| *n))
            .sink("out", NullSink);
    }
}

#[test]
fn updates_that_would_be_added_up_are_a_mistake_of_the_plan() {
    let job = Job::named("twice").parallelism(1);
    windows(&job, false);
    let error = job.plan().unwrap_err().to_string();
    for part in ["\"all-keys\" adds up what \"per-key\" gives", ".latest_per_window(uid, lateness)"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let job = Job::named("once").parallelism(1);
    windows(&job, true);
    run_within(job, seconds(30)).unwrap();

    // Results that add up, those of another window each, and late records themselves are no updates.
    let job = Job::named("sums").parallelism(1);
    let numbers = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(Watermarks::monotonic());
    let window = Tumbling::of(seconds(1)).early_every(2).discarding();
    let (sums, late) = numbers.key_by("by-key", |n| *n).window(window).aggregate_with_late("sums", count());
    sums.key_by("all", |_| ())
        .over("over", Over::rows(3), sum(|w: &WindowResult<u64, u64>| w.value))
        .sink("out", NullSink);
    late.key_by("late", |n| *n)
        .window(CountWindow::of(3))
        .aggregate("lates", count())
        .sink("late-out", NullSink);
    job.plan().unwrap();
}

#[test]
fn sessions_and_global_windows_cannot_be_settled() {
    let refused = |global: bool| {
        let job = Job::named("moving").parallelism(1);
        let numbers = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(Watermarks::monotonic());
        let keyed = numbers.key_by("by-key", |n| *n);
        if global {
            let counts = keyed.window(Global::new().early_every(2)).aggregate("counts", count());
            counts.latest_per_window("settled", seconds(0)).sink("out", NullSink);
        } else {
            let counts = keyed.window(Session::gap(seconds(1)).early_every(2)).aggregate("counts", count());
            counts.latest_per_window("settled", seconds(0)).sink("out", NullSink);
        }
        job.plan().unwrap_err().to_string()
    };
    for error in [refused(true), refused(false)] {
        for part in ["\"settled\"", "\"counts\"", ".discarding()", ".settled()"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(!error.contains("latest_per_window"), "{error}");
    }
}

#[test]
fn all_rows_of_the_newest_number_are_given() {
    let mut h = Harness::new(LatestPerWindow::new(0)).unwrap();
    let one = window(0, 10);
    for (value, number) in [(5, 0), (6, 1), (7, 1), (8, 0)] {
        send(&mut h, result(1, one, value, number));
    }
    h.end(EndKind::Flush).unwrap();
    assert_eq!(given(&mut h)[..2], [(1, 10, 6), (1, 10, 7)]);
}

/// What the plan says of a join of two streams, with what is behind it.
fn planned(behind: impl FnOnce(Two)) -> String {
    let job = Job::named("joined").parallelism(1);
    let numbers = |uid: &str| {
        let numbers = job.source(uid, ScriptSource::of([(7u64, 0)])).source_time(Watermarks::monotonic());
        numbers.key_by(&format!("{uid}-by-key"), |n| *n)
    };
    let (one, other) = (numbers("one"), numbers("other"));
    behind(Two { one, other });
    job.plan().map_or_else(|error| error.to_string(), |_| String::new())
}

struct Two {
    one: KeyedStream<u64, u64>,
    other: KeyedStream<u64, u64>,
}

#[test]
fn rows_that_are_taken_back_cannot_be_settled() {
    let window = || Tumbling::of(seconds(1)).allow_lateness(seconds(5));
    let latest = |kind: &str| {
        planned(|Two { one, other }| {
            let both = one.connect(other).window(window());
            match kind {
                "anti" => {
                    both.join("joined", Anti).latest_per_window("final", seconds(5)).sink("out", NullSink)
                }
                "semi" => {
                    both.join("joined", Semi).latest_per_window("final", seconds(5)).sink("out", NullSink)
                }
                _ => both
                    .join("joined", LeftOuter)
                    .latest_per_window("final", seconds(5))
                    .filter(|w| w.value.1.is_none())
                    .sink("out", NullSink),
            }
        })
    };
    let anti = latest("anti");
    for part in ["\"final\" wants each result of \"joined\" once", "in front of \"joined-rows\"", "LeftOuter"]
    {
        assert!(anti.contains(part), "{part}: {anti}");
    }
    assert_eq!(latest("semi"), "");
    assert_eq!(latest("outer"), "");
    // Where each window is given once, nothing is taken back.
    let once = planned(|Two { one, other }| {
        let rows = one.connect(other).window(Tumbling::of(seconds(1))).join("joined", Anti);
        rows.latest_per_window("final", seconds(0)).sink("out", NullSink);
    });
    assert_eq!(once, "");
}

#[test]
fn what_a_filter_leaves_cannot_be_settled() {
    let filtered = planned(|Two { one, other }| {
        let counts = one.window(Tumbling::of(seconds(1)).early_every(2)).aggregate("counts", count());
        counts.filter(|w| w.value < 10).latest_per_window("final", seconds(0)).sink("out", NullSink);
        other.window(Tumbling::of(seconds(1))).aggregate("others", count()).sink("others-out", NullSink);
    });
    for part in ["\"final\" wants each result of \"counts\" once", "in front of \"filter\"", ".settled()"] {
        assert!(filtered.contains(part), "{part}: {filtered}");
    }
}

#[test]
fn results_that_add_up_have_no_last_one() {
    let discarding = planned(|Two { one, other }| {
        let window = Tumbling::of(seconds(1)).early_every(2).discarding();
        one.window(window)
            .aggregate("sums", count())
            .latest_per_window("final", seconds(0))
            .sink("out", NullSink);
        other.window(Tumbling::of(seconds(1))).aggregate("others", count()).sink("others-out", NullSink);
    });
    for part in ["\"final\" wants the newest result", "\"sums\"", ".discarding()"] {
        assert!(discarding.contains(part), "{part}: {discarding}");
    }
}

#[test]
fn running_results_may_be_the_table_of_a_temporal_join() {
    let summed = |left_updates: bool| {
        planned(|Two { one, other }| {
            let running = |stream: KeyedStream<u64, u64>, uid: &str| {
                let counts = stream.window(Global::new().early_every(1)).aggregate(uid, count());
                counts.key_by(&format!("{uid}-again"), |w| w.key)
            };
            let table = running(other, "rates");
            if left_updates {
                let both = running(one, "orders").connect(table);
                let priced = both.temporal_join("priced", Inner, Change::Put);
                let all = priced.key_by("all", |_| ()).window(Tumbling::of(seconds(1)));
                all.aggregate("sum", count()).sink("out", NullSink);
            } else {
                let priced = one.connect(table).temporal_join("priced", Inner, Change::Put);
                let all = priced.key_by("all", |_| ()).window(Tumbling::of(seconds(1)));
                all.aggregate("sum", count()).sink("out", NullSink);
            }
        })
    };
    assert_eq!(summed(false), "");
    let error = summed(true);
    assert!(error.contains("\"sum\" wants each result of \"orders\" once"), "{error}");
}

#[test]
fn parts_are_of_rows_not_of_keys() {
    const ROWS: i64 = 10;
    let mut h = Harness::new(LatestPerWindow::new(0)).unwrap();
    for key in 1..=8 {
        (0..ROWS).for_each(|value| send(&mut h, result(key, window(0, 10), value, 0)));
    }
    h.begin_watermark(20).unwrap();
    let mut parts = vec![given(&mut h).len()];
    while h.has_more() {
        h.quiet().unwrap();
        parts.push(given(&mut h).len());
    }
    // The watermark is one more of the last.
    assert_eq!(parts.iter().sum::<usize>(), 8 * ROWS as usize + 1);
    assert!(parts.iter().all(|part| *part <= ROWS as usize + 1), "{parts:?}");
}

#[test]
fn a_lateness_that_is_no_time_is_a_mistake_of_the_plan() {
    let job = Job::named("bad").parallelism(1);
    let numbers = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(Watermarks::monotonic());
    let counts =
        numbers.key_by("by-key", |n| *n).window(Tumbling::of(seconds(1))).aggregate("counts", count());
    counts.latest_per_window("settled", Duration::from_nanos(1)).sink("out", NullSink);
    let error = job.plan().unwrap_err().to_string();
    assert!(error.contains("settled") && error.contains("lateness"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Keys, windows, values and numbers at random, cut by watermarks, saves and restores.
    #[test]
    fn agrees_with_a_map(
        steps in prop::collection::vec((0..6u64, 0..30i64, 0..9i64, 0..3u32, 0..8u8, 1..4usize), 0..80),
        lateness in 0..30i64,
    ) {
        let mut fleet = Fleet::of(LatestPerWindow::<u64, i64>::new(lateness), 2);
        let mut kept = BTreeMap::<(i64, u64), (u32, Vec<i64>)>::new();
        let rows_of = |((last, key), (_, values)): ((i64, u64), (u32, Vec<i64>))| {
            values.into_iter().map(move |value| (last, key, value))
        };
        let (mut rows, mut expected, mut now) = (Vec::new(), Vec::new(), 0);
        fleet.watermark(0);
        for (key, start, value, number, then, parallelism) in steps {
            let of = window(now + start - 15, now + start - 5);
            fleet.batch([(key, result(key, of, value, number), of.last().0)]);
            // The next part of what was begun, before a restore takes the subtasks away.
            rows.extend(fleet.take().into_iter().map(|r| (r.time.0, r.value.key, r.value.value)));
            if of.last().0 > now - lateness {
                let latest = kept.entry((of.last().0, key)).or_insert((number, vec![]));
                if latest.0 < number {
                    *latest = (number, vec![]);
                }
                if latest.0 == number {
                    latest.1.push(value);
                }
            }
            match then {
                0 => {
                    let saved = fleet.save();
                    fleet.restore(&saved, parallelism);
                }
                1 | 2 => {
                    now += 7;
                    if then == 1 { fleet.watermark(now) } else { fleet.begin_watermark(now) }
                    let over = kept.extract_if(.., |(last, _), _| *last <= now - lateness);
                    expected.extend(over.flat_map(rows_of));
                }
                _ => {}
            }
            rows.extend(fleet.take().into_iter().map(|r| (r.time.0, r.value.key, r.value.value)));
        }
        fleet.end(EndKind::Flush);
        rows.extend(fleet.take().into_iter().map(|r| (r.time.0, r.value.key, r.value.value)));
        expected.extend(kept.into_iter().flat_map(rows_of));
        rows.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(rows, expected);
    }
}
