//! The bytes of keys, frozen; that they sort as the keys do; and that none is the beginning of another.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::Deserialize;

use super::*;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Place {
    Nowhere,
    Shop(u32),
    At { lane: i8, name: String },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Id {
    tenant: String,
    user: Option<i64>,
    place: Place,
    tags: Vec<u8>,
}

fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    Ordered::encode(value, &mut bytes).unwrap();
    bytes
}

#[track_caller]
fn golden<T: Serialize + DeserializeOwned + PartialEq + fmt::Debug>(value: &T, golden: &[u8]) {
    assert_eq!(bytes(value), golden, "{value:?}");
    assert_eq!(Ordered::decode::<T>(golden).unwrap(), *value);
}

#[test]
fn the_bytes_are_frozen() {
    golden(&true, &[1]);
    golden(&7u8, &[7]);
    golden(&0x0102u16, &[1, 2]);
    golden(&300u64, &[0, 0, 0, 0, 0, 0, 1, 0x2C]);
    golden(&-1i8, &[0x7F]);
    golden(&1i32, &[0x80, 0, 0, 1]);
    golden(&-2i64, &[0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFE]);
    golden(&1.0f32, &[0xBF, 0x80, 0, 0]);
    golden(&-1.0f64, &[0x40, 0x0F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
    golden(&'é', &[0, 0, 0, 0xE9]);
    golden(&"ab".to_owned(), &[b'a', b'b', 0, 1]);
    golden(&"a\0b".to_owned(), &[b'a', 0, 255, b'b', 0, 1]);
    golden(&String::new(), &[0, 1]);
    golden(&(), &[]);
    golden(&None::<u8>, &[0]);
    golden(&Some(5u8), &[1, 5]);
    golden(&vec![3u8, 0], &[1, 3, 1, 0, 0]);
    golden(&BTreeMap::from([(1u8, "x".to_owned())]), &[1, 1, b'x', 0, 1, 0]);
    golden(&(1u8, "k".to_owned()), &[1, b'k', 0, 1]);
    golden(&Place::Nowhere, &[0]);
    golden(&Place::Shop(9), &[1, 0, 0, 0, 9]);
    golden(&Place::At { lane: -1, name: "n".to_owned() }, &[2, 0x7F, b'n', 0, 1]);
}

#[test]
fn what_is_no_key_is_an_error() {
    let error = |result: Result<String, CodecError>| {
        let error = result.unwrap_err();
        std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string)
    };
    assert_eq!(error(Ordered::decode(b"abc")), "the bytes end within a value");
    assert_eq!(error(Ordered::decode(&[b'a', 0, 7])), "7 is no end of a text");
    assert_eq!(error(Ordered::decode(&[0xFF, 0, 1])), "the bytes are no text");
    assert_eq!(
        error(Ordered::decode(&[0, 1, 9])),
        "ordered: the value ends after 2 of 3 bytes: another type wrote it"
    );
    assert!(Ordered::decode::<Option<u8>>(&[2]).is_err());
    assert!(Ordered::decode::<bool>(&[2]).is_err());
    assert!(Ordered::decode::<serde_json::Value>(&[2]).is_err());
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        Just(Place::Nowhere),
        any::<u32>().prop_map(Place::Shop),
        (any::<i8>(), "[\0ab]{0,3}").prop_map(|(lane, name)| Place::At { lane, name }),
    ]
}

fn id() -> impl Strategy<Value = Id> {
    let tags = prop::collection::vec(0u8..3, 0..4);
    ("[\0\u{1}a\u{ff}]{0,4}", any::<Option<i64>>(), place(), tags)
        .prop_map(|(tenant, user, place, tags)| Id { tenant, user, place, tags })
}

proptest! {
    #[test]
    fn keys_come_back_and_sort_as_they_do(a in id(), b in id()) {
        let (x, y) = (bytes(&a), bytes(&b));
        prop_assert_eq!(Ordered::decode::<Id>(&x).unwrap(), a.clone());
        prop_assert_eq!(x.cmp(&y), a.cmp(&b));
        prop_assert!(a == b || !y.starts_with(&x));
    }

    #[test]
    fn numbers_sort(a in any::<(i64, i128, i16)>(), b in any::<(i64, i128, i16)>(), x in any::<f64>(), y in any::<f64>()) {
        prop_assert_eq!(bytes(&a).cmp(&bytes(&b)), a.cmp(&b));
        prop_assert_eq!(Ordered::decode::<(i64, i128, i16)>(&bytes(&a)).unwrap(), a);
        prop_assert_eq!(bytes(&x).cmp(&bytes(&y)), x.total_cmp(&y));
        prop_assert_eq!(Ordered::decode::<f64>(&bytes(&x)).unwrap().to_bits(), x.to_bits());
    }
}
