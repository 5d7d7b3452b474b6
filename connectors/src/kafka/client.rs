//! What sources and sinks share of the client library: its logs, finding topics, and letting go of a client in time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel as Level;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::producer::{DeliveryResult, ProducerContext};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr as Resp};
use weir_engine::{Counter, OperatorContext, Result, TaskError};

use super::config::KafkaConfig;
use super::errors::{NowAndThen, Verdict, judge};

/// Where the client library's log lines and errors go: to `tracing`, with the operator's name; never to stderr.
#[derive(Debug)]
pub(crate) struct ClientLog {
    who: String,
    last_reason: Mutex<String>,
    outages: Mutex<NowAndThen>,
    /// Events that a poll of the client served to this log, and then answered as if nothing had been there.
    served: AtomicU64,
    /// Offsets that the group did not take.
    not_committed: Counter,
    warned: Mutex<NowAndThen>,
}

/// What the library calls its word about a commit that failed. It says nothing of the others: it knows the callback of neither.
const COMMIT_FAILED: &str = "COMMITFAIL";

impl ClientLog {
    pub(crate) fn new(cx: &OperatorContext) -> Self {
        Self::called(&who(cx))
    }

    /// For a client that commits offsets: failures of that are counted.
    pub(crate) fn committing(cx: &OperatorContext) -> Self {
        ClientLog { not_committed: cx.counter("offset_commit_failures"), ..Self::new(cx) }
    }

    /// For a client of nobody's task in particular.
    pub(crate) fn called(who: &str) -> Self {
        ClientLog {
            who: who.to_owned(),
            last_reason: Mutex::default(),
            outages: Mutex::default(),
            served: AtomicU64::new(0),
            not_committed: Counter::default(),
            warned: Mutex::default(),
        }
    }

    /// A commit failed. The job goes on: its own checkpoint is what counts.
    pub(crate) fn commit_failed(&self, why: &str) {
        self.not_committed.add(1);
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = warned.may_say(Instant::now()) {
            tracing::warn!(
                who = &self.who[..],
                held,
                "Kafka does not take the offsets of a complete checkpoint: {why}; the job goes on from its checkpoints"
            );
        }
    }

    /// How often the group did not take offsets.
    pub(crate) fn not_committed(&self) -> u64 {
        self.not_committed.get()
    }

    /// How many events were served here. A poll that gives nothing found nothing only when this stays as it was.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// The last error's reason in the library's own words; empty when there was none.
    pub(crate) fn last_reason(&self) -> String {
        self.last_reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// An operator's subtask as the client library's messages name it.
pub(crate) fn who(cx: &OperatorContext) -> String {
    format!("{}#{}", cx.uid(), cx.subtask())
}

impl ClientContext for ClientLog {
    fn log(&self, level: Level, facility: &str, line: &str) {
        self.served.fetch_add(1, Ordering::Relaxed);
        let who = &self.who[..];
        if facility == COMMIT_FAILED {
            return self.commit_failed(line);
        }
        match level {
            Level::Emerg | Level::Alert | Level::Critical => {
                tracing::error!(target: "librdkafka", who, facility, "{line}");
            }
            // The library's errors are about connections, which it restores by itself.
            Level::Error | Level::Warning => tracing::warn!(target: "librdkafka", who, facility, "{line}"),
            Level::Notice | Level::Info => tracing::info!(target: "librdkafka", who, facility, "{line}"),
            Level::Debug => tracing::debug!(target: "librdkafka", who, facility, "{line}"),
        }
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.served.fetch_add(1, Ordering::Relaxed);
        tracing::trace!(target: "librdkafka", who = &self.who[..], "{}", String::from_utf8_lossy(statistics));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // Having read all there is is no trouble: the reader hears of it.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF) {
            return;
        }
        {
            let mut last = self.last_reason.lock().unwrap_or_else(PoisonError::into_inner);
            // "All brokers are down" comes after the reason why, and says less.
            if last.is_empty() || error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
                reason.clone_into(&mut last);
            }
        }
        // What is not ridden out becomes the task's own error: it is said there.
        if judge(&error) == Verdict::RideOut
            && let Some(held) =
                self.outages.lock().unwrap_or_else(PoisonError::into_inner).may_say(Instant::now())
        {
            tracing::warn!(who = &self.who[..], held, "Kafka: {error}: {reason}; the client goes on trying");
        }
    }
}

impl ConsumerContext for ClientLog {}

