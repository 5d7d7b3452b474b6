//! `sum` and `avg`: exact for integers whatever the order, and never wrapped or cut off.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_engine::Data;

use super::Aggregate;

/// What can be summed: the integers, and floats.
pub trait Number: Data {
    /// Wide enough for the sum of all values a window can see.
    type Wide: Clone + Copy + Default + Send + Serialize + DeserializeOwned + 'static;
    /// One more.
    fn add(sum: Self::Wide, value: Self) -> Self::Wide;
    /// Two sums.
    fn merge(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// The sum as it is given.
    ///
    /// # Panics
    /// When it does not fit the type.
    fn narrow(sum: Self::Wide) -> Self;
    /// The sum as a float, rounded to the nearest.
    fn to_f64(sum: Self::Wide) -> f64;
}

/// A wrong number would go on as if it were right, so the job stops.
#[cold]
fn too_large(sum: impl fmt::Display, of: &str) -> ! {
    panic!("the sum {sum} does not fit {of}: sum a wider type, such as `sum(|v| i128::from(v.amount))`")
}

macro_rules! integers {
    ($($t:ty)*) => { $(
        impl Number for $t {
            type Wide = i128;
            #[inline]
            fn add(sum: i128, value: $t) -> i128 { sum + i128::from(value) }
            fn merge(a: i128, b: i128) -> i128 { a + b }
            fn narrow(sum: i128) -> $t {
                <$t>::try_from(sum).unwrap_or_else(|_| too_large(sum, type_name::<$t>()))
            }
            fn to_f64(sum: i128) -> f64 { sum as f64 }
        }
    )* };
}
// 2^63 values of 64 bits fit into 127: the wide sum cannot overflow.
integers! { i8 i16 i32 i64 u8 u16 u32 u64 }

impl Number for i128 {
    type Wide = i128;
    #[inline]
    fn add(sum: i128, value: i128) -> i128 {
        sum.checked_add(value).unwrap_or_else(|| too_large(format_args!("{sum} + {value}"), "i128"))
    }
    fn merge(a: i128, b: i128) -> i128 {
        Self::add(a, b)
    }
    fn narrow(sum: i128) -> i128 {
        sum
    }
    fn to_f64(sum: i128) -> f64 {
        sum as f64
    }
}

macro_rules! floats {
    ($($t:ty)*) => { $(
        impl Number for $t {
            type Wide = f64;
            #[inline]
            fn add(sum: f64, value: $t) -> f64 { sum + f64::from(value) }
            fn merge(a: f64, b: f64) -> f64 { a + b }
            fn narrow(sum: f64) -> $t { sum as $t }
            fn to_f64(sum: f64) -> f64 { sum }
        }
    )* };
}
floats! { f32 f64 }

/// The sum of what `value` says of each; 0 when there is none.
///
/// Integers are summed in 128 bits, so the result does not depend on the order, and what overflows on the way does no harm.
/// Floats are added as they come, so their last digits depend on it; what is too large for them is infinite.
///
/// # Panics
/// When the result does not fit the type of the values: the job stops and names the sum. (Values of `i128` are checked as
/// they are added.)
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

/// The mean of what `value` says of each; none when there is nothing.
///
/// The sum is that of [`sum`], exact for integers; it is rounded once, when it is divided. NaN among floats makes NaN.
///
/// ```
/// # use weir_operators::prelude::*;
/// let mean = avg(|n: &u64| *n);
/// let mut acc = mean.create();
/// [u64::MAX, u64::MAX].iter().for_each(|n| mean.add(&mut acc, n));
/// assert_eq!(mean.result(acc), Some(u64::MAX as f64));
/// ```
pub fn avg<In, N: Number, F: Fn(&In) -> N + Clone + Send + 'static>(value: F) -> Avg<In, F> {
    Avg { sum: sum(value) }
}

/// See [`avg`].
pub struct Avg<In, F> {
    sum: Sum<In, F>,
}

impl<In, F: Clone> Clone for Avg<In, F> {
    fn clone(&self) -> Self {
        Avg { sum: self.sum.clone() }
    }
}

impl<In, F> fmt::Debug for Avg<In, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Avg")
    }
}

impl<In: 'static, N: Number, F: Fn(&In) -> N + Clone + Send + 'static> Aggregate<In> for Avg<In, F> {
    type Acc = (N::Wide, u64);
    type Out = Option<f64>;

    fn create(&self) -> Self::Acc {
        Self::Acc::default()
    }
    #[inline]
    fn add(&self, acc: &mut Self::Acc, value: &In) {
        self.sum.add(&mut acc.0, value);
        acc.1 += 1;
    }
    fn merge(&self, acc: &mut Self::Acc, other: Self::Acc) {
        self.sum.merge(&mut acc.0, other.0);
        acc.1 += other.1;
    }
    fn result(&self, (sum, count): Self::Acc) -> Option<f64> {
        (count > 0).then(|| N::to_f64(sum) / count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    fn total<N: Number>(values: &[N]) -> N {
        let a = sum(|n: &N| n.clone());
        let mut acc = a.create();
        values.iter().for_each(|v| a.add(&mut acc, v));
        a.result(acc)
    }

    #[test]
    fn what_overflows_on_the_way_is_still_exact() {
        assert_eq!(total(&[i64::MAX, i64::MAX, i64::MIN, i64::MIN]), -2);
        assert_eq!(total(&[u64::MAX - 1, 1]), u64::MAX);
        assert_eq!(total(&[i8::MIN, 1, -1]), i8::MIN);
        assert_eq!(total(&[0.5, 0.25]), 0.75);
        assert_eq!(total(&[1.5f32, 0.25]), 1.75);
        assert_eq!(total(&[i128::from(u64::MAX), 1]), 1 << 64);
        assert_eq!(total::<i64>(&[]), 0);
    }

    #[test]
    fn a_sum_that_does_not_fit_stops_the_job_and_names_it() {
        let said = |sum: fn()| *catch_unwind(sum).unwrap_err().downcast::<String>().unwrap();
        let text = said(|| _ = total(&[u64::MAX, 1, 2]));
        assert!(
            text.starts_with("the sum 18446744073709551618 does not fit u64: sum a wider type"),
            "{text}"
        );
        assert!(said(|| _ = total(&[i32::MIN, -1])).contains("-2147483649 does not fit i32"));
        assert!(said(|| _ = total(&[i128::MAX, 1])).contains("+ 1 does not fit i128"));
    }

    #[test]
    fn a_mean_is_rounded_once() {
        let mean = |values: &[i64]| {
            let a = avg(|n: &i64| *n);
            let mut acc = a.create();
            values.iter().for_each(|v| a.add(&mut acc, v));
            a.result(acc)
        };
        assert_eq!(mean(&[]), None);
        assert_eq!(mean(&[1, 2]), Some(1.5));
        assert_eq!(mean(&[i64::MAX, i64::MIN, 3, -1]), Some(0.25));
    }
}
