//! Why a step of the pump failed, what that says about its transaction, and whether another try can help.

use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, Producer};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::super::client::ClientLog;
use super::super::errors::{Verdict, judge};
use super::machine::Sent;

/// Why a step failed, and what is known about the transaction.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) sent: Sent,
    pub(super) reason: String,
    /// It will be so at every try.
    pub(super) hopeless: bool,
}

impl Failed {
    pub(super) fn new(sent: Sent, what: &str, error: &KafkaError) -> Self {
        let hopeless = error.rdkafka_error_code().is_some_and(is_hopeless);
        Failed { sent, reason: format!("{what}: {error}"), hopeless }
    }

    pub(super) fn stopping() -> Self {
        Failed { sent: Sent::Abortable, reason: "the sink is closed".to_owned(), hopeless: false }
    }
}

/// What no waiting and no new producer changes.
fn is_hopeless(code: Code) -> bool {
    matches!(
        code,
        Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::UnsupportedSASLMechanism
            | Code::MessageSizeTooLarge
            | Code::InvalidMessageSize
            | Code::InvalidTransactionTimeout
            | Code::InvalidTimestamp
            | Code::InvalidRecord
            | Code::PolicyViolation
            | Code::UnsupportedFeature
            | Code::UnsupportedVersion
            | Code::InvalidTopic
    )
}

/// What became of the transaction when the client answers so.
pub(super) fn fate(producer: &BaseProducer<ClientLog>, error: &KafkaError) -> Sent {
    let fatal = match error {
        KafkaError::Transaction(e) => e.is_fatal(),
        _ => false,
    };
    if fatal || producer.client().fatal_error().is_some() { Sent::InDoubt } else { Sent::Abortable }
}

/// A place where a test makes the pump fail as a broker would.
pub(super) fn fails(point: &'static str, sent: Sent) -> std::result::Result<(), Failed> {
    // Without the feature there is nothing to ask.
    let _ = (point, sent);
    fail::fail_point!(point, |_| Err(Failed {
        sent,
        reason: format!("fail point {point}"),
        hopeless: false
    }));
    Ok(())
}

/// Errors of a consumer that pass by themselves.
pub(super) fn passes(code: Code) -> bool {
    judge(&KafkaError::MessageConsumption(code)) == Verdict::RideOut
}
