//! What these tests share: a source that is fed by the test while the job runs, and what a probe saw of event time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_engine::testkit::{Probe, Seen};
use weir_engine::{Source, SourceBatch, SourceStatus, SplitId, TaskReading, prelude::*};

pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

type Queue = VecDeque<(u64, i64)>;

/// Gives what the test puts in, split by split; split `k` is read by subtask `k` modulo their number.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    splits: Arc<Mutex<Vec<Queue>>>,
    /// Says that there may be more at once, though there is nothing.
    busy: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    /// Splits that have not begun.
    later: Arc<Mutex<Vec<usize>>>,
    own: Vec<usize>,
    /// Those that were announced.
    announced: Arc<Mutex<Vec<usize>>>,
}

impl Feed {
    pub(crate) fn of(splits: usize) -> Self {
        Feed {
            splits: Arc::new(Mutex::new(vec![Queue::new(); splits])),
            busy: Arc::default(),
            over: Arc::default(),
            later: Arc::default(),
            own: Vec::new(),
            announced: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Queue>> {
        self.splits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records of these times, whose values are their places in `times`.
    pub(crate) fn give(&self, split: usize, times: impl IntoIterator<Item = i64>) {
        self.lock()[split].extend(times.into_iter().enumerate().map(|(i, t)| (i as u64, t)));
    }

    /// These values, each at the time of that number.
    pub(crate) fn give_values(&self, split: usize, values: std::ops::Range<u64>) {
        self.lock()[split].extend(values.map(|n| (n, n as i64)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().iter().all(VecDeque::is_empty)
    }

    pub(crate) fn left(&self, split: usize) -> usize {
        self.lock()[split].len()
    }

    /// The split is announced only when it is said to begin.
    pub(crate) fn begins_later(&self, split: usize) {
        lock(&self.later).push(split);
    }

    pub(crate) fn begins(&self, split: usize) {
        lock(&self.later).retain(|later| *later != split);
    }

    pub(crate) fn is_announced(&self, split: usize) -> bool {
        lock(&self.announced).contains(&split)
    }

    pub(crate) fn busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::SeqCst);
    }

    pub(crate) fn ends(&self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Source for Feed {
    type Out = u64;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let n = self.lock().len();
        self.own = (cx.subtask()..n).step_by(cx.parallelism()).collect();
        lock(&self.announced).retain(|k| !self.own.contains(k));
        Ok(())
    }

    fn poll(&mut self, out: &mut SourceBatch<u64>, _: Duration) -> Result<SourceStatus> {
        {
            let (later, mut announced) = (lock(&self.later), lock(&self.announced));
            for k in self.own.iter().filter(|k| !later.contains(k)) {
                if !announced.contains(k) {
                    announced.push(*k);
                    out.split_started(SplitId(*k as u32));
                }
            }
        }
        // Before the look: what is given after it has been said is not lost.
        let over = self.over.load(Ordering::SeqCst);
        let mut splits = self.splits.lock().unwrap_or_else(PoisonError::into_inner);
        for k in &self.own {
            while let Some((value, time)) = splits[*k].front().copied().filter(|_| out.room() > 0) {
                out.push(SplitId(*k as u32), value, EventTime(time));
                splits[*k].pop_front();
            }
        }
        let empty = self.own.iter().all(|k| splits[*k].is_empty());
        Ok(match () {
            () if empty && over => SourceStatus::End,
            () if !empty || self.busy.load(Ordering::SeqCst) => SourceStatus::More,
            () => SourceStatus::Idle(ms(1)),
        })
    }

    fn split_name(&self, split: SplitId) -> Option<String> {
        Some(format!("part {}", split.0))
    }
}

/// The watermarks that one subtask saw.
pub(crate) fn watermarks<T: weir_engine::Data>(probe: &Probe<T>, subtask: usize) -> Vec<i64> {
    let seen = probe.seen_by(subtask);
    seen.iter().filter_map(|seen| if let Seen::Watermark(w) = seen { Some(*w) } else { None }).collect()
}

/// The last of them.
pub(crate) fn reached<T: weir_engine::Data>(probe: &Probe<T>) -> Option<i64> {
    watermarks(probe, 0).last().copied()
}

/// The times of records that came at or behind the watermark, all subtasks together.
pub(crate) fn late<T: weir_engine::Data>(probe: &Probe<T>) -> Vec<i64> {
    let mut reached = std::collections::HashMap::new();
    let mut late = Vec::new();
    for (subtask, seen) in probe.seen() {
        match seen {
            Seen::Watermark(w) => {
                reached.insert(subtask, w);
            }
            Seen::Record(_, time) if reached.get(&subtask).is_some_and(|w| time <= *w) => late.push(time),
            _ => {}
        }
    }
    late
}

/// A counter of all tasks together.
pub(crate) fn counted(tasks: &[TaskReading], name: &str) -> u64 {
    tasks.iter().flat_map(|t| &t.counters).filter(|(_, n, _)| *n == name).map(|(.., count)| count).sum()
}

/// Ends a job that would go on for ever.
pub(crate) fn cancel(running: &JobHandle) {
    running.cancel();
    assert!(running.wait().is_err(), "cancelled");
}
