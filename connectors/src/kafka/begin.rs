//! Where reading begins: an offset that is known to be there, or an error that says what is. Pure.

use std::collections::{BTreeMap, BTreeSet};

use weir_engine::{Result, TaskError};

use super::deal::Found;
use super::restored::Restored;
use super::source::Start;

/// Offsets by topic and partition.
pub(super) type Offsets = BTreeMap<(String, i32), i64>;
/// The first record at or after a time, of the partitions that have one.
pub(super) type Timed = Offsets;

/// Who wants an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A reader that was there before.
    Reader,
    /// `Start::Offsets`.
    Start,
    /// The checkpoint that this life begins from.
    Checkpoint,
    /// `Start::Group`.
    Group,
    /// An earlier life that began here and did not come to a complete checkpoint.
    First,
}

/// Says that the wanted offset is not there, what is, and what to do.
pub(super) fn gone(by: Wanted, topic: &str, partition: i32, wanted: i64, low: i64, high: i64) -> String {
    let (by, instead) = match by {
        Wanted::Reader => ("", "begin with Start::Earliest"),
        Wanted::Start => (" (named by Start::Offsets)", "begin with Start::Earliest"),
        Wanted::Group => (" (committed by the group)", "begin with Start::Earliest"),
        Wanted::First => (
            " (where a life began that came to no complete checkpoint)",
            "let the group forget it (kafka-consumer-groups --delete), and begin with Start::Earliest",
        ),
        Wanted::Checkpoint => (
            " (of the checkpoint)",
            "begin anew, without a checkpoint (StartFrom::Fresh), with Start::Earliest",
        ),
    };
    let why = if wanted < low {
        format!(
            "records were deleted before they were read: keep them longer, let their writer follow this reader, or go on \
             without them: {instead}"
        )
    } else {
        format!(
            "the log is shorter than that: it was cut, or the topic made anew; {instead} or Start::Latest"
        )
    };
    format!(
        "topic {topic}, partition {partition}: offset {wanted}{by} is gone, the broker has {low} up to {high} (which is the \
         next to be written); {why}"
    )
}

/// What is known about where to begin.
pub(super) struct Begin<'a> {
    pub(super) start: &'a Start,
    pub(super) restored: &'a Restored,
    /// What the group has committed, if `start` asks for that.
    pub(super) group: Offsets,
    /// What the brokers say about the time, if `start` asks for that.
    pub(super) timed: Timed,
    /// Where earlier lives began that came to no complete checkpoint.
    pub(super) firsts: Offsets,
    /// What the first of these lives found, when this process knows it: all else has been added since.
    pub(super) seen: Option<BTreeSet<(String, i32)>>,
    /// The job takes no checkpoints: a life after the first promises nothing about what became of records since.
    pub(super) promises_nothing: bool,
}

impl Begin<'_> {
    /// True when where the partition begins is not known and depends on when that is asked.
    pub(super) fn is_chosen_now(&self, topic: &str, partition: i32) -> bool {
        let key = (topic.to_owned(), partition);
        depends_on_now(self.start)
            && !self.restored.looked_for(topic)
            && self.restored.partitions(topic).is_none()
            && !self.firsts.contains_key(&key)
            && !self.is_new(&key)
    }

    /// True when an earlier life that came to no complete checkpoint did not find the partition: all of it is new.
    fn is_new(&self, key: &(String, i32)) -> bool {
        self.seen.as_ref().is_some_and(|seen| !seen.contains(key))
    }

    /// The offset that somebody wants of the partition, and who; none where what the broker has says where to begin.
    fn wanted(&self, key: &(String, i32)) -> Option<(Wanted, i64)> {
        match (self.restored.partitions(&key.0), self.start) {
            // A partition that the checkpoint does not know of its topic has been added since: all of it is new.
            (Some(partitions), _) => Some((Wanted::Checkpoint, partitions.get(&key.1)?.next)),
            // So is a topic that the pattern looked for then, and did not find.
            (None, _) if self.restored.looked_for(&key.0) => None,
            (None, Start::Earliest) => None,
            (None, Start::Offsets(offsets)) => Some((Wanted::Start, *offsets.get(key)?)),
            (None, Start::Group) => Some((Wanted::Group, *self.group.get(key)?)),
            (None, Start::Latest | Start::Timestamp(_)) => Some((Wanted::First, *self.firsts.get(key)?)),
        }
    }

    /// True when the offset to begin at lies behind `high`, the end for those who read what is committed: it may be in a transaction
    /// that is still open.
    pub(super) fn is_beyond(&self, topic: &str, partition: i32, high: i64) -> bool {
        self.wanted(&(topic.to_owned(), partition)).is_some_and(|(_, wanted)| wanted > high)
    }

    /// The offset to begin at in a partition that has `low` up to `high`.
    pub(super) fn offset(&self, topic: &str, partition: i32, low: i64, high: i64) -> Result<i64> {
        let key = (topic.to_owned(), partition);
        match self.wanted(&key) {
            Some((_, wanted)) if (low..=high).contains(&wanted) => Ok(wanted),
            Some((Wanted::First, _)) if self.promises_nothing => Ok(low),
            Some((by, wanted)) => Err(TaskError::external(gone(by, topic, partition, wanted, low, high))),
            None if !self.is_chosen_now(topic, partition) => Ok(low),
            None => Ok(match self.start {
                Start::Timestamp(_) => self.timed.get(&key).map_or(high, |at| (*at).clamp(low, high)),
                _ => high,
            }),
        }
    }
}

