//! The pump's way to Kafka: a transactional producer, the transactions, and the newest marker of the control topic.
// HOT: per record one look at the chunk and one send, on the pump's thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};
use weir_engine::{OperatorContext, Result, Spool, TaskError};

use super::super::client::{ClientLog, drop_within, who};
use super::super::config::{Fixed, KafkaConfig};
use super::super::footprint::BUFFERED_KBYTES;
use super::super::recipe::owned;
use super::again::{end_of, flush, goes_on, put};
use super::failed::{Failed, fails, fate, passes};
use super::kept::Kept;
use super::machine::{Offer, Sent};
use super::marker::Marker;

/// Defaults that differ from the library's. `message.timeout.ms` is that of the transaction unless set.
/// A transaction holds all that a checkpoint kept back, so it gets the longest time that brokers allow unless told otherwise.
const DEFAULTS: &[(&str, &str)] = &[
    ("queue.buffering.max.kbytes", BUFFERED_KBYTES),
    ("log.connection.close", "false"),
    ("transaction.timeout.ms", "900000"),
];
const CHOSEN: &str = "an exactly-once sink lives by it; leave it out";
/// Properties that the sink lives by.
const FIXED: &[Fixed] = &[
    Fixed { property: "enable.idempotence", value: "true", instead: CHOSEN },
    Fixed { property: "acks", value: "all", instead: CHOSEN },
];
/// Properties of the job's consumers that the one for markers must not have.
const CONSUMERS: &[&str] = &[
    "group.id",
    "group.instance.id",
    "isolation.level",
    "enable.partition.eof",
    "enable.auto.commit",
    "auto.offset.reset",
    "client.rack",
];
const NAMED: &str = "transactional.id";
/// How long one call of the library may hold the pump.
pub(super) const SLICE: Duration = Duration::from_secs(2);
/// How long a step may get nowhere before its producer is replaced.
pub(super) const STEP: Duration = Duration::from_secs(60);
/// How long closing a client, and aborting what is open then, may take.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);
/// The newest marker is nearly always among so many of the last offsets of the control topic.
const NEAR: i64 = 1_000;
/// After so many records the library is asked for reports.
const POLL_EVERY: usize = 256;

pub(super) struct Line {
    config: KafkaConfig,
    who: String,
    topic: String,
    control: String,
    id: String,
    producer: Option<BaseProducer<ClientLog>>,
    open: bool,
}

impl Line {
    /// A way to `topic` under the transactional id `id`, with markers in `control`. Nothing is asked of a broker yet.
    ///
    /// # Errors
    /// When the client does not take its configuration.
    pub(super) fn new(
        config: &KafkaConfig,
        topic: &str,
        control: &str,
        id: &str,
        cx: &OperatorContext,
    ) -> Result<Line> {
        if config.sets_any(&[NAMED]) {
            let message = format!(
                "Kafka property {NAMED} cannot be used: it comes from the name of ExactlyOnce::named"
            );
            return Err(TaskError::user(message));
        }
        let line = Line {
            config: config.clone(),
            who: who(cx),
            topic: topic.to_owned(),
            control: control.to_owned(),
            id: id.to_owned(),
            producer: None,
            open: false,
        };
        // The start is the time to hear that a property does not fit.
        let trial = line.make()?;
        drop_within(format!("a Kafka producer of {}", line.who), trial, CLOSE_PATIENCE);
        Ok(line)
    }

    /// The sink's subtask that opened it.
    pub(super) fn who(&self) -> &str {
        &self.who
    }

    fn make(&self) -> Result<BaseProducer<ClientLog>> {
        let client = format!("weir-{}", self.id);
        let mut defaults = DEFAULTS.to_vec();
        defaults.extend([("client.id", &client[..]), (NAMED, &self.id)]);
        (self.config.client(&defaults, FIXED)?)
            .create_with_context(ClientLog::called(&self.who))
            .map_err(|e| TaskError::user("the Kafka client does not take its configuration").caused_by(e))
    }

    /// Makes a producer anew and has it fence the ones before, whose transactions are over then.
    ///
    /// *Blocking*: up to a minute; hears `stop` within two seconds.
    pub(super) fn replace(&mut self, stop: &AtomicBool) -> std::result::Result<(), Failed> {
        self.let_go();
        let in_doubt = |reason| Failed { sent: Sent::InDoubt, reason, hopeless: false };
        let producer = self.make().map_err(|e| in_doubt(e.chain()))?;
        let deadline = Instant::now() + STEP;
        let fenced = loop {
            match producer.init_transactions(SLICE) {
                Err(KafkaError::Transaction(e))
                    if e.is_retriable() && Instant::now() < deadline && !stop.load(Ordering::Acquire) => {}
                other => break other,
            }
        };
        match fenced {
            Ok(()) => {
                self.producer = Some(producer);
                Ok(())
            }
            Err(e) => {
                let reason = producer.context().last_reason();
                let what = format!("transactional id {} cannot be taken ({reason})", self.id);
                drop_within(format!("the Kafka producer of {}", self.who), producer, CLOSE_PATIENCE);
                Err(Failed::new(Sent::InDoubt, &what, &e))
            }
        }
    }

