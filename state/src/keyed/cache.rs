//! `Cache`: the tiers of a map and how a key is found in them: live, frozen, thawing, settled, backend.
//!
//! A key is in at most one tier that counts. Whatever is touched is brought into the live tier; a frozen entry is cloned and
//! marked as shadowed. A key that is removed while the backend may hold it is *gone*: it shadows all tiers below until
//! its deletion is written.
// HOT: `find`, `at` and `at_mut` of a live key: one probe. No allocation, lock, log, clock or `dyn`.

use std::sync::Arc;

use hashbrown::HashTable;

use super::Key;
use super::cell::{After, Cell};
use super::classes::{Classes, Cursor, Place, class_among};
use super::coder::Layout;
use super::drain::Drain;
use super::generation::{COPY, DIRTY, Entry, Groups, HEAVY, Pending, SEEN, SHADOWED, STORED, Void};
use super::heavy::Heavy;
use super::home::Home;
use super::marked::Marked;
use super::upkeep::{Account, in_tables};
use crate::error::StateError;
use crate::key::key_hash;

/// A settled generation on its way into the settled tier, class by class.
pub(super) struct Thaw<E> {
    pub(super) tables: Vec<Marked<E>>,
    /// Classes before this one are done.
    pub(super) next: usize,
}

impl<E> Thaw<E> {
    fn remove(&mut self, slot: u64, same: impl FnMut(&E) -> bool) -> Option<(E, u8)> {
        let class = class_among(slot, self.tables.len());
        self.tables[class].remove(slot, same)
    }

    pub(super) fn len(&self) -> usize {
        self.tables[self.next..].iter().map(Marked::len).sum()
    }
}

/// One map's part of a table, in memory as far as that reaches.
pub(crate) struct Cache<K, C, V> {
    /// What was touched since the last barrier.
    pub(super) live: Classes<Entry<K, C>>,
    /// What was frozen at the last barrier and is not yet known to be written.
    pub(super) pending: Option<Pending<K, C>>,
    pub(super) thaw: Option<Thaw<Entry<K, C>>>,
    /// Clean entries that were not touched since some barrier.
    pub(super) settled: Classes<Entry<K, C>>,
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
    /// The entries that are counted one by one.
    pub(super) heavy: Heavy,
    /// Where the search for entries to evict goes on.
    pub(super) sweep: [Cursor; 2],
    pub(super) home: Arc<Home<K, V>>,
    pub(super) layout: Layout,
    bytes: [Vec<u8>; 2],
    pub(super) asked: Asked,
}

/// How often the backend is asked, so that `prefetch` can rest while everything in use is in memory.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// In this batch, one key at a time.
    pub(super) single: u32,
    /// For so many batches nothing had to be.
    quiet: u32,
}

impl Asked {
    /// After so many quiet batches, looking ahead rests.
    const REST: u32 = 4;

    pub(super) fn batch_end(&mut self) {
        self.quiet = if self.single == 0 { self.quiet.saturating_add(1) } else { 0 };
        self.single = 0;
    }

    pub(super) fn rests(&self) -> bool {
        self.quiet >= Self::REST
    }
}

/// Where a key has its slot; for a record's key it is known from the hash that came with it.
#[inline]
pub(super) fn slot<K: Key>(key: &K) -> u64 {
    key_hash(key).in_group()
}

#[inline]
pub(super) fn slot_of<K: Key, C>(entry: &Entry<K, C>) -> u64 {
    slot(&entry.key)
}

impl<K: Key, C: Cell<K>> Cache<K, C, C::Value> {
    /// `groups`: where the backend may hold something of it.
    pub(super) fn new(home: Arc<Home<K, C::Value>>, namespace: Option<i64>, groups: Groups) -> Self {
        let most = home.ledger.limit / in_tables::<K, C>();
        Cache {
            live: Classes::of_at_most(most),
            pending: None,
            thaw: None,
            settled: Classes::of_at_most(most),
            gone: Classes::default(),
            absent: HashTable::new(),
            complete: groups.is_empty(),
            groups,
            void: Void::Nothing,
            drain: None,
            account: Account::default(),
            heavy: Heavy::default(),
            sweep: Default::default(),
            layout: Layout { table: home.table, namespace },
            home,
            bytes: Default::default(),
            asked: Asked::default(),
        }
    }

