//! `Cache`: the tiers of a map and how a key is found in them: live, frozen, thawing, settled, backend.
//!
//! A key is in at most one tier that counts. Whatever is touched is brought into the live tier; a frozen entry is cloned and
//! marked as shadowed. A key that is removed while the backend may hold it is *gone*: it shadows all tiers below until
//! its deletion is written.
// HOT: `find`, `at` and `at_mut` of a live key: one probe. No allocation, lock, log, clock or `dyn`.

use std::marker::PhantomData;
use std::sync::Arc;

use hashbrown::HashTable;
use serde::Serialize;

use super::classes::{Classes, Cursor, Place, class_among};
use super::coder::{ByFirst, Coder, Layout, Route, Stamp};
use super::drain::Drain;
use super::generation::{COPY, DIRTY, Entry, Groups, Pending, SEEN, SHADOWED, STORED, Void};
use super::home::Home;
use super::upkeep::Account;
use super::{Key, State};
use crate::codec::{Codec, Ordered};
use crate::error::StateError;
use crate::key::{KeyHash, key_hash};

/// A key that is looked for: borrowed, perhaps in parts.
pub(crate) trait Probe<K, R>: Copy + Serialize {
    fn is(self, key: &K) -> bool;
    fn own(self) -> K;
    fn owner(self) -> KeyHash;
}

impl<K: Key, R: Route<K>> Probe<K, R> for &K {
    #[inline]
    fn is(self, key: &K) -> bool {
        self == key
    }
    fn own(self) -> K {
        self.clone()
    }
    fn owner(self) -> KeyHash {
        R::owner(self)
    }
}

impl<K: Key, M: Key> Probe<(K, M), ByFirst> for (&K, &M) {
    #[inline]
    fn is(self, key: &(K, M)) -> bool {
        self.1 == &key.1 && self.0 == &key.0
    }
    fn own(self) -> (K, M) {
        (self.0.clone(), self.1.clone())
    }
    fn owner(self) -> KeyHash {
        key_hash(self.0)
    }
}

/// A settled generation on its way into the settled tier, class by class.
pub(super) struct Thaw<E> {
    pub(super) tables: Vec<HashTable<E>>,
    /// Classes before this one are done.
    pub(super) next: usize,
}

impl<E> Thaw<E> {
    fn remove(&mut self, slot: u64, same: impl FnMut(&E) -> bool) -> Option<E> {
        let class = class_among(slot, self.tables.len());
        Some(self.tables[class].find_entry(slot, same).ok()?.remove().0)
    }

    pub(super) fn len(&self) -> usize {
        self.tables[self.next..].iter().map(HashTable::len).sum()
    }
}

/// One map's part of a table, in memory as far as that reaches.
pub(crate) struct Cache<K, V, S, R> {
    /// What was touched since the last barrier.
    pub(super) live: Classes<Entry<K, V, S>>,
    /// What was frozen at the last barrier and is not yet known to be written.
    pub(super) pending: Option<Pending<K, V, S>>,
    pub(super) thaw: Option<Thaw<Entry<K, V, S>>>,
    /// Clean entries that were not touched since some barrier.
    pub(super) settled: Classes<Entry<K, V, S>>,
    /// Keys that no tier below the live one counts for.
    pub(super) gone: Classes<K>,
    /// Keys that the backend was asked for in this batch and does not hold.
    pub(super) absent: HashTable<K>,
    /// What is not in memory does not exist.
    pub(super) complete: bool,
    /// Where the backend may hold something.
    pub(super) groups: Groups,
    pub(super) void: Void,
    pub(super) drain: Option<Drain<K>>,
    pub(super) account: Account,
    /// Where the search for entries to evict goes on.
    pub(super) sweep: [Cursor; 2],
    pub(super) home: Arc<Home<K, V>>,
    pub(super) layout: Layout,
    bytes: [Vec<u8>; 2],
    route: PhantomData<fn() -> R>,
}

/// Where an entry's key has its slot.
#[inline]
pub(super) fn slot_of<K, V, S, R: Route<K>>(entry: &Entry<K, V, S>) -> u64 {
    R::slot(&entry.key)
}

impl<K: Key, V: State, S: Stamp, R: Route<K>> Cache<K, V, S, R> {
    /// `groups`: where the backend may hold something of it.
    pub(super) fn new(home: Arc<Home<K, V>>, namespace: Option<i64>, groups: Groups) -> Self {
        Cache {
            live: Classes::default(),
            pending: None,
            thaw: None,
            settled: Classes::default(),
            gone: Classes::default(),
            absent: HashTable::new(),
            complete: groups.is_empty(),
            groups,
            void: Void::Nothing,
            drain: None,
            account: Account::default(),
            sweep: Default::default(),
            layout: Layout { table: home.table, namespace },
            home,
            bytes: Default::default(),
            route: PhantomData,
        }
    }

