//! What a cache does at batch ends and barriers: freeze, take settled entries back, count its memory.

use std::mem::{size_of, take};
use std::sync::Arc;

use super::Key;
use super::cache::{Cache, Thaw, slot, slot_of};
use super::cell::{After, Cell};
use super::classes::{Classes, Cursor};
use super::generation::{
    COPY, DIRTY, Entry, FrozenMap, Generation, Groups, HEAVY, Outcome, Pending, SEEN, SHADOWED, STORED, Void,
};
use super::heavy::WEIGHT;
use super::locked::Locked;
use crate::backend::WriteBatch;
use crate::error::StateError;
use crate::store::Snapshot;

/// How many settled entries are moved per batch end.
const THAW: usize = 4_096;

/// What a cache knows of its memory.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// What the ledger was told.
    told: usize,
    /// What an entry owns outside the tables that is not heavy, on average; sampled.
    heap: f32,
    sampled: Cursor,
    tidied: usize,
    /// For so many batches the backend is not asked to take more.
    pub(super) refused: u32,
}

impl<K: Key, C: Cell<K>> Cache<K, C, C::Value> {
    /// The end of a batch: places are stale now.
    ///
    /// *Blocking*: writes to the backend when memory is short; waits for the snapshot when that is not settled and memory
    /// is very short.
    ///
    /// # Errors
    /// The wait was broken off, or the backend could not be written and memory is far over. As long as it is not, what the
    /// backend refuses stays here, and the next snapshot tells: that cannot write either.
    pub(super) fn batch_end(&mut self) -> Result<(), StateError> {
        self.home.look_at_the_clock();
        self.asked.batch_end();
        self.absent.clear();
        self.settle();
        if self.thaw.is_some() {
            self.thaw_some(THAW);
        }
        self.sample();
        let over = self.count();
        if over > 0 { self.evict(over) } else { Ok(()) }
    }

    /// Freezes what changed since the last barrier. Costs nothing per entry.
    ///
    /// *Blocking*: waits until every earlier snapshot of the store is settled.
    pub(super) fn freeze(&mut self, snapshot: &mut Snapshot) -> Result<(), StateError> {
        snapshot.hold(&self.home.ledger).map_err(|cancelled| self.home.cancelled(cancelled))?;
        self.settle();
        if let Some(at) = self.home.event_time() {
            snapshot.keep_event_time(at);
        }
        let void = match &self.void {
            // What is taken out in order goes on: more will count no more at the next barrier.
            Void::Below(_) => self.void.clone(),
            _ => take(&mut self.void),
        };
        self.bury_popped();
        if self.live.is_empty() && self.gone.is_empty() && void == Void::Nothing {
            return Ok(());
        }
        self.weigh();
        self.heavy.frozen = take(&mut self.heavy.live);
        let next = Classes::like(&self.live);
        let live = std::mem::replace(&mut self.live, next);
        let generation = Arc::new(Generation {
            entries: Locked::new(live),
            gone: Locked::new(take(&mut self.gone)),
            void,
        });
        let outcome = Arc::new(Outcome::default());
        if let Some(drain) = &mut self.drain {
            drain.frozen = (0, 0);
        }
        self.pending = Some(Pending { generation: generation.clone(), outcome: outcome.clone() });
        snapshot.add(Box::new(FrozenMap {
            generation: Some(generation),
            outcome,
            home: self.home.clone(),
            layout: self.layout,
            groups: self.groups.clone(),
        }));
        Ok(())
    }

    /// True while a generation of it is frozen or thawing.
    pub(super) fn is_settling(&self) -> bool {
        self.pending.is_some() || self.thaw.is_some()
    }

    /// True when an empty map needs nothing more to be written.
    pub(super) fn has_left_no_trace(&self) -> bool {
        !self.is_settling() && self.void == Void::Nothing && self.gone.is_empty() && self.live.is_empty()
    }

