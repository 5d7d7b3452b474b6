//! All records of both sides of a key and window: given as they are to a function, or as the rows of a join.
// HOT: a record costs what the window costs, and a push. No allocation per pair.

use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Serialize};
use weir_engine::{Collector, Either, Key, Operator, OperatorContext, Record, Result, TaskError};

use crate::aggregate::{Aggregate, Kept};
use crate::join::kind::JoinKind;
use crate::opened::Opened;
use crate::window::{Pane, TimeWindow, WindowResult};

/// The records of both sides of one key in one window, each side in the order in which it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoGroup<K, A, B> {
    /// The key.
    pub key: K,
    /// The window.
    pub window: TimeWindow,
    /// Those of the left side.
    pub left: Vec<A>,
    /// Those of the right side.
    pub right: Vec<B>,
    /// Which result of this key and window it is.
    pub pane: Pane,
}

impl<K, A, B> CoGroup<K, A, B> {
    pub(crate) fn of(result: WindowResult<K, (Vec<A>, Vec<B>)>) -> Self {
        let WindowResult { key, window, value: (left, right), pane } = result;
        CoGroup { key, window, left, right, pane }
    }
}

/// Collects both sides.
pub(super) struct Sides<A, B>(PhantomData<fn() -> (A, B)>);

impl<A, B> Sides<A, B> {
    pub(crate) fn new() -> Self {
        Sides(PhantomData)
    }
}

impl<A, B> Clone for Sides<A, B> {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl<A, B> fmt::Debug for Sides<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sides")
    }
}

impl<A: Kept, B: Kept> Aggregate<Either<A, B>> for Sides<A, B> {
    type Acc = (Vec<A>, Vec<B>);
    type Out = (Vec<A>, Vec<B>);

    fn create(&self) -> Self::Acc {
        (Vec::new(), Vec::new())
    }
    #[inline]
    fn add(&self, (left, right): &mut Self::Acc, value: &Either<A, B>) {
        match value {
            Either::Left(value) => left.push(value.clone()),
            Either::Right(value) => right.push(value.clone()),
        }
    }
    fn merge(&self, (left, right): &mut Self::Acc, mut other: Self::Acc) {
        left.append(&mut other.0);
        right.append(&mut other.1);
    }
    fn result(&self, acc: Self::Acc) -> Self::Out {
        acc
    }
}

/// The operator that makes a window join's rows of what its window collected. Stateless.
pub struct WindowJoined<A, B, J> {
    cx: Opened<OperatorContext>,
    _of: PhantomData<fn(A, B, J)>,
}

/// How many rows are given before it asks whether the attempt is over.
const AT_ONCE: usize = 1_024;

impl<A, B, J> WindowJoined<A, B, J> {
    pub(crate) fn new() -> Self {
        WindowJoined { cx: Opened(None), _of: PhantomData }
    }
}

impl<A, B, J> Clone for WindowJoined<A, B, J> {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl<A, B, J> fmt::Debug for WindowJoined<A, B, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WindowJoined")
    }
}

impl<K: Key, A: Kept, B: Kept, J: JoinKind<A, B>> Operator<WindowResult<K, (Vec<A>, Vec<B>)>>
    for WindowJoined<A, B, J>
{
    type Out = WindowResult<K, J::Out>;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.cx = Opened(Some(cx.clone()));
        Ok(())
    }

    fn process(
        &mut self,
        record: Record<WindowResult<K, (Vec<A>, Vec<B>)>>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let cx = self.cx.0.as_ref().ok_or_else(not_open)?;
        let Record { value: WindowResult { key, window, value: (left, right), pane }, time } = record;
        let mut give = |row: Option<J::Out>| match row {
            Some(value) => {
                out.emit(Record { value: WindowResult { key: key.clone(), window, value, pane }, time })
            }
            None => Ok(()),
        };
        let mut given = 0usize;
        if J::PAIRS {
            for left in &left {
                for right in &right {
                    // A thousand by a thousand are a million, and not one of them may reach a channel.
                    given += 1;
                    if given.is_multiple_of(AT_ONCE) {
                        cx.not_cancelled()?;
                    }
                    give(J::pair(left, right))?;
                }
            }
        }
        left.iter().try_for_each(|one| give(J::left_over(one, !right.is_empty())))?;
        right.iter().try_for_each(|one| give(J::right_over(one, !left.is_empty())))
    }
}

#[cold]
fn not_open() -> TaskError {
    TaskError::internal("a window join was used before it was open")
}

#[cfg(test)]
#[path = "co_group_tests.rs"]
mod tests;
