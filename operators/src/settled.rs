//! `Settled`: passes records on, and says that each of them may count.

use weir_engine::{Collector, Data, Operator, Record, Result};

/// The operator behind [`settled`](crate::prelude::StreamOps::settled).
///
/// *State*: none. *Late records* pass like others.
///
/// ```
/// # use weir_engine::testkit::OpHarness;
/// let mut harness = OpHarness::new(weir_operators::Settled)?;
/// harness.send(21, 3)?;
/// assert_eq!(harness.take_values(), [21]);
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Settled;

impl<T: Data> Operator<T> for Settled {
    type Out = T;

    #[inline]
    fn process(&mut self, record: Record<T>, out: &mut impl Collector<T>) -> Result<()> {
        out.emit(record)
    }
}
