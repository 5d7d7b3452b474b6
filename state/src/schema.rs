//! The versions of a state type: how values that an older build wrote become values of today's, one step after another.

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::codec::{CodecError, CodecId};
use crate::value::Head;

/// A list as it is stored: when each element was last touched, or nothing of that, and the elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Listed<T> {
    /// Empty where no TTL was ever on. `i64::MIN` for what was there before it was.
    pub(crate) touched: Vec<i64>,
    pub(crate) elements: Vec<T>,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Listed { touched: Vec::new(), elements: Vec::new() }
    }
}

impl<T> Listed<T> {
    pub(crate) fn push(&mut self, element: T, touched: Option<i64>) {
        if touched.is_some() || !self.touched.is_empty() {
            self.touched.resize(self.elements.len(), i64::MIN);
            self.touched.push(touched.unwrap_or(i64::MIN));
        }
        self.elements.push(element);
    }

    fn touched(&self, at: usize) -> Option<i64> {
        self.touched.get(at).copied().filter(|touched| *touched != i64::MIN)
    }

    /// True when the element in the middle has such a time: as they are pushed in the order of time, so has the half before it.
    #[inline]
    pub(crate) fn is_over_in_the_middle(&self, over: impl Fn(Option<i64>) -> bool) -> bool {
        /// Fewer are not worth it.
        const LEAST: usize = 8;
        self.elements.len() >= LEAST && over(self.touched(self.elements.len() / 2))
    }

    /// True when an element has such a time.
    pub(crate) fn has(&self, over: impl Fn(Option<i64>) -> bool) -> bool {
        (0..self.elements.len()).any(|at| over(self.touched(at)))
    }

    /// Removes the elements with such a time.
    pub(crate) fn remove_if(&mut self, over: impl Fn(Option<i64>) -> bool) {
        let keep: Vec<bool> = (0..self.elements.len()).map(|at| !over(self.touched(at))).collect();
        let mut kept = keep.iter();
        self.elements.retain(|_| *kept.next().unwrap_or(&true));
        let mut kept = keep.iter();
        self.touched.retain(|_| *kept.next().unwrap_or(&true));
    }

    fn map<U>(self, step: impl Fn(T) -> U) -> Listed<U> {
        Listed { touched: self.touched, elements: self.elements.into_iter().map(step).collect() }
    }
}

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
    /// The same for lists of it.
    older_lists: Option<Older<Listed<V>>>,
}

impl<V> Clone for Schema<V> {
    fn clone(&self) -> Self {
        Schema {
            version: self.version,
            oldest: self.oldest,
            older: self.older.clone(),
            older_lists: self.older_lists.clone(),
        }
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
        Schema { version, oldest: version, older: None, older_lists: None }
    }

    /// The version after those of `old`: `step` makes a `V` of the last of them.
    pub fn after<O: DeserializeOwned + 'static>(
        old: Schema<O>,
        step: impl Fn(O) -> V + Send + Sync + 'static,
    ) -> Self {
        let (version, oldest) = (old.version + 1, old.oldest);
        let step = Arc::new(step);
        let (old_lists, step_each) = (old.clone().of_lists(), step.clone());
        Schema {
            version,
            oldest,
            older: Some(Arc::new(move |version, codec, bytes| {
                old.decode_version(version, codec, bytes).map(&*step)
            })),
            older_lists: Some(Arc::new(move |version, codec, bytes| {
                old_lists.decode_version(version, codec, bytes).map(|list| list.map(&*step_each))
            })),
        }
    }

    /// The versions of lists of it.
    pub(crate) fn of_lists(self) -> Schema<Listed<V>> {
        Schema { version: self.version, oldest: self.oldest, older: self.older_lists, older_lists: None }
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

    /// Reads a value of one of the versions from the bytes that `codec` has made of it: for a value that lies elsewhere than in a table.
    ///
    /// # Errors
    /// The bytes are no such value, or the version is not in the chain.
    #[inline]
    pub fn decode_version(&self, version: u32, codec: CodecId, bytes: &[u8]) -> Result<V, CodecError> {
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
