//! Looks up at once what the records of a batch will ask for, so that the backend is asked in order and once.

use super::cache::Cache;
use super::cell::{One, Stamp};
use super::generation::{Entry, STORED};
use super::{Key, State};
use crate::error::StateError;

impl<K: Key, V: State, S: Stamp> Cache<K, One<V, S>, V> {
    /// Looks many keys up at once, so that `find` needs no disk for them until the end of the batch.
    pub(super) fn prefetch<'a>(
        &mut self,
        keys: impl Iterator<Item = (u64, &'a K)>,
    ) -> Result<(), StateError> {
        if self.complete || self.asked.rests() {
            return Ok(());
        }
        self.bury_popped();
        let mut wanted = Vec::new();
        for (slot, key) in keys {
            if self.live.find(slot, |e| e.key == *key).is_some() || self.is_cached_below(slot, key) {
                continue;
            }
            let mut bytes = Vec::with_capacity(24);
            self.home.coder.key(self.layout, key, &mut bytes)?;
            wanted.push((bytes, slot, key));
        }
        self.asked.single += u32::from(!wanted.is_empty());
        wanted.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        wanted.dedup_by(|a, b| a.0 == b.0);
        let (keys, wanted): (Vec<Vec<u8>>, Vec<(u64, &K)>) =
            wanted.into_iter().map(|(bytes, slot, key)| (bytes, (slot, key))).unzip();
        let mut next = 0;
        let mut failed = Ok(());
        let backend = self.home.backend.clone();
        backend.get_many(&keys, &mut |at, value| {
            self.note_absent(&wanted[next..at]);
            next = at + 1;
            let (slot, key) = wanted[at];
            if self.is_void(&keys[at]) {
                return self.note_absent(&wanted[at..next]);
            }
            match One::read(&self.home, value) {
                Ok(cell) => drop(self.add_live(slot, Entry { key: key.clone(), cell }, STORED)),
                Err(error) => failed = Err(error),
            }
        })?;
        self.note_absent(&wanted[next..]);
        failed
    }

    fn note_absent(&mut self, keys: &[(u64, &K)]) {
        for (slot, key) in keys {
            self.absent.insert_unique(*slot, (*key).clone(), super::cache::slot);
        }
    }
}
