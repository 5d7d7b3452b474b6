//! The error that ends a source, with all that the brokers know about it.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use weir_engine::TaskError;

use super::begin::{Wanted, gone};
use super::client::ClientLog;
use super::errors::{Verdict, judge};
use super::restored::Seen;
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

/// The log is not the one that was read before: going on in it would pass over what was never read.
#[cold]
pub(super) fn other_log(slot: &Slot, found: Seen) -> TaskError {
    let before = slot.last.map_or(-1, |seen| seen.time);
    TaskError::external(format!(
        "topic {}, partition {}: the record at offset {} has the time {} and not {before}, which it had when it was read before the \
         checkpoint: the topic was deleted and made anew, or its log was cut and written again; begin anew, without a checkpoint \
         (StartFrom::Fresh), or give this source a uid of its own",
        slot.topic, slot.partition, found.offset, found.time
    ))
}