/// True when where partitions begin depends on when that is asked.
pub(super) fn depends_on_now(start: &Start) -> bool {
    matches!(start, Start::Latest | Start::Timestamp(_))
}

/// Refuses offsets of partitions that are not read: a mistyped topic would be read from its beginning, or to its end. `what`
/// names them.
pub(super) fn check_offsets<'a>(
    what: &str,
    offsets: impl IntoIterator<Item = &'a (String, i32)>,
    found: &Found,
) -> Result<()> {
    for (topic, partition) in offsets {
        let partitions = found.iter().find(|(t, _)| t == topic).map(|(_, partitions)| partitions);
        let message = match partitions {
            None => format!("{what} names topic {topic}, which the source does not read"),
            Some(of) if !of.contains(partition) => format!(
                "{what} names partition {partition} of topic {topic}, of which {} are read: {of:?}",
                of.len()
            ),
            Some(_) => continue,
        };
        return Err(TaskError::user(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use weir_engine::RestoredItem;

    use super::super::restored::PATTERN;
    use super::*;

    fn begin(start: &Start, restored: &[(&str, i64)], partition: i32) -> Result<i64> {
        let item =
            |(key, at): &(&str, i64)| RestoredItem { subtask: 0, key: (*key).into(), value: (*at).into() };
        let restored = Restored::read(&restored.iter().map(item).collect::<Vec<_>>())?;
        begin_knowing(start, &restored, Offsets::new(), partition)
    }

    fn begin_knowing(start: &Start, restored: &Restored, firsts: Offsets, partition: i32) -> Result<i64> {
        let group = [(("t".to_owned(), 0), 8)].into();
        let timed = [(("t".to_owned(), 0), 6), (("t".to_owned(), 2), 11), (("t".to_owned(), 3), 1)].into();
        let seen = None;
        Begin { start, restored, group, timed, firsts, seen, promises_nothing: false }
            .offset("t", partition, 5, 9)
    }

    #[test]
    fn a_life_that_came_to_nothing_is_gone_on_with() {
        let (nothing, key) = (Restored::default(), ("t".to_owned(), 0));
        let firsts = |at| [(key.clone(), at)].into();
        for start in [Start::Latest, Start::Timestamp(1)] {
            assert_eq!(begin_knowing(&start, &nothing, firsts(7), 0).unwrap(), 7, "{start:?}");
            let e = begin_knowing(&start, &nothing, firsts(4), 0).unwrap_err().to_string();
            assert!(
                e.contains("offset 4 (where a life began that came to no complete checkpoint) is gone"),
                "{e}"
            );
            let restored =
                Restored::read(&[RestoredItem { subtask: 0, key: "t/0".into(), value: 8.into() }]).unwrap();
            assert_eq!(
                begin_knowing(&start, &restored, firsts(7), 0).unwrap(),
                8,
                "a checkpoint knows better"
            );
        }
        assert_eq!(begin_knowing(&Start::Earliest, &nothing, firsts(7), 0).unwrap(), 5);
    }

    /// It was added after the first life began, and is read from its oldest record by every life until a checkpoint knows it.
    #[test]
    fn what_the_first_life_did_not_find_is_read_whole() {
        let (nothing, key) = (Restored::default(), ("t".to_owned(), 1));
        for start in [Start::Latest, Start::Timestamp(1)] {
            let begin = |seen: Option<BTreeSet<(String, i32)>>| Begin {
                start: &start,
                restored: &nothing,
                group: Offsets::new(),
                timed: Timed::new(),
                firsts: [(("t".to_owned(), 0), 7)].into(),
                seen,
                promises_nothing: false,
            };
            let new = begin(Some([("t".to_owned(), 0)].into()));
            assert_eq!((new.offset("t", 1, 5, 9).unwrap(), new.is_chosen_now("t", 1)), (5, false));
            // One that was there, and of which the first life did not come to say where it begins.
            for old in [begin(Some([("t".to_owned(), 0), key.clone()].into())), begin(None)] {
                assert_eq!((old.offset("t", 1, 5, 9).unwrap(), old.is_chosen_now("t", 1)), (9, true));
            }
        }
    }

    #[test]
    fn a_topic_that_a_pattern_finds_later_is_read_whole() {
        let item = RestoredItem { subtask: 0, key: PATTERN.into(), value: "t.*".into() };
        let restored = Restored::read(&[item]).unwrap();
        assert_eq!(begin_knowing(&Start::Latest, &restored, Offsets::new(), 0).unwrap(), 5);
        // A topic that was never looked for begins as the source is told.
        let item = RestoredItem { subtask: 0, key: PATTERN.into(), value: "u.*".into() };
        let restored = Restored::read(&[item]).unwrap();
        assert_eq!(begin_knowing(&Start::Latest, &restored, Offsets::new(), 0).unwrap(), 9);
    }

    #[test]
    fn where_to_begin() {
        let at = |offset| Start::Offsets([(("t".to_owned(), 0), offset)].into());
        assert_eq!(begin(&Start::Earliest, &[], 0).unwrap(), 5);
        assert_eq!(begin(&Start::Latest, &[], 0).unwrap(), 9);
        assert_eq!(begin(&at(7), &[], 0).unwrap(), 7);
        assert_eq!(begin(&at(9), &[], 0).unwrap(), 9, "the next to be written is there to wait for");
        assert_eq!(begin(&at(7), &[], 1).unwrap(), 5, "not named");
        assert_eq!((begin(&Start::Group, &[], 0).unwrap(), begin(&Start::Group, &[], 1).unwrap()), (8, 5));
        let timed: Vec<_> = (0..4).map(|p| begin(&Start::Timestamp(1), &[], p).unwrap()).collect();
        assert_eq!(timed, [6, 9, 9, 5], "the first at or after it, or the end");
        let e = begin(&at(4), &[], 0).unwrap_err().to_string();
        assert!(
            e.starts_with(
                "topic t, partition 0: offset 4 (named by Start::Offsets) is gone, the broker has 5 up to 9"
            ),
            "{e}"
        );
        assert!(e.contains("deleted before they were read"), "{e}");
        assert!(begin(&at(10), &[], 0).unwrap_err().to_string().contains("the log is shorter"));
        assert!(begin(&at(-1), &[], 0).is_err());
    }

    #[test]
    fn a_checkpoint_knows_better_than_the_start() {
        for start in
            [Start::Earliest, Start::Latest, Start::Group, Start::Offsets([(("t".into(), 0), 8)].into())]
        {
            assert_eq!(begin(&start, &[("t/0", 6), ("t/1", 7)], 0).unwrap(), 6);
            assert_eq!(begin(&start, &[("t/1", 7)], 0).unwrap(), 5, "added since: read whole, {start:?}");
        }
        assert_eq!(begin(&Start::Latest, &[("u/0", 6)], 0).unwrap(), 9, "a topic that is new to the source");
        let e = begin(&Start::Earliest, &[("t/0", 4)], 0).unwrap_err().to_string();
        assert!(
            e.starts_with(
                "topic t, partition 0: offset 4 (of the checkpoint) is gone, the broker has 5 up to 9"
            ),
            "{e}"
        );
        assert!(e.contains("begin anew, without a checkpoint (StartFrom::Fresh)"), "{e}");
        for bad in ["t", "t/x", "seed"] {
            let e = begin(&Start::Earliest, &[(bad, 4)], 0).unwrap_err().to_string();
            assert!(e.contains(&format!("{bad}: 4 as a position")), "{e}");
        }
        let item = |key: &str| RestoredItem { subtask: 0, key: key.into(), value: 0.into() };
        let restored = Restored::read(&[item("t/0"), item("u/0")]).unwrap();
        let found = vec![("t".into(), vec![0])];
        let left: Vec<_> = restored.not_among(&found).map(|(topic, p, _)| (topic.to_owned(), p)).collect();
        assert_eq!(left, [("u".to_owned(), 0)]);
    }

    #[test]
    fn offsets_of_what_is_not_read_are_refused() {
        let found = vec![("t".to_owned(), vec![0, 1])];
        let of = |t: &str, p| check_offsets("Start::Offsets", [&(t.to_owned(), p)], &found);
        assert!(of("t", 1).is_ok());
        let e = of("t", 2).unwrap_err().to_string();
        assert_eq!(e, "Start::Offsets names partition 2 of topic t, of which 2 are read: [0, 1]");
        assert!(of("u", 0).is_err());
    }
}