/// For a transactional producer: the commit says whether everything was delivered.
impl ProducerContext for ClientLog {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

/// How many partitions `topic` has; none when it does not exist, or still does not after the patience is over when `wait`.
///
/// *Blocking*: up to the configured patience and half a second; hears cancellation within 2 s.
pub(crate) fn partitions_of_topic(
    client: &BaseConsumer<ClientLog>,
    config: &KafkaConfig,
    topic: &str,
    wait: bool,
    cx: &OperatorContext,
) -> Result<Option<u32>> {
    let patience = config.start_patience();
    let deadline = Instant::now() + patience;
    loop {
        // Never so short that a broker that is there could not answer: the last answer makes the error.
        let slice = deadline.saturating_duration_since(Instant::now()).clamp(SLICE / 4, SLICE);
        let answer = client.fetch_metadata(Some(topic), slice);
        hear(client);
        let problem = match &answer {
            Ok(metadata) => match metadata.topics().iter().find(|t| t.name() == topic) {
                Some(t) => match t.error() {
                    None if !t.partitions().is_empty() => return Ok(Some(t.partitions().len() as u32)),
                    None => Problem::Missing,
                    Some(
                        Resp::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART
                        | Resp::RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC,
                    ) => Problem::Missing,
                    Some(code @ Resp::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE) => Problem::Told(said(code)),
                    Some(code) => {
                        let (brokers, code) = (config.broker_list(), said(code));
                        return Err(TaskError::external(format!(
                            "Kafka at {brokers} refuses topic {topic}: {code}"
                        )));
                    }
                },
                None => Problem::Missing,
            },
            Err(e) => Problem::Told(match client.context().last_reason() {
                reason if reason.is_empty() => e.to_string(),
                reason => reason,
            }),
        };
        let over = Instant::now() >= deadline;
        match problem {
            Problem::Missing if over || !wait => return Ok(None),
            Problem::Told(reason) if over => {
                let brokers = config.broker_list();
                let message = format!(
                    "Kafka at {brokers} did not tell about topic {topic} within {patience:?}: {reason}"
                );
                return Err(TaskError::external(message));
            }
            Problem::Missing | Problem::Told(_) => cx.wait(Duration::from_millis(100))?,
        }
    }
}

/// The longest wait inside the library that cannot be interrupted.
pub(super) const SLICE: Duration = Duration::from_secs(2);

enum Problem {
    Missing,
    Told(String),
}

fn said(code: Resp) -> String {
    RDKafkaErrorCode::from(code).to_string()
}

/// Lets the client say what it has to say, so that its last reason is the newest.
pub(super) fn hear(client: &BaseConsumer<ClientLog>) {
    // Nothing is assigned yet, so this takes no record; errors and log lines have gone to the client's log by then. An
    // empty answer also stands for a log line that was served, so it does not end the loop.
    for _ in 0..32 {
        drop(client.poll(Duration::ZERO));
    }
}

/// The error for a topic that is not there.
pub(crate) fn no_topic(config: &KafkaConfig, topic: &str, what_to_do: &str) -> TaskError {
    let (brokers, patience) = (config.broker_list(), config.start_patience());
    TaskError::external(format!("Kafka at {brokers} has no topic {topic} after {patience:?}: {what_to_do}"))
}

/// Drops a client on a thread of its own and waits at most `patience` for it: the library's close is known to hang at
/// times, and a job must end all the same. A hang is logged, and that thread stays.
pub(crate) fn drop_within<T: Send + 'static>(what: String, client: T, patience: Duration) {
    let done = Arc::new((Mutex::new(false), Condvar::new()));
    let closing = {
        let done = Arc::clone(&done);
        std::thread::Builder::new().name("kafka-close".to_owned()).spawn(move || {
            drop(client);
            *done.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            done.1.notify_one();
        })
    };
    // Without a thread the closure, and the client with it, was dropped right here.
    let Ok(thread) = closing else { return };
    let finished = done.0.lock().unwrap_or_else(PoisonError::into_inner);
    let (finished, _) = (done.1)
        .wait_timeout_while(finished, patience, |finished| !*finished)
        .unwrap_or_else(PoisonError::into_inner);
    if *finished {
        drop(finished);
        // It has nothing left to do but return.
        drop(thread.join());
    } else {
        tracing::error!("{what} did not close within {patience:?}; its threads are left behind");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Slow(Duration);

    impl Drop for Slow {
        fn drop(&mut self) {
            std::thread::park_timeout(self.0);
        }
    }

    #[test]
    fn closing_waits_but_not_forever() {
        let start = Instant::now();
        drop_within("quick".to_owned(), Slow(Duration::from_millis(20)), Duration::from_secs(5));
        assert!(start.elapsed() < Duration::from_secs(2));
        let start = Instant::now();
        drop_within("hung".to_owned(), Slow(Duration::from_secs(5)), Duration::from_millis(50));
        assert!(start.elapsed() < Duration::from_secs(2));
    }
}
