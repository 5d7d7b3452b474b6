//! The partitions that one subtask reads: where each stands, where it ends, and which of them the client fetches just now.
// HOT: per record one look-up by topic and partition.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use weir_engine::SplitId;

use super::assign::TopicPartition;
use super::progress::Reached;
use super::restored::{Position, Seen, position_name};

/// No slot: the partition is another subtask's.
const NOT_OURS: u32 = u32::MAX;
/// How far behind its position a record may be that is fetched again to see whether the log is the same.
const NEAR: i64 = 1_000;
/// The end of a partition that does not end.
pub(super) const ENDLESS: i64 = i64::MAX;

/// Whether the client fetches a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    Reading,
    Done,
}

/// One partition that this subtask reads.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    pub(super) split: SplitId,
    /// The offset after the last record read.
    pub(super) next: i64,
    /// Nothing at or after this offset is read.
    pub(super) end: i64,
    /// Where the partition ended when that was asked last.
    pub(super) high: i64,
    pub(super) stage: Stage,
    /// It was read dry before its end: when to ask whether the end is there by now.
    pub(super) ask: Option<Instant>,
    /// Its leader has said, since it was read dry, that it ends no earlier than it is to be read: where it is read dry next is the end.
    pub(super) sure: bool,
    /// It is fetched anew, to see whether there is anything before this offset.
    pub(super) probe: Option<i64>,
    /// The last record read.
    pub(super) last: Option<Seen>,
    /// The last record that an earlier life read: it is fetched once more, to see whether it is still the same.
    pub(super) check: Option<Seen>,
    /// What lies before this offset is fetched for that alone.
    pub(super) floor: i64,
    /// Other topics' partitions of this number are fetched beside it.
    pub(super) shares: bool,
    /// It was said to be read dry before, so that it has to be said each time.
    pub(super) told: bool,
    pub(super) reached: Arc<Reached>,
}

impl Slot {
    pub(super) fn new(
        topic: Arc<str>,
        at: TopicPartition,
        next: i64,
        end: Option<i64>,
        high: i64,
        reached: Arc<Reached>,
    ) -> Slot {
        let end = end.unwrap_or(ENDLESS);
        reached.ends(end);
        let stage = if next >= end { Stage::Done } else { Stage::Waiting };
        Slot {
            topic,
            partition: at.partition,
            split: at.split(),
            next,
            end,
            high,
            stage,
            ask: None,
            sure: false,
            probe: None,
            last: None,
            check: None,
            floor: i64::MIN,
            shares: false,
            told: false,
            reached,
        }
    }

    /// It was read dry: what it was fetched anew for is answered. `surely` when it was this one.
    pub(super) fn read_dry(&mut self, surely: bool, settles: bool) {
        let Some(high) = self.probe.take() else { return };
        if surely && high > self.next {
            self.next = high.min(self.end);
            self.reached.read(self.next, settles);
        } else {
            self.reached.answer(high);
        }
    }

    /// As positions are named.
    pub(super) fn name(&self) -> String {
        position_name(&self.topic, self.partition)
    }

    pub(super) fn position(&self) -> Position {
        Position { next: self.next, end: (self.end != ENDLESS).then_some(self.end), last: self.last }
    }

    /// Goes on from where an earlier life stood.
    pub(super) fn restore(&mut self, position: Position, low: i64) {
        self.last = position.last;
        // A record that is far behind costs more to fetch than it tells: there are markers and holes since.
        let near = |seen: &Seen| seen.offset >= low && (1..=NEAR).contains(&(self.next - seen.offset));
        self.check = position.last.filter(near);
        self.floor = self.check.map_or(i64::MIN, |_| self.next);
    }

    /// The offset to fetch from.
    pub(super) fn fetched_from(&self) -> i64 {
        self.check.map_or(self.next, |seen| seen.offset)
    }

    /// A record before the next one was fetched: false when it is another than the one that was read there.
    pub(super) fn is_as_before(&mut self, found: Seen) -> bool {
        self.check.take_if(|seen| seen.offset == found.offset).is_none_or(|seen| seen == found)
    }

    /// It was read dry: true when that is its end. A broker that has just become the leader may show an end before the true one, so
    /// the leader is asked first.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        if self.end > self.high || !self.sure {
            self.ask.get_or_insert(now);
            return false;
        }
        self.next = self.next.max(self.end);
        true
    }
}

