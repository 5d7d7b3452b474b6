//! How far a Kafka source has read, for whoever must not run away from it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How far a source has come, per topic and partition. Clones share the same counts.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    read: Arc<Mutex<Partitions>>,
}

type Partitions = BTreeMap<String, BTreeMap<i32, Arc<Reached>>>;

/// How far reading of one partition has come; to be looked at without a lock.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    next: AtomicI64,
    settled: AtomicI64,
    /// Before which reading ends.
    end: AtomicI64,
    /// How often the reader's client has been read dry.
    dry: AtomicU64,
    /// Up to where a partition that has not moved for long is said to have records; 0 when nobody wonders.
    suspect: AtomicI64,
    /// Up to where it was found that it has none.
    answered: AtomicI64,
    /// Where the partition ended when that was asked last.
    seen_end: AtomicI64,
}

impl Reached {
    /// Reading ends before this offset.
    pub(super) fn ends(&self, end: i64) {
        self.end.store(end, Ordering::Release);
    }

    pub(super) fn end(&self) -> i64 {
        self.end.load(Ordering::Acquire)
    }

    /// The client had nothing more, of any partition.
    pub(super) fn was_dry(&self) {
        self.dry.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn dry(&self) -> u64 {
        self.dry.load(Ordering::Acquire)
    }

    /// It has not moved for long, and the broker has records up to here: the reader is to fetch it anew.
    pub(super) fn suspect(&self, high: i64) {
        self.suspect.store(high, Ordering::Release);
    }

    /// What the reader is to look into, once.
    pub(super) fn take_suspect(&self) -> Option<i64> {
        Some(self.suspect.swap(0, Ordering::AcqRel)).filter(|high| *high > 0)
    }

    /// There is nothing to be read before this offset.
    pub(super) fn answer(&self, high: i64) {
        self.answered.store(high, Ordering::Release);
    }

    pub(super) fn answered(&self) -> i64 {
        self.answered.load(Ordering::Acquire)
    }

    /// The partition ends here, a broker says.
    pub(super) fn see_end(&self, high: i64) {
        self.seen_end.store(high, Ordering::Release);
    }

    pub(super) fn seen_end(&self) -> i64 {
        self.seen_end.load(Ordering::Acquire)
    }

    /// The offset of the next record to be read.
    pub(crate) fn next(&self) -> i64 {
        self.next.load(Ordering::Acquire)
    }

    /// The offset below which nothing will be read again.
    pub(crate) fn settled(&self) -> i64 {
        self.settled.load(Ordering::Acquire)
    }

    /// Records below `offset` were read; if no checkpoint will ever hold that, nobody reads them again.
    pub(crate) fn read(&self, offset: i64, settles: bool) {
        self.next.store(offset, Ordering::Release);
        if settles {
            self.settle(offset);
        }
    }

    /// A checkpoint that holds `offset` is complete.
    pub(crate) fn settle(&self, offset: i64) {
        self.settled.store(offset, Ordering::Release);
    }
}

impl Progress {
    /// The offset after the last record that was handed to the job, processed or not; updated once per poll. None before a
    /// source has opened the partition.
    pub fn next_offset(&self, topic: &str, partition: i32) -> Option<i64> {
        self.partition(topic, partition).map(|reached| reached.next())
    }

    /// The offset below which no life of the job will read again: with checkpoints, that of the last complete one (or where
    /// this life began); without, the same as `next_offset`.
    pub fn settled_offset(&self, topic: &str, partition: i32) -> Option<i64> {
        self.partition(topic, partition).map(|reached| reached.settled())
    }

    /// All partitions that a source has opened: topic, partition, offset of the next record.
    pub fn snapshot(&self) -> Vec<(String, i32, i64)> {
        let read = self.lock();
        let of = |(topic, partitions): (&String, &BTreeMap<i32, Arc<Reached>>)| {
            partitions.iter().map(|(p, reached)| (topic.clone(), *p, reached.next())).collect::<Vec<_>>()
        };
        read.iter().flat_map(of).collect()
    }

    /// The count of one partition.
    pub(crate) fn partition(&self, topic: &str, partition: i32) -> Option<Arc<Reached>> {
        self.lock().get(topic)?.get(&partition).cloned()
    }

    /// Says that `partition` is read from `offset` on; the count is for the reader to move.
    pub(crate) fn start(&self, topic: &str, partition: i32, offset: i64) -> Arc<Reached> {
        let mut read = self.lock();
        let reached = read.entry(topic.to_owned()).or_default().entry(partition).or_default();
        reached.read(offset, true);
        reached.answer(0);
        reached.see_end(i64::MAX);
        reached.suspect(0);
        Arc::clone(reached)
    }

    fn lock(&self) -> MutexGuard<'_, Partitions> {
        // Maps are whole between calls, whoever panicked.
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_see_the_same_counts() {
        let progress = Progress::default();
        assert_eq!(progress.next_offset("t", 0), None);
        let reached = progress.clone().start("t", 0, 5);
        reached.read(7, false);
        assert_eq!((progress.next_offset("t", 0), progress.settled_offset("t", 0)), (Some(7), Some(5)));
        reached.settle(6);
        assert_eq!(progress.settled_offset("t", 0), Some(6));
        progress.start("t", 0, 3);
        assert_eq!(progress.snapshot(), [("t".to_owned(), 0, 3)], "a restart goes back");
        assert_eq!((reached.next(), reached.settled()), (3, 3), "and an older handle sees it");
    }
}
