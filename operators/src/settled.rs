//! `Settled`: passes records on, and says that each of them may count.

use weir_engine::{Collector, Data, Operator, Record, Result};

/// The operator behind [`settled`](crate::prelude::StreamOps::settled).
///
/// *State*: none. *Late records* pass like others.
#[derive(Clone, Copy, Debug)]
pub struct Settled;

impl<T: Data> Operator<T> for Settled {
    type Out = T;

    #[inline]
    fn process(&mut self, record: Record<T>, out: &mut impl Collector<T>) -> Result<()> {
        out.emit(record)
    }
}
