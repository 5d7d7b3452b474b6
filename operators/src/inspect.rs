//! `inspect`: looks at each value and passes it on.
// HOT: one call per record. No allocation, lock, log or clock of its own.

use std::fmt;

use weir_engine::{Collector, Data, Operator, Record, Result};

/// The operator behind [`inspect`](crate::prelude::StreamOps::inspect): it lets a function look at each value and passes the record on.
///
/// *State*: none, so there is nothing to forget. *Order*: as records come. *Late records* are records like others.
///
/// # Examples
/// A test drives it by hand:
/// ```
/// # use weir_engine::testkit::OpHarness;
/// let mut harness = OpHarness::new(weir_operators::Inspect::new(|n: &i64| assert!(*n > 0)))?;
/// harness.watermark(5)?;
/// harness.send(21, 3)?;
/// assert_eq!(harness.take_values(), [21], "late, and a record like others");
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
#[derive(Clone)]
pub struct Inspect<F>(F);

impl<F> Inspect<F> {
    /// The operator that calls `f`.
    pub fn new(f: F) -> Self {
        Inspect(f)
    }
}

impl<F> fmt::Debug for Inspect<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inspect")
    }
}

impl<T: Data, F: FnMut(&T) + Clone + Send + 'static> Operator<T> for Inspect<F> {
    type Out = T;

    #[inline]
    fn process(&mut self, record: Record<T>, out: &mut impl Collector<T>) -> Result<()> {
        (self.0)(&record.value);
        out.emit(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::testkit::OpHarness;

    #[test]
    fn sees_everything_and_changes_nothing() {
        let seen = std::sync::Arc::new(std::sync::atomic::AtomicI32::new(0));
        let count = seen.clone();
        let look = Inspect(move |n: &i32| {
            count.fetch_add(*n, std::sync::atomic::Ordering::Relaxed);
        });
        let mut look = OpHarness::new(look).unwrap();
        look.batch([(1, 0), (2, 0)]).unwrap();
        assert_eq!(look.take_values(), [1, 2]);
        assert_eq!(seen.load(std::sync::atomic::Ordering::Relaxed), 3);
    }
}
