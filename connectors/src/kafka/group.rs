//! What the consumer group is told: the offsets of complete checkpoints, without waiting, and without failing the job.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{Offset, TopicPartitionList};
use weir_engine::{CheckpointId, Notice};

use super::begin::Offsets;
use super::client::ClientLog;

/// How long a source that has ended waits until its last commit has arrived.
const COMMIT_PATIENCE: Duration = Duration::from_secs(10);
/// How often it tries to commit these again.
const COMMITS: u32 = 5;
/// The most checkpoints whose offsets are kept until somebody says what became of them; one is in flight at a time.
const KEPT: usize = 16;

/// What is committed with an offset at which a life began, in place of one that a checkpoint holds.
const MARK: &str = "weir: a life began here";

/// What is committed with an offset of a checkpoint, before the time at which the life began that committed it.
const LIFE: &str = "weir: life ";
/// After what time without a commit it is asked whether another life has taken this one's place.
const QUIET: Duration = Duration::from_secs(5);
/// How long the answer to that may take.
const ANSWER: Duration = Duration::from_secs(2);

/// What one subtask tells the group. Offsets are those of its partitions, always in the same order.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// When this life began, in milliseconds since the epoch.
    life: i64,
    /// When it last committed.
    last: Option<Instant>,
    /// By checkpoint, what is to be committed once it is complete.
    kept: BTreeMap<CheckpointId, Vec<i64>>,
    /// What the group was last asked to commit.
    asked: Vec<i64>,
    /// What it was not, since it did not say whether that would be right.
    owed: Vec<i64>,
}

impl Group {
    /// For a life that begins now.
    pub(super) fn begin() -> Group {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
        Group { life: now, ..Group::default() }
    }

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

    /// Asks the group to commit these offsets. Does not fail; what comes of it the client's log hears. After a while without a commit,
    /// in which this process may have stood still and another may have taken its place, it first asks whether the group has
    /// offsets of a later life: these stay. Without an answer nothing is committed: the next complete checkpoint tries again.
    ///
    /// *Blocking*: not at all, or two seconds at most.
    pub(super) fn commit<'a>(
        &mut self,
        consumer: &BaseConsumer<ClientLog>,
        partitions: impl Iterator<Item = (&'a str, i32)> + Clone,
        offsets: Vec<i64>,
    ) {
        self.owed.clear();
        if self.last.is_none_or(|at| at.elapsed() > QUIET) {
            match self.is_overtaken(consumer, partitions.clone(), &offsets) {
                Ok(false) => {}
                Ok(true) => {
                    return consumer.context().commit_failed("a later life has committed more to this group");
                }
                Err(e) => {
                    // A commit that is on its way for long may arrive after those of a later life.
                    self.owed = offsets;
                    let why = format!("it does not say whether a later life has committed more: {e}");
                    return consumer.context().commit_failed(&why);
                }
            }
        }
        let with = format!("{LIFE}{}", self.life);
        self.tell(consumer, partitions, offsets, &with);
        self.last = Some(Instant::now());
    }

