//! `map`: one value out for each value in.
// HOT: one call per record. No allocation, lock, log or clock of its own.

use std::fmt;

use weir_engine::{Collector, Data, Operator, Record, Result};

/// The operator behind [`map`](crate::prelude::StreamOps::map): it gives what a function makes of each value, with the record's time.
///
/// *State*: none, so there is nothing to forget. *Order*: as records come. *Late records* are records like others.
///
/// # Examples
/// A test drives it by hand:
/// ```
/// # use weir_engine::testkit::OpHarness;
/// let mut harness = OpHarness::new(weir_operators::Map::new(|n: i64| n * 2))?;
/// harness.watermark(5)?;
/// harness.send(21, 3)?;
/// assert_eq!(harness.take_values(), [42], "late, and a record like others");
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
#[derive(Clone)]
pub struct Map<F>(F);

impl<F> Map<F> {
    /// The operator that calls `f`.
    pub fn new(f: F) -> Self {
        Map(f)
    }
}

impl<F> fmt::Debug for Map<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Map")
    }
}

impl<T: Data, U: Data, F: FnMut(T) -> U + Clone + Send + 'static> Operator<T> for Map<F> {
    type Out = U;

    #[inline]
    fn process(&mut self, record: Record<T>, out: &mut impl Collector<U>) -> Result<()> {
        let Record { value, time } = record;
        out.emit(Record { value: (self.0)(value), time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::testkit::OpHarness;

    #[test]
    fn keeps_time_and_order() {
        let mut map = OpHarness::new(Map(|n: i32| n.to_string())).unwrap();
        map.batch([(1, 10), (2, -5)]).unwrap();
        let got: Vec<_> = map.take().into_iter().map(|r| (r.value, r.time.0)).collect();
        assert_eq!(got, [("1".to_owned(), 10), ("2".to_owned(), -5)]);
    }
}
