//! Many short lists end to end in one vector, so that copying all of them is two copies of memory.

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
                match kind {
                    0 if len > 0 => {
                        packed.remove(list, at as usize % len);
                        model[list].remove(at as usize % len);
                    }
                    1 if item % 8 == 0 => {
                        packed.clear(list);
                        model[list].clear();
                    }
                    _ => {
                        packed.insert(list, at as usize % (len + 1), item);
                        model[list].insert(at as usize % (len + 1), item);
                    }
                }
                for (i, list) in model.iter().enumerate() {
                    prop_assert_eq!(packed.get(i), &list[..]);
                }
            }
        }
    }
}
