//! Records as they are: bytes, or text that must be UTF-8.

use super::{Decoder, Encoder};

/// The payload itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bytes;

impl Decoder<Vec<u8>> for Bytes {
    fn decode(&mut self, payload: &[u8]) -> Result<Vec<u8>, String> {
        Ok(payload.to_owned())
    }
}

impl<T: AsRef<[u8]>> Encoder<T> for Bytes {
    fn encode(&mut self, value: &T, out: &mut Vec<u8>) -> Result<(), String> {
        out.extend_from_slice(value.as_ref());
        Ok(())
    }
}

/// The payload as text. Bytes that are not UTF-8 make the record bad; nothing is replaced.
#[derive(Clone, Copy, Debug, Default)]
pub struct Utf8;

impl Decoder<String> for Utf8 {
    fn decode(&mut self, payload: &[u8]) -> Result<String, String> {
        match std::str::from_utf8(payload) {
            Ok(text) => Ok(text.to_owned()),
            Err(e) => Err(format!("not UTF-8 from byte {} on", e.valid_up_to())),
        }
    }
}

impl<T: AsRef<str>> Encoder<T> for Utf8 {
    fn encode(&mut self, value: &T, out: &mut Vec<u8>) -> Result<(), String> {
        out.extend_from_slice(value.as_ref().as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_must_be_utf8() {
        assert_eq!(Utf8.decode("圈选".as_bytes()), Ok("圈选".to_owned()));
        assert_eq!(Utf8.decode(b"ok\xff"), Err("not UTF-8 from byte 2 on".to_owned()));
        let mut out = Vec::new();
        Utf8.encode(&"abc", &mut out).unwrap();
        assert_eq!(Bytes.decode(&out), Ok(b"abc".to_vec()));
    }
}
