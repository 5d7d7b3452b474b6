//! `Generation`: what a map held at a barrier, on its way into the backend while the task goes on.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Key;
use super::cell::{Cell, Writes};
use super::coder::Layout;
use super::home::Home;
use super::locked::Locked;
use crate::backend::WriteBatch;
use crate::error::StateError;
use crate::store::Frozen;

/// The entry differs from what is in the backend.
pub(super) const DIRTY: u8 = 1;
/// It was touched again since it came, or since it was last passed over for eviction.
pub(super) const SEEN: u8 = DIRTY << 1;
/// The backend may hold its key.
pub(super) const STORED: u8 = 4;
/// A newer tier holds its key, or its deletion.
pub(super) const SHADOWED: u8 = 8;
/// It is a copy of a frozen entry, which alone may not be in the backend yet.
pub(super) const COPY: u8 = 16;
/// It is being written, to be dropped once that is done.
pub(super) const LEAVING: u8 = 32;
/// It is counted by itself, among the heavy ones of its tier.
pub(super) const HEAVY: u8 = 64;
/// It is among those to be weighed.
pub(super) const LOOSE: u8 = 128;

/// A key and what is kept under it; the table it is in has its marks, which are those above.
#[derive(Clone, Debug)]
pub(super) struct Entry<K, C> {
    pub(super) key: K,
    pub(super) cell: C,
}

/// The key groups in which the backend may hold something of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Groups(Vec<u64>);

impl Groups {
    /// All of a range.
    pub(super) fn all(groups: Range<u16>) -> Self {
        let mut all = Groups::default();
        groups.for_each(|group| all.add(group));
        all
    }

    pub(super) fn add(&mut self, group: u16) {
        let word = usize::from(group / 64);
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (group % 64);
    }

    pub(super) fn add_all(&mut self, other: &Groups) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| *mine |= theirs);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub(super) fn contains(&self, group: u16) -> bool {
        self.0.get(usize::from(group / 64)).is_some_and(|word| word >> (group % 64) & 1 == 1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u16> {
        (0..self.0.len() as u16 * 64).filter(|group| self.contains(*group))
    }
}

/// What of the backend counts no more, and is to be deleted before anything is put.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Void {
    #[default]
    Nothing,
    /// Every key of the map below this one: they have been taken out in order.
    Below(Vec<u8>),
    /// All of the map.
    All,
}

impl Void {
    /// Deletes it, in the groups where there may be something.
    pub(super) fn write(&self, layout: Layout, groups: &Groups, batch: &mut WriteBatch) {
        for group in groups.iter() {
            let (from, to) = layout.bounds(group);
            match self {
                Void::Nothing => {}
                Void::All => batch.delete_range(&from, &to),
                Void::Below(end) if *end <= from => {}
                Void::Below(end) => {
                    let to = if to.is_empty() || *end < to { end } else { &to };
                    batch.delete_range(&from, to);
                }
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Generation<K, C> {
    pub(super) entries: Locked<Entry<K, C>>,
    pub(super) gone: Locked<K>,
    pub(super) void: Void,
}

const PENDING: u8 = 0;
const WRITTEN: u8 = 1;
const FAILED: u8 = 2;

/// How writing a generation ended; shared by the one who writes and the one who waits.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    state: AtomicU8,
    groups: Mutex<Groups>,
}

impl Outcome {
    /// `None` while it is not known.
    pub(super) fn written(&self) -> Option<bool> {
        match self.state.load(Ordering::Acquire) {
            PENDING => None,
            state => Some(state == WRITTEN),
        }
    }

    /// The groups that something was written to.
    pub(super) fn groups(&self) -> Groups {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn settle(&self, groups: Groups, written: bool) {
        *self.groups.lock().unwrap_or_else(PoisonError::into_inner) = groups;
        self.state.store(if written { WRITTEN } else { FAILED }, Ordering::Release);
    }
}

/// A generation, as the task sees it.
#[derive(Debug)]
pub(super) struct Pending<K, C> {
    pub(super) generation: Arc<Generation<K, C>>,
    pub(super) outcome: Arc<Outcome>,
}

/// A generation, as the snapshot thread sees it.
pub(super) struct FrozenMap<K: Key, C: Cell<K>> {
    /// Given up before it is told how it ended, so that the task then has it alone.
    pub(super) generation: Option<Arc<Generation<K, C>>>,
    pub(super) outcome: Arc<Outcome>,
    pub(super) home: Arc<Home<K, C::Value>>,
    pub(super) layout: Layout,
    /// Where something may be; after writing, where something was written too.
    pub(super) groups: Groups,
}

impl<K: Key, C: Cell<K>> Frozen for FrozenMap<K, C> {
    fn write(
        &mut self,
        out: &mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let Some(generation) = &self.generation else { return Ok(()) };
        let (layout, home) = (self.layout, &*self.home);
        let mut writes = Writes::default();
        generation.void.write(layout, &self.groups, &mut writes.ranges);
        writes.flush(out)?;
        if generation.void != Void::All {
            writes.groups = self.groups.clone();
        }
        let delete = |writes: &mut Writes, key: &mut K, _: &mut u8| {
            C::delete(home, layout, key, writes)?;
            Ok(writes.is_full())
        };
        generation.gone.visit(&mut writes, delete, |writes| writes.flush_if_full(out))?;
        writes.flush(out)?;
        // With what takes long to write, to be written while the task may go on.
        let mut with = (writes, None);
        type With<K, C> = (Writes, Option<(K, C, bool)>);
        let write = |(writes, long): &mut With<K, C>, entry: &mut Entry<K, C>, marks: &mut u8| {
            if *marks & DIRTY == 0 {
                return Ok(false);
            }
            let stored = *marks & STORED != 0;
            if let Some(cell) = entry.cell.lend() {
                *long = Some((entry.key.clone(), cell, stored));
                return Ok(true);
            }
            entry.cell.write(home, layout, &entry.key, stored, writes)?;
            Ok(writes.is_full())
        };
        let written = generation.entries.visit(&mut with, write, |(writes, long)| match long.take() {
            Some((key, cell, stored)) => cell.write_all(home, layout, &key, stored, writes, out),
            None => writes.flush_if_full(out),
        });
        let (mut writes, _) = with;
        let written = written.and_then(|()| writes.flush(out));
        self.groups = writes.groups;
        written
    }

    fn settled(mut self: Box<Self>, written: bool) {
        self.generation = None;
        self.outcome.settle(std::mem::take(&mut self.groups), written);
    }
}
