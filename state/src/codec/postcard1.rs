//! postcard, and nothing else names it: a documented, stable format, so that leaving bincode is a change of one number.

use postcard::{take_from_bytes, to_io};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Codec, CodecError, CodecId};

/// The codec with a format written down elsewhere (postcard's wire specification).
#[derive(Clone, Copy, Debug)]
pub struct Postcard;

impl Codec for Postcard {
    const ID: CodecId = CodecId::POSTCARD;

    #[inline]
    fn encode<T: Serialize + ?Sized>(value: &T, into: &mut Vec<u8>) -> Result<(), CodecError> {
        to_io(value, into).map_err(|e| CodecError::broken(Self::ID, e))?;
        Ok(())
    }

    #[inline]
    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
        let (value, rest) = take_from_bytes(bytes).map_err(|e| CodecError::broken(Self::ID, e))?;
        if rest.is_empty() {
            Ok(value)
        } else {
            Err(CodecError::trailing(Self::ID, bytes.len() - rest.len(), bytes.len()))
        }
    }
}
