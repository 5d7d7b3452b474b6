//! The producer that a sink's subtasks share, and one subtask's side of it: what it sent, and what came of that.
// HOT: per record one encode and one send. Reports come in by the batch, on the threads that write.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use rdkafka::types::RDKafkaErrorCode as Code;
use weir_engine::{EventTime, OperatorContext, Record, Result, TaskError};

use super::admin;
use super::client::{ClientLog, drop_within, no_topic, partitions_of_topic, who};
use super::config::KafkaConfig;
use super::errors::NowAndThen;
use super::exactly_once::kafka_time;
use super::progress::{Progress, Reached};
use super::properties;
use super::recipe::{Recipe, owned};
use super::window::{Ledger, Window};
use crate::format::Encoder;

const MESSAGE_TIMEOUT_MS: u64 = 120_000;
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// The slices in which a full queue, a reader behind and a flush are waited for.
const SLICE: Duration = Duration::from_millis(1);

/// What came of one subtask's records.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Records that were acknowledged or given up.
    settled: AtomicU64,
    failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

#[derive(Debug)]
struct Failure {
    count: u64,
    partition: i32,
    error: KafkaError,
}

/// Hears what came of records, on whichever thread polls the client.
pub(super) struct Reports {
    log: ClientLog,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.log.log(level, facility, line);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.log.stats_raw(statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.log.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Arc<Account>;

    fn delivery(&self, result: &DeliveryResult<'_>, account: Arc<Account>) {
        if let Err((error, record)) = result {
            let mut failure = account.failure.lock().unwrap_or_else(PoisonError::into_inner);
            let first = || Failure { count: 0, partition: record.partition(), error: error.clone() };
            failure.get_or_insert_with(first).count += 1;
            account.failed.store(true, Ordering::Release);
        }
        account.settled.fetch_add(1, Ordering::Release);
    }
}

/// Per partition, where it began when it was opened, and what was written; empty unless a reader is followed.
pub(super) type Ledgers = Vec<(i64, Mutex<Ledger>)>;

/// The producer of all subtasks.
pub(super) struct SinkClient {
    producer: BaseProducer<Reports>,
    topic: String,
    partitions: i32,
    ledgers: Ledgers,
    /// None: as long as it takes.
    flush_patience: Option<Duration>,
}

impl SinkClient {
    /// Finds the topic, or makes it (and says so in `created`), and connects.
    ///
    /// *Blocking*: up to the configured patience, once or twice.
    pub(super) fn open(
        config: &KafkaConfig,
        topic: &str,
        create: Option<i32>,
        follow: bool,
        created: &mut bool,
        cx: &OperatorContext,
    ) -> Result<SinkClient> {
        properties::check(config)?;
        let (partitions, ledgers) = Self::find(config, topic, create, follow, created, cx)?;
        let client = format!("weir-{}", cx.uid());
        let mut defaults = properties::defaults(config);
        defaults.push(("client.id", &client));
        let reports = Reports { log: ClientLog::new(cx) };
        let producer =
            config.client(&defaults, properties::FIXED)?.create_with_context(reports).map_err(refused)?;
        let flush_patience =
            config.limit("message.timeout.ms", MESSAGE_TIMEOUT_MS).map(|limit| limit + CLOSE_PATIENCE);
        Ok(SinkClient { producer, topic: topic.to_owned(), partitions, ledgers, flush_patience })
    }

    /// Finds the topic's partitions, or makes it.
    ///
    /// *Blocking*: up to the configured patience, once or twice.
    pub(super) fn find(
        config: &KafkaConfig,
        topic: &str,
        create: Option<i32>,
        follow: bool,
        created: &mut bool,
        cx: &OperatorContext,
    ) -> Result<(i32, Ledgers)> {
        // Asked by a consumer: a producer's question would have a broker create the topic in passing.
        let lookup = config.client(&[("log.connection.close", "false")], &[])?;
        let lookup: BaseConsumer<ClientLog> =
            lookup.create_with_context(ClientLog::new(cx)).map_err(refused)?;
        let looked = Self::look(&lookup, config, topic, create, follow, created, cx);
        drop_within(format!("the Kafka client that looked for topic {topic}"), lookup, CLOSE_PATIENCE);
        looked
    }

