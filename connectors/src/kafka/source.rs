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

use super::config::KafkaConfig;
use super::deal::Dealer;
use super::ends::Stop;
use super::firsts::Firsts;
use super::footprint;
use super::progress::Progress;
use super::reader::Reader;
use super::record::{FromMessage, KafkaRecord, Records};
use super::restored::Restored;
use super::selection::Selection;
use crate::format::{Bytes, Changed, Debezium, Decoder, Json};
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
    /// At the first record whose Kafka timestamp is at or after this, in milliseconds since the epoch; where there is none yet,
    /// at the first record written after the start.
    Timestamp(i64),
    /// Where the group (the property `group.id`, `weir-<uid>` unless set) has committed, as this source does at each complete
    /// checkpoint; partitions of which it has not begin at the oldest record.
    Group,
}

/// Reads any number of topics, each with any number of partitions, until the job drains or where it is told to end.
///
/// *Partitions* of all topics together are dealt out to the subtasks like cards ([`assign`](super::assign::assign)); a subtask may
/// read many or none. Each is a split with a watermark of its own. One that has been read dry can fall idle while others are still
/// full; but the client tells of it by the partition's number alone, so when a subtask reads that number of several topics, it takes
/// about a second longer until it is seen which of them are dry.
///
/// *New partitions*, and with [`KafkaSource::pattern`] new topics, are read after the next start, or while the job runs with
/// [`KafkaSource::discover_every`]: from their beginning.
///
/// *Offsets* are the job's: the client never resets one. When the wanted offset is gone, because records were deleted before
/// they were read or the log was cut, the job fails and names topic, partition and offsets. So it does when a restore finds
/// another record in the place of the last one read: the topic was made anew. Holes left by compaction and transaction markers
/// are passed over, as they must be.
///
/// *Checkpoints* hold the offset of the next record of every partition. A life that begins from one goes on there, whatever
/// [`KafkaSource::from`] says and at whatever parallelism; partitions added since are read from their oldest record, and one of the
/// checkpoint that the brokers do not show fails the start. Once a
/// checkpoint is complete, and only then, its offsets are committed to the group, for others to see and for [`Start::Group`].
/// That a broker refuses them fails nothing: it is counted (`offset_commit_failures`) and logged now and then. Without
/// checkpoints none are committed.
///
/// *Until the first checkpoint is complete* nothing holds where [`Start::Latest`] and [`Start::Timestamp`] began, and "now" is
/// later for the next life. A restart by this process begins where the first life did, and so does another process when the job takes
/// checkpoints: that place is committed to the group with a mark of its own at the start. Where a group refuses offsets, that is
/// counted and logged, and only restarts by this process are exact.
///
/// *An end* ([`KafkaSource::until`]) is an offset per partition that is known at the start, and kept in checkpoints.
///
/// *Time*: a record's time is its Kafka timestamp, in milliseconds since the epoch, until an extractor gives another.
///
/// *Bad records* go to the dead-letter output with topic, partition, offset and reason. So does a record without a payload
/// (a tombstone), unless [`KafkaSource::skip_tombstones`].
///
/// *Outages* of brokers are logged now and then and ridden out. An error that the client does not get over by itself fails
/// the job.
pub struct KafkaSource<T, D> {
    settings: Settings,
    decoder: D,
    reader: Option<Reader>,
    of: PhantomData<fn() -> T>,
}

/// What a source was told, and what its copies share.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) config: KafkaConfig,
    pub(super) selection: Selection,
    pub(super) start: Start,
    pub(super) stop: Stop,
    pub(super) discover: Option<Duration>,
    pub(super) stall_after: Duration,
    pub(super) skip_tombstones: bool,
    pub(super) progress: Progress,
    pub(super) firsts: Firsts,
    pub(super) dealer: Dealer,
}

impl Settings {
    /// True when there is an end to what is read.
    pub(super) fn ends(&self) -> bool {
        self.stop != Stop::Never
    }

    /// How often new partitions are looked for while the job runs.
    pub(super) fn discovers(&self) -> Option<Duration> {
        self.discover.filter(|_| !self.ends())
    }

