//! Writes a Kafka topic: one client for all subtasks, keys where the Java client puts them, nothing lost between flushes.
//! (over 400 lines: the sink's whole DSL with its documentation)

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde::Serialize;
use weir_engine::memory::Footprint;
use weir_engine::{
    Barrier, Closing, Data, DeadLetter, OperatorContext, OperatorUid, Record, Result, Sink, TaskError,
};

use super::admin;
use super::client::who;
use super::config::KafkaConfig;
use super::exactly_once::{ExactlyOnce, PREPARED, Pump, Spooler, is_kept_back};
use super::footprint;
use super::progress::Progress;
use super::recipe::{Headers, Recipe};
use super::record::{KafkaRecord, Records};
use super::topic;
use super::window::Window;
use super::writer::{SinkClient, Writer};
use crate::format::{Bytes, Encoder, Json};

/// Well under what the in-process broker keeps (5 MiB or 100,000 batches): it drops batches of up to 1 MB whole, and one
/// that is half read must stay.
const WINDOW: Window = Window { records: 50_000, bytes: 3 << 20 };
/// How long undoing a failed start may take.
const UNDO_PATIENCE: Duration = Duration::from_secs(3);

/// Writes every record to one topic: at least once, or [exactly once](KafkaSink::exactly_once). At least once, `flush` returns when the brokers have acknowledged all of them.
///
/// *Client*: one for all subtasks of the sink, made at the start and gone at the end. It is idempotent, so a retry writes nothing
/// twice, unless a property forbids that (`acks=1`, `retries=0`, more than five requests in flight): then one request is in
/// flight at a time unless you say otherwise. `acks=0` is refused.
///
/// *Partition*: with a key, the one that the Java client's default partitioner gives it; without, the next in turn. The
/// number of partitions is that of the start.
///
/// *Time*: the record's time, in milliseconds since the epoch, becomes the Kafka timestamp; a time at or before the
/// epoch, or none, cannot, and the time of sending takes its place.
///
/// *Blocking*: while the client's queue is full, while a followed reader is behind, and in `flush`; all of these hear
/// cancellation. A record that is not acknowledged within `message.timeout.ms` (two minutes unless set) fails the job.
pub struct KafkaSink<T, E> {
    config: KafkaConfig,
    topic: String,
    encoder: E,
    recipe: Recipe<T>,
    exactly_once: Option<ExactlyOnce>,
    create: Option<i32>,
    follow: Option<(Progress, Window)>,
    shared: Arc<Shared>,
    open: Option<Open>,
}

/// What a subtask writes through.
enum Open {
    AtLeastOnce(Writer),
    ExactlyOnce(Spooler),
}

/// What the subtasks of a sink have in common, through all starts of the job.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    client: Weak<SinkClient>,
    /// With whose it is, and the topic's partitions.
    pump: Option<(OperatorUid, Weak<Pump>)>,
    partitions: i32,
    /// This start has created the topic, and no record has flowed since.
    created: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Both fields are whole between statements, whoever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Serialize> KafkaSink<T, Json> {
    /// Writes records as JSON.
    pub fn json(config: &KafkaConfig, topic: impl Into<String>) -> Self {
        KafkaSink::encoded(config, topic, Json)
    }
}

impl<T: AsRef<[u8]>> KafkaSink<T, Bytes> {
    /// Writes records as they are.
    pub fn bytes(config: &KafkaConfig, topic: impl Into<String>) -> Self {
        KafkaSink::encoded(config, topic, Bytes)
    }
}

impl KafkaSink<KafkaRecord, Records> {
    /// Writes whole records as they were read: keys, payloads, tombstones, headers and times. The partition is that of the key,
    /// unless [`KafkaSink::partition`] says another.
    pub fn records(config: &KafkaConfig, topic: impl Into<String>) -> Self {
        KafkaSink::encoded(config, topic, Records::default())
            .key_into(|record: &KafkaRecord, out| match &record.key {
                Some(key) => {
                    out.extend_from_slice(key);
                    true
                }
                None => false,
            })
            .headers(|record, headers| headers.clone_from(&record.headers))
            .tombstone_if(|record| record.payload.is_none())
    }
}

