//! Forward columns: what each user has, in small pages that are copied only when a published version shares them.

use super::PAGE;
use super::heap::{Heap, flat};
use super::packed::Packed;
use std::sync::Arc;

/// Marks a user without a value in an [`EnumPage`].
pub(crate) const NONE: u32 = u32::MAX;

/// Pages of one tag in one chunk, each of `USERS` users; a page nobody wrote to does not exist.
#[derive(Debug)]
pub(crate) struct Column<P, const USERS: usize = PAGE>(Vec<Option<Arc<P>>>);

impl<P, const USERS: usize> Default for Column<P, USERS> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<P, const USERS: usize> Clone for Column<P, USERS> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<P: Heap, const USERS: usize> Heap for Column<P, USERS> {
    fn heap(&self) -> usize {
        self.0.heap()
    }
}

flat!(EnumPage, IntPage);

impl Heap for SetPage {
    fn heap(&self) -> usize {
        self.lists.heap()
    }
}

impl<P: Clone, const USERS: usize> Column<P, USERS> {
    #[inline]
    pub(crate) fn page(&self, local: u16) -> Option<&P> {
        self.0.get(local as usize / USERS)?.as_deref()
    }

    /// The page of a user, made by `new` if there is none, copied if it is shared.
    #[inline]
    pub(crate) fn page_or(&mut self, local: u16, new: impl FnOnce() -> P) -> &mut P {
        let at = local as usize / USERS;
        if at >= self.0.len() {
            self.0.resize(at + 1, None);
        }
        Arc::make_mut(self.0[at].get_or_insert_with(|| Arc::new(new())))
    }

    /// Puts a whole page where a user's is.
    pub(crate) fn put_page(&mut self, local: u16, page: P) {
        let at = local as usize / USERS;
        if at >= self.0.len() {
            self.0.resize(at + 1, None);
        }
        self.0[at] = Some(Arc::new(page));
    }

    /// The pages that exist, with the position of their first user in the chunk.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (usize, &Arc<P>)> {
        self.0.iter().enumerate().filter_map(|(i, p)| Some((i * USERS, p.as_ref()?)))
    }
}

impl<P: Clone + Default, const USERS: usize> Column<P, USERS> {
    #[inline]
    pub(crate) fn page_mut(&mut self, local: u16) -> &mut P {
        self.page_or(local, P::default)
    }
}

/// One value number per user.
#[derive(Debug, Clone)]
pub(crate) struct EnumPage(pub(crate) [u32; PAGE]);

impl Default for EnumPage {
    fn default() -> Self {
        Self([NONE; PAGE])
    }
}

impl Column<EnumPage> {
    #[inline]
    pub(crate) fn value(&self, local: u16) -> Option<u32> {
        self.page(local).map(|p| p.0[local as usize % PAGE]).filter(|&v| v != NONE)
    }
}

/// One integer per user, and who has one.
#[derive(Debug, Clone)]
pub(crate) struct IntPage {
    pub(crate) has: [u64; PAGE / 64],
    pub(crate) values: [i64; PAGE],
}

impl Default for IntPage {
    fn default() -> Self {
        Self { has: [0; PAGE / 64], values: [0; PAGE] }
    }
}

impl IntPage {
    #[inline]
    pub(crate) fn get(&self, slot: usize) -> Option<i64> {
        (self.has[slot / 64] >> (slot % 64) & 1 == 1).then(|| self.values[slot])
    }

    #[inline]
    fn put(&mut self, slot: usize, value: Option<i64>) {
        let bit = 1 << (slot % 64);
        match value {
            Some(v) => {
                self.has[slot / 64] |= bit;
                self.values[slot] = v;
            }
            None => self.has[slot / 64] &= !bit,
        }
    }
}

impl Column<IntPage> {
    #[inline]
    pub(crate) fn value(&self, local: u16) -> Option<i64> {
        self.page(local)?.get(local as usize % PAGE)
    }

    #[inline]
    pub(crate) fn put(&mut self, local: u16, value: Option<i64>) {
        self.page_mut(local).put(local as usize % PAGE, value);
    }
}

/// The value numbers of each user, and who has a set, be it an empty one.
#[derive(Debug, Clone)]
pub(crate) struct SetPage {
    pub(crate) has: [u64; PAGE / 64],
    pub(crate) lists: Packed<u32, PAGE>,
}

impl Default for SetPage {
    fn default() -> Self {
        Self { has: [0; PAGE / 64], lists: Packed::default() }
    }
}

impl Column<SetPage> {
    #[inline]
    pub(crate) fn values(&self, local: u16) -> &[u32] {
        self.page(local).map_or(&[], |p| p.lists.get(local as usize % PAGE))
    }

    /// Adds a value the user does not have.
    #[inline]
    pub(crate) fn push(&mut self, local: u16, value: u32) {
        let at = self.values(local).len();
        self.page_mut(local).lists.insert(local as usize % PAGE, at, value);
    }

    /// Removes a value the user has.
    #[inline]
    pub(crate) fn take(&mut self, local: u16, value: u32) {
        if let Some(at) = self.values(local).iter().position(|&v| v == value) {
            self.page_mut(local).lists.remove(local as usize % PAGE, at);
        }
    }

    /// Says whether the user has a set at all.
    #[inline]
    pub(crate) fn mark(&mut self, local: u16, present: bool) {
        let slot = local as usize % PAGE;
        let (word, bit) = (&mut self.page_mut(local).has[slot / 64], 1 << (slot % 64));
        *word = if present { *word | bit } else { *word & !bit };
    }
}