    /// The newest marker; none when there is none.
    ///
    /// *Blocking*: for a minute at most while nothing comes; hears `stop` within two seconds.
    pub(super) fn read_marker(&self, stop: &AtomicBool) -> std::result::Result<Option<Marker>, Failed> {
        let what = format!("the control topic {} cannot be read", self.control);
        let failed = |reason: String| Failed {
            sent: Sent::InDoubt,
            reason: format!("{what}: {reason}"),
            hopeless: false,
        };
        let group = format!("weir-{}", self.id);
        let settings = [
            ("group.id", &group[..]),
            ("isolation.level", "read_committed"),
            ("enable.partition.eof", "true"),
            ("enable.auto.commit", "false"),
            ("auto.offset.reset", "earliest"),
            ("log.connection.close", "false"),
        ];
        let consumer: BaseConsumer<ClientLog> = (self.config.without(CONSUMERS))
            .client(&settings, &[])
            .map_err(|e| failed(e.chain()))?
            .create_with_context(ClientLog::called(&self.who))
            .map_err(|e| Failed::new(Sent::InDoubt, &what, &e))?;
        let read = || -> KafkaResult<Option<Vec<u8>>> {
            // A broker that has just become the leader may not know yet how far the topic was acknowledged. To this question it answers
            // only once it does; to a fetch it would answer that the topic ends before that.
            let (low, high) = end_of(&consumer, &self.control, stop)?;
            // Only the newest record counts. What is between may be gone or of a transaction that was aborted.
            let near = (high - NEAR).max(low);
            match self.last_from(&consumer, near, stop)? {
                None if near > low => self.last_from(&consumer, low, stop),
                newest => Ok(newest),
            }
        };
        let newest = read().map_err(|e| Failed::new(Sent::InDoubt, &what, &e));
        drop_within(format!("the Kafka consumer of {}", self.who), consumer, CLOSE_PATIENCE);
        let Some(newest) = newest? else { return Ok(None) };
        let marker = serde_json::from_slice(&newest);
        marker
            .map(Some)
            .map_err(|e| Failed { hopeless: true, ..failed(format!("its newest record is no marker: {e}")) })
    }

    /// The last record of the control topic from an offset on.
    fn last_from(
        &self,
        consumer: &BaseConsumer<ClientLog>,
        offset: i64,
        stop: &AtomicBool,
    ) -> KafkaResult<Option<Vec<u8>>> {
        let mut assignment = TopicPartitionList::new();
        assignment.add_partition_offset(&self.control, 0, Offset::Offset(offset))?;
        consumer.assign(&assignment)?;
        let (mut newest, mut heard) = (None, Instant::now());
        // All transactions of this id are over, and nobody else writes here: the end for those who read what is committed is the
        // end of the topic.
        loop {
            match consumer.poll(Duration::from_millis(500)) {
                Some(Ok(message)) => {
                    newest = message.payload().map(<[u8]>::to_vec);
                    heard = Instant::now();
                }
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(newest),
                Some(Err(e)) if e.rdkafka_error_code().is_some_and(passes) => {}
                Some(Err(e)) => return Err(e),
                None => {}
            }
            if heard.elapsed() > STEP || stop.load(Ordering::Acquire) {
                return Err(KafkaError::MessageConsumption(Code::OperationTimedOut));
            }
        }
    }

