//! Formats that ask somebody, through a topic: what is bad is told with its place, and an outage is no bad record.

use weir_engine::Source;

use super::*;
use crate::format::registry::testing::TestRegistry;
use crate::format::{AvroDecoder, AvroEncoder, Change};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    id: i64,
}

const SCHEMA: &str = r#"{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}"#;

/// Polls an open source until something comes.
fn polled<T: Data + Clone, D: FromMessage<T>>(
    source: &mut KafkaSource<T, D>,
    n: usize,
) -> Result<(Vec<T>, Vec<DeadLetter>)> {
    let (mut values, mut letters) = (Vec::new(), Vec::new());
    let cx = context("in", 0, 1);
    let deadline = Instant::now() + Duration::from_secs(60);
    while values.len() + letters.len() < n && Instant::now() < deadline {
        let mut out = SourceBatch::new(1024);
        let status = source.poll(&mut out, Duration::from_millis(5))?;
        values.extend(out.records().iter().map(|record| record.value.clone()));
        letters.extend(out.rejected().iter().cloned());
        if let SourceStatus::Idle(wait) = status {
            cx.wait(wait)?;
        }
    }
    Ok((values, letters))
}

#[test]
fn avro_there_and_back_and_a_registry_that_is_away() {
    let (there, kafka) = (TestRegistry::new(), with_topic("orders", 1));
    let registry = there.client().patience(Duration::ZERO);
    let sink =
        KafkaSink::<Order, _>::encoded(&kafka, "orders", AvroEncoder::new(&registry, "orders-value", SCHEMA));
    write(&sink, (0..100).map(|id| (Order { id }, 1_000))).unwrap();
    write(&KafkaSink::bytes(&kafka, "orders"), [(b"\0\0\0\0\x01".to_vec(), 1_000)]).unwrap();

    let source = KafkaSource::decoded::<Order, _>(&kafka, AvroDecoder::with(&registry)).topic("orders");
    let mut open = source.clone();
    open.open(&context("in", 0, 1)).unwrap();
    let (values, letters) = polled(&mut open, 101).unwrap();
    open.close(Closing::Ended);
    assert_eq!(values, (0..100).map(|id| Order { id }).collect::<Vec<_>>());
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!((letter.origin.as_str(), letter.partition, letter.offset), ("orders", 0, 100));
    assert!(letter.reason.starts_with("not the expected Avro (schema id 1): "), "{}", letter.reason);
    assert_eq!(there.asked().iter().filter(|asked| asked.starts_with("GET")).count(), 1);

    // Another process, which has not seen the schema.
    there.fail(u32::MAX, 503);
    let fresh = AvroDecoder::with(&there.client().patience(Duration::ZERO));
    let mut open = KafkaSource::decoded::<Order, _>(&kafka, fresh).topic("orders");
    open.open(&context("in", 0, 1)).unwrap();
    let e = polled(&mut open, 1).unwrap_err();
    open.close(Closing::Stopped);
    let told = e.to_string();
    assert!(told.starts_with("cannot decode topic orders, partition 0, offset 0: schema 1: "), "{told}");
}

#[test]
fn changes_of_debezium_with_their_tombstones() {
    let kafka = with_topic("changes", 1);
    let sink =
        KafkaSink::encoded(&kafka, "changes", Bytes).key(|_: &Vec<u8>| "1").tombstone_if(Vec::is_empty);
    let texts = [
        r#"{"before":null,"after":{"id":1},"op":"c"}"#,
        r#"{"before":{"id":1},"after":null,"op":"d"}"#,
        "",
        "{}",
    ];
    write(&sink, texts.map(|text| (text.as_bytes().to_vec(), 1_000))).unwrap();
    let mut open = KafkaSource::debezium::<Order>(&kafka).topic("changes");
    open.open(&context("in", 0, 1)).unwrap();
    let (values, letters) = polled(&mut open, 3).unwrap();
    open.close(Closing::Ended);
    let changes: Vec<_> = values.into_iter().map(|changed| changed.change).collect();
    assert_eq!(
        changes,
        [Change::Created(Order { id: 1 }), Change::Deleted { before: Some(Order { id: 1 }) }]
    );
    assert_eq!(letters.len(), 1);
    assert!(letters[0].offset == 3 && letters[0].reason.contains("no field op"), "{:?}", letters[0]);
}
