//! Which partitions a source subtask reads: pure, the same answer everywhere, every partition once.

use weir_engine::SplitId;

/// One partition of one of a source's topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic's place in the source's list of topics.
    pub topic: usize,
    /// The partition's number in the topic.
    pub partition: i32,
}

/// The most partitions of one topic, and the most topics of one source, so that both fit into a split's number.
pub const PER_TOPIC: u32 = 1 << 16;

impl TopicPartition {
    /// The split's number: it depends on the topic's place and the partition only, not on how many there are or who reads
    /// them, so that it stays when partitions are added.
    pub fn split(self) -> SplitId {
        SplitId(self.topic as u32 * PER_TOPIC + self.partition as u32)
    }
}

/// The partitions of subtask `subtask` of `parallelism`, when topic `i` has `partitions[i]`.
///
/// The topics' partitions, one topic after the other, are dealt out like cards: shares differ by one at most, those of
/// each topic too. Beyond as many subtasks as partitions, a subtask gets none.
pub fn assign(partitions: &[u32], subtask: usize, parallelism: usize) -> Vec<TopicPartition> {
    (partitions.iter().enumerate())
        .flat_map(|(topic, &n)| (0..n as i32).map(move |partition| TopicPartition { topic, partition }))
        .skip(subtask)
        .step_by(parallelism.max(1))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_partition_once_and_balanced(
            partitions in proptest::collection::vec(0u32..40, 1..6),
            parallelism in 1usize..50,
        ) {
            let shares: Vec<_> = (0..parallelism).map(|s| assign(&partitions, s, parallelism)).collect();
            let all: Vec<_> = shares.iter().flatten().copied().collect();
            let total = partitions.iter().sum::<u32>() as usize;
            prop_assert_eq!(all.len(), total);
            prop_assert_eq!(all.iter().collect::<HashSet<_>>().len(), total, "one was given twice");
            prop_assert_eq!(all.iter().map(|p| p.split()).collect::<HashSet<_>>().len(), total, "two share a split");
            let sizes: Vec<_> = shares.iter().map(Vec::len).collect();
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{:?}", sizes);
            for topic in 0..partitions.len() {
                let of = |share: &Vec<TopicPartition>| share.iter().filter(|p| p.topic == topic).count();
                let sizes: Vec<_> = shares.iter().map(of).collect();
                prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{:?}", sizes);
            }
        }
    }

    #[test]
    fn splits_do_not_depend_on_how_many_there_are() {
        let few = assign(&[2, 2], 0, 1);
        let more = assign(&[4, 2], 0, 1);
        assert!(few.iter().all(|p| more.contains(p)));
        assert_eq!(few[2].split(), SplitId(PER_TOPIC));
    }
}
