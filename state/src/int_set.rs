//! `IntSet`: an exact set of 64-bit integers that takes little room when they are close to each other, and that can be state.

use std::fmt;

use roaring::RoaringTreemap;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A set of integers, as a compressed bitmap: about 2 bytes for each of a few among many, a bit for each where they lie densely.
///
/// Serialised it is one run of bytes in the portable roaring format for 64 bits, whatever the codec around it.
///
/// ```
/// use weir_state::int_set::IntSet;
/// let mut set = IntSet::default();
/// assert!(set.insert(7) && !set.insert(7));
/// assert!(set.contains(7) && set.len() == 1);
/// ```
#[derive(Clone, Default, PartialEq)]
pub struct IntSet(RoaringTreemap);

impl IntSet {
    /// Puts a number in; true when it was not there.
    #[inline]
    pub fn insert(&mut self, number: u64) -> bool {
        self.0.insert(number)
    }

    /// True when the number is in it.
    pub fn contains(&self, number: u64) -> bool {
        self.0.contains(number)
    }

    /// Takes in all that another set has.
    pub fn merge(&mut self, other: IntSet) {
        self.0 |= other.0;
    }

    /// How many numbers are in it.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// True when none is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter()
    }
}

impl fmt::Debug for IntSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IntSet({} numbers)", self.len())
    }
}

impl Serialize for IntSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::with_capacity(self.0.serialized_size());
        self.0.serialize_into(&mut bytes).map_err(serde::ser::Error::custom)?;
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for IntSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = IntSet;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the bytes of a bitmap")
            }
            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<IntSet, E> {
                RoaringTreemap::deserialize_from(bytes).map(IntSet).map_err(E::custom)
            }
            // Text formats have no bytes, only lists of numbers.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<IntSet, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = seq.next_element()? {
                    bytes.push(byte);
                }
                self.visit_bytes(&bytes).map_err(|e: A::Error| A::Error::custom(e))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::CodecId;

    #[test]
    fn what_is_read_back_is_what_was_written() {
        let mut set = IntSet::default();
        (0..5_000).for_each(|n| _ = set.insert(n * n * n));
        set.insert(u64::MAX);
        for codec in [CodecId::BINCODE, CodecId::POSTCARD] {
            for set in [&IntSet::default(), &set] {
                let mut bytes = Vec::new();
                codec.encode(set, &mut bytes).unwrap();
                assert_eq!(codec.decode::<IntSet>(&bytes).unwrap(), *set);
            }
        }
        let text = serde_json::to_string(&set).unwrap();
        assert_eq!(serde_json::from_str::<IntSet>(&text).unwrap(), set);
        assert!(serde_json::from_str::<IntSet>("[1,2,3]").is_err());
    }
}
