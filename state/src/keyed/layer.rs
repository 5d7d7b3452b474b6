//! `Layer`: some entries of a map under a key, and what they take.
// HOT: `find` is called per record: one probe. No allocation, lock or clock.

use std::mem::{needs_drop, size_of};

use hashbrown::HashTable;

use super::heavy::WEIGHT;
use super::weigh::weigh;
use super::{Key, State};
use crate::key::key_hash;

/// It differs from what is in the backend.
pub(super) const DIRTY: u8 = 1;
/// The backend, or a layer below, may hold its key.
pub(super) const STORED: u8 = 2;
/// Its layer counts it by itself.
const HEAVY: u8 = 4;

/// One entry of a map. Without a value it is known not to be there.
#[derive(Clone, Debug)]
pub(super) struct Sub<M, V> {
    pub(super) key: M,
    pub(super) value: Option<V>,
    /// `i64::MIN` where that is not kept.
    pub(super) touched: i64,
    pub(super) flags: u8,
}

impl<M, V> Sub<M, V> {
    /// It was written or, where that counts, read.
    pub(super) fn touch(&mut self, now: i64) {
        self.touched = now;
        self.flags |= DIRTY;
    }

    /// When it was last touched, if that is kept.
    pub(super) fn millis(&self) -> Option<i64> {
        (self.touched != i64::MIN).then_some(self.touched)
    }

    pub(super) fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The place of a key in every layer.
#[inline]
pub(super) fn slot<M: Key>(key: &M) -> u64 {
    key_hash(key).in_group()
}

/// Some entries, each under its key.
#[derive(Clone, Debug)]
pub(super) struct Layer<M, V> {
    subs: HashTable<Sub<M, V>>,
    /// What those own that are counted by themselves.
    heavy: usize,
}

impl<M, V> Default for Layer<M, V> {
    fn default() -> Self {
        Layer { subs: HashTable::new(), heavy: 0 }
    }
}

impl<M: Key, V: State> Layer<M, V> {
    pub(super) const OWNS: bool = needs_drop::<M>() || needs_drop::<V>();

    pub(super) fn len(&self) -> usize {
        self.subs.len()
    }

    #[inline]
    pub(super) fn find(&self, slot: u64, key: &M) -> Option<&Sub<M, V>> {
        self.subs.find(slot, |sub| sub.key == *key)
    }

    /// An entry, to be changed other than in size: its value is [replaced](Self::set) or [lent](Self::lend).
    #[inline]
    pub(super) fn find_mut(&mut self, slot: u64, key: &M) -> Option<&mut Sub<M, V>> {
        self.subs.find_mut(slot, |sub| sub.key == *key)
    }

    /// Adds an entry whose key is not here.
    pub(super) fn add(&mut self, slot: u64, mut sub: Sub<M, V>) {
        self.weighed(&mut sub);
        self.subs.insert_unique(slot, sub, |sub| self::slot(&sub.key));
    }

    /// Gives an entry that is here another value, or none.
    pub(super) fn set(&mut self, slot: u64, key: &M, value: Option<V>) -> Option<&mut Sub<M, V>> {
        let Layer { subs, heavy } = self;
        let sub = subs.find_mut(slot, |sub| sub.key == *key)?;
        if sub.is(HEAVY) {
            *heavy = heavy.saturating_sub(owned(sub));
            sub.flags &= !HEAVY;
        }
        sub.value = value;
        if Self::OWNS {
            let bytes = owned(sub);
            if bytes > WEIGHT {
                *heavy += bytes;
                sub.flags |= HEAVY;
            }
        }
        Some(sub)
    }

    /// Lets the value of an entry change in size: it is to be [weighed again](Self::weigh_again).
    pub(super) fn lend(&mut self, slot: u64, key: &M) -> Option<&mut Sub<M, V>> {
        let Layer { subs, heavy } = self;
        let sub = subs.find_mut(slot, |sub| sub.key == *key)?;
        if sub.is(HEAVY) {
            *heavy = heavy.saturating_sub(owned(sub));
            sub.flags &= !HEAVY;
        }
        Some(sub)
    }

