//! Where reading begins: an offset that is known to be there, or an error that says what is. Pure.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use weir_engine::{RestoredItem, Result, TaskError};

use super::deal::Found;
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

/// The name of a partition in checkpoints. No topic's name has a slash.
pub(super) fn position_name(topic: &str, partition: i32) -> String {
    format!("{topic}/{partition}")
}

/// Under this name a checkpoint holds the pattern of a source; no partition's name has a star.
pub(super) const PATTERN: &str = "*";

/// Where a partition stands in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// The offset of the next record.
    pub(super) next: i64,
    /// The offset before which reading ends, if it does.
    pub(super) end: Option<i64>,
}

impl Position {
    /// As a checkpoint holds it.
    pub(super) fn written(self) -> Value {
        match self.end {
            None => self.next.into(),
            Some(end) => serde_json::json!({ "next": self.next, "end": end }),
        }
    }

    fn read(value: &Value) -> Option<Position> {
        match value.as_i64() {
            Some(next) => Some(Position { next, end: None }),
            None => {
                Some(Position { next: value.get("next")?.as_i64()?, end: Some(value.get("end")?.as_i64()?) })
            }
        }
    }
}

/// The positions of a checkpoint, by topic and partition.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Restored {
    topics: BTreeMap<String, BTreeMap<i32, Position>>,
    /// It was of a source with a pattern.
    pattern: bool,
}

impl Restored {
    /// Reads what the subtasks of an earlier life have put into the checkpoint.
    pub(super) fn read(items: &[RestoredItem]) -> Result<Restored> {
        let mut restored = Restored::default();
        for item in items {
            if item.key == PATTERN {
                restored.pattern = true;
                continue;
            }
            let name = item.key.rsplit_once('/').and_then(|(topic, p)| Some((topic, p.parse::<i32>().ok()?)));
            let (Some((topic, partition)), Some(position)) = (name, Position::read(&item.value)) else {
                return Err(TaskError::user(format!(
                    "the checkpoint holds {}: {} as a position of this source, which is none in a topic: was there another \
                     source under this uid? Give this one a uid of its own",
                    item.key, item.value
                )));
            };
            restored.topics.entry(topic.to_owned()).or_default().insert(partition, position);
        }
        Ok(restored)
    }

    /// Where the partition stands.
    pub(super) fn position(&self, topic: &str, partition: i32) -> Option<Position> {
        self.topics.get(topic)?.get(&partition).copied()
    }

    /// Where reading of the partition is to end.
    pub(super) fn end(&self, topic: &str, partition: i32) -> Option<i64> {
        self.position(topic, partition)?.end
    }

    /// Topics of the checkpoint that are read no more.
    pub(super) fn left_out<'a>(&'a self, found: &'a Found) -> impl Iterator<Item = &'a str> {
        self.topics.keys().map(String::as_str).filter(|topic| !found.iter().any(|(t, _)| t == topic))
    }
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
    /// The job takes no checkpoints: a life after the first promises nothing about what became of records since.
    pub(super) promises_nothing: bool,
}

impl Begin<'_> {
    /// True when where the partition begins is not known and depends on when that is asked.
    pub(super) fn is_chosen_now(&self, topic: &str, partition: i32) -> bool {
        matches!(self.start, Start::Latest | Start::Timestamp(_))
            && !self.restored.pattern
            && !self.restored.topics.contains_key(topic)
            && !self.firsts.contains_key(&(topic.to_owned(), partition))
    }

    /// The offset to begin at in a partition that has `low` up to `high`.
    pub(super) fn offset(&self, topic: &str, partition: i32, low: i64, high: i64) -> Result<i64> {
        let restored = self.restored.topics.get(topic);
        let key = (topic.to_owned(), partition);
        let first = self.firsts.get(&key).copied();
        let (by, wanted) = match (restored, self.start) {
            // A partition that the checkpoint does not know of its topic has been added since: all of it is new.
            (Some(partitions), _) => (Wanted::Checkpoint, partitions.get(&partition).map(|p| p.next)),
            // So is a topic that the pattern did not find then.
            (None, _) if self.restored.pattern => return Ok(low),
            (None, Start::Earliest) => return Ok(low),
            (None, Start::Offsets(offsets)) => (Wanted::Start, offsets.get(&key).copied()),
            (None, Start::Group) => (Wanted::Group, self.group.get(&key).copied()),
            (None, Start::Latest | Start::Timestamp(_)) if first.is_some() => (Wanted::First, first),
            (None, Start::Latest) => return Ok(high),
            (None, Start::Timestamp(_)) => {
                return Ok(self.timed.get(&key).map_or(high, |at| (*at).clamp(low, high)));
            }
        };
        match wanted {
            None => Ok(low),
            Some(wanted) if (low..=high).contains(&wanted) => Ok(wanted),
            Some(_) if by == Wanted::First && self.promises_nothing => Ok(low),
            Some(wanted) => Err(TaskError::external(gone(by, topic, partition, wanted, low, high))),
        }
    }
}

/// Where the first life of a job began, for its next ones: until a checkpoint is complete nothing else knows it, and "the end" is
/// somewhere else by then. Shared by all copies of a source; by operator.
#[derive(Clone, Debug, Default)]
pub(super) struct Firsts(Arc<Mutex<BTreeMap<String, Offsets>>>);

impl Firsts {
    /// Where the partitions of `uid` began.
    pub(super) fn of(&self, uid: &str) -> Offsets {
        self.lock().get(uid).cloned().unwrap_or_default()
    }

    /// These partitions of `uid` begin here.
    pub(super) fn keep(&self, uid: &str, began: impl IntoIterator<Item = ((String, i32), i64)>) {
        self.lock().entry(uid.to_owned()).or_default().extend(began);
    }

    /// A checkpoint knows better, or nobody will ask.
    pub(super) fn forget<'a>(&self, uid: &str, partitions: impl IntoIterator<Item = (&'a str, i32)>) {
        if let Some(of) = self.lock().get_mut(uid)
            && !of.is_empty()
        {
            for (topic, partition) in partitions {
                of.remove(&(topic.to_owned(), partition));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Offsets>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        Begin { start, restored, group, timed, firsts, promises_nothing: false }.offset("t", partition, 5, 9)
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
        let kept = Firsts::default();
        kept.keep("in", [(key.clone(), 7)]);
        assert_eq!((kept.clone().of("in"), kept.of("other")), (firsts(7), Offsets::new()));
        kept.forget("in", [("t", 1)]);
        assert_eq!(kept.of("in"), firsts(7));
        kept.forget("in", [("t", 0)]);
        assert_eq!(kept.of("in"), Offsets::new());
    }

    #[test]
    fn positions_with_an_end_are_read_again() {
        for position in [Position { next: 3, end: None }, Position { next: 3, end: Some(9) }] {
            assert_eq!(Position::read(&position.written()), Some(position));
        }
        assert_eq!(Position::read(&serde_json::json!({"next": 3})), None);
    }

    #[test]
    fn a_topic_that_a_pattern_finds_later_is_read_whole() {
        let item = RestoredItem { subtask: 0, key: PATTERN.into(), value: "t.*".into() };
        let restored = Restored::read(&[item]).unwrap();
        assert_eq!(begin_knowing(&Start::Latest, &restored, Offsets::new(), 0).unwrap(), 5);
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
        assert_eq!(restored.left_out(&vec![("t".into(), vec![0])]).collect::<Vec<_>>(), ["u"]);
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
