//! The head of a stored value: which version of the type it is, which codec wrote it, and when it was last touched.
//!
//! One byte: bit 7, eight bytes of time follow (i64 BE, milliseconds); bit 6, the codec (0 bincode, 1 postcard); bits 0 to 5,
//! the version, from 1 (0 is kept free). Then the time, if there is one, then the codec's bytes. Frozen by golden tests.

use crate::codec::CodecId;

/// The highest version a table can have.
pub const VERSIONS: u32 = 63;

const STAMPED: u8 = 0x80;
const POSTCARD: u8 = 0x40;
const VERSION: u8 = 0x3F;

/// What the head of a value says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Which version of the type the bytes are, 1 to [`VERSIONS`].
    pub version: u32,
    /// Which codec wrote them: [`CodecId::BINCODE`] or [`CodecId::POSTCARD`].
    pub codec: CodecId,
    /// When the value was last touched, in milliseconds, if that is kept.
    pub touched: Option<i64>,
}

impl Head {
    /// Appends the head; the codec's bytes come next.
    #[inline]
    pub fn write(self, into: &mut Vec<u8>) {
        let codec = if self.codec == CodecId::POSTCARD { POSTCARD } else { 0 };
        let head = (self.version as u8 & VERSION) | codec;
        match self.touched {
            None => into.push(head),
            Some(at) => {
                into.push(head | STAMPED);
                into.extend_from_slice(&at.to_be_bytes());
            }
        }
    }

    /// Takes the head off a value; the rest is the codec's. `None` when the bytes are no value.
    #[inline]
    pub fn read(value: &[u8]) -> Option<(Head, &[u8])> {
        let (&head, rest) = value.split_first()?;
        let (touched, rest) = if head & STAMPED == 0 {
            (None, rest)
        } else {
            let (at, rest) = rest.split_first_chunk::<8>()?;
            (Some(i64::from_be_bytes(*at)), rest)
        };
        let version = u32::from(head & VERSION);
        let codec = if head & POSTCARD == 0 { CodecId::BINCODE } else { CodecId::POSTCARD };
        (version > 0).then_some((Head { version, codec, touched }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_frozen() {
        let heads: [(Head, &[u8]); 3] = [
            (Head { version: 1, codec: CodecId::BINCODE, touched: None }, &[0x01]),
            (Head { version: 63, codec: CodecId::POSTCARD, touched: None }, &[0x7F]),
            (
                Head { version: 2, codec: CodecId::BINCODE, touched: Some(-2) },
                &[0x82, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFE],
            ),
        ];
        for (head, golden) in heads {
            let mut bytes = Vec::new();
            head.write(&mut bytes);
            assert_eq!(bytes, golden);
            bytes.push(7);
            assert_eq!(Head::read(&bytes), Some((head, &[7][..])));
        }
    }

    #[test]
    fn what_is_no_value_is_noticed() {
        assert_eq!(Head::read(&[]), None);
        assert_eq!(Head::read(&[0]), None);
        assert_eq!(Head::read(&[0x81, 1, 2, 3]), None);
    }
}
