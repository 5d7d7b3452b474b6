//! Avro by way of a registry: schemas that grow, types that know less, records that are not what their schema says.

use serde::Deserialize;
use serde_json::{Value, json};
use weir_engine::testkit::context;

use super::super::registry::testing::TestRegistry;
use super::super::{Change, Changed, Envelope};
use super::*;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    id: i64,
    amount: f64,
    #[serde(default)]
    note: Option<String>,
}

fn record(name: &str, fields: Value) -> Value {
    json!({"type": "record", "name": name, "namespace": "shop", "fields": fields})
}

fn orders() -> Value {
    record(
        "Order",
        json!([
            {"name": "id", "type": "long"},
            {"name": "lines", "type": {"type": "array", "items": record("Line", json!([{"name": "sku", "type": "string"}]))}},
            {"name": "amount", "type": "double"},
            {"name": "note", "type": ["null", "string"], "default": null},
        ]),
    )
}

/// What any writer would write.
fn written(id: u32, schema: &Value, value: &impl Serialize) -> Vec<u8> {
    let schema = Schema::parse(schema).unwrap();
    let mut out = Vec::new();
    framed(id, &mut out);
    GenericDatumWriter::builder(&schema).build().unwrap().write_ser(&mut out, value).unwrap();
    out
}

#[derive(Serialize)]
struct Line {
    sku: &'static str,
}

#[derive(Serialize)]
struct Full {
    id: i64,
    lines: Vec<Line>,
    amount: f64,
    note: Option<&'static str>,
}

fn full(id: i64) -> Full {
    Full { id, lines: vec![Line { sku: "a" }, Line { sku: "b" }], amount: 1.5, note: Some("x") }
}

fn opened(decoder: AvroDecoder) -> AvroDecoder {
    let mut decoder = decoder;
    Decoder::<Order>::open(&mut decoder, &context("in", 0, 1)).unwrap();
    decoder
}

#[test]
fn records_of_several_schemas_become_one_type() {
    let there = TestRegistry::new();
    let older = record("Order", json!([{"name": "id", "type": "int"}, {"name": "amount", "type": "double"}]));
    there.put(1, "orders-value", json!({"schema": older.to_string()}));
    there.put(2, "orders-value", json!({"schema": orders().to_string()}));
    let mut decoder = opened(AvroDecoder::with(&there.client()));
    #[derive(Serialize)]
    struct Older {
        id: i32,
        amount: f64,
    }
    for n in 0..3 {
        let new: Order = decoder.decode(&written(2, &orders(), &full(n))).unwrap();
        assert_eq!(new, Order { id: n, amount: 1.5, note: Some("x".to_owned()) });
        let old: Order = decoder.decode(&written(1, &older, &Older { id: 7, amount: 2.0 })).unwrap();
        assert_eq!(old, Order { id: 7, amount: 2.0, note: None }, "an int where the type has a long");
    }
    assert_eq!(there.asked(), ["GET /schemas/ids/2", "GET /schemas/ids/1"]);
    assert!(Decoder::<Order>::outage(&mut decoder).is_none());
}

#[test]
fn a_readers_schema_brings_its_defaults_and_promotions() {
    let there = TestRegistry::new();
    let older = record("Order", json!([{"name": "id", "type": "int"}]));
    there.put(1, "orders-value", json!({"schema": older.to_string()}));
    let wanted = record(
        "Order",
        json!([
            {"name": "id", "type": "long"},
            {"name": "amount", "type": "double", "default": 0.5},
            {"name": "note", "type": ["null", "string"], "default": null},
        ]),
    );
    let mut decoder = opened(AvroDecoder::with(&there.client()).reader_schema(wanted.to_string()));
    #[derive(Serialize)]
    struct Older {
        id: i32,
    }
    let got: Order = decoder.decode(&written(1, &older, &Older { id: 7 })).unwrap();
    assert_eq!(got, Order { id: 7, amount: 0.5, note: None });

    let mut bad = AvroDecoder::with(&there.client()).reader_schema("{");
    let e = Decoder::<Order>::open(&mut bad, &context("in", 0, 1)).unwrap_err();
    assert_eq!(e.to_string(), "the reader's schema is no Avro schema");
}

#[test]
fn named_types_of_other_subjects() {
    let there = TestRegistry::new();
    let line = record("Line", json!([{"name": "sku", "type": "string"}]));
    there.put(1, "line", json!({"schema": line.to_string()}));
    let order = record(
        "Order",
        json!([
            {"name": "id", "type": "long"},
            {"name": "lines", "type": {"type": "array", "items": "shop.Line"}},
            {"name": "amount", "type": "double"},
        ]),
    );
    let refers = json!([{"name": "shop.Line", "subject": "line", "version": 1}]);
    there.put(2, "orders-value", json!({"schema": order.to_string(), "references": refers}));
    let mut decoder = opened(AvroDecoder::with(&there.client()));
    let mut bytes = written(2, &orders(), &full(7));
    // The note is the last two bytes and its tag.
    bytes.truncate(bytes.len() - 3);
    let got: Order = decoder.decode(&bytes).unwrap();
    assert_eq!(got, Order { id: 7, amount: 1.5, note: None });
}

