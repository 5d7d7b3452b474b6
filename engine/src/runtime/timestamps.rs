//! Where the event time of a source's records comes from.
// HOT: a loop over each batch.

use crate::element::Record;
use crate::time::EventTime;

/// How a record of `T` says when it happened.
pub(crate) trait Timestamps<T>: Clone + Send + 'static {
    /// A record to which it gives no time is refused.
    const MUST: bool = false;

    fn stamp(&mut self, records: &mut [Record<T>]);
}

/// Keeps the time that the source gave.
#[derive(Clone)]
pub(crate) struct SourceTime;

impl<T> Timestamps<T> for SourceTime {
    fn stamp(&mut self, _: &mut [Record<T>]) {}
}

/// The least moment means "no time"; a record that claims it gets the next one.
fn moment(ms: i64) -> EventTime {
    EventTime(ms.max(i64::MIN + 1))
}

/// Asks the value.
#[derive(Clone)]
pub(crate) struct Extract<F>(pub(crate) F);

impl<T, F: FnMut(&T) -> i64 + Clone + Send + 'static> Timestamps<T> for Extract<F> {
    #[inline]
    fn stamp(&mut self, records: &mut [Record<T>]) {
        for r in records {
            r.time = moment((self.0)(&r.value));
        }
    }
}

/// Asks the value and the source, which both may not know.
#[derive(Clone)]
pub(crate) struct TryExtract<F>(pub(crate) F);

impl<T, F: FnMut(&T, EventTime) -> Option<i64> + Clone + Send + 'static> Timestamps<T> for TryExtract<F> {
    const MUST: bool = true;

    #[inline]
    fn stamp(&mut self, records: &mut [Record<T>]) {
        for r in records {
            r.time = (self.0)(&r.value, r.time).map_or(EventTime::NONE, moment);
        }
    }
}
