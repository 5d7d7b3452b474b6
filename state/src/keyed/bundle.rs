//! `Bundle`: a map under a key, in the backend one entry per key of its own: of a large map only what is asked for is read.

use std::mem::{needs_drop, size_of};
use std::ops::ControlFlow;

use hashbrown::HashTable;

use super::cell::{After, Cell, Writes};
use super::coder::Layout;
use super::generation::{DIRTY, STORED};
use super::home::Home;
use super::{Key, State};
use crate::codec::{Codec, Ordered};
use crate::error::StateError;
use crate::key::key_hash;
use crate::keyspace;

/// One entry of a map. Without a value it is known not to be there.
#[derive(Clone, Debug)]
pub(super) struct Sub<M, V> {
    key: M,
    pub(super) value: Option<V>,
    /// `i64::MIN` where that is not kept.
    touched: i64,
    flags: u8,
}

/// What is in memory of a map.
#[derive(Clone, Debug)]
pub(crate) struct Bundle<M, V> {
    subs: HashTable<Sub<M, V>>,
    /// What is not here does not exist, or counts no more.
    whole: bool,
    /// Whatever the backend has under the key is to be deleted before anything is put.
    void: bool,
}

fn slot<M: Key>(key: &M) -> u64 {
    key_hash(key).in_group()
}

impl<M: Key, V: State> Bundle<M, V> {
    /// A map with nothing in it.
    pub(super) fn empty() -> Self {
        Bundle { subs: HashTable::new(), whole: true, void: false }
    }

    /// The entry of a key, read from the backend if need be. `prefix`: the bytes of the key that the map is under.
    pub(super) fn find<K: Key>(
        &mut self,
        home: &Home<K, V>,
        prefix: impl FnOnce(&mut Vec<u8>) -> Result<(), StateError>,
        key: &M,
    ) -> Result<Option<&mut Sub<M, V>>, StateError> {
        let slot = slot(key);
        if self.whole || self.subs.find(slot, |sub| sub.key == *key).is_some() {
            return Ok(self.subs.find_mut(slot, |sub| sub.key == *key));
        }
        let (mut bytes, mut stored) = (Vec::with_capacity(48), Vec::new());
        prefix(&mut bytes)?;
        home.coder.inner_key(key, &mut bytes)?;
        let there = home.backend.get(&bytes, &mut stored)?;
        self.take_in(home, key.clone(), there.then_some(&stored[..]))?;
        Ok(self.subs.find_mut(slot, |sub| sub.key == *key))
    }

    /// Takes in what the backend has of a key: a value or nothing.
    pub(super) fn take_in<K: Key>(
        &mut self,
        home: &Home<K, V>,
        key: M,
        stored: Option<&[u8]>,
    ) -> Result<(), StateError> {
        let read = stored.map(|bytes| home.coder.read_value(bytes)).transpose()?;
        let flags = if read.is_some() { STORED } else { 0 };
        let (value, touched) = read.map_or((None, None), |(value, touched)| (Some(value), touched));
        let sub = Sub { key, value, touched: touched.unwrap_or(i64::MIN), flags };
        self.subs.insert_unique(slot(&sub.key), sub, |sub| slot(&sub.key));
        Ok(())
    }

