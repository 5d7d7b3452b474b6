//! JSON is taken and refused as `serde_json` does it: what the type says, what the bytes are, and what cannot be said.

use std::collections::BTreeMap;
use std::fmt::Debug;

use proptest::prelude::*;
use serde::Deserialize;

use super::*;

#[test]
fn round_trip_and_reasons() {
    let mut out = Vec::new();
    Json.encode(&(1u64, "ä".to_owned()), &mut out).unwrap();
    assert_eq!(out, "[1,\"ä\"]".as_bytes());
    assert_eq!(Decoder::<(u64, String)>::decode(&mut Json, &out), Ok((1, "ä".to_owned())));

    let reason = Decoder::<(u64, String)>::decode(&mut Json, b"[1,2]").unwrap_err();
    assert!(reason.starts_with("not the expected JSON: invalid type: integer `2`"), "{reason}");
    let reason = Decoder::<u64>::decode(&mut Json, b"1 2").unwrap_err();
    assert!(reason.contains("trailing characters"), "{reason}");
    assert!(Decoder::<u64>::decode(&mut Json, b"").unwrap_err().contains("EOF"));
}

#[test]
fn what_json_cannot_say_is_an_error() {
    let map = BTreeMap::from([((1, 2), 3)]);
    let reason = Json.encode(&map, &mut Vec::new()).unwrap_err();
    assert!(reason.contains("key must be a string"), "{reason}");
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Pv,
    Buy,
    At { lane: u8 },
}