    /// True when the backend may be written. Then this map has nothing pending: what became of it is known.
    pub(super) fn may_write(&mut self) -> bool {
        let settled = self.home.ledger.is_settled();
        self.settle();
        // A generation that was pending before the look at the ledger was settled before the ledger said so.
        settled && self.pending.is_none()
    }

    /// Deletes what an emptied map has in the backend, if that may be written now. What it refuses it is asked again.
    pub(super) fn delete_if_settled(&mut self) -> Result<(), StateError> {
        let may_write = self.may_write();
        self.thaw_some(usize::MAX);
        if self.void != Void::All || !may_write {
            return Ok(());
        }
        // It takes no memory to speak of until then.
        self.write_void().or_else(|error| if error.may_pass() { Ok(()) } else { Err(error) })
    }

    pub(super) fn write_void(&mut self) -> Result<(), StateError> {
        let mut batch = WriteBatch::default();
        self.void.write(self.layout, &self.groups, &mut batch);
        self.home.backend.write(&batch)?;
        self.void = Void::Nothing;
        self.groups = Groups::default();
        Ok(())
    }

    /// Sees whether the pending generation is written, and takes it back.
    pub(super) fn settle(&mut self) {
        let Some(written) = self.pending.as_ref().and_then(|pending| pending.outcome.written()) else {
            return;
        };
        self.thaw_some(usize::MAX);
        let Some(Pending { generation, outcome }) = self.pending.take() else { return };
        let generation = match Arc::try_unwrap(generation) {
            Ok(generation) => generation,
            Err(generation) => {
                // Whoever settled it still holds it for a moment.
                self.pending = Some(Pending { generation, outcome });
                return;
            }
        };
        let weights = take(&mut self.heavy.frozen);
        if written {
            self.heavy.thawing = weights;
        }
        if written && generation.void == Void::All {
            self.groups = outcome.groups();
        } else {
            self.groups.add_all(&outcome.groups());
        }
        if written {
            self.thaw = Some(Thaw { tables: generation.entries.into_tables(), next: 0 });
        } else {
            self.take_back(generation);
        }
    }

    /// The generation was not written: what was dirty is dirty again, what was to go is still to go.
    fn take_back(&mut self, generation: Generation<K, C>) {
        // What was taken out in order then is part of what has been taken out by now.
        if generation.void == Void::All {
            self.void = Void::All;
        }
        for (key, _) in generation.gone.into_tables().into_iter().flatten() {
            let at = slot(&key);
            let there =
                self.live.find(at, |e| e.key == key).is_some() || self.gone.find(at, |k| *k == key).is_some();
            if !there {
                self.gone.insert(at, key, 0, slot);
            }
        }
        for (mut entry, marks) in generation.entries.into_tables().into_iter().flatten() {
            let at = slot(&entry.key);
            let dirty = marks & DIRTY;
            if marks & SHADOWED != 0 {
                if let Some(place) = self.live.find(at, |e| e.key == entry.key) {
                    let (live, marks) = self.live.at_mut(place);
                    *marks |= dirty | STORED;
                    if *marks & COPY != 0 {
                        live.cell.not_written(Some(&entry.cell));
                    }
                    if C::GROWS {
                        self.heavy.loosen(place, marks);
                    }
                }
                continue;
            }
            entry.cell.not_written(None);
            let marks = dirty | STORED | (marks & SEEN);
            if dirty != 0 {
                self.add_live(at, entry, marks);
            } else {
                let heavy = Self::weigh_settled(&mut self.heavy, at, &entry);
                self.settled.insert(at, entry, marks | heavy, slot_of);
            }
        }
    }