#[derive(Debug, Default)]
pub(super) struct Slots {
    all: Vec<Slot>,
    topics: Vec<Arc<str>>,
    /// Per topic and partition, the index into `all`.
    of: Vec<Vec<u32>>,
    /// The topic of the last record.
    last: usize,
}

impl Slots {
    pub(super) fn all(&self) -> &[Slot] {
        &self.all
    }

    pub(super) fn all_mut(&mut self) -> &mut [Slot] {
        &mut self.all
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn push(&mut self, slot: Slot) {
        let topic = self.topics.iter().position(|t| *t == slot.topic).unwrap_or_else(|| {
            self.topics.push(Arc::clone(&slot.topic));
            self.of.push(Vec::new());
            self.topics.len() - 1
        });
        let (of, at) = (&mut self.of[topic], slot.partition as usize);
        if of.len() <= at {
            of.resize(at + 1, NOT_OURS);
        }
        of[at] = self.all.len() as u32;
        self.all.push(slot);
    }

    /// The slot of a record; `topic` is asked for only when there are several.
    #[inline]
    pub(super) fn find<'a>(&mut self, topic: impl FnOnce() -> &'a str, partition: i32) -> Option<&mut Slot> {
        if self.topics.len() > 1 {
            let topic = topic();
            if *self.topics[self.last] != *topic {
                self.last = self.topics.iter().position(|t| **t == *topic)?;
            }
        }
        let slot = self.of.get(self.last)?.get(partition as usize).copied().unwrap_or(NOT_OURS);
        self.all.get_mut(slot as usize)
    }

    /// The slot of which the client says that `partition` has been read dry, without the topic: none when it fetches that number of
    /// several topics, for one that is not dry must not be taken for one that is.
    pub(super) fn at_end(&mut self, partition: i32) -> Option<&mut Slot> {
        let fetched = |slot: &&mut Slot| slot.partition == partition && slot.stage == Stage::Reading;
        let mut of = self.all.iter_mut().filter(fetched);
        let slot = of.next()?;
        of.next().is_none().then_some(slot)
    }

    /// All slots of this partition number, when it is not known which of them was read dry.
    pub(super) fn numbered(&mut self, partition: i32) -> impl Iterator<Item = &mut Slot> {
        self.all.iter_mut().filter(move |slot| slot.partition == partition)
    }

    /// What the client is to fetch from now on: all that waits. When partitions end, none whose number it already fetches of
    /// another topic, so that it is known which of them was read dry.
    pub(super) fn wave(&mut self, ends: bool) -> impl Iterator<Item = &Slot> {
        let fetched = self.all.iter().filter(|slot| slot.stage == Stage::Reading);
        let mut fetched: BTreeSet<i32> = fetched.map(|slot| slot.partition).collect();
        let mut wave = Vec::new();
        for (i, slot) in self.all.iter_mut().enumerate() {
            if slot.stage == Stage::Waiting && (fetched.insert(slot.partition) || !ends) {
                slot.stage = Stage::Reading;
                wave.push(i);
            }
        }
        if !wave.is_empty() {
            self.find_sharers();
        }
        wave.into_iter().map(|i| &self.all[i])
    }

    /// Finds those whose end of partition is told by a number that others have, too.
    fn find_sharers(&mut self) {
        let mut fetched = BTreeMap::<i32, u32>::new();
        for slot in self.all.iter().filter(|slot| slot.stage == Stage::Reading) {
            *fetched.entry(slot.partition).or_default() += 1;
        }
        for slot in &mut self.all {
            slot.shares =
                slot.stage == Stage::Reading && fetched.get(&slot.partition).is_some_and(|n| *n > 1);
        }
    }

