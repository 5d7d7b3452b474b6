//! `Spaces`: maps by namespace over one table, for windows: each is opened, filled, drained and forgotten as a whole.
// HOT: `map` is called per record: one index.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::cache::Cache;
use super::cell::One;
use super::classes::Classes;
use super::generation::{Entry, Groups};
use super::home::Home;
use super::spec::Table;
use super::state_map::StateMap;
use super::{Key, KeyedState, State};
use crate::codec::CodecId;
use crate::error::StateError;
use crate::key::KeyGroup;
use crate::keyspace::{self, PREFIX};
use crate::store::{Snapshot, Store};

/// An open namespace, until it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Space(usize);

/// A [`StateMap`] per namespace, in the order of the namespaces. A namespace that is opened and closed between two barriers
/// leaves nothing in the backend.
///
/// *Order*: as for a [`StateMap`], with [`batch_end`](Self::batch_end) and [`freeze`](Self::freeze) called here instead of on
/// each map.
pub struct Spaces<K, V> {
    home: Arc<Home<K, V>>,
    open: BTreeMap<i64, Space>,
    maps: Vec<Slot<K, V>>,
    free: Vec<Space>,
    /// Those that want a batch end: they were asked for since the last one, or are being written.
    busy: Vec<Space>,
    /// Emptied maps of which something may still be in the backend.
    closed: BTreeMap<i64, StateMap<K, V>>,
    /// The emptied table of the map that was closed last: the next one is likely to need its memory.
    spare: Option<Classes<Entry<K, One<V, ()>>>>,
}

struct Slot<K, V> {
    /// None while the place is free.
    map: Option<StateMap<K, V>>,
    /// It is in `busy`.
    busy: bool,
}

impl<K, V> fmt::Debug for Spaces<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spaces({:?} open, {} closing)", self.open.keys(), self.closed.len())
    }
}

impl Store {
    /// Declares a table and gives its maps by namespace; those that a checkpoint has kept are open already.
    ///
    /// *Blocking*: as [`register`](Self::register); reads a key per restored namespace and group.
    ///
    /// # Errors
    /// As [`state_map`](Self::state_map).
    pub fn spaces<K: Key, V: State>(&self, table: Table<K, V>) -> Result<Spaces<K, V>, StateError> {
        let home = Home::without_ttl(self, &table, CodecId::NAMESPACED)?;
        let found = if home.fresh { BTreeMap::new() } else { stored(self, &home)? };
        let mut spaces = Spaces {
            home,
            open: BTreeMap::new(),
            maps: Vec::new(),
            free: Vec::new(),
            busy: Vec::new(),
            closed: BTreeMap::new(),
            spare: None,
        };
        for (namespace, groups) in found {
            let cache = Cache::new(spaces.home.clone(), Some(namespace), groups);
            spaces.place(namespace, StateMap { cache });
        }
        Ok(spaces)
    }
}

/// The namespaces that the backend holds keys of, and in which groups.
fn stored<K: Key, V: State>(store: &Store, home: &Home<K, V>) -> Result<BTreeMap<i64, Groups>, StateError> {
    let mut found = BTreeMap::<i64, Groups>::new();
    for group in store.key_groups() {
        let prefix = keyspace::prefix(KeyGroup(group), home.table);
        let to = keyspace::after_prefix(&prefix);
        let mut from = prefix.to_vec();
        loop {
            let mut next = None;
            home.backend.scan(&from, &to, &mut |key, _| {
                next = key.get(PREFIX..PREFIX + 8).and_then(|bytes| bytes.try_into().ok());
                ControlFlow::Break(())
            })?;
            let Some(bytes) = next else { break };
            let namespace = keyspace::namespace_of(bytes);
            found.entry(namespace).or_default().add(group);
            from.truncate(PREFIX);
            let Some(behind) = namespace.checked_add(1) else { break };
            from.extend_from_slice(&keyspace::namespace(behind));
        }
    }
    Ok(found)
}

