//! Timers of the keys of one subtask, by one clock: unique per time and key, fired in order, kept in the operator's state.
//!
//! Timers fire in the order of their times; those of one time in the order in which they were set. What is set while
//! timers fire is due in the same advance only if it is later than the one that is firing: so an advance always ends. The
//! rest waits for the next. While the last watermark fires, nothing can be set at all.
//!
//! All of them are in memory: about 64 bytes and the key each. From the first barrier on what changes is noted for the
//! next one: 24 bytes and the key for each timer set since the last, and that much for each older one that has fired. Timers
//! that were set and fired between two barriers leave nothing behind.

mod changes;

use std::collections::BTreeMap;

use hashbrown::HashTable;
use weir_engine::{EventTime, Key, KeyHash, Result, Watermark};
use weir_state::KEY_GROUPS;
use weir_state::store::{Snapshot, Store};

use changes::{Changes, Table};

/// When a timer fires, and which of that time it is: by the order in which they were set, then by key group, which tells
/// apart what two subtasks had set before one took over from both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    time: i64,
    /// 48 bits count the timers that the subtask has set, 16 are the key group.
    number: u64,
}

const GROUP_BITS: u32 = 16;

/// A timer that fires now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due<K> {
    pub(crate) time: EventTime,
    pub(crate) hash: KeyHash,
    pub(crate) key: K,
}

/// An advance of the clock under way.
#[derive(Clone, Copy, Debug)]
struct Round {
    until: i64,
    /// The timer fired last.
    last: Option<Place>,
    /// Timers of the time that is firing with this number or a higher one were set too late for this round.
    limit: u64,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    hash: u64,
    place: Place,
}

pub(crate) struct Timers<K> {
    queue: BTreeMap<Place, (KeyHash, K)>,
    /// Finds a timer by time and key. Holds no keys: the queue does.
    marks: HashTable<Mark>,
    /// The number of the next timer, without a group.
    next: u64,
    groups: u16,
    round: Option<Round>,
    closed: bool,
    refused: u64,
    /// Timers with lower numbers were there at the last barrier.
    frozen: u64,
    /// What changed since; nothing is noted before the first barrier, which takes all there is.
    changes: Option<Changes<K>>,
    table: Option<Table<K>>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Timers {
            queue: BTreeMap::new(),
            marks: HashTable::new(),
            next: 0,
            groups: KEY_GROUPS,
            round: None,
            closed: false,
            refused: 0,
            frozen: 0,
            changes: None,
            table: None,
        }
    }
}

