//! JSON records: one value per record, read straight from the payload, only the fields that the type has.
// HOT: one pass over the bytes to see that they do not nest too deeply, one that makes the value.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Decoder, Encoder};

/// One JSON value per record. Anything after the value, white space excepted, makes the record bad.
///
/// Fields that the type does not have are passed over, though they must be JSON too. `sonic-rs` reads what is good; what it
/// refuses `serde_json` reads again, whose word it is: so a record is taken or not, and a number rounded, as by `serde_json`, and the
/// reason names the line, the column and the field.
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

impl<T: DeserializeOwned> Decoder<T> for Json {
    #[inline]
    fn decode(&mut self, payload: &[u8]) -> Result<T, String> {
        // What is passed over is read recursively, and the stack is not endless.
        if nests_at_most(payload, DEEPEST)
            && let Ok(value) = sonic_rs::from_slice(payload)
        {
            return Ok(value);
        }
        again(payload)
    }
}

/// Values that nest more deeply are left to `serde_json`, which passes over any depth and keeps no more than 127: what `sonic-rs` passes
/// over takes some 26 KB of the stack for each level when it is built without optimisation.
const DEEPEST: usize = if cfg!(debug_assertions) { 24 } else { 64 };

/// Whether arrays and objects lie at most `most` deep in each other; of what is no JSON it may say no.
#[inline]
fn nests_at_most(payload: &[u8], most: usize) -> bool {
    // Each takes a byte to begin: that they are few, strings included, is plain in one fast pass.
    payload.len() <= most
        || payload.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() <= most
        || depth(payload) <= most
}

/// How deep arrays and objects lie in each other.
#[cold]
fn depth(payload: &[u8]) -> usize {
    let (mut depth, mut deepest, mut at) = (0usize, 0, 0);
    while let Some(byte) = payload.get(at) {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => at = end_of_string(payload, at + 1),
            _ => {}
        }
        at += 1;
    }
    deepest
}

/// Where the string that begins at `at` has its closing quote.
fn end_of_string(payload: &[u8], mut at: usize) -> usize {
    while let Some(found) = payload.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found;
        if payload[at] == b'"' {
            return at;
        }
        at += 2;
    }
    payload.len()
}

/// What `serde_json` says of the record, and where in it.
#[cold]
fn again<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|error| {
        let mut reader = serde_json::Deserializer::from_slice(payload);
        let field = match serde_path_to_error::deserialize::<_, T>(&mut reader) {
            Err(e) if e.path().iter().next().is_some() => format!(" (field {})", e.path()),
            // The value as a whole, or what comes after it.
            _ => String::new(),
        };
        format!("not the expected JSON: {error}{field}")
    })
}

impl<T: Serialize> Encoder<T> for Json {
    #[inline]
    fn encode(&mut self, value: &T, out: &mut Vec<u8>) -> Result<(), String> {
        serde_json::to_writer(out, value).map_err(|e| format!("cannot be written as JSON: {e}"))
    }
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
