//! What a checkpoint holds of a source: where each partition stands, and what was looked for. Pure.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;
use weir_engine::{RestoredItem, Result, TaskError};

use super::deal::Found;

/// The name of a partition in checkpoints. No topic's name has a slash.
pub(super) fn position_name(topic: &str, partition: i32) -> String {
    format!("{topic}/{partition}")
}

/// Under this name a checkpoint holds the pattern of a source; no partition's name has a star.
pub(super) const PATTERN: &str = "*";

/// A record that was read, by which it is seen whether a log is still the same: its offset, and its Kafka timestamp in milliseconds
/// since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) offset: i64,
    pub(super) time: i64,
}

/// Where a partition stands in a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The offset of the next record.
    pub(super) next: i64,
    /// The offset before which reading ends, if it does.
    pub(super) end: Option<i64>,
    /// The last record that was read, if one was.
    pub(super) last: Option<Seen>,
}

impl Position {
    /// As a checkpoint holds it: the offset alone when there is nothing else to say.
    pub(super) fn written(self) -> Value {
        if self.end.is_none() && self.last.is_none() {
            return self.next.into();
        }
        let mut value = serde_json::json!({ "next": self.next });
        if let Some(end) = self.end {
            value["end"] = end.into();
        }
        if let Some(Seen { offset, time }) = self.last {
            value["last"] = serde_json::json!([offset, time]);
        }
        value
    }

    fn read(value: &Value) -> Option<Position> {
        if let Some(next) = value.as_i64() {
            return Some(Position { next, ..Position::default() });
        }
        let end = value.get("end").map(|end| end.as_i64().ok_or(())).transpose().ok()?;
        let last = |last: &Value| Some(Seen { offset: last.get(0)?.as_i64()?, time: last.get(1)?.as_i64()? });
        let last = value.get("last").map(|value| last(value).ok_or(())).transpose().ok()?;
        Some(Position { next: value.get("next")?.as_i64()?, end, last })
    }
}

/// The positions of a checkpoint, by topic and partition.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Restored {
    topics: BTreeMap<String, BTreeMap<i32, Position>>,
    /// It was of a source with this pattern.
    pattern: Option<String>,
}

impl Restored {
    /// Reads what the subtasks of an earlier life have put into the checkpoint.
    pub(super) fn read(items: &[RestoredItem]) -> Result<Restored> {
        let mut restored = Restored::default();
        for item in items {
            if item.key == PATTERN {
                restored.pattern = Some(item.value.as_str().unwrap_or(".*").to_owned());
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

    /// Where the partitions of a topic stand, if it was read.
    pub(super) fn partitions(&self, topic: &str) -> Option<&BTreeMap<i32, Position>> {
        self.topics.get(topic)
    }

    /// Where the partition stands.
    pub(super) fn position(&self, topic: &str, partition: i32) -> Option<Position> {
        self.topics.get(topic)?.get(&partition).copied()
    }

    /// Where reading of the partition is to end.
    pub(super) fn end(&self, topic: &str, partition: i32) -> Option<i64> {
        self.position(topic, partition)?.end
    }

    /// All partitions that the checkpoint stands in, and where.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, i32, Position)> {
        self.topics
            .iter()
            .flat_map(|(topic, of)| of.iter().map(move |(p, position)| (&topic[..], *p, *position)))
    }

    /// Those of them that are not among what was found.
    pub(super) fn not_among<'a>(&'a self, found: &Found) -> impl Iterator<Item = (&'a str, i32, Position)> {
        self.all().filter(move |(topic, partition, _)| {
            !found.iter().any(|(t, partitions)| t == topic && partitions.contains(partition))
        })
    }

    /// True when the source of the checkpoint would have found this topic by its pattern.
    pub(super) fn looked_for(&self, topic: &str) -> bool {
        // What an earlier version took is taken for all.
        let fits = |pattern| regex(pattern).map_or(true, |regex| regex.is_match(topic));
        self.pattern.as_deref().is_some_and(fits)
    }

    /// True when there was no checkpoint, or the source was not in it.
    pub(super) fn is_empty(&self) -> bool {
        self.topics.is_empty() && self.pattern.is_none()
    }
}

/// A pattern for whole names.
pub(super) fn regex(pattern: &str) -> std::result::Result<Regex, regex::Error> {
    Regex::new(&format!("^(?:{pattern})$"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_again() {
        let last = Some(Seen { offset: 2, time: -1 });
        for (end, last) in [(None, None), (Some(9), None), (None, last), (Some(9), last)] {
            let position = Position { next: 3, end, last };
            assert_eq!(Position::read(&position.written()), Some(position));
        }
        assert_eq!(Position { next: 3, ..Position::default() }.written(), serde_json::json!(3));
        let written = Position { next: 3, end: Some(9), last }.written();
        assert_eq!(
            written,
            serde_json::json!({"next": 3, "end": 9, "last": [2, -1]}),
            "checkpoints hold this"
        );
        for bad in [
            serde_json::json!({"end": 3}),
            serde_json::json!({"next": 3, "end": "x"}),
            serde_json::json!({"next": 3, "last": [1]}),
        ] {
            assert_eq!(Position::read(&bad), None, "{bad}");
        }
    }
}