#[derive(Debug, Default, PartialEq, Deserialize)]
struct Place {
    city: String,
    #[serde(default)]
    lane: Option<u16>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Event {
    user: u64,
    #[serde(default)]
    kind: Option<Kind>,
    #[serde(default)]
    amount: f64,
    #[serde(default)]
    share: f32,
    #[serde(default)]
    balance: i32,
    #[serde(default)]
    places: Vec<Place>,
    #[serde(default)]
    counts: BTreeMap<String, i64>,
}

/// Reads `text` both ways, which must agree.
fn both<T: DeserializeOwned + PartialEq + Debug>(text: &[u8]) -> Result<T, String> {
    let ours = Decoder::<T>::decode(&mut Json, text);
    match (&ours, serde_json::from_slice::<T>(text)) {
        (Ok(a), Ok(b)) => assert_eq!(*a, b, "{}", String::from_utf8_lossy(text)),
        (Err(a), Err(b)) => {
            let theirs = format!("not the expected JSON: {b}");
            assert!(a.starts_with(&theirs), "{a} instead of {theirs} for {}", String::from_utf8_lossy(text));
        }
        (a, b) => panic!("{a:?}, and serde_json {b:?}, for {}", String::from_utf8_lossy(text)),
    }
    ours
}

#[test]
fn reasons_name_the_field() {
    let reason =
        both::<Event>(br#"{"user":1,"places":[{"city":"a"},{"city":"b","lane":70000}]}"#).unwrap_err();
    assert!(reason.ends_with("(field places[1].lane)"), "{reason}");
    assert!(reason.contains("70000") && reason.contains("line 1 column"), "{reason}");
    let reason = both::<Event>(br#"{"user":1,"counts":{"x":"many"}}"#).unwrap_err();
    assert!(reason.ends_with("(field counts.x)"), "{reason}");
    let reason = both::<Event>(br#"{"kind":"pv"}"#).unwrap_err();
    assert!(reason.contains("missing field `user`") && !reason.contains("(field"), "{reason}");
}

#[test]
fn records_are_taken_and_refused_as_by_serde_json() {
    let event = |rest: &str| format!("{{\"user\":1,{rest}}}");
    for good in [
        r#"{"user":1}"#.to_owned(),
        " \n\t{ \"user\" : 18446744073709551615 } \r\n".to_owned(),
        event(r#""kind":"buy","amount":1e-7,"share":0.1,"balance":-2147483648"#),
        event(r#""kind":{"at":{"lane":7}}"#),
        event(r#""amount":0.1000000000000000055511151231257827021181583404541015625"#),
        event(r#""amount":-0"#),
        event(r#""amount":9007199254740993"#),
        event(r#""amount":1.7976931348623157e308"#),
        event(r#""amount":5e-324"#),
        event(r#""share":17005001.000000000000130"#),
        event(r#""places":[{"city":"\u5708\u9009 \ud83d\ude00 \n","lane":null}],"counts":{"a":-1,"":2}"#),
        event(r#""unknown":{"deep":[1,2.5e3,{"x":[null,true,false,"\u0041\\\""]}]},"kind":null"#),
        "[1,null,0,0,0,[],{}]".to_owned(),
    ] {
        both::<Event>(good.as_bytes()).unwrap();
    }
    for bad in [
        "",
        " ",
        "{",
        "nul",
        "{}",
        "[]",
        "1",
        "\"x\"",
        r#"{"user":1}}"#,
        r#"{"user":1} x"#,
        r#"{"user":1,}"#,
        r#"{"user":1 "kind":"pv"}"#,
        r#"{"user":01}"#,
        r#"{"user":-1}"#,
        r#"{"user":-0}"#,
        r#"{"user":1.0}"#,
        r#"{"user":1e3}"#,
        r#"{"user":18446744073709551616}"#,
        r#"{"user":1,"user":2}"#,
        r#"{"user":1,"amount":1e400}"#,
        r#"{"user":1,"amount":-1e400}"#,
        r#"{"user":1,"amount":.5}"#,
        r#"{"user":1,"amount":5.}"#,
        r#"{"user":1,"amount":+5}"#,
        r#"{"user":1,"amount":NaN}"#,
        r#"{"user":1,"balance":2147483648}"#,
        r#"{"user":1,"kind":"sell"}"#,
        r#"{"user":1,"kind":7}"#,
        r#"{"user":1,"kind":{"at":{"lane":300}}}"#,
        r#"{"user":1,"kind":{"at":{"lane":3}},"x":tru}"#,
        // In what is passed over, too.
        r#"{"user":1,"x":{bad}}"#,
        r#"{"user":1,"x":[1,]}"#,
        r#"{"user":1,"x":01}"#,
        r#"{"user":1,"x":"\q"}"#,
        r#"{"user":1,"x":"\u12"}"#,
        "{\"user\":1,\"x\":\"a\nb\"}",
        r#"{"user":1,"x":{"a" 1}}"#,
        r#"{"user":1,"x":1e}"#,
        r#"{"user":1,"places":[{"city":"\ud800"}]}"#,
        "{\"user\":1,\"places\":[{\"city\":\"a\u{1}b\"}]}",
        r#"{"user":1,"places":[{"city":"a"}"#,
        r#"{"user":1,"places":{"city":"a"}}"#,
    ] {
        both::<Event>(bad.as_bytes()).unwrap_err();
    }
    both::<BTreeMap<u32, bool>>(br#"{"7":true,"8":false}"#).unwrap();
    both::<BTreeMap<u32, bool>>(br#"{"x":true}"#).unwrap_err();
    both::<serde_json::Value>(br#"{"a":[1,-2,3.5,"x",null,{"b":1e2}]}"#).unwrap();
    both::<(i128, u128)>(b"[-170141183460469231731687303715884105728,7]").unwrap();
}

#[test]
fn bytes_that_are_not_utf8_are_refused_where_they_are_read() {
    let reason = both::<Event>(b"{\"user\":1,\"places\":[{\"city\":\"a\xff\"}]}").unwrap_err();
    assert!(reason.contains("unicode") && reason.ends_with("(field places[0].city)"), "{reason}");
    both::<Event>(b"{\"user\":1,\xff}").unwrap_err();
    both::<Event>(b"\xef\xbb\xbf{\"user\":1}").unwrap_err();
    // As before: nobody looks into a string that is passed over.
    assert_eq!(both::<Event>(b"{\"user\":1,\"x\":\"\xff\"}").unwrap().user, 1);
}

#[test]
fn no_nesting_is_too_deep_for_the_stack() {
    for deep in [100, 127, 128, 129, 254, 255, 256, 10_000, 1_000_000] {
        let nested = format!("{}{}", "[".repeat(deep), "]".repeat(deep));
        let passed_over = format!("{{\"x\":{nested},\"user\":1}}");
        assert_eq!(both::<Event>(passed_over.as_bytes()).unwrap().user, 1, "{deep} deep");
        let open = format!("{{\"x\":{},\"user\":1}}", "[{\"a\":".repeat(deep));
        both::<Event>(open.as_bytes()).unwrap_err();
        let value = both::<serde_json::Value>(nested.as_bytes());
        assert_eq!(value.is_ok(), deep < 128, "{deep} deep");
    }
    assert_eq!(depth(br#"{"a[[[":[1,{"\"[":2}],"b":[]}"#), 3);
    assert_eq!((depth(b""), depth(b"[[]"), depth(b"]]["), depth(b"\"[[")), (0, 2, 1, 0));
    // Many that do not lie in each other are no reason to read slowly.
    let wide = format!("[{}[]]", "[{}],".repeat(1_000));
    assert!(nests_at_most(wide.as_bytes(), 3) && !nests_at_most(wide.as_bytes(), 2));
}

/// JSON, more or less.
fn texts() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|b| b.to_string()),
        any::<i64>().prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| serde_json::json!(n).to_string()),
        "-?[0-9]{1,25}(\\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?",
        "\\PC{0,40}".prop_map(|s| serde_json::json!(s).to_string()),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let names = prop_oneof![
            Just("user"),
            Just("kind"),
            Just("amount"),
            Just("share"),
            Just("balance"),
            Just("places"),
            Just("counts"),
            Just("city"),
            Just("lane"),
            Just("x"),
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(|all| format!("[{}]", all.join(","))),
            proptest::collection::vec((names, inner), 0..6).prop_map(|all| {
                let fields: Vec<_> = all.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
                format!("{{{}}}", fields.join(" , "))
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_text_is_read_as_by_serde_json(text in texts(), cut in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let event = format!("{{\"user\":1,\"x\":{text}}}");
        let mut broken = event.clone().into_bytes();
        let at = cut.index(broken.len());
        broken[at] = byte;
        for text in [text.as_bytes(), event.as_bytes(), &broken, &event.as_bytes()[..at]] {
            let _ = both::<Event>(text);
            let _ = both::<serde_json::Value>(text);
            let _ = both::<Vec<Place>>(text);
        }
    }
}
