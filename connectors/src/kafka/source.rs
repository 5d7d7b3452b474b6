//! Reads Kafka topics: partitions assigned by us, offsets kept by us, and never a record skipped in silence.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;
use weir_engine::memory::Footprint;
use weir_engine::{
    Barrier, Closing, Data, Notice, OperatorContext, RestoredItem, Result, Source, SourceBatch, SourceStatus,
    SplitId, TaskError,
};

use super::begin::Restored;
use super::config::KafkaConfig;
use super::footprint;
use super::progress::Progress;
use super::reader::Reader;
use super::topic;
use crate::format::{Bytes, Decoder, Json};
use crate::stripes::POSITIONS;

/// Where to begin in partitions of which no checkpoint knows better.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At the oldest record there is.
    #[default]
    Earliest,
    /// At the first record written after the start.
    Latest,
    /// At these offsets, by (topic, partition); partitions not named begin at the oldest record.
    Offsets(BTreeMap<(String, i32), i64>),
    /// Where the group (the property `group.id`, `weir-<uid>` unless set) has committed, as this source does at each complete
    /// checkpoint; partitions of which it has not begin at the oldest record.
    Group,
}

/// Reads any number of topics, each with any number of partitions, until the job drains.
///
/// *Partitions* are dealt out to the subtasks ([`assign`](super::assign::assign)); a subtask may read many or none. Each is
/// a split with a watermark of its own. One that has been read dry can fall idle while others are still full; but the client
/// tells of it by the partition's number alone, so when a subtask reads that number of several topics, these are dry only
/// once nothing at all is ready. One source per topic, and `union`, has no such limit. Partitions added while the job runs are read after its next start.
///
/// *Offsets* are the job's: the client never resets one. When the wanted offset is gone, because records were deleted before
/// they were read or the log was cut, the job fails and names topic, partition and offsets. Holes left by compaction and
/// transaction markers are passed over, as they must be.
///
/// *Checkpoints* hold the offset of the next record of every partition. A life that begins from one goes on there, whatever
/// [`KafkaSource::from`] says and at whatever parallelism; partitions added since are read from their oldest record. Once a
/// checkpoint is complete, and only then, its offsets are committed to the group, for others to see and for [`Start::Group`].
/// That a broker refuses them fails nothing: it is counted (`offset_commit_failures`) and logged now and then. Without
/// checkpoints none are committed.
///
/// *Time*: a record's time is its Kafka timestamp, in milliseconds since the epoch, until an extractor gives another.
///
/// *Bad records* go to the dead-letter output with topic, partition, offset and reason. So does a record without a payload
/// (a tombstone), unless [`KafkaSource::skip_tombstones`].
///
/// *Outages* of brokers are logged now and then and ridden out. An error that the client does not get over by itself fails
/// the job.
pub struct KafkaSource<T, D> {
    config: KafkaConfig,
    topics: Vec<String>,
    decoder: D,
    start: Start,
    skip_tombstones: bool,
    progress: Progress,
    reader: Option<Reader>,
    of: PhantomData<fn() -> T>,
}

/// Where a Kafka source begins: `KafkaSource::json::<Event>(&kafka).topic("events")`.
impl KafkaSource<(), ()> {
    /// Records whose payload is one JSON value.
    pub fn json<T: DeserializeOwned + Data>(config: &KafkaConfig) -> KafkaSource<T, Json> {
        KafkaSource::decoded(config, Json)
    }

    /// Records as they are.
    pub fn bytes(config: &KafkaConfig) -> KafkaSource<Vec<u8>, Bytes> {
        KafkaSource::decoded(config, Bytes)
    }

    /// Records decoded by a decoder of your own.
    pub fn decoded<T: Data, D: Decoder<T>>(config: &KafkaConfig, decoder: D) -> KafkaSource<T, D> {
        KafkaSource {
            config: config.clone(),
            topics: Vec::new(),
            decoder,
            start: Start::default(),
            skip_tombstones: false,
            progress: Progress::default(),
            reader: None,
            of: PhantomData,
        }
    }
}

impl<T, D> KafkaSource<T, D> {
    /// Reads this topic too. The order of topics is part of their splits' numbers: add new ones at the end.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        let topic = topic.into();
        if !self.topics.contains(&topic) {
            self.topics.push(topic);
        }
        self
    }

    /// Reads these topics too.
    #[must_use]
    pub fn topics<S: Into<String>>(self, topics: impl IntoIterator<Item = S>) -> Self {
        topics.into_iter().fold(self, KafkaSource::topic)
    }

    /// Where to begin: at [`Start::Earliest`] unless set.
    #[must_use]
    pub fn from(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Passes over records without a payload, which on a compacted topic mean "deleted".
    #[must_use]
    pub fn skip_tombstones(mut self) -> Self {
        self.skip_tombstones = true;
        self
    }

    /// How far this source has read; shared by its subtasks and by every start of the job.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }
}

impl<T, D> KafkaSource<T, D> {
    /// Opens where `restored` says, what the checkpoint holds of all subtasks.
    pub(super) fn begin(&mut self, cx: &OperatorContext, restored: &[RestoredItem]) -> Result<()> {
        if self.topics.is_empty() {
            return Err(TaskError::user("the Kafka source reads no topic: name one with .topic(…)"));
        }
        self.topics.iter().try_for_each(|name| topic::check_name(name))?;
        let restored = Restored::read(restored)?;
        self.reader =
            Some(Reader::open(&self.config, &self.topics, &self.start, &restored, &self.progress, cx)?);
        Ok(())
    }
}

impl<T: Data, D: Decoder<T>> Source for KafkaSource<T, D> {
    type Out = T;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.begin(cx, &cx.restored(POSITIONS))
    }

    fn poll(&mut self, out: &mut SourceBatch<T>, budget: Duration) -> Result<SourceStatus> {
        let Some(reader) = &mut self.reader else {
            return Err(TaskError::internal("a Kafka source was polled before it was opened"));
        };
        reader.poll(out, &mut self.decoder, self.skip_tombstones, budget)
    }

    fn positions(&mut self, barrier: Barrier) -> Result<Vec<(String, serde_json::Value)>> {
        Ok(self.reader.as_mut().map_or_else(Vec::new, |reader| reader.positions(barrier)))
    }

    fn split_name(&self, split: SplitId) -> Option<String> {
        self.reader.as_ref()?.split_name(split)
    }

    fn on_notice(&mut self, notice: Notice) -> Result<()> {
        if let Some(reader) = &mut self.reader {
            reader.on_notice(notice);
        }
        Ok(())
    }

    fn close(&mut self, outcome: Closing) {
        if let Some(reader) = self.reader.take() {
            reader.close(outcome);
        }
    }

    fn footprint(&self) -> Footprint {
        footprint::consumer(&self.config)
    }
}

impl<T, D: Clone> Clone for KafkaSource<T, D> {
    /// The recipe; what is open stays with the original.
    fn clone(&self) -> Self {
        KafkaSource {
            config: self.config.clone(),
            topics: self.topics.clone(),
            decoder: self.decoder.clone(),
            start: self.start.clone(),
            skip_tombstones: self.skip_tombstones,
            progress: self.progress.clone(),
            reader: None,
            of: PhantomData,
        }
    }
}

impl<T, D> fmt::Debug for KafkaSource<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSource")
            .field("config", &self.config)
            .field("topics", &self.topics)
            .field("start", &self.start)
            .field("open", &self.reader.is_some())
            .finish_non_exhaustive()
    }
}
