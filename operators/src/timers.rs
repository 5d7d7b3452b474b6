//! Timers of the keys of one subtask, by one clock: unique per time and key, fired in order, kept in the operator's state.
//!
//! Timers fire in the order of their times; those of one time in the order in which they were set. What is set while
//! timers fire is due in the same advance only if it is later than the one that is firing, and what is set between two parts of
//! an advance only if it is later than the clock: so an advance always ends. The rest waits apart for the next, so that nobody looks at it
//! meanwhile. While the last watermark fires, nothing can be set at all.
//!
//! All of them are in memory: about 100 bytes and the key for a key's only one, 60 for each further. From the first barrier on what changes is
//! noted for the next one: 24 bytes and the key for each timer set since the last, and that much for each older one that has fired. Timers
//! that were set and fired between two barriers leave nothing behind.

mod changes;
mod line;

use std::collections::BTreeMap;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use weir_engine::{EventTime, Key, KeyHash, Result, Watermark};
use weir_state::KEY_GROUPS;
use weir_state::store::{Snapshot, Store};

use changes::{Changes, Table};
use line::Line;

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

pub(crate) struct Timers<K> {
    /// Those that may fire, in order.
    queue: BTreeMap<Place, KeyHash>,
    /// Those that were set too late for the advance under way.
    late: BTreeMap<Place, KeyHash>,
    /// The keys, each with its timers.
    lines: HashTable<Line<K>>,
    /// The number of the next timer, without a group.
    next: u64,
    groups: u16,
    /// Where the clock stands, from [`reach`](Self::reach) to [`rest`](Self::rest).
    reached: Option<i64>,
    /// Which may fire now.
    until: i64,
    /// The time of the timer that fires.
    firing: Option<i64>,
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
            late: BTreeMap::new(),
            lines: HashTable::new(),
            next: 0,
            groups: KEY_GROUPS,
            reached: None,
            until: i64::MIN,
            firing: None,
            closed: false,
            refused: 0,
            frozen: 0,
            changes: None,
            table: None,
        }
    }
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
        for (place, (hash, key)) in &kept {
            timers.next = timers.next.max((place.number >> GROUP_BITS) + 1);
            timers.add_to_line(*hash, key, *place, false);
        }
        // A timer that is set from now on comes after all of its time, whoever had set them.
        timers.frozen = timers.next << GROUP_BITS;
        timers.queue = kept.into_iter().map(|(place, (hash, _))| (place, hash)).collect();
        timers.table = Some(table);
        Ok(timers)
    }

    /// False when the key has a timer of that time already.
    fn add_to_line(&mut self, hash: KeyHash, key: &K, place: Place, late: bool) -> bool {
        let same = |line: &Line<K>| line.is_of(hash, key);
        match self.lines.entry(hash.in_group(), same, |line| line.hash.in_group()) {
            Entry::Occupied(line) => line.into_mut().add(place, late),
            Entry::Vacant(room) => {
                room.insert(Line::new(hash, key.clone())).into_mut().add(place, late);
                true
            }
        }
    }

    /// Sets a timer; setting it again changes nothing.
    pub(crate) fn set(&mut self, hash: KeyHash, key: &K, time: EventTime) {
        if self.closed {
            self.refused += 1;
            return;
        }
        let late = self.reached.is_some_and(|reached| time.0 <= self.firing.unwrap_or(reached));
        let number = self.next << GROUP_BITS | u64::from(hash.group(self.groups).0);
        let place = Place { time: time.0, number };
        if !self.add_to_line(hash, key, place, late) {
            return;
        }
        self.next += 1;
        if let Some(changes) = &mut self.changes {
            changes.set(place, key.clone());
        }
        let queue = if late { &mut self.late } else { &mut self.queue };
        queue.insert(place, hash);
    }

    /// Takes a timer back, if it is set.
    pub(crate) fn delete(&mut self, hash: KeyHash, key: &K, time: EventTime) {
        let same = |line: &Line<K>| line.is_of(hash, key);
        let Ok(mut entry) = self.lines.find_entry(hash.in_group(), same) else { return };
        let Some(place) = entry.get_mut().take_at(time.0) else { return };
        if entry.get().is_empty() {
            entry.remove();
        }
        if self.queue.remove(&place).is_none() {
            self.late.remove(&place);
        }
        self.note_gone(place, key);
    }

    fn note_gone(&mut self, place: Place, key: &K) {
        let Some(changes) = &mut self.changes else { return };
        if place.number < self.frozen {
            changes.gone(place, key.clone());
        } else {
            changes.dead(place);
        }
    }

    /// The clock stands at `until`, or further if it did: what was set too late for the advance before is in time for this one.
    pub(crate) fn reach(&mut self, until: i64) {
        self.promote();
        self.reached = Some(self.reached.map_or(until, |reached| reached.max(until)));
    }

    /// What is due by `until` may fire: from now on `next_due` gives it.
    pub(crate) fn fire_until(&mut self, until: i64) {
        self.until = until;
        self.closed = until == Watermark::MAX.0;
    }

    /// From `reach` until `rest`.
    #[inline]
    pub(crate) fn is_advancing(&self) -> bool {
        self.reached.is_some()
    }

    /// No timer fires just now, though there may be more to fire in this advance.
    pub(crate) fn pause(&mut self) {
        self.firing = None;
    }

    /// All that the clock has reached has fired. What is set from now on waits for the next advance, whatever its time.
    pub(crate) fn rest(&mut self) {
        (self.reached, self.firing) = (None, None);
        self.promote();
    }

    fn promote(&mut self) {
        for (place, hash) in std::mem::take(&mut self.late) {
            let same = |line: &Line<K>| line.hash == hash && line.has(place);
            if let Some(line) = self.lines.find_mut(hash.in_group(), same) {
                line.promote(place);
            }
            self.queue.insert(place, hash);
        }
    }

    /// The next timer of those that may fire. It is no longer set.
    pub(crate) fn next_due(&mut self) -> Option<Due<K>> {
        self.firing = None;
        let first = self.queue.first_entry().filter(|first| first.key().time <= self.until)?;
        let (place, hash) = first.remove_entry();
        self.fires(place, hash)
    }

    /// The next timer of a key that is due by `until`. It is no longer set.
    pub(crate) fn next_due_of(&mut self, hash: KeyHash, key: &K, until: i64) -> Option<Due<K>> {
        self.firing = None;
        let line = self.lines.find(hash.in_group(), |line| line.is_of(hash, key))?;
        let place = line.first().filter(|place| place.time <= until)?;
        self.queue.remove(&place);
        self.fires(place, hash)
    }

    /// It is out of the queue.
    fn fires(&mut self, place: Place, hash: KeyHash) -> Option<Due<K>> {
        let same = |line: &Line<K>| line.hash == hash && line.has(place);
        let mut entry = self.lines.find_entry(hash.in_group(), same).ok()?;
        entry.get_mut().take(place);
        let key = if entry.get().is_empty() { entry.remove().0.key } else { entry.get().key.clone() };
        self.note_gone(place, &key);
        self.firing = Some(place.time);
        Some(Due { time: EventTime(place.time), hash, key })
    }

    /// The keys of timers that are soon to be given by `next_due`, `most` at most: a hint, to fetch what is kept of them.
    pub(crate) fn soon_due(&self, most: usize) -> impl Iterator<Item = (KeyHash, &K)> {
        let until = self.until;
        let due = self.queue.iter().take(most).take_while(move |(place, _)| place.time <= until);
        due.filter_map(|(place, hash)| {
            let same = |line: &Line<K>| line.hash == *hash && line.has(*place);
            self.lines.find(hash.in_group(), same).map(|line| (*hash, &line.key))
        })
    }

    /// There is one of those that may fire.
    pub(crate) fn has_due(&self) -> bool {
        self.first().is_some_and(|first| first <= self.until)
    }

    /// The time of the timer that is due first.
    pub(crate) fn first(&self) -> Option<i64> {
        self.queue.first_key_value().map(|(place, _)| place.time)
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
                let timers =
                    self.lines.iter().flat_map(|line| line.each().map(move |at| (at, line.key.clone())));
                Changes::all(timers)
            }
        };
        table.freeze(changes, into);
    }

    /// How many timers are set.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.queue.len() + self.late.len()
    }

    /// How many could not be set any more because the last watermark was firing.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
#[path = "timers_tests.rs"]
mod tests;
