//! The broker that all tests share, topics of their own, the job under test, and what consumers see.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fail::FailScenario;
use rdkafka::admin::AdminClient;
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};
use weir_connectors::format::Json;
use weir_connectors::generator::Generator;
use weir_connectors::kafka::{ExactlyOnce, KafkaConfig, KafkaSink, partition_of};
use weir_engine::prelude::*;
use weir_engine::{Collector, Keyed, Operator, OperatorInfo, RestartPolicy};
use weir_integration_tests::broker::RealBroker;

/// How long anything may take that does not take its time on purpose.
pub(crate) const SOON: Duration = Duration::from_secs(120);

pub(crate) fn soak() -> bool {
    std::env::var_os("WEIR_SOAK").is_some()
}

/// The broker of this process; it ends with it.
pub(crate) fn broker() -> &'static RealBroker {
    static BROKER: OnceLock<RealBroker> = OnceLock::new();
    BROKER.get_or_init(|| RealBroker::start().unwrap())
}

pub(crate) fn kafka() -> KafkaConfig {
    KafkaConfig::brokers(broker().address())
        .patience(Duration::from_secs(60))
        .set("reconnect.backoff.max.ms", "500")
}

/// A test of its own: no other runs beside it, and no fail point is left over.
pub(crate) struct Rig {
    pub(crate) topic: String,
    pub(crate) name: String,
    pub(crate) partitions: i32,
    pub(crate) kafka: KafkaConfig,
    _alone: FailScenario<'static>,
}

/// Fails at these records, counted over all subtasks and lives.
#[derive(Clone)]
pub(crate) struct Trap(Arc<AtomicU64>, Vec<u64>);

impl Trap {
    pub(crate) fn at(turns: impl IntoIterator<Item = u64>) -> Trap {
        Trap(Arc::default(), turns.into_iter().collect())
    }
}

impl Operator<u64> for Trap {
    type Out = u64;

    fn process(&mut self, record: Record<u64>, out: &mut impl Collector<u64>) -> Result<()> {
        let turn = self.0.fetch_add(1, Ordering::Relaxed);
        if self.1.contains(&turn) {
            return Err(TaskError::external(format!("struck at turn {turn}")));
        }
        out.emit(record)
    }
}

#[derive(Clone)]
struct Unkey;

impl Operator<Keyed<u64, u64>> for Unkey {
    type Out = u64;

    fn process(&mut self, record: Record<Keyed<u64, u64>>, out: &mut impl Collector<u64>) -> Result<()> {
        let value = record.value.value;
        out.emit(Record { value, time: record.time })
    }
}

/// Writes numbers into the topic: number `n` into partition `n % partitions`, with the time 1,000 + `n`.
pub(crate) fn feed(rig: &Rig, numbers: Range<u64>) {
    let producer: BaseProducer = broker().client().set("linger.ms", "1").create().unwrap();
    send(&producer, rig, numbers);
}

/// As [`feed`], with a producer of yours; returns when all is there.
pub(crate) fn send(producer: &BaseProducer, rig: &Rig, numbers: Range<u64>) {
    for n in numbers {
        let payload = n.to_string();
        let mut record = BaseRecord::<str, str>::to(&rig.topic)
            .partition((n % rig.partitions as u64) as i32)
            .timestamp(1_000 + n as i64)
            .payload(&payload);
        while let Err((e, again)) = producer.send(record) {
            assert_eq!(e.rdkafka_error_code(), Some(RDKafkaErrorCode::QueueFull), "{e}");
            producer.poll(Duration::from_millis(5));
            record = again;
        }
    }
    producer.flush(SOON).unwrap();
}

/// A producer with transactions of its own.
pub(crate) fn transactional(rig: &Rig) -> BaseProducer {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let id = format!("{}-{}", rig.name, NEXT.fetch_add(1, Ordering::Relaxed));
    let producer: BaseProducer = broker().client().set("transactional.id", &id).create().unwrap();
    producer.init_transactions(SOON).unwrap();
    producer
}

/// Numbers in one transaction, that is committed or not.
pub(crate) fn transaction(rig: &Rig, numbers: Range<u64>, commit: bool) {
    let producer = transactional(rig);
    producer.begin_transaction().unwrap();
    send(&producer, rig, numbers);
    let ended = if commit { producer.commit_transaction(SOON) } else { producer.abort_transaction(SOON) };
    ended.unwrap();
}

/// What the group has committed of each partition.
pub(crate) fn committed(group: &str, topic: &str, partitions: i32) -> Vec<Option<i64>> {
    let consumer: BaseConsumer = broker().client().set("group.id", group).create().unwrap();
    let mut asked = TopicPartitionList::new();
    for partition in 0..partitions {
        asked.add_partition(topic, partition);
    }
    let answer = consumer.committed_offsets(asked, SOON).unwrap();
    let of = |offset| if let Offset::Offset(offset) = offset { Some(offset) } else { None };
    answer.elements().iter().map(|element| of(element.offset())).collect()
}

pub(crate) fn admin() -> AdminClient<DefaultClientContext> {
    broker().client().create().unwrap()
}

impl Rig {
    /// With a topic of so many partitions.
    pub(crate) fn new(name: &str, partitions: i32) -> Rig {
        let alone = FailScenario::setup();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let kafka = kafka();
        assert!(kafka.create_topic(&name, partitions).unwrap());
        Rig { topic: name.clone(), name, partitions, kafka, _alone: alone }
    }