    /// Where the key is, brought into the live tier if it was below.
    // Inlined into the caller's loop, the probes of records that follow each other overlap in the processor.
    #[inline(always)]
    pub(super) fn find(&mut self, slot: u64, key: &K) -> Result<Option<Place>, StateError> {
        match self.live.find(slot, |e| e.key == *key) {
            Some(place) => Ok(Some(place)),
            None => self.recall(slot, key),
        }
    }

    /// # Panics
    /// When the place is stale and empty.
    #[inline]
    pub(super) fn at(&self, place: Place) -> &Entry<K, C> {
        self.live.at(place)
    }

    /// The entry, to be read; it stays in memory longer for that.
    ///
    /// # Panics
    /// When the place is stale and empty.
    #[inline]
    pub(super) fn read(&mut self, place: Place) -> &Entry<K, C> {
        let (entry, marks) = self.live.at_mut(place);
        *marks |= SEEN;
        entry
    }

    /// The entry, to be changed: it goes with the next snapshot.
    ///
    /// # Panics
    /// When the place is stale and empty.
    #[inline]
    pub(super) fn at_mut(&mut self, place: Place) -> &mut Entry<K, C> {
        let (entry, marks) = self.live.at_mut(place);
        // The first touch does not count as one: most of what is read from the disk is never asked for again, and is to go first.
        *marks |= DIRTY | (*marks & DIRTY) << 1;
        if C::GROWS {
            self.heavy.loosen(place, marks);
        }
        entry
    }