    fn look(
        lookup: &BaseConsumer<ClientLog>,
        config: &KafkaConfig,
        topic: &str,
        create: Option<i32>,
        follow: bool,
        created: &mut bool,
        cx: &OperatorContext,
    ) -> Result<(i32, Ledgers)> {
        let mut found = partitions_of_topic(lookup, config, topic, create.is_none(), cx)?;
        if found.is_none()
            && let Some(partitions) = create
        {
            *created = admin::create_topic(config, topic, partitions, &[], &who(cx))?;
            found = partitions_of_topic(lookup, config, topic, true, cx)?;
        }
        let what = "create it, or let the sink do so with create_topic(partitions)";
        let partitions = found.ok_or_else(|| no_topic(config, topic, what))? as i32;
        let mut ledgers = Vec::new();
        for partition in 0..if follow { partitions } else { 0 } {
            let (low, high) = lookup.fetch_watermarks(topic, partition, config.start_patience()).map_err(|e| {
                let brokers = config.broker_list();
                let message = format!("Kafka at {brokers} does not say which offsets topic {topic}, partition {partition} has");
                TaskError::external(message).caused_by(e)
            })?;
            ledgers.push((low, Mutex::new(Ledger::new(high))));
        }
        Ok((partitions, ledgers))
    }
}

fn refused(e: KafkaError) -> TaskError {
    TaskError::user("the Kafka client does not take its configuration").caused_by(e)
}

/// Takes in reports; true when there were some about `account`.
fn settle(client: &SinkClient, account: &Account) -> bool {
    let mut any = false;
    // A report is about a batch of one partition, whoever sent it. The bound keeps one writer from reading for all.
    for _ in 0..64 {
        let before = account.settled.load(Ordering::Acquire);
        client.producer.poll(Duration::ZERO);
        if account.settled.load(Ordering::Acquire) == before {
            break;
        }
        any = true;
    }
    any
}

/// An error when a record of `account` was given up.
fn check(client: &SinkClient, account: &Account) -> Result<()> {
    if !account.failed.load(Ordering::Acquire) {
        return Ok(());
    }
    let failure = account.failure.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Failure { count, partition, error }) = &*failure else { return Ok(()) };
    let reason = client.producer.context().log.last_reason();
    let message = format!(
        "{count} records for topic {} were not delivered, the first of them to partition {partition} ({reason})",
        client.topic
    );
    Err(TaskError::external(message).caused_by(error.clone()))
}

/// One subtask's side of the client.
pub(super) struct Writer {
    client: Arc<SinkClient>,
    account: Arc<Account>,
    /// Records given to the client.
    sent: u64,
    next_partition: i32,
    following: Option<Following>,
    cx: OperatorContext,
}

/// The reader that this subtask does not run away from.
struct Following {
    progress: Progress,
    window: Window,
    /// Per partition, once the reader has opened it.
    read: Vec<Option<Arc<Reached>>>,
    waits: NowAndThen,
}

impl Writer {
    pub(super) fn new(
        client: Arc<SinkClient>,
        follow: Option<(Progress, Window)>,
        cx: &OperatorContext,
    ) -> Self {
        let following = follow.map(|(progress, window)| Following {
            progress,
            window,
            read: vec![None; client.partitions as usize],
            waits: NowAndThen::default(),
        });
        Writer {
            account: Arc::default(),
            sent: 0,
            next_partition: cx.subtask() as i32 % client.partitions,
            client,
            following,
            cx: cx.clone(),
        }
    }

    pub(super) fn write<T, E: Encoder<T>>(
        &mut self,
        batch: &mut Vec<Record<T>>,
        encoder: &mut E,
        recipe: &mut Recipe<T>,
    ) -> Result<()> {
        for record in batch.drain(..) {
            if let Err(reason) = recipe.make(&record.value, encoder) {
                recipe.reject(&self.client.topic, reason, &self.cx)?;
                continue;
            }
            let partition =
                recipe.partition(&record.value, self.client.partitions, &mut self.next_partition)?;
            let (key, payload, headers) = (recipe.key(), recipe.payload(), recipe.headers());
            let bytes = key.map_or(0, <[u8]>::len) + payload.map_or(0, <[u8]>::len) + headers.len();
            self.wait_for_reader(partition, bytes)?;
            if !self.send(partition, record.time, (key, payload, headers))? {
                let reason = format!(
                    "{bytes} bytes for partition {partition} are more than message.max.bytes allows: raise it, here and on the broker"
                );
                recipe.reject(&self.client.topic, reason, &self.cx)?;
            }
        }
        self.settle();
        self.check()
    }

