//! Streams that begin or end in a vector: for tests, examples and small jobs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_engine::{
    Barrier, Data, EventTime, OperatorContext, Record, RestoredItem, Result, Sink, Source, SourceBatch,
    SourceStatus, SplitId, TaskError,
};

use crate::rate::checked;
use crate::stripes::{POSITIONS, Stripes, share_name};

/// Gives the values of a vector once, in order, and ends.
///
/// Value `i` belongs to subtask `i % 128 % p` of `p`, and each subtask is a split of its own; above 128 subtasks the others
/// give nothing.
///
/// *Checkpoints* hold where each of the 128 parts stands: a life that begins from one gives the values that were not given,
/// each once, at whatever parallelism. The vector must be the same, or have more values at its end.
pub struct MemorySource<T> {
    records: Arc<Vec<(T, EventTime)>>,
    stripes: Stripes,
    split: SplitId,
    share: String,
    announced: bool,
}

/// The name in a checkpoint of how many values there were.
const RECORDS: &str = "records";

impl<T: Data + Sync> MemorySource<T> {
    /// Values without a time.
    pub fn new(values: impl IntoIterator<Item = T>) -> Self {
        Self::timed(values.into_iter().map(|value| (value, EventTime::NONE)))
    }

    /// Values with their event times.
    pub fn timed(records: impl IntoIterator<Item = (T, EventTime)>) -> Self {
        MemorySource {
            records: Arc::new(records.into_iter().collect()),
            stripes: Stripes::fresh(0, 1),
            split: SplitId(0),
            share: String::new(),
            announced: false,
        }
    }

    /// Opens where `restored` says, what the checkpoint holds of all subtasks.
    fn begin(&mut self, cx: &OperatorContext, restored: &[RestoredItem]) -> Result<()> {
        let n = self.records.len() as u64;
        let longer =
            |item: &&RestoredItem| item.key == RECORDS && item.value.as_u64().is_none_or(|of| of > n);
        if let Some(item) = restored.iter().find(longer) {
            let message = format!(
                "the checkpoint was taken with a vector of {} values and the source has {n}: it is another one; give it the \
                 old one, or begin anew",
                item.value
            );
            return Err(TaskError::user(message));
        }
        self.stripes = Stripes::restored(cx, restored, &[RECORDS])?;
        self.split = SplitId(cx.subtask() as u32);
        self.share = share_name(cx);
        self.announced = false;
        Ok(())
    }
}

impl<T: Data + Sync> Source for MemorySource<T> {
    type Out = T;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.begin(cx, &cx.restored(POSITIONS))
    }

    fn poll(&mut self, out: &mut SourceBatch<T>, _budget: Duration) -> Result<SourceStatus> {
        if !self.announced {
            self.announced = true;
            out.split_started(self.split);
        }
        while out.room() > 0 {
            let next = self.stripes.peek().and_then(|i| self.records.get(i as usize));
            let Some((value, time)) = next else {
                out.split_finished(self.split);
                return Ok(SourceStatus::End);
            };
            out.push(self.split, value.clone(), *time);
            self.stripes.advance();
        }
        Ok(SourceStatus::More)
    }

    fn split_name(&self, _: SplitId) -> Option<String> {
        Some(self.share.clone())
    }

    fn positions(&mut self, _: Barrier) -> Result<Vec<(String, serde_json::Value)>> {
        let mut positions = self.stripes.positions();
        positions.push((RECORDS.to_owned(), self.records.len().into()));
        Ok(positions)
    }
}

impl<T> Clone for MemorySource<T> {
    fn clone(&self) -> Self {
        MemorySource {
            records: Arc::clone(&self.records),
            stripes: self.stripes.clone(),
            share: self.share.clone(),
            ..*self
        }
    }
}

impl<T> fmt::Debug for MemorySource<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySource")
            .field("records", &self.records.len())
            .field("next", &self.stripes.peek())
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
    fn a_share_is_called_the_same_only_where_there_are_as_many() {
        let name = |subtask, parallelism| {
            let mut source = MemorySource::new(0..4u64);
            source.open(&context("mem", subtask, parallelism)).unwrap();
            source.split_name(source.split)
        };
        assert_eq!((name(1, 3), name(1, 2)), (Some("share 1 of 3".into()), Some("share 1 of 2".into())));
    }

    #[test]
    fn a_clone_opened_again_starts_over() {
        let source = MemorySource::new(0..4u64);
        assert_eq!(drain(source.clone(), 0, 1), drain(source, 0, 1));
    }

    #[test]
    fn a_restored_vector_gives_the_rest() {
        let mut first = MemorySource::new(0..10u64);
        first.open(&context("mem", 0, 1)).unwrap();
        first.poll(&mut SourceBatch::new(4), Duration::from_millis(1)).unwrap();
        let positions = first.positions(Barrier::LAST).unwrap();
        let held: Vec<_> =
            positions.into_iter().map(|(key, value)| RestoredItem { subtask: 0, key, value }).collect();
        let mut rest = Vec::new();
        for s in 0..3 {
            let mut source = MemorySource::new(0..12u64);
            source.begin(&context("mem", s, 3), &held).unwrap();
            let mut out = SourceBatch::new(20);
            assert_eq!(source.poll(&mut out, Duration::from_millis(1)).unwrap(), SourceStatus::End);
            rest.extend(out.records().iter().map(|r| r.value));
        }
        rest.sort_unstable();
        assert_eq!(rest, (4..12).collect::<Vec<_>>(), "two were added");
        let e = MemorySource::new(0..9u64).begin(&context("mem", 0, 1), &held).unwrap_err().to_string();
        assert!(
            e.starts_with("the checkpoint was taken with a vector of 10 values and the source has 9"),
            "{e}"
        );
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
