//! The recorded file through hourly purchases and cumulative visitors: equal to a plain computation, in any order, at any parallelism.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use weir_connectors::prelude::*;
use weir_connectors::random::Random;
use weir_engine::prelude::*;
use weir_engine::testkit::run_within;
use weir_operators::prelude::*;

const SOON: Duration = Duration::from_secs(60);
const STEP_MS: i64 = 600_000;
/// What the demo that this imitates tolerates.
const DISORDER_MS: i64 = 5_000;

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data/user_behavior_10k.csv")
}

/// The file as it lies: sorted by user, far out of time order.
fn recorded() -> Vec<Behaviour> {
    let text = std::fs::read(file()).expect("the recorded file is in the repository");
    let rows = text.split(|byte| *byte == b'\n').filter(|row| !row.is_empty());
    let events: Vec<_> = rows.map(|row| Behaviour::from_csv_row(row).expect("a row of the file")).collect();
    assert_eq!(events.len(), 10_000);
    events
}

/// The order they lie in, the order of their times, one that is off by up to the tolerated disorder, and none at all.
#[derive(Clone, Copy, Debug)]
enum Order {
    Recorded,
    Time,
    Nearly,
    Shuffled,
}

const ORDERS: [Order; 4] = [Order::Recorded, Order::Time, Order::Nearly, Order::Shuffled];

impl Order {
    fn events(self, job: &Job) -> Stream<Behaviour> {
        let mut random = Random::of(2017, 11);
        let mut events = recorded();
        let watermarks = match self {
            Order::Recorded => Watermarks::at_end(),
            Order::Time => {
                events.sort_by_key(|e| e.ts);
                Watermarks::monotonic()
            }
            Order::Nearly => {
                events.sort_by_cached_key(|e| e.ts + random.below(DISORDER_MS as u64 + 1) as i64);
                Watermarks::bounded(Duration::from_millis(DISORDER_MS as u64))
            }
            Order::Shuffled => {
                events.sort_by_cached_key(|_| random.any());
                Watermarks::at_end()
            }
        };
        if matches!(self, Order::Recorded) {
            let rows = FileSource::decoded(file(), BehaviourCsv::default());
            return job.source("rows", rows).bad_records(BadRecords::Fail).event_time(|e| e.ts, watermarks);
        }
        job.source("events", MemorySource::new(events)).event_time(|e| e.ts, watermarks)
    }
}

/// Everything a job gives at that order and parallelism, by the time it is for; late records fail it.
fn given(order: Order, parallelism: usize, of: fn(Stream<Behaviour>, Given)) -> Vec<(i64, u64)> {
    let (results, late) = (MemorySink::new(), MemorySink::new());
    let job = Job::named("taobao").parallelism(parallelism);
    of(order.events(&job), (results.clone(), late.clone()));
    run_within(job, SOON).unwrap_or_else(|e| panic!("{order:?} at parallelism {parallelism}: {e}"));
    assert!(late.handle().is_empty(), "{order:?} at parallelism {parallelism}: {} late", late.handle().len());
    let mut results = results.handle().take_values();
    results.sort_unstable();
    results
}

/// Where results and late records go.
type Given = (MemorySink<(i64, u64)>, MemorySink<Behaviour>);

fn hourly_buys(events: Stream<Behaviour>, (results, late): Given) {
    let (buys, too_late) = events
        .filter(|e| e.behavior == Action::Buy)
        .key_by("everything", |_| 0u8)
        .window(Tumbling::of(hours(1)))
        .aggregate_with_late("buys", count());
    buys.map(|w| (w.window.start.millis(), w.value)).sink("results", results);
    too_late.sink("late", late);
}

/// Users in groups, so that every subtask has some; no user is in two, so the groups' counts add up.
fn cumulative_uv(events: Stream<Behaviour>, (results, late): Given) {
    let days = Cumulate::of(days(1)).every(Duration::from_millis(STEP_MS as u64)).offset_ms(-8 * 3_600_000);
    let (groups, too_late) = events
        .key_by("by-user-group", |e| e.user_id % 16)
        .window(days)
        .aggregate_with_late("users", distinct(|e: &Behaviour| e.user_id));
    groups
        .key_by("everything", |_| 0u8)
        .window(Tumbling::of(Duration::from_millis(STEP_MS as u64)))
        .aggregate("visitors", sum(|w: &WindowResult<u64, u64>| w.value))
        .map(|w| (w.window.end.millis(), w.value))
        .sink("results", results);
    too_late.sink("late", late);
}

#[test]
fn hourly_buys_equal_a_batch_in_any_order_at_any_parallelism() {
    let mut expected = BTreeMap::<i64, u64>::new();
    for e in recorded().iter().filter(|e| e.behavior == Action::Buy) {
        *expected.entry(e.ts.div_euclid(3_600_000) * 3_600_000).or_default() += 1;
    }
    let expected: Vec<_> = expected.into_iter().collect();
    assert_eq!(expected.iter().map(|(_, buys)| buys).sum::<u64>(), 206);
    for order in ORDERS {
        for parallelism in [1, 2, 7] {
            let got = given(order, parallelism, hourly_buys);
            assert_eq!(got, expected, "{order:?} at parallelism {parallelism}");
        }
    }
}

/// For each day of Shanghai, from the first step that has anybody to midnight, how many were there so far.
fn curves() -> Vec<(i64, u64)> {
    let zone = TimeZone::get("Asia/Shanghai").expect("the system knows the zone");
    let mut days = BTreeMap::<i64, (i64, Vec<Behaviour>)>::new();
    for e in recorded() {
        let local = Timestamp::from_millisecond(e.ts).expect("a time").to_zoned_datetime(zone.clone());
        let midnight = local.start_of_day().expect("a day begins");
        let next = midnight.tomorrow().expect("and ends").timestamp().as_millisecond();
        days.entry(midnight.timestamp().as_millisecond()).or_insert((next, Vec::new())).1.push(e);
    }
    let mut curve = Vec::new();
    for (midnight, (next, mut events)) in days {
        events.sort_by_key(|e| e.ts);
        let (mut seen, mut events) = (HashSet::new(), events.into_iter().peekable());
        for end in (midnight..next).step_by(STEP_MS as usize).map(|begin| begin + STEP_MS) {
            while let Some(e) = events.next_if(|e| e.ts < end) {
                seen.insert(e.user_id);
            }
            if !seen.is_empty() {
                curve.push((end, seen.len() as u64));
            }
        }
    }
    curve
}

#[test]
fn cumulative_visitors_equal_a_batch_in_any_order_at_any_parallelism() {
    let expected = curves();
    assert!(expected.len() > 9 * 100 && expected.iter().any(|(_, users)| *users > 50), "{expected:?}");
    for order in ORDERS {
        for parallelism in [1, 2, 7] {
            let got = given(order, parallelism, cumulative_uv);
            assert_eq!(got, expected, "{order:?} at parallelism {parallelism}");
        }
    }
}

#[test]
fn the_curve_rises_within_a_day_and_begins_again_at_midnight_in_shanghai() {
    let got = given(Order::Time, 2, cumulative_uv);
    let day = |end: i64| (end - 1 + 8 * 3_600_000).div_euclid(86_400_000);
    let mut falls = 0;
    for pair in got.windows(2) {
        let ((before, had), (after, has)) = (pair[0], pair[1]);
        if day(before) == day(after) {
            assert!(had <= has && after == before + STEP_MS, "{pair:?}");
        } else {
            falls += u32::from(has < had);
        }
    }
    assert_eq!(falls, 9, "nine midnights");
}
