//! Two sources → key_by → count per key → sink, against the same program by hand: threads, crossbeam and hash maps.

use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use crossbeam_channel::bounded;
use hashbrown::HashMap;
use weir_engine::*;
use weir_operators::prelude::*;
use weir_state::key_hash;

use crate::cli::Scale;
use crate::measure::{Comparison, alternate, peak_rss_mib};

const RECORDS: u64 = 50_000_000;
const KEYS: u64 = 100_000;
pub(crate) const PARALLELISM: u64 = 2;
pub(crate) const BATCH: usize = 1024;
pub(crate) const DEPTH: usize = 8;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A key and a value: record `i` of the peers' programs, with this many keys.
#[inline]
pub(crate) fn pair(i: u64, keys: u64) -> (u64, u64) {
    let h = mix(i.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1));
    (1 + h % keys, (h >> 40) & 1023)
}

/// Record `i` of the whole input.
#[inline]
fn record(i: u64) -> (u64, u64) {
    pair(i, KEYS)
}

/// Every second record, from its subtask's number on.
#[derive(Clone)]
struct Pairs {
    next: u64,
    n: u64,
    subtask: u64,
}

impl Source for Pairs {
    type Out = (u64, u64);
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.subtask = cx.subtask() as u64;
        let own = |item: &RestoredItem| item.key == self.subtask.to_string();
        let restored = cx.restored("positions").into_iter().find(own);
        self.next = restored.and_then(|item| item.value.as_u64()).unwrap_or(0);
        Ok(())
    }
    fn positions(&mut self, _: Barrier) -> Result<Vec<(String, serde_json::Value)>> {
        Ok(vec![(self.subtask.to_string(), self.next.into())])
    }
    fn poll(&mut self, out: &mut SourceBatch<(u64, u64)>, _: Duration) -> Result<SourceStatus> {
        let end = (self.next + out.room() as u64).min(self.n / PARALLELISM);
        for j in self.next..end {
            out.push(
                SplitId(self.subtask as u32),
                record(j * PARALLELISM + self.subtask),
                EventTime(j as i64),
            );
        }
        self.next = end;
        Ok(if end == self.n / PARALLELISM { SourceStatus::End } else { SourceStatus::More })
    }
}

/// Counts per key and gives the running count, as a Flink job with a `ValueState` does.
#[derive(Clone)]
struct Count;

impl ProcessFunction<u64, (u64, u64)> for Count {
    type Out = (u64, u64);
    type State = u64;
    fn process(
        &mut self,
        r: Record<(u64, u64)>,
        cx: &mut KeyedContext<'_, u64, u64>,
        out: &mut impl Collector<(u64, u64)>,
    ) -> Result<()> {
        let count = cx.state()?;
        *count += 1;
        let count = *count;
        out.emit(Record { value: (r.value.0, count), time: r.time })
    }
}

/// What both sides do with a running count: the sum of all of them depends on every single one.
#[inline]
fn weigh((key, count): (u64, u64)) -> u64 {
    key.wrapping_mul(count)
}

#[derive(Clone)]
struct Weigh {
    sum: u64,
    records: u64,
    total: Arc<[AtomicU64; 2]>,
}

impl Sink<(u64, u64)> for Weigh {
    fn write(&mut self, batch: &mut Vec<Record<(u64, u64)>>) -> Result<()> {
        self.records += batch.len() as u64;
        for r in batch.drain(..) {
            self.sum = self.sum.wrapping_add(weigh(r.value));
        }
        Ok(())
    }
    fn flush(&mut self) -> Result<()> {
        self.total[0].fetch_add(std::mem::take(&mut self.sum), Ordering::Relaxed);
        self.total[1].fetch_add(std::mem::take(&mut self.records), Ordering::Relaxed);
        Ok(())
    }
}

/// Runs the job, made what `with` makes of it; gives what the sink saw, and how many checkpoints there were.
pub(crate) fn weir(n: u64, with: impl FnOnce(Job) -> Job) -> anyhow::Result<((u64, u64), u64)> {
    let total = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let job = with(Job::named("exchange").parallelism(PARALLELISM as usize));
    job.source("pairs", Pairs { next: 0, n, subtask: 0 })
        .source_time(Watermarks::monotonic())
        .key_by("by-key", |r| r.0)
        .process("count", Count)
        .sink("weigh", Weigh { sum: 0, records: 0, total: total.clone() });
    let report = job.start()?.wait()?;
    Ok(((total[0].load(Ordering::Relaxed), total[1].load(Ordering::Relaxed)), report.checkpoints))
}

