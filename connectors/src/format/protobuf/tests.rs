//! Protobuf by way of a registry: the message that is expected and no other, nested ones, imports, and messages of any kind.

use prost_reflect::Value;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto};
use serde_json::json;
use weir_engine::testkit::context;

use super::super::registry::testing::TestRegistry;
use super::*;

#[derive(Clone, PartialEq, prost::Message)]
struct Order {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(message, optional, tag = "2")]
    line: Option<Line>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Line {
    #[prost(string, tag = "1")]
    sku: String,
}

fn field(name: &str, number: i32, r#type: Type, type_name: Option<&str>) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(r#type.into()),
        type_name: type_name.map(str::to_owned),
        ..FieldDescriptorProto::default()
    }
}

fn message(name: &str, fields: Vec<FieldDescriptorProto>, nested: Vec<DescriptorProto>) -> DescriptorProto {
    DescriptorProto {
        name: Some(name.into()),
        field: fields,
        nested_type: nested,
        ..DescriptorProto::default()
    }
}

fn file(imports: &[&str], messages: Vec<DescriptorProto>) -> String {
    let file = FileDescriptorProto {
        // What registries write there.
        name: Some("default".into()),
        package: Some("shop".into()),
        dependency: imports.iter().map(|import| (*import).to_owned()).collect(),
        message_type: messages,
        syntax: Some("proto3".into()),
        ..FileDescriptorProto::default()
    };
    base64::engine::general_purpose::STANDARD.encode(file.encode_to_vec())
}

fn line() -> DescriptorProto {
    message("Line", vec![field("sku", 1, Type::String, None)], Vec::new())
}

fn order() -> DescriptorProto {
    let fields = vec![
        field("id", 1, Type::Int64, None),
        field("line", 2, Type::Message, Some(".shop.Line")),
        field("at", 3, Type::Message, Some(".google.protobuf.Timestamp")),
    ];
    message("Order", fields, vec![message("Inner", vec![field("id", 1, Type::Int64, None)], Vec::new())])
}

/// A registry with lines in one subject and orders, which import them, in another.
fn there() -> TestRegistry {
    let there = TestRegistry::new();
    there.put(1, "lines", json!({"schema": file(&[], vec![line()]), "schemaType": "PROTOBUF"}));
    let imports = &["shop/line.proto", "google/protobuf/timestamp.proto"];
    let refers = json!([{"name": "shop/line.proto", "subject": "lines", "version": 1}]);
    let other = message("Other", Vec::new(), Vec::new());
    let orders = file(imports, vec![order(), other]);
    there.put(2, "orders-value", json!({"schema": orders, "schemaType": "PROTOBUF", "references": refers}));
    there
}

fn framed_by(id: u32, path: &[u32], message: &impl Message) -> Vec<u8> {
    let mut out = Vec::new();
    framed(id, &mut out);
    put_indexes(path, &mut out);
    message.encode(&mut out).unwrap();
    out
}

fn typed(there: &TestRegistry) -> ProtobufDecoder {
    let mut decoder = ProtobufDecoder::with(&there.client(), "shop.Order");
    Decoder::<Order>::open(&mut decoder, &context("in", 0, 1)).unwrap();
    decoder
}

fn an_order() -> Order {
    Order { id: 7, line: Some(Line { sku: "a".into() }) }
}

#[test]
fn the_expected_message_and_no_other() {
    let there = there();
    let mut decoder = typed(&there);
    for _ in 0..3 {
        assert_eq!(decoder.decode(&framed_by(2, &[0], &an_order())), Ok(an_order()));
    }
    assert_eq!(there.asked().len(), 2, "the schema and its import: {:?}", there.asked());
    let mut reason = |bytes: &[u8]| Decoder::<Order>::decode(&mut decoder, bytes).unwrap_err();
    assert_eq!(reason(&framed_by(1, &[0], &an_order())), "it is a shop.Line, and shop.Order is expected");
    assert_eq!(reason(&framed_by(2, &[1], &an_order())), "it is a shop.Other, and shop.Order is expected");
    assert_eq!(
        reason(&framed_by(2, &[0, 0], &an_order())),
        "it is a shop.Order.Inner, and shop.Order is expected"
    );
    assert_eq!(reason(&framed_by(2, &[0, 7], &an_order())), "schema id 2 has no message at [0, 7]");
    assert_eq!(reason(&framed_by(2, &[9], &an_order())), "schema id 2 has no message at [9]");
    assert_eq!(decoder.decode(&framed_by(2, &[0], &an_order())), Ok(an_order()));
}

#[test]
fn bad_records_are_told_with_the_field() {
    let there = there();
    there.put(3, "x", json!({"schema": "\"long\""}));
    there.put(4, "x", json!({"schema": "syntax = \"proto3\";", "schemaType": "PROTOBUF"}));
    let mut decoder = typed(&there);
    let mut reason = |bytes: &[u8]| Decoder::<Order>::decode(&mut decoder, bytes).unwrap_err();
    // The sku is a varint where a string is due.
    let told = reason(b"\0\0\0\0\x02\0\x12\x02\x08\x01");
    assert!(
        told.starts_with("not the expected Protobuf: ") && told.contains("Line.sku: Order.line"),
        "{told}"
    );
    assert!(reason(b"\0\0\0\0\x03\0").contains("schema id 3 is of AVRO"));
    assert!(reason(b"\0\0\0\0\x04\0").contains("does the registry know format=serialized?"));
    assert!(reason(b"\0\0\0\0\x05\0").contains("does not know"));
    assert!(reason(b"\0\0\0\0\x02").contains("cut off"));
    assert!(reason(b"\x08\x07").contains("begins with the byte 8"));
    let mut closed = ProtobufDecoder::with(&there.client(), "shop.Order");
    assert_eq!(Decoder::<Order>::decode(&mut closed, b"\0\0\0\0\x02\0"), Err(NOT_OPEN.to_owned()));
}

#[test]
fn messages_of_any_kind() {
    let there = there();
    let mut decoder = DynamicDecoder::with(&there.client());
    decoder.open(&context("in", 0, 1)).unwrap();
    let order = decoder.decode(&framed_by(2, &[0], &an_order())).unwrap();
    assert_eq!(order.get_field_by_name("id").unwrap().as_ref(), &Value::I64(7));
    let line = order.get_field_by_name("line").unwrap();
    assert_eq!(line.as_message().unwrap().get_field_by_name("sku").unwrap().as_str(), Some("a"));
    let line = decoder.decode(&framed_by(1, &[0], &Line { sku: "b".into() })).unwrap();
    assert_eq!(line.transcode_to::<Line>().unwrap().sku, "b");
}

#[test]
fn what_is_encoded_is_decoded() {
    let there = TestRegistry::new();
    let mut encoder =
        ProtobufEncoder::new(&there.client(), "orders-value", "syntax = \"proto3\";").message_at([1, 0]);
    assert!(encoder.clone().encode(&an_order(), &mut Vec::new()).is_err(), "it is not open");
    Encoder::<Order>::open(&mut encoder, &context("out", 0, 1)).unwrap();
    let mut out = Vec::new();
    encoder.encode(&an_order(), &mut out).unwrap();
    assert_eq!(&out[..8], [0, 0, 0, 0, 1, 4, 2, 0]);
    assert_eq!(ProtobufDecoder::plain().decode(&out[8..]), Ok(an_order()));
    assert!(there.requests()[0].body.contains("\"schemaType\":\"PROTOBUF\""));
}
