//! For the tests of joins: an input of two sides, and the nested loops that say what a join of them gives.

use proptest::prelude::*;
use weir_engine::{Either, Record};

use crate::join::kind::{Anti, FullOuter, Inner, JoinKind, LeftOuter, RightOuter, Semi};
use crate::trial;

/// A value, and a number that tells it from all others.
pub(crate) type Value = (i64, usize);
pub(crate) type Both = Either<Value, Value>;
/// Key, record, time.
pub(crate) type Input = Vec<(u64, Both, i64)>;

/// Two sides with ties of key and time, within and across sides, some times negative; now and then one side is silent.
pub(crate) fn input() -> impl Strategy<Value = Input> {
    let sides = prop_oneof![8 => Just(None), 1 => Just(Some(true)), 1 => Just(Some(false))];
    (trial::input(), prop::collection::vec(any::<bool>(), 120), sides).prop_map(|(records, side, only)| {
        let sided = |((key, value, time), left)| {
            let left = only.unwrap_or(left);
            (key, if left { Either::Left(value) } else { Either::Right(value) }, time)
        };
        records.into_iter().zip(side).map(sided).collect()
    })
}

pub(crate) fn left(input: &Input) -> Vec<(u64, Value, i64)> {
    input.iter().filter_map(|(key, value, time)| Some((*key, value.left()?, *time))).collect()
}

pub(crate) fn right(input: &Input) -> Vec<(u64, Value, i64)> {
    input.iter().filter_map(|(key, value, time)| Some((*key, value.right()?, *time))).collect()
}

/// A row of any kind of join.
pub(crate) type Row = (Option<Value>, Option<Value>);

/// A kind, and its rows as rows of any kind.
pub(crate) trait Known: JoinKind<Value, Value> + Copy {
    fn row(out: Self::Out) -> Row;
    /// Gives pairs, left ones without a right one, right ones without a left one; of left ones each once, when it met one.
    const GIVES: (bool, bool, bool, bool);
}

impl Known for Inner {
    fn row((left, right): (Value, Value)) -> Row {
        (Some(left), Some(right))
    }
    const GIVES: (bool, bool, bool, bool) = (true, false, false, false);
}
impl Known for LeftOuter {
    fn row((left, right): (Value, Option<Value>)) -> Row {
        (Some(left), right)
    }
    const GIVES: (bool, bool, bool, bool) = (true, true, false, false);
}
impl Known for RightOuter {
    fn row((left, right): (Option<Value>, Value)) -> Row {
        (left, Some(right))
    }
    const GIVES: (bool, bool, bool, bool) = (true, false, true, false);
}
impl Known for FullOuter {
    fn row(row: Row) -> Row {
        row
    }
    const GIVES: (bool, bool, bool, bool) = (true, true, true, false);
}
impl Known for Semi {
    fn row(left: Value) -> Row {
        (Some(left), None)
    }
    const GIVES: (bool, bool, bool, bool) = (false, false, false, true);
}
impl Known for Anti {
    fn row(left: Value) -> Row {
        (Some(left), None)
    }
    const GIVES: (bool, bool, bool, bool) = (false, true, false, false);
}

/// The rows of a join of `left` with `right`, by nested loops. `meet` says whether two meet, and the time of their row; `alone` the
/// time of what is said of one record: `true` for a left one.
pub(crate) fn nested_loops<J: Known>(
    left: &[(u64, Value, i64)],
    right: &[(u64, Value, i64)],
    meet: impl Fn(&(u64, Value, i64), &(u64, Value, i64)) -> Option<i64>,
    alone: impl Fn(bool, i64) -> i64,
) -> Vec<(Row, i64)> {
    let (pairs, left_alone, right_alone, met_once) = J::GIVES;
    let mut rows = Vec::new();
    for l in left {
        let met: Vec<_> = right.iter().filter_map(|r| Some((r, meet(l, r)?))).collect();
        if pairs {
            rows.extend(met.iter().map(|(r, time)| ((Some(l.1), Some(r.1)), *time)));
        }
        if met_once && !met.is_empty() || left_alone && met.is_empty() {
            rows.push(((Some(l.1), None), alone(true, l.2)));
        }
    }
    for r in right.iter().filter(|_| right_alone) {
        if !left.iter().any(|l| meet(l, r).is_some()) {
            rows.push(((None, Some(r.1)), alone(false, r.2)));
        }
    }
    rows.sort_unstable();
    rows
}

/// What a join gave, in the order of [`nested_loops`].
pub(crate) fn rows<J: Known>(given: Vec<Record<J::Out>>) -> Vec<(Row, i64)> {
    let mut rows: Vec<_> = given.into_iter().map(|r| (J::row(r.value), r.time.0)).collect();
    rows.sort_unstable();
    rows
}
