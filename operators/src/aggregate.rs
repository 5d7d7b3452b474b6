//! `Aggregate`: what is kept of many values so that one can be given in the end; and the usual ones.
//!
//! They compose: a tuple of two aggregates is the aggregate of both, computed in one pass.

mod extreme;
mod sum;

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_engine::Data;

pub use extreme::{Max, Min, max, min};
pub use sum::{Number, Sum, sum};

/// Turns any number of values into one.
///
/// `merge` must not care how the values were split: for any split of a sequence, adding each part to a new accumulator
/// and merging them in order gives what adding all of them gives. Windows that overlap rely on it.
pub trait Aggregate<In>: Clone + Send + 'static {
    /// What is kept meanwhile. It is operator state.
    type Acc: Clone + Send + Serialize + DeserializeOwned + 'static;
    /// What is given in the end.
    type Out: Data;

    /// The accumulator of no values.
    fn create(&self) -> Self::Acc;

    /// Adds one value. HOT: called once per record.
    fn add(&self, acc: &mut Self::Acc, value: &In);

    /// Adds everything that `other`, whose values come later, has seen.
    fn merge(&self, acc: &mut Self::Acc, other: Self::Acc);

    /// What the values come to.
    fn result(&self, acc: Self::Acc) -> Self::Out;
}

/// Both aggregates over the same values, in one pass.
///
/// ```
/// # use weir_operators::prelude::*;
/// let both = (count(), sum(|n: &i64| *n));
/// let mut acc = both.create();
/// both.add(&mut acc, &20);
/// both.add(&mut acc, &22);
/// assert_eq!(Aggregate::<i64>::result(&both, acc), (2, 42));
/// ```
impl<In, A: Aggregate<In>, B: Aggregate<In>> Aggregate<In> for (A, B) {
    type Acc = (A::Acc, B::Acc);
    type Out = (A::Out, B::Out);

    fn create(&self) -> Self::Acc {
        (self.0.create(), self.1.create())
    }
    #[inline]
    fn add(&self, acc: &mut Self::Acc, value: &In) {
        self.0.add(&mut acc.0, value);
        self.1.add(&mut acc.1, value);
    }
    fn merge(&self, acc: &mut Self::Acc, other: Self::Acc) {
        self.0.merge(&mut acc.0, other.0);
        self.1.merge(&mut acc.1, other.1);
    }
    fn result(&self, acc: Self::Acc) -> Self::Out {
        (self.0.result(acc.0), self.1.result(acc.1))
    }
}

/// How many values there are.
///
/// ```
/// # use weir_operators::prelude::*;
/// let values = count();
/// let mut acc = Aggregate::<&str>::create(&values);
/// values.add(&mut acc, &"buy");
/// assert_eq!(Aggregate::<&str>::result(&values, acc), 1);
/// ```
pub fn count() -> Count {
    Count
}

/// See [`count`].
#[derive(Clone, Copy, Debug)]
pub struct Count;

impl<In> Aggregate<In> for Count {
    type Acc = u64;
    type Out = u64;

    fn create(&self) -> u64 {
        0
    }
    #[inline]
    fn add(&self, acc: &mut u64, _: &In) {
        *acc += 1;
    }
    fn merge(&self, acc: &mut u64, other: u64) {
        *acc += other;
    }
    fn result(&self, acc: u64) -> u64 {
        acc
    }
}

/// How many values satisfy `predicate`: 0 when none does.
///
/// ```
/// # use weir_operators::prelude::*;
/// let large = count_where(|n: &i64| *n > 10);
/// let mut acc = large.create();
/// [5, 50, 500].iter().for_each(|n| large.add(&mut acc, n));
/// assert_eq!(large.result(acc), 2);
/// ```
pub fn count_where<In, F: Fn(&In) -> bool + Clone + Send + 'static>(predicate: F) -> CountWhere<In, F> {
    CountWhere { predicate, _in: PhantomData }
}

/// See [`count_where`].
pub struct CountWhere<In, F> {
    predicate: F,
    _in: PhantomData<fn(In)>,
}

impl<In, F: Clone> Clone for CountWhere<In, F> {
    fn clone(&self) -> Self {
        CountWhere { predicate: self.predicate.clone(), _in: PhantomData }
    }
}

impl<In, F> fmt::Debug for CountWhere<In, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CountWhere")
    }
}

impl<In: 'static, F: Fn(&In) -> bool + Clone + Send + 'static> Aggregate<In> for CountWhere<In, F> {
    type Acc = u64;
    type Out = u64;

    fn create(&self) -> u64 {
        0
    }
    #[inline]
    fn add(&self, acc: &mut u64, value: &In) {
        *acc += u64::from((self.predicate)(value));
    }
    fn merge(&self, acc: &mut u64, other: u64) {
        *acc += other;
    }
    fn result(&self, acc: u64) -> u64 {
        acc
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Adding in one go and adding in parts comes to the same.
    fn splits_do_not_matter<A: Aggregate<i64, Out: PartialEq + fmt::Debug>>(
        a: &A,
        values: &[i64],
        at: usize,
    ) {
        let add = |values: &[i64]| {
            let mut acc = a.create();
            values.iter().for_each(|v| a.add(&mut acc, v));
            acc
        };
        let (left, right) = values.split_at(at.min(values.len()));
        let mut parts = add(left);
        a.merge(&mut parts, add(right));
        assert_eq!(a.result(parts), a.result(add(values)));
    }

    proptest! {
        #[test]
        fn merge_is_adding(values in prop::collection::vec(any::<i64>(), 0..20), at in 0usize..20) {
            splits_do_not_matter(&count(), &values, at);
            splits_do_not_matter(&count_where(|v: &i64| *v > 0), &values, at);
            splits_do_not_matter(&sum(|v: &i64| *v), &values, at);
            splits_do_not_matter(&(min(|v: &i64| *v % 7), max(|v: &i64| *v)), &values, at);
        }
    }
}
