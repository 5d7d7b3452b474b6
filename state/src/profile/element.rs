//! When each element of each user's set was last added or removed: short sorted lists, shared until touched.

use super::CHUNK_BITS;
use super::column::Column;
use super::heap::Heap;
use super::packed::Packed;
use super::stamp::{NEVER, base_around, chunk_mut, offset_of, time_of};
use std::sync::Arc;

/// Users per page: few, for a page is copied when it is first touched after a freeze.
pub(crate) const ELEMENT_PAGE: usize = 32;

/// The newest `Add` or `Remove` of (user, value number), in ms; it was the former if the element is there. Owned by the
/// writer; a clone copies a pointer per chunk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Elements(pub(crate) Vec<Arc<Column<ElementPage, ELEMENT_PAGE>>>);

/// The elements of neighbouring users: value number and time, by value number.
#[derive(Debug, Clone)]
pub(crate) enum ElementPage {
    /// Times as offsets above a base.
    Narrow { base: i64, lists: Packed<(u32, u32), ELEMENT_PAGE> },
    /// Times more than 24 days around the first one: plain.
    Wide(Packed<(u32, i64), ELEMENT_PAGE>),
}

/// Where a value is in its user's list, or would be.
type Place = Result<usize, usize>;

impl Heap for ElementPage {
    fn heap(&self) -> usize {
        match self {
            ElementPage::Narrow { lists, .. } => lists.heap(),
            ElementPage::Wide(lists) => lists.heap(),
        }
    }
}

impl Heap for Elements {
    fn heap(&self) -> usize {
        self.0.heap()
    }
}

impl ElementPage {
    #[inline]
    fn find(&self, slot: usize, value: u32) -> (Place, i64) {
        match self {
            ElementPage::Narrow { base, lists } => {
                let list = lists.get(slot);
                let place = list.binary_search_by_key(&value, |e| e.0);
                (place, place.map_or(NEVER, |at| time_of(*base, list[at].1)))
            }
            ElementPage::Wide(lists) => {
                let list = lists.get(slot);
                let place = list.binary_search_by_key(&value, |e| e.0);
                (place, place.map_or(NEVER, |at| list[at].1))
            }
        }
    }

    #[inline]
    fn put(&mut self, slot: usize, place: Place, value: u32, time: i64) {
        if let ElementPage::Narrow { base, lists } = self {
            match offset_of(*base, time) {
                Some(offset) => return lists.put(slot, place, (value, offset)),
                None => *self = ElementPage::Wide(lists.map(|(v, o)| (v, time_of(*base, o)))),
            }
        }
        if let ElementPage::Wide(lists) = self {
            lists.put(slot, place, (value, time));
        }
    }

    /// The elements of one user with their times.
    pub(crate) fn list(&self, slot: usize) -> Vec<(u32, i64)> {
        match self {
            ElementPage::Narrow { base, lists } => {
                lists.get(slot).iter().map(|&(v, o)| (v, time_of(*base, o))).collect()
            }
            ElementPage::Wide(lists) => lists.get(slot).to_vec(),
        }
    }

    fn forget(&mut self, slot: usize, before: i64) {
        match self {
            ElementPage::Narrow { base, lists } => lists.retain(slot, |e| time_of(*base, e.1) >= before),
            ElementPage::Wide(lists) => lists.retain(slot, |e| e.1 >= before),
        }
    }
}

impl Elements {
    #[inline]
    fn page(&self, local: u32) -> Option<&ElementPage> {
        self.0.get((local >> CHUNK_BITS) as usize)?.page(local as u16)
    }

    /// Notes an `Add` or `Remove` if it is newer than what is known of the element, or as new and `at_equal`; says
    /// whether it is.
    #[inline]
    pub(crate) fn note(&mut self, local: u32, value: u32, time: i64, at_equal: bool) -> bool {
        let slot = local as usize % ELEMENT_PAGE;
        let (place, known) = self.page(local).map_or((Err(0), NEVER), |p| p.find(slot, value));
        let wins = time > known || (time == known && at_equal);
        if wins {
            let new = || ElementPage::Narrow { base: base_around(time), lists: Packed::default() };
            chunk_mut(&mut self.0, local).page_or(local as u16, new).put(slot, place, value, time);
        }
        wins
    }

    /// Whether anything as new as `time` was said of the element.
    #[inline]
    pub(crate) fn holds_since(&self, local: u32, value: u32, time: i64) -> bool {
        self.page(local).is_some_and(|p| {
            let (place, known) = p.find(local as usize % ELEMENT_PAGE, value);
            place.is_ok() && known >= time
        })
    }

    /// The elements of one user with their times.
    pub(crate) fn list(&self, local: u32) -> Vec<(u32, i64)> {
        self.page(local).map_or_else(Vec::new, |p| p.list(local as usize % ELEMENT_PAGE))
    }

    /// Forgets what was said of one element of a user.
    pub(crate) fn drop_value(&mut self, local: u32, value: u32) {
        let new = || ElementPage::Wide(Packed::default());
        let slot = local as usize % ELEMENT_PAGE;
        match chunk_mut(&mut self.0, local).page_or(local as u16, new) {
            ElementPage::Narrow { lists, .. } => lists.retain(slot, |e| e.0 != value),
            ElementPage::Wide(lists) => lists.retain(slot, |e| e.0 != value),
        }
    }

    /// Forgets what was said of a user's elements before `time`.
    pub(crate) fn forget(&mut self, local: u32, before: i64) {
        let slot = local as usize % ELEMENT_PAGE;
        let old = |p: &ElementPage| p.list(slot).iter().any(|e| e.1 < before);
        if self.page(local).is_some_and(old) {
            let new = || ElementPage::Wide(Packed::default());
            chunk_mut(&mut self.0, local).page_or(local as u16, new).forget(slot, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((0u32..100, 0u32..6, prop_oneof![
            1_511_544_000_000i64..1_512_544_000_000, any::<i64>(), Just(i64::MIN), Just(i64::MAX), -5i64..5
        ], 0u8..8), 0..300)) {
            let mut elements = Elements::default();
            let mut model: HashMap<(u32, u32), i64> = HashMap::new();
            let mut frozen = None;
            for (i, (user, value, time, kind)) in steps.into_iter().enumerate() {
                if i == 150 {
                    frozen = Some((elements.clone(), model.clone()));
                }
                if kind == 0 {
                    elements.forget(user, time);
                    model.retain(|k, t| k.0 != user || *t >= time);
                    continue;
                }
                let known = model.get(&(user, value)).copied().unwrap_or(NEVER);
                let wins = time > known || (time == known && kind > 4);
                prop_assert_eq!(elements.note(user, value, time, kind > 4), wins);
                if wins {
                    model.insert((user, value), time);
                }
            }
            for (elements, model) in frozen.into_iter().chain([(elements, model)]) {
                for (user, value) in (0..100).flat_map(|u| (0..6).map(move |v| (u, v))) {
                    let known = model.get(&(user, value));
                    prop_assert_eq!(elements.holds_since(user, value, NEVER), known.is_some());
                    if let Some(&time) = known {
                        prop_assert!(elements.holds_since(user, value, time));
                        prop_assert!(time == i64::MAX || !elements.holds_since(user, value, time + 1));
                    }
                }
            }
        }
    }
}
