//! The versions of a state type: how values that an older build wrote become values of today's, one step after another.

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::codec::{CodecError, CodecId};
use crate::value::Head;

type Older<V> = Arc<dyn Fn(u32, CodecId, &[u8]) -> Result<V, CodecError> + Send + Sync>;

/// The versions of the type of a table's values, up to `V`.
///
/// Neither codec describes its bytes: *any* change of a state type's fields, their order or their types is a new version.
/// Values are brought up to date when they are read, and written as `V` from then on; those that are never read stay as they
/// are, so that a chain keeps its old steps.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use weir_state::schema::Schema;
///
/// #[derive(Serialize, Deserialize)]
/// struct SumV1 { of: i32 }
/// #[derive(Serialize, Deserialize)]
/// struct Sum { of: i64, count: u64 }
///
/// let schema = Schema::<Sum>::after(Schema::<SumV1>::first(), |old| Sum { of: old.of.into(), count: 0 });
/// assert_eq!(schema.version(), 2);
/// ```
pub struct Schema<V> {
    version: u32,
    oldest: u32,
    older: Option<Older<V>>,
}

impl<V> Clone for Schema<V> {
    fn clone(&self) -> Self {
        Schema { version: self.version, oldest: self.oldest, older: self.older.clone() }
    }
}

impl<V> fmt::Debug for Schema<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema(versions {} to {})", self.oldest, self.version)
    }
}

impl<V: DeserializeOwned + 'static> Schema<V> {
    /// Version 1.
    pub fn first() -> Self {
        Schema::starting_at(1)
    }

    /// A chain whose older steps are gone, since no checkpoint has values that old any more. Versions are 1 to 63.
    pub fn starting_at(version: u32) -> Self {
        Schema { version, oldest: version, older: None }
    }

    /// The version after those of `old`: `step` makes a `V` of the last of them.
    pub fn after<O: DeserializeOwned + 'static>(
        old: Schema<O>,
        step: impl Fn(O) -> V + Send + Sync + 'static,
    ) -> Self {
        Schema {
            version: old.version + 1,
            oldest: old.oldest,
            older: Some(Arc::new(move |version, codec, bytes| {
                old.decode_version(version, codec, bytes).map(&step)
            })),
        }
    }

    /// The number of the version that `V` is.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The oldest version that can be read.
    pub fn oldest(&self) -> u32 {
        self.oldest
    }

    /// Reads a stored value and says when it was last touched, if that is kept.
    ///
    /// # Errors
    /// The bytes are not a value of a version in the chain.
    #[inline]
    pub(crate) fn decode(&self, value: &[u8]) -> Result<(V, Option<i64>), CodecError> {
        let (head, bytes) = Head::read(value).ok_or_else(|| CodecError::no_value(CodecId::RAW))?;
        Ok((self.decode_version(head.version, head.codec, bytes)?, head.touched))
    }

    #[inline]
    fn decode_version(&self, version: u32, codec: CodecId, bytes: &[u8]) -> Result<V, CodecError> {
        match &self.older {
            _ if version == self.version => codec.decode(bytes),
            Some(older) if version < self.version => older(version, codec, bytes),
            _ => Err(CodecError::version(codec, version)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(version: u32, codec: CodecId, of: &impl serde::Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        Head { version, codec, touched: None }.write(&mut bytes);
        codec.encode(of, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn every_version_in_either_codec_becomes_the_last() {
        let two = Schema::<(i64, u8)>::after(Schema::<i32>::first(), |old| (old.into(), 0));
        let three = Schema::<String>::after(two, |(a, b)| format!("{a}/{b}"));
        assert_eq!((three.version(), three.oldest()), (3, 1));
        for codec in [CodecId::BINCODE, CodecId::POSTCARD] {
            assert_eq!(three.decode(&value(1, codec, &-5i32)).unwrap().0, "-5/0");
            assert_eq!(three.decode(&value(2, codec, &(70_000i64, 9u8))).unwrap().0, "70000/9");
            assert_eq!(three.decode(&value(3, codec, &"x")).unwrap().0, "x");
        }
    }

    #[test]
    fn a_version_that_is_not_in_the_chain_is_named() {
        let schema = Schema::<u8>::after(Schema::<u8>::starting_at(4), |v| v);
        for version in [1, 3, 6] {
            let error = schema.decode(&value(version, CodecId::BINCODE, &1u8)).unwrap_err().to_string();
            assert!(error.contains(&format!("version {version} is not in the chain")), "{error}");
        }
        assert!(schema.decode(&[]).is_err());
    }
}