    /// Moves a number of thawing entries, in whole classes, to the settled ones.
    pub(super) fn thaw_some(&mut self, most: usize) {
        let Some(mut thaw) = self.thaw.take() else { return };
        let mut moved = 0;
        while moved < most && thaw.next < thaw.tables.len() {
            let mut table = take(&mut thaw.tables[thaw.next]);
            let Cache { home, gone, heavy, live, .. } = self;
            table.retain(|entry, marks| {
                let was_heavy = *marks & HEAVY != 0;
                if was_heavy {
                    heavy.thawing.remove(slot_of(entry));
                }
                if *marks & SHADOWED != 0 {
                    if was_heavy && C::GROWS {
                        // What both shared is the copy's alone now.
                        let copy = live.find(slot_of(entry), |e| e.key == entry.key);
                        copy.into_iter().for_each(|at| heavy.loosen(at, live.at_mut(at).1));
                    }
                    return false;
                }
                *marks = STORED | (*marks & SEEN);
                let after = entry.cell.written(home);
                if after == After::Bury {
                    gone.insert(slot(&entry.key), entry.key.clone(), 0, slot);
                }
                if was_heavy && after == After::Keep {
                    *marks |= Self::weigh_settled(heavy, slot_of(entry), entry);
                }
                after == After::Keep
            });
            if thaw.tables.len() > self.settled.classes() || self.settled.outgrown_by(table.len()) {
                self.settled.spread(slot_of);
            }
            if thaw.tables.len() == self.settled.classes() {
                moved += self.settled.merge(thaw.next, table, slot_of);
            } else {
                moved += table.len();
                for (entry, marks) in table {
                    self.settled.insert(slot(&entry.key), entry, marks, slot_of);
                }
            }
            thaw.next += 1;
        }
        if thaw.next < thaw.tables.len() {
            self.thaw = Some(thaw);
        }
    }

    /// How many entries are in memory.
    pub(super) fn entries(&self) -> usize {
        self.live.len()
            + self.settled.len()
            + self.pending.as_ref().map_or(0, |pending| pending.generation.entries.len)
            + self.thaw.as_ref().map_or(0, Thaw::len)
    }

    /// Sees what one entry owns outside the table.
    fn sample(&mut self) {
        let tier = if self.live.is_empty() { &self.settled } else { &self.live };
        let Some(entry) = tier.sample(&mut self.account.sampled) else { return };
        let seen = if C::OWNS { entry.cell.weight(&entry.key) } else { 0 };
        if seen > WEIGHT {
            // It is counted by itself.
            return;
        }
        let seen = seen as f32;
        let mean = &mut self.account.heap;
        *mean = if *mean == 0.0 { seen } else { *mean + (seen - *mean) / 32.0 };
    }

    /// Tells the ledger what this cache uses; gives how much of it is too much.
    pub(super) fn count(&mut self) -> usize {
        self.weigh();
        // Removed entries leave room in their tables: one class a time is made smaller if it is worth it.
        self.account.tidied += 1;
        self.settled.tidy(self.account.tidied, slot_of);
        if self.home.ledger.is_over() {
            // Else its room is there for what is to come.
            self.live.tidy(self.account.tidied, slot_of);
        }
        self.gone.tidy(self.account.tidied, slot);

        let gone = self.gone.bytes() + self.gone.len() * self.account.heap as usize;
        let used = self.entries() * self.per_entry() + self.heavy.total() + gone;
        let before = std::mem::replace(&mut self.account.told, used);
        let all = self.home.ledger.account(before, used);
        let over = all.saturating_sub(self.home.ledger.limit);
        // Its share of that: the other caches of the store do theirs.
        (over as f64 * used as f64 / all.max(1) as f64).ceil() as usize
    }

    /// What an entry takes on average that is not counted by itself, its share of the free room in the tables included.
    ///
    /// The tables' own bytes would not do: dropping entries leaves them as they are, so that one would drop more and more.
    pub(super) fn per_entry(&self) -> usize {
        in_tables::<K, C>() + self.account.heap as usize
    }
}

/// What an entry takes in the tables, with a byte of the table's, one of marks and its share of the free room.
pub(super) fn in_tables<K, C>() -> usize {
    (size_of::<Entry<K, C>>() + 2) * 15 / 8
}

impl<K, C, V> Drop for Cache<K, C, V> {
    fn drop(&mut self) {
        self.home.ledger.account(self.account.told, 0);
    }
}
