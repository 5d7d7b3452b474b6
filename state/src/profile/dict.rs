//! Dictionaries: user ids and tag values become dense numbers, added by one writer and read without locks.

use super::heap::Heap;
use super::user::UserId;
use crate::key::mix;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The hasher of every table here: a few multiplies for a number, XXH3 for a text.
///
/// It is seeded per process, since ids and values come from outside and may be chosen to collide.
#[derive(Debug, Clone)]
pub(crate) struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Self {
        static SEED: OnceLock<u64> = OnceLock::new();
        Self(*SEED.get_or_init(|| RandomState::new().hash_one(0u8)))
    }
}

impl BuildHasher for Seeded {
    type Hasher = Folding;
    #[inline]
    fn build_hasher(&self) -> Folding {
        Folding(self.0)
    }
}

/// The state of [`Seeded`] over one key.
#[derive(Debug)]
pub(crate) struct Folding(u64);

impl Hasher for Folding {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }
    /// Ends a `str`; nothing here hashes two texts in a row, so it needs no mixing.
    #[inline]
    fn write_u8(&mut self, v: u8) {
        self.0 ^= u64::from(v);
    }
    #[inline]
    fn write_u32(&mut self, v: u32) {
        self.0 = mix(self.0, u64::from(v));
    }
    #[inline]
    fn write_u64(&mut self, v: u64) {
        self.0 = mix(self.0, v);
    }
    #[inline]
    fn write_isize(&mut self, v: isize) {
        self.0 ^= v as u64;
    }
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Names by number and numbers by name. Numbers are dense, in order of arrival, never reused.
///
/// One writer adds; readers look up at any time without waiting. A reader that pinned an older version may meet a number
/// newer than that version: it then finds nothing under it.
pub(crate) struct Dict<N> {
    numbers: papaya::HashMap<N, u32, Seeded>,
    names: boxcar::Vec<N>,
    /// What the names own on the heap, summed up as they come: to visit all of them takes too long.
    owned: AtomicUsize,
}

impl<N> fmt::Debug for Dict<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dict").field("len", &self.names.count()).finish()
    }
}

/// User id to local ordinal, for one key group.
pub(crate) type UserDict = Dict<UserId>;
/// Value to value number, for one tag in one key group.
pub(crate) type ValueDict = Dict<Arc<str>>;

/// An estimate: the two tables do not tell how much room they keep. Table slots are taken to be a power of two, half to all in
/// use at three quarters, of a pointer and a byte; each entry lies behind its pointer.
impl<N: Hash + Eq + Clone + Heap> Heap for Dict<N> {
    fn heap(&self) -> usize {
        let names = self.names.count();
        let slots = if names == 0 { 0 } else { (names * 4 / 3).next_power_of_two() };
        let numbers = slots * (size_of::<usize>() + 1) + names * size_of::<(N, u32)>();
        numbers + names * size_of::<(N, bool)>() + self.owned.load(Ordering::Relaxed)
    }
}

impl<N: Hash + Eq + Clone> Default for Dict<N> {
    fn default() -> Self {
        Self {
            numbers: papaya::HashMap::with_hasher(Seeded::default()),
            names: boxcar::Vec::new(),
            owned: AtomicUsize::new(0),
        }
    }
}

impl<N: Hash + Eq + Clone + Heap> Dict<N> {
    /// An empty one with room for `n` names.
    pub(crate) fn with_capacity(n: usize) -> Self {
        Self {
            numbers: papaya::HashMap::with_capacity_and_hasher(n, Seeded::default()),
            names: boxcar::Vec::with_capacity(n),
            owned: AtomicUsize::new(0),
        }
    }

    /// How many names it has.
    pub(crate) fn len(&self) -> u32 {
        self.names.count() as u32
    }

    #[inline]
    pub(crate) fn number<Q>(&self, name: &Q) -> Option<u32>
    where
        Q: Hash + hashbrown::Equivalent<N> + papaya::Equivalent<N> + ?Sized,
    {
        self.numbers.pin().get(name).copied()
    }

    #[inline]
    pub(crate) fn name(&self, number: u32) -> Option<&N> {
        self.names.get(number as usize)
    }

    /// The numbers and names there are now, in order.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u32, &N)> {
        self.names.iter().map(|(number, name)| (number as u32, name))
    }

    /// Adds a name that is not there. Only the one writer calls this.
    pub(crate) fn add(&self, name: N) -> u32 {
        self.owned.fetch_add(name.heap(), Ordering::Relaxed);
        // The name goes in first: whoever finds the number also finds the name.
        let number = self.names.push(name.clone()) as u32;
        self.numbers.pin().insert(name, number);
        number
    }
}

impl ValueDict {
    /// The number of a value, given now if it is new.
    #[inline]
    pub(crate) fn intern(&self, value: &str) -> u32 {
        self.number(value).unwrap_or_else(|| self.add(value.into()))
    }
}