    /// Where the key is, brought into the live tier if it was below.
    #[inline]
    pub(super) fn find<Q: Probe<K, R>>(&mut self, slot: u64, key: Q) -> Result<Option<Place>, StateError> {
        match self.live.find(slot, |e| key.is(&e.key)) {
            Some(place) => Ok(Some(place)),
            None => self.recall(slot, key),
        }
    }

    /// # Panics
    /// When the place is stale and empty.
    #[inline]
    pub(super) fn at(&self, place: Place) -> &Entry<K, V, S> {
        self.live.at(place)
    }

    /// The entry, to be changed: it goes with the next snapshot.
    ///
    /// # Panics
    /// When the place is stale and empty.
    #[inline]
    pub(super) fn at_mut(&mut self, place: Place) -> &mut Entry<K, V, S> {
        let entry = self.live.at_mut(place);
        entry.flags |= DIRTY | SEEN;
        entry
    }

    /// Nothing below the live tier can have any key.
    #[inline]
    fn is_alone(&self) -> bool {
        self.complete
            && self.pending.is_none()
            && self.thaw.is_none()
            && self.settled.is_empty()
            && self.gone.is_empty()
    }

    /// Looks for a key that is not live.
    #[inline]
    fn recall<Q: Probe<K, R>>(&mut self, slot: u64, key: Q) -> Result<Option<Place>, StateError> {
        if self.is_alone() { Ok(None) } else { self.recall_from_below(slot, key) }
    }

    #[inline(never)]
    fn recall_from_below<Q: Probe<K, R>>(&mut self, slot: u64, key: Q) -> Result<Option<Place>, StateError> {
        self.bury_popped();
        if self.gone.find(slot, |k| key.is(k)).is_some() {
            return Ok(None);
        }
        if let Some(entry) = self.take_from_below(slot, key) {
            return Ok(Some(self.live.insert(slot, entry, slot_of::<K, V, S, R>)));
        }
        if self.complete || self.is_known_absent(slot, key) {
            return Ok(None);
        }
        let [mut bytes, mut value] = std::mem::take(&mut self.bytes);
        bytes.clear();
        let read = self
            .encode(key, &mut bytes)
            .and_then(|()| Ok(!self.is_void(&bytes) && self.home.backend.get(&bytes, &mut value)?))
            .and_then(|there| if there { self.entry(key.own(), &value).map(Some) } else { Ok(None) });
        self.bytes = [bytes, value];
        Ok(match read? {
            Some(entry) => Some(self.live.insert(slot, entry, slot_of::<K, V, S, R>)),
            None => {
                self.absent.insert_unique(slot, key.own(), |k| R::slot(k));
                None
            }
        })
    }

    /// Takes the key's entry out of a tier below the live one, or a copy of it while it is frozen.
    fn take_from_below<Q: Probe<K, R>>(&mut self, slot: u64, key: Q) -> Option<Entry<K, V, S>> {
        if let Some(pending) = &self.pending {
            let mut class = pending.generation.entries.of(slot);
            let found = class.find_mut(slot, |e| key.is(&e.key) && e.flags & SHADOWED == 0);
            if let Some(entry) = found {
                entry.flags |= SHADOWED;
                return Some(Entry { flags: SEEN | STORED | COPY, ..entry.clone() });
            }
        }
        let thawing =
            self.thaw.as_mut().and_then(|t| t.remove(slot, |e| key.is(&e.key) && e.flags & SHADOWED == 0));
        let mut entry = thawing.or_else(|| self.settled.remove(slot, |e| key.is(&e.key)))?;
        entry.flags = SEEN | STORED;
        Some(entry)
    }

    /// True when the backend was asked already, or the deletion of the key is on its way.
    fn is_known_absent<Q: Probe<K, R>>(&self, slot: u64, key: Q) -> bool {
        self.absent.find(slot, |k| key.is(k)).is_some() || self.is_going(slot, key)
    }

    /// True when the pending generation deletes the key.
    fn is_going<Q: Probe<K, R>>(&self, slot: u64, key: Q) -> bool {
        let going = self.pending.as_ref().map(|pending| &pending.generation.gone);
        going.is_some_and(|gone| gone.of(slot).find(slot, |k| key.is(k)).is_some())
    }

