//! How far a Kafka source has read, for whoever must not run away from it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The offset after the last record read, per topic and partition; updated once per poll. Clones share the same counts.
///
/// "Read" means handed to the job, not yet processed by it.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    read: Arc<Mutex<Partitions>>,
}

type Partitions = BTreeMap<String, BTreeMap<i32, Arc<AtomicI64>>>;

impl Progress {
    /// The offset of the next record to be read; none before a source has opened the partition.
    pub fn next_offset(&self, topic: &str, partition: i32) -> Option<i64> {
        self.partition(topic, partition).map(|next| next.load(Ordering::Acquire))
    }

    /// All partitions that a source has opened: topic, partition, offset of the next record.
    pub fn snapshot(&self) -> Vec<(String, i32, i64)> {
        let read = self.lock();
        (read.iter())
            .flat_map(|(topic, of)| {
                of.iter().map(|(p, next)| (topic.clone(), *p, next.load(Ordering::Acquire)))
            })
            .collect()
    }

    /// The count of one partition, to be looked at without a lock.
    pub(crate) fn partition(&self, topic: &str, partition: i32) -> Option<Arc<AtomicI64>> {
        self.lock().get(topic)?.get(&partition).cloned()
    }

    /// Says that `partition` is read from `offset` on; the count is for the reader to move.
    pub(crate) fn start(&self, topic: &str, partition: i32, offset: i64) -> Arc<AtomicI64> {
        let mut read = self.lock();
        let next = read.entry(topic.to_owned()).or_default().entry(partition).or_default();
        next.store(offset, Ordering::Release);
        Arc::clone(next)
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
        let next = progress.clone().start("t", 0, 5);
        next.store(7, Ordering::Release);
        assert_eq!(progress.next_offset("t", 0), Some(7));
        progress.start("t", 0, 3);
        assert_eq!(progress.snapshot(), [("t".to_owned(), 0, 3)], "a restart goes back");
        assert_eq!(next.load(Ordering::Acquire), 3, "and an older handle sees it");
    }
}
