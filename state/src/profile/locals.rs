//! Some users of one chunk: a sorted list while they are few, a bit each when they are many; copied only where shared.

use super::heap::{COUNTS, Heap, flat, plain};
use std::sync::Arc;

/// Words of 64 users that a whole chunk has.
pub(crate) const WORDS: usize = 1 << (super::CHUNK_BITS - 6);
/// A list that grows beyond this becomes bits: half their size, so that the two are never far apart.
const LIST_MAX: usize = 2048;
/// Bits of so few become a list; well below the other, so that what lies at the border does not flap.
const LIST_AGAIN: u32 = 1024;

/// A bit per user of a chunk.
#[derive(Debug, Clone)]
pub(crate) struct Bits {
    len: u32,
    words: [u64; WORDS],
}

impl Bits {
    #[inline]
    pub(crate) fn words(&self) -> &[u64; WORDS] {
        &self.words
    }

    #[inline]
    fn contains(&self, local: u16) -> bool {
        self.words[local as usize / 64] >> (local % 64) & 1 == 1
    }
}

/// An owned set of users. A clone shares it.
#[derive(Debug, Clone)]
pub(crate) enum Locals {
    List(Arc<Vec<u16>>),
    Bits(Arc<Bits>),
}

flat!(Bits);

impl Heap for Locals {
    fn heap(&self) -> usize {
        match self {
            // The list itself lies behind the pointer, too.
            Locals::List(list) => COUNTS + size_of::<Vec<u16>>() + plain(list),
            Locals::Bits(bits) => bits.heap(),
        }
    }
}

impl Default for Locals {
    fn default() -> Self {
        Locals::List(Arc::default())
    }
}

impl Locals {
    /// Those of a list that rises.
    pub(crate) fn of_sorted(list: Vec<u16>) -> Self {
        debug_assert!(list.is_sorted_by(|a, b| a < b));
        if list.len() > LIST_MAX { Self::bits(&list) } else { Locals::List(Arc::new(list)) }
    }

    fn bits(list: &[u16]) -> Self {
        let mut words = [0; WORDS];
        list.iter().for_each(|l| words[*l as usize / 64] |= 1 << (l % 64));
        Locals::Bits(Arc::new(Bits { len: list.len() as u32, words }))
    }

    /// The same, borrowed.
    #[inline]
    pub(crate) fn view(&self) -> Posting<'_> {
        match self {
            Locals::List(list) => Posting::List(list),
            Locals::Bits(bits) => Posting::Bits(bits),
        }
    }

    #[inline]
    pub(crate) fn contains(&self, local: u16) -> bool {
        self.view().contains(local)
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.view().len()
    }

    pub(crate) fn max(&self) -> Option<u16> {
        match self {
            Locals::List(list) => list.last().copied(),
            Locals::Bits(bits) => {
                let word = bits.words.iter().rposition(|w| *w != 0)?;
                Some((word * 64 + 63 - bits.words[word].leading_zeros() as usize) as u16)
            }
        }
    }

    /// Adds a user; nothing happens, nothing is copied, if it is there.
    #[inline]
    pub(crate) fn insert(&mut self, local: u16) {
        match self {
            Locals::Bits(bits) => {
                if !bits.contains(local) {
                    let bits = Arc::make_mut(bits);
                    bits.words[local as usize / 64] |= 1 << (local % 64);
                    bits.len += 1;
                }
            }
            Locals::List(list) => {
                let Err(at) = list.binary_search(&local) else { return };
                let list = Arc::make_mut(list);
                list.insert(at, local);
                if list.len() > LIST_MAX {
                    *self = Self::bits(list);
                }
            }
        }
    }

    /// Takes a user away; nothing happens, nothing is copied, if it is not there.
    #[inline]
    pub(crate) fn remove(&mut self, local: u16) {
        match self {
            Locals::Bits(bits) => {
                if bits.contains(local) {
                    let bits = Arc::make_mut(bits);
                    bits.words[local as usize / 64] &= !(1 << (local % 64));
                    bits.len -= 1;
                    if bits.len <= LIST_AGAIN {
                        *self = Locals::List(Arc::new(each_bit(&bits.words).collect()));
                    }
                }
            }
            Locals::List(list) => {
                let Ok(at) = list.binary_search(&local) else { return };
                Arc::make_mut(list).remove(at);
            }
        }
    }

    /// The users in order.
    pub(crate) fn to_vec(&self) -> Vec<u16> {
        match self {
            Locals::List(list) => list.to_vec(),
            Locals::Bits(bits) => each_bit(&bits.words).collect(),
        }
    }
}

/// The positions of the bits that are set, in order.
pub(crate) fn each_bit(words: &[u64]) -> impl Iterator<Item = u16> + '_ {
    words.iter().enumerate().flat_map(|(at, word)| {
        let mut rest = *word;
        std::iter::from_fn(move || {
            (rest != 0).then(|| {
                let bit = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                (at * 64 + bit) as u16
            })
        })
    })
}

/// A set of users as it lies in the index.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Posting<'a> {
    /// Rising.
    List(&'a [u16]),
    Bits(&'a Bits),
}

impl Posting<'_> {
    #[inline]
    pub(crate) fn contains(&self, local: u16) -> bool {
        match self {
            Posting::List(list) => list.binary_search(&local).is_ok(),
            Posting::Bits(bits) => bits.contains(local),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        match self {
            Posting::List(list) => list.len() as u32,
            Posting::Bits(bits) => bits.len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        /// Runs long enough that lists become bits and lists again, with a shared copy that must not change.
        #[test]
        fn behaves_like_a_set(runs in prop::collection::vec((any::<bool>(), any::<u16>(), 1u16..3_000), 0..12)) {
            let mut locals = Locals::default();
            let mut model = BTreeSet::new();
            for (add, from, len) in runs {
                let (shared, before) = (locals.clone(), model.clone());
                for local in (0..len).map(|i| from.wrapping_add(i.wrapping_mul(21))) {
                    if add {
                        locals.insert(local);
                        model.insert(local);
                    } else {
                        locals.remove(local);
                        model.remove(&local);
                    }
                }
                prop_assert!(shared.to_vec().iter().eq(&before));
                prop_assert!(locals.to_vec().iter().eq(&model));
                prop_assert_eq!(locals.len() as usize, model.len());
                prop_assert_eq!(locals.max(), model.last().copied());
                prop_assert!((0..u16::MAX).step_by(7).all(|l| locals.contains(l) == model.contains(&l)));
                prop_assert!(Locals::of_sorted(model.iter().copied().collect()).to_vec().iter().eq(&model));
            }
        }
    }
}
