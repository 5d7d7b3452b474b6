//! The codec of keys: bytes that sort as the values do, part by part, and of which none is the beginning of another.
//!
//! Integers are big endian, signed ones with the sign flipped; floats with their bits turned so that they sort; `bool` and
//! options are one byte, then the content; an enum is its variant's index (one byte, from 255 on five), then the content.
//! Text and bytes have each 0 followed by 255 and end with 0 1. Sequences and maps have 1 before each element and end with
//! 0. Tuples and structs are their parts, one after the other. Frozen by golden tests.

mod read;
mod write;

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Codec, CodecError, CodecId};

/// The codec of keys: see the module.
#[derive(Clone, Copy, Debug)]
pub struct Ordered;

impl Codec for Ordered {
    const ID: CodecId = CodecId::ORDERED;

    #[inline]
    fn encode<T: Serialize + ?Sized>(value: &T, into: &mut Vec<u8>) -> Result<(), CodecError> {
        value.serialize(&mut write::Writer(into)).map_err(|e| CodecError::broken(Self::ID, e))
    }

    #[inline]
    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
        let mut reader = read::Reader(bytes);
        let value = T::deserialize(&mut reader).map_err(|e| CodecError::broken(Self::ID, e))?;
        let left = reader.0.len();
        if left == 0 {
            Ok(value)
        } else {
            Err(CodecError::trailing(Self::ID, bytes.len() - left, bytes.len()))
        }
    }
}

/// Why a key could not be written or read.
#[derive(Debug, PartialEq, Eq)]
enum Problem {
    TooShort,
    NotText,
    Unexpected(&'static str, u8),
    NeedsType,
    Custom(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::TooShort => f.write_str("the bytes end within a value"),
            Problem::NotText => f.write_str("the bytes are no text"),
            Problem::Unexpected(what, byte) => write!(f, "{byte} is no {what}"),
            Problem::NeedsType => f.write_str("a key must say its type: these bytes do not"),
            Problem::Custom(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Problem {}

impl serde::ser::Error for Problem {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Problem::Custom(text.to_string())
    }
}

impl serde::de::Error for Problem {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Problem::Custom(text.to_string())
    }
}

/// Behind a 0 that is content.
const ESCAPED: u8 = 0xFF;
/// Behind a 0 that ends a text.
const END: u8 = 1;
/// Variants from here on take five bytes.
const WIDE: u8 = 0xFF;

#[cfg(test)]
#[path = "ordered_tests.rs"]
mod tests;
