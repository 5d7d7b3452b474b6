//! `flat_map`: any number of values out for each value in.
// HOT: one call per record. No allocation, lock, log or clock of its own.

use std::fmt;

use weir_engine::{Collector, Data, Operator, Record, Result};

/// The operator behind [`flat_map`](crate::prelude::StreamOps::flat_map): it gives each of the values that a function makes of one, with the record's time.
///
/// *State*: none, so there is nothing to forget. *Order*: as records come. *Late records* are records like others.
///
/// # Examples
/// A test drives it by hand:
/// ```
/// # use weir_engine::testkit::OpHarness;
/// let mut harness = OpHarness::new(weir_operators::FlatMap::new(|text: String| text.chars().collect::<Vec<_>>()))?;
/// harness.watermark(5)?;
/// harness.send("ab".to_owned(), 3)?;
/// assert_eq!(harness.take_values(), ['a', 'b'], "late, and a record like others");
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
#[derive(Clone)]
pub struct FlatMap<F>(F);

impl<F> FlatMap<F> {
    /// The operator that calls `f`.
    pub fn new(f: F) -> Self {
        FlatMap(f)
    }
}

impl<F> fmt::Debug for FlatMap<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlatMap")
    }
}

impl<T, I, F> Operator<T> for FlatMap<F>
where
    T: Data,
    I: IntoIterator<Item: Data>,
    F: FnMut(T) -> I + Clone + Send + 'static,
{
    type Out = I::Item;

    #[inline]
    fn process(&mut self, record: Record<T>, out: &mut impl Collector<I::Item>) -> Result<()> {
        let time = record.time;
        for value in (self.0)(record.value) {
            out.emit(Record { value, time })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::testkit::OpHarness;

    #[test]
    fn every_item_has_the_time_of_its_record() {
        let mut words = OpHarness::new(FlatMap(|line: &'static str| line.split(' '))).unwrap();
        words.batch([("a b", 1), ("c", 2)]).unwrap();
        let got: Vec<_> = words.take().into_iter().map(|r| (r.value, r.time.0)).collect();
        assert_eq!(got, [("a", 1), ("b", 1), ("c", 2)]);
    }
}
