//! How to reach Kafka: brokers, any property of the client library, and how long to be patient at the start.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use thiserror::Error;
use weir_engine::{Result, TaskError};

use super::admin;
use super::embedded::EmbeddedBroker;
use super::secrets::{NOT_SHOWN, is_secret};
use super::topic;
use super::watch::Desk;

/// What can go wrong while Kafka is being set up outside a job.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KafkaSetupError {
    /// The in-process broker did not start.
    #[error("the in-process Kafka broker did not start")]
    Start(#[source] rdkafka::error::KafkaError),
    /// The in-process broker has no address.
    #[error(
        "the in-process Kafka broker started without an address: the client library is built without its mock cluster"
    )]
    NoAddress,
    /// The in-process broker refused a topic.
    #[error("the in-process Kafka broker cannot {what} topic {topic}")]
    Topic {
        /// What was asked of it.
        what: &'static str,
        /// The topic's name.
        topic: String,
        /// Why not.
        #[source]
        source: rdkafka::error::KafkaError,
    },
    /// A topic could not be created.
    #[error("{reason}")]
    Create {
        /// What was tried, where, and why it failed.
        reason: String,
    },
    /// Not a name that Kafka knows.
    #[error(
        "{topic:?} cannot be a topic's name: take 1 to 249 letters, digits, '.', '_' and '-', but not \".\" or \"..\" alone"
    )]
    Name {
        /// The name.
        topic: String,
    },
    /// A topic with no partition, or with more than a source can read.
    #[error("topic {topic} cannot have {wanted} partitions: ask for 1 to {}", super::assign::PER_TOPIC)]
    Count {
        /// The topic's name.
        topic: String,
        /// The partitions asked for.
        wanted: i32,
    },
    /// A topic of that name is there with another number of partitions.
    #[error("topic {topic} has {has} partitions, not {wanted}: take another name or that number")]
    Partitions {
        /// The topic's name.
        topic: String,
        /// Its partitions.
        has: i32,
        /// The partitions asked for.
        wanted: i32,
    },
}

/// How to reach Kafka. Clones are cheap and share the in-process broker, if there is one.
///
/// # Examples
///
/// ```
/// use weir_connectors::kafka::KafkaConfig;
/// let kafka = KafkaConfig::brokers("kafka-1:9092,kafka-2:9092")
///     .set("security.protocol", "SASL_PLAINTEXT")
///     .set("sasl.mechanisms", "PLAIN")
///     .set("sasl.username", "weir")
///     .set("sasl.password", "hunter2");
/// assert!(!format!("{kafka:?}").contains("hunter2"));
/// ```
#[derive(Clone)]
pub struct KafkaConfig {
    brokers: String,
    properties: BTreeMap<String, String>,
    patience: Duration,
    embedded: Option<EmbeddedBroker>,
    /// Where sources find the thread that asks brokers for them.
    desk: Desk,
}

/// How long a start waits for brokers and topics unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(8);

impl KafkaConfig {
    /// The brokers to begin with, `host:port` separated by commas.
    pub fn brokers(list: impl Into<String>) -> Self {
        KafkaConfig {
            brokers: list.into(),
            properties: BTreeMap::new(),
            patience: PATIENCE,
            embedded: None,
            desk: Desk::default(),
        }
    }

    /// Starts a broker in this process and points at it: for a first run and for tests. See [`EmbeddedBroker`] for what it
    /// does not keep. It ends when the last clone of this, and the last source or sink made from it, is gone.
    ///
    /// # Errors
    /// When it does not start, for lack of a free port, say.
    pub fn embedded() -> Result<Self, KafkaSetupError> {
        let broker = EmbeddedBroker::start()?;
        let mut config = KafkaConfig::brokers(broker.brokers());
        config.embedded = Some(broker);
        Ok(config)
    }

    /// Sets a property of librdkafka (its CONFIGURATION.md lists them). The client checks it when the job starts. What a
    /// source or sink relies on (`auto.offset.reset`, `enable.auto.commit`, …) is refused then, with what to do instead. Of a
    /// property that has two names (`delivery.timeout.ms` is `message.timeout.ms`) the last value set under either counts.
    #[must_use]
    pub fn set(mut self, property: impl Into<String>, value: impl Into<String>) -> Self {
        let (property, value) = (property.into(), value.into());
        match one_name(&property) {
            "bootstrap.servers" => self.brokers = value,
            name => drop(self.properties.insert(name.to_owned(), value)),
        }
        self
    }

