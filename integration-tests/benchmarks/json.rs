//! Two JSON files → hourly purchases and cumulative visitors, against two threads by hand; the target is Flink's CPU per record.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use weir_connectors::prelude::*;
use weir_engine::prelude::*;
use weir_operators::prelude::*;
use weir_state::int_set::IntSet;

use crate::cli::Scale;
use crate::measure::{Comparison, alternate, peak_rss_mib};
use crate::rows::{Row, Rows, check_times};

const RECORDS: u64 = 10_000_000;
const HOUR_MS: i64 = 3_600_000;
const STEP_MS: i64 = 600_000;
const DAY_MS: i64 = 86_400_000;
/// The folder of the input, so that other programs can read it too; made there when it is not. A temporary one else.
const FOLDER: &str = "WEIR_BENCH_FILES";

/// What a job gives: counts by the start of the hour, or by the end of the step.
type Counts = Vec<(i64, u64)>;

/// The files, as long as this lives.
struct Input {
    rows: Rows,
    paths: [PathBuf; 2],
    _folder: Option<tempfile::TempDir>,
}

impl Input {
    fn of(scale: Scale) -> anyhow::Result<Self> {
        check_times()?;
        let rows = Rows(scale.records(RECORDS));
        let (folder, own) = match std::env::var_os(FOLDER) {
            Some(folder) if !scale.smoke => (PathBuf::from(folder), None),
            _ => {
                let own = tempfile::tempdir()?;
                (own.path().to_owned(), Some(own))
            }
        };
        Ok(Input { rows, paths: rows.write(&folder)?, _folder: own })
    }

    fn stream(&self, job: &Job) -> Stream<Row> {
        let [first, second] = &self.paths;
        let rows = FileSource::json_lines::<Row>(first).and(second);
        let disorder = Watermarks::bounded(Duration::from_secs(5));
        job.source("rows", rows).bad_records(BadRecords::Fail).event_time(|r| r.ts, disorder)
    }

    /// Each file on a thread of its own.
    fn by_hand<T: Send>(&self, read: fn(&Path) -> anyhow::Result<T>) -> anyhow::Result<[T; 2]> {
        std::thread::scope(|scope| {
            let [first, second] = self.paths.each_ref().map(|path| scope.spawn(move || read(path)));
            let end = |thread: std::thread::ScopedJoinHandle<'_, anyhow::Result<T>>| {
                thread.join().expect("a thread by hand does not panic")
            };
            Ok([end(first)?, end(second)?])
        })
    }
}

fn each_row(path: &Path, mut see: impl FnMut(Row)) -> anyhow::Result<()> {
    let mut file = BufReader::with_capacity(256 << 10, File::open(path)?);
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line)? > 0 {
        see(serde_json::from_slice(&line)?);
        line.clear();
    }
    Ok(())
}

fn ran(job: Job, results: &MemorySink<(i64, u64)>) -> anyhow::Result<(Counts, u64)> {
    let report = job.start()?.wait()?;
    let mut results = results.handle().take_values();
    results.sort_unstable();
    Ok((results, report.checkpoints))
}

fn hourly_buys(input: &Input) -> anyhow::Result<Counts> {
    let results = MemorySink::new();
    let job = Job::named("hourly-buys").parallelism(2).state(StateBackend::memory());
    (input.stream(&job))
        .filter(|r| r.behavior == Action::Buy)
        .key_by("everything", |_| 0u8)
        .window(Tumbling::of(hours(1)))
        .aggregate("buys", count())
        .map(|w| (w.window.start.millis(), w.value))
        .sink("results", results.clone());
    Ok(ran(job, &results)?.0)
}

/// As in the example `cumulative_uv`, with days of UTC, as in the peers' programs.
fn cumulative_uv(input: &Input, with: impl FnOnce(Job) -> Job) -> anyhow::Result<(Counts, u64)> {
    let results = MemorySink::new();
    let job = with(Job::named("cumulative-uv").parallelism(2));
    (input.stream(&job))
        .key_by("by-user-group", |r| r.user_id % 16)
        .window(Cumulate::of(days(1)).every(minutes(10)))
        .aggregate("users", distinct(|r: &Row| r.user_id))
        .key_by("everything", |_| 0u8)
        .window(Tumbling::of(minutes(10)))
        .aggregate("visitors", sum(|w: &WindowResult<u64, u64>| w.value))
        .map(|w| (w.window.end.millis(), w.value))
        .sink("results", results.clone());
    ran(job, &results)
}

fn add_up(parts: [BTreeMap<i64, u64>; 2]) -> Counts {
    let mut all = BTreeMap::new();
    parts.into_iter().flatten().for_each(|(hour, buys)| *all.entry(hour).or_default() += buys);
    all.into_iter().collect()
}

fn hour_of(ts: i64) -> i64 {
    ts.div_euclid(HOUR_MS) * HOUR_MS
}

fn buys_by_hand(path: &Path) -> anyhow::Result<BTreeMap<i64, u64>> {
    let mut hours = BTreeMap::new();
    each_row(path, |row| {
        if row.behavior == Action::Buy {
            *hours.entry(hour_of(row.ts)).or_default() += 1;
        }
    })?;
    Ok(hours)
}

/// Who was there in each step; only the step at hand is looked up per row.
#[derive(Default)]
struct Steps {
    done: BTreeMap<i64, IntSet>,
    step: i64,
    users: IntSet,
}

