//! Takes everything out of a cache, some at a time, with barriers in between; and reads everything in it.

use std::mem::take;
use std::ops::ControlFlow;

use super::cache::{Cache, slot};
use super::cell::{Cell, One, Stamp};
use super::classes::{Classes, Cursor};
use super::generation::{Entry, HEAVY, SHADOWED, STORED, Void};
use super::marked::Marked;
use super::{Key, State};
use crate::error::StateError;
use crate::key::KeyGroup;
use crate::keyspace;

/// How far a drain has come. First what is in memory goes, in the order of the tables; then the rest, in the order of keys.
#[derive(Debug)]
pub(super) struct Drain<K> {
    cursor: Cursor,
    /// How far the walk through the frozen entries has come: class and bucket.
    pub(super) frozen: (usize, usize),
    /// What was taken out while the backend may hold it. Hashed only if somebody asks or a barrier comes.
    popped: Vec<K>,
}

impl<K> Default for Drain<K> {
    fn default() -> Self {
        Drain { cursor: Cursor::default(), frozen: (0, 0), popped: Vec::new() }
    }
}

impl<K: Key, C: Cell<K>> Cache<K, C, C::Value> {
    /// What was popped is gone, for all who ask.
    pub(super) fn bury_popped(&mut self) {
        let Some(drain) = &mut self.drain else { return };
        for key in take(&mut drain.popped) {
            self.gone.insert(slot(&key), key, 0, slot);
        }
    }

    /// Forgets everything, in memory and in the backend: one range delete per group where there may be something.
    pub(super) fn void_all(&mut self) {
        self.live = self.live.anew();
        self.settled = self.settled.anew();
        self.thaw = None;
        self.gone = Classes::default();
        self.absent.clear();
        self.drain = None;
        self.heavy.void();
        self.complete = true;
        // What is being written now will be there too.
        self.void = if self.groups.is_empty() && self.pending.is_none() { Void::Nothing } else { Void::All };
        if let Some(pending) = &self.pending {
            let shadow = |_: &mut (), _: &mut Entry<K, C>, marks: &mut u8| {
                *marks |= SHADOWED;
                Ok::<bool, StateError>(false)
            };
            let _ = pending.generation.entries.visit(&mut (), shadow, |()| Ok(()));
        }
    }
}

impl<K: Key, V: State> Cache<K, One<V, ()>, V> {
    /// Takes out about `most` entries; false when those were the last, and the map is as new.
    ///
    /// From the first call until it gives false nothing may be added.
    pub(super) fn pop(&mut self, most: usize, out: &mut Vec<(K, V)>) -> Result<bool, StateError> {
        self.settle();
        self.thaw_some(usize::MAX);
        let end = out.len() + most;
        let Drain { cursor, frozen, popped } = self.drain.get_or_insert_default();
        let heavy = &mut self.heavy;
        let mut push = |Entry { key, cell }: Entry<K, One<V, ()>>, marks: u8| {
            if marks & HEAVY != 0 {
                let slot = slot(&key);
                heavy.live.remove(slot);
                heavy.settled.remove(slot);
            }
            if marks & STORED != 0 {
                popped.push(key.clone());
            }
            out.push((key, cell.value));
        };
        self.live.take_some(cursor, most, &mut push);
        if self.live.is_empty() {
            self.settled.take_some(cursor, most, &mut push);
        }
        if !self.live.is_empty() || !self.settled.is_empty() {
            return Ok(true);
        }
        if let Some(pending) = &self.pending {
            let copied = pending.generation.entries.visit_on(frozen, |entry, marks| {
                if out.len() >= end {
                    return false;
                }
                if *marks & SHADOWED == 0 {
                    *marks |= SHADOWED;
                    popped.push(entry.key.clone());
                    out.push((entry.key.clone(), entry.cell.value.clone()));
                }
                true
            });
            if !copied {
                return Ok(true);
            }
        }
        if !self.complete && out.len() < end {
            self.pop_stored(end, out)?;
        }
        // It is at its end, or there was nothing in the backend to walk through.
        let drained = self.complete || self.void == Void::All;
        if drained {
            self.void_all();
        }
        Ok(!drained)
    }