    /// True when what the backend holds under this key counts no more.
    pub(super) fn is_void(&self, key: &[u8]) -> bool {
        let void = |void: &Void| match void {
            Void::Nothing => false,
            Void::Below(end) => key < &end[..],
            Void::All => true,
        };
        void(&self.void) || self.pending.as_ref().is_some_and(|p| void(&p.generation.void))
    }

    /// Adds a value for a key that `find` has not found.
    ///
    /// # Errors
    /// The map is being drained.
    pub(super) fn insert(&mut self, slot: u64, key: K, value: V) -> Result<Place, StateError> {
        if self.drain.is_some() {
            return Err(self
                .home
                .misused("a map that is being drained takes nothing new: drain it to its end"));
        }
        let stored = self.gone.remove(slot, |k| *k == key).is_some()
            || self.is_going(slot, &key)
            || !(self.complete || self.no_longer_absent(slot, &key));
        let flags = DIRTY | SEEN | if stored { STORED } else { 0 };
        let entry = Entry { key, value, touched: S::at(self.home.now()), flags };
        Ok(self.live.insert(slot, entry, slot_of::<K, V, S, R>))
    }

    fn no_longer_absent(&mut self, slot: u64, key: &K) -> bool {
        self.absent.find_entry(slot, |k| k == key).map(|entry| entry.remove()).is_ok()
    }

    /// Removes the key from wherever it is. Asks no disk.
    pub(super) fn remove<Q: Probe<K, R>>(&mut self, slot: u64, key: Q) {
        self.bury_popped();
        let stored = if let Some(entry) = self.live.remove(slot, |e| key.is(&e.key)) {
            entry.flags & STORED != 0
        } else if self.is_alone() || self.gone.find(slot, |k| key.is(k)).is_some() {
            false
        } else if self.take_from_below(slot, key).is_some() {
            true
        } else {
            !self.complete && !self.is_known_absent(slot, key)
        };
        if stored {
            self.gone.insert(slot, key.own(), |k| R::slot(k));
        }
    }

    /// Looks many keys up at once, so that `find` needs no disk for them until the end of the batch.
    pub(super) fn prefetch<'a>(
        &mut self,
        keys: impl Iterator<Item = (u64, &'a K)>,
    ) -> Result<(), StateError> {
        if self.complete {
            return Ok(());
        }
        let mut wanted = Vec::new();
        for (slot, key) in keys {
            if self.live.find(slot, |e| e.key == *key).is_some() || self.is_cached_below(slot, key) {
                continue;
            }
            let mut bytes = Vec::with_capacity(24);
            self.encode::<&K>(key, &mut bytes)?;
            wanted.push((bytes, slot, key));
        }
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
            match self.entry(key.clone(), value) {
                Ok(entry) => drop(self.live.insert(slot, entry, slot_of::<K, V, S, R>)),
                Err(error) => failed = Err(error),
            }
        })?;
        self.note_absent(&wanted[next..]);
        failed
    }

    fn note_absent(&mut self, keys: &[(u64, &K)]) {
        for (slot, key) in keys {
            self.absent.insert_unique(*slot, (*key).clone(), |k| R::slot(k));
        }
    }

    /// True when no disk need be asked for a key that is not live.
    pub(super) fn is_cached_below(&self, slot: u64, key: &K) -> bool {
        let frozen = || {
            let entries = self.pending.as_ref().map(|pending| &pending.generation.entries);
            entries.is_some_and(|e| e.of(slot).find(slot, |e| e.key == *key).is_some())
        };
        let thawing = || {
            let tables = self.thaw.as_ref().map(|thaw| &thaw.tables);
            tables.is_some_and(|t| t[class_among(slot, t.len())].find(slot, |e| e.key == *key).is_some())
        };
        self.settled.find(slot, |e| e.key == *key).is_some()
            || self.gone.find(slot, |k| k == key).is_some()
            || frozen()
            || thawing()
            || Self::is_known_absent::<&K>(self, slot, key)
    }

    fn encode<Q: Probe<K, R>>(&self, key: Q, into: &mut Vec<u8>) -> Result<(), StateError> {
        let coder: &Coder<K, V> = &self.home.coder;
        self.layout.prefix(key.owner().group(coder.groups).0, into);
        Ordered::encode(&key, into).map_err(|e| coder.failed("encode a key", e))
    }

    /// An entry as it comes from the backend.
    pub(super) fn entry(&self, key: K, value: &[u8]) -> Result<Entry<K, V, S>, StateError> {
        let (value, touched) = self.home.coder.read_value(value)?;
        Ok(Entry { key, value, touched: S::stored(touched), flags: STORED })
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
