//! Event-time timers of the keys of one subtask: unique per time and key, fired in order. Pure: no clock, no output.
//!
//! Timers fire in the order of their times; those of one time in the order in which they were set. What is set while
//! timers fire is due in the same advance only if it is later than the one that is firing: so an advance always ends. The
//! rest waits for the next. While the last watermark fires, nothing can be set at all.

use std::collections::BTreeMap;

use hashbrown::HashTable;
use weir_engine::{EventTime, KeyHash, Watermark};

/// When a timer fires, and which of that time it is.
type Place = (i64, u64);

/// A timer that fires now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due<K> {
    pub(crate) time: EventTime,
    pub(crate) hash: KeyHash,
    pub(crate) key: K,
}

/// An advance of event time under way.
#[derive(Clone, Copy, Debug)]
struct Round {
    watermark: i64,
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

#[derive(Clone, Debug)]
pub(crate) struct Timers<K> {
    queue: BTreeMap<Place, (KeyHash, K)>,
    /// Finds a timer by time and key. Holds no keys: the queue does.
    marks: HashTable<Mark>,
    next: u64,
    round: Option<Round>,
    closed: bool,
    refused: u64,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Timers {
            queue: BTreeMap::new(),
            marks: HashTable::new(),
            next: 0,
            round: None,
            closed: false,
            refused: 0,
        }
    }
}

/// Spreads the times of one key: an odd multiple is a bijection in every low bit and reaches the high ones.
#[inline]
fn mark_hash(hash: KeyHash, time: i64) -> u64 {
    hash.in_group() ^ (time as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl<K: Clone + Eq> Timers<K> {
    /// Sets a timer; setting it again changes nothing.
    pub(crate) fn set(&mut self, hash: KeyHash, key: &K, time: EventTime) {
        if self.closed {
            self.refused += 1;
            return;
        }
        let wanted = mark_hash(hash, time.0);
        let queue = &self.queue;
        let same = |m: &Mark| m.place.0 == time.0 && queue.get(&m.place).is_some_and(|(_, k)| k == key);
        if self.marks.find(wanted, same).is_some() {
            return;
        }
        let place = (time.0, self.next);
        self.next += 1;
        self.marks.insert_unique(wanted, Mark { hash: wanted, place }, |m| m.hash);
        self.queue.insert(place, (hash, key.clone()));
    }

    /// Takes a timer back, if it is set.
    pub(crate) fn delete(&mut self, hash: KeyHash, key: &K, time: EventTime) {
        let queue = &self.queue;
        let same = |m: &Mark| m.place.0 == time.0 && queue.get(&m.place).is_some_and(|(_, k)| k == key);
        if let Ok(entry) = self.marks.find_entry(mark_hash(hash, time.0), same) {
            let (mark, _) = entry.remove();
            self.queue.remove(&mark.place);
        }
    }

    /// Event time advances: `next_due` now gives what is due, until there is none.
    pub(crate) fn advance(&mut self, watermark: Watermark) {
        self.round = Some(Round { watermark: watermark.0, last: None, limit: self.next });
        self.closed = watermark == Watermark::MAX;
    }

    /// The next timer at or before the watermark. It is no longer set.
    pub(crate) fn next_due(&mut self) -> Option<Due<K>> {
        let round = self.round.as_mut()?;
        let place = match round.last {
            None => self.queue.keys().next().copied(),
            Some((time, number)) => {
                let of_this_time = self.queue.range((time, number + 1)..(time, round.limit)).next();
                // A round may begin at the end of time, and then there is no later one.
                let later = || self.queue.range((time.checked_add(1)?, 0)..).next();
                of_this_time.or_else(later).map(|(place, _)| *place)
            }
        };
        let Some(place) = place.filter(|place| place.0 <= round.watermark) else {
            self.round = None;
            return None;
        };
        if round.last.is_none_or(|last| last.0 != place.0) {
            round.limit = self.next;
        }
        round.last = Some(place);
        let (hash, key) = self.queue.remove(&place)?;
        if let Ok(entry) = self.marks.find_entry(mark_hash(hash, place.0), |m| m.place == place) {
            entry.remove();
        }
        Some(Due { time: EventTime(place.0), hash, key })
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
