//! The bytes of every codec, frozen: a change here is a change of every checkpoint.

use std::collections::BTreeMap;

use super::*;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Action {
    View,
    Buy { item: u32, price: f64 },
    Tag(String),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Inner {
    name: String,
    score: Option<i16>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Outer {
    id: u64,
    inner: Inner,
    tags: BTreeMap<String, Vec<u8>>,
    last: (bool, char),
}

fn outer() -> Outer {
    Outer {
        id: 300,
        inner: Inner { name: "ab".to_owned(), score: Some(-2) },
        tags: BTreeMap::from([("k".to_owned(), vec![1, 2, 255])]),
        last: (true, 'é'),
    }
}

/// Both directions, with both codecs.
#[track_caller]
fn golden<T>(value: &T, first: &[u8], second: &[u8])
where
    T: Serialize + DeserializeOwned + PartialEq + fmt::Debug,
{
    for (codec, bytes) in [(CodecId::BINCODE, first), (CodecId::POSTCARD, second)] {
        let mut made = Vec::new();
        codec.encode(value, &mut made).unwrap();
        assert_eq!(made, bytes, "{codec} of {value:?}");
        assert_eq!(codec.decode::<T>(bytes).unwrap(), *value, "{codec}");
    }
}

#[test]
fn numbers() {
    golden(&true, &[1], &[1]);
    golden(&7u8, &[7], &[7]);
    golden(&-1i8, &[0xFF], &[0xFF]);
    golden(&250u16, &[250], &[0xFA, 1]);
    golden(&251u16, &[251, 251, 0], &[0xFB, 1]);
    golden(&70_000u32, &[252, 0x70, 0x11, 1, 0], &[0xF0, 0xA2, 4]);
    golden(
        &u64::MAX,
        &[253, 255, 255, 255, 255, 255, 255, 255, 255],
        &[255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
    );
    golden(&-1i64, &[1], &[1]);
    golden(&300i32, &[251, 0x58, 2], &[0xD8, 4]);
    golden(
        &i64::MIN,
        &[253, 255, 255, 255, 255, 255, 255, 255, 255],
        &[255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
    );
    golden(&1.5f32, &[0, 0, 0xC0, 0x3F], &[0, 0, 0xC0, 0x3F]);
    golden(&-2.0f64, &[0, 0, 0, 0, 0, 0, 0, 0xC0], &[0, 0, 0, 0, 0, 0, 0, 0xC0]);
}

#[test]
fn texts_options_and_maps() {
    golden(&(), &[], &[]);
    golden(&"aé".to_owned(), &[3, b'a', 0xC3, 0xA9], &[3, b'a', 0xC3, 0xA9]);
    golden(&None::<u8>, &[0], &[0]);
    golden(&Some(5u8), &[1, 5], &[1, 5]);
    golden(&vec![1u16, 2], &[2, 1, 2], &[2, 1, 2]);
    golden(&BTreeMap::from([(1u8, true), (2, false)]), &[2, 1, 1, 2, 0], &[2, 1, 1, 2, 0]);
}

#[test]
fn enums() {
    golden(&Action::View, &[0], &[0]);
    golden(
        &Action::Buy { item: 3, price: 1.0 },
        &[1, 3, 0, 0, 0, 0, 0, 0, 0xF0, 0x3F],
        &[1, 3, 0, 0, 0, 0, 0, 0, 0xF0, 0x3F],
    );
    golden(&Action::Tag("x".to_owned()), &[2, 1, b'x'], &[2, 1, b'x']);
}

#[test]
fn nested_structs() {
    golden(
        &outer(),
        &[251, 0x2C, 1, 2, b'a', b'b', 1, 3, 1, 1, b'k', 3, 1, 2, 255, 1, 0xC3, 0xA9],
        &[0xAC, 2, 2, b'a', b'b', 1, 3, 1, 1, b'k', 3, 1, 2, 255, 1, 2, 0xC3, 0xA9],
    );
}

#[test]
fn bytes_behind_a_value_are_an_error() {
    for codec in [CodecId::BINCODE, CodecId::POSTCARD] {
        let mut bytes = Vec::new();
        codec.encode(&outer(), &mut bytes).unwrap();
        bytes.push(0);
        let error = codec.decode::<Outer>(&bytes).unwrap_err().to_string();
        assert!(error.contains(&format!("{} of {} bytes", bytes.len() - 1, bytes.len())), "{error}");
        bytes.truncate(3);
        assert!(codec.decode::<Outer>(&bytes).is_err());
    }
}

#[test]
fn a_codec_nobody_knows_is_named() {
    for codec in [CodecId::RAW, CodecId(9)] {
        let error = codec.decode::<u8>(&[1]).unwrap_err();
        assert!(error.to_string().contains("is not known to this build"), "{error}");
        assert_eq!(error.codec(), codec);
        assert!(codec.encode(&1u8, &mut Vec::new()).is_err());
    }
}
