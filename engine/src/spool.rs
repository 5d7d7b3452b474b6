//! Bytes that a sink keeps back until a checkpoint is complete: written as they come, and in the job's checkpoints meanwhile.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_state::KeyGroup;
use weir_state::backend::{StateBackend, WriteBatch};
use weir_state::keyspace::{after_prefix, prefix};
use weir_state::store::TableMeta;

use crate::context::OperatorContext;
use crate::error::{Result, TaskError};

/// The table of an operator's store that pieces lie in.
const TABLE: &str = "spool";

/// What one subtask keeps back between two barriers; also the name of it in checkpoints, so its JSON is kept.
///
/// ```
/// use weir_engine::{Piece, testkit::context};
/// let piece = Piece::new(&context("out", 1, 2), 7);
/// assert_eq!((piece.subtask, piece.number, piece.group, piece.chunks), (1, 7, 64, 0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Piece {
    /// The subtask that keeps it.
    pub subtask: usize,
    /// Its number among the pieces of that subtask in one life of the job.
    pub number: u64,
    /// The key group that it lies in: who owns that after a rescale has it.
    pub group: u16,
    /// How many chunks it has.
    pub chunks: u32,
}

impl Piece {
    /// An empty piece of this subtask.
    pub fn new(cx: &OperatorContext, number: u64) -> Self {
        Piece { subtask: cx.subtask(), number, group: cx.own_key_groups().start, chunks: 0 }
    }
}

/// Where a subtask's pieces lie: in the operator's store, so that a checkpoint holds what was appended before its barrier, as
/// it holds state: incrementally, and at any parallelism after a restore. Clones are the same spool, usable on any thread.
///
/// What is appended after the barrier may be in the checkpoint too. So a life that begins from one forgets
/// ([`Spool::forget_all`]) whatever the checkpoint's items do not name, once it has no use for the rest.
///
/// *Blocking*: every call may read or write the local disk.
///
/// ```
/// use weir_engine::{Piece, Spool, testkit::context};
/// let cx = context("out", 0, 1);
/// let (spool, mut piece) = (Spool::open(&cx)?, Piece::new(&cx, 1));
/// spool.append(&mut piece, b"kept back")?;
/// let mut chunk = Vec::new();
/// spool.read(&piece, 0, &mut chunk)?;
/// assert_eq!((piece.chunks, &chunk[..]), (1, &b"kept back"[..]));
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
#[derive(Clone)]
pub struct Spool {
    backend: Arc<dyn StateBackend>,
    table: u16,
    groups: Range<u16>,
}

impl Spool {
    /// Opens the spool of the operator's subtask, with what a checkpoint held of the key groups that are now its own. To be
    /// called in `open`, once.
    ///
    /// # Errors
    /// The store cannot be opened, or holds a spool of a later version.
    pub fn open(cx: &OperatorContext) -> Result<Spool> {
        let store = cx.store()?;
        let table = store.register(TableMeta::raw(TABLE, 1))?;
        Ok(Spool { backend: store.backend().clone(), table, groups: cx.own_key_groups() })
    }

    /// Adds a chunk to the end of a piece.
    ///
    /// # Errors
    /// The store cannot be written, or the piece has 2^32 chunks.
    pub fn append(&self, piece: &mut Piece, chunk: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(&self.key(piece, piece.chunks), chunk);
        self.backend.write(&batch)?;
        piece.chunks = (piece.chunks.checked_add(1))
            .ok_or_else(|| TaskError::user("a piece of a spool is full: take checkpoints more often"))?;
        Ok(())
    }

    /// Gives chunk `n` of a piece, from 0, in place of what is in `into`.
    ///
    /// # Errors
    /// The store cannot be read, or does not have it.
    pub fn read(&self, piece: &Piece, n: u32, into: &mut Vec<u8>) -> Result<()> {
        if self.backend.get(&self.key(piece, n), into)? {
            return Ok(());
        }
        Err(TaskError::internal(format!(
            "chunk {n} of {} of piece {} of subtask {} is not in its store",
            piece.chunks, piece.number, piece.subtask
        )))
    }

    /// True when it is this subtask that has the piece's bytes after a restore.
    pub fn has(&self, piece: &Piece) -> bool {
        self.groups.contains(&piece.group)
    }

    /// Removes a piece.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn forget(&self, piece: &Piece) -> Result<()> {
        self.remove(&self.prefix(piece))
    }

    /// Removes everything, of every key group that is now this subtask's.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn forget_all(&self) -> Result<()> {
        self.groups.clone().try_for_each(|group| self.remove(&prefix(KeyGroup(group), self.table)))
    }

    fn remove(&self, prefix: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.delete_range(prefix, &after_prefix(prefix));
        Ok(self.backend.write(&batch)?)
    }

    /// `group, table | subtask: u32 BE | number: u64 BE`.
    fn prefix(&self, piece: &Piece) -> Vec<u8> {
        let mut key = prefix(KeyGroup(piece.group), self.table).to_vec();
        key.extend_from_slice(&(piece.subtask as u32).to_be_bytes());
        key.extend_from_slice(&piece.number.to_be_bytes());
        key
    }

    /// After the prefix: the chunk's number, `u32 BE`.
    fn key(&self, piece: &Piece, chunk: u32) -> Vec<u8> {
        let mut key = self.prefix(piece);
        key.extend_from_slice(&chunk.to_be_bytes());
        key
    }
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spool").field("groups", &self.groups).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::context;

    #[test]
    fn pieces_are_apart() {
        let cx = context("out", 0, 1);
        let spool = Spool::open(&cx).unwrap();
        let mut pieces = [1, 2, u64::MAX].map(|number| Piece::new(&cx, number));
        for piece in &mut pieces {
            for n in 0..3u8 {
                spool.append(piece, &[piece.number as u8, n]).unwrap();
            }
        }
        spool.forget(&pieces[1]).unwrap();
        let mut chunk = Vec::new();
        for piece in [pieces[0], pieces[2]] {
            for n in 0..3 {
                spool.read(&piece, n, &mut chunk).unwrap();
                assert_eq!(chunk, [piece.number as u8, n as u8]);
            }
            assert!(spool.read(&piece, 3, &mut chunk).is_err());
        }
        let e = spool.read(&pieces[1], 0, &mut chunk).unwrap_err().to_string();
        assert_eq!(e, "chunk 0 of 3 of piece 2 of subtask 0 is not in its store");
        spool.forget_all().unwrap();
        assert!(pieces.iter().all(|piece| spool.read(piece, 0, &mut chunk).is_err()));
    }

    #[test]
    fn a_piece_is_with_one_subtask_after_a_rescale() {
        let piece = Piece::new(&context("out", 2, 3), 1);
        for parallelism in 1..9 {
            let has = |subtask| Spool::open(&context("out", subtask, parallelism)).unwrap().has(&piece);
            assert_eq!((0..parallelism).filter(|subtask| has(*subtask)).count(), 1, "{parallelism}");
        }
        let json = r#"{"subtask":2,"number":1,"group":86,"chunks":0}"#;
        assert_eq!(serde_json::to_string(&piece).unwrap(), json);
    }
}
