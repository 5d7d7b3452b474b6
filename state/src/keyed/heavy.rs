//! `Heavy`: the entries of a cache that are so large that each is counted by itself, and the list of those to be weighed.
//!
//! What most entries own outside the tables is known on average, from samples. One of megabytes among millions of small ones would
//! hardly ever be sampled, and would mislead for long when it is. So what was added or may have changed is weighed once, at the
//! end of the batch, and from [`WEIGHT`] on it has a row here, by its slot, in the tier that it lies in.
// HOT: `loosen` is called per record, where values own memory at all: one push at most. No allocation to speak of, lock or clock.

use std::mem::take;

use hashbrown::HashTable;

use super::Key;
use super::cache::{Cache, slot_of};
use super::cell::Cell;
use super::classes::Place;
use super::generation::{Entry, HEAVY, LOOSE};

/// What owns more bytes than this is counted by itself.
pub(super) const WEIGHT: usize = 4 << 10;

/// The weights of one tier's heavy entries.
#[derive(Debug, Default)]
pub(super) struct Weights {
    rows: HashTable<(u64, usize)>,
    total: usize,
}

impl Weights {
    /// An entry weighs so much now.
    pub(super) fn set(&mut self, slot: u64, bytes: usize) {
        self.remove(slot);
        self.rows.insert_unique(slot, (slot, bytes), |row| row.0);
        self.total += bytes;
    }

    /// What an entry weighs; nothing when it has no row.
    pub(super) fn of(&self, slot: u64) -> usize {
        self.rows.find(slot, |row| row.0 == slot).map_or(0, |row| row.1)
    }

    /// An entry is gone from the tier; gives what it weighed.
    pub(super) fn remove(&mut self, slot: u64) -> usize {
        let Ok(row) = self.rows.find_entry(slot, |row| row.0 == slot) else { return 0 };
        let ((_, bytes), _) = row.remove();
        self.total -= bytes;
        bytes
    }
}

/// What a cache knows of its heavy entries.
#[derive(Debug, Default)]
pub(super) struct Heavy {
    pub(super) live: Weights,
    pub(super) frozen: Weights,
    pub(super) thawing: Weights,
    pub(super) settled: Weights,
    /// Where entries of the live tier lie that are marked as loose. None moves while it is here.
    touched: Vec<Place>,
}

impl Heavy {
    /// What all of them own.
    pub(super) fn total(&self) -> usize {
        self.live.total + self.frozen.total + self.thawing.total + self.settled.total
    }

    /// The live entry at a place may change: it is weighed at the end of the batch.
    #[inline(always)]
    pub(super) fn loosen(&mut self, place: Place, marks: &mut u8) {
        if *marks & LOOSE == 0 {
            *marks |= LOOSE;
            self.touched.push(place);
        }
    }

    /// All is forgotten but what is frozen.
    pub(super) fn void(&mut self) {
        let frozen = take(&mut self.frozen);
        *self = Heavy { frozen, ..Heavy::default() };
    }
}

impl<K: Key, C: Cell<K>> Cache<K, C, C::Value> {
    /// Adds an entry to the live tier, which does not have it.
    pub(super) fn add_live(&mut self, slot: u64, entry: Entry<K, C>, marks: u8) -> Place {
        if !C::OWNS {
            return self.live.insert(slot, entry, marks, slot_of);
        }
        if self.live.would_move(slot) {
            self.weigh();
        }
        let place = self.live.insert(slot, entry, marks & !HEAVY | LOOSE, slot_of);
        self.heavy.touched.push(place);
        place
    }

    /// Weighs what was added or may have changed.
    pub(super) fn weigh(&mut self) {
        if self.heavy.touched.is_empty() {
            return;
        }
        let Cache { live, heavy, home, .. } = self;
        let mut touched = take(&mut heavy.touched);
        for place in touched.drain(..) {
            // It may have been removed since, and another may lie there.
            let Some((entry, marks)) = live.get_mut(place).filter(|(_, marks)| **marks & LOOSE != 0) else {
                continue;
            };
            entry.cell.tidy(home);
            let bytes = entry.cell.weight(&entry.key);
            if bytes > WEIGHT {
                heavy.live.set(slot_of(entry), bytes);
                *marks |= HEAVY;
            } else if *marks & HEAVY != 0 {
                heavy.live.remove(slot_of(entry));
                *marks &= !HEAVY;
            }
            *marks &= !LOOSE;
        }
        heavy.touched = touched;
    }

    /// Gives an entry its row in the settled tier, if it is heavy: the mark that says so, or none.
    pub(super) fn weigh_settled(heavy: &mut Heavy, slot: u64, entry: &Entry<K, C>) -> u8 {
        let bytes = if C::OWNS { entry.cell.weight(&entry.key) } else { 0 };
        if bytes <= WEIGHT {
            return 0;
        }
        heavy.settled.set(slot, bytes);
        HEAVY
    }
}

#[cfg(test)]
#[path = "heavy_tests.rs"]
mod tests;
