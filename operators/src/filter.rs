//! `filter`: lets through the values that satisfy a predicate.
// HOT: one call per record. No allocation, lock, log or clock of its own.

use std::fmt;

use weir_engine::{Collector, Data, Operator, Record, Result};

/// The operator behind [`filter`](crate::prelude::StreamOps::filter): it passes on the records of whose values a predicate is true.
///
/// *State*: none, so there is nothing to forget. *Order*: as records come. *Late records* are records like others.
///
/// # Examples
/// A test drives it by hand:
/// ```
/// # use weir_engine::testkit::OpHarness;
/// let mut harness = OpHarness::new(weir_operators::Filter::new(|n: &i64| *n > 0))?;
/// harness.watermark(5)?;
/// harness.batch([(21, 3), (-1, 6)])?;
/// assert_eq!(harness.take_values(), [21], "late, and a record like others");
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
#[derive(Clone)]
pub struct Filter<F>(F);

impl<F> Filter<F> {
    /// The operator that calls `f`.
    pub fn new(f: F) -> Self {
        Filter(f)
    }
}

impl<F> fmt::Debug for Filter<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Filter")
    }
}

impl<T: Data, F: FnMut(&T) -> bool + Clone + Send + 'static> Operator<T> for Filter<F> {
    type Out = T;

    #[inline]
    fn process(&mut self, record: Record<T>, out: &mut impl Collector<T>) -> Result<()> {
        if (self.0)(&record.value) { out.emit(record) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::testkit::OpHarness;

    #[test]
    fn drops_what_does_not_match() {
        let mut filter = OpHarness::new(Filter(|n: &i32| n % 2 == 0)).unwrap();
        filter.batch((0..5).map(|n| (n, 0))).unwrap();
        assert_eq!(filter.take_values(), [0, 2, 4]);
    }
}