#[test]
fn bad_records_are_told_with_the_schema_and_the_field() {
    let there = TestRegistry::new();
    let odd =
        record("Order", json!([{"name": "id", "type": "string"}, {"name": "amount", "type": "double"}]));
    there.put(1, "orders-value", json!({"schema": odd.to_string()}));
    there.put(2, "orders-value", json!({"schema": orders().to_string()}));
    there.put(3, "orders-value", json!({"schema": "syntax = \"proto3\";", "schemaType": "PROTOBUF"}));
    there.put(4, "orders-value", json!({"schema": "{\"type\": \"recrd\"}"}));
    let mut decoder = opened(AvroDecoder::with(&there.client()));
    let mut reason = |bytes: &[u8]| Decoder::<Order>::decode(&mut decoder, bytes).unwrap_err();
    #[derive(Serialize)]
    struct Odd {
        id: &'static str,
        amount: f64,
    }
    let told = reason(&written(1, &odd, &Odd { id: "x", amount: 1.0 }));
    assert!(
        told.starts_with("not the expected Avro (schema id 1): ") && told.ends_with("(field id)"),
        "{told}"
    );
    let good = written(2, &orders(), &full(7));
    let told = reason(&good[..good.len() - 1]);
    assert_eq!(told, "not the expected Avro (schema id 2): the record is cut off");
    assert_eq!(reason(b"\0\0\0\0\x02"), "not the expected Avro (schema id 2): the record is cut off");
    let told = reason(&[&good[..], b"xy"].concat());
    assert_eq!(told, "not the expected Avro (schema id 2): 2 bytes after the record");
    assert!(reason(b"\0\0\0\0\x03").contains("schema id 3 is of PROTOBUF"));
    assert!(reason(b"\0\0\0\0\x04").starts_with("schema id 4 cannot be read with: "));
    assert!(reason(b"\0\0\0\0\x05").starts_with("schema id 5, which the schema registry"));
    assert!(reason(b"{}").contains("begins with the byte 123"));
    let good: Order = decoder.decode(&good).unwrap();
    assert_eq!(good.id, 7, "a bad record leaves nothing behind");
}

#[test]
fn an_outage_is_no_bad_record() {
    let there = TestRegistry::new();
    there.fail(u32::MAX, 500);
    let mut decoder = opened(AvroDecoder::with(&there.client().patience(std::time::Duration::ZERO)));
    assert!(Decoder::<Order>::decode(&mut decoder, b"\0\0\0\0\x01x").is_err());
    let e = Decoder::<Order>::outage(&mut decoder).unwrap();
    assert!(e.to_string().contains("did not answer"), "{e}");
    assert!(Decoder::<Order>::outage(&mut decoder).is_none(), "it is told once");
}

#[test]
fn what_is_encoded_is_decoded() {
    let there = TestRegistry::new();
    there.put(5, "other", json!({"schema": "\"long\""}));
    let mut encoder = AvroEncoder::new(&there.client(), "orders-value", orders().to_string());
    assert!(encoder.clone().encode(&full(1), &mut Vec::new()).is_err(), "it is not open");
    Encoder::<Full>::open(&mut encoder, &context("out", 0, 1)).unwrap();
    let mut out = Vec::new();
    encoder.encode(&full(9), &mut out).unwrap();
    assert_eq!(&out[..5], b"\0\0\0\0\x06");
    let got: Order = opened(AvroDecoder::with(&there.client())).decode(&out).unwrap();
    assert_eq!(got, Order { id: 9, amount: 1.5, note: Some("x".to_owned()) });
    let e = encoder.encode(&7u64, &mut Vec::new()).unwrap_err();
    assert!(e.starts_with("cannot be written by the Avro schema of subject orders-value: "), "{e}");
    assert_eq!(there.asked()[0], "POST /subjects/orders-value/versions");
}

#[test]
fn changes_of_debezium_in_avro() {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Row {
        id: i64,
    }
    let there = TestRegistry::new();
    let schema = record(
        "Envelope",
        json!([
            {"name": "before", "type": ["null", record("Value", json!([{"name": "id", "type": "long"}]))], "default": null},
            {"name": "after", "type": ["null", "shop.Value"], "default": null},
            {"name": "source", "type": record("Source", json!([
                {"name": "table", "type": ["null", "string"]}, {"name": "snapshot", "type": ["null", "string"]},
            ]))},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": null},
        ]),
    );
    there.put(1, "t-value", json!({"schema": schema.to_string()}));
    #[derive(Serialize)]
    struct Source {
        table: Option<&'static str>,
        snapshot: Option<&'static str>,
    }
    #[derive(Serialize)]
    struct Written {
        before: Option<Row>,
        after: Option<Row>,
        source: Source,
        op: &'static str,
        ts_ms: Option<i64>,
    }
    let source = Source { table: Some("orders"), snapshot: Some("false") };
    let value =
        Written { before: Some(Row { id: 1 }), after: Some(Row { id: 2 }), source, op: "u", ts_ms: Some(5) };
    let mut decoder = opened(AvroDecoder::with(&there.client()));
    let envelope: Envelope<Row> = decoder.decode(&written(1, &schema, &value)).unwrap();
    let changed: Changed<Row> = envelope.change().unwrap();
    assert_eq!(changed.change, Change::Updated { before: Some(Row { id: 1 }), after: Row { id: 2 } });
    assert_eq!(
        (changed.origin.table.as_deref(), changed.origin.snapshot, changed.ts_ms),
        (Some("orders"), false, Some(5))
    );
}
