//! `Generation`: what a map held at a barrier, on its way into the backend while the task goes on.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::classes::Locked;
use super::coder::{Coder, Layout, Route, Stamp};
use super::home::Home;
use super::{Key, State};
use crate::backend::WriteBatch;
use crate::error::StateError;
use crate::store::Frozen;

/// The entry differs from what is in the backend.
pub(super) const DIRTY: u8 = 1;
/// It was touched since it was last passed over for eviction.
pub(super) const SEEN: u8 = 2;
/// The backend may hold its key.
pub(super) const STORED: u8 = 4;
/// A newer tier holds its key, or its deletion.
pub(super) const SHADOWED: u8 = 8;
/// It is a copy of a frozen entry, which alone may not be in the backend yet.
pub(super) const COPY: u8 = 16;

/// A key and its value in a cache.
#[derive(Clone, Debug)]
pub(super) struct Entry<K, V, S> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) touched: S,
    pub(super) flags: u8,
}

/// Batches are written when they have reached this many bytes.
pub(super) const BATCH: usize = 1 << 20;

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
pub(super) struct Generation<K, V, S> {
    pub(super) entries: Locked<Entry<K, V, S>>,
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
pub(super) struct Pending<K, V, S> {
    pub(super) generation: Arc<Generation<K, V, S>>,
    pub(super) outcome: Arc<Outcome>,
}

/// A generation, as the snapshot thread sees it.
pub(super) struct FrozenMap<K, V, S, R> {
    /// Given up before it is told how it ended, so that the task then has it alone.
    pub(super) generation: Option<Arc<Generation<K, V, S>>>,
    pub(super) outcome: Arc<Outcome>,
    pub(super) home: Arc<Home<K, V>>,
    pub(super) layout: Layout,
    /// Where something may be; after writing, where something was written too.
    pub(super) groups: Groups,
    pub(super) route: PhantomData<fn() -> R>,
}

/// What is carried through a visit of all entries.
struct Writing<'a> {
    batch: WriteBatch,
    groups: Groups,
    out: &'a mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
}

impl Writing<'_> {
    fn flush(&mut self) -> Result<(), StateError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.batch.sort();
        (self.out)(&self.batch)?;
        self.batch.clear();
        Ok(())
    }

    fn flush_if_full(&mut self) -> Result<(), StateError> {
        if self.batch.bytes() < BATCH { Ok(()) } else { self.flush() }
    }
}

impl<K: Key, V: State, S: Stamp, R: Route<K>> Frozen for FrozenMap<K, V, S, R> {
    fn write(
        &mut self,
        out: &mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let Some(generation) = &self.generation else { return Ok(()) };
        let (layout, home) = (self.layout, &*self.home);
        let mut void = WriteBatch::default();
        generation.void.write(layout, &self.groups, &mut void);
        if !void.is_empty() {
            out(&void)?;
        }
        void.clear();
        // What is void is deleted: after that there is something only where something is put.
        let groups = if generation.void == Void::All { Groups::default() } else { self.groups.clone() };
        let mut writing = Writing { batch: void, groups, out };
        let delete = |writing: &mut Writing<'_>, key: &mut K| {
            writing.batch.delete_with(|into| home.coder.key::<R>(layout, key, into)).map(drop)
        };
        generation.gone.visit(&mut writing, delete, Writing::flush_if_full)?;
        let put = |writing: &mut Writing<'_>, entry: &mut Entry<K, V, S>| {
            if entry.flags & DIRTY != 0 {
                write_entry::<K, V, S, R>(home, layout, entry, &mut writing.batch, &mut writing.groups)?;
            }
            Ok(())
        };
        let written = generation.entries.visit(&mut writing, put, Writing::flush_if_full);
        let written = written.and_then(|()| writing.flush());
        self.groups = writing.groups;
        written
    }

    fn settled(mut self: Box<Self>, written: bool) {
        self.generation = None;
        self.outcome.settle(std::mem::take(&mut self.groups), written);
    }
}

/// Appends what brings the backend up to date with a dirty entry.
pub(super) fn write_entry<K: Key, V: State, S: Stamp, R: Route<K>>(
    home: &Home<K, V>,
    layout: Layout,
    entry: &Entry<K, V, S>,
    batch: &mut WriteBatch,
    groups: &mut Groups,
) -> Result<(), StateError> {
    let coder: &Coder<K, V> = &home.coder;
    let touched = entry.touched.millis();
    if home.is_over(touched) {
        // It must not come back when the file with its older value outlives the one with this.
        if entry.flags & STORED != 0 {
            batch.delete_with(|into| coder.key::<R>(layout, &entry.key, into))?;
        }
        return Ok(());
    }
    let key = |into: &mut Vec<u8>| coder.key::<R>(layout, &entry.key, into);
    let group = batch.put_with(key, |into| coder.value(&entry.value, touched, into))?;
    groups.add(group);
    Ok(())
}
