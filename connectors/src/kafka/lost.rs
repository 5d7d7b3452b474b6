//! The error that ends a source, with all that the brokers know about it.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use weir_engine::TaskError;

use super::begin::{Wanted, gone};
use super::client::ClientLog;
use super::errors::{Verdict, judge};
use super::slots::{Slot, Slots};

/// How long a failing source asks for the offsets that its error names.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the source `who` fails with when its client says `error`.
///
/// *Blocking*: 2 s at most.
#[cold]
pub(super) fn failure(
    consumer: &BaseConsumer<ClientLog>,
    slots: &Slots,
    who: &str,
    error: KafkaError,
) -> TaskError {
    let reason = consumer.context().last_reason();
    if judge(&error) != Verdict::RangeGone {
        let topics = slots.topics();
        let message = format!("Kafka source {who} cannot go on reading {topics} ({reason})");
        return TaskError::external(message).caused_by(error);
    }
    // The client names the partition to its own logs only: ask which of ours has lost its place.
    let deadline = Instant::now() + PATIENCE;
    let mut lost = Vec::new();
    for slot in slots.all() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        if let Ok((low, high)) = consumer.fetch_watermarks(&slot.topic, slot.partition, left)
            && !(low..=high).contains(&slot.next)
        {
            lost.push(gone(Wanted::Reader, &slot.topic, slot.partition, slot.next, low, high));
        }
    }
    if lost.is_empty() {
        let of = |s: &Slot| format!("{} {} at offset {}", s.topic, s.partition, s.next);
        lost.push(format!(
            "the offset wanted is not on the broker, in one of: {}",
            slots.all().iter().map(of).collect::<Vec<_>>().join("; ")
        ));
    }
    TaskError::external(format!("{} ({reason})", lost.join("; "))).caused_by(error)
}