impl<T, E> KafkaSink<T, E> {
    /// Writes records as an encoder of your own makes them.
    pub fn encoded(config: &KafkaConfig, topic: impl Into<String>, encoder: E) -> Self {
        KafkaSink {
            config: config.clone(),
            topic: topic.into(),
            encoder,
            recipe: Recipe::default(),
            exactly_once: None,
            create: None,
            follow: None,
            shared: Arc::default(),
            open: None,
        }
    }

    /// Gives every record a key: records of one key stay in order and in one partition.
    #[must_use]
    pub fn key<K: AsRef<[u8]>>(mut self, key: impl Fn(&T) -> K + Send + Sync + 'static) -> Self {
        self.recipe.set_key(move |value, out| {
            out.extend_from_slice(key(value).as_ref());
            true
        });
        self
    }

    /// As [`KafkaSink::key`], for records of which some have no key: writes it into the buffer and answers whether there is
    /// one.
    #[must_use]
    pub fn key_into(mut self, key: impl Fn(&T, &mut Vec<u8>) -> bool + Send + Sync + 'static) -> Self {
        self.recipe.set_key(key);
        self
    }

    /// Gives every record headers.
    #[must_use]
    pub fn headers(mut self, headers: impl Fn(&T, &mut Headers) + Send + Sync + 'static) -> Self {
        self.recipe.set_headers(headers);
        self
    }

    /// Says which partition a record goes to, whatever its key. One that is not there fails the job.
    #[must_use]
    pub fn partition(mut self, partition: impl Fn(&T) -> i32 + Send + Sync + 'static) -> Self {
        self.recipe.set_partition(partition);
        self
    }

    /// Writes a tombstone, a record without a payload, for values that this is true for: on a compacted topic it deletes the
    /// key.
    #[must_use]
    pub fn tombstone_if(mut self, is: impl Fn(&T) -> bool + Send + Sync + 'static) -> Self {
        self.recipe.set_tombstone(is);
        self
    }

    /// Writes each record exactly once, for consumers that read `read_committed`: what is written between two checkpoints
    /// becomes visible in one transaction once the second is complete. See [`ExactlyOnce`]. Not together with
    /// [`KafkaSink::follow`].
    #[must_use]
    pub fn exactly_once(mut self, how: ExactlyOnce) -> Self {
        self.exactly_once = Some(how);
        self
    }

    /// Gives records that cannot be written, since they cannot be encoded or are too large, to `take` as dead letters and goes on:
    /// with the topic, the reason and the bytes that there are, and -1 for partition and offset. They are counted (`dead_letters`).
    /// Without this they fail the job. After a restart the same record may be given again, at least once. `take` is called on the
    /// task's thread.
    ///
    /// ```
    /// use weir_connectors::kafka::{KafkaConfig, KafkaSink};
    /// let kafka = KafkaConfig::brokers("kafka-1:9092");
    /// let sink = KafkaSink::<Vec<u8>, _>::bytes(&kafka, "t").reject_to(|letter| eprintln!("{}: {}", letter.origin, letter.reason));
    /// # drop(sink);
    /// ```
    #[must_use]
    pub fn reject_to(mut self, take: impl Fn(DeadLetter) + Send + Sync + 'static) -> Self {
        self.recipe.set_rejects(take);
        self
    }

    /// Creates the topic with this many partitions (and the broker's default replication) when it is not there; fewer than
    /// one fail the start, whether or not it is there. When the start then fails before any record flows, the topic is deleted again.
    #[must_use]
    pub fn create_topic(mut self, partitions: i32) -> Self {
        self.create = Some(partitions);
        self
    }

