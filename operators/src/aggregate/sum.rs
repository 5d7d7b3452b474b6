//! `sum`: exact for integers whatever the order, and never wrapped.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_engine::Data;

use super::Aggregate;

/// What can be summed: the integers up to 64 bits, and `f64`.
pub trait Number: Data {
    /// Wide enough for the sum of all values a window can see.
    type Wide: Clone + Copy + Default + Send + Serialize + DeserializeOwned + 'static;
    /// One more.
    fn add(sum: Self::Wide, value: Self) -> Self::Wide;
    /// Two sums.
    fn merge(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// The sum as it is given; the nearest value the type has.
    fn narrow(sum: Self::Wide) -> Self;
}

macro_rules! integers {
    ($($t:ty)*) => { $(
        impl Number for $t {
            type Wide = i128;
            #[inline]
            fn add(sum: i128, value: $t) -> i128 { sum + i128::from(value) }
            fn merge(a: i128, b: i128) -> i128 { a + b }
            fn narrow(sum: i128) -> $t {
                <$t>::try_from(sum).unwrap_or(if sum < 0 { <$t>::MIN } else { <$t>::MAX })
            }
        }
    )* };
}
integers! { i16 i32 i64 u16 u32 u64 }

impl Number for f64 {
    type Wide = f64;
    #[inline]
    fn add(sum: f64, value: f64) -> f64 {
        sum + value
    }
    fn merge(a: f64, b: f64) -> f64 {
        a + b
    }
    fn narrow(sum: f64) -> f64 {
        sum
    }
}

/// The sum of what `value` says of each; 0 when there is none.
///
/// Integers are summed in 128 bits, so the result does not depend on the order; a result that does not fit its type is
/// the type's nearest bound, never a wrapped number. Floats are added as they come, so their last digits depend on it.
///
/// ```
/// # use weir_operators::prelude::*;
/// let total = sum(|pair: &(&str, i64)| pair.1);
/// let mut acc = total.create();
/// [("a", 40), ("b", 2)].iter().for_each(|v| total.add(&mut acc, v));
/// assert_eq!(total.result(acc), 42);
/// ```
pub fn sum<In, N: Number, F: Fn(&In) -> N + Clone + Send + 'static>(value: F) -> Sum<In, F> {
    Sum { value, _in: PhantomData }
}

/// See [`sum`].
pub struct Sum<In, F> {
    value: F,
    _in: PhantomData<fn(In)>,
}

impl<In, F: Clone> Clone for Sum<In, F> {
    fn clone(&self) -> Self {
        Sum { value: self.value.clone(), _in: PhantomData }
    }
}

impl<In, F> fmt::Debug for Sum<In, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sum")
    }
}

impl<In: 'static, N: Number, F: Fn(&In) -> N + Clone + Send + 'static> Aggregate<In> for Sum<In, F> {
    type Acc = N::Wide;
    type Out = N;

    fn create(&self) -> N::Wide {
        N::Wide::default()
    }
    #[inline]
    fn add(&self, acc: &mut N::Wide, value: &In) {
        *acc = N::add(*acc, (self.value)(value));
    }
    fn merge(&self, acc: &mut N::Wide, other: N::Wide) {
        *acc = N::merge(*acc, other);
    }
    fn result(&self, acc: N::Wide) -> N {
        N::narrow(acc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total<N: Number>(values: &[N]) -> N {
        let a = sum(|n: &N| n.clone());
        let mut acc = a.create();
        values.iter().for_each(|v| a.add(&mut acc, v));
        a.result(acc)
    }

    #[test]
    fn what_overflows_on_the_way_is_still_exact() {
        assert_eq!(total(&[i64::MAX, i64::MAX, i64::MIN, i64::MIN]), -2);
        assert_eq!(total(&[u64::MAX, 1, 2]), u64::MAX, "the bound, not 2");
        assert_eq!(total(&[i32::MIN, -1]), i32::MIN);
        assert_eq!(total(&[0.5, 0.25]), 0.75);
        assert_eq!(total::<i64>(&[]), 0);
    }
}
