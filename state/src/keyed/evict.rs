//! How a cache makes room: clean entries go first, then dirty ones are written; what the backend refuses stays.

use super::Key;
use super::cache::{Cache, slot_of};
use super::cell::{Cell, Writes};
use super::classes::{Classes, Cursor, Walk};
use super::generation::{COPY, DIRTY, Entry, HEAVY, LEAVING, SEEN, STORED, Void};
use super::heavy::Weights;
use crate::backend::WriteBatch;
use crate::error::StateError;

/// Dirty entries are evicted so many at a time at least, or a full batch: a sorted batch is cheaper than single writes.
const EVICT: usize = 2_048;
/// While a snapshot is not settled, caches may outgrow their budget by an eighth, or by this.
const SLACK: usize = 64 << 10;
/// A backend that has refused a write is not asked again for so many batches, unless memory is very short: each time costs as
/// much as one that it takes.
const REFUSED: u32 = 64;

impl<K: Key, C: Cell<K>> Cache<K, C, C::Value> {
    /// Makes room for so many bytes, as far as this cache can.
    pub(super) fn evict(&mut self, mut over: usize) -> Result<(), StateError> {
        loop {
            let may_write = self.may_write();
            self.thaw_some(usize::MAX);
            let mut left = over - self.drop_settled(over).min(over);
            if left > 0 && may_write && !self.is_refused() {
                match self.write_live(left) {
                    Ok(freed) => left -= freed.min(left),
                    Err(error) if error.may_pass() && !self.home.ledger.is_far_over() => {
                        self.account.refused = REFUSED;
                    }
                    Err(error) => return Err(error),
                }
            }
            if left > 0 && (!may_write || self.account.refused > 0) {
                left -= self.drop_clean_live(left).min(left);
            }
            over = self.count();
            let ledger = &self.home.ledger;
            let very_short = over > (ledger.limit / 8).max(SLACK);
            if left == 0 || !very_short || may_write {
                return Ok(());
            }
            ledger.wait().map_err(|cancelled| self.home.cancelled(cancelled))?;
        }
    }

    /// True when the backend has refused to be written, a while ago or less, and memory lasts a little longer.
    fn is_refused(&mut self) -> bool {
        let refused = &mut self.account.refused;
        *refused = if self.home.ledger.is_far_over() { 0 } else { refused.saturating_sub(1) };
        *refused > 0
    }

    /// Drops settled entries that were not touched since they were last passed over, for so many bytes; gives how many they were.
    fn drop_settled(&mut self, wanted: usize) -> usize {
        let each = self.per_entry();
        let Cache { settled, heavy, sweep, .. } = self;
        let mut freed = 0;
        // Twice around at most: the first time may only take marks away.
        for _ in 0..2 {
            let may_go = |marks: &mut u8| {
                let untouched = *marks & SEEN == 0;
                *marks &= !SEEN;
                untouched
            };
            let left = wanted - freed;
            freed += drop_some(settled, &mut heavy.settled, &mut sweep[0], each, left, may_go).min(left);
        }
        self.complete &= freed == 0;
        freed
    }

    /// Drops live entries that need not be written, for so many bytes.
    fn drop_clean_live(&mut self, wanted: usize) -> usize {
        let each = self.per_entry();
        let Cache { live, heavy, sweep, .. } = self;
        let may_go = |marks: &mut u8| *marks & (DIRTY | COPY) == 0;
        let freed = drop_some(live, &mut heavy.live, &mut sweep[1], each, wanted, may_go);
        self.complete &= freed == 0;
        freed
    }

    /// Writes what must be written of live entries that were not touched for a while, and drops them: so many bytes, and not few
    /// entries unless they are large. Gives how many bytes they took.
    ///
    /// # Errors
    /// An entry cannot be encoded, or the backend cannot be written: every entry is still here, to be written.
    fn write_live(&mut self, wanted: usize) -> Result<usize, StateError> {
        if self.void == Void::All {
            self.write_void()?;
        }
        let mut writes = Writes { groups: self.groups.clone(), ..Writes::default() };
        if self.gone.len() * 4 > self.live.len() {
            self.write_gone(&mut writes)?;
        }
        let from = self.sweep[1];
        let (leaving, collected) = self.collect_live(wanted, &mut writes);
        let backend = &self.home.backend;
        let written = collected.and_then(|()| writes.flush(&mut |batch| backend.write(batch)));
        // After an error too: part of it may be there.
        self.groups = writes.groups;
        let freed = self.leave(leaving, from, written.is_ok());
        written?;
        self.complete &= leaving == 0;
        Ok(freed)
    }

