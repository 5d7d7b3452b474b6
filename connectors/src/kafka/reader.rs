//! One subtask's consumer: opened at offsets that are known to be there, drained batch by batch, closed under a deadline.
// HOT: per record one poll of the client and one decode, no clock, no lock, no allocation of ours.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};
use weir_engine::{
    Barrier, Closing, DeadLetter, EventTime, Notice, OperatorContext, Result, SourceBatch, SourceStatus,
    SplitId, TaskError,
};

use super::assign::{PER_TOPIC, TopicPartition, assign};
use super::begin::{Begin, Restored, Wanted, check_offsets, gone, position_name};
use super::client::{ClientLog, drop_within, no_topic, partitions_of_topic, who};
use super::config::{Fixed, KafkaConfig};
use super::errors::{Verdict, judge};
use super::footprint::QUEUED_KBYTES;
use super::group::{Group, committed};
use super::patience::Patience;
use super::progress::{Progress, Reached};
use super::source::Start;
use crate::format::Decoder;

/// Properties that a source lives by.
const FIXED: &[Fixed] = &[
    Fixed {
        property: "auto.offset.reset",
        value: "error",
        instead: "a source never lets the client choose an offset; say where to begin with KafkaSource::from(Start::…)",
    },
    Fixed {
        property: "enable.auto.commit",
        value: "false",
        instead: "offsets belong to the job's checkpoints, and are committed when these are complete; leave it out",
    },
    Fixed {
        property: "enable.auto.offset.store",
        value: "false",
        instead: "offsets belong to the job's checkpoints, and are committed when these are complete; leave it out",
    },
    Fixed {
        property: "enable.partition.eof",
        value: "true",
        instead: "a source has to know when a partition is read dry, which ends nothing; leave it out",
    },
];

/// Defaults that differ from the library's.
const DEFAULTS: &[(&str, &str)] = &[
    ("allow.auto.create.topics", "false"),
    // The library stops fetching for a whole second once its queue is full.
    ("fetch.queue.backoff.ms", "5"),
    ("queued.max.messages.kbytes", QUEUED_KBYTES),
    // Brokers close idle connections: no news.
    ("log.connection.close", "false"),
];

/// How long closing a client may take.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a failing source asks for the offsets that its error names.
const WATERMARK_PATIENCE: Duration = Duration::from_secs(2);
/// How many dead letters one poll passes on: they count against no room.
const REJECTED_PER_POLL: usize = 256;
/// The shortest and the longest wait when nothing is ready.
const WAIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(8));
/// No slot: the partition is another subtask's.
const NOT_OURS: u32 = u32::MAX;

/// One partition that this subtask reads.
struct Slot {
    topic: usize,
    partition: i32,
    split: SplitId,
    /// The offset after the last record read.
    next: i64,
    reached: Arc<Reached>,
}

pub(super) struct Reader {
    who: String,
    topics: Vec<String>,
    /// None when no partition fell to this subtask.
    consumer: Option<BaseConsumer<ClientLog>>,
    slots: Vec<Slot>,
    /// Per topic and partition, the index into `slots`.
    slot_of: Vec<Vec<u32>>,
    announced: bool,
    wait: Duration,
    /// What the group is told; offsets are in the order of the slots.
    group: Group,
    /// Without checkpoints what was read is never read again.
    read_settles: bool,
}

impl Reader {
    pub(super) fn open(
        config: &KafkaConfig,
        topics: &[String],
        start: &Start,
        restored: &Restored,
        progress: &Progress,
        cx: &OperatorContext,
    ) -> Result<Reader> {
        let who = who(cx);
        // The library reads assigned partitions only with a group's name, though the group is not used.
        let (group, client) = (format!("weir-{}", cx.uid()), format!("weir-{who}"));
        let mut defaults = DEFAULTS.to_vec();
        defaults.extend([("group.id", &group[..]), ("client.id", &client[..])]);
        if config.embedded_broker().is_some() {
            // That broker answers a fetch that found nothing after the whole wait, even when something has come meanwhile.
            defaults.push(("fetch.wait.max.ms", "5"));
        }
        let settings = config.client(&defaults, FIXED)?;
        let consumer: BaseConsumer<ClientLog> = settings
            .create_with_context(ClientLog::committing(cx))
            .map_err(|e| TaskError::user("the Kafka client does not take its configuration").caused_by(e))?;
        let opened = Self::begin(&consumer, config, topics, (start, restored), progress, cx);
        let mut reader = match opened {
            Ok(slots) => Reader {
                who,
                topics: topics.to_vec(),
                consumer: None,
                slot_of: slot_table(topics.len(), &slots),
                slots,
                announced: false,
                wait: WAIT.0,
                group: Group::default(),
                read_settles: !cx.takes_checkpoints(),
            },
            Err(e) => {
                drop_within(format!("the Kafka consumer of {who}"), consumer, CLOSE_PATIENCE);
                return Err(e);
            }
        };
        if reader.slots.is_empty() {
            drop_within(format!("the Kafka consumer of {}", reader.who), consumer, CLOSE_PATIENCE);
        } else {
            reader.consumer = Some(consumer);
        }
        Ok(reader)
    }

