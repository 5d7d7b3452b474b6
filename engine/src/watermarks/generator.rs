//! What a watermark is made from: the contract of a generator, and those that come with the engine.
// HOT: `on_records` is called once per run of records of one split.

use std::fmt;

use serde_json::Value;

use crate::element::Record;
use crate::time::{EventTime, Watermark};

/// Makes the watermark of one split from its records. [`Watermarks::custom`](crate::Watermarks::custom) shows one of a user's
/// own.
///
/// *Order*: one copy per split is taken before its first record, and `restore` called on it when a checkpoint knows the
/// split. Then `on_records` and `on_clock` in any order. All on the source's thread.
///
/// A watermark that does not rise is ignored. What a generator promises holds for its split only: the source goes by the
/// lowest of its splits that are not idle.
pub trait WatermarkGenerator<T>: Clone + Send + 'static {
    /// Called with the records of one poll that came from the split, in their order; `latest` is the highest time among
    /// them, [`EventTime::NONE`] when none has any. What the source's limits refuse is not among them. Gives what is promised
    /// after them, if that is news.
    ///
    /// HOT: no lock, log or clock read; what it does per record is paid per record.
    fn on_records(&mut self, records: &[Record<T>], latest: EventTime) -> Option<Watermark>;

    /// Called when a watermark may leave, at most every 50 ms or so while records come or none do, with the job's clock in
    /// milliseconds since the epoch: for promises that rest on the clock. Does not end the idleness of a split.
    fn on_clock(&mut self, now_ms: i64) -> Option<Watermark> {
        let _ = now_ms;
        None
    }

    /// What it has to remember in a checkpoint beside the split's watermark and latest time, which the engine keeps.
    fn save(&self) -> Value {
        Value::Null
    }

    /// Called before the first record of a split that the checkpoint knows; gives what it promises from the start, by
    /// default what it had promised before.
    fn restore(&mut self, split: &RestoredSplit) -> Option<Watermark> {
        Some(split.watermark)
    }
}

/// What a checkpoint knows of a split's event time.
#[derive(Clone, Debug, PartialEq)]
pub struct RestoredSplit {
    /// The latest time of its records; [`EventTime::NONE`] when none had any.
    pub latest: EventTime,
    /// What had been promised; [`Watermark::MIN`] when nothing.
    pub watermark: Watermark,
    /// What [`WatermarkGenerator::save`] gave.
    pub saved: Value,
}

/// By the latest time of the split: what [`Watermarks::bounded`](crate::Watermarks::bounded),
/// [`monotonic`](crate::Watermarks::monotonic) and [`at_end`](crate::Watermarks::at_end) stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByLatest {
    /// How far behind the latest a record may come, in milliseconds; none for a watermark at the end only.
    pub(crate) disorder_ms: Option<i64>,
}

impl<T> WatermarkGenerator<T> for ByLatest {
    #[inline]
    fn on_records(&mut self, _: &[Record<T>], latest: EventTime) -> Option<Watermark> {
        let disorder = self.disorder_ms?;
        (latest != EventTime::NONE).then(|| Watermark(latest.0.saturating_sub(disorder).saturating_sub(1)))
    }

    fn restore(&mut self, split: &RestoredSplit) -> Option<Watermark> {
        self.disorder_ms.map(|_| split.watermark)
    }
}

/// By what single records say: [`Watermarks::per_record`](crate::Watermarks::per_record) shows it.
#[derive(Clone)]
pub struct PerRecord<F>(pub(crate) F);

impl<F> fmt::Debug for PerRecord<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerRecord")
    }
}

impl<T, F: FnMut(&Record<T>) -> Option<Watermark> + Clone + Send + 'static> WatermarkGenerator<T>
    for PerRecord<F>
{
    #[inline]
    fn on_records(&mut self, records: &[Record<T>], _: EventTime) -> Option<Watermark> {
        records.iter().filter_map(&mut self.0).max()
    }
}
