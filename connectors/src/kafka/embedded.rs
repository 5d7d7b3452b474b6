//! A Kafka broker in this process: librdkafka's own, spoken to over a real socket by the real client.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::producer::{BaseProducer, Producer};
use rdkafka::types::RDKafkaRespErr;

use super::config::KafkaSetupError;
use super::topic;

/// A broker for a first run and for tests. Everything is in memory and gone with the last clone.
///
/// **It is not a store.** Per partition it keeps the newest 5 MiB (as sent: batches with their headers) or 100,000
/// batches, and drops older ones without a word to anyone. A [`KafkaSource`](super::KafkaSource) that comes too late for
/// them fails and says so. To feed it more than it keeps, let the sink follow the source:
/// [`KafkaSink::follow`](super::KafkaSink::follow).
///
/// It knows no consumer lag, retention, compaction, access control or admin requests, and transactions only in name: what
/// an aborted one wrote is read all the same.
#[derive(Clone)]
pub struct EmbeddedBroker {
    inner: Arc<Inner>,
}

struct Inner {
    /// The client that owns the broker; it talks to nobody.
    owner: BaseProducer,
    brokers: String,
    topics: Mutex<BTreeMap<String, Topic>>,
}

struct Topic {
    partitions: i32,
    /// The broker cannot delete: a removed topic stays there, empty or not, and answers that it does not exist.
    removed: bool,
}

impl EmbeddedBroker {
    /// Starts a broker on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start() -> Result<Self, KafkaSetupError> {
        // Owned through a client, not as a MockCluster: that one holds a bare pointer and stays on its thread.
        let owner: BaseProducer = ClientConfig::new()
            .set("test.mock.num.brokers", "1")
            // Nobody polls this client, so nothing it says may pile up.
            .set_log_level(RDKafkaLogLevel::Emerg)
            .create()
            .map_err(KafkaSetupError::Start)?;
        let brokers = owner.client().mock_cluster().ok_or(KafkaSetupError::NoAddress)?.bootstrap_servers();
        Ok(EmbeddedBroker { inner: Arc::new(Inner { owner, brokers, topics: Mutex::default() }) })
    }

    /// Its address, `host:port`.
    pub fn brokers(&self) -> &str {
        &self.inner.brokers
    }

    /// Creates a topic unless it is there; true when it was not.
    ///
    /// # Errors
    /// When it is there with another number of partitions, or the name or that number is not allowed.
    pub fn create_topic(&self, topic: &str, partitions: i32) -> Result<bool, KafkaSetupError> {
        topic::check_new(topic, partitions)?;
        let mut topics = self.topics();
        if let Some(known) = topics.get_mut(topic) {
            if known.partitions != partitions {
                let (topic, has) = (topic.to_owned(), known.partitions);
                return Err(KafkaSetupError::Partitions { topic, has, wanted: partitions });
            }
            if !known.removed {
                return Ok(false);
            }
            self.answer(topic, "create", RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR)?;
            known.removed = false;
            return Ok(true);
        }
        let cluster = self.inner.owner.client().mock_cluster().ok_or(KafkaSetupError::NoAddress)?;
        cluster.create_topic(topic, partitions, 1).map_err(|source| {
            let topic = topic.to_owned();
            KafkaSetupError::Topic { what: "create", topic, source }
        })?;
        topics.insert(topic.to_owned(), Topic { partitions, removed: false });
        Ok(true)
    }

    /// Makes a topic look as if it did not exist; created again, it holds what it held. (This broker cannot delete.)
    ///
    /// # Errors
    /// When the broker does not take the order.
    pub fn remove_topic(&self, topic: &str) -> Result<(), KafkaSetupError> {
        let mut topics = self.topics();
        if let Some(known) = topics.get_mut(topic) {
            self.answer(topic, "remove", RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)?;
            known.removed = true;
        }
        Ok(())
    }

    /// The topics there are.
    pub fn topic_names(&self) -> Vec<String> {
        (self.topics().iter()).filter(|(_, t)| !t.removed).map(|(name, _)| name.clone()).collect()
    }

    /// The partitions of all topics there ever were: a removed topic keeps what it holds.
    pub(super) fn partition_count(&self) -> u64 {
        self.topics().values().map(|topic| u64::try_from(topic.partitions).unwrap_or(0)).sum()
    }

    /// Makes the broker answer questions about `topic` with `error`.
    fn answer(&self, topic: &str, what: &'static str, error: RDKafkaRespErr) -> Result<(), KafkaSetupError> {
        let cluster = self.inner.owner.client().mock_cluster().ok_or(KafkaSetupError::NoAddress)?;
        cluster.topic_error(topic, error).map_err(|source| {
            let topic = topic.to_owned();
            KafkaSetupError::Topic { what, topic, source }
        })
    }

    /// Takes the broker off the net, or puts it back: for tests of outages.
    #[cfg(test)]
    pub(crate) fn down(&self, down: bool) {
        let cluster = self.inner.owner.client().mock_cluster().expect("it started with one");
        let done = if down { cluster.broker_down(-1) } else { cluster.broker_up(-1) };
        done.expect("the broker takes the order");
    }

    /// Makes the broker refuse the next `n` commits of offsets: for tests.
    #[cfg(test)]
    pub(crate) fn refuse_commits(&self, n: usize) {
        self.refuse(rdkafka::types::RDKafkaApiKey::OffsetCommit, n);
    }

    /// Makes the broker refuse to say what a group has committed, the next `n` times: for tests.
    #[cfg(test)]
    pub(crate) fn refuse_committed(&self, n: usize) {
        self.refuse(rdkafka::types::RDKafkaApiKey::OffsetFetch, n);
    }

    #[cfg(test)]
    fn refuse(&self, what: rdkafka::types::RDKafkaApiKey, n: usize) {
        let cluster = self.inner.owner.client().mock_cluster().expect("it started with one");
        let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
        cluster.request_errors(what, &vec![refusal; n]);
    }

    fn topics(&self) -> MutexGuard<'_, BTreeMap<String, Topic>> {
        self.inner.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for EmbeddedBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedBroker").field("brokers", &self.brokers()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_come_and_go() {
        let broker = EmbeddedBroker::start().unwrap();
        assert!(broker.create_topic("a", 3).unwrap());
        assert!(!broker.create_topic("a", 3).unwrap());
        let e = broker.create_topic("a", 4).unwrap_err();
        assert_eq!(e.to_string(), "topic a has 3 partitions, not 4: take another name or that number");
        assert_eq!(broker.topic_names(), ["a"]);
        broker.remove_topic("a").unwrap();
        broker.remove_topic("never").unwrap();
        assert!(broker.topic_names().is_empty());
        assert!(broker.create_topic("a", 3).unwrap());
    }

    #[test]
    fn topics_that_cannot_be_are_refused_and_the_broker_lives() {
        let broker = EmbeddedBroker::start().unwrap();
        let kafka = super::super::KafkaConfig::brokers(broker.brokers());
        for (topic, partitions) in
            [("t", 0), ("t", -1), ("t", i32::MIN), ("", 1), ("no spaces", 1), ("a\0", 1)]
        {
            let e = broker.create_topic(topic, partitions).unwrap_err().to_string();
            assert!(e.contains("cannot "), "{e}");
            assert_eq!(kafka.create_topic(topic, partitions).unwrap_err().to_string(), e);
        }
        assert!(broker.topic_names().is_empty());
        assert!(broker.create_topic("t", 1).unwrap());
    }
}