    /// Topics and partitions, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, i32)> + Clone {
        self.all.iter().map(|slot| (&*slot.topic, slot.partition))
    }

    /// The topics, for messages.
    pub(super) fn topics(&self) -> String {
        self.topics.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(of: &[(&str, i32, i64)]) -> Slots {
        let mut slots = Slots::default();
        for (i, (topic, partition, end)) in of.iter().enumerate() {
            let at = TopicPartition { topic: i, partition: *partition };
            slots.push(Slot::new((*topic).into(), at, 0, Some(*end), 9, Arc::default()));
        }
        slots
    }

    fn wave(slots: &mut Slots, ends: bool) -> Vec<(String, i32)> {
        slots.wave(ends).map(|slot| (slot.topic.to_string(), slot.partition)).collect()
    }

    #[test]
    fn records_find_their_slots() {
        let mut slots = slots(&[("a", 0, 9), ("b", 2, 9), ("a", 3, 9)]);
        for (topic, partition, found) in [
            ("a", 0, true),
            ("b", 2, true),
            ("b", 0, false),
            ("a", 3, true),
            ("c", 0, false),
            ("a", -1, false),
            ("a", 9, false),
        ] {
            let slot = slots.find(|| topic, partition).map(|slot| slot.name());
            assert_eq!(slot, found.then(|| format!("{topic}/{partition}")));
        }
    }

    #[test]
    fn of_several_topics_one_number_is_fetched_at_a_time_when_they_end() {
        let mut slots = slots(&[("a", 0, 9), ("a", 1, 9), ("b", 0, 9), ("b", 2, 0)]);
        let of = |list: &[(&str, i32)]| list.iter().map(|(t, p)| ((*t).to_owned(), *p)).collect::<Vec<_>>();
        assert_eq!(
            wave(&mut slots, true),
            of(&[("a", 0), ("a", 1)]),
            "and what has nothing to read is not fetched at all"
        );
        assert_eq!(slots.at_end(0).unwrap().name(), "a/0");
        assert!(wave(&mut slots, true).is_empty());
        slots.at_end(0).unwrap().stage = Stage::Done;
        assert!(slots.at_end(0).is_none());
        assert_eq!(wave(&mut slots, true), of(&[("b", 0)]));
        assert_eq!(slots.at_end(0).unwrap().name(), "b/0");
    }

    /// A broker that has just become the leader may show an end that is before the true one.
    #[test]
    fn an_end_is_believed_once_the_leader_has_said_so() {
        let mut slots = slots(&[("a", 0, 9)]);
        let (slot, now) = (&mut slots.all_mut()[0], Instant::now());
        assert!(!slot.is_over(now) && slot.ask == Some(now) && slot.next == 0, "nobody has asked");
        slot.sure = true;
        assert!(slot.is_over(now) && slot.next == 9);
        (slot.high, slot.next) = (8, 3);
        assert!(!slot.is_over(now) && slot.next == 3, "the end is still to be written");
    }

    #[test]
    fn a_record_of_before_tells_whether_the_log_is_the_same() {
        let restored = |offset, low| {
            let mut slots = slots(&[("a", 0, ENDLESS)]);
            let mut slot = slots.all.remove(0);
            slot.next = 2_000;
            let last = Some(Seen { offset, time: 5 });
            slot.restore(Position { next: 2_000, end: None, last }, low);
            slot
        };
        for (offset, low) in [(1_999, 2_000), (999, 0), (2_000, 0), (2_001, 0)] {
            let slot = restored(offset, low);
            assert_eq!((slot.fetched_from(), slot.floor), (2_000, i64::MIN), "{offset} tells nothing");
            assert_eq!(slot.position().last, Some(Seen { offset, time: 5 }));
        }
        let mut slot = restored(1_990, 10);
        assert_eq!((slot.fetched_from(), slot.floor), (1_990, 2_000));
        assert!(slot.is_as_before(Seen { offset: 1_992, time: 0 }), "it was compacted away");
        assert!(!slot.is_as_before(Seen { offset: 1_990, time: 6 }));
        assert!(restored(1_990, 10).is_as_before(Seen { offset: 1_990, time: 5 }));
    }

    #[test]
    fn those_that_share_a_number_are_known() {
        let mut slots = slots(&[("a", 0, ENDLESS), ("a", 1, ENDLESS), ("b", 0, ENDLESS)]);
        wave(&mut slots, false);
        assert_eq!(slots.all().iter().map(|slot| slot.shares).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn without_an_end_all_is_fetched_and_a_number_alone_tells_nothing() {
        let mut slots = slots(&[("a", 0, ENDLESS), ("a", 1, ENDLESS), ("b", 0, ENDLESS)]);
        assert_eq!(wave(&mut slots, false).len(), 3);
        assert!(slots.at_end(0).is_none());
        assert_eq!(slots.at_end(1).unwrap().name(), "a/1");
    }
}