    /// Never writes so far ahead of a reader that a broker with little room, such as the one in this process, drops what
    /// was not read: 50,000 records or 3 MiB a partition, unless [`KafkaSink::follow_window`] says otherwise. This sink
    /// must be the topic's only writer.
    ///
    /// A reader whose job takes checkpoints may go back to the last complete one, so that is what is followed then. The writer
    /// must be in another job: it would hold back the checkpoint that it waits for.
    #[must_use]
    pub fn follow(mut self, reader: Progress) -> Self {
        self.follow = Some((reader, WINDOW));
        self
    }

    /// How far ahead of a followed reader a partition may be, in records and in bytes with their overhead. No effect
    /// before [`KafkaSink::follow`].
    #[must_use]
    pub fn follow_window(mut self, records: u64, bytes: u64) -> Self {
        if let Some((_, window)) = &mut self.follow {
            *window = Window { records, bytes };
        }
        self
    }
}

impl<T: Data, E: Encoder<T>> KafkaSink<T, E> {
    /// The client of all subtasks, made by the first that asks.
    fn client(&self, cx: &OperatorContext) -> Result<Arc<SinkClient>> {
        let mut state = self.shared.lock();
        if cx.is_cancelled() {
            // Another subtask has failed to make it while this one waited for the lock: do not wait as long again.
            cx.wait(Duration::ZERO)?;
        }
        if let Some(client) = state.client.upgrade() {
            return Ok(client);
        }
        let mut created = false;
        let opened =
            SinkClient::open(&self.config, &self.topic, self.create, self.follow.is_some(), &mut created, cx);
        match opened {
            Ok(client) => {
                let client = Arc::new(client);
                state.client = Arc::downgrade(&client);
                state.created = created;
                Ok(client)
            }
            Err(e) => {
                if created {
                    self.undo_topic(cx);
                }
                Err(e)
            }
        }
    }

    /// One subtask's side of the pump, which the first that asks starts.
    fn spooler(&self, how: &ExactlyOnce, cx: &OperatorContext) -> Result<Spooler> {
        how.check(self.follow.is_some(), cx)?;
        let mut state = self.shared.lock();
        cx.not_cancelled()?;
        let running = state.pump.as_ref().and_then(|(uid, pump)| Some((uid, pump.upgrade()?)));
        let pump = match running {
            Some((uid, _)) if uid != cx.uid() => {
                return Err(TaskError::user(format!(
                    "the same exactly-once Kafka sink was given to operators {uid} and {}: give each a sink of its own, with a name of \
                     its own (ExactlyOnce::named)",
                    cx.uid()
                )));
            }
            Some((_, pump)) => pump,
            None => {
                let mut created = false;
                let started =
                    SinkClient::find(&self.config, &self.topic, self.create, false, &mut created, cx)
                        .and_then(|(partitions, _)| {
                            Ok((partitions, how.start(&self.config, &self.topic, cx)?))
                        });
                let (partitions, pump) = match started {
                    Ok((partitions, pump)) => (partitions, Arc::new(pump)),
                    Err(e) => {
                        if created {
                            self.undo_topic(cx);
                        }
                        return Err(e);
                    }
                };
                // What a checkpoint kept back becomes visible in it before any record flows.
                state.created = created && cx.restored(PREPARED).is_empty();
                state.pump = Some((cx.uid().clone(), Arc::downgrade(&pump)));
                state.partitions = partitions;
                pump
            }
        };
        how.spooler(pump, &self.config, &self.topic, state.partitions, cx)
    }

    /// Deletes the topic that this start has created.
    fn undo_topic(&self, cx: &OperatorContext) {
        match admin::delete_topic(&self.config, &self.topic, UNDO_PATIENCE, &who(cx)) {
            Ok(()) => tracing::info!("topic {} is deleted again: the start failed", self.topic),
            Err(e) => tracing::error!("the start failed and left topic {} behind: {}", self.topic, e.chain()),
        }
    }
}

