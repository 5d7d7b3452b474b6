//! Tumbling count per key with a watermark every 8,192 records, against the same job by hand: threads, crossbeam, one hash map per window.

use std::hash::BuildHasherDefault;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::ensure;
use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError, bounded};
use hashbrown::HashMap;
use weir_engine::prelude::*;
use weir_operators::prelude::*;
use weir_state::{KEY_GROUPS, key_hash};

use crate::cli::Scale;
use crate::exchange::{BATCH, DEPTH, Ours, PARALLELISM, pair};
use crate::measure::{Comparison, alternate, peak_rss_mib};
use crate::windows::{Pair, Totals, ms, tumbled, weir};

const RECORDS: u64 = 50_000_000;
/// Records in one millisecond of event time, as in the peers' programs.
const PER_MS: u64 = 1_000;
/// So many records of a producer between two watermarks.
const WATERMARK_EVERY: u64 = 8_192;
/// What a run with checkpoints is to take: enough for ten when the machine is a third faster than it was in the trial.
const RUN: Duration = Duration::from_secs(80);

/// What is to be done.
#[derive(Clone, Copy)]
struct Shape {
    keys: u64,
    /// Of a window, in ms.
    size: i64,
}

impl Shape {
    /// Windows of ten seconds; in a smoke run shorter ones, so that there are several.
    fn of(scale: Scale, keys: u64) -> Self {
        if scale.smoke { Shape { keys: keys / 1_000, size: 10 } } else { Shape { keys, size: 10_000 } }
    }

    fn make(self) -> impl Fn(u64) -> (Pair, i64) + Clone + Send + 'static {
        move |i| (pair(i, self.keys), (i / PER_MS) as i64)
    }

    fn expected(self, n: u64) -> Totals {
        tumbled(n, self.keys, self.size, self.make(), |_| 1)
    }

    fn weir(self, n: u64, with: impl FnOnce(Job) -> Job) -> anyhow::Result<(Totals, u64)> {
        weir(n, self.make(), Tumbling::of(ms(self.size)), count(), with)
    }
}

/// What one thread sends to another.
enum Sent {
    Records(Vec<(Pair, i64)>),
    Watermark(i64),
}

/// Per key.
type Counts = HashMap<u64, u64, BuildHasherDefault<Ours>>;

/// The windows of one thread: a hash map each, found by comparing their starts.
struct Windows {
    size: i64,
    open: Vec<(i64, Counts)>,
    /// Where the window used last is.
    last: usize,
    totals: Totals,
}

impl Windows {
    #[inline]
    fn count(&mut self, (key, _): Pair, time: i64) {
        let inside = |start: i64| start <= time && time < start + self.size;
        if !self.open.get(self.last).is_some_and(|(start, _)| inside(*start)) {
            let start = time - time.rem_euclid(self.size);
            self.last = self.open.iter().position(|(open, _)| *open == start).unwrap_or_else(|| {
                self.open.push((start, HashMap::default()));
                self.open.len() - 1
            });
        }
        *self.open[self.last].1.entry(key).or_insert(0) += 1;
    }

    fn advance(&mut self, watermark: i64) {
        while let Some(over) = self.open.iter().position(|(start, _)| start + self.size - 1 <= watermark) {
            let (start, counts) = self.open.swap_remove(over);
            for (key, count) in counts {
                let (key, count) = black_box((key, count));
                self.totals.add(key, start, start + self.size, count);
            }
        }
    }
}

/// One of two threads: makes every second record, counts those that are its own, and sends the others to the other thread.
struct Hand {
    to: Sender<Sent>,
    from: Receiver<Sent>,
    windows: Windows,
    /// Its own, and the other's.
    watermarks: [i64; 2],
}

impl Hand {
    /// Counts what the other has sent so far; with `wait`, at least one thing.
    fn take(&mut self, wait: bool) {
        let mut next = if wait {
            self.from.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            self.from.try_recv()
        };
        while let Ok(sent) = next {
            match sent {
                Sent::Records(batch) => {
                    batch.into_iter().for_each(|(pair, time)| self.windows.count(pair, time))
                }
                Sent::Watermark(watermark) => self.advance(1, watermark),
            }
            next = self.from.try_recv();
        }
    }

    /// The watermark of one of both stands there now.
    fn advance(&mut self, of: usize, watermark: i64) {
        self.watermarks[of] = watermark;
        self.windows.advance(self.watermarks[0].min(self.watermarks[1]));
    }

    /// Sends, and counts meanwhile when the other does not take it: both could be waiting for each other.
    fn send(&mut self, mut sent: Sent) {
        while let Err(TrySendError::Full(back)) = self.to.try_send(sent) {
            sent = back;
            self.take(false);
            std::thread::yield_now();
        }
    }

    fn run(mut self, n: u64, own: usize, make: impl Fn(u64) -> (Pair, i64)) -> Totals {
        let mut buffer = Vec::with_capacity(BATCH);
        for j in 0..n / PARALLELISM {
            let (pair, time) = make(j * PARALLELISM + own as u64);
            if key_hash(&pair.0).group(KEY_GROUPS).subtask(KEY_GROUPS, PARALLELISM as usize) == own {
                self.windows.count(pair, time);
            } else {
                buffer.push((pair, time));
                if buffer.len() == BATCH {
                    let full = std::mem::replace(&mut buffer, Vec::with_capacity(BATCH));
                    self.send(Sent::Records(full));
                }
            }
            if (j + 1).is_multiple_of(WATERMARK_EVERY) {
                let rest = std::mem::replace(&mut buffer, Vec::with_capacity(BATCH));
                self.send(Sent::Records(rest));
                self.send(Sent::Watermark(time - 1));
                self.advance(0, time - 1);
                self.take(false);
            }
        }
        self.send(Sent::Records(buffer));
        self.send(Sent::Watermark(i64::MAX));
        self.advance(0, i64::MAX);
        while self.watermarks[1] < i64::MAX {
            self.take(true);
        }
        self.windows.totals
    }
}

