//! For the tests of keyed operators: all subtasks of one, each record to the one that owns its key, saved and restored.

use weir_engine::testkit::{OpHarness, Saved, context};
use weir_engine::{Data, EndKind, Key, Keyed, Operator, Record};
use weir_state::{KEY_GROUPS, key_hash};

/// The subtasks of one operator, driven by hand.
pub(crate) struct Fleet<K: Key, T: Data, Op: Operator<Keyed<K, T>>> {
    recipe: Op,
    subtasks: Vec<OpHarness<Keyed<K, T>, Op>>,
    next: u64,
}

impl<K: Key, T: Data, Op: Operator<Keyed<K, T>>> Fleet<K, T, Op> {
    pub(crate) fn of(recipe: Op, parallelism: usize) -> Self {
        let open =
            |subtask| OpHarness::with(recipe.clone(), &context("under-test", subtask, parallelism)).unwrap();
        Fleet { subtasks: (0..parallelism).map(open).collect(), recipe, next: 1 }
    }

    /// A batch: of each subtask its part.
    pub(crate) fn batch(&mut self, records: impl IntoIterator<Item = (K, T, i64)>) {
        let n = self.subtasks.len();
        let mut parts: Vec<Vec<(Keyed<K, T>, i64)>> = vec![Vec::new(); n];
        for (key, value, ms) in records {
            let hash = key_hash(&key);
            parts[hash.group(KEY_GROUPS).subtask(KEY_GROUPS, n)].push((Keyed { hash, key, value }, ms));
        }
        for (subtask, part) in self.subtasks.iter_mut().zip(parts) {
            subtask.prefetch(part.clone()).unwrap();
            subtask.batch(part).unwrap();
        }
    }

    pub(crate) fn watermark(&mut self, ms: i64) {
        self.subtasks.iter_mut().for_each(|subtask| subtask.watermark(ms).unwrap());
    }

    /// Of what is given in parts, the first.
    pub(crate) fn begin_watermark(&mut self, ms: i64) {
        (0..self.subtasks.len()).for_each(|subtask| self.begin_watermark_of(subtask, ms));
    }

    pub(crate) fn begin_watermark_of(&mut self, subtask: usize, ms: i64) {
        self.subtasks[subtask].begin_watermark(ms).unwrap();
    }

    pub(crate) fn has_more(&self) -> bool {
        self.subtasks.iter().any(OpHarness::has_more)
    }

    /// Event time of one subtask alone: others may have read an input that was idle in another order.
    pub(crate) fn watermark_of(&mut self, subtask: usize, ms: i64) {
        self.subtasks[subtask].watermark(ms).unwrap();
    }

    pub(crate) fn quiet(&mut self) {
        self.subtasks.iter_mut().for_each(|subtask| subtask.quiet().unwrap());
    }

    pub(crate) fn save(&mut self) -> Vec<Saved> {
        self.next += 1;
        self.subtasks.iter_mut().map(|subtask| subtask.save(self.next).unwrap()).collect()
    }

    /// A barrier whose snapshot is lost.
    pub(crate) fn lose(&mut self) {
        self.next += 1;
        self.subtasks.iter_mut().for_each(|subtask| subtask.barrier(self.next).unwrap());
    }

    /// What is there now is gone; that many new subtasks begin from what was saved.
    pub(crate) fn restore(&mut self, saved: &[Saved], parallelism: usize) {
        let saved: Vec<&Saved> = saved.iter().collect();
        let open = |n| OpHarness::restored(self.recipe.clone(), &saved, n, parallelism).unwrap();
        self.subtasks = (0..parallelism).map(open).collect();
    }

    pub(crate) fn end(&mut self, kind: EndKind) {
        self.subtasks.iter_mut().for_each(|subtask| subtask.end(kind).unwrap());
    }

    pub(crate) fn take(&mut self) -> Vec<Record<Op::Out>> {
        self.subtasks.iter_mut().flat_map(OpHarness::take).collect()
    }

    pub(crate) fn parallelism(&self) -> usize {
        self.subtasks.len()
    }
}