    /// How long a start waits for brokers to answer and topics to be there: 8 s unless set.
    #[must_use]
    pub fn patience(mut self, time: Duration) -> Self {
        self.patience = time;
        self
    }

    /// The brokers to begin with.
    pub fn broker_list(&self) -> &str {
        &self.brokers
    }

    /// The broker in this process, when this points at one.
    pub fn embedded_broker(&self) -> Option<&EmbeddedBroker> {
        self.embedded.as_ref()
    }

    /// Creates `topic` with this many partitions and the broker's default replication; false when it is there already.
    ///
    /// *Blocking*: up to the patience and a second.
    ///
    /// # Errors
    /// When the name or the number of partitions cannot be, no broker answers or it refuses; the in-process broker also
    /// refuses another number of partitions.
    pub fn create_topic(&self, topic: &str, partitions: i32) -> Result<bool, KafkaSetupError> {
        topic::check_new(topic, partitions)?;
        admin::create_topic(self, topic, partitions, &[], "set-up")
            .map_err(|e| KafkaSetupError::Create { reason: e.chain() })
    }

    pub(super) fn desk(&self) -> &Desk {
        &self.desk
    }

    pub(crate) fn start_patience(&self) -> Duration {
        self.patience
    }

    /// The same without some properties.
    pub(crate) fn without(&self, properties: &[&str]) -> KafkaConfig {
        let mut config = self.clone();
        config.properties.retain(|property, _| !properties.iter().any(|p| one_name(p) == property));
        config
    }

    /// A property, if it was set.
    pub(crate) fn get(&self, property: &str) -> Option<&str> {
        self.properties.get(one_name(property)).map(String::as_str)
    }

    /// True when one of these properties was set.
    pub(crate) fn sets_any(&self, properties: &[&str]) -> bool {
        properties.iter().any(|property| self.properties.contains_key(one_name(property)))
    }

    /// A time limit in milliseconds, as set here or else `default`; none when it is 0, which is the library's word for that.
    pub(crate) fn limit(&self, property: &str, default: u64) -> Option<Duration> {
        Some(self.number(property, default)).filter(|ms| *ms > 0).map(Duration::from_millis)
    }

    /// A property as a number, as set here or else `default`.
    pub(crate) fn number(&self, property: &str, default: u64) -> u64 {
        self.properties.get(one_name(property)).and_then(|value| value.parse().ok()).unwrap_or(default)
    }

    /// The client library's configuration: `defaults`, over them what was set, over it all `fixed`. A fixed property that
    /// was set to something else is an error, which says what to do instead.
    pub(crate) fn client(&self, defaults: &[(&str, &str)], fixed: &[Fixed]) -> Result<ClientConfig> {
        if self.brokers.trim().is_empty() {
            return Err(TaskError::user(
                "no Kafka broker is named: give KafkaConfig::brokers host:port, or use KafkaConfig::embedded()",
            ));
        }
        let mut client = ClientConfig::new();
        for (property, value) in defaults {
            client.set(*property, *value);
        }
        for (property, value) in &self.properties {
            if let Some(f) = fixed.iter().find(|f| f.property == property && f.value != value) {
                let shown = if is_secret(property) { NOT_SHOWN } else { value };
                let message = format!("Kafka property {property}={shown} cannot be used: {}", f.instead);
                return Err(TaskError::user(message));
            }
            client.set(property, value);
        }
        for f in fixed {
            client.set(f.property, f.value);
        }
        client.set("bootstrap.servers", &self.brokers);
        client.set_log_level(RDKafkaLogLevel::Info);
        taken(&client)?;
        Ok(client)
    }
}

/// Has the library look at every property now: its own error repeats the value, which may be a secret under a mistyped name.
fn taken(client: &ClientConfig) -> Result<()> {
    match client.create_native_config() {
        Ok(_) => Ok(()),
        Err(KafkaError::ClientConfig(_, reason, property, value)) => {
            // Some of its reasons repeat the value, too.
            let hidden = !value.is_empty() && reason.contains(&value) && is_secret(&property);
            let reason = if hidden { "its value cannot be" } else { &reason[..] };
            let what = "see librdkafka's CONFIGURATION.md, and dependencies.md for what is built in";
            let message = format!("the Kafka client does not take property {property} ({reason}): {what}");
            Err(TaskError::user(message))
        }
        Err(e) => Err(TaskError::user("the Kafka client does not take its configuration").caused_by(e)),
    }
}