/// What the sink must have seen: one thread, one table, whatever the order.
pub(crate) fn expected(n: u64) -> (u64, u64) {
    let mut counts = vec![0u64; KEYS as usize + 1];
    (0..n).for_each(|i| counts[record(i).0 as usize] += 1);
    let sums = counts.iter().zip(0u64..).map(|(c, k)| k.wrapping_mul((c * c + c) / 2));
    (sums.fold(0, u64::wrapping_add), n)
}

/// Our hash for the baseline's maps, so that both sides pay the same for hashing.
#[derive(Default)]
pub(crate) struct Ours(u64);

impl Hasher for Ours {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64")
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key_hash(&key).0;
    }
}

fn by_hand(n: u64) -> (u64, u64) {
    let p = PARALLELISM as usize;
    let (tx, rx): (Vec<_>, Vec<_>) = (0..p * p).map(|_| bounded::<Vec<(u64, u64)>>(DEPTH)).unzip();
    let results: Vec<(u64, u64)> = std::thread::scope(|scope| {
        for producer in 0..p {
            let tx: Vec<_> = (0..p).map(|consumer| tx[producer * p + consumer].clone()).collect();
            scope.spawn(move || {
                let mut buffers: Vec<_> = (0..p).map(|_| Vec::with_capacity(BATCH)).collect();
                for j in 0..n / PARALLELISM {
                    let r = record(j * PARALLELISM + producer as u64);
                    let to = key_hash(&r.0).group(KEY_GROUPS).subtask(KEY_GROUPS, p);
                    buffers[to].push(r);
                    if buffers[to].len() == BATCH {
                        let full = std::mem::replace(&mut buffers[to], Vec::with_capacity(BATCH));
                        tx[to].send(full).expect("the consumer lives until its producers are done");
                    }
                }
                for (tx, rest) in tx.iter().zip(buffers) {
                    tx.send(rest).expect("the consumer lives until its producers are done");
                }
            });
        }
        drop(tx);
        let consumers: Vec<_> = (0..p)
            .map(|consumer| {
                let mut rx: Vec<_> = (0..p).map(|producer| rx[producer * p + consumer].clone()).collect();
                scope.spawn(move || {
                    let mut counts: HashMap<u64, u64, BuildHasherDefault<Ours>> = HashMap::default();
                    let (mut sum, mut records) = (0u64, 0u64);
                    while !rx.is_empty() {
                        let mut select = crossbeam_channel::Select::new();
                        for rx in &rx {
                            select.recv(rx);
                        }
                        let ready = select.ready();
                        loop {
                            match rx[ready].try_recv() {
                                Ok(batch) => {
                                    records += batch.len() as u64;
                                    for (key, _) in batch {
                                        let count = counts.entry(key).or_insert(0);
                                        *count += 1;
                                        sum = sum.wrapping_add(weigh(black_box((key, *count))));
                                    }
                                }
                                Err(crossbeam_channel::TryRecvError::Empty) => break,
                                Err(crossbeam_channel::TryRecvError::Disconnected) => {
                                    rx.remove(ready);
                                    break;
                                }
                            }
                        }
                    }
                    (sum, records)
                })
            })
            .collect();
        drop(rx);
        consumers.into_iter().map(|c| c.join().expect("a consumer does not panic")).collect()
    });
    results.into_iter().fold((0, 0), |(s, r), (sum, records)| (s.wrapping_add(sum), r + records))
}

pub(crate) fn run(scale: Scale) -> anyhow::Result<Comparison> {
    let n = scale.records(RECORDS);
    let expected = expected(n);
    let check = |got: (u64, u64)| {
        ensure!(got == expected, "sum and records {got:?}, expected {expected:?}");
        Ok(None)
    };
    let rounds = alternate(scale.rounds, || check(weir(n, |job| job)?.0), || check(by_hand(n)))?;
    Ok(Comparison {
        what: "2 sources → key_by → running count per key → sink, (u64, u64), 100,000 keys, parallelism 2",
        baseline: "hand-written",
        records: n,
        rounds,
        target: "at least 0.667 of the hand-written throughput; aim 40 M records/s on two quiet cores".into(),
        peak_rss_mib: peak_rss_mib(),
    })
}