    /// Marks live entries that were not touched for a while as leaving, and writes what must be of them, but for what `writes` holds
    /// at the end. Gives how many they are; after an error, how many were marked by then.
    fn collect_live(&mut self, wanted: usize, writes: &mut Writes) -> (usize, Result<(), StateError>) {
        let each = self.per_entry();
        let Cache { live, heavy, sweep, home, layout, .. } = self;
        let (mut leaving, mut freed, mut full, mut failed) = (0, 0, false, Ok(()));
        // Twice around at most: the first time may only take marks away.
        for _ in 0..2 {
            let most = live.len();
            live.walk(&mut sweep[1], most, |entry, marks| {
                if failed.is_err() || freed >= wanted && (full || leaving >= EVICT) {
                    return Walk::Stop;
                }
                if *marks & LEAVING != 0 {
                    return Walk::Keep;
                }
                if *marks & SEEN != 0 {
                    *marks &= !SEEN;
                    return Walk::Keep;
                }
                if *marks & DIRTY != 0 {
                    let stored = *marks & STORED != 0;
                    let mut pass_on = |batch: &WriteBatch| {
                        full = true;
                        home.backend.write(batch)
                    };
                    failed = entry.cell.write_all(home, *layout, &entry.key, stored, writes, &mut pass_on);
                }
                // After an error too: a part of it may be there.
                *marks |= LEAVING;
                leaving += 1;
                freed += each + if *marks & HEAVY != 0 { heavy.live.of(slot_of(entry)) } else { 0 };
                Walk::Keep
            });
        }
        (leaving, failed)
    }

    /// Drops the entries that are leaving, which lie behind `from`, and gives how many bytes they took; if they were not written
    /// they stay as they were.
    fn leave(&mut self, mut leaving: usize, mut from: Cursor, written: bool) -> usize {
        let (each, mut freed) = (self.per_entry(), 0);
        let Cache { live, heavy, .. } = self;
        live.walk(&mut from, usize::MAX, |entry, marks| {
            if leaving == 0 {
                return Walk::Stop;
            }
            if *marks & LEAVING == 0 {
                return Walk::Keep;
            }
            leaving -= 1;
            if written {
                freed += each + if *marks & HEAVY != 0 { heavy.live.remove(slot_of(entry)) } else { 0 };
                return Walk::Drop;
            }
            *marks &= !LEAVING;
            if *marks & DIRTY != 0 {
                *marks |= STORED;
                entry.cell.not_written(None);
            }
            Walk::Keep
        });
        freed
    }

    /// Deletes what is gone.
    fn write_gone(&mut self, writes: &mut Writes) -> Result<(), StateError> {
        let Cache { home, layout, gone, .. } = self;
        gone.iter().try_for_each(|(key, _)| C::delete(home, *layout, key, writes))?;
        writes.flush(&mut |batch| home.backend.write(batch))?;
        self.gone = Classes::default();
        Ok(())
    }
}

/// Drops entries of those that may go by their marks until so many bytes are free, once around at most; each frees so many and what
/// it weighs. Gives how many those were.
fn drop_some<K: Key, C>(
    of: &mut Classes<Entry<K, C>>,
    weights: &mut Weights,
    sweep: &mut Cursor,
    each: usize,
    wanted: usize,
    may_go: impl Fn(&mut u8) -> bool,
) -> usize {
    let (mut freed, most) = (0, of.len());
    of.walk(sweep, most, |entry, marks| {
        if freed >= wanted {
            Walk::Stop
        } else if may_go(marks) {
            freed += each + if *marks & HEAVY != 0 { weights.remove(slot_of(entry)) } else { 0 };
            Walk::Drop
        } else {
            Walk::Keep
        }
    });
    freed
}
