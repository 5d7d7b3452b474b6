//! What a client's error means for a job: ride it out, fail, or fail because records are gone.

use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The client goes on by itself: say so, now and then.
    RideOut,
    /// The records at the wanted offset are gone.
    RangeGone,
    /// Nothing will come of waiting.
    Fail,
}

/// Judges an error of a running consumer. What is not known to pass by itself is a failure: the client may have skipped
/// records (one it cannot decompress, say) and would go on after them.
pub(crate) fn judge(error: &KafkaError) -> Verdict {
    match error {
        KafkaError::PartitionEOF(_) => Verdict::RideOut,
        KafkaError::MessageConsumption(code) | KafkaError::Global(code) => judge_code(*code),
        _ => Verdict::Fail,
    }
}

fn judge_code(code: Code) -> Verdict {
    match code {
        Code::AutoOffsetReset | Code::OffsetOutOfRange | Code::LogTruncation => Verdict::RangeGone,
        Code::NoError
        | Code::AllBrokersDown
        | Code::BrokerDestroy
        | Code::BrokerNotAvailable
        | Code::BrokerTransportFailure
        | Code::CoordinatorLoadInProgress
        | Code::CoordinatorNotAvailable
        | Code::DestroyBroker
        | Code::FencedLeaderEpoch
        // Offsets are ours, not the group's: being refused as a group member does not stop reading.
        | Code::GroupAuthorizationFailed
        | Code::KafkaStorageError
        | Code::LeaderNotAvailable
        | Code::NetworkException
        | Code::NotCoordinator
        | Code::NotLeaderForPartition
        | Code::OffsetNotAvailable
        | Code::OperationTimedOut
        | Code::PreferredLeaderNotAvailable
        | Code::ReplicaNotAvailable
        | Code::RequestTimedOut
        | Code::Resolve
        | Code::TimedOutQueue
        | Code::UnknownLeaderEpoch
        | Code::WaitingForCoordinator => Verdict::RideOut,
        _ => Verdict::Fail,
    }
}

/// Lets something be said once in a while, and counts how often it was not.
#[derive(Debug, Default)]
pub(crate) struct NowAndThen {
    last: Option<Instant>,
    held: u64,
}

impl NowAndThen {
    const EVERY: Duration = Duration::from_secs(10);

    /// When it may be said now: how often it was held back since the last time.
    pub(crate) fn may_say(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < Self::EVERY) {
            self.held += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_pass_and_losses_do_not() {
        let of = |code| judge(&KafkaError::MessageConsumption(code));
        assert_eq!(of(Code::AllBrokersDown), Verdict::RideOut);
        assert_eq!(of(Code::BrokerTransportFailure), Verdict::RideOut);
        assert_eq!(of(Code::AutoOffsetReset), Verdict::RangeGone);
        assert_eq!(of(Code::LogTruncation), Verdict::RangeGone);
        assert_eq!(of(Code::NotImplemented), Verdict::Fail, "a codec that is not built in");
        assert_eq!(of(Code::BadMessage), Verdict::Fail);
        assert_eq!(of(Code::UnknownTopicOrPartition), Verdict::Fail);
        assert_eq!(judge(&KafkaError::MessageConsumptionFatal(Code::AllBrokersDown)), Verdict::Fail);
    }

    #[test]
    fn said_once_and_counted() {
        let (mut quiet, start) = (NowAndThen::default(), Instant::now());
        assert_eq!(quiet.may_say(start), Some(0));
        assert_eq!(quiet.may_say(start + Duration::from_secs(1)), None);
        assert_eq!(quiet.may_say(start + Duration::from_secs(9)), None);
        assert_eq!(quiet.may_say(start + Duration::from_secs(10)), Some(2));
    }
}
