//! Streams that begin or end in a vector: for tests, examples and small jobs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_engine::{
    Data, EventTime, OperatorContext, Record, Result, Sink, Source, SourceBatch, SourceStatus, SplitId,
    TaskError,
};

use crate::rate::checked;

/// Gives the values of a vector once, in order, and ends.
///
/// With `p` subtasks, subtask `s` gives values `s`, `s + p`, `s + 2p`, …; each subtask is a split of its own.
pub struct MemorySource<T> {
    records: Arc<Vec<(T, EventTime)>>,
    next: usize,
    step: usize,
    split: SplitId,
    announced: bool,
}

impl<T: Data + Sync> MemorySource<T> {
    /// Values without a time.
    pub fn new(values: impl IntoIterator<Item = T>) -> Self {
        Self::timed(values.into_iter().map(|value| (value, EventTime::NONE)))
    }

    /// Values with their event times.
    pub fn timed(records: impl IntoIterator<Item = (T, EventTime)>) -> Self {
        MemorySource {
            records: Arc::new(records.into_iter().collect()),
            next: 0,
            step: 1,
            split: SplitId(0),
            announced: false,
        }
    }
}

impl<T: Data + Sync> Source for MemorySource<T> {
    type Out = T;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.next = cx.subtask();
        self.step = cx.parallelism();
        self.split = SplitId(cx.subtask() as u32);
        self.announced = false;
        Ok(())
    }

    fn poll(&mut self, out: &mut SourceBatch<T>, _budget: Duration) -> Result<SourceStatus> {
        if !self.announced {
            self.announced = true;
            out.split_started(self.split);
        }
        while out.room() > 0 {
            let Some((value, time)) = self.records.get(self.next) else {
                out.split_finished(self.split);
                return Ok(SourceStatus::End);
            };
            out.push(self.split, value.clone(), *time);
            self.next += self.step;
        }
        Ok(SourceStatus::More)
    }
}

impl<T> Clone for MemorySource<T> {
    fn clone(&self) -> Self {
        MemorySource { records: Arc::clone(&self.records), ..*self }
    }
}

impl<T> fmt::Debug for MemorySource<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySource")
            .field("records", &self.records.len())
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

/// Keeps what arrives in a vector that its [`MemoryHandle`]s read. Records of one subtask stay in order; subtasks mix by
/// the batch.
///
/// # Examples
///
/// ```
/// use weir_connectors::memory::MemorySink;
/// let sink = MemorySink::<u64>::new();
/// let handle = sink.handle();
/// assert!(handle.take().is_empty());
/// ```
pub struct MemorySink<T> {
    handle: MemoryHandle<T>,
    /// What all subtasks take together; none is as fast as it can be.
    records_per_s: Option<f64>,
    pace: Option<Pace>,
}

/// The slow motion of one subtask.
#[derive(Clone)]
struct Pace {
    cx: OperatorContext,
    each: Duration,
    due: Instant,
}

/// Reads what a [`MemorySink`] has taken, from any thread, while the job runs or after it.
pub struct MemoryHandle<T> {
    records: Arc<Mutex<Vec<Record<T>>>>,
}

impl<T> MemorySink<T> {
    /// An empty sink.
    pub fn new() -> Self {
        MemorySink {
            handle: MemoryHandle { records: Arc::new(Mutex::new(Vec::new())) },
            records_per_s: None,
            pace: None,
        }
    }

    /// Takes at most this many records a second, all subtasks together: a slow sink for tests of backpressure. A rate that
    /// is not finite, or less than a millionth, fails the start of the job.
    #[must_use]
    pub fn rate(mut self, records_per_s: f64) -> Self {
        self.records_per_s = Some(records_per_s);
        self
    }

    /// Where to read what the sink has taken.
    pub fn handle(&self) -> MemoryHandle<T> {
        self.handle.clone()
    }
}

impl<T> Default for MemorySink<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> MemoryHandle<T> {
    fn records(&self) -> MutexGuard<'_, Vec<Record<T>>> {
        // A vector is whole after every push, so a panic elsewhere has not broken it.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all records out, leaving none.
    pub fn take(&self) -> Vec<Record<T>> {
        std::mem::take(&mut *self.records())
    }

