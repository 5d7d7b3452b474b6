//! Restores parts into a new backend: which parts hold the groups that are wanted, and copying those groups over.

use std::ops::{ControlFlow, Range};

use super::snapshot::{PartFormat, RestoredPart};
use super::tables::Renumbering;
use crate::backend::{
    BulkLoad, FrozenRocks, PORTABLE_FILE, PortableReader, Resources, StateBackend, WriteBatch,
};
use crate::error::StateError;
use crate::keyspace::{self, PREFIX};

/// Entries are copied in batches of this many bytes.
const BATCH: usize = 1 << 20;

/// The first group of `wanted` that no part holds.
pub(super) fn missing_group(parts: &[RestoredPart], wanted: Range<u16>) -> Option<u16> {
    wanted.into_iter().find(|group| !parts.iter().any(|part| part.key_groups.contains(group)))
}

/// Where copied entries go.
pub(super) enum Target<'a> {
    /// In batches, in any order.
    Batches(&'a dyn StateBackend, WriteBatch),
    /// As whole files, in the order of their keys.
    Files(BulkLoad<'a>),
}

impl Target<'_> {
    fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        match self {
            Target::Files(load) => load.push(key, value),
            Target::Batches(into, batch) => {
                batch.put(key, value);
                if batch.bytes() < BATCH {
                    return Ok(());
                }
                into.write(batch)?;
                batch.clear();
                Ok(())
            }
        }
    }

    fn finish(self) -> Result<(), StateError> {
        match self {
            Target::Files(load) => load.finish(),
            Target::Batches(into, batch) => into.write(&batch),
        }
    }
}

/// True when copying with these numbers keeps keys in order.
pub(super) fn keeps_order(numbers: &Renumbering) -> bool {
    numbers.values().is_sorted()
}

/// Copies the groups wanted out of a part, giving its tables their new numbers.
pub(super) fn copy(
    part: &RestoredPart,
    wanted: &Range<u16>,
    numbers: &Renumbering,
    resources: &Resources,
    mut into: Target<'_>,
) -> Result<(), StateError> {
    let mut moved = Vec::new();
    let mut pushed = Ok(());
    let mut take = |key: &[u8], value: &[u8]| {
        let Some((group, table)) = keyspace::split(key) else { return ControlFlow::Continue(()) };
        let Some(table) = numbers.get(&table).filter(|_| wanted.contains(&group.0)) else {
            return ControlFlow::Continue(());
        };
        moved.clear();
        moved.extend_from_slice(&keyspace::prefix(group, *table));
        moved.extend_from_slice(&key[PREFIX..]);
        pushed = into.push(&moved, value);
        if pushed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    match part.format {
        PartFormat::Portable => PortableReader::open(&part.folder.join(PORTABLE_FILE))?.scan(&mut take)?,
        PartFormat::Rocks => {
            let (from, to) = keyspace::bounds_of(wanted.clone());
            FrozenRocks::open(&part.folder, resources)?.scan(&from, &to, &mut take)?;
        }
    }
    pushed?;
    into.finish()
}
