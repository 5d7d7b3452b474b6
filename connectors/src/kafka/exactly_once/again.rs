//! Calls of the library that have to be made again until they are done, or get nowhere, or the pump is told to stop.
// HOT: `put`, per record one send, on the pump's thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::ToBytes;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::super::client::ClientLog;
use super::failed::passes;
use super::line::{SLICE, STEP};

/// The first offset of the control topic, and the one behind its last record.
pub(super) fn end_of(
    consumer: &BaseConsumer<ClientLog>,
    control: &str,
    stop: &AtomicBool,
) -> KafkaResult<(i64, i64)> {
    let deadline = Instant::now() + STEP;
    loop {
        match consumer.fetch_watermarks(control, 0, SLICE) {
            Err(e) if e.rdkafka_error_code().is_some_and(passes) && Instant::now() < deadline => {
                if stop.load(Ordering::Acquire) {
                    return Err(e);
                }
                // It may have failed at once.
                drop(consumer.poll(Duration::from_millis(100)));
            }
            other => return other,
        }
    }
}

/// Waits until the brokers have acknowledged all that was given to the client, as long as that gets on; no error when it was told to
/// stop. Committing would do so too, but gives up after one call's time.
pub(super) fn flush(
    producer: &BaseProducer<ClientLog>,
    stop: &AtomicBool,
) -> std::result::Result<(), Option<KafkaError>> {
    let (mut least, mut since) = (producer.in_flight_count(), Instant::now());
    loop {
        match producer.flush(SLICE) {
            Err(e @ KafkaError::Flush(Code::OperationTimedOut)) => {
                let left = producer.in_flight_count();
                if left < least {
                    (least, since) = (left, Instant::now());
                }
                if stop.load(Ordering::Acquire) {
                    return Err(None);
                }
                if since.elapsed() > STEP {
                    return Err(Some(e));
                }
            }
            other => return other.map_err(Some),
        }
    }
}

/// A commit that answers so may still get through: the transaction is open.
pub(super) fn goes_on(error: &KafkaError) -> bool {
    match error {
        KafkaError::Transaction(e) => e.is_retriable() && !e.txn_requires_abort(),
        KafkaError::Flush(code) => *code == Code::OperationTimedOut,
        _ => false,
    }
}

/// Gives a record to the client, waiting while its queue is full, as long as that gets on; no error when it was told to stop.
pub(super) fn put<K: ToBytes + ?Sized, P: ToBytes + ?Sized>(
    producer: &BaseProducer<ClientLog>,
    mut record: BaseRecord<'_, K, P>,
    stop: &AtomicBool,
) -> std::result::Result<(), Option<KafkaError>> {
    let mut stuck = None;
    loop {
        let full = match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((e @ KafkaError::MessageProduction(Code::QueueFull), back)) => {
                record = back;
                e
            }
            Err((e, _)) => return Err(Some(e)),
        };
        producer.poll(Duration::from_millis(10));
        let left = producer.in_flight_count();
        let (least, since) = stuck.get_or_insert((left, Instant::now()));
        if left < *least {
            (*least, *since) = (left, Instant::now());
        }
        // The transaction would run into its limit: another producer, and patience with that, is for the pump to decide.
        if since.elapsed() > STEP {
            return Err(Some(full));
        }
        if stop.load(Ordering::Acquire) {
            return Err(None);
        }
    }
}
