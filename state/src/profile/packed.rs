//! Many short lists end to end in one vector, so that copying all of them is two copies of memory.

use super::heap::{Heap, plain};

/// `N` lists of `T`.
#[derive(Debug, Clone)]
pub(crate) struct Packed<T, const N: usize> {
    ends: [u32; N],
    items: Vec<T>,
}

impl<T, const N: usize> Default for Packed<T, N> {
    fn default() -> Self {
        Self { ends: [0; N], items: Vec::new() }
    }
}

impl<T: Copy, const N: usize> Heap for Packed<T, N> {
    fn heap(&self) -> usize {
        plain(&self.items)
    }
}

impl<T: Copy + PartialEq, const N: usize> Packed<T, N> {
    #[inline]
    fn start(&self, list: usize) -> usize {
        if list == 0 { 0 } else { self.ends[list - 1] as usize }
    }

    #[inline]
    pub(crate) fn get(&self, list: usize) -> &[T] {
        &self.items[self.start(list)..self.ends[list] as usize]
    }

    /// Inserts an item at a position in a list.
    #[inline]
    pub(crate) fn insert(&mut self, list: usize, at: usize, item: T) {
        let at = self.start(list) + at;
        if self.items.len() == self.items.capacity() {
            // A copy has no room to spare, and copies are many: doubling them would double memory.
            self.items.reserve_exact(self.items.len() / 8 + 4);
        }
        self.items.insert(at, item);
        self.ends[list..].iter_mut().for_each(|e| *e += 1);
    }

    /// Removes the item at a position of a list.
    #[inline]
    pub(crate) fn remove(&mut self, list: usize, at: usize) {
        let at = self.start(list) + at;
        self.items.remove(at);
        self.ends[list..].iter_mut().for_each(|e| *e -= 1);
    }

    /// Replaces the item at a place in a list, or inserts one there.
    #[inline]
    pub(crate) fn put(&mut self, list: usize, place: Result<usize, usize>, item: T) {
        match place {
            Ok(at) => {
                let at = self.start(list) + at;
                self.items[at] = item;
            }
            Err(at) => self.insert(list, at, item),
        }
    }

    /// Keeps the items of a list that `keep` holds for.
    pub(crate) fn retain(&mut self, list: usize, keep: impl Fn(&T) -> bool) {
        let kept: Vec<T> = self.get(list).iter().copied().filter(keep).collect();
        let gone = self.get(list).len() - kept.len();
        let (start, end) = (self.start(list), self.ends[list] as usize);
        self.items.splice(start..end, kept);
        self.ends[list..].iter_mut().for_each(|e| *e -= gone as u32);
    }

    /// Appends a whole list; lists are appended in order, and none is begun yet behind this one.
    pub(crate) fn append(&mut self, list: usize, items: impl IntoIterator<Item = T>) {
        self.items.extend(items);
        self.ends[list..].fill(self.items.len() as u32);
    }

    /// The same lists with each item made into another.
    pub(crate) fn map<U>(&self, each: impl Fn(T) -> U) -> Packed<U, N> {
        Packed { ends: self.ends, items: self.items.iter().map(|i| each(*i)).collect() }
    }

    /// The items of all lists, end to end.
    pub(crate) fn items(&self) -> &[T] {
        &self.items
    }

    /// Empties a list.
    pub(crate) fn clear(&mut self, list: usize) {
        let (start, end) = (self.start(list), self.ends[list] as usize);
        self.items.drain(start..end);
        self.ends[list..].iter_mut().for_each(|e| *e -= (end - start) as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_separate_lists(steps in prop::collection::vec((0usize..5, 0u8..5, any::<u16>(), any::<u16>()), 0..200)) {
            let mut packed = Packed::<u16, 5>::default();
            let mut model = vec![Vec::new(); 5];
            for (list, kind, at, item) in steps {
                let len = model[list].len();
                let any = at as usize % (len + 1);
                match kind {
                    2 if item % 4 == 0 => {
                        packed.retain(list, |i| i % 3 != 0);
                        model[list].retain(|i| i % 3 != 0);
                    }
                    3 if any < len => {
                        packed.put(list, Ok(any), item);
                        model[list][any] = item;
                    }
                    0 if len > 0 => {
                        packed.remove(list, at as usize % len);
                        model[list].remove(at as usize % len);
                    }
                    1 if item % 8 == 0 => {
                        packed.clear(list);
                        model[list].clear();
                    }
                    _ => {
                        packed.put(list, Err(any), item);
                        model[list].insert(any, item);
                    }
                }
                for (i, list) in model.iter().enumerate() {
                    prop_assert_eq!(packed.get(i), &list[..]);
                }
            }
            let mut again = Packed::<u16, 5>::default();
            (0..5).filter(|i| !model[*i].is_empty()).for_each(|i| again.append(i, model[i].iter().copied()));
            prop_assert_eq!((again.ends, &again.items), (packed.ends, &packed.items));
            let doubled = packed.map(|i| u32::from(i) * 2);
            prop_assert!((0..5).all(|i| doubled.get(i).iter().eq(&model[i].iter().map(|i| u32::from(*i) * 2).collect::<Vec<_>>())));
        }
    }
}