    /// Takes the values of all records out, leaving none.
    pub fn take_values(&self) -> Vec<T> {
        self.take().into_iter().map(|r| r.value).collect()
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.records().len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Clone> MemoryHandle<T> {
    /// A copy of all records so far.
    pub fn snapshot(&self) -> Vec<Record<T>> {
        self.records().clone()
    }
}

impl<T: Data> Sink<T> for MemorySink<T> {
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.pace = match self.records_per_s {
            None => None,
            Some(rate) => {
                let rate = checked("the memory sink", rate)?;
                let each = Duration::from_secs_f64(cx.parallelism() as f64 / rate);
                Some(Pace { cx: cx.clone(), each, due: Instant::now() })
            }
        };
        Ok(())
    }

    fn write(&mut self, batch: &mut Vec<Record<T>>) -> Result<()> {
        if self.records_per_s.is_none() {
            self.handle.records().append(batch);
            return Ok(());
        }
        let Some(pace) = &mut self.pace else {
            return Err(TaskError::internal("a memory sink with a rate was written to before it was opened"));
        };
        // In steps of about 10 ms, so that readers of the handle see a stream and not a staircase.
        let step = (0.01 / pace.each.as_secs_f64()).clamp(1.0, 1024.0) as usize;
        while !batch.is_empty() {
            let n = step.min(batch.len());
            pace.due = pace.due.max(Instant::now()) + pace.each * n as u32;
            pace.cx.wait(pace.due.saturating_duration_since(Instant::now()))?;
            self.handle.records().extend(batch.drain(..n));
        }
        Ok(())
    }
}

impl<T> Clone for MemorySink<T> {
    fn clone(&self) -> Self {
        MemorySink { handle: self.handle.clone(), records_per_s: self.records_per_s, pace: self.pace.clone() }
    }
}

impl<T> Clone for MemoryHandle<T> {
    fn clone(&self) -> Self {
        MemoryHandle { records: Arc::clone(&self.records) }
    }
}

impl<T> fmt::Debug for MemorySink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySink")
            .field("records", &self.handle.len())
            .field("records_per_s", &self.records_per_s)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for MemoryHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryHandle").field("records", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use weir_engine::testkit::context;

    use super::*;

    fn drain(mut source: MemorySource<u64>, subtask: usize, parallelism: usize) -> Vec<u64> {
        source.open(&context("mem", subtask, parallelism)).unwrap();
        let mut got = Vec::new();
        loop {
            let mut out = SourceBatch::new(3);
            let status = source.poll(&mut out, Duration::from_millis(1)).unwrap();
            got.extend(out.records().iter().map(|r| r.value));
            if status == SourceStatus::End {
                return got;
            }
        }
    }

    #[test]
    fn subtasks_share_the_vector_and_none_is_left_out() {
        for p in [1, 2, 3, 20] {
            let source = MemorySource::new(0..10u64);
            let mut all: Vec<u64> = (0..p).flat_map(|s| drain(source.clone(), s, p)).collect();
            all.sort_unstable();
            assert_eq!(all, (0..10).collect::<Vec<_>>(), "parallelism {p}");
        }
        assert_eq!(drain(MemorySource::new(0..5u64), 1, 2), [1, 3]);
    }

    #[test]
    fn a_clone_opened_again_starts_over() {
        let source = MemorySource::new(0..4u64);
        assert_eq!(drain(source.clone(), 0, 1), drain(source, 0, 1));
    }

    #[test]
    fn sink_keeps_order_and_hands_out() {
        let mut sink = MemorySink::new();
        let handle = sink.handle();
        let mut batch = vec![Record::new(1, EventTime(5)), Record::new(2, EventTime(6))];
        sink.write(&mut batch).unwrap();
        assert!(batch.is_empty());
        assert_eq!(handle.snapshot().len(), 2);
        assert_eq!(handle.take_values(), [1, 2]);
        assert!(handle.is_empty());
    }

    #[test]
    fn a_rate_that_cannot_be_kept_fails_the_start() {
        for bad in [f64::NAN, 0.0, -1.0, 1e-300, f64::INFINITY] {
            let e = MemorySink::<u64>::new().rate(bad).open(&context("slow", 0, 1)).unwrap_err().to_string();
            assert!(e.contains(&format!("a rate of {bad:?} records per second")), "{e}");
        }
        let mut fast = MemorySink::new().rate(f64::MAX);
        fast.open(&context("fast", 0, 1)).unwrap();
        fast.write(&mut vec![Record::new(1, EventTime::NONE)]).unwrap();
        assert_eq!(fast.handle().take_values(), [1]);
    }

    #[test]
    fn rate_holds_the_writer_back() {
        let mut sink = MemorySink::new().rate(1000.0);
        sink.open(&context("slow", 0, 1)).unwrap();
        let start = Instant::now();
        let mut batch: Vec<_> = (0..50).map(|i| Record::new(i, EventTime::NONE)).collect();
        sink.write(&mut batch).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(45), "{:?}", start.elapsed());
        assert_eq!(sink.handle().len(), 50);
    }
}
