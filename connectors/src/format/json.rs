//! JSON records: one value per record, read straight from the payload.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Decoder, Encoder};

/// One JSON value per record. Anything after the value, white space excepted, makes the record bad.
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

impl<T: DeserializeOwned> Decoder<T> for Json {
    #[inline]
    fn decode(&mut self, payload: &[u8]) -> Result<T, String> {
        serde_json::from_slice(payload).map_err(|e| format!("not the expected JSON: {e}"))
    }
}

impl<T: Serialize> Encoder<T> for Json {
    #[inline]
    fn encode(&mut self, value: &T, out: &mut Vec<u8>) -> Result<(), String> {
        serde_json::to_writer(out, value).map_err(|e| format!("cannot be written as JSON: {e}"))
    }
}

#[cfg(test)]
mod tests {
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
        let map = std::collections::BTreeMap::from([((1, 2), 3)]);
        let reason = Json.encode(&map, &mut Vec::new()).unwrap_err();
        assert!(reason.contains("key must be a string"), "{reason}");
    }
}