    /// Finds this subtask's partitions and where they begin, and has the client fetch from there.
    fn begin(
        consumer: &BaseConsumer<ClientLog>,
        config: &KafkaConfig,
        topics: &[String],
        (start, restored): (&Start, &Restored),
        progress: &Progress,
        cx: &OperatorContext,
    ) -> Result<Vec<Slot>> {
        let mut counts = Vec::new();
        for topic in topics {
            let count = partitions_of_topic(consumer, config, topic, true, cx)?
                .ok_or_else(|| no_topic(config, topic, "create it, or name another"))?;
            if count > PER_TOPIC || topics.len() > PER_TOPIC as usize {
                let message = format!(
                    "topic {topic} has {count} partitions of {} topics: more than 65536",
                    topics.len()
                );
                return Err(TaskError::user(message));
            }
            counts.push(count);
        }
        check_offsets(start, topics, &counts)?;
        for topic in restored.left_out(topics) {
            tracing::warn!(operator = %cx.uid(), topic, "the checkpoint stands in a topic that is not read any more");
        }
        let own = assign(&counts, cx.subtask(), cx.parallelism());
        let mut begin = Begin { start, restored, group: BTreeMap::new() };
        if *start == Start::Group && !own.is_empty() {
            let of = own.iter().map(|p| (&topics[p.topic][..], p.partition));
            begin.group = committed(consumer, of, config.start_patience()).map_err(|e| {
                let brokers = config.broker_list();
                TaskError::external(format!("Kafka at {brokers} does not say what the group has committed"))
                    .caused_by(e)
            })?;
        }
        let (mut slots, mut assignment) = (Vec::new(), TopicPartitionList::new());
        for TopicPartition { topic, partition } in own {
            let name = &topics[topic];
            let (low, high) =
                consumer.fetch_watermarks(name, partition, config.start_patience()).map_err(|e| {
                    let message = format!(
                        "Kafka at {} does not say which offsets topic {name}, partition {partition} has",
                        config.broker_list()
                    );
                    TaskError::external(message).caused_by(e)
                })?;
            let next = begin.offset(name, partition, low, high)?;
            assignment.add_partition_offset(name, partition, Offset::Offset(next))?;
            let reached = progress.start(name, partition, next);
            let split = TopicPartition { topic, partition }.split();
            slots.push(Slot { topic, partition, split, next, reached });
            if cx.is_cancelled() {
                cx.wait(Duration::ZERO)?;
            }
        }
        if !slots.is_empty() {
            consumer.assign(&assignment).map_err(|e| {
                TaskError::external(format!("Kafka at {} does not assign partitions", config.broker_list()))
                    .caused_by(e)
            })?;
        }
        Ok(slots)
    }

