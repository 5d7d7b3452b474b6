//! `Aggregate`: what is kept of many values so that one can be given in the end; and the usual ones.
//!
//! They compose: a tuple of up to six aggregates is the aggregate of them all, computed in one pass.

mod distinct;
mod extreme;
mod extreme_by;
mod gather;
mod sum;

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_engine::Data;

pub use distinct::{
    ApproxDistinct, Distinct, DistinctOf, IntLike, Sketch, approx_distinct, distinct, distinct_of,
};
pub use extreme::{Max, Min, max, min};
pub use extreme_by::{Kept, MaxBy, MinBy, Score, Top, max_by, min_by, top};
pub(crate) use extreme_by::{is_comparable, rank};
pub use gather::{Collect, Reduce, collect, reduce};
pub use sum::{Avg, Number, Sum, avg, sum};

/// Turns any number of values into one.
///
/// `merge` must not care how the values were split: for any split of a sequence, adding each part to a new accumulator
/// and merging them in order gives what adding all of them gives. Windows that overlap rely on it.
///
/// # Examples
/// One of a user's own: the span between the first and the last time.
/// ```
/// # use weir_operators::prelude::*;
/// #[derive(Clone)]
/// struct Span;
/// impl Aggregate<i64> for Span {
///     type Acc = Option<(i64, i64)>;
///     type Out = i64;
///     fn create(&self) -> Self::Acc {
///         None
///     }
///     fn add(&self, acc: &mut Self::Acc, at: &i64) {
///         self.merge(acc, Some((*at, *at)))
///     }
///     fn merge(&self, acc: &mut Self::Acc, other: Self::Acc) {
///         *acc = match (*acc, other) {
///             (Some((from, to)), Some((first, last))) => Some((from.min(first), to.max(last))),
///             (one, none) => one.or(none),
///         };
///     }
///     fn result(&self, acc: Self::Acc) -> i64 {
///         acc.map_or(0, |(from, to)| to - from)
///     }
/// }
/// # let mut acc = Span.create();
/// # [7, 3, 12].iter().for_each(|at| Span.add(&mut acc, at));
/// # assert_eq!(Span.result(acc), 9);
/// ```
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

/// Several aggregates over the same values, in one pass.
macro_rules! tuples {
    ($($(#[$doc:meta])* ($($A:ident $n:tt),*);)*) => { $(
        $(#[$doc])*
        impl<In, $($A: Aggregate<In>),*> Aggregate<In> for ($($A,)*) {
            type Acc = ($($A::Acc,)*);
            type Out = ($($A::Out,)*);

            fn create(&self) -> Self::Acc {
                ($(self.$n.create(),)*)
            }
            #[inline]
            fn add(&self, acc: &mut Self::Acc, value: &In) {
                $(self.$n.add(&mut acc.$n, value);)*
            }
            fn merge(&self, acc: &mut Self::Acc, other: Self::Acc) {
                $(self.$n.merge(&mut acc.$n, other.$n);)*
            }
            fn result(&self, acc: Self::Acc) -> Self::Out {
                ($(self.$n.result(acc.$n),)*)
            }
        }
    )* };
}

tuples! {
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
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, F 5);
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
#[path = "aggregate/tests.rs"]
mod tests;
