//! `min` and `max`: the extreme of what a function says of each value.

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_engine::Data;

use super::Aggregate;

/// Puts `value` in place of what is held when it is on the wanted side of it. What cannot be compared with itself (NaN)
/// is passed over.
#[inline]
fn offer<V: PartialOrd>(held: &mut Option<V>, value: V, wanted: Ordering) {
    let wins = match held {
        Some(held) => value.partial_cmp(held) == Some(wanted),
        None => value.partial_cmp(&value).is_some(),
    };
    if wins {
        *held = Some(value);
    }
}

macro_rules! extreme {
    ($(#[$doc:meta])* $make:ident, $of:ident, $side:expr) => {
        $(#[$doc])*
        pub fn $make<In, V, F>(value: F) -> $of<In, F>
        where
            V: Data + PartialOrd + Serialize + DeserializeOwned,
            F: Fn(&In) -> V + Clone + Send + 'static,
        {
            $of { value, _in: PhantomData }
        }

        #[doc = concat!("See [`", stringify!($make), "`].")]
        pub struct $of<In, F> {
            value: F,
            _in: PhantomData<fn(In)>,
        }

        impl<In, F: Clone> Clone for $of<In, F> {
            fn clone(&self) -> Self {
                $of { value: self.value.clone(), _in: PhantomData }
            }
        }

        impl<In, F> fmt::Debug for $of<In, F> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($of))
            }
        }

        impl<In, V, F> Aggregate<In> for $of<In, F>
        where
            In: 'static,
            V: Data + PartialOrd + Serialize + DeserializeOwned,
            F: Fn(&In) -> V + Clone + Send + 'static,
        {
            type Acc = Option<V>;
            type Out = Option<V>;

            fn create(&self) -> Option<V> {
                None
            }
            #[inline]
            fn add(&self, acc: &mut Option<V>, value: &In) {
                offer(acc, (self.value)(value), $side);
            }
            fn merge(&self, acc: &mut Option<V>, other: Option<V>) {
                if let Some(value) = other {
                    offer(acc, value, $side);
                }
            }
            fn result(&self, acc: Option<V>) -> Option<V> {
                acc
            }
        }
    };
}

extreme! {
    /// The least of what `value` says of each; none when there is nothing. Of equals the first stays; NaN is passed over.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// let cheapest = min(|price: &f64| *price);
    /// let mut acc = cheapest.create();
    /// [2.5, 1.5, f64::NAN].iter().for_each(|p| cheapest.add(&mut acc, p));
    /// assert_eq!(cheapest.result(acc), Some(1.5));
    /// ```
    min, Min, Ordering::Less
}
extreme! {
    /// The greatest of what `value` says of each; none when there is nothing. Of equals the first stays; NaN is passed
    /// over.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// let longest = max(|word: &&str| word.len());
    /// let mut acc = longest.create();
    /// ["a", "abc", "ab"].iter().for_each(|w| longest.add(&mut acc, w));
    /// assert_eq!(longest.result(acc), Some(3));
    /// ```
    max, Max, Ordering::Greater
}
