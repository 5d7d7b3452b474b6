//! Codecs turn values into bytes and back. Which one is a number kept with each table, so that no table is bound to a crate.
//!
//! The bytes of every codec are frozen by golden tests. None describes itself: a changed type is a new version of the table.

mod bincode2;
mod ordered;
mod postcard1;

use std::error::Error;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use bincode2::Bincode;
pub use ordered::Ordered;
pub use postcard1::Postcard;

/// Which codec wrote a table. Written into every manifest, so a number is never given to another codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CodecId(pub u16);

impl CodecId {
    /// No codec: the table has a layout of its own.
    pub const RAW: CodecId = CodecId(0);
    /// [`Bincode`]: the default.
    pub const BINCODE: CodecId = CodecId(1);
    /// [`Postcard`].
    pub const POSTCARD: CodecId = CodecId(2);
    /// [`Ordered`]: the codec of keys.
    pub const ORDERED: CodecId = CodecId(3);
    /// [`Ordered`] behind a namespace: the codec of keys that lie in namespaces. Encodes and decodes nothing by itself.
    pub const NAMESPACED: CodecId = CodecId(4);
    /// [`Ordered`] twice: the codec of keys of maps that lie under keys. Encodes and decodes nothing by itself.
    pub const NESTED: CodecId = CodecId(5);

    /// Appends the value's bytes.
    ///
    /// # Errors
    /// The value's own `Serialize` gave up, or no codec has this number. What was appended by then is left there.
    #[inline]
    pub fn encode<T: Serialize + ?Sized>(self, value: &T, into: &mut Vec<u8>) -> Result<(), CodecError> {
        match self {
            CodecId::BINCODE => Bincode::encode(value, into),
            CodecId::POSTCARD => Postcard::encode(value, into),
            CodecId::ORDERED => Ordered::encode(value, into),
            _ => Err(self.unknown()),
        }
    }

    /// Reads a value that is these bytes, all of them.
    ///
    /// # Errors
    /// The bytes are not those of a `T`, or go on behind it, or no codec has this number.
    #[inline]
    pub fn decode<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<T, CodecError> {
        match self {
            CodecId::BINCODE => Bincode::decode(bytes),
            CodecId::POSTCARD => Postcard::decode(bytes),
            CodecId::ORDERED => Ordered::decode(bytes),
            _ => Err(self.unknown()),
        }
    }

    fn unknown(self) -> CodecError {
        CodecError { codec: self, what: Problem::Unknown }
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CodecId::RAW => f.write_str("a layout of its own"),
            CodecId::BINCODE => f.write_str("bincode"),
            CodecId::POSTCARD => f.write_str("postcard"),
            CodecId::ORDERED => f.write_str("ordered"),
            CodecId::NAMESPACED => f.write_str("ordered in namespaces"),
            CodecId::NESTED => f.write_str("ordered within keys"),
            CodecId(n) => write!(f, "codec {n}"),
        }
    }
}

/// One way of turning serde types into bytes and back, the same bytes in every build.
pub trait Codec {
    /// Its number.
    const ID: CodecId;

    /// Appends the value's bytes.
    ///
    /// # Errors
    /// The value's own `Serialize` gave up. What was appended by then is left there.
    fn encode<T: Serialize + ?Sized>(value: &T, into: &mut Vec<u8>) -> Result<(), CodecError>;

    /// Reads a value that is these bytes, all of them.
    ///
    /// # Errors
    /// The bytes are not those of a `T`, or go on behind it.
    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError>;
}

/// Why bytes could not be made or read.
#[derive(Debug)]
pub struct CodecError {
    codec: CodecId,
    what: Problem,
}

#[derive(Debug)]
enum Problem {
    Unknown,
    Trailing { used: usize, of: usize },
    Version(u32),
    Broken(Box<dyn Error + Send + Sync>),
}

impl CodecError {
    fn broken(codec: CodecId, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        CodecError { codec, what: Problem::Broken(source.into()) }
    }

    /// The bytes have a version that is not in the chain.
    pub(crate) fn version(codec: CodecId, version: u32) -> Self {
        CodecError { codec, what: Problem::Version(version) }
    }

    /// The bytes are cut short or have no head.
    pub(crate) fn no_value(codec: CodecId) -> Self {
        CodecError::broken(codec, "the bytes have no head of a value")
    }

    fn trailing(codec: CodecId, used: usize, of: usize) -> Self {
        CodecError { codec, what: Problem::Trailing { used, of } }
    }

    /// The codec that was at work.
    pub fn codec(&self) -> CodecId {
        self.codec
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            Problem::Unknown => {
                write!(
                    f,
                    "codec number {} is not known to this build; use the build that wrote it",
                    self.codec.0
                )
            }
            Problem::Trailing { used, of } => {
                write!(f, "{}: the value ends after {used} of {of} bytes: another type wrote it", self.codec)
            }
            Problem::Version(version) => {
                write!(
                    f,
                    "{}: version {version} is not in the chain of versions that the job declares",
                    self.codec
                )
            }
            Problem::Broken(_) => write!(f, "{}: the bytes and the type do not fit", self.codec),
        }
    }
}

impl Error for CodecError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.what {
            Problem::Broken(source) => Some(&**source),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