    /// True when a later life has committed more than these offsets.
    fn is_overtaken<'a>(
        &self,
        consumer: &BaseConsumer<ClientLog>,
        partitions: impl Iterator<Item = (&'a str, i32)> + Clone,
        offsets: &[i64],
    ) -> KafkaResult<bool> {
        let later = |element: &TopicPartitionListElem<'_>| {
            let life = element.metadata().strip_prefix(LIFE).and_then(|life| life.parse::<i64>().ok());
            life.is_some_and(|life| life > self.life)
        };
        let known = known(consumer, partitions.clone(), ANSWER, later)?;
        let known = |(topic, partition): (&str, i32)| known.get(&(topic.to_owned(), partition)).copied();
        Ok(partitions
            .map(known)
            .zip(offsets)
            .any(|(known, offset)| known.is_some_and(|known| known > *offset)))
    }

    /// As `commit`, of where a life begins that no checkpoint knows of yet, for one that follows it.
    ///
    /// *Blocking*: until it has arrived or was refused, so long at most.
    pub(super) fn mark<'a>(
        consumer: &BaseConsumer<ClientLog>,
        partitions: impl Iterator<Item = (&'a str, i32)> + Clone,
        offsets: Vec<i64>,
        patience: Option<Duration>,
    ) {
        let mut group = Group::default();
        group.tell(consumer, partitions.clone(), offsets, MARK);
        if let Some(patience) = patience {
            group.arrive(consumer, || partitions.clone(), patience, 0);
        }
    }

    fn tell<'a>(
        &mut self,
        consumer: &BaseConsumer<ClientLog>,
        partitions: impl Iterator<Item = (&'a str, i32)>,
        offsets: Vec<i64>,
        with: &str,
    ) {
        let mut list = TopicPartitionList::with_capacity(offsets.len());
        let added = partitions.zip(&offsets).try_for_each(|((topic, partition), offset)| {
            let mut added = list.add_partition(topic, partition);
            added.set_metadata(with);
            added.set_offset(Offset::Offset(*offset))
        });
        if let Err(e) = added.and_then(|()| consumer.commit(&list, CommitMode::Async)) {
            consumer.context().commit_failed(&e.to_string());
        }
        self.asked = offsets;
    }

    /// The last commit is on its way, and would be lost with the client: asks the group whether it has arrived. One that is owed is
    /// made now.
    ///
    /// *Blocking*: until it has, 10 s at most, and a little.
    pub(super) fn await_commit<'a, I: Iterator<Item = (&'a str, i32)> + Clone>(
        &mut self,
        consumer: &BaseConsumer<ClientLog>,
        partitions: impl Fn() -> I,
    ) {
        let deadline = Instant::now() + COMMIT_PATIENCE;
        while !self.owed.is_empty() && Instant::now() < deadline {
            let owed = std::mem::take(&mut self.owed);
            self.commit(consumer, partitions(), owed);
            drop(consumer.poll(Duration::from_millis(100)));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        self.arrive(consumer, partitions, left, COMMITS);
    }

    /// Waits until the last commit has arrived. When one is refused meanwhile, which may have been an earlier one, asks so often again.
    fn arrive<'a, I: Iterator<Item = (&'a str, i32)>>(
        &mut self,
        consumer: &BaseConsumer<ClientLog>,
        partitions: impl Fn() -> I,
        patience: Duration,
        mut again: u32,
    ) {
        if self.asked.is_empty() || !self.owed.is_empty() {
            return;
        }
        let deadline = Instant::now() + patience;
        let mut refused = consumer.context().not_committed();
        loop {
            // Lets the client say what it has to say; what it has read is nobody's any more.
            drop(consumer.poll(Duration::from_millis(1)));
            let left = deadline.saturating_duration_since(Instant::now());
            let known = committed(consumer, partitions(), left.max(Duration::from_millis(100)));
            let has = |known: &Offsets| {
                let of = |(topic, partition): (&str, i32)| known.get(&(topic.to_owned(), partition)).copied();
                // What was found since was not asked for.
                partitions().take(self.asked.len()).map(of).eq(self.asked.iter().copied().map(Some))
            };
            match known {
                Ok(known) if has(&known) => return,
                _ if consumer.context().not_committed() > refused => {
                    if again == 0 {
                        return;
                    }
                    (again, refused) = (again - 1, consumer.context().not_committed());
                    let (offsets, with) = (self.asked.clone(), format!("{LIFE}{}", self.life));
                    self.tell(consumer, partitions(), offsets, &with);
                }
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
) -> KafkaResult<Offsets> {
    known(consumer, partitions, patience, |_| true)
}

/// Where lives began, of these partitions, that came to no complete checkpoint.
///
/// *Blocking*: up to `patience`.
pub(super) fn marked<'a>(
    consumer: &BaseConsumer<ClientLog>,
    partitions: impl Iterator<Item = (&'a str, i32)>,
    patience: Duration,
) -> KafkaResult<Offsets> {
    known(consumer, partitions, patience, |element| element.metadata() == MARK)
}

fn known<'a>(
    consumer: &BaseConsumer<ClientLog>,
    partitions: impl Iterator<Item = (&'a str, i32)>,
    patience: Duration,
    counts: impl Fn(&TopicPartitionListElem<'_>) -> bool,
) -> KafkaResult<Offsets> {
    let mut asked = TopicPartitionList::new();
    for (topic, partition) in partitions {
        asked.add_partition(topic, partition);
    }
    let mut known = Offsets::new();
    for element in consumer.committed_offsets(asked, patience)?.elements() {
        element.error()?;
        if let Offset::Offset(offset) = element.offset()
            && counts(&element)
        {
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
