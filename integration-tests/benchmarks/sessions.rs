//! Session windows of 100,000 keys, against one thread with one hash map that knows all records come in order.

use std::hash::BuildHasherDefault;
use std::hint::black_box;

use anyhow::ensure;
use hashbrown::HashMap;
use weir_engine::prelude::*;
use weir_operators::prelude::*;

use crate::cli::Scale;
use crate::exchange::{Ours, pair};
use crate::measure::{Comparison, alternate, peak_rss_mib};
use crate::windows::{Pair, Totals, ms, weir};

const RECORDS: u64 = 50_000_000;
const PER_MS: u64 = 1_000;

/// In turn one half of the keys is there for a while and then the other: long enough for sessions of some forty records, and
/// gone for longer than the gap.
#[derive(Clone, Copy)]
struct Shape {
    keys: u64,
    turn: i64,
    gap: i64,
}

impl Shape {
    fn of(scale: Scale) -> Self {
        if scale.smoke {
            Shape { keys: 100, turn: 10, gap: 5 }
        } else {
            Shape { keys: 100_000, turn: 2_000, gap: 500 }
        }
    }

    fn make(self) -> impl Fn(u64) -> (Pair, i64) + Clone + Send + 'static {
        move |i| {
            let (time, (nth, value)) = ((i / PER_MS) as i64, pair(i, self.keys / 2));
            let half = (time / self.turn) as u64 & 1;
            ((2 * nth - half, value), time)
        }
    }

    /// What must come out.
    fn by_hand(self, n: u64) -> Totals {
        let (make, mut totals) = (self.make(), Totals::default());
        // First and last record of the open session, and how many it has.
        let mut open: HashMap<u64, (i64, i64, u64), BuildHasherDefault<Ours>> = HashMap::default();
        for i in 0..n {
            let ((key, _), time) = make(i);
            let (first, last, records) = open.entry(key).or_insert((time, time, 0));
            if time - *last >= self.gap {
                totals.add(key, *first, *last + self.gap, *records);
                (*first, *records) = (time, 0);
            }
            (*last, *records) = black_box((time, *records + 1));
        }
        for (key, (first, last, records)) in open {
            totals.add(key, first, last + self.gap, records);
        }
        totals
    }
}

pub(crate) fn run(scale: Scale) -> anyhow::Result<Comparison> {
    let (n, shape) = (scale.records(RECORDS), Shape::of(scale));
    let expected = shape.by_hand(n);
    ensure!(expected.values == n && expected.results < n / 10, "{expected:?}");
    let ours = || {
        let window = Session::gap(ms(shape.gap));
        let (got, _) = weir(n, shape.make(), window, count(), |job| job.state(StateBackend::memory()))?;
        ensure!(got == expected, "{got:?}, expected {expected:?}");
        Ok(None)
    };
    let theirs = || {
        ensure!(shape.by_hand(n) == expected, "the loop disagrees with itself");
        Ok(None)
    };
    Ok(Comparison {
        what: "sessions with a gap of 500 ms, count per key, 100,000 keys, some 40 records each, memory, parallelism 2",
        baseline: "one thread",
        records: n,
        rounds: alternate(scale.rounds, ours, theirs)?,
        target: "at least 5 M records/s".into(),
        peak_rss_mib: peak_rss_mib(),
    })
}
