//! Turns typed keys and values into the bytes of one table, and back.

use std::marker::PhantomData;

use super::spec::Table;
use super::{Key, State};
use crate::codec::{Codec, CodecError, CodecId, Ordered};
use crate::error::StateError;
use crate::key::{KeyGroup, key_hash};
use crate::keyspace::{self, PREFIX};
use crate::schema::Schema;
use crate::store::Store;
use crate::value::{Head, VERSIONS};

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
    groups: u16,
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
    #[inline]
    pub(super) fn key(&self, layout: Layout, key: &K, into: &mut Vec<u8>) -> Result<u16, StateError> {
        let group = key_hash(key).group(self.groups).0;
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

    /// Appends the bytes of a key within that key.
    pub(super) fn inner_key<M: Key>(&self, key: &M, into: &mut Vec<u8>) -> Result<(), StateError> {
        Ordered::encode(key, into).map_err(|e| self.failed("encode a map's key", e))
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