    /// Takes entries out of the backend until `out` has `end`.
    fn pop_stored(&mut self, end: usize, out: &mut Vec<(K, V)>) -> Result<(), StateError> {
        self.bury_popped();
        let begun = match &self.void {
            Void::Below(key) => key.clone(),
            _ => Vec::new(),
        };
        let backend = self.home.backend.clone();
        let groups: Vec<u16> = self.groups.iter().collect();
        for group in groups {
            let (from, to) = self.layout.bounds(group);
            if !to.is_empty() && to <= begun {
                continue;
            }
            let from = from.max(begun.clone());
            let mut result = Ok(());
            let mut last = Vec::new();
            backend.scan(&from, &to, &mut |key, value| {
                if out.len() >= end {
                    return ControlFlow::Break(());
                }
                last.clear();
                last.extend_from_slice(key);
                result = self.stored(key, value).map(|entry| out.extend(entry));
                if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            result?;
            if out.len() >= end {
                if !last.is_empty() {
                    // The least key behind the last one.
                    last.push(0);
                    self.void = Void::Below(last);
                }
                return Ok(());
            }
            self.void =
                Void::Below(keyspace::after_prefix(&keyspace::prefix(KeyGroup(group), self.layout.table)));
        }
        self.void = Void::All;
        Ok(())
    }

    /// An entry of the backend, if it counts.
    fn stored(&self, key: &[u8], value: &[u8]) -> Result<Option<(K, V)>, StateError> {
        let key = self.home.coder.read_key(self.layout, key)?;
        if self.is_cached_below(slot(&key), &key) {
            return Ok(None);
        }
        let One { value, .. } = One::<V, ()>::read(&self.home, value)?;
        Ok(Some((key, value)))
    }
}

impl<K: Key, V: State, S: Stamp> Cache<K, One<V, S>, V> {
    /// Visits every entry, in no order; those in the backend are not kept in memory.
    pub(super) fn for_each(&mut self, mut visit: impl FnMut(&K, &V, S)) -> Result<(), StateError> {
        self.bury_popped();
        for (entry, _) in self.live.iter().chain(self.settled.iter()) {
            visit(&entry.key, &entry.cell.value, entry.cell.touched);
        }
        let thawing =
            self.thaw.iter().flat_map(|thaw| thaw.tables[thaw.next..].iter().flat_map(Marked::iter));
        for (entry, _) in thawing.filter(|(_, marks)| marks & SHADOWED == 0) {
            visit(&entry.key, &entry.cell.value, entry.cell.touched);
        }
        if let Some(pending) = &self.pending {
            let mut frozen = |_: &mut (), entry: &mut Entry<K, One<V, S>>, marks: &mut u8| {
                if *marks & SHADOWED == 0 {
                    visit(&entry.key, &entry.cell.value, entry.cell.touched);
                }
                Ok::<bool, StateError>(false)
            };
            pending.generation.entries.visit(&mut (), &mut frozen, |()| Ok(()))?;
        }
        if self.complete {
            return Ok(());
        }
        for group in self.groups.iter() {
            let (from, to) = self.layout.bounds(group);
            let mut result = Ok(());
            self.home.backend.scan(&from, &to, &mut |key, value| {
                result = (|| {
                    let typed = self.home.coder.read_key(self.layout, key)?;
                    let at = slot(&typed);
                    let elsewhere = self.is_void(key)
                        || self.live.find(at, |e| e.key == typed).is_some()
                        || self.is_cached_below(at, &typed);
                    if !elsewhere {
                        let cell = One::<V, S>::read(&self.home, value)?;
                        visit(&typed, &cell.value, cell.touched);
                    }
                    Ok(())
                })();
                if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            result?;
        }
        Ok(())
    }
}
