//! `Tour`: reads everything in a map, some entries at a time, so that nothing is held while they are used.

use std::ops::{ControlFlow, Range};

use super::cache::{Cache, slot};
use super::cell::One;
use super::classes::{Cursor, Walk};
use super::generation::SHADOWED;
use super::{Key, State};
use crate::error::StateError;
use crate::key::{KeyGroup, key_hash};
use crate::keyspace;

/// How far one has come through a map: first what is in memory goes, then the rest in the order of keys.
#[derive(Debug, Default)]
pub struct Tour {
    begun: bool,
    cursors: [Cursor; 2],
    /// How many of the live and of the settled entries are still to come.
    left: [usize; 2],
    /// Class and bucket among the frozen ones.
    frozen: (usize, usize),
    /// Keys of the backend below this one are done.
    after: Vec<u8>,
    /// Which key groups it goes to, of how many; all, where it is not said.
    only: Option<(Range<u16>, u16)>,
}

impl Tour {
    /// A tour of the keys of some key groups, of so many that there are. What is in memory is looked through for them; of the backend nothing
    /// else is read.
    pub fn of_groups(these: Range<u16>, of: u16) -> Self {
        Tour { only: Some((these, of)), ..Tour::default() }
    }
}

/// It is one of these.
fn is_of<K: Key>(only: &Option<(Range<u16>, u16)>, key: &K) -> bool {
    only.as_ref().is_none_or(|(these, of)| these.contains(&key_hash(key).group(*of).0))
}

impl<K: Key, V: State> Cache<K, One<V, ()>, V> {
    /// Visits about `most` entries that the tour has not come to, fewer where it only goes to some; false when those were the last.
    pub(super) fn visit_some(
        &mut self,
        tour: &mut Tour,
        most: usize,
        mut visit: impl FnMut(&K, &V),
    ) -> Result<bool, StateError> {
        if !tour.begun {
            self.settle();
            self.thaw_some(usize::MAX);
            self.bury_popped();
            tour.begun = true;
            tour.left = [self.live.len(), self.settled.len()];
        }
        let mut room = most;
        for (at, tier) in [&mut self.live, &mut self.settled].into_iter().enumerate() {
            let here = tour.left[at].min(room);
            tier.walk(&mut tour.cursors[at], here, |entry, _| {
                if is_of(&tour.only, &entry.key) {
                    visit(&entry.key, &entry.cell.value);
                }
                Walk::Keep
            });
            tour.left[at] -= here;
            room -= here;
        }
        if let Some(pending) = &self.pending {
            let all = pending.generation.entries.visit_on(&mut tour.frozen, |entry, marks| {
                if room == 0 {
                    return false;
                }
                if *marks & SHADOWED == 0 && is_of(&tour.only, &entry.key) {
                    room -= 1;
                    visit(&entry.key, &entry.cell.value);
                }
                true
            });
            if !all {
                return Ok(true);
            }
        }
        // Of the groups it goes to there may be nothing in the backend: then what is left here would be forgotten.
        if self.complete || tour.left != [0, 0] {
            return Ok(tour.left != [0, 0]);
        }
        self.visit_stored(tour, room, visit)
    }

    fn visit_stored(
        &self,
        tour: &mut Tour,
        mut room: usize,
        mut visit: impl FnMut(&K, &V),
    ) -> Result<bool, StateError> {
        let only = tour.only.clone();
        let goes_to = |group: &u16| only.as_ref().is_none_or(|(these, _)| these.contains(group));
        for group in self.groups.iter().filter(goes_to) {
            let (from, to) = self.layout.bounds(group);
            if !to.is_empty() && to <= tour.after {
                continue;
            }
            let from = from.max(tour.after.clone());
            let (mut result, mut last, mut full) = (Ok(()), Vec::new(), room == 0);
            self.home.backend.scan(&from, &to, &mut |key, value| {
                if room == 0 {
                    full = true;
                    return ControlFlow::Break(());
                }
                last.clear();
                last.extend_from_slice(key);
                result = self.here_only(key, value).map(|entry| {
                    if let Some((key, value)) = entry {
                        room -= 1;
                        visit(&key, &value);
                    }
                });
                if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            result?;
            if full {
                if !last.is_empty() {
                    // The least key behind the last one.
                    last.push(0);
                    tour.after = last;
                }
                return Ok(true);
            }
            tour.after = keyspace::after_prefix(&keyspace::prefix(KeyGroup(group), self.layout.table));
        }
        Ok(false)
    }

    /// An entry of the backend that counts and is not in memory.
    fn here_only(&self, key: &[u8], value: &[u8]) -> Result<Option<(K, V)>, StateError> {
        let typed = self.home.coder.read_key(self.layout, key)?;
        let at = slot(&typed);
        if self.is_void(key)
            || self.live.find(at, |e| e.key == typed).is_some()
            || self.is_cached_below(at, &typed)
        {
            return Ok(None);
        }
        Ok(Some((typed, One::<V, ()>::read(&self.home, value)?.value)))
    }
}