    fn check(&self) -> Result<()> {
        self.selection.check()?;
        if self.ends() && self.discover.is_some() {
            return Err(TaskError::user(
                "a Kafka source that ends (KafkaSource::until) reads what is there at its start: leave discover_every out",
            ));
        }
        if self.discover.is_some_and(|every| every < SHORTEST_DISCOVERY) {
            let message = format!(
                "KafkaSource::discover_every takes {SHORTEST_DISCOVERY:?} at least: brokers are asked each time"
            );
            return Err(TaskError::user(message));
        }
        Ok(())
    }
}

/// After what time a partition that does not move is looked into.
const STALL_AFTER: Duration = Duration::from_secs(30);
/// The shortest time between two looks for new partitions.
const SHORTEST_DISCOVERY: Duration = Duration::from_millis(100);

/// Where a Kafka source begins: `KafkaSource::json::<Event>(&kafka).topic("events")`.
impl KafkaSource<(), ()> {
    /// Records whose payload is one JSON value.
    pub fn json<T: DeserializeOwned + Data>(config: &KafkaConfig) -> KafkaSource<T, Json> {
        KafkaSource::decoded(config, Json)
    }

    /// Changes of a table as Debezium writes them in JSON, with or without its schema; tombstones, which follow deletions, are passed over.
    pub fn debezium<T: DeserializeOwned + Data>(config: &KafkaConfig) -> KafkaSource<Changed<T>, Debezium> {
        KafkaSource::decoded(config, Debezium).skip_tombstones()
    }

    /// Records as they are.
    pub fn bytes(config: &KafkaConfig) -> KafkaSource<Vec<u8>, Bytes> {
        KafkaSource::decoded(config, Bytes)
    }

    /// Whole records: keys, payloads and headers as they are. Those without a payload come too.
    pub fn records(config: &KafkaConfig) -> KafkaSource<KafkaRecord, Records> {
        Self::of(config, Records::default())
    }

    /// Records decoded by a decoder of your own.
    pub fn decoded<T: Data, D: Decoder<T>>(config: &KafkaConfig, decoder: D) -> KafkaSource<T, D> {
        Self::of(config, decoder)
    }

    fn of<T: Data, D: FromMessage<T>>(config: &KafkaConfig, decoder: D) -> KafkaSource<T, D> {
        let settings = Settings {
            config: config.clone(),
            selection: Selection::default(),
            start: Start::default(),
            stop: Stop::default(),
            discover: None,
            stall_after: STALL_AFTER,
            skip_tombstones: false,
            progress: Progress::default(),
            firsts: Firsts::default(),
            dealer: Dealer::default(),
        };
        KafkaSource { settings, decoder, reader: None, of: PhantomData }
    }
}