    /// What is kept at a place and its marks, for who reads more of it into memory.
    ///
    /// # Panics
    /// When the place is stale and empty.
    #[inline]
    pub(super) fn read_on(&mut self, place: Place) -> (&mut C, &mut u8) {
        let (entry, marks) = self.live.at_mut(place);
        *marks |= SEEN;
        if C::GROWS {
            self.heavy.loosen(place, marks);
        }
        (&mut entry.cell, marks)
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
    #[inline(never)]
    fn recall(&mut self, slot: u64, key: &K) -> Result<Option<Place>, StateError> {
        if self.is_alone() { Ok(None) } else { self.recall_from_below(slot, key) }
    }

    /// Where the key is, if some tier in memory has it: for who writes over it, whatever it had. Asks no disk.
    pub(super) fn find_in_memory(&mut self, slot: u64, key: &K) -> Option<Place> {
        match self.live.find(slot, |e| e.key == *key) {
            Some(place) => Some(place),
            None if self.is_alone() => None,
            None => self.recall_from_memory(slot, key),
        }
    }

    fn recall_from_memory(&mut self, slot: u64, key: &K) -> Option<Place> {
        self.bury_popped();
        if self.gone.find(slot, |k| k == key).is_some() {
            return None;
        }
        let (entry, marks) = self.take_from_below(slot, key)?;
        Some(self.add_live(slot, entry, marks))
    }

    fn recall_from_below(&mut self, slot: u64, key: &K) -> Result<Option<Place>, StateError> {
        if let Some(place) = self.recall_from_memory(slot, key) {
            return Ok(Some(place));
        }
        if self.complete || self.is_known_absent(slot, key) || self.gone.find(slot, |k| k == key).is_some() {
            return Ok(None);
        }
        self.asked.single += 1;
        let [mut bytes, mut value] = std::mem::take(&mut self.bytes);
        bytes.clear();
        let read = self.home.coder.key(self.layout, key, &mut bytes).and_then(|_| {
            if self.is_void(&bytes) { Ok(None) } else { C::load(&self.home, &bytes, &mut value) }
        });
        self.bytes = [bytes, value];
        Ok(match read? {
            Some(cell) => {
                let entry = Entry { key: key.clone(), cell };
                Some(self.add_live(slot, entry, STORED))
            }
            None => {
                self.absent.insert_unique(slot, key.clone(), self::slot);
                None
            }
        })
    }

    /// Takes the key's entry out of a tier below the live one, or a copy of it while it is frozen; with its marks.
    fn take_from_below(&mut self, slot: u64, key: &K) -> Option<(Entry<K, C>, u8)> {
        if let Some(pending) = &self.pending {
            let mut class = pending.generation.entries.of(slot);
            let found = class.find(slot, |e| e.key == *key).and_then(|bucket| class.at_mut(bucket));
            if let Some((entry, marks)) = found.filter(|(_, marks)| **marks & SHADOWED == 0) {
                *marks |= SHADOWED;
                let copy = Entry { key: entry.key.clone(), cell: entry.cell.copied() };
                if *marks & HEAVY != 0 {
                    // The copy may have taken a part of it along.
                    self.heavy.frozen.set(slot, entry.cell.weight(key));
                }
                return Some((copy, SEEN | STORED | COPY));
            }
        }
        let thawing = self.thaw.as_mut().and_then(|thaw| thaw.remove(slot, |e| e.key == *key));
        if thawing.as_ref().is_some_and(|(_, marks)| marks & HEAVY != 0) {
            self.heavy.thawing.remove(slot);
        }
        if let Some((mut entry, _)) = thawing.filter(|(_, marks)| marks & SHADOWED == 0) {
            // Not yet visited since it was written.
            return match entry.cell.written(&self.home) {
                After::Keep => Some((entry, SEEN | STORED)),
                After::Forget => None,
                After::Bury => {
                    self.gone.insert(slot, entry.key, 0, self::slot);
                    None
                }
            };
        }
        let (entry, marks) = self.settled.remove(slot, |e| e.key == *key)?;
        if marks & HEAVY != 0 {
            self.heavy.settled.remove(slot);
        }
        Some((entry, SEEN | STORED))
    }

    /// True when the backend was asked already, or the deletion of the key is on its way.
    pub(super) fn is_known_absent(&self, slot: u64, key: &K) -> bool {
        self.absent.find(slot, |k| k == key).is_some() || self.is_going(slot, key)
    }

    /// True when the pending generation deletes the key.
    fn is_going(&self, slot: u64, key: &K) -> bool {
        let going = self.pending.as_ref().map(|pending| &pending.generation.gone);
        going.is_some_and(|gone| gone.of(slot).find(slot, |k| k == key).is_some())
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

    /// Adds a cell for a key that `find` has not found.
    ///
    /// # Errors
    /// The map is being drained.
    pub(super) fn insert(&mut self, slot: u64, key: K, mut cell: C) -> Result<Place, StateError> {
        if self.drain.is_some() {
            return Err(self
                .home
                .misused("a map that is being drained takes nothing new: drain it to its end"));
        }
        let deleted = self.gone.remove(slot, |k| *k == key).is_some() || self.is_going(slot, &key);
        if deleted {
            cell.replaces_deleted();
        }
        let stored = deleted || !(self.complete || self.no_longer_absent(slot, &key));
        let marks = DIRTY | if stored { STORED } else { 0 };
        Ok(self.add_live(slot, Entry { key, cell }, marks))
    }

    fn no_longer_absent(&mut self, slot: u64, key: &K) -> bool {
        self.absent.find_entry(slot, |k| k == key).map(|entry| entry.remove()).is_ok()
    }

    /// Removes the key from wherever it is. Asks no disk.
    pub(super) fn remove(&mut self, slot: u64, key: &K) {
        self.bury_popped();
        let stored = if let Some((_, marks)) = self.live.remove(slot, |e| e.key == *key) {
            if marks & HEAVY != 0 {
                self.heavy.live.remove(slot);
            }
            marks & STORED != 0
        } else if self.is_alone() || self.gone.find(slot, |k| k == key).is_some() {
            false
        } else if self.take_from_below(slot, key).is_some() {
            true
        } else {
            // Expired just now: it is gone already.
            let gone = self.gone.find(slot, |k| k == key).is_some();
            !gone && !self.complete && !self.is_known_absent(slot, key)
        };
        if stored {
            self.gone.insert(slot, key.clone(), 0, self::slot);
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
            || self.is_known_absent(slot, key)
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