impl Steps {
    #[inline]
    fn see(&mut self, user: u64, ts: i64) {
        let step = ts.div_euclid(STEP_MS);
        if step != self.step {
            let over = std::mem::replace(&mut self.step, step);
            self.done.entry(over).or_default().merge(std::mem::take(&mut self.users));
        }
        self.users.insert(user);
    }

    fn end(mut self) -> BTreeMap<i64, IntSet> {
        self.done.entry(self.step).or_default().merge(self.users);
        self.done
    }
}

fn visitors_by_hand(path: &Path) -> anyhow::Result<BTreeMap<i64, IntSet>> {
    let mut steps = Steps::default();
    each_row(path, |row| steps.see(row.user_id, row.ts))?;
    Ok(steps.end())
}

/// Per day, from the first step that has anybody to midnight.
fn curve<const N: usize>(parts: [BTreeMap<i64, IntSet>; N]) -> Counts {
    let mut steps = BTreeMap::<i64, IntSet>::new();
    for (step, users) in parts.into_iter().flatten().filter(|(_, users)| !users.is_empty()) {
        steps.entry(step).or_default().merge(users);
    }
    let mut days = BTreeMap::<i64, BTreeMap<i64, IntSet>>::new();
    for (step, users) in steps {
        days.entry((step * STEP_MS).div_euclid(DAY_MS)).or_default().insert(step, users);
    }
    let mut curve = Vec::new();
    for (day, mut steps) in days {
        let mut seen = IntSet::default();
        for step in day * DAY_MS / STEP_MS..(day + 1) * DAY_MS / STEP_MS {
            seen.merge(steps.remove(&step).unwrap_or_default());
            if !seen.is_empty() {
                curve.push(((step + 1) * STEP_MS, seen.len()));
            }
        }
    }
    curve
}

fn same(got: &Counts, expected: &Counts) -> anyhow::Result<Option<Duration>> {
    let differs = || got.iter().zip(expected).find(|(g, e)| g != e);
    ensure!(got == expected, "{} results of {}, first difference {:?}", got.len(), expected.len(), differs());
    Ok(None)
}

/// Hourly purchases.
pub(crate) fn buys(scale: Scale) -> anyhow::Result<Comparison> {
    let input = Input::of(scale)?;
    let mut expected = BTreeMap::new();
    for row in (0..input.rows.0).map(|i| input.rows.row(i)).filter(|row| row.behavior == Action::Buy) {
        *expected.entry(hour_of(row.ts)).or_default() += 1;
    }
    let expected: Counts = expected.into_iter().collect();
    let ours = || same(&hourly_buys(&input)?, &expected);
    let theirs = || same(&add_up(input.by_hand(buys_by_hand)?), &expected);
    Ok(Comparison {
        what: "two JSON files → decode → filter → hourly count of purchases, memory, parallelism 2",
        baseline: "hand-written",
        records: input.rows.0,
        rounds: alternate(scale.rounds, ours, theirs)?,
        target: "at most 0.20 CPU s per million, a tenth of Flink's 2.0".into(),
        peak_rss_mib: peak_rss_mib(),
    })
}

fn visitors_with(
    scale: Scale,
    what: &'static str,
    target: &str,
    job: impl Fn(Job, &Path) -> Job,
    checkpoints: u64,
) -> anyhow::Result<Comparison> {
    let input = Input::of(scale)?;
    let folder = tempfile::tempdir()?;
    let mut steps = Steps::default();
    (0..input.rows.0).map(|i| input.rows.row(i)).for_each(|row| steps.see(row.user_id, row.ts));
    let expected = curve([steps.end()]);
    let ours = || {
        let (got, complete) = cumulative_uv(&input, |made| job(made, folder.path()))?;
        ensure!(
            scale.smoke || complete >= checkpoints,
            "{complete} checkpoints completed, {checkpoints} are wanted"
        );
        same(&got, &expected)
    };
    let theirs = || same(&curve(input.by_hand(visitors_by_hand)?), &expected);
    Ok(Comparison {
        what,
        baseline: "hand-written",
        records: input.rows.0,
        rounds: alternate(scale.rounds, ours, theirs)?,
        target: target.into(),
        peak_rss_mib: peak_rss_mib(),
    })
}

/// Cumulative visitors, in memory.
pub(crate) fn visitors(scale: Scale) -> anyhow::Result<Comparison> {
    visitors_with(
        scale,
        "two JSON files → decode → visitors since midnight every 10 minutes, memory, parallelism 2",
        "at most 0.55 CPU s per million, a tenth of Flink's 5.5",
        |job, _| job.state(StateBackend::memory()),
        0,
    )
}

/// Cumulative visitors on RocksDB. A run takes a few seconds, so checkpoints are taken more often than in the peers' runs.
pub(crate) fn visitors_on_rocksdb(scale: Scale) -> anyhow::Result<Comparison> {
    visitors_with(
        scale,
        "the same on RocksDB, a checkpoint every half second",
        "at most 0.58 CPU s per million, a fortieth of Flink's 23",
        |job, folder| {
            let checkpoints = Checkpoints::to(folder.display().to_string());
            let every = checkpoints.every(Duration::from_millis(500)).start_from(StartFrom::Fresh);
            job.state(StateBackend::rocksdb()).checkpoints(every)
        },
        1,
    )
}
