//! `flat_map`: any number of values out for each value in.
// HOT: one call per record. No allocation, lock, log or clock of its own.

use std::fmt;

use weir_engine::{Collector, Data, Operator, Record, Result};

/// The operator behind [`flat_map`](crate::prelude::StreamOps::flat_map). Stateless.
#[derive(Clone)]
pub struct FlatMap<F>(pub(crate) F);

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
