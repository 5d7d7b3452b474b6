//! Where reading ends, when it is to end: offsets that are known from the start. Pure.

use std::collections::BTreeMap;

use super::begin::Timed;
use super::restored::Restored;

/// Where to end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stop {
    /// Nowhere: records are read as they come.
    #[default]
    Never,
    /// Where each partition ends when the source first opens it.
    Latest,
    /// Before these offsets, by (topic, partition), though they may still have to be written; partitions not named end as
    /// with [`Stop::Latest`].
    Offsets(BTreeMap<(String, i32), i64>),
    /// Before the first record of a partition whose Kafka timestamp is at or after this, in milliseconds since the epoch; where
    /// there is none yet, as with [`Stop::Latest`].
    Timestamp(i64),
}

/// What is known about where to end.
pub(super) struct Ends<'a> {
    pub(super) stop: &'a Stop,
    pub(super) restored: &'a Restored,
    /// What the brokers say about the time, if `stop` asks for that.
    pub(super) timed: Timed,
}

impl Ends<'_> {
    /// The offset before which reading of a partition ends that now ends at `high`. A life that goes on from a checkpoint ends
    /// where the first one was to end, unless offsets say otherwise.
    pub(super) fn end(&self, topic: &str, partition: i32, high: i64) -> Option<i64> {
        let key = (topic.to_owned(), partition);
        let before = self.restored.end(topic, partition);
        match self.stop {
            Stop::Never => None,
            Stop::Latest => before.or(Some(high)),
            Stop::Offsets(offsets) => offsets.get(&key).copied().or(before).or(Some(high)),
            Stop::Timestamp(_) => {
                before.or_else(|| Some(self.timed.get(&key).map_or(high, |at| *at.min(&high))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_engine::RestoredItem;

    use super::*;

    #[test]
    fn where_to_end() {
        let item =
            RestoredItem { subtask: 0, key: "t/1".into(), value: serde_json::json!({"next": 3, "end": 6}) };
        let (nothing, restored) = (Restored::default(), Restored::read(&[item]).unwrap());
        let offsets = Stop::Offsets([(("t".to_owned(), 0), 20)].into());
        let of = |stop: &Stop, restored: &Restored, partition| {
            let timed = [(("t".to_owned(), 0), 4)].into();
            Ends { stop, restored, timed }.end("t", partition, 9)
        };
        for (stop, first, second, again) in [
            (Stop::Never, None, None, None),
            (Stop::Latest, Some(9), Some(9), Some(6)),
            (offsets, Some(20), Some(9), Some(6)),
            (Stop::Timestamp(1), Some(4), Some(9), Some(6)),
        ] {
            assert_eq!((of(&stop, &nothing, 0), of(&stop, &nothing, 1)), (first, second), "{stop:?}");
            assert_eq!(of(&stop, &restored, 1), again, "{stop:?}: as the first life");
        }
    }
}