fn by_hand(n: u64, shape: Shape) -> Totals {
    let (to_second, from_first) = bounded(DEPTH);
    let (to_first, from_second) = bounded(DEPTH);
    let windows = || Windows { size: shape.size, open: Vec::new(), last: 0, totals: Totals::default() };
    let ends = [(to_second, from_second), (to_first, from_first)];
    let hands = ends.map(|(to, from)| Hand { to, from, windows: windows(), watermarks: [i64::MIN; 2] });
    std::thread::scope(|scope| {
        let threads: Vec<_> = (hands.into_iter().enumerate())
            .map(|(own, hand)| scope.spawn(move || hand.run(n, own, shape.make())))
            .collect();
        (threads.into_iter().map(|t| t.join().expect("a thread by hand does not panic")))
            .fold(Totals::default(), Totals::and)
    })
}

fn check(got: Totals, expected: Totals, n: u64) -> anyhow::Result<()> {
    ensure!(got.values == n, "{} of {n} records were counted", got.values);
    ensure!(got == expected, "{got:?}, expected {expected:?}");
    Ok(())
}

fn in_memory(scale: Scale, keys: u64, what: &'static str) -> anyhow::Result<Comparison> {
    let (n, shape) = (scale.records(RECORDS), Shape::of(scale, keys));
    let expected = shape.expected(n);
    let ours = || {
        let (got, _) = shape.weir(n, |job| job.state(StateBackend::memory()))?;
        check(got, expected, n).map(|()| None)
    };
    let theirs = || check(by_hand(n, shape), expected, n).map(|()| None);
    Ok(Comparison {
        what,
        baseline: "hand-written",
        records: n,
        rounds: alternate(scale.rounds, ours, theirs)?,
        target: "at most 1.5 times the CPU per record; aim 20 M records/s with 100,000 keys".into(),
        peak_rss_mib: peak_rss_mib(),
    })
}

fn on_rocksdb(scale: Scale, keys: u64, what: &'static str) -> anyhow::Result<Comparison> {
    let shape = Shape::of(scale, keys);
    let folder = tempfile::tempdir()?;
    let run = |n| {
        let checkpoints = Checkpoints::to(folder.path().display().to_string());
        let checkpoints = checkpoints.every(Duration::from_secs(5)).start_from(StartFrom::Fresh);
        shape.weir(n, |job| job.state(StateBackend::rocksdb()).checkpoints(checkpoints))
    };
    let n = if scale.smoke {
        scale.records(RECORDS)
    } else {
        let began = Instant::now();
        run(RECORDS)?;
        (RUN.as_secs_f64() / began.elapsed().as_secs_f64() * RECORDS as f64) as u64 / 2 * 2
    };
    let expected = shape.expected(n);
    let mut ours = || {
        let (got, complete) = run(n)?;
        check(got, expected, n)?;
        ensure!(scale.smoke || complete >= 10, "{complete} checkpoints completed, ten are wanted");
        Ok(None)
    };
    let mut theirs = || check(by_hand(n, shape), expected, n).map(|()| None);
    // A minute needs no warming up, and three pairs are enough to see a few percent.
    let mut rounds = Vec::new();
    for _ in 0..scale.rounds.min(3) {
        rounds.extend(alternate(1, &mut ours, &mut theirs)?);
    }
    Ok(Comparison {
        what,
        baseline: "hand-written",
        records: n,
        rounds,
        target: "at most 2 times the CPU per record".into(),
        peak_rss_mib: peak_rss_mib(),
    })
}

/// 100,000 keys in memory.
pub(crate) fn memory(scale: Scale) -> anyhow::Result<Comparison> {
    in_memory(
        scale,
        100_000,
        "tumbling 10 s count, 100,000 keys, memory, parallelism 2, watermark every 8,192 records",
    )
}

/// 1,000,000 keys in memory.
pub(crate) fn memory_1m(scale: Scale) -> anyhow::Result<Comparison> {
    in_memory(
        scale,
        1_000_000,
        "tumbling 10 s count, 1 M keys, memory, parallelism 2, watermark every 8,192 records",
    )
}

/// 100,000 keys on RocksDB.
pub(crate) fn rocksdb(scale: Scale) -> anyhow::Result<Comparison> {
    on_rocksdb(
        scale,
        100_000,
        "tumbling 10 s count, 100,000 keys, RocksDB, a checkpoint every 5 s, watermark every 8,192",
    )
}

/// 1,000,000 keys on RocksDB.
pub(crate) fn rocksdb_1m(scale: Scale) -> anyhow::Result<Comparison> {
    on_rocksdb(
        scale,
        1_000_000,
        "tumbling 10 s count, 1 M keys, RocksDB, a checkpoint every 5 s, watermark every 8,192",
    )
}