/// Spreads the times of one key: an odd multiple is a bijection in every low bit and reaches the high ones.
#[inline]
fn mark_hash(hash: KeyHash, time: i64) -> u64 {
    hash.in_group() ^ (time as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl<K: Key> Timers<K> {
    /// The timers kept in a table of `store`, those of its key groups that were there at the last checkpoint included.
    ///
    /// *Blocking*: reads them.
    ///
    /// # Errors
    /// The table cannot be read, or holds timers of another type of key.
    pub(crate) fn open(store: &Store, table: &'static str) -> Result<Self> {
        let table = Table::open(store, table)?;
        let mut timers = Timers { groups: store.groups(), ..Timers::default() };
        let kept = table.kept(store)?;
        if !kept.is_empty() {
            timers.changes = Some(Changes::default());
        }
        timers.marks.reserve(kept.len(), |mark| mark.hash);
        for (place, (hash, _)) in &kept {
            let mark = Mark { hash: mark_hash(*hash, place.time), place: *place };
            timers.marks.insert_unique(mark.hash, mark, |mark| mark.hash);
            timers.next = timers.next.max((place.number >> GROUP_BITS) + 1);
        }
        // A timer that is set from now on comes after all of its time, whoever had set them.
        timers.frozen = timers.next << GROUP_BITS;
        timers.queue = kept.into_iter().collect();
        timers.table = Some(table);
        Ok(timers)
    }

    /// Sets a timer; setting it again changes nothing.
    pub(crate) fn set(&mut self, hash: KeyHash, key: &K, time: EventTime) {
        if self.closed {
            self.refused += 1;
            return;
        }
        let wanted = mark_hash(hash, time.0);
        let queue = &self.queue;
        let same = |m: &Mark| m.place.time == time.0 && queue.get(&m.place).is_some_and(|(_, k)| k == key);
        if self.marks.find(wanted, same).is_some() {
            return;
        }
        let number = self.next << GROUP_BITS | u64::from(hash.group(self.groups).0);
        let place = Place { time: time.0, number };
        self.next += 1;
        self.marks.insert_unique(wanted, Mark { hash: wanted, place }, |m| m.hash);
        if let Some(changes) = &mut self.changes {
            changes.set(place, key.clone());
        }
        self.queue.insert(place, (hash, key.clone()));
    }

    /// Takes a timer back, if it is set.
    pub(crate) fn delete(&mut self, hash: KeyHash, key: &K, time: EventTime) {
        let queue = &self.queue;
        let same = |m: &Mark| m.place.time == time.0 && queue.get(&m.place).is_some_and(|(_, k)| k == key);
        if let Ok(entry) = self.marks.find_entry(mark_hash(hash, time.0), same) {
            let (mark, _) = entry.remove();
            self.queue.remove(&mark.place);
            self.note_gone(mark.place, key);
        }
    }

    fn note_gone(&mut self, place: Place, key: &K) {
        let Some(changes) = &mut self.changes else { return };
        if place.number < self.frozen {
            changes.gone(place, key.clone());
        } else {
            changes.dead(place);
        }
    }

    /// The clock stands at `until`: `next_due` now gives what is due, until there is none.
    pub(crate) fn advance(&mut self, until: i64) {
        self.round = Some(Round { until, last: None, limit: self.next << GROUP_BITS });
        self.closed = until == Watermark::MAX.0;
    }

    /// True from `advance` until `next_due` has given all that is due.
    pub(crate) fn is_advancing(&self) -> bool {
        self.round.is_some()
    }

    /// The next timer at or before the time to which the clock has advanced. It is no longer set.
    pub(crate) fn next_due(&mut self) -> Option<Due<K>> {
        let round = self.round.as_mut()?;
        let place = match round.last {
            None => self.queue.keys().next().copied(),
            Some(last @ Place { time, .. }) => {
                let late = Place { time, number: round.limit };
                let of_this_time = self.queue.range(Place { number: last.number + 1, ..last }..late).next();
                // A round may begin at the end of time, and then there is no later one.
                let later = || self.queue.range(Place { time: time.checked_add(1)?, number: 0 }..).next();
                of_this_time.or_else(later).map(|(place, _)| *place)
            }
        };
        let Some(place) = place.filter(|place| place.time <= round.until) else {
            self.round = None;
            return None;
        };
        if round.last.is_none_or(|last| last.time != place.time) {
            round.limit = self.next << GROUP_BITS;
        }
        round.last = Some(place);
        let (hash, key) = self.queue.remove(&place)?;
        if let Ok(entry) = self.marks.find_entry(mark_hash(hash, place.time), |m| m.place == place) {
            entry.remove();
        }
        self.note_gone(place, &key);
        Some(Due { time: EventTime(place.time), hash, key })
    }

    /// The keys of timers that are soon to be given by `next_due`, `most` at most: a hint, to fetch what is kept of them.
    pub(crate) fn soon_due(&self, most: usize) -> impl Iterator<Item = (KeyHash, &K)> {
        let until = self.round.map(|round| round.until);
        (self.queue.iter().take(most))
            .take_while(move |(place, _)| until.is_some_and(|until| place.time <= until))
            .map(|(_, (hash, key))| (*hash, key))
    }

    /// The time of the timer that is due first.
    pub(crate) fn first(&self) -> Option<i64> {
        self.queue.keys().next().map(|place| place.time)
    }

    /// Adds to the snapshot what changed since the last barrier. Cheap, but for the first barrier of a job's life: that one
    /// copies every timer there is.
    pub(crate) fn freeze(&mut self, into: &mut Snapshot) {
        let Some(table) = &mut self.table else { return };
        self.frozen = self.next << GROUP_BITS;
        let changes = match &mut self.changes {
            Some(changes) => std::mem::take(changes),
            none => {
                *none = Some(Changes::default());
                Changes::all(self.queue.iter().map(|(place, (_, key))| (*place, key.clone())))
            }
        };
        table.freeze(changes, into);
    }

    /// How many timers are set.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// How many could not be set any more because the last watermark was firing.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
#[path = "timers_tests.rs"]
mod tests;