impl<T, D> KafkaSource<T, D> {
    /// Reads this topic too. The order of topics is part of their splits' numbers: add new ones at the end.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.settings.selection.topic(topic.into());
        self
    }

    /// Reads these topics too.
    #[must_use]
    pub fn topics<S: Into<String>>(self, topics: impl IntoIterator<Item = S>) -> Self {
        topics.into_iter().fold(self, KafkaSource::topic)
    }

    /// Reads these partitions of the topic, and no others of it. A start fails when one of them is not there.
    #[must_use]
    pub fn partitions(mut self, topic: impl Into<String>, partitions: impl IntoIterator<Item = i32>) -> Self {
        self.settings.selection.partitions(topic.into(), partitions);
        self
    }

    /// Reads the topics too whose whole name matches this regular expression (the syntax of the `regex` crate), but for Kafka's
    /// own, which begin with `__`. Of those that are there at the first start it reads from where [`KafkaSource::from`] says, of those
    /// that a later life finds first, or [`KafkaSource::discover_every`] does, all.
    ///
    /// ```no_run
    /// use weir_connectors::kafka::{KafkaConfig, KafkaSource};
    /// let kafka = KafkaConfig::brokers("kafka-1:9092");
    /// let source = KafkaSource::bytes(&kafka)
    ///     .pattern("orders-(eu|us)-.*")
    ///     .discover_every(std::time::Duration::from_secs(30));
    /// # drop(source);
    /// ```
    #[must_use]
    pub fn pattern(mut self, pattern: impl Into<String>) -> Self {
        self.settings.selection.pattern(pattern.into());
        self
    }

    /// Looks for new partitions, and with [`KafkaSource::pattern`] for new topics, at this interval while the job runs, and reads
    /// them from their beginning. Without it they are read after the next start. Not for topics of which only some partitions are
    /// read.
    #[must_use]
    pub fn discover_every(mut self, interval: Duration) -> Self {
        self.settings.discover = Some(interval);
        self
    }

    /// A partition of which nothing comes for this long, though the broker has more and the source asks for it, is fetched anew; when
    /// that does not help within the same time, it has stalled: that is logged with topic, partition and offset, and counted
    /// (`kafka_stalls`). 30 s unless set.
    #[must_use]
    pub fn stall_after(mut self, time: Duration) -> Self {
        self.settings.stall_after = time;
        self
    }

    /// Where to end: nowhere, [`Stop::Never`], unless set. A source that ends gives its partitions' watermarks free one by one, and its
    /// job finishes by itself. Where one subtask reads the same partition number of several topics, it reads them one after the
    /// other.
    ///
    /// ```no_run
    /// use weir_connectors::kafka::{KafkaConfig, KafkaSource, Stop};
    /// let source = KafkaSource::bytes(&KafkaConfig::brokers("kafka-1:9092")).topic("orders").until(Stop::Latest);
    /// # drop(source);
    /// ```
    #[must_use]
    pub fn until(mut self, stop: Stop) -> Self {
        self.settings.stop = stop;
        self
    }

    /// Where to begin: at [`Start::Earliest`] unless set.
    #[must_use]
    pub fn from(mut self, start: Start) -> Self {
        self.settings.start = start;
        self
    }

    /// Passes over records without a payload, which on a compacted topic mean "deleted".
    #[must_use]
    pub fn skip_tombstones(mut self) -> Self {
        self.settings.skip_tombstones = true;
        self
    }

    /// How far this source has read; shared by its subtasks and by every start of the job.
    pub fn progress(&self) -> Progress {
        self.settings.progress.clone()
    }
}

impl<T, D> KafkaSource<T, D> {
    /// Opens where `restored` says, what the checkpoint holds of all subtasks.
    pub(super) fn begin(&mut self, cx: &OperatorContext, restored: &[RestoredItem]) -> Result<()> {
        self.settings.check()?;
        self.reader = Some(Reader::open(&self.settings, &Restored::read(restored)?, cx)?);
        Ok(())
    }

    /// The client of an open source.
    #[cfg(test)]
    pub(super) fn client(&self) -> &rdkafka::consumer::BaseConsumer<super::client::ClientLog> {
        self.reader.as_ref().and_then(Reader::client).expect("it is open and reads something")
    }
}

impl<T: Data, D: FromMessage<T>> Source for KafkaSource<T, D> {
    type Out = T;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.decoder.begin(cx)?;
        self.begin(cx, &cx.restored(POSITIONS))
    }

    fn poll(&mut self, out: &mut SourceBatch<T>, budget: Duration) -> Result<SourceStatus> {
        let Some(reader) = &mut self.reader else {
            return Err(TaskError::internal("a Kafka source was polled before it was opened"));
        };
        reader.poll(out, &mut self.decoder, budget)
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
        footprint::consumer(&self.settings.config).and(self.decoder.takes())
    }
}

impl<T, D: Clone> Clone for KafkaSource<T, D> {
    /// The recipe; what is open stays with the original.
    fn clone(&self) -> Self {
        let (settings, decoder) = (self.settings.clone(), self.decoder.clone());
        KafkaSource { settings, decoder, reader: None, of: PhantomData }
    }
}

impl<T, D> fmt::Debug for KafkaSource<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSource")
            .field("config", &self.settings.config)
            .field("reads", &self.settings.selection)
            .field("start", &self.settings.start)
            .field("stop", &self.settings.stop)
            .field("open", &self.reader.is_some())
            .finish_non_exhaustive()
    }
}
