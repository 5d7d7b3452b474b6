//! Restores parts into a new backend: which parts hold the groups that are wanted, and copying those groups over.

use std::ops::{ControlFlow, Range};

use super::snapshot::{PartFormat, RestoredPart};
use super::tables::Renumbering;
use crate::backend::{MEMORY_FILE, PortableReader, StateBackend, WriteBatch};
use crate::error::StateError;
use crate::keyspace::{self, PREFIX};

/// Entries are copied in batches of this many bytes.
const BATCH: usize = 1 << 20;

/// The first group of `wanted` that no part holds.
pub(super) fn missing_group(parts: &[RestoredPart], wanted: Range<u16>) -> Option<u16> {
    wanted.into_iter().find(|group| !parts.iter().any(|part| part.key_groups.contains(group)))
}

/// Copies the groups wanted out of a part, giving its tables their new numbers.
pub(super) fn copy(
    part: &RestoredPart,
    wanted: &Range<u16>,
    numbers: &Renumbering,
    into: &dyn StateBackend,
) -> Result<(), StateError> {
    let mut batch = WriteBatch::default();
    let mut moved = Vec::new();
    let mut failed = None;
    let mut take = |key: &[u8], value: &[u8]| {
        let Some((group, table)) = keyspace::split(key) else { return ControlFlow::Continue(()) };
        let Some(table) = numbers.get(&table).filter(|_| wanted.contains(&group.0)) else {
            return ControlFlow::Continue(());
        };
        moved.clear();
        moved.extend_from_slice(&keyspace::prefix(group, *table));
        moved.extend_from_slice(&key[PREFIX..]);
        batch.put(&moved, value);
        if batch.bytes() < BATCH {
            return ControlFlow::Continue(());
        }
        let written = into.write(&batch);
        batch.clear();
        match written {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    };
    match part.format {
        PartFormat::Portable => PortableReader::open(&part.folder.join(MEMORY_FILE))?.scan(&mut take)?,
        PartFormat::Rocks => {
            return Err(StateError::Damaged {
                path: part.folder.clone(),
                what: "this build has no RocksDB yet".to_owned(),
            });
        }
    }
    match failed {
        Some(error) => Err(error),
        None => into.write(&batch),
    }
}
