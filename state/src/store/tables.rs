//! The tables of a store: what is restored against what the job declares. Pure: decides and refuses, touches no bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::codec::CodecId;
use crate::error::StateError;
use crate::ttl::{Ttl, TtlClock};

/// What is to be known of a table to read its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableMeta {
    /// Its name, unique within the operator.
    pub name: String,
    /// Its number in the keys of the store. Given by the store: what is declared here is not looked at.
    pub id: u16,
    /// What its keys are encoded with. Can never change.
    pub key_codec: CodecId,
    /// What its values are encoded with now. Each value says its own, so this may change, but not from or to
    /// [`CodecId::RAW`].
    pub value_codec: CodecId,
    /// The version of the type of its values, from 1.
    pub version: u32,
    /// The oldest version that a value in it may have; in a declaration, the oldest that the job can read.
    pub oldest: u32,
    /// How long its values live; none for as long as the job.
    pub ttl: Option<Ttl>,
    /// When a TTL was turned on over values that were there, by its clock; `i64::MAX` while that is not known.
    pub adopted_at: Option<i64>,
}

impl TableMeta {
    /// A table whose keys and values have a layout of their own, which this version numbers.
    pub fn raw(name: impl Into<String>, version: u32) -> Self {
        TableMeta {
            name: name.into(),
            id: 0,
            key_codec: CodecId::RAW,
            value_codec: CodecId::RAW,
            version,
            oldest: version,
            ttl: None,
            adopted_at: None,
        }
    }
}

/// Where the clocks stand that TTLs go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    /// The machine's clock, in milliseconds.
    pub(crate) wall: i64,
    /// The watermark; `i64::MIN` before the first.
    pub(crate) event: i64,
}

impl Now {
    pub(crate) fn by(self, clock: TtlClock) -> i64 {
        match clock {
            TtlClock::EventTime => self.event,
            TtlClock::ProcessingTime => self.wall,
        }
    }
}

/// The tables of one store.
#[derive(Debug)]
pub(super) struct Tables {
    uid: String,
    tables: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    meta: TableMeta,
    /// It came with a checkpoint, and nobody has registered it.
    unclaimed: bool,
}

/// The numbers that a part's tables have in the new store: old to new.
pub(super) type Renumbering = BTreeMap<u16, u16>;

