//! What a key comes to in the window that slides: two stacks of slices, so that one may leave without subtracting it.

use serde::{Deserialize, Serialize};

use crate::aggregate::Aggregate;

/// The slices of one key, merged. In front lie sums of the older slices, each from its slice up to the newest of them, the
/// oldest on top: when a slice leaves, the next sum is there already. Behind them lies one sum of all newer slices. When
/// the front is used up it is made anew of what is left, so that each slice is merged twice while it is in a window,
/// however long that is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Running<A> {
    front: Vec<(i64, A)>,
    back: Option<A>,
}

impl<A> Default for Running<A> {
    fn default() -> Self {
        Running { front: Vec::new(), back: None }
    }
}

impl<A: Clone> Running<A> {
    /// Made of slices by their starts, the oldest first.
    pub(crate) fn of<T>(aggregate: &impl Aggregate<T, Acc = A>, slices: Vec<(i64, A)>) -> Self {
        let mut front: Vec<(i64, A)> = Vec::with_capacity(slices.len());
        for (start, mut acc) in slices.into_iter().rev() {
            if let Some((_, newer)) = front.last() {
                aggregate.merge(&mut acc, newer.clone());
            }
            front.push((start, acc));
        }
        Running { front, back: None }
    }

    /// A slice that is newer than all others.
    pub(crate) fn arrives<T>(&mut self, aggregate: &impl Aggregate<T, Acc = A>, slice: A) {
        match &mut self.back {
            Some(back) => aggregate.merge(back, slice),
            none => *none = Some(slice),
        }
    }

    /// The oldest slice leaves. False when nobody here knows what is left: make it anew of that.
    pub(crate) fn leaves(&mut self, start: i64) -> bool {
        self.front.pop_if(|(oldest, _)| *oldest == start).is_some()
    }

    /// True when no slice is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.front.is_empty() && self.back.is_none()
    }

    /// What all slices come to; none when there is no slice.
    pub(crate) fn total<T>(&self, aggregate: &impl Aggregate<T, Acc = A>) -> Option<A> {
        match (self.front.last(), &self.back) {
            (Some((_, front)), Some(back)) => {
                let mut total = front.clone();
                aggregate.merge(&mut total, back.clone());
                Some(total)
            }
            (Some((_, one)), None) | (None, Some(one)) => Some(one.clone()),
            (None, None) => None,
        }
    }

    /// What all newer slices come to, to be added to.
    pub(crate) fn back(&mut self) -> &mut Option<A> {
        &mut self.back
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::{count, max, min};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Slices come and go; the total is that of those that are there.
        #[test]
        fn a_total_is_that_of_the_slices_that_are_left(steps in prop::collection::vec((any::<bool>(), -50i64..50), 0..60)) {
            let aggregate = (count(), (min(|v: &i64| *v), max(|v: &i64| *v)));
            let acc = |values: &mut dyn Iterator<Item = i64>| {
                let mut acc = aggregate.create();
                values.for_each(|v| aggregate.add(&mut acc, &v));
                acc
            };
            let mut slices: VecDeque<(i64, i64)> = VecDeque::new();
            let mut running = Running::default();
            for (at, (comes, value)) in steps.into_iter().enumerate() {
                if comes {
                    slices.push_back((at as i64, value));
                    running.arrives(&aggregate, acc(&mut [value].into_iter()));
                } else if let Some((start, _)) = slices.pop_front() && !running.leaves(start) {
                    let left = slices.iter().map(|(start, v)| (*start, acc(&mut [*v].into_iter()))).collect();
                    running = Running::of(&aggregate, left);
                }
                let expected = (!slices.is_empty()).then(|| acc(&mut slices.iter().map(|(_, v)| *v)));
                prop_assert_eq!(running.is_empty(), expected.is_none());
                prop_assert_eq!(running.total(&aggregate), expected);
            }
        }
    }
}