    /// Writes pieces and marker in one transaction.
    ///
    /// *Blocking*: until it is committed or has failed; hears `stop` within two seconds.
    pub(super) fn send(
        &mut self,
        offer: &Offer,
        spools: &[Spool],
        stop: &AtomicBool,
    ) -> std::result::Result<(), Failed> {
        let Some(producer) = &self.producer else {
            return Err(Failed {
                sent: Sent::InDoubt,
                reason: "there is no producer".to_owned(),
                hopeless: false,
            });
        };
        let failed = |what: &str, e: KafkaError| Failed::new(fate(producer, &e), what, &e);
        let damaged = |reason: String| Failed { sent: Sent::Abortable, reason, hopeless: true };
        producer
            .begin_transaction()
            .map_err(|e| Failed::new(Sent::InDoubt, "a transaction cannot begin", &e))?;
        self.open = true;
        fails("kafka::after_begin", Sent::Abortable)?;
        let (mut chunk, mut records) = (Vec::new(), 0);
        for piece in offer.pieces.iter().filter(|piece| piece.chunks > 0) {
            let spool = (spools.iter().find(|spool| spool.has(piece)))
                .ok_or_else(|| damaged(format!("no subtask has {piece:?}")))?;
            for n in 0..piece.chunks {
                spool.read(piece, n, &mut chunk).map_err(|e| damaged(e.chain()))?;
                let mut left = &chunk[..];
                while !left.is_empty() {
                    let kept = Kept::take(&mut left)
                        .ok_or_else(|| damaged(format!("chunk {n} of {piece:?} is damaged")))?;
                    put(producer, record(&self.topic, &kept), stop).map_err(|e| {
                        e.map_or_else(Failed::stopping, |e| failed("a record cannot be sent", e))
                    })?;
                    records += 1;
                    if records % POLL_EVERY == 0 {
                        producer.poll(Duration::ZERO);
                    }
                }
                if stop.load(Ordering::Acquire) {
                    return Err(Failed::stopping());
                }
            }
        }
        let marker =
            serde_json::to_vec(&offer.marker).map_err(|e| damaged(format!("a marker is no JSON: {e}")))?;
        let marker = BaseRecord::to(&self.control).partition(0).key(&self.id[..]).payload(&marker[..]);
        put(producer, marker, stop)
            .map_err(|e| e.map_or_else(Failed::stopping, |e| failed("the marker cannot be sent", e)))?;
        fails("kafka::after_produce", Sent::Abortable)?;
        flush(producer, stop).map_err(|e| {
            e.map_or_else(Failed::stopping, |e| failed("what was written is not acknowledged", e))
        })?;
        let deadline = Instant::now() + STEP;
        fails("kafka::before_commit", Sent::InDoubt)?;
        loop {
            match producer.commit_transaction(SLICE) {
                Ok(()) => break,
                Err(e) if goes_on(&e) => {
                    if stop.load(Ordering::Acquire) || Instant::now() > deadline {
                        let reason = format!("whether a transaction took effect is not known: {e}");
                        return Err(Failed { sent: Sent::InDoubt, reason, hopeless: false });
                    }
                }
                Err(e) => {
                    let what = format!(
                        "a transaction of {records} records failed ({})",
                        producer.context().last_reason()
                    );
                    let sent = match &e {
                        KafkaError::Transaction(t) if t.txn_requires_abort() => Sent::Abortable,
                        _ => Sent::InDoubt,
                    };
                    return Err(Failed::new(sent, &what, &e));
                }
            }
        }
        self.open = false;
        fails("kafka::after_commit", Sent::InDoubt)
    }

    /// Aborts the open transaction: what is under way is waited for first, since an abort beside it ends fatally at times.
    ///
    /// *Blocking*: up to half a minute.
    pub(super) fn abort(&mut self) -> KafkaResult<()> {
        self.abort_within(STEP / 2)
    }

    fn abort_within(&mut self, patience: Duration) -> KafkaResult<()> {
        let Some(producer) = self.producer.as_ref().filter(|_| self.open) else { return Ok(()) };
        let deadline = Instant::now() + patience;
        let left = || deadline.saturating_duration_since(Instant::now());
        producer.flush(patience / 2)?;
        loop {
            match producer.abort_transaction(left().min(SLICE)) {
                Err(KafkaError::Transaction(e)) if e.is_retriable() && !left().is_zero() => {}
                other => {
                    self.open &= other.is_err();
                    return other;
                }
            }
        }
    }

    /// Lets the client say what it has to say.
    pub(super) fn idle(&self) {
        if let Some(producer) = &self.producer {
            producer.poll(Duration::ZERO);
        }
    }

    fn let_go(&mut self) {
        self.open = false;
        if let Some(producer) = self.producer.take() {
            drop_within(format!("the Kafka producer of {}", self.who), producer, CLOSE_PATIENCE);
        }
    }

    /// Aborts what is open and lets go of the client.
    ///
    /// *Blocking*: for some seconds at most.
    pub(super) fn close(&mut self) {
        if let Err(e) = self.abort_within(CLOSE_PATIENCE) {
            // The next life ends it when it takes over.
            tracing::debug!(operator = &self.who[..], "an open transaction is left behind: {e}");
        }
        self.let_go();
    }
}

fn record<'a>(topic: &'a str, kept: &Kept<'a>) -> BaseRecord<'a, [u8], [u8]> {
    let mut record: BaseRecord<'a, [u8], [u8]> = BaseRecord::to(topic).partition(kept.partition);
    (record.key, record.payload, record.timestamp) = (kept.key, kept.payload, kept.time);
    record.headers = owned(kept.headers);
    record
}
