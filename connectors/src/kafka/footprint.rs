//! What the clients of sources and sinks take in memory and threads, from the properties that bound it.

use weir_engine::memory::Footprint;

use super::config::KafkaConfig;

/// What a source's client reads ahead, in kB: the source's own default.
pub(super) const QUEUED_KBYTES: &str = "16384";
/// What a sink's client holds back, in KiB: the sink's own default. The library's is 1 GiB.
pub(super) const BUFFERED_KBYTES: &str = "65536";

/// What librdkafka 2.12 keeps for a record that was read ahead, beside its bytes: an operation of 304 B and the
/// allocator's part.
const QUEUED_RECORD: u64 = 320;
/// And for one that waits to be sent: a message of 176 B and the allocator's part.
const BUFFERED_RECORD: u64 = 192;
/// How many partitions of a subtask are taken to answer at once, when the queue has room for one record more.
const ANSWERS: u64 = 16;
/// How many requests of a broker are under way, each with a copy of its batch.
const IN_FLIGHT: u64 = 5;
/// Threads of a client beside those of brokers: its main one, its internal broker's, its coordinator's.
const OWN_THREADS: usize = 3;
/// What the in-process broker keeps of a partition.
const KEPT: u64 = 5 << 20;
/// How many partitions that broker is taken to have, when it has fewer so far.
const PARTITIONS: u64 = 4;

/// One consumer per subtask, and one thread for all sources of the brokers that looks for new partitions and for stalls.
///
/// It fetches as long as its queue is below `queued.max.messages.kbytes` and `queued.min.messages`, so what the last fetches
/// bring comes on top: `fetch.message.max.bytes` for each partition, `fetch.max.bytes` at most.
pub(super) fn consumer(config: &KafkaConfig) -> Footprint {
    let kbytes = config.number("queued.max.messages.kbytes", default(QUEUED_KBYTES));
    let records = config.number("queued.min.messages", 100_000);
    let answer = config.number("fetch.message.max.bytes", 1 << 20);
    let answers = answer.saturating_mul(ANSWERS).min(config.number("fetch.max.bytes", 50 << 20));
    let queued = kbytes.saturating_mul(1000).saturating_add(records.saturating_mul(QUEUED_RECORD));
    let bytes = queued.saturating_add(answers);
    Footprint::per_subtask("Kafka consumer", bytes, threads(config))
        .lowered_by("queued.max.messages.kbytes, queued.min.messages and fetch.max.bytes")
        .and(Footprint::process(format!("Kafka watch of {}", config.broker_list()), 0, 1))
        .and(broker(config, 0))
}

/// One producer for all subtasks.
///
/// It holds at most `queue.buffering.max.kbytes` and `queue.buffering.max.messages`, and a copy of what is under way.
/// For an exactly-once sink it has a thread more, the pump.
pub(super) fn producer(config: &KafkaConfig, partitions: Option<i32>, pump: bool) -> Footprint {
    let buffered = config.number("queue.buffering.max.kbytes", default(BUFFERED_KBYTES)).saturating_mul(1024);
    // 0 is no limit: records of 192 B then take as much again.
    let records = match config.number("queue.buffering.max.messages", 100_000) {
        0 => buffered / BUFFERED_RECORD,
        records => records,
    };
    let copies = config.number("batch.size", 1_000_000).min(buffered).saturating_mul(IN_FLIGHT);
    let bytes = buffered.saturating_add(records.saturating_mul(BUFFERED_RECORD)).saturating_add(copies);
    Footprint::shared("Kafka producer", bytes, threads(config) + usize::from(pump))
        .lowered_by("queue.buffering.max.kbytes and queue.buffering.max.messages")
        .and(broker(config, u64::try_from(partitions.unwrap_or(0)).unwrap_or(0)))
}

/// The broker in this process, if there is one: what it may keep of each partition. It runs before a job starts, but for
/// the thread that its own client gets when it is first spoken to.
fn broker(config: &KafkaConfig, partitions: u64) -> Footprint {
    match config.embedded_broker() {
        None => Footprint::none(),
        Some(broker) => {
            let partitions = broker.partition_count().max(partitions).max(PARTITIONS);
            Footprint::process("in-process Kafka broker", partitions.saturating_mul(KEPT), 1)
        }
    }
}

/// A thread for each broker that the client knows: as many as are named, and in a larger cluster it finds the rest.
fn threads(config: &KafkaConfig) -> usize {
    let brokers = config.broker_list().split(',').filter(|broker| !broker.trim().is_empty()).count();
    OWN_THREADS + brokers.max(1)
}

fn default(number: &str) -> u64 {
    number.parse().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use weir_engine::Source;

    use super::super::{KafkaSink, KafkaSource};
    use super::*;

    #[test]
    fn what_is_read_ahead_counts_per_subtask() {
        let kafka = KafkaConfig::brokers("a:9092, b:9092,");
        let source = KafkaSource::bytes(&kafka).topic("t");
        let one = 16_384_000 + 100_000 * 320 + (16 << 20);
        assert_eq!(source.footprint().memory_bytes(3), 3 * one);
        assert_eq!(source.footprint().threads(3), 3 * (3 + 2) + 1);

        let lean = kafka
            .set("queued.max.messages.kbytes", "1000")
            .set("queued.min.messages", "1000")
            .set("fetch.max.bytes", "65536");
        assert_eq!(consumer(&lean).memory_bytes(1), 1_000_000 + 320_000 + 65_536);
        let alias = KafkaConfig::brokers("a:1").set("max.partition.fetch.bytes", "1000");
        assert_eq!(consumer(&alias).memory_bytes(1), 16_384_000 + 32_000_000 + 16_000);
        let wrong = KafkaConfig::brokers("a:1").set("queued.max.messages.kbytes", "many");
        assert_eq!(consumer(&wrong).memory_bytes(1), one, "the client refuses it when it opens");
    }

    #[test]
    fn what_waits_to_be_sent_counts_once() {
        use weir_engine::Sink;
        let kafka = KafkaConfig::brokers("a:9092");
        let sink = KafkaSink::<Vec<u8>, _>::bytes(&kafka, "t");
        let bytes = (64 << 20) + 100_000 * 192 + 5_000_000;
        assert_eq!((sink.footprint().memory_bytes(4), sink.footprint().threads(4)), (bytes, 4));
        let unlimited = kafka.set("queue.buffering.max.messages", "0").set("queue.buffering.max.kbytes", "3");
        assert_eq!(producer(&unlimited, None, false).memory_bytes(1), 3072 + 3072 + 5 * 3072);
    }

    #[test]
    fn the_broker_in_this_process_counts_for_both_and_once_in_a_plan() {
        let kafka = KafkaConfig::embedded().unwrap();
        let client = KafkaConfig::brokers("a:1");
        let broker = |of: Footprint, without: Footprint| of.memory_bytes(1) - without.memory_bytes(1);
        assert_eq!(broker(consumer(&kafka), consumer(&client)), 4 * KEPT);
        assert_eq!(broker(producer(&kafka, Some(7), false), producer(&client, None, false)), 7 * KEPT);
        kafka.create_topic("a", 6).unwrap();
        assert_eq!(broker(consumer(&kafka), consumer(&client)), 6 * KEPT);
    }
}
