//! What the benchmarks of windows share: their records, what is added up of their results, and the job around a window.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_connectors::prelude::*;
use weir_connectors::random::Random;
use weir_engine::*;
use weir_operators::prelude::*;
use weir_operators::window::Window;

use crate::exchange::PARALLELISM;

/// A key and a value.
pub(crate) type Pair = (u64, u64);

/// Milliseconds.
pub(crate) fn ms(n: i64) -> Duration {
    Duration::from_millis(n.unsigned_abs())
}

/// What all results of a run come to; it depends on every one of them, and on nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// How many results there are.
    pub(crate) results: u64,
    /// What their values add up to: with counts, how many records are in them.
    pub(crate) values: u64,
    /// Of keys, bounds and values.
    pub(crate) digest: u64,
}

impl Totals {
    /// Takes in one result.
    #[inline]
    pub(crate) fn add(&mut self, key: u64, start: i64, end: i64, value: u64) {
        let bounds = (start as u64).rotate_left(32) ^ end as u64;
        let place = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ bounds.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.results += 1;
        self.values = self.values.wrapping_add(value);
        self.digest = self.digest.wrapping_add((place ^ (place >> 29)).wrapping_mul(2 * value + 1));
    }

    /// Takes in what another thread has.
    pub(crate) fn and(self, other: Totals) -> Totals {
        Totals {
            results: self.results + other.results,
            values: self.values.wrapping_add(other.values),
            digest: self.digest.wrapping_add(other.digest),
        }
    }
}

/// Adds up what a window gives.
#[derive(Clone, Default)]
struct Weigh {
    own: Totals,
    total: Arc<[AtomicU64; 3]>,
}

impl Weigh {
    fn totals(&self) -> Totals {
        let [results, values, digest] = [0, 1, 2].map(|i| self.total[i].load(Ordering::Relaxed));
        Totals { results, values, digest }
    }
}

impl Sink<WindowResult<u64, u64>> for Weigh {
    fn write(&mut self, batch: &mut Vec<Record<WindowResult<u64, u64>>>) -> Result<()> {
        for r in batch.drain(..) {
            let WindowResult { key, window, value, .. } = r.value;
            self.own.add(key, window.start.millis(), window.end.millis(), value);
        }
        Ok(())
    }
    fn flush(&mut self) -> Result<()> {
        let Totals { results, values, digest } = std::mem::take(&mut self.own);
        for (total, own) in self.total.iter().zip([results, values, digest]) {
            total.fetch_add(own, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Runs `n` records of `make` (a pair and its time, which rises) through a window and its aggregate; the job is made what
/// `with` makes of it. Sources give a watermark every 8,192 records of theirs. Gives what came out, and how many checkpoints
/// there were.
pub(crate) fn weir<W: Window<u64, Pair>>(
    n: u64,
    make: impl Fn(u64) -> (Pair, i64) + Clone + Send + 'static,
    window: W,
    aggregate: impl Aggregate<Pair, Out = u64>,
    with: impl FnOnce(Job) -> Job,
) -> anyhow::Result<(Totals, u64)> {
    let sink = Weigh::default();
    let job = with(Job::named("windows").parallelism(PARALLELISM as usize));
    let records = Generator::new(0, Some(n), move |i, _: &mut Random| {
        let (pair, time) = make(i);
        (pair, EventTime(time))
    });
    job.source("pairs", records)
        .source_time(Watermarks::monotonic())
        .key_by("by-key", |r| r.0)
        .window(window)
        .aggregate("window", aggregate)
        .sink("weigh", sink.clone());
    let report = job.start()?.wait()?;
    Ok((sink.totals(), report.checkpoints))
}

/// What tumbling windows of `size` ms must give of `value` of each record, added up per key.
pub(crate) fn tumbled(
    n: u64,
    keys: u64,
    size: i64,
    make: impl Fn(u64) -> (Pair, i64),
    value: fn(Pair) -> u64,
) -> Totals {
    slid(n, keys, (size, size), make, value)
}

/// What sliding windows of a size and a slide in ms must give: the sums of a few tables, one per slide.
pub(crate) fn slid(
    n: u64,
    keys: u64,
    (size, slide): (i64, i64),
    make: impl Fn(u64) -> (Pair, i64),
    value: fn(Pair) -> u64,
) -> Totals {
    let (mut totals, overlap) = (Totals::default(), size / slide);
    // Per key how many records and what they come to: of the slide at hand, and of those before that are in a window with it.
    let empty = || vec![(0u64, 0u64); keys as usize + 1];
    let mut recent: std::collections::VecDeque<Vec<(u64, u64)>> = (0..overlap).map(|_| empty()).collect();
    let (mut i, mut start) = (0, 0);
    let mut quiet = 0;
    while quiet < overlap {
        let mut now = recent.pop_front().unwrap_or_else(empty);
        now.fill((0, 0));
        let before = i;
        while i < n {
            let (pair, time) = make(i);
            if time >= start + slide {
                break;
            }
            let of_key = &mut now[pair.0 as usize];
            *of_key = (of_key.0 + 1, of_key.1 + value(pair));
            i += 1;
        }
        quiet = if i == before { quiet + 1 } else { 0 };
        recent.push_back(now);
        start += slide;
        for key in 0..=keys as usize {
            let (records, value) = recent.iter().fold((0, 0), |(n, v), of| (n + of[key].0, v + of[key].1));
            if records > 0 {
                totals.add(key as u64, start - size, start, value);
            }
        }
    }
    totals
}
