//! `Cell`: what a cache keeps under a key, and how that lies in the backend: as one value, or as many.

use std::mem::{needs_drop, size_of};

use super::coder::Layout;
use super::generation::Groups;
use super::home::Home;
use super::weigh::weigh;
use super::{Key, State};
use crate::backend::WriteBatch;
use crate::error::StateError;

/// What becomes of a cell once the generation it was frozen in is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It is clean now.
    Keep,
    /// There is nothing in it, nor in the backend.
    Forget,
    /// It has expired: its key is to be deleted.
    Bury,
}

/// What is kept under a key. Its own flags say what of it must be written; the entry around it says whether anything must.
pub(crate) trait Cell<K: Key>: Clone + Send + 'static {
    /// The type of the values in the backend.
    type Value: State;
    /// It, or its key, may own memory outside the table.
    const OWNS: bool;
    /// What it owns may change when it does.
    const GROWS: bool;

    /// What the backend has under a key, whose bytes these are; none when it has nothing.
    fn load(
        home: &Home<K, Self::Value>,
        key: &[u8],
        scratch: &mut Vec<u8>,
    ) -> Result<Option<Self>, StateError>;

    /// Writes what must be. `stored`: the backend may hold the key.
    fn write(
        &self,
        home: &Home<K, Self::Value>,
        layout: Layout,
        key: &K,
        stored: bool,
        out: &mut Writes,
    ) -> Result<(), StateError>;

    /// As [`write`](Self::write), passing on what is full: for what may be large.
    fn write_all(
        &self,
        home: &Home<K, Self::Value>,
        layout: Layout,
        key: &K,
        stored: bool,
        out: &mut Writes,
        pass_on: &mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        self.write(home, layout, key, stored, out)?;
        out.flush_if_full(pass_on)
    }

    /// The same for who writes it, when that takes long and this does not; what it is lent from stays as it is meanwhile.
    fn lend(&mut self) -> Option<Self> {
        None
    }

    /// Deletes all that is under a key.
    fn delete(
        home: &Home<K, Self::Value>,
        layout: Layout,
        key: &K,
        out: &mut Writes,
    ) -> Result<(), StateError>;

    /// It was written.
    fn written(&mut self, home: &Home<K, Self::Value>) -> After;

    /// A copy of a frozen cell, with nothing to write, which the backend may lack or hold.
    fn copied(&mut self) -> Self;

    /// It was not written, or the frozen cell was not that this is a copy of: what was to be written still is, and part of it
    /// may be in the backend.
    fn not_written(&mut self, frozen: Option<&Self>);

    /// It is under a key whose deletion was not yet written.
    fn replaces_deleted(&mut self);

    /// About how many bytes it and its key have outside the table.
    fn weight(&self, key: &K) -> usize;

    /// Does some of the work that freezing has put off.
    fn tidy(&mut self, _: &Home<K, Self::Value>) {}
}

/// Writes on their way to the backend.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// These come first.
    pub(super) ranges: WriteBatch,
    pub(super) batch: WriteBatch,
    /// Where something was put.
    pub(super) groups: Groups,
}

impl Writes {
    /// A batch is written when it has reached this many bytes.
    const FULL: usize = 1 << 20;

    pub(super) fn flush(
        &mut self,
        out: &mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        if !self.ranges.is_empty() {
            out(&self.ranges)?;
            self.ranges.clear();
        }
        if !self.batch.is_empty() {
            self.batch.sort();
            out(&self.batch)?;
            self.batch.clear();
        }
        Ok(())
    }

    pub(super) fn flush_if_full(
        &mut self,
        out: &mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        if self.is_full() { self.flush(out) } else { Ok(()) }
    }

    pub(super) fn is_full(&self) -> bool {
        self.ranges.bytes() + self.batch.bytes() >= Self::FULL
    }
}

/// When a value was last touched: `i64` where that is kept, `()` where it takes no room.
pub(crate) trait Stamp: Copy + Send + 'static {
    fn at(now: i64) -> Self;
    fn millis(self) -> Option<i64>;
    /// Of a stored value that may have none.
    fn stored(touched: Option<i64>) -> Self;
}

impl Stamp for () {
    fn at(_: i64) {}
    fn millis(self) -> Option<i64> {
        None
    }
    fn stored(_: Option<i64>) {}
}

/// `i64::MIN` where the value has no time: there is no TTL, or its clock had not begun.
impl Stamp for i64 {
    #[inline]
    fn at(now: i64) -> i64 {
        now
    }
    #[inline]
    fn millis(self) -> Option<i64> {
        (self != i64::MIN).then_some(self)
    }
    fn stored(touched: Option<i64>) -> i64 {
        touched.unwrap_or(i64::MIN)
    }
}

/// One value, under its key in the backend.
#[derive(Clone, Debug)]
pub(crate) struct One<V, S> {
    pub(super) value: V,
    pub(super) touched: S,
}

impl<V: State, S: Stamp> One<V, S> {
    pub(super) fn new(value: V, now: i64) -> Self {
        One { value, touched: S::at(now) }
    }

    /// The value as it is in the backend.
    pub(super) fn read<K: Key>(home: &Home<K, V>, bytes: &[u8]) -> Result<Self, StateError> {
        let (value, touched) = home.coder.read_value(bytes)?;
        Ok(One { value, touched: S::stored(touched) })
    }
}

impl<K: Key, V: State, S: Stamp> Cell<K> for One<V, S> {
    type Value = V;
    const OWNS: bool = needs_drop::<K>() || needs_drop::<V>();
    const GROWS: bool = needs_drop::<V>();

    fn load(home: &Home<K, V>, key: &[u8], scratch: &mut Vec<u8>) -> Result<Option<Self>, StateError> {
        if home.backend.get(key, scratch)? { Self::read(home, scratch).map(Some) } else { Ok(None) }
    }

    fn write(
        &self,
        home: &Home<K, V>,
        layout: Layout,
        key: &K,
        stored: bool,
        out: &mut Writes,
    ) -> Result<(), StateError> {
        let touched = self.touched.millis();
        if home.is_over(touched) {
            return if stored { Self::delete(home, layout, key, out) } else { Ok(()) };
        }
        let bytes = |into: &mut Vec<u8>| home.coder.key(layout, key, into);
        let group = out.batch.put_with(bytes, |into| home.coder.value(&self.value, touched, into))?;
        out.groups.add(group);
        Ok(())
    }

    fn delete(home: &Home<K, V>, layout: Layout, key: &K, out: &mut Writes) -> Result<(), StateError> {
        out.batch.delete_with(|into| home.coder.key(layout, key, into)).map(drop)
    }

    fn written(&mut self, home: &Home<K, V>) -> After {
        if home.is_over(self.touched.millis()) { After::Bury } else { After::Keep }
    }

    fn copied(&mut self) -> Self {
        self.clone()
    }

    fn not_written(&mut self, _: Option<&Self>) {}

    fn replaces_deleted(&mut self) {}

    fn weight(&self, key: &K) -> usize {
        let (mut all, mut inside) = (0, 0);
        if needs_drop::<K>() {
            (all, inside) = (weigh(key), size_of::<K>());
        }
        if needs_drop::<V>() {
            (all, inside) = (all + weigh(&self.value), inside + size_of::<V>());
        }
        all.saturating_sub(inside)
    }
}
