//! `Bundle`: a map under a key, in the backend one entry per key of its own: of a large map only what is asked for is read.

use std::mem::{needs_drop, size_of};
use std::ops::ControlFlow;

use super::cell::{After, Cell, Writes};
use super::coder::Layout;
use super::home::Home;
use super::layer::{DIRTY, STORED, Sub, slot};
use super::layers::Layers;
use super::weigh::weigh;
use super::{Key, State};
use crate::backend::WriteBatch;
use crate::codec::{Codec, Ordered};
use crate::error::StateError;
use crate::keyspace;

/// So many buckets of frozen layers are merged again at the end of a batch that has touched the map.
const TIDY: usize = if cfg!(test) { 3 } else { 2_048 };

/// What is in memory of a map.
#[derive(Clone, Debug)]
pub(crate) struct Bundle<M, V> {
    subs: Layers<M, V>,
    /// What is not here does not exist, or counts no more.
    whole: bool,
    /// The backend may hold what is not here, though it counts no more.
    littered: bool,
    /// Whatever the backend has under the key is to be deleted before anything is put.
    void: bool,
}

impl<M: Key, V: State> Bundle<M, V> {
    /// A map with nothing in it.
    pub(super) fn empty() -> Self {
        Bundle { subs: Layers::new(), whole: true, littered: false, void: false }
    }

    /// The entry of a key, read from the backend if need be. `prefix`: the bytes of the key that the map is under.
    pub(super) fn find<K: Key>(
        &mut self,
        home: &Home<K, V>,
        prefix: impl FnOnce(&mut Vec<u8>) -> Result<(), StateError>,
        key: &M,
    ) -> Result<Option<&Sub<M, V>>, StateError> {
        let slot = slot(key);
        if !self.whole && self.subs.find(slot, key).is_none() {
            let (mut bytes, mut stored) = (Vec::with_capacity(48), Vec::new());
            prefix(&mut bytes)?;
            home.coder.inner_key(key, &mut bytes)?;
            let there = home.backend.get(&bytes, &mut stored)?;
            self.take_in(home, key.clone(), there.then_some(&stored[..]))?;
        }
        Ok(self.subs.find(slot, key))
    }

    /// The entry of a key that was found, to be changed.
    pub(super) fn change(&mut self, key: &M) -> Option<&mut Sub<M, V>> {
        self.subs.lend(slot(key), key)
    }

    /// Lets an entry that was found live on.
    pub(super) fn touch(&mut self, key: &M, now: i64) {
        if let Some(sub) = self.subs.find_mut(slot(key), key) {
            sub.touch(now);
        }
    }

