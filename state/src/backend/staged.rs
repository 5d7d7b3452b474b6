//! `Staged`: what a snapshot writes, on its way into a backend: gathered while it is little, else as it comes.

use super::{StateBackend, WriteBatch};
use crate::error::StateError;

/// So many bytes are gathered at most, with what keeps their order.
const MOST: usize = 4 << 20;
/// What one snapshot takes of memory at most while it is written: its vectors may be half empty, and are sorted.
pub const SNAPSHOT_BYTES: usize = 2 * MOST;
/// Fewer writes are not worth a file of their own.
const LEAST: usize = 1_024;

/// Writes that go into a backend together, in order. Nothing of the last of them is there before [`finish`](Self::finish).
pub(crate) struct Staged<'a> {
    into: &'a dyn StateBackend,
    gathered: WriteBatch,
    most: usize,
    /// There is too much to gather.
    passing: bool,
}

impl<'a> Staged<'a> {
    pub(crate) fn new(into: &'a dyn StateBackend) -> Self {
        Staged { into, gathered: WriteBatch::default(), most: MOST, passing: false }
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// Those of [`StateBackend::write`].
    pub(crate) fn push(&mut self, batch: &WriteBatch) -> Result<(), StateError> {
        let too_many = self.gathered.memory() + batch.memory() > self.most;
        if self.passing || too_many || batch.has_ranges() {
            self.into.write(&self.gathered)?;
            self.gathered.clear();
            self.passing |= too_many;
            return self.into.write(batch);
        }
        self.gathered.append(batch);
        Ok(())
    }

    /// Writes what was gathered.
    ///
    /// # Errors
    /// Those of [`StateBackend::write_sorted`].
    pub(crate) fn finish(mut self) -> Result<(), StateError> {
        if self.gathered.len() < LEAST {
            return self.into.write(&self.gathered);
        }
        self.gathered.sort();
        self.gathered.keep_last();
        self.into.write_sorted(&self.gathered)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::{MemoryBackend, Resources, RocksBackend, Rule};
    use super::*;

    fn never() -> Rule {
        Box::new(|_: &[u8], _: &[u8]| false)
    }

    fn all(backend: &dyn StateBackend) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all = Vec::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            all.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        backend.scan(b"", b"", &mut visit).unwrap();
        all
    }

    #[test]
    fn little_becomes_one_file_and_much_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let db = RocksBackend::create(
            &folder.path().join("db"),
            &Resources::new(1 << 20, 1 << 20),
            Arc::new(never),
        )
        .unwrap();
        let write = |most: usize, round: u32| {
            let mut staged = Staged { most, ..Staged::new(&db) };
            let mut batch = WriteBatch::default();
            for n in (0..2_000u32).rev() {
                batch.put(&n.to_be_bytes(), &round.to_be_bytes());
                if batch.len() == 100 {
                    staged.push(&batch).unwrap();
                    batch.clear();
                }
            }
            staged.finish().unwrap();
        };
        write(1 << 20, 1);
        assert_eq!(db.levels().unwrap().len(), 1, "a file, though nothing was flushed");
        write(10_000, 2);
        assert_eq!(db.levels().unwrap().len(), 1, "in the write buffer");
        write(1 << 20, 3);
        assert_eq!(db.levels().unwrap().len(), 1, "what is in the write buffer is flushed once, with this");
        let at = |n: u32| (n.to_be_bytes().to_vec(), 3u32.to_be_bytes().to_vec());
        assert!(all(&db).into_iter().eq((0..2_000).map(at)));
        let (frozen, other) = (folder.path().join("frozen"), folder.path().join("other"));
        db.freeze(&frozen).unwrap();
        let adopted =
            RocksBackend::adopt(&frozen, &other, &Resources::new(1 << 20, 1 << 20), Arc::new(never)).unwrap();
        assert_eq!(all(&adopted), all(&db));
    }

    /// Puts, deletes, and now and then a range delete.
    fn batch() -> impl Strategy<Value = Vec<(u8, u16, u8)>> {
        prop::collection::vec((0u8..12, 0u16..3_000, any::<u8>()), 0..1_500)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Three snapshots, each in some batches, with writes beside them in between.
        #[test]
        fn staged_writes_are_writes(
            snapshots in prop::collection::vec((prop::collection::vec(batch(), 0..4), prop_oneof![Just(8_000usize), Just(1 << 20)], any::<bool>()), 1..4),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let rocks = RocksBackend::create(&folder.path().join("db"), &Resources::new(1 << 20, 1 << 20), Arc::new(never)).unwrap();
            let memory = MemoryBackend::new(Arc::new(never));
            for (n, (batches, most, beside)) in snapshots.into_iter().enumerate() {
                if beside {
                    let mut batch = WriteBatch::default();
                    batch.put(&[0, 7], b"beside");
                    rocks.write(&batch).unwrap();
                    memory.write(&batch).unwrap();
                }
                let mut staged = Staged { most, ..Staged::new(&rocks) };
                for writes in batches {
                    let mut batch = WriteBatch::default();
                    let ranges = writes.first().is_some_and(|(_, key, _)| key % 5 == 0);
                    for (kind, key, value) in writes {
                        let key = key.to_be_bytes();
                        match kind {
                            0..=8 => batch.put(&key, &[value]),
                            11 if ranges => batch.delete_range(&key, &[key[0], key[1].saturating_add(value)]),
                            _ => batch.delete(&key),
                        }
                    }
                    staged.push(&batch).unwrap();
                    memory.write(&batch).unwrap();
                }
                staged.finish().unwrap();
                rocks.freeze(&folder.path().join(format!("cp-{n}"))).unwrap();
                prop_assert_eq!(all(&rocks), all(&memory));
            }
        }
    }
}