impl Tables {
    pub(super) fn new(uid: &str) -> Self {
        Tables { uid: uid.to_owned(), tables: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Takes over the tables of a restored part and says what their numbers become.
    pub(super) fn restore(&mut self, metas: &[TableMeta]) -> Result<Renumbering, StateError> {
        let mut numbers = Renumbering::new();
        for meta in metas {
            let id = match self.tables.iter_mut().find(|t| t.meta.name == meta.name) {
                Some(Entry { meta: held, .. }) => {
                    let same = (held.key_codec, held.value_codec, held.version, held.ttl)
                        == (meta.key_codec, meta.value_codec, meta.version, meta.ttl);
                    if !same {
                        return Err(StateError::Refused {
                            uid: self.uid.clone(),
                            table: meta.name.clone(),
                            found: format!(
                                "two parts of one checkpoint declare it differently: {held:?} and {meta:?}"
                            ),
                            fix: "restore from another checkpoint or savepoint".to_owned(),
                        });
                    }
                    held.oldest = held.oldest.min(meta.oldest);
                    held.adopted_at = held.adopted_at.max(meta.adopted_at);
                    held.id
                }
                None => {
                    // Its own number if that is free: a folder that is adopted as it is must keep its numbers.
                    let free = self.tables.iter().all(|t| t.meta.id != meta.id);
                    let id = if free { meta.id } else { self.next_id(&meta.name)? };
                    self.tables.push(Entry { meta: TableMeta { id, ..meta.clone() }, unclaimed: true });
                    id
                }
            };
            numbers.insert(meta.id, id);
        }
        Ok(numbers)
    }

    /// Takes a declared table in: a new one, or one that was restored, if they fit.
    pub(super) fn register(&mut self, declared: TableMeta, now: Now) -> Result<&TableMeta, StateError> {
        let (uid, table) = (self.uid.clone(), declared.name.clone());
        let known = self.tables.iter().position(|t| t.meta.name == declared.name);
        let at = match known {
            Some(at) if !self.tables[at].unclaimed => {
                let what =
                    "it is declared twice: give each state of an operator a name of its own".to_owned();
                return Err(StateError::Misused { uid, table, what });
            }
            Some(at) => {
                let meta = reconcile(&self.tables[at].meta, declared, now)
                    .map_err(|(found, fix)| StateError::Refused { uid, table, found, fix })?;
                self.tables[at] = Entry { meta, unclaimed: false };
                at
            }
            None => {
                // Values written before event time begins have no time of their own: they count from when it does.
                let by_event_time = declared.ttl.is_some_and(|ttl| ttl.clock == TtlClock::EventTime);
                let adopted_at = (by_event_time && now.event == i64::MIN).then_some(i64::MAX);
                let meta = TableMeta { id: self.next_id(&table)?, adopted_at, ..declared };
                let meta = TableMeta { oldest: meta.version, ..meta };
                self.tables.push(Entry { meta, unclaimed: false });
                self.tables.len() - 1
            }
        };
        Ok(&self.tables[at].meta)
    }

    fn next_id(&self, table: &str) -> Result<u16, StateError> {
        let last = self.tables.iter().map(|t| t.meta.id).max();
        last.map_or(Some(0), |id| id.checked_add(1)).ok_or_else(|| StateError::Misused {
            uid: self.uid.clone(),
            table: table.to_owned(),
            what:
                "the operator has had 65,536 tables already: take a savepoint and restore it under a new uid"
                    .to_owned(),
        })
    }

    pub(super) fn unclaimed(&self) -> Vec<String> {
        self.tables.iter().filter(|t| t.unclaimed).map(|t| t.meta.name.clone()).collect()
    }

    /// Forgets a table and gives the number it had.
    pub(super) fn remove(&mut self, name: &str) -> Option<u16> {
        let at = self.tables.iter().position(|t| t.meta.name == name)?;
        Some(self.tables.remove(at).meta.id)
    }

    pub(super) fn metas(&self) -> impl Iterator<Item = &TableMeta> {
        self.tables.iter().map(|t| &t.meta)
    }

    /// Those that the job has declared. What is still as a checkpoint had it may be declared otherwise, or go.
    pub(super) fn claimed(&self) -> impl Iterator<Item = &TableMeta> {
        self.tables.iter().filter(|t| !t.unclaimed).map(|t| &t.meta)
    }

    /// Event time has begun: TTLs by it that were turned on at the restore count from here.
    pub(super) fn event_time_begins(&mut self, at: i64) {
        for Entry { meta, .. } in &mut self.tables {
            let by_event_time = meta.ttl.is_some_and(|ttl| ttl.clock == TtlClock::EventTime);
            if by_event_time && meta.adopted_at == Some(i64::MAX) {
                meta.adopted_at = Some(at);
            }
        }
    }
}

/// The table from now on, or what does not fit and what to do.
fn reconcile(held: &TableMeta, declared: TableMeta, now: Now) -> Result<TableMeta, (String, String)> {
    if held.key_codec != declared.key_codec {
        return Err((
            format!(
                "the checkpoint has its keys in {}, the job declares {}",
                held.key_codec, declared.key_codec
            ),
            "a key codec cannot change: declare the old one, or give the table another name and drop this one"
                .to_owned(),
        ));
    }
    let raw = |codec| codec == CodecId::RAW;
    if raw(held.value_codec) != raw(declared.value_codec) {
        return Err((
            format!(
                "the checkpoint has its values in {}, the job declares {}",
                held.value_codec, declared.value_codec
            ),
            "give the table another name and drop this one".to_owned(),
        ));
    }
    if held.version > declared.version {
        return Err((
            format!(
                "the checkpoint has version {}, the job declares version {}",
                held.version, declared.version
            ),
            format!(
                "declare version {} again, or restore from a savepoint with version {} or older",
                held.version, declared.version
            ),
        ));
    }
    if held.oldest < declared.oldest {
        return Err((
            format!(
                "the checkpoint may hold values of version {}, the job reads versions {} to {}",
                held.oldest, declared.oldest, declared.version
            ),
            format!("begin the chain of versions at {} with Schema::after", held.oldest),
        ));
    }
    let adopted_at = match (held.ttl, declared.ttl) {
        (_, None) => None,
        (Some(old), Some(new)) if old.clock == new.clock => held.adopted_at,
        // What is there counts as touched now. Event time may not have begun: then as soon as it does.
        (_, Some(new)) => Some(Some(now.by(new.clock)).filter(|at| *at > i64::MIN).unwrap_or(i64::MAX)),
    };
    Ok(TableMeta { id: held.id, oldest: held.oldest, adopted_at, ..declared })
}

#[cfg(test)]
#[path = "tables_tests.rs"]
mod tests;
