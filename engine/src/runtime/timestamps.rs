//! Where the event time of a source's records comes from.
// HOT: a loop over each batch.

use crate::element::Record;
use crate::time::EventTime;

/// How a record of `T` says when it happened.
pub(crate) trait Timestamps<T>: Clone + Send + 'static {
    fn stamp(&mut self, records: &mut [Record<T>]);
}

/// Keeps the time that the source gave.
#[derive(Clone)]
pub(crate) struct SourceTime;

impl<T> Timestamps<T> for SourceTime {
    fn stamp(&mut self, _: &mut [Record<T>]) {}
}

/// Asks the value.
#[derive(Clone)]
pub(crate) struct Extract<F>(pub(crate) F);

impl<T, F: FnMut(&T) -> i64 + Clone + Send + 'static> Timestamps<T> for Extract<F> {
    #[inline]
    fn stamp(&mut self, records: &mut [Record<T>]) {
        for r in records {
            // The least moment means "no time"; a record that claims it gets the next one.
            r.time = EventTime((self.0)(&r.value).max(i64::MIN + 1));
        }
    }
}
