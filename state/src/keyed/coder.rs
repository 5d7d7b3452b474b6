//! Turns typed keys and values into the bytes of one table, and back.

use std::marker::PhantomData;

use super::spec::Table;
use super::{Key, State};
use crate::codec::{Codec, CodecError, CodecId, Ordered};
use crate::error::StateError;
use crate::key::{KeyGroup, KeyHash, key_hash, mix};
use crate::keyspace::{self, PREFIX};
use crate::schema::Schema;
use crate::store::Store;
use crate::value::{Head, VERSIONS};

/// How a key finds its slot in a hash table, and its key group.
pub(crate) trait Route<K>: Send + 'static {
    /// The slot; for a record's key it is known from the hash that came with it.
    fn slot(key: &K) -> u64;
    /// The hash that decides about the group.
    fn owner(key: &K) -> KeyHash;
}

/// The key is the record's.
#[derive(Debug)]
pub(crate) struct ByKey;

impl<K: Key> Route<K> for ByKey {
    #[inline]
    fn slot(key: &K) -> u64 {
        key_hash(key).in_group()
    }
    fn owner(key: &K) -> KeyHash {
        key_hash(key)
    }
}

/// The first part is the record's key, the second tells its entries apart.
#[derive(Debug)]
pub(crate) struct ByFirst;

impl ByFirst {
    #[inline]
    pub(super) fn slot_of(hash: KeyHash, second: KeyHash) -> u64 {
        mix(hash.0, second.0)
    }
}

impl<K: Key, M: Key> Route<(K, M)> for ByFirst {
    #[inline]
    fn slot((key, second): &(K, M)) -> u64 {
        ByFirst::slot_of(key_hash(key), key_hash(second))
    }
    fn owner((key, _): &(K, M)) -> KeyHash {
        key_hash(key)
    }
}

/// When an entry was last touched: `i64` where that is kept, `()` where it takes no room.
pub(crate) trait Stamp: Copy + Send + 'static {
    fn at(now: i64) -> Self;
    fn millis(self) -> Option<i64>;
    /// Of a stored value that may have none.
    fn stored(touched: Option<i64>) -> Self;
}

impl Stamp for () {
    fn at(_: i64) {}
    fn millis(self) -> Option<i64> {
        None
    }
    fn stored(_: Option<i64>) {}
}

/// `i64::MIN` where the value had no time.
impl Stamp for i64 {
    fn at(now: i64) -> i64 {
        now
    }
    fn millis(self) -> Option<i64> {
        (self != i64::MIN).then_some(self)
    }
    fn stored(touched: Option<i64>) -> i64 {
        touched.unwrap_or(i64::MIN)
    }
}

/// Where the keys of a map lie: in a table, or in one namespace of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) table: u16,
    pub(crate) namespace: Option<i64>,
}

impl Layout {
    /// Appends what every key of a group begins with.
    pub(super) fn prefix(self, group: u16, into: &mut Vec<u8>) {
        into.extend_from_slice(&keyspace::prefix(KeyGroup(group), self.table));
        if let Some(namespace) = self.namespace {
            into.extend_from_slice(&keyspace::namespace(namespace));
        }
    }

    /// The bounds of all its keys in a group.
    pub(super) fn bounds(self, group: u16) -> (Vec<u8>, Vec<u8>) {
        let mut from = Vec::with_capacity(PREFIX + 8);
        self.prefix(group, &mut from);
        let to = keyspace::after_prefix(&from);
        (from, to)
    }

    fn prefix_len(self) -> usize {
        PREFIX + self.namespace.map_or(0, |_| 8)
    }
}

/// What a map needs to read and write its table; shared with the snapshot thread.
pub(crate) struct Coder<K, V> {
    pub(super) uid: String,
    pub(super) table: String,
    pub(super) groups: u16,
    schema: Schema<V>,
    codec: CodecId,
    keys: PhantomData<fn() -> K>,
}

impl<K: Key, V: State> Coder<K, V> {
    /// Registers the table; gives its number too.
    pub(super) fn new(store: &Store, table: &Table<K, V>, keys: CodecId) -> Result<(Self, u16), StateError> {
        let refused = |what: String| StateError::Misused {
            uid: store.uid().to_owned(),
            table: table.name.clone(),
            what,
        };
        if !matches!(table.codec, CodecId::BINCODE | CodecId::POSTCARD) {
            return Err(refused(format!(
                "values cannot be kept in {}: use bincode or postcard",
                table.codec
            )));
        }
        let (oldest, version) = (table.schema.oldest(), table.schema.version());
        if oldest == 0 || version > VERSIONS {
            return Err(refused(format!(
                "versions are 1 to {VERSIONS}, these are {oldest} to {version}: give the table another name"
            )));
        }
        let id = store.register(table.meta(keys))?;
        let coder = Coder {
            uid: store.uid().to_owned(),
            table: table.name.clone(),
            groups: store.groups(),
            schema: table.schema.clone(),
            codec: table.codec,
            keys: PhantomData,
        };
        Ok((coder, id))
    }

    /// Appends the key's bytes and gives its group.
    pub(super) fn key<R: Route<K>>(
        &self,
        layout: Layout,
        key: &K,
        into: &mut Vec<u8>,
    ) -> Result<u16, StateError> {
        let group = R::owner(key).group(self.groups).0;
        layout.prefix(group, into);
        Ordered::encode(key, into).map_err(|e| self.failed("encode a key", e))?;
        Ok(group)
    }

    /// Appends the value's bytes.
    pub(super) fn value(
        &self,
        value: &V,
        touched: Option<i64>,
        into: &mut Vec<u8>,
    ) -> Result<(), StateError> {
        Head { version: self.schema.version(), codec: self.codec, touched }.write(into);
        self.codec.encode(value, into).map_err(|e| self.failed("encode a value", e))
    }

    pub(super) fn read_key(&self, layout: Layout, key: &[u8]) -> Result<K, StateError> {
        let bytes = key.get(layout.prefix_len()..).unwrap_or_default();
        Ordered::decode(bytes).map_err(|e| self.failed("decode a key", e))
    }

    pub(super) fn read_value(&self, value: &[u8]) -> Result<(V, Option<i64>), StateError> {
        self.schema.decode(value).map_err(|e| {
            let version = Head::read(value).map_or(0, |(head, _)| head.version);
            self.failed(format!("decode a value of version {version}"), e)
        })
    }

    pub(super) fn failed(&self, doing: impl Into<String>, source: CodecError) -> StateError {
        StateError::Codec { uid: self.uid.clone(), table: self.table.clone(), doing: doing.into(), source }
    }
}
