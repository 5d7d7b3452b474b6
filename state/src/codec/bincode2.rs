//! bincode 2.0.1, and nothing else names it: the crate is no longer maintained, so this file must be enough to leave it.

use bincode::config::{self, Configuration};
use bincode::serde::{decode_from_slice, encode_into_std_write};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Codec, CodecError, CodecId};

/// Little endian, integers of variable length. Changing it changes every byte of every table.
const CONFIG: Configuration = config::standard();

/// The default codec: small and fast.
#[derive(Clone, Copy, Debug)]
pub struct Bincode;

impl Codec for Bincode {
    const ID: CodecId = CodecId::BINCODE;

    #[inline]
    fn encode<T: Serialize + ?Sized>(value: &T, into: &mut Vec<u8>) -> Result<(), CodecError> {
        encode_into_std_write(value, into, CONFIG).map_err(|e| CodecError::broken(Self::ID, e))?;
        Ok(())
    }

    #[inline]
    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
        let (value, used) = decode_from_slice(bytes, CONFIG).map_err(|e| CodecError::broken(Self::ID, e))?;
        if used == bytes.len() { Ok(value) } else { Err(CodecError::trailing(Self::ID, used, bytes.len())) }
    }
}
