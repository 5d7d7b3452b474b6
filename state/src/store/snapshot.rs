//! What a task hands over at a barrier, and what becomes of it: frozen pieces and items in, files and tables out.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ledger::{Cancelled, Ledger};
use super::tables::TableMeta;
use crate::backend::{LocalFile, WriteBatch};
use crate::error::StateError;

/// Small state that goes into the manifest: list, then key, then JSON.
pub type Items = BTreeMap<String, BTreeMap<String, serde_json::Value>>;

/// State as it was at a barrier, not yet in the backend.
pub trait Frozen: Send {
    /// Writes it, in batches of moderate size, on the snapshot thread. A piece that cannot be encoded says so here.
    ///
    /// # Errors
    /// Encoding failed, or `out` did. The checkpoint fails; the state is still with the task.
    fn write(&mut self, out: &mut dyn FnMut(&WriteBatch) -> Result<(), StateError>)
    -> Result<(), StateError>;

    /// Tells how it ended, once: it is in frozen files (`written`), or it is not and must go with the next snapshot.
    fn settled(self: Box<Self>, written: bool);
}

/// What one task keeps at one barrier. Collecting it is cheap; [`Store::write_out`](super::Store::write_out) does the work.
///
/// Dropped without that, it settles its pieces as not written.
#[derive(Default)]
pub struct Snapshot {
    pieces: Vec<Box<dyn Frozen>>,
    items: Items,
    event_time: Option<i64>,
    /// The stores that must not write to their backends until this is settled.
    held: Vec<Arc<Ledger>>,
}

impl Snapshot {
    /// Adds a frozen piece. Pieces are written in the order in which they were added.
    pub fn add(&mut self, piece: Box<dyn Frozen>) {
        self.pieces.push(piece);
    }

    /// Keeps a value under a list and a key; a restore gives it back through
    /// [`Store::restored_items`](super::Store::restored_items).
    pub fn item(&mut self, list: &str, key: impl Into<String>, value: serde_json::Value) {
        self.items.entry(list.to_owned()).or_default().insert(key.into(), value);
    }

    /// Adds what another one holds, after what is here.
    pub fn append(&mut self, mut other: Snapshot) {
        self.pieces.append(&mut other.pieces);
        for (list, items) in std::mem::take(&mut other.items) {
            self.items.entry(list).or_default().extend(items);
        }
        self.event_time = self.event_time.max(other.event_time);
    }

    /// Its items, when there is no store that its pieces could go to: those are settled as not written.
    pub fn into_items(mut self) -> Items {
        self.take_items()
    }

    /// True when nothing was added.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.items.is_empty()
    }

    /// Holds the writers of a store back until this is settled; waits until every earlier snapshot is.
    pub(crate) fn hold(&mut self, ledger: &Arc<Ledger>) -> Result<(), Cancelled> {
        if !self.held.iter().any(|held| Arc::ptr_eq(held, ledger)) {
            ledger.wait()?;
            ledger.begin();
            self.held.push(ledger.clone());
        }
        Ok(())
    }

    /// Keeps where event time stood, for the TTLs that go by it.
    pub(crate) fn keep_event_time(&mut self, at: i64) {
        self.event_time = Some(at);
    }

    /// Writes every piece.
    pub(crate) fn write(
        &mut self,
        out: &mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        self.pieces.iter_mut().try_for_each(|piece| piece.write(out))
    }

    /// Tells every piece how it ended.
    pub(super) fn settle(&mut self, written: bool) {
        for piece in self.pieces.drain(..) {
            piece.settled(written);
        }
        self.held.drain(..).for_each(|ledger| ledger.end());
    }

    pub(super) fn take_items(&mut self) -> Items {
        let mut items = std::mem::take(&mut self.items);
        if let Some(at) = self.event_time {
            items.entry(OWN_ITEMS.to_owned()).or_default().insert(EVENT_TIME.to_owned(), at.into());
        }
        items
    }
}

/// The list of the store's own items.
pub(super) const OWN_ITEMS: &str = "weir.store";
pub(super) const EVENT_TIME: &str = "event_time";

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.settle(false);
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({} pieces, items {:?})", self.pieces.len(), self.items)
    }
}

/// How the files of a part are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartFormat {
    /// A folder of a RocksDB database.
    Rocks,
    /// One portable file.
    Portable,
}

/// One subtask's state as files, on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalPart {
    /// The subtask.
    pub subtask: usize,
    /// The key groups it owned.
    pub key_groups: Range<u16>,
    /// How the files are laid out.
    pub format: PartFormat,
    /// What tables are in them.
    pub tables: Vec<TableMeta>,
    /// What goes into the manifest itself.
    pub items: Items,
    /// The files; none when the subtask has no table.
    pub files: Vec<LocalFile>,
}

/// One subtask's state as it was frozen, with its files fetched into a folder.
#[derive(Clone, Debug, PartialEq)]
pub struct RestoredPart {
    /// The subtask that owned it.
    pub subtask: usize,
    /// The key groups it owned.
    pub key_groups: Range<u16>,
    /// How the files are laid out.
    pub format: PartFormat,
    /// Where the files are, by the names they had as [`LocalFile`]s. Only read: they may be links to files still in use.
    pub folder: PathBuf,
    /// What tables are in them.
    pub tables: Vec<TableMeta>,
    /// What the manifest kept.
    pub items: Items,
}