impl<K: Key, V: State> Spaces<K, V> {
    /// The open namespaces, in order.
    pub fn namespaces(&self) -> impl DoubleEndedIterator<Item = (i64, Space)> + '_ {
        self.open.iter().map(|(namespace, space)| (*namespace, *space))
    }

    /// The namespace, if it is open.
    pub fn get(&self, namespace: i64) -> Option<Space> {
        self.open.get(&namespace).copied()
    }

    /// The namespace, opened if it is not.
    pub fn open(&mut self, namespace: i64) -> Space {
        if let Some(space) = self.open.get(&namespace) {
            return *space;
        }
        let map = self.closed.remove(&namespace).unwrap_or_else(|| {
            let mut cache = Cache::new(self.home.clone(), Some(namespace), Groups::default());
            if let Some(spare) = self.spare.take() {
                cache.live = spare;
            }
            StateMap { cache }
        });
        self.place(namespace, map)
    }

    fn place(&mut self, namespace: i64, map: StateMap<K, V>) -> Space {
        let space = self.free.pop().unwrap_or_else(|| {
            self.maps.push(Slot { map: None, busy: false });
            Space(self.maps.len() - 1)
        });
        self.maps[space.0].map = Some(map);
        self.open.insert(namespace, space);
        self.is_busy(space);
        space
    }

    /// It wants a batch end.
    #[inline]
    fn is_busy(&mut self, space: Space) -> &mut Slot<K, V> {
        let slot = &mut self.maps[space.0];
        if !slot.busy {
            slot.busy = true;
            self.busy.push(space);
        }
        slot
    }

    /// The map of a namespace.
    ///
    /// # Panics
    /// When the namespace was closed.
    #[inline]
    pub fn map(&mut self, space: Space) -> &mut StateMap<K, V> {
        self.is_busy(space).map.as_mut().expect("a namespace is used while it is open")
    }

    /// Closes a namespace and forgets what is in it. Asks no disk.
    pub fn close(&mut self, namespace: i64) {
        let Some(space) = self.open.remove(&namespace) else { return };
        let Some(mut map) = self.maps[space.0].map.take() else { return };
        self.free.push(space);
        // Nobody counts it: what takes much of the budget is not kept.
        let live = std::mem::take(&mut map.cache.live);
        self.spare = (live.bytes() <= self.home.ledger.limit / 8).then(|| live.emptied());
        map.clear();
        if !map.cache.has_left_no_trace() {
            self.closed.insert(namespace, map);
        }
    }

    /// Ends a batch: see [`StateMap::batch_end`]. Costs nothing for maps that were not used, while memory is not short.
    ///
    /// # Errors
    /// As there.
    pub fn batch_end(&mut self) -> Result<(), StateError> {
        if self.home.ledger.is_over() {
            // Every one has to make room.
            for at in 0..self.maps.len() {
                self.is_busy(Space(at));
            }
        }
        let Spaces { busy, maps, .. } = self;
        let mut ended = Ok(());
        busy.retain(|space| {
            let slot = &mut maps[space.0];
            slot.busy = slot.map.as_mut().is_some_and(|map| {
                ended = std::mem::replace(&mut ended, Ok(())).and_then(|()| map.batch_end());
                map.cache.is_settling()
            });
            slot.busy
        });
        ended?;
        let mut deleted = Ok(());
        self.closed.retain(|_, map| {
            deleted = std::mem::replace(&mut deleted, Ok(())).and_then(|()| map.cache.delete_if_settled());
            !map.cache.has_left_no_trace()
        });
        deleted
    }

    /// Adds to the snapshot what changed since the last barrier: see [`StateMap::freeze`].
    ///
    /// # Errors
    /// As there.
    pub fn freeze(&mut self, snapshot: &mut Snapshot) -> Result<(), StateError> {
        snapshot.hold(&self.home.ledger).map_err(|cancelled| self.home.cancelled(cancelled))?;
        for at in 0..self.maps.len() {
            let Some(map) = &mut self.maps[at].map else { continue };
            map.freeze(snapshot)?;
            if map.cache.is_settling() {
                self.is_busy(Space(at));
            }
        }
        self.closed.values_mut().try_for_each(|map| map.freeze(snapshot))
    }
}

impl<K: Key, V: State> KeyedState for Spaces<K, V> {
    fn batch_end(&mut self) -> Result<(), StateError> {
        self.batch_end()
    }
    fn freeze(&mut self, snapshot: &mut Snapshot) -> Result<(), StateError> {
        self.freeze(snapshot)
    }
}

#[cfg(test)]
#[path = "spaces_tests.rs"]
mod tests;