/// The library's second names for properties, and the ones by which they are known here.
const SECOND_NAMES: &[(&str, &str)] = &[
    ("metadata.broker.list", "bootstrap.servers"),
    ("delivery.timeout.ms", "message.timeout.ms"),
    ("request.required.acks", "acks"),
    ("retries", "message.send.max.retries"),
    ("max.in.flight", "max.in.flight.requests.per.connection"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("compression.codec", "compression.type"),
    ("max.partition.fetch.bytes", "fetch.message.max.bytes"),
    ("auto.commit.enable", "enable.auto.commit"),
    ("sasl.mechanism", "sasl.mechanisms"),
    ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id"),
    ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret"),
];

/// The one name of a property: with two, which of them the library hears last would be left to chance.
fn one_name(property: &str) -> &str {
    SECOND_NAMES.iter().find(|(second, _)| *second == property).map_or(property, |(_, name)| name)
}

/// A property that a source or sink relies on.
pub(crate) struct Fixed {
    pub(crate) property: &'static str,
    pub(crate) value: &'static str,
    /// What to do instead of setting it.
    pub(crate) instead: &'static str,
}

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self
            .properties
            .iter()
            .map(|(property, value)| (property, if is_secret(property) { NOT_SHOWN } else { &value[..] }));
        f.debug_struct("KafkaConfig")
            .field("brokers", &self.brokers)
            .field("properties", &shown.collect::<BTreeMap<_, _>>())
            .field("patience", &self.patience)
            .field("embedded", &self.embedded.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_property_does_not_show_a_secret() {
        let refused = |property: &str, value: &str| {
            let e = KafkaConfig::brokers("k:1").set(property, value).client(&[], &[]).unwrap_err();
            let said = format!("{} {e:?}", e.chain());
            assert!(said.contains(property), "it is named: {said}");
            said
        };
        for property in ["sasl.jaas.config", "sasl.pasword", "ssl.key.pam", "linger.ms"] {
            let said = refused(property, "hunter2");
            assert!(!said.contains("hunter2"), "{said}");
        }
        assert!(refused("no.such.property", "1").contains("No such configuration property"));
        let fixed = [Fixed { property: "sasl.password", value: "none", instead: "leave it out" }];
        let e = KafkaConfig::brokers("k:1").set("sasl.password", "hunter2").client(&[], &fixed).unwrap_err();
        assert!(!format!("{} {e:?}", e.chain()).contains("hunter2"), "{e:?}");
    }

    #[test]
    fn a_second_name_is_the_same_property() {
        let get = |config: &KafkaConfig, name| {
            config.client(&[("linger.ms", "5")], &[]).unwrap().get(name).map(str::to_owned)
        };
        let config =
            KafkaConfig::brokers("k:1").set("delivery.timeout.ms", "7000").set("queue.buffering.max.ms", "9");
        assert_eq!(config.limit("message.timeout.ms", 1), Some(Duration::from_secs(7)));
        assert_eq!(get(&config, "message.timeout.ms").as_deref(), Some("7000"));
        assert_eq!(
            (get(&config, "linger.ms").as_deref(), get(&config, "queue.buffering.max.ms")),
            (Some("9"), None)
        );
        assert!(config.sets_any(&["delivery.timeout.ms"]) && config.sets_any(&["message.timeout.ms"]));
        let config = config.set("message.timeout.ms", "0");
        assert_eq!(config.limit("delivery.timeout.ms", 1), None, "0 is no limit");
        assert_eq!(config.limit("other", 1), Some(Duration::from_millis(1)));
        let fixed = [Fixed { property: "acks", value: "all", instead: "leave it out" }];
        assert!(config.set("request.required.acks", "1").client(&[], &fixed).is_err());
        assert_eq!(KafkaConfig::brokers("a:1").set("metadata.broker.list", "b:1").broker_list(), "b:1");
    }

    #[test]
    fn fixed_properties_are_refused_and_others_win_over_defaults() {
        let fixed =
            [Fixed { property: "auto.offset.reset", value: "error", instead: "use KafkaSource::from" }];
        let config = KafkaConfig::brokers("k:1").set("auto.offset.reset", "latest");
        let e = config.client(&[], &fixed).unwrap_err();
        assert_eq!(
            e.to_string(),
            "Kafka property auto.offset.reset=latest cannot be used: use KafkaSource::from"
        );
        let config = KafkaConfig::brokers("k:1").set("linger.ms", "9").set("auto.offset.reset", "error");
        let client = config.client(&[("linger.ms", "5"), ("acks", "all")], &fixed).unwrap();
        assert_eq!([client.get("linger.ms"), client.get("acks")], [Some("9"), Some("all")]);
        assert_eq!(client.get("bootstrap.servers"), Some("k:1"));
    }
}
