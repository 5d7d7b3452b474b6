//! The registry's client: asked once for each schema, with all that it refers to, and never for a record that cannot wait for it.

use serde_json::json;
use weir_engine::testkit::context;

use super::testing::TestRegistry;
use super::*;

#[test]
fn a_schema_is_asked_for_once_a_process() {
    let there = TestRegistry::new();
    there.put(7, "orders-value", json!({"schema": "\"long\""}));
    let registry = there.client().basic_auth("weir", "secret");
    let mut first = registry.open(&context("in", 0, 2)).unwrap();
    let mut second = registry.clone().open(&context("in", 1, 2)).unwrap();
    for asker in [&mut first, &mut second] {
        for _ in 0..3 {
            let found = asker.schema(7, Form::Plain).unwrap();
            assert_eq!((found.id, &*found.kind, &*found.text), (7, "AVRO", "\"long\""));
        }
    }
    assert_eq!(there.asked(), ["GET /schemas/ids/7"]);
    assert_eq!(there.requests()[0].header("authorization"), Some("Basic d2VpcjpzZWNyZXQ="));
    assert!(!format!("{registry:?}").contains("secret"));
}

#[test]
fn what_a_schema_refers_to_comes_along() {
    let there = TestRegistry::new();
    let refers = |to: &[(&str, &str)]| {
        let all: Vec<_> = to.iter().map(|(n, s)| json!({"name": n, "subject": s, "version": 1})).collect();
        json!(all)
    };
    there.put(1, "leaf", json!({"schema": "leaf"}));
    // The test's registry takes paths as they come.
    there.put(2, "a%2Fb", json!({"schema": "inner", "references": refers(&[("Leaf", "leaf")])}));
    let both = refers(&[("Inner", "a/b"), ("Leaf", "leaf")]);
    there.put(3, "outer", json!({"schema": "outer", "schemaType": "PROTOBUF", "references": both}));
    let mut asker = there.client().open(&context("in", 0, 1)).unwrap();
    let found = asker.schema(3, Form::Serialized).unwrap();
    let names: Vec<_> = found.references.iter().map(|(name, text)| format!("{name}={text}")).collect();
    assert_eq!((&*found.kind, names), ("PROTOBUF", vec!["Leaf=leaf".to_owned(), "Inner=inner".to_owned()]));
    assert!(there.asked().iter().all(|path| path.ends_with("?format=serialized")), "{:?}", there.asked());

    there.put(4, "x", json!({"schema": "x", "references": refers(&[("Gone", "gone")])}));
    let NoSchema::Outage(e) = asker.schema(4, Form::Plain).unwrap_err() else {
        panic!("no record is at fault")
    };
    assert!(e.to_string().starts_with("schema 4 refers to Gone (subject gone, version 1), which"), "{e}");
}

#[test]
fn an_unknown_id_is_a_bad_record_and_not_a_request_each() {
    let there = TestRegistry::new();
    let mut asker = there.client().open(&context("in", 0, 1)).unwrap();
    for _ in 0..5 {
        let NoSchema::Bad(reason) = asker.schema(9, Form::Plain).unwrap_err() else {
            panic!("it is the record's")
        };
        assert_eq!(
            reason,
            format!("schema id 9, which the schema registry {} does not know", there.client().url)
        );
    }
    assert_eq!(there.asked().len(), 1);
}

#[test]
fn a_registry_that_is_away_is_waited_for_and_then_fails_the_job() {
    let there = TestRegistry::new();
    there.put(7, "orders-value", json!({"schema": "\"long\""}));
    there.fail(2, 503);
    let mut asker = there.client().open(&context("in", 0, 1)).unwrap();
    assert_eq!(asker.schema(7, Form::Plain).unwrap().id, 7);
    assert_eq!(there.asked().len(), 3);

    there.fail(u32::MAX, 500);
    let mut asker = there.client().patience(Duration::from_millis(150)).open(&context("in", 0, 1)).unwrap();
    let NoSchema::Outage(e) = asker.schema(8, Form::Plain).unwrap_err() else {
        panic!("no record is at fault")
    };
    let told = e.to_string();
    assert!(
        told.contains("/schemas/ids/8 did not answer in 2 tries over 100ms; the last: status 500"),
        "{told}"
    );
    there.fail(1, 401);
    let NoSchema::Outage(e) = asker.schema(8, Form::Plain).unwrap_err() else {
        panic!("no record is at fault")
    };
    assert!(e.to_string().contains("says status 401"), "{e}");

    let nobody = SchemaRegistry::at("http://127.0.0.1:1").patience(Duration::ZERO);
    let NoSchema::Outage(e) = nobody.open(&context("in", 0, 1)).unwrap().schema(8, Form::Plain).unwrap_err()
    else {
        panic!("no record is at fault")
    };
    assert!(e.to_string().contains("http://127.0.0.1:1/schemas/ids/8 did not answer in 1 tries"), "{e}");
}

#[test]
fn addresses_are_looked_at_before_anything_is_sent() {
    for (bad, says) in [
        ("registry:8081", "is no address"),
        ("http://", "is no address"),
        ("http://weir:secret@registry:8081", "give them with basic_auth"),
    ] {
        let e = SchemaRegistry::at(bad).open(&context("in", 0, 1)).map(|_| ()).unwrap_err().to_string();
        assert!(e.contains(says) && !e.contains("secret"), "{e}");
    }
    assert_eq!(
        (escaped("a/b ü"), escaped("orders-value")),
        ("a%2Fb%20%C3%BC".to_owned(), "orders-value".to_owned())
    );
}
