//! What the client of a source is told to fetch, and from where.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};
use weir_engine::{Result, TaskError};

use super::client::ClientLog;
use super::slots::{Slot, Slots, Stage};

/// How often it is asked whether the end that a partition is read to is there, and how long an answer may take.
const ASK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(500));

/// Has the client fetch a partition anew from where it stands: it says only once that it has read up to an offset, and from here
/// it says so again. False when it cannot just now.
pub(super) fn seek(consumer: &BaseConsumer<ClientLog>, slot: &Slot) -> bool {
    let again = consumer.seek(&slot.topic, slot.partition, Offset::Offset(slot.next), Duration::ZERO);
    if let Err(e) = &again {
        tracing::debug!(topic = &*slot.topic, slot.partition, "cannot be fetched anew: {e}");
    }
    again.is_ok()
}

/// Has the client fetch what waits for it.
pub(super) fn fetch(consumer: &BaseConsumer<ClientLog>, slots: &mut Slots, ends: bool) -> Result<()> {
    let mut assignment = TopicPartitionList::new();
    for slot in slots.wave(ends) {
        assignment.add_partition_offset(&slot.topic, slot.partition, Offset::Offset(slot.fetched_from()))?;
    }
    if assignment.count() == 0 {
        return Ok(());
    }
    consumer.incremental_assign(&assignment).map_err(assigns_not)
}

pub(super) fn assigns_not(e: KafkaError) -> TaskError {
    TaskError::external("the Kafka client does not take its partitions").caused_by(e)
}

/// A partition was read dry before the end that it is read to: asks its leader whether that is there by now. Then what lies before it is
/// nothing but holes and markers, or will be read, and be dry again.
///
/// *Blocking*: half a second at most.
pub(super) fn ask(consumer: &BaseConsumer<ClientLog>, slots: &mut Slots) {
    if slots.all().iter().all(|slot| slot.ask.is_none()) {
        return;
    }
    let now = Instant::now();
    let due = |slot: &&mut Slot| slot.stage == Stage::Reading && slot.ask.is_some_and(|at| at <= now);
    let Some(slot) = slots.all_mut().iter_mut().find(due) else { return };
    slot.ask = Some(now + ASK.0);
    let Ok((_, high)) = consumer.fetch_watermarks(&slot.topic, slot.partition, ASK.1) else { return };
    slot.high = high;
    if high >= slot.end && seek(consumer, slot) {
        (slot.ask, slot.sure) = (None, true);
    }
}
