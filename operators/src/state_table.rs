//! `StateTable`: one value per key, found by the hash that came with the record; one probe per look-up.
// HOT: no allocation except growth, no hashing except when the table grows or forgets a key.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use weir_engine::{Key, KeyHash};
use weir_state::key_hash;

/// Values by key, in the order in which keys first came (as long as none is removed).
///
/// Entries lie next to each other and the index holds their places, so growth moves four bytes per key, and walking
/// through all of them is a walk through one array.
#[derive(Clone, Debug)]
pub(crate) struct StateTable<K, V> {
    index: HashTable<u32>,
    entries: Vec<(K, V)>,
}

impl<K, V> Default for StateTable<K, V> {
    fn default() -> Self {
        StateTable { index: HashTable::new(), entries: Vec::new() }
    }
}

impl<K: Key, V> StateTable<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Where the key is.
    #[inline]
    pub(crate) fn find(&self, hash: KeyHash, key: &K) -> Option<usize> {
        self.index.find(hash.in_group(), |i| self.entries[*i as usize].0 == *key).map(|i| *i as usize)
    }

    /// Where the key is, and whether that place is new: then the caller pushes the entry before anything else.
    #[inline]
    fn claim(&mut self, hash: KeyHash, key: &K) -> (usize, bool) {
        let entries = &self.entries;
        let found = self.index.entry(
            hash.in_group(),
            |i| entries[*i as usize].0 == *key,
            |i| key_hash(&entries[*i as usize].0).in_group(),
        );
        match found {
            Entry::Occupied(entry) => (*entry.get() as usize, false),
            Entry::Vacant(entry) => {
                let place = u32::try_from(entries.len()).expect("memory ends long before 2^32 keys");
                entry.insert(place);
                (place as usize, true)
            }
        }
    }

    /// The value of the key, made if there is none.
    #[inline]
    pub(crate) fn get_or_insert_with(&mut self, hash: KeyHash, key: K, value: impl FnOnce() -> V) -> &mut V {
        let (place, new) = self.claim(hash, &key);
        if new {
            self.entries.push((key, value()));
        }
        &mut self.entries[place].1
    }

    /// Where the key is, put there if it was not; it is cloned only then.
    #[inline]
    pub(crate) fn find_or_insert_with(&mut self, hash: KeyHash, key: &K, value: impl FnOnce() -> V) -> usize {
        let (place, new) = self.claim(hash, key);
        if new {
            self.entries.push((key.clone(), value()));
        }
        place
    }

    /// The value at a place that `find` or `find_or_insert_with` named; a removal makes places stale.
    #[inline]
    pub(crate) fn at(&mut self, place: usize) -> &mut V {
        &mut self.entries[place].1
    }

    /// Forgets the key. The last entry takes its place.
    pub(crate) fn remove(&mut self, hash: KeyHash, key: &K) -> Option<V> {
        let entries = &self.entries;
        let entry = self.index.find_entry(hash.in_group(), |i| entries[*i as usize].0 == *key).ok()?;
        let (place, _) = entry.remove();
        let last = (self.entries.len() - 1) as u32;
        let (_, value) = self.entries.swap_remove(place as usize);
        if place != last {
            let moved = key_hash(&self.entries[place as usize].0).in_group();
            if let Some(i) = self.index.find_mut(moved, |i| *i == last) {
                *i = place;
            }
        }
        Some(value)
    }

    /// Takes every entry out, in order, and keeps the memory.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (K, V)> + '_ {
        self.index.clear();
        self.entries.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};
    use std::collections::HashMap;

    /// A key whose hash says nothing: every two of them collide.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    struct Colliding(u8);
    impl Serialize for Colliding {
        fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
            s.serialize_u8(7)
        }
    }

    fn agrees_with_a_map<K: Key>(steps: &[(u8, u8)], key: impl Fn(u8) -> K) {
        let mut table = StateTable::default();
        let mut model: HashMap<u8, u32> = HashMap::new();
        for &(what, id) in steps {
            let k = key(id);
            let hash = key_hash(&k);
            match what % 4 {
                0 => assert_eq!(table.remove(hash, &k), model.remove(&id)),
                1 => {
                    let place = table.find_or_insert_with(hash, &k, || 0);
                    *table.at(place) += 1;
                    *model.entry(id).or_default() += 1;
                }
                2 => assert_eq!(table.find(hash, &k).map(|p| *table.at(p)), model.get(&id).copied()),
                _ => {
                    *table.get_or_insert_with(hash, k, || 0) += 10;
                    *model.entry(id).or_default() += 10;
                }
            }
            assert_eq!(table.len(), model.len());
        }
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((any::<u8>(), 0u8..40), 0..300)) {
            agrees_with_a_map(&steps, |id| format!("key-{id}"));
            agrees_with_a_map(&steps, Colliding);
        }
    }

    #[test]
    fn drains_in_the_order_keys_came() {
        let mut table = StateTable::default();
        for k in [5u64, 1, 9, 1] {
            *table.get_or_insert_with(key_hash(&k), k, || 0) += 1;
        }
        assert_eq!(table.drain().collect::<Vec<_>>(), [(5, 1), (1, 2), (9, 1)]);
        assert_eq!(table.find(key_hash(&5u64), &5), None);
    }
}