    /// Reads everything under the key that is not here yet.
    pub(super) fn complete<K: Key>(&mut self, home: &Home<K, V>, prefix: &[u8]) -> Result<(), StateError> {
        if self.whole {
            return Ok(());
        }
        let mut result = Ok(());
        home.backend.scan(prefix, &keyspace::after_prefix(prefix), &mut |key, value| {
            result = Ordered::decode::<M>(&key[prefix.len()..])
                .map_err(|e| home.coder.failed("decode a map's key", e))
                .and_then(|key| {
                    let here = self.subs.find(slot(&key), |sub| sub.key == key).is_some();
                    if here { Ok(()) } else { self.take_in(home, key, Some(value)) }
                });
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        result?;
        self.whole = true;
        Ok(())
    }

    /// Gives a key a value. It must have been looked for, or not matter.
    pub(super) fn put(&mut self, key: M, value: V, now: i64) {
        let slot = slot(&key);
        match self.subs.find_mut(slot, |sub| sub.key == key) {
            Some(sub) => {
                sub.value = Some(value);
                sub.touch(now);
            }
            None => {
                // Not whole: the backend may have it.
                let flags = if self.whole { DIRTY } else { DIRTY | STORED };
                let sub = Sub { key, value: Some(value), touched: now, flags };
                self.subs.insert_unique(slot, sub, |sub| self::slot(&sub.key));
            }
        }
    }

    /// Takes the value of a key away.
    pub(super) fn remove(&mut self, key: &M) {
        let slot = slot(key);
        match self.subs.find_entry(slot, |sub| sub.key == *key) {
            Ok(mut entry) => {
                if entry.get().flags & STORED == 0 && self.whole {
                    entry.remove();
                } else {
                    entry.get_mut().bury();
                }
            }
            Err(_) if self.whole => {}
            Err(_) => {
                let sub = Sub { key: key.clone(), value: None, touched: i64::MIN, flags: DIRTY | STORED };
                self.subs.insert_unique(slot, sub, |sub| self::slot(&sub.key));
            }
        }
    }

    /// Every entry that is here and has a value.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&M, &V)> {
        self.subs.iter().filter_map(|sub| Some((&sub.key, sub.value.as_ref()?)))
    }

    /// True when no disk need be asked for the entry of a key.
    pub(super) fn knows(&self, key: &M) -> bool {
        self.whole || self.subs.find(slot(key), |sub| sub.key == *key).is_some()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sub<M, V>> {
        self.subs.iter_mut().filter(|sub| sub.value.is_some())
    }
}

impl<M, V> Sub<M, V> {
    /// It was written or, where that counts, read.
    pub(super) fn touch(&mut self, now: i64) {
        self.touched = now;
        self.flags |= DIRTY;
    }

    /// When it was last touched, if that is kept.
    pub(super) fn millis(&self) -> Option<i64> {
        (self.touched != i64::MIN).then_some(self.touched)
    }

    /// It has no value any more.
    pub(super) fn bury(&mut self) {
        self.value = None;
        self.flags |= DIRTY;
    }
}

impl<K: Key, M: Key, V: State> Cell<K> for Bundle<M, V> {
    type Value = V;

    /// Nothing is read before it is known what is asked for.
    fn load(_: &Home<K, V>, _: &[u8], _: &mut Vec<u8>) -> Result<Option<Self>, StateError> {
        Ok(Some(Bundle { whole: false, ..Bundle::empty() }))
    }

    fn write(
        &self,
        home: &Home<K, V>,
        layout: Layout,
        key: &K,
        _: bool,
        out: &mut Writes,
    ) -> Result<(), StateError> {
        if self.void {
            Self::delete(home, layout, key, out)?;
        }
        for sub in self.subs.iter().filter(|sub| sub.flags & DIRTY != 0) {
            let bytes = |into: &mut Vec<u8>| {
                let group = home.coder.key(layout, key, into)?;
                home.coder.inner_key(&sub.key, into)?;
                Ok(group)
            };
            let touched = sub.millis();
            match &sub.value {
                Some(value) if !home.is_over(touched) => {
                    let group = out.batch.put_with(bytes, |into| home.coder.value(value, touched, into))?;
                    out.groups.add(group);
                }
                _ if sub.flags & STORED != 0 => drop(out.batch.delete_with(bytes)?),
                _ => {}
            }
        }
        Ok(())
    }

    fn delete(home: &Home<K, V>, layout: Layout, key: &K, out: &mut Writes) -> Result<(), StateError> {
        let mut prefix = Vec::new();
        home.coder.key(layout, key, &mut prefix)?;
        out.ranges.delete_range(&prefix, &keyspace::after_prefix(&prefix));
        Ok(())
    }

    fn written(&mut self, _: &Home<K, V>) -> After {
        self.subs.retain(|sub| {
            sub.flags = STORED;
            sub.value.is_some()
        });
        self.void = false;
        if self.subs.is_empty() { After::Forget } else { After::Keep }
    }

    fn copied(&self) -> Self {
        let mut copy = Bundle { void: false, ..self.clone() };
        // What is being deleted stays, without a value: the backend may still have it.
        copy.subs.iter_mut().for_each(|sub| sub.flags = STORED);
        copy
    }

    fn not_written(&mut self, frozen: Option<&Self>) {
        let Some(frozen) = frozen else {
            let dirty = self.subs.iter_mut().filter(|sub| sub.flags & DIRTY != 0);
            return dirty.for_each(|sub| sub.flags |= STORED);
        };
        self.void |= frozen.void;
        for old in frozen.subs.iter().filter(|sub| sub.flags & DIRTY != 0) {
            match self.subs.find_mut(slot(&old.key), |sub| sub.key == old.key) {
                Some(sub) => sub.flags |= DIRTY | STORED,
                None => {
                    let sub = Sub { flags: DIRTY | STORED, ..old.clone() };
                    self.subs.insert_unique(slot(&sub.key), sub, |sub| slot(&sub.key));
                }
            }
        }
    }

    fn replaces_deleted(&mut self) {
        self.whole = true;
        self.void = true;
    }

    fn heap(&self, home: &Home<K, V>, layout: Layout, key: &K) -> usize {
        let table = self.subs.allocation_size();
        if !needs_drop::<K>() && !needs_drop::<M>() && !needs_drop::<V>() {
            return table;
        }
        let mut bytes = Vec::new();
        let each = self.subs.iter().next().map_or(0, |sub| {
            let _ = Ordered::encode(&sub.key, &mut bytes);
            let _ = sub.value.as_ref().map(|value| home.coder.value(value, None, &mut bytes));
            bytes.len() + size_of::<usize>() * 2
        });
        bytes.clear();
        let _ = home.coder.key(layout, key, &mut bytes);
        table + bytes.len() + each * self.subs.len()
    }
}