    /// The value of an entry has changed.
    pub(super) fn weigh_again(&mut self, slot: u64) {
        let Layer { subs, heavy } = self;
        let Some(sub) = subs.find_mut(slot, |sub| self::slot(&sub.key) == slot) else { return };
        let bytes = owned(sub);
        if bytes > WEIGHT && !sub.is(HEAVY) {
            *heavy += bytes;
            sub.flags |= HEAVY;
        }
    }

    pub(super) fn remove(&mut self, slot: u64, key: &M) -> Option<Sub<M, V>> {
        let (sub, _) = self.subs.find_entry(slot, |sub| sub.key == *key).ok()?.remove();
        if sub.is(HEAVY) {
            self.heavy = self.heavy.saturating_sub(owned(&sub));
        }
        Some(sub)
    }

    /// Counts an entry that comes, if it is worth it.
    fn weighed(&mut self, sub: &mut Sub<M, V>) {
        sub.flags &= !HEAVY;
        if Self::OWNS {
            let bytes = owned(sub);
            if bytes > WEIGHT {
                self.heavy += bytes;
                sub.flags |= HEAVY;
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sub<M, V>> {
        self.subs.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sub<M, V>> {
        self.subs.iter_mut()
    }

    /// The entries from a bucket on, each with the next bucket.
    pub(super) fn from(&self, bucket: usize) -> impl Iterator<Item = (usize, &Sub<M, V>)> {
        (bucket..self.subs.num_buckets()).filter_map(move |at| Some((at + 1, self.subs.get_bucket(at)?)))
    }

    /// The entry of a bucket, if there is one.
    pub(super) fn at(&self, bucket: usize) -> Option<&Sub<M, V>> {
        self.subs.get_bucket(bucket)
    }

    /// Keeps those for which `keep` says so.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut Sub<M, V>) -> bool) {
        let Layer { subs, heavy } = self;
        subs.retain(|sub| {
            let kept = keep(sub);
            if !kept && sub.is(HEAVY) {
                *heavy = heavy.saturating_sub(owned(sub));
            }
            kept
        });
    }

    /// Takes out the entry of a bucket, if there is one.
    pub(super) fn take(&mut self, bucket: usize) -> Option<Sub<M, V>> {
        let (sub, _) = self.subs.get_bucket_entry(bucket).ok()?.remove();
        if sub.is(HEAVY) {
            self.heavy = self.heavy.saturating_sub(owned(&sub));
        }
        Some(sub)
    }

    /// True when it has entries that are counted by themselves.
    pub(super) fn is_heavy(&self) -> bool {
        self.heavy > 0
    }

    /// About how many bytes it takes: its table, its heavy entries, and the others by a sample.
    pub(super) fn weight(&self) -> usize {
        const SAMPLE: usize = 16;
        let table = self.subs.allocation_size();
        if !Self::OWNS || self.subs.is_empty() {
            return table;
        }
        // In the order of their hashes: as good as by chance.
        let (mut seen, mut light) = (0, 0);
        for sub in self.subs.iter().take(SAMPLE).filter(|sub| !sub.is(HEAVY)) {
            (seen, light) = (seen + 1, light + owned(sub));
        }
        table + self.heavy + light.checked_div(seen).unwrap_or(0) * self.subs.len()
    }

    pub(super) fn buckets(&self) -> usize {
        self.subs.num_buckets()
    }

    /// Gives memory back when an eighth of it will do.
    pub(super) fn fit(&mut self) {
        /// For fewer it is not worth it.
        const LEAST: usize = 64;
        if self.subs.capacity() > 8 * self.subs.len().max(LEAST) {
            self.subs.shrink_to(2 * self.subs.len(), |sub| slot(&sub.key));
        }
    }
}

/// What an entry owns outside the table.
fn owned<M: Key, V: State>(sub: &Sub<M, V>) -> usize {
    let (mut all, mut inside) = (0, 0);
    if needs_drop::<M>() {
        (all, inside) = (weigh(&sub.key), size_of::<M>());
    }
    if let Some(value) = sub.value.as_ref().filter(|_| needs_drop::<V>()) {
        (all, inside) = (all + weigh(value), inside + size_of::<V>());
    }
    all.saturating_sub(inside)
}