    pub(super) fn poll<T, D: Decoder<T>>(
        &mut self,
        out: &mut SourceBatch<T>,
        decoder: &mut D,
        skip_tombstones: bool,
        budget: Duration,
    ) -> Result<SourceStatus> {
        if !std::mem::replace(&mut self.announced, true) {
            self.slots.iter().for_each(|slot| out.split_started(slot.split));
        }
        let Some(consumer) = &self.consumer else { return Ok(SourceStatus::Idle(Duration::from_secs(1))) };
        let mut taken = 0u64;
        let mut topic = 0;
        let mut patience = Patience::new(budget);
        let mut served = consumer.context().served();
        let drained = loop {
            if out.room() == 0 || out.rejected().len() >= REJECTED_PER_POLL {
                break false;
            }
            let message = match consumer.poll(Duration::ZERO) {
                Some(Ok(message)) => Some(message),
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    if let Some(split) = self.split_at_end(partition) {
                        out.split_drained(split);
                    }
                    None
                }
                Some(Err(e)) if judge(&e) == Verdict::RideOut => None,
                Some(Err(e)) => return Err(self.failure(consumer, e)),
                // The client also answers so when it has served an event of its own (rust-rdkafka issue 644), whatever
                // lies behind it. Only an empty queue may make the source idle.
                None => {
                    let now = consumer.context().served();
                    if std::mem::replace(&mut served, now) == now {
                        break true;
                    }
                    None
                }
            };
            let Some(message) = message else {
                if patience.is_over() {
                    break false;
                }
                continue;
            };
            if self.topics.len() > 1 && message.topic() != self.topics[topic] {
                topic = self.topics.iter().position(|t| t == message.topic()).unwrap_or(0);
            }
            let (partition, offset) = (message.partition(), message.offset());
            let slot = self.slot_of[topic].get(partition as usize).copied().unwrap_or(NOT_OURS);
            let Some(slot) = self.slots.get_mut(slot as usize) else {
                let (topic, who) = (message.topic(), &self.who);
                let message = format!(
                    "{who} got a record of topic {topic}, partition {partition}, which it does not read"
                );
                return Err(TaskError::internal(message));
            };
            slot.next = offset + 1;
            taken += 1;
            let reject = |out: &mut SourceBatch<T>, reason: String, payload: &[u8]| {
                out.reject(DeadLetter::new(message.topic(), partition, offset, reason, payload));
            };
            match message.payload() {
                Some(payload) => match decoder.decode(payload) {
                    Ok(value) => {
                        let time = message.timestamp().to_millis().map_or(EventTime::NONE, EventTime);
                        out.push(slot.split, value, time);
                    }
                    Err(reason) => reject(out, reason, payload),
                },
                None if skip_tombstones => {
                    if patience.is_over() {
                        break false;
                    }
                }
                None => {
                    let reason = "no payload: a tombstone (KafkaSource::skip_tombstones passes over them)";
                    reject(out, reason.to_owned(), &[]);
                }
            }
        };
        if taken > 0 {
            self.slots.iter().for_each(|slot| slot.reached.read(slot.next, self.read_settles));
            self.wait = WAIT.0;
        }
        if !drained {
            return Ok(SourceStatus::More);
        }
        let wait = self.wait;
        self.wait = (wait * 2).min(WAIT.1);
        Ok(SourceStatus::Idle(wait))
    }

    /// The split that has been read dry when the client says so of `partition`, without the topic: none when this subtask
    /// reads that number of several topics, for a split that is not dry must not be taken for one.
    fn split_at_end(&self, partition: i32) -> Option<SplitId> {
        let mut of = self.slots.iter().filter(|slot| slot.partition == partition);
        let slot = of.next()?;
        of.next().is_none().then_some(slot.split)
    }

    /// The error that ends the source, with all that the broker knows about it.
    #[cold]
    fn failure(&self, consumer: &BaseConsumer<ClientLog>, error: KafkaError) -> TaskError {
        let reason = consumer.context().last_reason();
        if judge(&error) != Verdict::RangeGone {
            let topics = self.topics.join(", ");
            let message = format!("Kafka source {} cannot go on reading {topics} ({reason})", self.who);
            return TaskError::external(message).caused_by(error);
        }
        // The client names the partition to its own logs only: ask which of ours has lost its place.
        let deadline = Instant::now() + WATERMARK_PATIENCE;
        let mut lost = Vec::new();
        for slot in &self.slots {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let topic = &self.topics[slot.topic];
            if let Ok((low, high)) = consumer.fetch_watermarks(topic, slot.partition, left)
                && !(low..=high).contains(&slot.next)
            {
                lost.push(gone(Wanted::Reader, topic, slot.partition, slot.next, low, high));
            }
        }
        if lost.is_empty() {
            let of = |s: &Slot| format!("{} {} at offset {}", self.topics[s.topic], s.partition, s.next);
            lost.push(format!(
                "the offset wanted is not on the broker, in one of: {}",
                self.slots.iter().map(of).collect::<Vec<_>>().join("; ")
            ));
        }
        TaskError::external(format!("{} ({reason})", lost.join("; "))).caused_by(error)
    }

    /// As positions are named.
    pub(super) fn split_name(&self, split: SplitId) -> Option<String> {
        let slot = self.slots.iter().find(|slot| slot.split == split)?;
        Some(position_name(&self.topics[slot.topic], slot.partition))
    }

    /// The offset of the next record of every partition, kept until it is known what became of the checkpoint.
    pub(super) fn positions(&mut self, barrier: Barrier) -> Vec<(String, serde_json::Value)> {
        self.group.keep(barrier.checkpoint, self.slots.iter().map(|slot| slot.next).collect());
        let name = |slot: &Slot| position_name(&self.topics[slot.topic], slot.partition);
        self.slots.iter().map(|slot| (name(slot), slot.next.into())).collect()
    }

    /// The offsets of a complete checkpoint, and no others, go to the group.
    pub(super) fn on_notice(&mut self, notice: Notice) {
        let Some(offsets) = self.group.notice(notice) else { return };
        self.slots.iter().zip(&offsets).for_each(|(slot, offset)| slot.reached.settle(*offset));
        if let Some(consumer) = &self.consumer {
            self.group.commit(consumer, partitions(&self.slots, &self.topics), offsets);
        }
    }

    pub(super) fn close(self, outcome: Closing) {
        let Some(consumer) = self.consumer else { return };
        if outcome == Closing::Ended {
            self.group.await_commit(&consumer, || partitions(&self.slots, &self.topics));
        }
        drop_within(format!("the Kafka consumer of {}", self.who), consumer, CLOSE_PATIENCE);
    }
}

/// The topics and partitions of these slots.
fn partitions<'a>(slots: &'a [Slot], topics: &'a [String]) -> impl Iterator<Item = (&'a str, i32)> {
    slots.iter().map(|slot| (&topics[slot.topic][..], slot.partition))
}

/// Per topic and partition, the index into `slots`.
fn slot_table(topics: usize, slots: &[Slot]) -> Vec<Vec<u32>> {
    let mut table = vec![Vec::new(); topics];
    for (i, slot) in slots.iter().enumerate() {
        let of: &mut Vec<u32> = &mut table[slot.topic];
        let at = slot.partition as usize;
        if of.len() <= at {
            of.resize(at + 1, NOT_OURS);
        }
        of[at] = i as u32;
    }
    table
}
