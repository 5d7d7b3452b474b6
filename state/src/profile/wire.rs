//! How deltas are kept and sent: as they were when whole numbers were all there was, and what came later behind that.

use super::update::{Delta, TagValue};
use serde::{Deserialize, Serialize, Serializer};

/// A delta as it is kept and sent: the whole numbers that were all there was once are written as they were then, so that states and
/// topics of that time are read rightly, and what is written now can be read there as far as it was known.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Written {
    Set(TagValue),
    Unset,
    Add(String),
    Remove(String),
    Increment(i64),
    Max(i64),
    Min(i64),
    Put(String, TagValue),
    #[serde(rename = "increment_by")]
    IncrementBy(TagValue),
    #[serde(rename = "max_of")]
    MaxOf(TagValue),
    #[serde(rename = "min_of")]
    MinOf(TagValue),
}

/// A delta on its way out: as it will be read, without a copy of what it holds.
#[derive(Serialize)]
#[serde(rename = "Written", rename_all = "lowercase")]
enum Image<'d> {
    Set(&'d TagValue),
    Unset,
    Add(&'d str),
    Remove(&'d str),
    Increment(i64),
    Max(i64),
    Min(i64),
    Put(&'d str, &'d TagValue),
    #[serde(rename = "increment_by")]
    IncrementBy(&'d TagValue),
    #[serde(rename = "max_of")]
    MaxOf(&'d TagValue),
    #[serde(rename = "min_of")]
    MinOf(&'d TagValue),
}

impl Serialize for Delta {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let image = match self {
            Delta::Set(value) => Image::Set(value),
            Delta::Unset => Image::Unset,
            Delta::Add(element) => Image::Add(element),
            Delta::Remove(element) => Image::Remove(element),
            Delta::Increment(TagValue::Int(n)) => Image::Increment(*n),
            Delta::Max(TagValue::Int(n)) => Image::Max(*n),
            Delta::Min(TagValue::Int(n)) => Image::Min(*n),
            Delta::Put(key, value) => Image::Put(key, value),
            Delta::Increment(by) => Image::IncrementBy(by),
            Delta::Max(of) => Image::MaxOf(of),
            Delta::Min(of) => Image::MinOf(of),
        };
        image.serialize(serializer)
    }
}

impl From<Written> for Delta {
    fn from(written: Written) -> Self {
        match written {
            Written::Set(value) => Delta::Set(value),
            Written::Unset => Delta::Unset,
            Written::Add(element) => Delta::Add(element),
            Written::Remove(element) => Delta::Remove(element),
            Written::Increment(n) => Delta::Increment(n.into()),
            Written::Max(n) => Delta::Max(n.into()),
            Written::Min(n) => Delta::Min(n.into()),
            Written::Put(key, value) => Delta::Put(key, value),
            Written::IncrementBy(by) => Delta::Increment(by),
            Written::MaxOf(of) => Delta::Max(of),
            Written::MinOf(of) => Delta::Min(of),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scalar::Float;
    use super::super::update::{ProfileUpdate, TagDelta};
    use super::*;
    use crate::codec::CodecId;
    use proptest::prelude::*;

    fn bytes(delta: &Delta) -> Vec<u8> {
        let mut bytes = Vec::new();
        CodecId::BINCODE.encode(delta, &mut bytes).unwrap();
        assert_eq!(&CodecId::BINCODE.decode::<Delta>(&bytes).unwrap(), delta);
        bytes
    }

    /// What the build before numbers of more types wrote.
    #[test]
    fn whole_numbers_are_written_as_they_always_were() {
        for (delta, binary, json) in [
            (Delta::Set("a".into()), &[0, 0, 1, b'a'][..], r#"{"set":{"text":"a"}}"#),
            (Delta::Set(7.into()), &[0, 1, 14], r#"{"set":{"int":7}}"#),
            (Delta::Set(251u64.into()), &[0, 1, 251, 246, 1], r#"{"set":{"int":251}}"#),
            (Delta::Set(["x"].into()), &[0, 3, 1, 1, b'x'], r#"{"set":{"set":["x"]}}"#),
            (Delta::Unset, &[1], r#""unset""#),
            (Delta::Add("x".into()), &[2, 1, b'x'], r#"{"add":"x"}"#),
            (Delta::Remove("x".into()), &[3, 1, b'x'], r#"{"remove":"x"}"#),
            (Delta::Increment((-3).into()), &[4, 5], r#"{"increment":-3}"#),
            (Delta::Max(1.into()), &[5, 2], r#"{"max":1}"#),
            (Delta::Min(64.into()), &[6, 128], r#"{"min":64}"#),
        ] {
            assert_eq!(bytes(&delta), binary, "{delta:?}");
            assert_eq!(serde_json::to_string(&delta).unwrap(), json);
            assert_eq!(serde_json::from_str::<Delta>(json).unwrap(), delta);
        }
    }

    #[test]
    fn what_came_later_is_written_behind_it() {
        for (delta, first, json) in [
            (Delta::Put("k".into(), true.into()), 7, r#"{"put":["k",{"bool":true}]}"#),
            (Delta::Increment(0.5.into()), 8, r#"{"increment_by":{"float":0.5}}"#),
            (Delta::Max(u64::MAX.into()), 9, r#"{"max_of":{"uint":18446744073709551615}}"#),
            (Delta::Min(false.into()), 10, r#"{"min_of":{"bool":false}}"#),
        ] {
            assert_eq!(bytes(&delta)[0], first, "{delta:?}");
            assert_eq!(serde_json::to_string(&delta).unwrap(), json);
            assert_eq!(serde_json::from_str::<Delta>(json).unwrap(), delta);
        }
        let update = ProfileUpdate::of(1u64).at(2).increment("n", 3).increment("f", 0.5);
        let json = serde_json::to_string(&update).unwrap();
        let read: ProfileUpdate = serde_json::from_str(&json).unwrap();
        assert_eq!(read, update);
        assert!(matches!(&read.deltas[0], TagDelta { delta: Delta::Increment(TagValue::Int(3)), .. }));
        let large = Delta::Set(u64::MAX.into());
        assert_eq!(bytes(&large), [0, 2, 253, 255, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!(serde_json::to_string(&large).unwrap(), r#"{"set":{"uint":18446744073709551615}}"#);
        let old: TagValue = serde_json::from_str(r#"{"toolarge":18446744073709551615}"#).unwrap();
        assert_eq!(old, TagValue::from(u64::MAX));
    }

    /// Bits of a float, of NaN the one it is read as.
    fn bits(delta: &Delta) -> u64 {
        match delta {
            Delta::Set(TagValue::Float(Float(n))) if n.is_nan() => f64::NAN.to_bits(),
            Delta::Set(TagValue::Float(Float(n))) => n.to_bits(),
            other => panic!("{other:?}"),
        }
    }

    fn through_all(n: f64) -> Result<(), TestCaseError> {
        let delta = Delta::Set(n.into());
        let json = serde_json::to_string(&delta).unwrap();
        let read: Delta =
            serde_json::from_str(&json).map_err(|e| TestCaseError::fail(format!("{json}: {e}")))?;
        prop_assert_eq!(bits(&read), bits(&delta), "{}", json);
        let mut binary = Vec::new();
        CodecId::BINCODE.encode(&delta, &mut binary).unwrap();
        prop_assert_eq!(bits(&CodecId::BINCODE.decode(&binary).unwrap()), bits(&delta));
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_float_is_read_as_it_was(n in any::<u64>().prop_map(f64::from_bits), short in 0.0f64..1.0) {
            through_all(n)?;
            through_all(short)?;
        }
    }

    #[test]
    fn floats_that_json_has_not_are_texts_there() {
        for (n, json) in [
            (f64::NAN, r#"{"set":{"float":"NaN"}}"#),
            (-f64::NAN, r#"{"set":{"float":"NaN"}}"#),
            (f64::INFINITY, r#"{"set":{"float":"inf"}}"#),
            (f64::NEG_INFINITY, r#"{"set":{"float":"-inf"}}"#),
            (0.9452706955539223, r#"{"set":{"float":0.9452706955539223}}"#),
            (-0.0, r#"{"set":{"float":-0.0}}"#),
        ] {
            assert_eq!(serde_json::to_string(&Delta::Set(n.into())).unwrap(), json);
            through_all(n).unwrap();
        }
        for (json, n) in [("2", 2.0), ("-7", -7.0), ("18446744073709551615", u64::MAX as f64)] {
            let read: TagValue = serde_json::from_str(&format!(r#"{{"float":{json}}}"#)).unwrap();
            assert_eq!(read, n.into());
        }
        for wrong in ["null", "\"\"", "\"1.5\"", "\"infinite\"", "true"] {
            let read = serde_json::from_str::<TagValue>(&format!(r#"{{"float":{wrong}}}"#));
            assert!(
                read.unwrap_err().to_string().contains("a number, or NaN, inf or -inf as a text"),
                "{wrong}"
            );
        }
        // As ever in bytes: the eight of the float.
        let bytes = bytes(&Delta::Set(0.5.into()));
        assert_eq!(bytes[..2], [0, 4]);
        assert_eq!(bytes[2..], 0.5f64.to_le_bytes());
    }
}
