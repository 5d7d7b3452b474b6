//! `collect` and `reduce`: all values as a list, and values folded into one of their own type.

use std::fmt;
use std::marker::PhantomData;

use super::Aggregate;
use super::extreme_by::Kept;

/// All that `of` makes of the values, in the order in which they came; those of several subtasks or slices one after the other.
///
/// *State*: everything, until the result is given; there is no limit but the memory. Prefer [`top`](super::top) or
/// [`reduce`] where they will do.
///
/// ```
/// # use weir_operators::prelude::*;
/// let pages = collect(|page: &&'static str| page.len());
/// let mut acc = pages.create();
/// ["/", "/a"].iter().for_each(|page| pages.add(&mut acc, page));
/// assert_eq!(pages.result(acc), [1, 2]);
/// ```
pub fn collect<In, V: Kept, F: Fn(&In) -> V + Clone + Send + 'static>(of: F) -> Collect<In, F> {
    Collect { of, _in: PhantomData }
}

/// See [`collect`].
pub struct Collect<In, F> {
    of: F,
    _in: PhantomData<fn(In)>,
}

impl<In, F: Clone> Clone for Collect<In, F> {
    fn clone(&self) -> Self {
        Collect { of: self.of.clone(), _in: PhantomData }
    }
}

impl<In, F> fmt::Debug for Collect<In, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collect")
    }
}

impl<In: 'static, V: Kept, F: Fn(&In) -> V + Clone + Send + 'static> Aggregate<In> for Collect<In, F> {
    type Acc = Vec<V>;
    type Out = Vec<V>;

    fn create(&self) -> Vec<V> {
        Vec::new()
    }
    #[inline]
    fn add(&self, acc: &mut Vec<V>, value: &In) {
        acc.push((self.of)(value));
    }
    fn merge(&self, acc: &mut Vec<V>, mut other: Vec<V>) {
        acc.append(&mut other);
    }
    fn result(&self, acc: Vec<V>) -> Vec<V> {
        acc
    }
}

/// The first value with every later one folded into it; none when there is nothing.
///
/// `fold` must be associative, `(a b) c = a (b c)`: parts are folded by themselves and then with each other, in order.
///
/// ```
/// # use weir_operators::prelude::*;
/// let latest = reduce(|held: &mut (i64, String), next: &(i64, String)| {
///     if next.0 >= held.0 { held.clone_from(next) }
/// });
/// let mut acc = latest.create();
/// [(3, "a"), (9, "b"), (4, "c")].iter().for_each(|(at, v)| latest.add(&mut acc, &(*at, v.to_string())));
/// assert_eq!(latest.result(acc), Some((9, "b".to_owned())));
/// ```
pub fn reduce<In: Kept, F: Fn(&mut In, &In) + Clone + Send + 'static>(fold: F) -> Reduce<In, F> {
    Reduce { fold, _in: PhantomData }
}

/// See [`reduce`].
pub struct Reduce<In, F> {
    fold: F,
    _in: PhantomData<fn(In)>,
}

impl<In, F: Clone> Clone for Reduce<In, F> {
    fn clone(&self) -> Self {
        Reduce { fold: self.fold.clone(), _in: PhantomData }
    }
}

impl<In, F> fmt::Debug for Reduce<In, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reduce")
    }
}

impl<In: Kept, F: Fn(&mut In, &In) + Clone + Send + 'static> Aggregate<In> for Reduce<In, F> {
    type Acc = Option<In>;
    type Out = Option<In>;

    fn create(&self) -> Option<In> {
        None
    }
    #[inline]
    fn add(&self, acc: &mut Option<In>, value: &In) {
        match acc {
            Some(held) => (self.fold)(held, value),
            None => *acc = Some(value.clone()),
        }
    }
    fn merge(&self, acc: &mut Option<In>, other: Option<In>) {
        match (acc.as_mut(), other) {
            (Some(held), Some(other)) => (self.fold)(held, &other),
            (None, other) => *acc = other,
            (Some(_), None) => {}
        }
    }
    fn result(&self, acc: Option<In>) -> Option<In> {
        acc
    }
}
