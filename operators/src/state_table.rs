//! `StateTable`: one value per key, found by the hash that came with the record; one probe per look-up.
// HOT: no allocation except growth, no hashing except when the table grows.

use hashbrown::HashTable;
use weir_engine::{Key, KeyHash};
use weir_state::key_hash;

/// Values by key, in no order a program may rely on; the same order whenever the same was done to the table.
///
/// Entries lie in the table itself. An array of them in the order they came, with an index beside it, would be a second
/// cache miss per record: 67 ns against 40 ns with a million `u64` keys, 9 against 7 with 50,000.
#[derive(Clone, Debug)]
pub(crate) struct StateTable<K, V>(HashTable<(K, V)>);

impl<K, V> Default for StateTable<K, V> {
    fn default() -> Self {
        StateTable(HashTable::new())
    }
}

/// Where an entry lies, until an entry is added or removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(usize);

/// Kept out of the entries: a table grows rarely, and eight bytes more per key would be carried always.
fn rehash<K: Key, V>(entry: &(K, V)) -> u64 {
    key_hash(&entry.0).in_group()
}

impl<K: Key, V> StateTable<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The value of the key, made if there is none.
    #[inline]
    pub(crate) fn get_or_insert_with(&mut self, hash: KeyHash, key: K, value: impl FnOnce() -> V) -> &mut V {
        let entry = self.0.entry(hash.in_group(), |e| e.0 == key, rehash);
        &mut entry.or_insert_with(|| (key, value())).into_mut().1
    }

    /// Where the key is.
    #[inline]
    pub(crate) fn find(&self, hash: KeyHash, key: &K) -> Option<Place> {
        self.0.find_bucket_index(hash.in_group(), |e| e.0 == *key).map(Place)
    }

    /// Where the key is, put there if it was not; it is cloned only then.
    #[inline]
    pub(crate) fn find_or_insert_with(&mut self, hash: KeyHash, key: &K, value: impl FnOnce() -> V) -> Place {
        let entry = self.0.entry(hash.in_group(), |e| e.0 == *key, rehash);
        Place(entry.or_insert_with(|| (key.clone(), value())).bucket_index())
    }

    /// The value at a place that is not stale.
    ///
    /// # Panics
    /// When the place is stale and empty.
    #[inline]
    pub(crate) fn at(&mut self, place: Place) -> &mut V {
        &mut self.0.get_bucket_mut(place.0).expect("a place is used before the table changes").1
    }

    /// Forgets the key.
    pub(crate) fn remove(&mut self, hash: KeyHash, key: &K) -> Option<V> {
        let entry = self.0.find_entry(hash.in_group(), |e| e.0 == *key).ok()?;
        let ((_, value), _) = entry.remove();
        Some(value)
    }

    /// Takes every entry out and keeps the memory.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (K, V)> + '_ {
        self.0.drain()
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
    fn drains_everything_once_and_the_same_way_every_time() {
        let drained = || {
            let mut table = StateTable::default();
            for k in (0..100u64).chain(50..150) {
                *table.get_or_insert_with(key_hash(&k), k, || 0) += 1;
            }
            let all: Vec<_> = table.drain().collect();
            assert!(table.len() == 0 && table.find(key_hash(&5u64), &5).is_none());
            all
        };
        let mut all = drained();
        assert_eq!(all, drained());
        all.sort_unstable();
        assert!(all.into_iter().eq((0..150).map(|k| (k, if (50..100).contains(&k) { 2 } else { 1 }))));
    }
}
