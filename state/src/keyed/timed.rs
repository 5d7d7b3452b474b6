//! Reading and writing values that may expire: what has is as if it were not there.

use super::cache::Cache;
use super::cell::{One, Stamp};
use super::classes::Place;
use super::home::Home;
use super::{Key, State};
use crate::error::StateError;
use crate::ttl::{Ttl, TtlTouch};

impl<K, V> Home<K, V> {
    /// Reading a value lets it live on.
    #[inline]
    pub(super) fn reads_touch(&self) -> bool {
        matches!(self.ttl, Some(Ttl { touch: TtlTouch::ReadAndWrite, .. }))
    }
}

impl<K: Key, V: State> Cache<K, One<V, i64>, V> {
    /// Where the key is, if it has not expired. Counts as a read.
    #[inline]
    pub(super) fn find_alive(&mut self, slot: u64, key: &K) -> Result<Option<Place>, StateError> {
        let place = self.find(slot, key)?;
        match place {
            Some(place) if self.home.ttl.is_some() => Ok(self.read_at(slot, key, place)),
            _ => Ok(place),
        }
    }

    /// The place again, unless what is there has expired.
    fn read_at(&mut self, slot: u64, key: &K, place: Place) -> Option<Place> {
        if self.home.is_over(self.at(place).cell.touched.millis()) {
            self.remove(slot, key);
            return None;
        }
        if self.home.reads_touch() {
            let now = self.home.now();
            self.at_mut(place).cell.touched = now;
        }
        Some(place)
    }

    /// The value at a place. Counts as a write.
    #[inline]
    pub(super) fn write_at(&mut self, place: Place) -> &mut V {
        let now = self.home.now();
        let One { value, touched } = &mut self.at_mut(place).cell;
        *touched = now;
        value
    }

    /// The value of the key, made if there is none that is alive. Counts as a write.
    #[inline]
    pub(super) fn write_or_insert_with(
        &mut self,
        slot: u64,
        key: &K,
        value: impl FnOnce() -> V,
    ) -> Result<&mut V, StateError> {
        let place = match self.find_alive(slot, key)? {
            Some(place) => place,
            None => self.insert(slot, key.clone(), One::new(value(), self.home.now()))?,
        };
        Ok(self.write_at(place))
    }

    /// Gives the key a value, whatever it had. Asks no disk.
    pub(super) fn put(&mut self, slot: u64, key: &K, value: V) -> Result<(), StateError> {
        match self.find_in_memory(slot, key) {
            Some(place) => *self.write_at(place) = value,
            None => drop(self.insert(slot, key.clone(), One::new(value, self.home.now()))?),
        }
        Ok(())
    }
}