    /// Takes in what the backend has of a key that nothing is known of: a value or nothing.
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
        self.subs.top_mut().add(slot(&sub.key), sub);
        Ok(())
    }

    /// Reads everything under the key that is not here yet.
    pub(super) fn complete<K: Key>(&mut self, home: &Home<K, V>, prefix: &[u8]) -> Result<(), StateError> {
        self.subs.bring_all_up();
        if self.whole {
            return Ok(());
        }
        let mut result = Ok(());
        home.backend.scan(prefix, &keyspace::after_prefix(prefix), &mut |key, value| {
            result = Ordered::decode::<M>(&key[prefix.len()..])
                .map_err(|e| home.coder.failed("decode a map's key", e))
                .and_then(|key| {
                    let here = self.subs.find(slot(&key), &key).is_some();
                    if here { Ok(()) } else { self.take_in(home, key, Some(value)) }
                });
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        result?;
        self.whole = true;
        Ok(())
    }

    /// True when there is no entry that is alive. Reads of the backend what it takes to know, and keeps nothing of that.
    pub(super) fn is_empty<K: Key>(&mut self, home: &Home<K, V>, prefix: &[u8]) -> Result<bool, StateError> {
        let alive = |sub: &Sub<M, V>| sub.value.is_some() && !home.is_over(sub.millis());
        // What is being written hides what is below it, and is not looked at before it is brought up.
        if !self.subs.is_being_written() && self.subs.iter().any(alive) {
            return Ok(false);
        }
        self.subs.bring_all_up();
        if self.whole || self.subs.iter().any(alive) {
            return Ok(!self.subs.iter().any(alive));
        }
        let (mut found, mut result) = (false, Ok(()));
        home.backend.scan(prefix, &keyspace::after_prefix(prefix), &mut |key, value| {
            let inner = Ordered::decode::<M>(&key[prefix.len()..]);
            let stored = inner.map_err(|e| home.coder.failed("decode a map's key", e)).and_then(|inner| {
                let here = self.subs.find(slot(&inner), &inner).is_some();
                Ok(!here && !home.is_over(home.coder.read_value(value)?.1))
            });
            match stored {
                Ok(stored) => found = stored,
                Err(error) => result = Err(error),
            }
            if found || result.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        result.map(|()| !found)
    }

    /// What an entry of this key that is not on top may have elsewhere.
    fn elsewhere(&self, slot: u64, key: &M) -> u8 {
        // Not whole: the backend may have it.
        let stored = !self.whole || self.littered || self.subs.is_below(slot, key);
        if stored { STORED } else { 0 }
    }

    /// Gives a key a value. It must have been looked for, or not matter.
    pub(super) fn put(&mut self, key: M, value: V, now: i64) {
        let slot = slot(&key);
        let top = self.subs.top_mut();
        if top.find(slot, &key).is_some() {
            if let Some(sub) = top.set(slot, &key, Some(value)) {
                sub.touch(now);
            }
            return;
        }
        let flags = DIRTY | self.elsewhere(slot, &key);
        self.subs.top_mut().add(slot, Sub { key, value: Some(value), touched: now, flags });
    }

    /// Takes the value of a key away.
    pub(super) fn remove(&mut self, key: &M) {
        let slot = slot(key);
        let top = self.subs.top_mut();
        match top.find(slot, key).map(|sub| sub.is(STORED)) {
            Some(false) if self.whole => drop(top.remove(slot, key)),
            Some(_) => {
                if let Some(sub) = top.set(slot, key, None) {
                    sub.flags |= DIRTY;
                }
            }
            None => {
                if self.elsewhere(slot, key) & STORED != 0 {
                    let flags = DIRTY | STORED;
                    let sub = Sub { key: key.clone(), value: None, touched: i64::MIN, flags };
                    self.subs.top_mut().add(slot, sub);
                }
            }
        }
    }

    /// Every entry that is here and has a value, once [`complete`](Self::complete) was called.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&M, &V)> {
        self.subs.iter().filter_map(|sub| Some((&sub.key, sub.value.as_ref()?)))
    }

    /// True when no disk need be asked for the entry of a key.
    pub(super) fn knows(&mut self, key: &M) -> bool {
        self.whole || self.subs.find(slot(key), key).is_some()
    }

    /// Takes the values away that have expired, and lets the others live on if reading does that; true when anything changed.
    pub(super) fn read_all<K: Key>(&mut self, home: &Home<K, V>) -> bool {
        let over = |sub: &&Sub<M, V>| sub.value.is_some() && home.is_over(sub.millis());
        let expired: Vec<M> = self.subs.iter().filter(over).map(|sub| sub.key.clone()).collect();
        expired.iter().for_each(|key| self.remove(key));
        if home.reads_touch() {
            let now = home.now();
            let alive: Vec<M> = self.iter().map(|(key, _)| key.clone()).collect();
            alive.iter().for_each(|key| self.touch(key, now));
            return !(expired.is_empty() && alive.is_empty());
        }
        !expired.is_empty()
    }

    /// Writes what must be of the entries from a bucket of the top layer on, some of them; gives the bucket to go on from.
    fn write_some<K: Key>(
        &self,
        home: &Home<K, V>,
        layout: Layout,
        key: &K,
        from: usize,
        out: &mut Writes,
    ) -> Result<Option<usize>, StateError> {
        /// Whoever reads the map meanwhile waits for no more of them.
        const SOME: usize = 512;
        if self.void && from == 0 {
            Self::delete(home, layout, key, out)?;
        }
        self.subs.with_top(|top| {
            for (seen, (next, sub)) in top.from(from).enumerate() {
                if sub.is(DIRTY) {
                    write_one(home, layout, key, sub, out)?;
                }
                if seen == SOME || out.is_full() {
                    return Ok(Some(next));
                }
            }
            Ok(None)
        })
    }
}

/// Writes one entry, or deletes it.
fn write_one<K: Key, M: Key, V: State>(
    home: &Home<K, V>,
    layout: Layout,
    key: &K,
    sub: &Sub<M, V>,
    out: &mut Writes,
) -> Result<(), StateError> {
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
        _ if sub.is(STORED) => drop(out.batch.delete_with(bytes)?),
        _ => {}
    }
    Ok(())
}

impl<K: Key, M: Key, V: State> Cell<K> for Bundle<M, V> {
    type Value = V;
    const OWNS: bool = true;
    const GROWS: bool = true;

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
        let mut from = Some(0);
        while let Some(bucket) = from {
            from = self.write_some(home, layout, key, bucket, out)?;
        }
        Ok(())
    }

    fn write_all(
        &self,
        home: &Home<K, V>,
        layout: Layout,
        key: &K,
        _: bool,
        out: &mut Writes,
        pass_on: &mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let mut from = Some(0);
        while let Some(bucket) = from {
            from = self.write_some(home, layout, key, bucket, out)?;
            out.flush_if_full(pass_on)?;
        }
        Ok(())
    }

    fn lend(&mut self) -> Option<Self> {
        let Bundle { whole, littered, void, .. } = *self;
        (!self.subs.is_small()).then(|| Bundle { subs: self.subs.share_top(), whole, littered, void })
    }

    fn delete(home: &Home<K, V>, layout: Layout, key: &K, out: &mut Writes) -> Result<(), StateError> {
        let mut prefix = Vec::new();
        home.coder.key(layout, key, &mut prefix)?;
        out.ranges.delete_range(&prefix, &keyspace::after_prefix(&prefix));
        Ok(())
    }

    fn written(&mut self, _: &Home<K, V>) -> After {
        self.void = false;
        if self.subs.is_small() {
            self.subs.top_mut().retain(|sub| {
                sub.flags = sub.flags & !DIRTY | STORED;
                sub.value.is_some()
            });
        } else {
            self.subs.push_down();
            // A key that is not seen again is not looked at again either: what was removed must not stay.
            self.littered |= self.subs.tidy(TIDY.min(256), None::<fn(Option<i64>) -> bool>);
        }
        if self.subs.is_empty() { After::Forget } else { After::Keep }
    }

    fn copied(&mut self) -> Self {
        let Bundle { whole, littered, .. } = *self;
        if !self.subs.is_small() {
            return Bundle { subs: self.subs.share(), whole, littered, void: false };
        }
        let mut copy = Bundle { void: false, ..self.clone() };
        // What is being deleted stays, without a value: the backend may still have it.
        copy.subs.top_mut().iter_mut().for_each(|sub| sub.flags = sub.flags & !DIRTY | STORED);
        copy
    }

    fn not_written(&mut self, frozen: Option<&Self>) {
        let Some(frozen) = frozen else {
            let dirty = self.subs.top_mut().iter_mut().filter(|sub| sub.is(DIRTY));
            return dirty.for_each(|sub| sub.flags |= STORED);
        };
        self.void |= frozen.void;
        let top = self.subs.top_mut();
        frozen.subs.with_top(|old| {
            for old in old.iter().filter(|sub| sub.is(DIRTY)) {
                let slot = slot(&old.key);
                match top.find_mut(slot, &old.key) {
                    Some(sub) => sub.flags |= DIRTY | STORED,
                    None => top.add(slot, Sub { flags: DIRTY | STORED, ..old.clone() }),
                }
            }
        });
    }

    fn replaces_deleted(&mut self) {
        self.whole = true;
        self.void = true;
    }

    fn weight(&self, key: &K) -> usize {
        self.subs.weight() + if needs_drop::<K>() { weigh(key).saturating_sub(size_of::<K>()) } else { 0 }
    }

    fn tidy(&mut self, home: &Home<K, V>) {
        let is_over = home.ttl.map(|_| move |touched: Option<i64>| home.is_over(touched));
        self.littered |= self.subs.tidy(TIDY, is_over);
    }
}
