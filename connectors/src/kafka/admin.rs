//! Creates and deletes topics, and looks at their settings: on a real broker by admin requests, on the one in this process by its own ways.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::error::KafkaResult;
use rdkafka::types::RDKafkaErrorCode as Code;
use weir_engine::{Result, TaskError};

use super::client::ClientLog;
use super::config::KafkaConfig;

/// Creates `topic` with the broker's default replication and these settings of the topic; false when somebody else has done
/// so already.
///
/// *Blocking*: up to the configured patience and a second.
pub(super) fn create_topic(
    config: &KafkaConfig,
    topic: &str,
    partitions: i32,
    settings: &[(&str, &str)],
    who: &str,
) -> Result<bool> {
    if let Some(broker) = config.embedded_broker() {
        return Ok(broker.create_topic(topic, partitions)?);
    }
    let patience = config.start_patience();
    let admin = admin(config, who)?;
    let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(-1));
    let new = settings.iter().fold(new, |new, (setting, value)| new.set(setting, value));
    let asked = admin.create_topics([&new], &options(patience));
    let result = wait_for(asked, patience + Duration::from_secs(1));
    match answer(result) {
        Ok(()) => Ok(true),
        Err(Refusal::Code(Code::TopicAlreadyExists)) => Ok(false),
        Err(e) => {
            let reason = admin.inner().context().last_reason();
            let said = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
            Err(TaskError::external(format!(
                "Kafka at {} did not create topic {topic} with {partitions} partitions: {e}{said}",
                config.broker_list()
            )))
        }
    }
}

/// What a setting of `topic` is; none when the broker does not say, which not everybody may ask.
///
/// *Blocking*: up to the configured patience and a second.
pub(super) fn setting_of(
    config: &KafkaConfig,
    topic: &str,
    setting: &str,
    who: &str,
) -> Result<Option<String>> {
    if config.embedded_broker().is_some() {
        return Ok(None);
    }
    let patience = config.start_patience();
    let admin = admin(config, who)?;
    let asked = [ResourceSpecifier::Topic(topic)];
    let answer =
        wait_for(admin.describe_configs(&asked, &options(patience)), patience + Duration::from_secs(1));
    let told = answer.and_then(|told| told.ok()).and_then(|topics| topics.into_iter().next()?.ok());
    Ok(told.and_then(|resource| resource.get(setting)?.value.clone()))
}

/// Deletes `topic`.
///
/// *Blocking*: up to `patience` and a second.
pub(super) fn delete_topic(config: &KafkaConfig, topic: &str, patience: Duration, who: &str) -> Result<()> {
    if let Some(broker) = config.embedded_broker() {
        return Ok(broker.remove_topic(topic)?);
    }
    let admin = admin(config, who)?;
    let asked = admin.delete_topics(&[topic], &options(patience));
    answer(wait_for(asked, patience + Duration::from_secs(1))).map_err(|e| {
        let brokers = config.broker_list();
        TaskError::external(format!("Kafka at {brokers} did not delete topic {topic}: {e}"))
    })
}

fn admin(config: &KafkaConfig, who: &str) -> Result<AdminClient<ClientLog>> {
    let client = config.client(&[("log.connection.close", "false")], &[])?;
    client
        .create_with_context(ClientLog::called(who))
        .map_err(|e| TaskError::user("the Kafka client does not take its configuration").caused_by(e))
}

fn options(patience: Duration) -> AdminOptions {
    AdminOptions::new().request_timeout(Some(patience)).operation_timeout(Some(patience))
}

/// Why the broker did not do it.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Code(Code),
    #[error("{0}")]
    Client(rdkafka::error::KafkaError),
    #[error("no answer in time")]
    NoAnswer,
}

/// What the library says about each topic of a request.
type Topics = KafkaResult<Vec<std::result::Result<String, (String, Code)>>>;

/// The one answer to a request about one topic.
fn answer(result: Option<Topics>) -> Result<(), Refusal> {
    match result {
        None => Err(Refusal::NoAnswer),
        Some(Err(e)) => Err(Refusal::Client(e)),
        Some(Ok(topics)) => match topics.into_iter().next() {
            Some(Ok(_)) => Ok(()),
            Some(Err((_, code))) => Err(Refusal::Code(code)),
            None => Err(Refusal::NoAnswer),
        },
    }
}

/// Runs a future on this thread; none when it is not done in time.
fn wait_for<F: Future>(future: F, patience: Duration) -> Option<F::Output> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let deadline = Instant::now() + patience;
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends() {
        assert_eq!(wait_for(std::future::ready(3), Duration::from_secs(1)), Some(3));
        assert_eq!(wait_for(std::future::pending::<()>(), Duration::from_millis(20)), None);
    }

    #[test]
    fn answers() {
        let told = |code| answer(Some(Ok(vec![Err(("t".to_owned(), code))])));
        assert!(matches!(told(Code::TopicAlreadyExists), Err(Refusal::Code(Code::TopicAlreadyExists))));
        assert!(answer(Some(Ok(vec![Ok("t".to_owned())]))).is_ok());
        assert_eq!(answer(None).unwrap_err().to_string(), "no answer in time");
    }
}
