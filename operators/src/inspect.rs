//! `inspect`: looks at each value and passes it on.
// HOT: one call per record. No allocation, lock, log or clock of its own.

use std::fmt;

use weir_engine::{Collector, Data, Operator, Record, Result};

/// The operator behind [`inspect`](crate::prelude::StreamOps::inspect). Stateless.
#[derive(Clone)]
pub struct Inspect<F>(pub(crate) F);

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