impl<T: Data, E: Encoder<T>> Sink<T> for KafkaSink<T, E> {
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        match self.create {
            Some(partitions) => topic::check_new(&self.topic, partitions)?,
            None => topic::check_name(&self.topic)?,
        }
        self.encoder.open(cx)?;
        self.open = Some(match &self.exactly_once {
            Some(how) => Open::ExactlyOnce(self.spooler(how, cx)?),
            None => Open::AtLeastOnce(Writer::new(self.client(cx)?, self.follow.clone(), cx)),
        });
        Ok(())
    }

    fn write(&mut self, batch: &mut Vec<Record<T>>) -> Result<()> {
        match &mut self.open {
            Some(Open::AtLeastOnce(writer)) => writer.write(batch, &mut self.encoder, &mut self.recipe),
            Some(Open::ExactlyOnce(spooler)) => spooler.write(batch, &mut self.encoder, &mut self.recipe),
            None => Err(TaskError::internal("a Kafka sink was written to before it was opened")),
        }
    }

    fn flush(&mut self) -> Result<()> {
        match &mut self.open {
            Some(Open::AtLeastOnce(writer)) => writer.flush(),
            // What is kept back is in the checkpoint, and goes out when that is complete.
            _ => Ok(()),
        }
    }

    fn prepare(&mut self, barrier: Barrier) -> Result<Option<serde_json::Value>> {
        match &mut self.open {
            Some(Open::ExactlyOnce(spooler)) => spooler.prepare(barrier).map(Some),
            _ => Ok(None),
        }
    }

    fn commit(&mut self, prepared: serde_json::Value) -> Result<()> {
        match &mut self.open {
            Some(Open::ExactlyOnce(spooler)) => spooler.commit(&prepared),
            _ => Err(kept_back(&prepared)),
        }
    }

    fn recover(&mut self, prepared: Option<Vec<serde_json::Value>>) -> Result<()> {
        match &mut self.open {
            // The pump has read them all: which subtask has which bytes goes by key groups.
            Some(Open::ExactlyOnce(spooler)) => spooler.begin(),
            _ => prepared.into_iter().flatten().next().map_or(Ok(()), |prepared| Err(kept_back(&prepared))),
        }
    }

    fn close(&mut self, outcome: Closing) {
        let cx = match self.open.take() {
            Some(Open::AtLeastOnce(writer)) => writer.close(),
            Some(Open::ExactlyOnce(spooler)) => spooler.close(),
            None => return,
        };
        // Only a topic that no record of this or an earlier life can be in is deleted.
        let created = std::mem::take(&mut self.shared.lock().created);
        if created && outcome == Closing::NeverRan {
            self.undo_topic(&cx);
        }
    }

    fn footprint(&self) -> Footprint {
        footprint::producer(&self.config, self.create, self.exactly_once.is_some())
            .and(self.encoder.footprint())
    }
}

/// What a sink that writes at once says of records that one of an earlier life has kept back.
fn kept_back(prepared: &serde_json::Value) -> TaskError {
    let what = if is_kept_back(prepared) {
        "records that an exactly-once Kafka sink has kept back: restore it with ExactlyOnce; to write at once from now on, give this sink a uid of its own and let the former's state go (Checkpoints::drop_state) once all of it is visible"
    } else {
        "something that no Kafka sink has prepared: was there another sink under this uid? Give this one a uid of its own"
    };
    TaskError::user(format!("the checkpoint holds {what}"))
}

impl<T, E: Clone> Clone for KafkaSink<T, E> {
    /// The recipe, sharing the client; what is open stays with the original.
    fn clone(&self) -> Self {
        KafkaSink {
            config: self.config.clone(),
            topic: self.topic.clone(),
            encoder: self.encoder.clone(),
            recipe: self.recipe.clone(),
            exactly_once: self.exactly_once.clone(),
            create: self.create,
            follow: self.follow.clone(),
            shared: Arc::clone(&self.shared),
            open: None,
        }
    }
}

impl<T, E> fmt::Debug for KafkaSink<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSink")
            .field("config", &self.config)
            .field("topic", &self.topic)
            .field("keyed", &self.recipe.is_keyed())
            .field("exactly_once", &self.exactly_once)
            .field("create", &self.create)
            .field("follow", &self.follow.as_ref().map(|(_, window)| window))
            .finish_non_exhaustive()
    }
}
