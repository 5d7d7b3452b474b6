//! What the consumer group is told: the offsets of complete checkpoints, without waiting, and without failing the job.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::{Offset, TopicPartitionList};
use weir_engine::{CheckpointId, Notice};

use super::client::ClientLog;

/// How long a source that has ended waits until its last commit has arrived.
const COMMIT_PATIENCE: Duration = Duration::from_secs(3);
/// The most checkpoints whose offsets are kept until somebody says what became of them; one is in flight at a time.
const KEPT: usize = 16;

/// Offsets that a group has committed, by topic and partition.
pub(super) type Committed = BTreeMap<(String, i32), i64>;

/// What one subtask tells the group. Offsets are those of its partitions, always in the same order.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// By checkpoint, what is to be committed once it is complete.
    kept: BTreeMap<CheckpointId, Vec<i64>>,
    /// What the group was last asked to commit.
    asked: Vec<i64>,
}

impl Group {
    /// These offsets are in the checkpoint.
    pub(super) fn keep(&mut self, checkpoint: CheckpointId, offsets: Vec<i64>) {
        self.kept.insert(checkpoint, offsets);
        while self.kept.len() > KEPT {
            self.kept.pop_first();
        }
    }

    /// What is to be committed now.
    pub(super) fn notice(&mut self, notice: Notice) -> Option<Vec<i64>> {
        match notice {
            Notice::Aborted(id) => {
                self.kept.remove(&id);
                None
            }
            Notice::Completed(id) => {
                let offsets = self.kept.remove(&id);
                self.kept = self.kept.split_off(&id);
                offsets
            }
        }
    }

    /// Asks the group to commit these offsets. Neither waits nor fails; what comes of it the client's log hears.
    pub(super) fn commit<'a>(
        &mut self,
        consumer: &BaseConsumer<ClientLog>,
        partitions: impl Iterator<Item = (&'a str, i32)>,
        offsets: Vec<i64>,
    ) {
        let mut list = TopicPartitionList::with_capacity(offsets.len());
        let added = partitions.zip(&offsets).try_for_each(|((topic, partition), offset)| {
            list.add_partition_offset(topic, partition, Offset::Offset(*offset))
        });
        if let Err(e) = added.and_then(|()| consumer.commit(&list, CommitMode::Async)) {
            consumer.context().commit_failed(&e.to_string());
        }
        self.asked = offsets;
    }

    /// The last commit is on its way, and would be lost with the client: asks the group whether it has arrived.
    ///
    /// *Blocking*: until it has, 3 s at most.
    pub(super) fn await_commit<'a, I: Iterator<Item = (&'a str, i32)>>(
        &self,
        consumer: &BaseConsumer<ClientLog>,
        partitions: impl Fn() -> I,
    ) {
        if self.asked.is_empty() {
            return;
        }
        let deadline = Instant::now() + COMMIT_PATIENCE;
        loop {
            // Lets the client say what it has to say; what it has read is nobody's any more.
            drop(consumer.poll(Duration::from_millis(1)));
            let left = deadline.saturating_duration_since(Instant::now());
            let known = committed(consumer, partitions(), left.max(Duration::from_millis(100)));
            let has = |known: &Committed| {
                let of = |(topic, partition): (&str, i32)| known.get(&(topic.to_owned(), partition)).copied();
                partitions().map(of).eq(self.asked.iter().copied().map(Some))
            };
            match known {
                Ok(known) if has(&known) => return,
                Err(e) if left.is_zero() => return consumer.context().commit_failed(&e.to_string()),
                Ok(_) if left.is_zero() => {
                    return consumer.context().commit_failed("the last commit has not arrived in time");
                }
                _ => {}
            }
        }
    }
}

/// What the group has committed of these partitions.
///
/// *Blocking*: up to `patience`.
pub(super) fn committed<'a>(
    consumer: &BaseConsumer<ClientLog>,
    partitions: impl Iterator<Item = (&'a str, i32)>,
    patience: Duration,
) -> KafkaResult<Committed> {
    let mut asked = TopicPartitionList::new();
    for (topic, partition) in partitions {
        asked.add_partition(topic, partition);
    }
    let mut known = BTreeMap::new();
    for element in consumer.committed_offsets(asked, patience)?.elements() {
        element.error()?;
        if let Offset::Offset(offset) = element.offset() {
            known.insert((element.topic().to_owned(), element.partition()), offset);
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_wait_for_their_own_checkpoint() {
        let (mut group, id) = (Group::default(), CheckpointId);
        let completed = |n| Notice::Completed(CheckpointId(n));
        group.keep(id(1), vec![10]);
        assert_eq!(group.notice(Notice::Aborted(id(1))), None);
        group.keep(id(2), vec![20]);
        group.keep(id(u64::MAX), vec![30]);
        assert_eq!(group.notice(completed(1)), None, "given up");
        assert_eq!(group.notice(completed(2)), Some(vec![20]));
        assert_eq!(group.notice(completed(2)), None, "told twice");
        assert_eq!(group.notice(completed(u64::MAX)), Some(vec![30]));
        (0..100).for_each(|n| group.keep(id(n), vec![0]));
        assert_eq!(group.kept.len(), KEPT, "nobody says what became of them");
        assert_eq!(group.notice(completed(99)), Some(vec![0]));
        assert!(group.kept.is_empty(), "older ones are of no use any more");
    }
}
