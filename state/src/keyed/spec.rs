//! `Table`: the declaration of one table of keyed state: its name, the versions of its type, its codec, its TTL.

use std::fmt;
use std::marker::PhantomData;

use super::{Key, State};
use crate::codec::CodecId;
use crate::schema::{Listed, Schema};
use crate::store::TableMeta;
use crate::ttl::Ttl;

/// The declaration of a table.
///
/// ```
/// use std::time::Duration;
/// use weir_state::{keyed::Table, ttl::Ttl};
/// let carts = Table::<u64, Vec<String>>::new("carts").ttl(Ttl::event_time(Duration::from_secs(3_600)));
/// ```
pub struct Table<K, V> {
    pub(super) name: String,
    pub(super) schema: Schema<V>,
    pub(super) codec: CodecId,
    pub(super) ttl: Option<Ttl>,
    keys: PhantomData<fn() -> K>,
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Table {
            name: self.name.clone(),
            schema: self.schema.clone(),
            codec: self.codec,
            ttl: self.ttl,
            keys: PhantomData,
        }
    }
}

impl<K, V> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table('{}', {:?}, {}, {:?})", self.name, self.schema, self.codec, self.ttl)
    }
}

impl<K: Key, V: State> Table<K, V> {
    /// A table of this name, unique within its operator: version 1, bincode, no TTL.
    pub fn new(name: impl Into<String>) -> Self {
        Table {
            name: name.into(),
            schema: Schema::first(),
            codec: CodecId::BINCODE,
            ttl: None,
            keys: PhantomData,
        }
    }

    /// The versions that the type of the values has had.
    #[must_use]
    pub fn schema(self, schema: Schema<V>) -> Self {
        Table { schema, ..self }
    }

    /// What values are written with from now on: [`CodecId::BINCODE`] or [`CodecId::POSTCARD`]. What the other one wrote can
    /// still be read.
    #[must_use]
    pub fn codec(self, codec: CodecId) -> Self {
        Table { codec, ..self }
    }

    /// How long values live; `None` for as long as the job. Only for the states that honour it:
    /// [`StateMap`](super::StateMap) does not.
    #[must_use]
    pub fn ttl(self, ttl: impl Into<Option<Ttl>>) -> Self {
        Table { ttl: ttl.into(), ..self }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The table of lists of what this is a table of.
    pub(super) fn of_lists(self) -> Table<K, Listed<V>> {
        let Table { name, schema, codec, ttl, keys } = self;
        Table { name, schema: schema.of_lists(), codec, ttl, keys }
    }

    /// What the store is told.
    pub(super) fn meta(&self, keys: CodecId) -> TableMeta {
        TableMeta {
            key_codec: keys,
            value_codec: self.codec,
            oldest: self.schema.oldest(),
            ttl: self.ttl,
            ..TableMeta::raw(&self.name, self.schema.version())
        }
    }
}