    /// False when the record is larger than the client takes.
    fn send(
        &mut self,
        partition: i32,
        time: EventTime,
        (key, payload, headers): (Option<&[u8]>, Option<&[u8]>, &[u8]),
    ) -> Result<bool> {
        let mut record: BaseRecord<'_, [u8], [u8], Arc<Account>> =
            BaseRecord::with_opaque_to(&self.client.topic, Arc::clone(&self.account)).partition(partition);
        (record.key, record.payload, record.timestamp) = (key, payload, kafka_time(time));
        record.headers = owned(headers);
        loop {
            match self.client.producer.send(record) {
                Ok(()) => {
                    self.sent += 1;
                    return Ok(true);
                }
                Err((KafkaError::MessageProduction(Code::MessageSizeTooLarge), _)) => return Ok(false),
                Err((KafkaError::MessageProduction(Code::QueueFull), back)) => {
                    record = back;
                    // Room comes with reports; without any it takes time.
                    if !self.settle() {
                        self.cx.wait(SLICE)?;
                    }
                    self.check()?;
                }
                Err((e, _)) => {
                    let topic = &self.client.topic;
                    let why = self.client.producer.client().fatal_error().map(|(_, why)| format!(" ({why})"));
                    let message = format!(
                        "a record of {} bytes cannot be sent to topic {topic}, partition {partition}{}",
                        payload.map_or(0, <[u8]>::len),
                        why.unwrap_or_default()
                    );
                    return Err(TaskError::external(message).caused_by(e));
                }
            }
        }
    }

    /// Waits until the record at hand fits into the followed reader's window.
    fn wait_for_reader(&mut self, partition: i32, len: usize) -> Result<()> {
        let Some(following) = &mut self.following else { return Ok(()) };
        let (low, ledger) = &self.client.ledgers[partition as usize];
        let start = Instant::now();
        loop {
            let topic = &self.client.topic;
            let known = &mut following.read[partition as usize];
            if known.is_none() {
                *known = following.progress.partition(topic, partition);
            }
            let read = known.as_ref().map_or(*low, |reached| reached.settled());
            {
                let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
                if ledger.add(len, read, following.window) {
                    return Ok(());
                }
                if start.elapsed() > Duration::from_secs(10)
                    && following.waits.may_say(Instant::now()).is_some()
                {
                    let reader = if known.is_some() {
                        "its reader, or the last complete checkpoint of its job, is at offset"
                    } else {
                        "nobody reads it from offset"
                    };
                    let unread = ledger.unread(read);
                    let hint = if self.cx.takes_checkpoints() {
                        " (if that is this job, it waits for itself: write from another)"
                    } else {
                        ""
                    };
                    tracing::warn!(
                        "holding back: topic {topic}, partition {partition} has {unread} unread records; {reader} {read}{hint}"
                    );
                }
            }
            settle(&self.client, &self.account);
            check(&self.client, &self.account)?;
            self.cx.wait(SLICE)?;
        }
    }

    /// Takes in reports; true when there were some of this subtask's records.
    fn settle(&self) -> bool {
        settle(&self.client, &self.account)
    }

    /// An error when a record was given up.
    fn check(&self) -> Result<()> {
        check(&self.client, &self.account)
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        let began = Instant::now();
        loop {
            self.settle();
            self.check()?;
            let open = self.sent - self.account.settled.load(Ordering::Acquire);
            if open == 0 {
                return Ok(());
            }
            if let Some(patience) = self.client.flush_patience
                && began.elapsed() > patience
            {
                let topic = &self.client.topic;
                let reason = self.client.producer.context().log.last_reason();
                let message = format!(
                    "{open} records for topic {topic} are not acknowledged after {patience:?} ({reason})"
                );
                return Err(TaskError::external(message));
            }
            self.cx.wait(SLICE)?;
        }
    }

    /// Lets go of the client; the last subtask closes it, giving up what was not flushed.
    pub(super) fn close(self) -> OperatorContext {
        let Writer { client, cx, .. } = self;
        if let Some(client) = Arc::into_inner(client) {
            drop_within(format!("the Kafka producer of {}", cx.uid()), client, CLOSE_PATIENCE);
        }
        cx
    }
}
