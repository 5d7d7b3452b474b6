//! Exactly once into Kafka: records are kept back in the job's checkpoints and written in one transaction with a marker.
//!
//! `docs/adr/0019-exactly-once-into-kafka.md` has the states and why.

mod again;
mod failed;
mod kept;
mod line;
mod machine;
mod marker;
mod pump;
mod spooler;

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_engine::{OperatorContext, Result, TaskError};

pub(super) use self::kept::{kafka_time, push_header, take_header};
use self::line::Line;
use self::marker::Prepared;
pub(super) use self::pump::Pump;
pub(super) use self::spooler::Spooler;
use super::admin;
use super::client::who;
use super::config::KafkaConfig;
use super::topic;
use super::writer::SinkClient;

/// The list in a checkpoint that holds what sinks prepared.
pub(super) const PREPARED: &str = "prepared";
/// How control topics are made: each checkpoint adds a marker, of which only the newest counts.
const CONTROL: &[(&str, &str)] = &[
    ("cleanup.policy", "compact"),
    ("segment.bytes", "1048576"),
    ("segment.ms", "600000"),
    ("min.cleanable.dirty.ratio", "0.01"),
];
/// How long the pump tries in vain before it fails the job.
const PATIENCE: Duration = Duration::from_secs(600);

/// How a [`KafkaSink`](super::KafkaSink) writes each record exactly once, as consumers that read `read_committed` see it.
///
/// ```
/// use weir_connectors::kafka::{ExactlyOnce, KafkaConfig, KafkaSink};
/// let kafka = KafkaConfig::brokers("kafka-1:9092");
/// let sink = KafkaSink::<Vec<u8>, _>::bytes(&kafka, "profiles").exactly_once(ExactlyOnce::named("profiles-out"));
/// # drop(sink);
/// ```
#[derive(Clone, Debug)]
pub struct ExactlyOnce {
    name: String,
    accept_duplicates: bool,
    patience: Duration,
}

impl ExactlyOnce {
    /// Under this name, which no other sink of the Kafka cluster may have and which stays the same from life to life. The
    /// transactional id is `weir-<name>`; markers go to the topic `weir-commits-<name>`, which is made when it is not there: one
    /// partition, compacted, for this sink alone.
    pub fn named(name: impl Into<String>) -> Self {
        ExactlyOnce { name: name.into(), accept_duplicates: false, patience: PATIENCE }
    }

    /// Begins from a checkpoint even when it is not known what of it is visible already (the marker is gone, or another
    /// line of runs wrote it), or when newer output is visible: records may then be seen twice. Without this such a start
    /// is refused. Meant for one start, by an option of the job.
    #[must_use]
    pub fn accept_duplicates(mut self) -> Self {
        self.accept_duplicates = true;
        self
    }

    /// How long brokers may refuse or not answer before the job fails: ten minutes unless set. Nothing is lost then: the next
    /// life goes on from the checkpoint.
    #[must_use]
    pub fn patience(mut self, time: Duration) -> Self {
        self.patience = time;
        self
    }

    pub(super) fn control(&self) -> String {
        format!("weir-commits-{}", self.name)
    }

    /// What must be right before anything is asked of a broker.
    pub(super) fn check(&self, follows: bool, cx: &OperatorContext) -> Result<()> {
        if follows {
            return Err(TaskError::user(
                "an exactly-once Kafka sink cannot follow a reader: leave KafkaSink::follow out, or ExactlyOnce",
            ));
        }
        topic::check_name(&self.control())?;
        if !cx.takes_checkpoints() {
            return Err(TaskError::user(
                "an exactly-once Kafka sink shows its records when a checkpoint is complete, and this job takes none: give it \
                 Job::checkpoints, or leave ExactlyOnce out",
            ));
        }
        Ok(())
    }

    /// Starts the pump of all subtasks. The first that opens does so.
    ///
    /// *Blocking*: up to the configured patience.
    pub(super) fn start(&self, config: &KafkaConfig, topic: &str, cx: &OperatorContext) -> Result<Pump> {
        let mut prepared = Vec::new();
        for item in cx.restored(PREPARED) {
            prepared.push(spooler::read(&item.value)?);
        }
        if config.embedded_broker().is_some() {
            tracing::warn!(
                operator = %cx.uid(),
                "the in-process broker knows transactions only in name: what is aborted is read all the same"
            );
        }
        let control = self.control();
        let made = match admin::create_topic(config, &control, 1, CONTROL, &who(cx)) {
            Ok(made) => made,
            // Who may not create topics may use one that was made for them.
            Err(e) => {
                SinkClient::find(config, &control, None, false, &mut false, cx).map_err(|_| e)?;
                false
            }
        };
        if !made {
            keeps_markers(config, &control, cx)?;
        }
        let line = Line::new(config, topic, &control, &format!("weir-{}", self.name), cx)?;
        Pump::start(line, life(), prepared, self.accept_duplicates, self.patience, cx.parallelism())
    }

    /// One subtask's side.
    pub(super) fn spooler(
        &self,
        pump: Arc<Pump>,
        config: &KafkaConfig,
        topic: &str,
        partitions: i32,
        cx: &OperatorContext,
    ) -> Result<Spooler> {
        // The library counts some bytes of its own for each record.
        let largest = config.number("message.max.bytes", 1_000_000).saturating_sub(1_000);
        Spooler::open(cx, pump, topic, partitions, largest as usize)
    }
}

/// Refuses a control topic that was made by somebody else so that it forgets markers by time or size.
fn keeps_markers(config: &KafkaConfig, control: &str, cx: &OperatorContext) -> Result<()> {
    let policy = admin::setting_of(config, control, "cleanup.policy", &who(cx))?.unwrap_or_default();
    if policy.split(',').any(|policy| policy.trim() == "delete") {
        return Err(TaskError::user(format!(
            "the control topic {control} of an exactly-once Kafka sink has cleanup.policy={policy}, so its newest marker would be deleted in \
             time: set it to compact (kafka-configs.sh --alter --topic {control} --add-config cleanup.policy=compact)"
        )));
    }
    Ok(())
}

/// True when a checkpoint holds records that an exactly-once sink kept back.
pub(super) fn is_kept_back(prepared: &serde_json::Value) -> bool {
    serde::Deserialize::deserialize(prepared).is_ok_and(|_: Prepared| true)
}

/// A name for a life that no other has, and when it began, by the machine's clock.
fn life() -> (String, i64) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as i64);
    // Its keys are random, and different at every call.
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.write_i64(since);
    (format!("{:016x}", hasher.finish()), since)
}
