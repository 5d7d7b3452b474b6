//! Where reading begins: an offset that is known to be there, or an error that says what is. Pure.

use std::collections::BTreeMap;

use weir_engine::{RestoredItem, Result, TaskError};

use super::source::Start;

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
}

/// Says that the wanted offset is not there, what is, and what to do.
pub(super) fn gone(by: Wanted, topic: &str, partition: i32, wanted: i64, low: i64, high: i64) -> String {
    let (by, instead) = match by {
        Wanted::Reader => ("", "begin with Start::Earliest"),
        Wanted::Start => (" (named by Start::Offsets)", "begin with Start::Earliest"),
        Wanted::Group => (" (committed by the group)", "begin with Start::Earliest"),
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

/// The positions of a checkpoint: the offset of the next record, by topic and partition.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Restored(BTreeMap<String, BTreeMap<i32, i64>>);

impl Restored {
    /// Reads what the subtasks of an earlier life have put into the checkpoint.
    pub(super) fn read(items: &[RestoredItem]) -> Result<Restored> {
        let mut topics = BTreeMap::<String, BTreeMap<i32, i64>>::new();
        for item in items {
            let name = item.key.rsplit_once('/').and_then(|(topic, p)| Some((topic, p.parse::<i32>().ok()?)));
            let (Some((topic, partition)), Some(offset)) = (name, item.value.as_i64()) else {
                return Err(TaskError::user(format!(
                    "the checkpoint holds {}: {} as a position of this source, which is none in a topic: was there another \
                     source under this uid? Give this one a uid of its own",
                    item.key, item.value
                )));
            };
            topics.entry(topic.to_owned()).or_default().insert(partition, offset);
        }
        Ok(Restored(topics))
    }

    /// Topics of the checkpoint that are read no more.
    pub(super) fn left_out<'a>(&'a self, topics: &'a [String]) -> impl Iterator<Item = &'a str> {
        self.0.keys().map(String::as_str).filter(|topic| !topics.iter().any(|t| t == topic))
    }
}

/// What is known about where to begin.
pub(super) struct Begin<'a> {
    pub(super) start: &'a Start,
    pub(super) restored: &'a Restored,
    /// What the group has committed, if `start` asks for that.
    pub(super) group: BTreeMap<(String, i32), i64>,
}

impl Begin<'_> {
    /// The offset to begin at in a partition that has `low` up to `high`.
    pub(super) fn offset(&self, topic: &str, partition: i32, low: i64, high: i64) -> Result<i64> {
        let restored = self.restored.0.get(topic);
        let key = (topic.to_owned(), partition);
        let (by, wanted) = match (restored, self.start) {
            // A partition that the checkpoint does not know of its topic has been added since: all of it is new.
            (Some(partitions), _) => (Wanted::Checkpoint, partitions.get(&partition)),
            (None, Start::Latest) => return Ok(high),
            (None, Start::Earliest) => return Ok(low),
            (None, Start::Offsets(offsets)) => (Wanted::Start, offsets.get(&key)),
            (None, Start::Group) => (Wanted::Group, self.group.get(&key)),
        };
        match wanted {
            None => Ok(low),
            Some(wanted) if (low..=high).contains(wanted) => Ok(*wanted),
            Some(wanted) => Err(TaskError::external(gone(by, topic, partition, *wanted, low, high))),
        }
    }
}

/// Refuses start offsets of partitions that are not there: a mistyped topic would be read from its beginning.
pub(super) fn check_offsets(start: &Start, topics: &[String], counts: &[u32]) -> Result<()> {
    let Start::Offsets(offsets) = start else { return Ok(()) };
    for (topic, partition) in offsets.keys() {
        let count = topics.iter().position(|t| t == topic).map(|i| counts[i]);
        let message = match count {
            None => format!("Start::Offsets names topic {topic}, which the source does not read"),
            Some(n) if !(0..n as i32).contains(partition) => {
                format!("Start::Offsets names partition {partition} of topic {topic}, which has {n}")
            }
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
        let group = [(("t".to_owned(), 0), 8)].into();
        Begin { start, restored: &restored, group }.offset("t", partition, 5, 9)
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
        let restored = Restored([("t".into(), BTreeMap::new()), ("u".into(), BTreeMap::new())].into());
        assert_eq!(restored.left_out(&["t".into()]).collect::<Vec<_>>(), ["u"]);
    }

    #[test]
    fn offsets_of_what_is_not_read_are_refused() {
        let topics = ["t".to_owned()];
        let of = |t: &str, p| Start::Offsets([((t.to_owned(), p), 0)].into());
        assert!(check_offsets(&of("t", 1), &topics, &[2]).is_ok());
        let e = check_offsets(&of("t", 2), &topics, &[2]).unwrap_err().to_string();
        assert_eq!(e, "Start::Offsets names partition 2 of topic t, which has 2");
        assert!(check_offsets(&of("u", 0), &topics, &[2]).is_err());
    }
}
