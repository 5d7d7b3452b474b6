//! Source → map → filter → map → sink on one thread, against the bare loop that does the same work.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use weir_engine::*;
use weir_operators::prelude::*;

use crate::cli::Scale;
use crate::measure::{Comparison, alternate, peak_rss_mib};

const RECORDS: u64 = 20_000_000;

/// 48 bytes and a string on the heap, as real events have.
#[derive(Clone)]
struct Fat {
    user: u64,
    item: u64,
    amount: u64,
    name: String,
}

fn make(i: u64) -> Fat {
    // Sixteen characters: as long as an id of theirs, and always a heap allocation.
    let mut name = String::with_capacity(16);
    name.push_str(if i & 1 == 0 { "behaviour-of-buy" } else { "behaviour-of-pv!" });
    Fat { user: i % 1000, item: i, amount: i & 15, name }
}

fn first(mut r: Fat) -> Fat {
    r.amount += 1;
    r
}

fn keep(r: &Fat) -> bool {
    !r.item.is_multiple_of(8)
}

fn second(mut r: Fat) -> Fat {
    r.user += r.name.len() as u64;
    r
}

#[inline]
fn weigh(r: &Fat) -> u64 {
    r.user ^ r.item.wrapping_mul(r.amount)
}

/// Makes records `0..n` on one subtask.
#[derive(Clone)]
struct Numbers {
    next: u64,
    n: u64,
}

impl Source for Numbers {
    type Out = Fat;
    fn open(&mut self, _: &OperatorContext) -> Result<()> {
        Ok(())
    }
    fn poll(&mut self, out: &mut SourceBatch<Fat>, _: Duration) -> Result<SourceStatus> {
        let end = (self.next + out.room() as u64).min(self.n);
        for i in self.next..end {
            out.push(SplitId(0), make(i), EventTime(i as i64));
        }
        self.next = end;
        Ok(if end == self.n { SourceStatus::End } else { SourceStatus::More })
    }
}

/// Adds up what it gets, then drops it.
#[derive(Clone)]
struct Weigh {
    sum: u64,
    total: Arc<AtomicU64>,
}

impl Sink<Fat> for Weigh {
    fn write(&mut self, batch: &mut Vec<Record<Fat>>) -> Result<()> {
        for r in batch.drain(..) {
            self.sum = self.sum.wrapping_add(weigh(&r.value));
        }
        Ok(())
    }
    fn flush(&mut self) -> Result<()> {
        self.total.store(self.sum, Ordering::Relaxed);
        Ok(())
    }
}

fn weir(n: u64) -> anyhow::Result<u64> {
    let total = Arc::new(AtomicU64::new(0));
    let job = Job::named("chain").parallelism(1);
    job.source("numbers", Numbers { next: 0, n })
        .source_time(Watermarks::monotonic())
        .map(first)
        .filter(keep)
        .map(second)
        .sink("weigh", Weigh { sum: 0, total: total.clone() });
    job.start()?.wait()?;
    Ok(total.load(Ordering::Relaxed))
}

fn bare(n: u64) -> u64 {
    let mut sum = 0u64;
    for i in 0..n {
        let r = first(make(black_box(i)));
        if keep(&r) {
            sum = sum.wrapping_add(weigh(&black_box(second(r))));
        }
    }
    sum
}

pub(crate) fn run(scale: Scale) -> anyhow::Result<Comparison> {
    let n = scale.records(RECORDS);
    let expected = bare(n);
    let rounds = alternate(
        scale.rounds,
        || {
            let sum = weir(n)?;
            ensure!(sum == expected, "sum {sum}, expected {expected}");
            Ok(None)
        },
        || {
            ensure!(bare(n) == expected, "the loop disagrees with itself");
            Ok(None)
        },
    )?;
    Ok(Comparison {
        what: "source → map → filter → map → sink, one thread, 48-byte records with a heap string",
        baseline: "bare loop",
        records: n,
        rounds,
        target: "within 10 ns per record of the bare loop".into(),
        peak_rss_mib: peak_rss_mib(),
    })
}
