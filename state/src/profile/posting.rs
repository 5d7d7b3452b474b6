//! Which users of a chunk have which value: short lists packed together, longer ones each on their own.

use super::VALUES_PAGE;
use super::heap::Heap;
use super::locals::{Locals, Posting};
use super::packed::Packed;
use std::sync::Arc;

/// A list that grows beyond this leaves its page.
const SPARSE_MAX: usize = 256;
/// What shrinks to this comes back; well below the other, so that a value at the border does not flap.
const SPARSE_AGAIN: u32 = 128;

/// Users by value number, in pages so that a tag of many values is cheap to copy on write.
#[derive(Debug, Clone, Default)]
pub(crate) struct Postings(Vec<Option<Arc<PostingPage>>>);

/// The users of neighbouring value numbers. A value is in one of the two.
#[derive(Debug, Clone, Default)]
struct PostingPage {
    sparse: Packed<u16, VALUES_PAGE>,
    /// By position in the page, sorted.
    dense: Vec<(u8, Locals)>,
}

impl Heap for PostingPage {
    fn heap(&self) -> usize {
        let dense = self.dense.iter().map(|(_, users)| users.heap()).sum::<usize>();
        self.sparse.heap() + self.dense.capacity() * size_of::<(u8, Locals)>() + dense
    }
}

impl Heap for Postings {
    fn heap(&self) -> usize {
        self.0.heap()
    }
}

impl PostingPage {
    #[inline]
    fn dense(&self, slot: usize) -> Result<usize, usize> {
        self.dense.binary_search_by_key(&(slot as u8), |d| d.0)
    }

    fn insert(&mut self, slot: usize, local: u16) {
        if let Ok(at) = self.dense(slot) {
            self.dense[at].1.insert(local);
        } else if let Err(at) = self.sparse.get(slot).binary_search(&local) {
            self.sparse.insert(slot, at, local);
            if self.sparse.get(slot).len() > SPARSE_MAX {
                let users = Locals::of_sorted(self.sparse.get(slot).to_vec());
                self.sparse.clear(slot);
                let at = self.dense(slot).unwrap_or_else(|at| at);
                self.dense.insert(at, (slot as u8, users));
            }
        }
    }

    fn remove(&mut self, slot: usize, local: u16) {
        if let Ok(at) = self.dense(slot) {
            let users = &mut self.dense[at].1;
            users.remove(local);
            if users.len() <= SPARSE_AGAIN {
                let (_, users) = self.dense.remove(at);
                users.to_vec().iter().enumerate().for_each(|(i, l)| self.sparse.insert(slot, i, *l));
            }
        } else if let Ok(at) = self.sparse.get(slot).binary_search(&local) {
            self.sparse.remove(slot, at);
        }
    }
}

impl Postings {
    /// Sorts who has what of values below `values`; nothing if there are others, or a pair comes twice.
    pub(crate) fn of(mut pairs: Vec<(u32, u16)>, values: u32) -> Option<Self> {
        pairs.sort_unstable();
        let twice = pairs.windows(2).any(|two| two[0] == two[1]);
        if twice || pairs.last().is_some_and(|last| last.0 >= values) {
            return None;
        }
        let mut postings = Postings::default();
        for users in pairs.chunk_by(|a, b| a.0 == b.0) {
            let (value, users) = (users[0].0, users.iter().map(|p| p.1));
            let page = postings.page_mut(value);
            let slot = value as usize % VALUES_PAGE;
            if users.len() > SPARSE_MAX {
                page.dense.push((slot as u8, Locals::of_sorted(users.collect())));
            } else {
                page.sparse.append(slot, users);
            }
        }
        Some(postings)
    }

    /// The users of a value, if there are any.
    #[inline]
    pub(crate) fn get(&self, value: u32) -> Option<Posting<'_>> {
        let page = self.0.get(value as usize / VALUES_PAGE)?.as_ref()?;
        let slot = value as usize % VALUES_PAGE;
        Some(match (page.sparse.get(slot), page.dense(slot)) {
            (_, Ok(at)) => page.dense[at].1.view(),
            ([], _) => return None,
            (list, _) => Posting::List(list),
        })
    }

    #[inline]
    fn page_mut(&mut self, value: u32) -> &mut PostingPage {
        let at = value as usize / VALUES_PAGE;
        if at >= self.0.len() {
            self.0.resize(at + 1, None);
        }
        Arc::make_mut(self.0[at].get_or_insert_default())
    }

    #[inline]
    pub(crate) fn insert(&mut self, value: u32, local: u16) {
        self.page_mut(value).insert(value as usize % VALUES_PAGE, local);
    }

    #[inline]
    pub(crate) fn remove(&mut self, value: u32, local: u16) {
        let page = self.page_mut(value);
        page.remove(value as usize % VALUES_PAGE, local);
        if page.sparse.items().is_empty() && page.dense.is_empty() {
            self.0[value as usize / VALUES_PAGE] = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

        /// Few values and runs of inserts and removals, so that lists become bitmaps and lists again.
        #[test]
        fn behaves_like_sets(
            runs in prop::collection::vec((0u32..3, any::<bool>(), 0u16..900, 1u16..600), 0..40)
        ) {
            let mut postings = Postings::default();
            let mut model: BTreeMap<u32, BTreeSet<u16>> = BTreeMap::new();
            for (value, add, from, len) in runs {
                let value = value * 40;
                let set = model.entry(value).or_default();
                for local in (from..from + len).map(|l| l.wrapping_mul(48_271)) {
                    if add {
                        postings.insert(value, local);
                        set.insert(local);
                    } else {
                        postings.remove(value, local);
                        set.remove(&local);
                    }
                }
                for (value, set) in &model {
                    let found = postings.get(*value);
                    prop_assert_eq!(found.is_some(), !set.is_empty());
                    prop_assert_eq!(found.map_or(0, |p| p.len()) as usize, set.len());
                    prop_assert!((0..u16::MAX).step_by(61).all(|l| postings.get(*value).is_some_and(|p| p.contains(l)) == set.contains(&l)));
                }
            }
        }
    }
}
