//! The temporal join: each record with the version of a table that was valid at its time.

use std::marker::PhantomData;

use serde::{Deserialize, Serialize};
use weir_engine::{Collector, Either, EventTime, Key, Keyed, Operator, Record, Result, SideSlot};

use crate::aggregate::Kept;
use crate::join::kind::TableJoinKind;
use crate::ordered::{InOrder, LineContext, Ordered, Peers, Timely};

/// What a stream says of one row of a table, the row being that of the record's key: from the record's time on it is this, until
/// the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Change<T> {
    /// The row has this value, whether there was one or not.
    Put(T),
    /// There is no such row any more.
    Delete,
}

/// The operator behind [`temporal_join`](crate::prelude::JoinOps::temporal_join): what a test drives by hand.
///
/// ```
/// # use weir_operators::{join, prelude::*};
/// # use weir_engine::{Either, KeyHash, Keyed, SideSlot, testkit::OpHarness};
/// let join = join::temporal::<u64, u64, f64, f64, _>(LeftOuter, Change::Put, SideSlot::default());
/// let mut harness = OpHarness::new(join)?;
/// let keyed = |value| Keyed { hash: KeyHash(7), key: 7, value };
/// harness.batch([(keyed(Either::Left(30)), 20), (keyed(Either::Right(1.1)), 10)])?;
/// harness.watermark(20)?;
/// assert_eq!(harness.take_values(), [(30, Some(1.1))]);
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
pub fn temporal<K, A, B, V, J>(
    _: J,
    change: impl Fn(B) -> Change<V> + Clone + Send + 'static,
    late: SideSlot<Either<A, B>>,
) -> impl Operator<Keyed<K, Either<A, B>>, Out = J::Out>
where
    K: Key,
    A: Kept,
    B: Kept,
    V: Kept,
    J: TableJoinKind<A, V>,
{
    Timely::new(Ordered::new(Versions::<V, J, _>::new(change)), late)
}

/// The function behind the temporal join. `change` says what a right record does to its row.
pub(crate) struct Versions<V, J, F> {
    change: F,
    _of: PhantomData<fn() -> (V, J)>,
}

impl<V, J, F> Versions<V, J, F> {
    pub(crate) fn new(change: F) -> Self {
        Versions { change, _of: PhantomData }
    }
}

impl<V, J, F: Clone> Clone for Versions<V, J, F> {
    fn clone(&self) -> Self {
        Self::new(self.change.clone())
    }
}

impl<K, A, B, V, J, F> InOrder<K, Either<A, B>> for Versions<V, J, F>
where
    K: Key,
    A: Kept,
    B: Kept,
    V: Kept,
    J: TableJoinKind<A, V>,
    F: Fn(B) -> Change<V> + Clone + Send + 'static,
{
    type Out = J::Out;
    /// The version that is valid now: older ones cannot be asked for any more.
    type State = Option<V>;

    fn records(
        &mut self,
        time: EventTime,
        records: Peers<Either<A, B>>,
        cx: &mut LineContext<'_, K, Option<V>>,
        out: &mut impl Collector<J::Out>,
    ) -> Result<()> {
        // A change of this very time is valid for the records of it, whichever came first.
        let mut left = Vec::new();
        let mut last = None;
        for record in records {
            match record {
                Either::Left(record) => left.push(record),
                Either::Right(change) => last = Some(change),
            }
        }
        let version = &mut cx.state()?.kept;
        match last.map(&self.change) {
            Some(Change::Put(value)) => *version = Some(value),
            Some(Change::Delete) => *version = None,
            None => {}
        }
        for record in &left {
            let row = version.as_ref().and_then(|version| J::pair(record, version));
            for row in row.into_iter().chain(J::left_over(record, version.is_some())) {
                out.emit(Record::new(row, time))?;
            }
        }
        Ok(())
    }

    fn passed(
        &mut self,
        _: EventTime,
        _: &mut LineContext<'_, K, Option<V>>,
        _: &mut impl Collector<J::Out>,
    ) -> Result<()> {
        Ok(())
    }

    fn is_over(version: &Option<V>) -> bool {
        version.is_none()
    }
}

#[cfg(test)]
#[path = "temporal_tests.rs"]
mod tests;
