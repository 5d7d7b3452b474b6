//! `min_by`, `max_by` and `top`: the values themselves that are the extreme, by what a function says of each.

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_engine::Data;

use super::Aggregate;

/// Something to compare by: with itself at least, so that NaN is passed over.
pub trait Score: Data + PartialOrd + Serialize + DeserializeOwned {}
impl<T: Data + PartialOrd + Serialize + DeserializeOwned> Score for T {}

/// What can be in an accumulator as it is.
pub trait Kept: Data + Serialize + DeserializeOwned {}
impl<T: Data + Serialize + DeserializeOwned> Kept for T {}

pub(crate) fn is_comparable<V: PartialOrd>(value: &V) -> bool {
    value.partial_cmp(value).is_some()
}

macro_rules! extreme_by {
    ($(#[$doc:meta])* $make:ident, $of:ident, $side:expr) => {
        $(#[$doc])*
        pub fn $make<In: Kept, V: Score, F: Fn(&In) -> V + Clone + Send + 'static>(by: F) -> $of<In, F> {
            $of { by, _in: PhantomData }
        }

        #[doc = concat!("See [`", stringify!($make), "`].")]
        pub struct $of<In, F> {
            by: F,
            _in: PhantomData<fn(In)>,
        }

        impl<In, F: Clone> Clone for $of<In, F> {
            fn clone(&self) -> Self {
                $of { by: self.by.clone(), _in: PhantomData }
            }
        }

        impl<In, F> fmt::Debug for $of<In, F> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($of))
            }
        }

        impl<In: Kept, V: Score, F: Fn(&In) -> V + Clone + Send + 'static> Aggregate<In> for $of<In, F> {
            type Acc = Option<(V, In)>;
            type Out = Option<In>;

            fn create(&self) -> Self::Acc {
                None
            }
            #[inline]
            fn add(&self, acc: &mut Self::Acc, value: &In) {
                let score = (self.by)(value);
                // The value is copied only when it is the one to keep.
                if wins(acc, &score, $side) {
                    *acc = Some((score, value.clone()));
                }
            }
            fn merge(&self, acc: &mut Self::Acc, other: Self::Acc) {
                if let Some((score, value)) = other
                    && wins(acc, &score, $side)
                {
                    *acc = Some((score, value));
                }
            }
            fn result(&self, acc: Self::Acc) -> Option<In> {
                acc.map(|(_, value)| value)
            }
        }
    };
}

fn wins<V: PartialOrd, In>(held: &Option<(V, In)>, score: &V, wanted: Ordering) -> bool {
    match held {
        Some((held, _)) => score.partial_cmp(held) == Some(wanted),
        None => is_comparable(score),
    }
}

extreme_by! {
    /// The value of which `by` says the least; none when there is nothing. Of equals the first stays; NaN is passed over.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// let cheapest = min_by(|offer: &(String, f64)| offer.1);
    /// let mut acc = cheapest.create();
    /// [("a", 2.5), ("b", 1.5), ("c", 1.5)].iter().for_each(|(n, p)| cheapest.add(&mut acc, &((*n).into(), *p)));
    /// assert_eq!(cheapest.result(acc), Some(("b".to_owned(), 1.5)));
    /// ```
    min_by, MinBy, Ordering::Less
}
extreme_by! {
    /// The value of which `by` says the greatest; none when there is nothing. Of equals the first stays; NaN is passed over.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// let longest = max_by(|word: &String| word.len());
    /// let mut acc = longest.create();
    /// ["a", "abc", "xyz"].iter().for_each(|w| longest.add(&mut acc, &w.to_string()));
    /// assert_eq!(longest.result(acc), Some("abc".to_owned()));
    /// ```
    max_by, MaxBy, Ordering::Greater
}

/// The `n` values of which `by` says the greatest, greatest first; fewer when there are not so many. Of equals the first ones
/// stay, in the order in which they came; NaN is passed over. For the least, compare by [`std::cmp::Reverse`].
///
/// *State*: `n` values and what `by` says of them. A value that does not get in is not copied.
///
/// ```
/// # use weir_operators::prelude::*;
/// let best = top(2, |n: &i64| *n);
/// let mut acc = best.create();
/// [3, 9, 4].iter().for_each(|n| best.add(&mut acc, n));
/// assert_eq!(best.result(acc), [9, 4]);
/// ```
pub fn top<In: Kept, V: Score, F: Fn(&In) -> V + Clone + Send + 'static>(n: usize, by: F) -> Top<In, F> {
    Top { n, by, _in: PhantomData }
}

/// See [`top`].
pub struct Top<In, F> {
    n: usize,
    by: F,
    _in: PhantomData<fn(In)>,
}

impl<In, F: Clone> Clone for Top<In, F> {
    fn clone(&self) -> Self {
        Top { n: self.n, by: self.by.clone(), _in: PhantomData }
    }
}

impl<In, F> fmt::Debug for Top<In, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Top({})", self.n)
    }
}

/// Where a score gets into a list of at most `n`, greatest first: behind its equals. None when it does not.
pub(crate) fn rank<'a, V: PartialOrd + 'a>(
    scores: impl Iterator<Item = &'a V>,
    score: &V,
    n: usize,
) -> Option<usize> {
    let at = scores.take_while(|held| score.partial_cmp(held) != Some(Ordering::Greater)).count();
    (at < n && is_comparable(score)).then_some(at)
}

impl<In: Kept, V: Score, F: Fn(&In) -> V + Clone + Send + 'static> Top<In, F> {
    fn offer(&self, acc: &mut Vec<(V, In)>, score: V, value: impl FnOnce() -> In) {
        // Most values of a long stream are below all that are held: one comparison.
        let below = acc.len() >= self.n
            && acc.last().is_some_and(|(last, _)| score.partial_cmp(last) != Some(Ordering::Greater));
        if below {
            return;
        }
        if let Some(at) = rank(acc.iter().map(|(score, _)| score), &score, self.n) {
            acc.truncate(self.n - 1);
            acc.insert(at, (score, value()));
        }
    }
}

impl<In: Kept, V: Score, F: Fn(&In) -> V + Clone + Send + 'static> Aggregate<In> for Top<In, F> {
    type Acc = Vec<(V, In)>;
    type Out = Vec<In>;

    fn create(&self) -> Self::Acc {
        Vec::new()
    }
    #[inline]
    fn add(&self, acc: &mut Self::Acc, value: &In) {
        self.offer(acc, (self.by)(value), || value.clone());
    }
    fn merge(&self, acc: &mut Self::Acc, other: Self::Acc) {
        for (score, value) in other {
            self.offer(acc, score, || value);
        }
    }
    fn result(&self, acc: Self::Acc) -> Vec<In> {
        // A life before this one may have kept more.
        acc.into_iter().take(self.n).map(|(_, value)| value).collect()
    }
}