    pub(crate) fn how(&self) -> ExactlyOnce {
        ExactlyOnce::named(&self.name)
    }

    pub(crate) fn checkpoints(&self, every_ms: u64) -> Checkpoints {
        let every = Duration::from_millis(every_ms);
        Checkpoints::to(format!("memory://kafka-{}", self.name)).every(every).tolerate_failures(10_000)
    }

    pub(crate) fn sink(&self, how: ExactlyOnce) -> KafkaSink<u64, Json> {
        KafkaSink::json(&self.kafka, &self.topic).key(|n: &u64| (n % 61).to_string()).exactly_once(how)
    }

    /// Numbers from 0 at a rate, one after the other whatever the parallelism, struck here and there.
    pub(crate) fn job(
        &self,
        parallelism: usize,
        n: u64,
        rate: f64,
        trap: Trap,
        checkpoints: Checkpoints,
    ) -> Job {
        self.job_into(self.sink(self.how()), parallelism, n, rate, trap, checkpoints)
    }

    pub(crate) fn job_into(
        &self,
        sink: KafkaSink<u64, Json>,
        parallelism: usize,
        n: u64,
        rate: f64,
        trap: Trap,
        checkpoints: Checkpoints,
    ) -> Job {
        let job = Job::named(&self.name)
            .parallelism(parallelism)
            .restart(RestartPolicy::FixedDelay { restarts: 1_000, delay: Duration::from_millis(10) })
            .checkpoints(checkpoints);
        job.source("numbers", Generator::new(1, Some(n), |i, _| (i, EventTime(1_000 + i as i64))).rate(rate))
            // One reader, so that the order of a key's records is known.
            .parallelism(1)
            .without_event_time()
            .transform(OperatorInfo::stateless("trap"), trap)
            .key_by("by-key", |n| n % 61)
            .transform(OperatorInfo::stateless("unkey"), Unkey)
            .sink("out", sink);
        job
    }

    /// The numbers 0 to `n` are there once for those who read what is committed; those of a key are in its partition, in the
    /// order in which they went in when `ordered`.
    pub(crate) fn assert_exact(&self, n: u64, what: &str) {
        // A broker answers a commit before the last readers may see what was committed.
        let deadline = Instant::now() + SOON;
        let mut seen = read_committed(&self.topic, self.partitions);
        while (seen.len() as u64) < n && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(50));
            seen = read_committed(&self.topic, self.partitions);
        }
        let mut all = Vec::new();
        let mut last = BTreeMap::new();
        for (partition, record) in &seen {
            let number: u64 = serde_json::from_slice(record.payload.as_ref().unwrap()).unwrap();
            let key = (number % 61).to_string();
            assert_eq!(record.key.as_deref(), Some(key.as_bytes()));
            assert_eq!(*partition, partition_of(key.as_bytes(), self.partitions));
            assert_eq!(record.time, Some(1_000 + number as i64));
            if let Some(before) = last.insert(key, number) {
                assert!(before < number, "{what}: {number} came after {before} in partition {partition}");
            }
            all.push(number);
        }
        all.sort_unstable();
        let mut odd = all.windows(2).filter(|w| w[1] != w[0] + 1);
        let wrong = odd.next().map(<[u64]>::to_vec);
        assert!(all.iter().copied().eq(0..n), "{what}: {} records of {n}; about {wrong:?}", all.len());
    }
}

/// One record as a consumer sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) time: Option<i64>,
    pub(crate) offset: i64,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
}

/// All that is committed, partition by partition in order. The end is known: no transaction is open.
pub(crate) fn read_committed(topic: &str, partitions: i32) -> Vec<(i32, Seen)> {
    let consumer: BaseConsumer = broker()
        .client()
        .set("group.id", "reader")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .create()
        .unwrap();
    let mut assignment = TopicPartitionList::new();
    for partition in 0..partitions {
        assignment.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&assignment).unwrap();
    let deadline = Instant::now() + SOON;
    let (mut seen, mut ended) = (Vec::new(), 0);
    while ended < partitions {
        assert!(
            Instant::now() < deadline,
            "{topic} does not end: {ended} of {partitions}, {} records",
            seen.len()
        );
        match consumer.poll(Duration::from_millis(500)) {
            Some(Ok(m)) => {
                let record = Seen {
                    key: m.key().map(<[u8]>::to_vec),
                    payload: m.payload().map(<[u8]>::to_vec),
                    time: m.timestamp().to_millis(),
                    offset: m.offset(),
                    headers: m.headers().map_or_else(Vec::new, |headers| {
                        let owned = |h: rdkafka::message::Header<'_, &[u8]>| {
                            (h.key.to_owned(), h.value.map(<[u8]>::to_vec))
                        };
                        headers.iter().map(owned).collect()
                    }),
                };
                seen.push((m.partition(), record));
            }
            Some(Err(KafkaError::PartitionEOF(_))) => ended += 1,
            // The client connects again by itself.
            Some(Err(e)) if e.rdkafka_error_code().is_some_and(is_away) => {}
            Some(Err(e)) => panic!("{topic}: {e}"),
            None => {}
        }
    }
    seen
}

/// A broker that did not answer, and may yet.
fn is_away(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::AllBrokersDown
            | RDKafkaErrorCode::BrokerTransportFailure
            | RDKafkaErrorCode::OperationTimedOut
    )
}
