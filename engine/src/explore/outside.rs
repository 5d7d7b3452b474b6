//! What lies outside of a job and outlives it: the storage of its checkpoints, and what its sinks have made visible.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_state::store::Items;

use crate::ids::{AttemptId, CheckpointId, OperatorUid};

/// A record: from which subtask of the source, the how manieth, and which way through the job.
pub(super) type Value = (usize, u64, u8);

/// One operator's part of one task.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) uid: OperatorUid,
    pub(super) subtask: usize,
    pub(super) items: Items,
}

/// What one task wrote.
pub(super) type Parts = Arc<Vec<Part>>;

/// A manifest.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) id: CheckpointId,
    pub(super) attempt: AttemptId,
    pub(super) savepoint: bool,
    /// Somebody asked for it while the job ran, and may remove it.
    pub(super) asked_for: bool,
    pub(super) parts: Vec<Part>,
}

impl Manifest {
    fn items(&self, list: &str) -> impl Iterator<Item = (&Part, &String, &serde_json::Value)> {
        let list = list.to_owned();
        (self.parts.iter()).flat_map(move |part| {
            let items = part.items.get(&list).into_iter().flatten();
            items.map(move |(key, value)| (part, key, value))
        })
    }

    /// What sinks have prepared, by the name each gave it.
    pub(super) fn prepared(&self) -> BTreeMap<String, Vec<Value>> {
        self.items("prepared").map(|(_, _, value)| read_prepared(value)).collect()
    }

    /// How far each subtask of the source had read.
    fn positions(&self) -> BTreeMap<usize, u64> {
        let positions = self.items("positions");
        positions.map(|(part, _, value)| (part.subtask, value.as_u64().expect("a position"))).collect()
    }

    /// What the operators in the middle had seen.
    fn seen(&self) -> Vec<Value> {
        self.items("seen").map(|(_, _, value)| read_value(value)).collect()
    }
}

pub(super) fn read_value(value: &serde_json::Value) -> Value {
    serde_json::from_value(value.clone()).expect("a value")
}

pub(super) fn read_prepared(value: &serde_json::Value) -> (String, Vec<Value>) {
    serde_json::from_value(value.clone()).expect("what a sink prepared")
}

#[derive(Debug, Default)]
struct Inner {
    manifests: Vec<Arc<Manifest>>,
    /// From which lives have begun.
    begun: BTreeSet<CheckpointId>,
    /// What sinks have put aside: temporary files, open transactions.
    aside: BTreeSet<String>,
    committed: BTreeMap<String, Vec<Value>>,
}

/// Never waited for: nothing is done while it is held.
#[derive(Clone, Debug)]
pub(super) struct Outside {
    inner: Arc<Mutex<Inner>>,
    /// The ways that every record goes.
    ways: u8,
}

impl Outside {
    pub(super) fn new(ways: u8) -> Self {
        Outside { inner: Arc::default(), ways }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every record up to these positions, each way.
    fn all(&self, positions: &BTreeMap<usize, u64>) -> BTreeSet<Value> {
        let each = |(from, to): (&usize, &u64)| {
            let (from, ways) = (*from, self.ways);
            (0..*to).flat_map(move |nth| (0..ways).map(move |way| (from, nth, way)))
        };
        positions.iter().flat_map(each).collect()
    }

    /// A manifest is published: its cut is exact, and what its sinks hold is what came before it and no sink has committed.
    pub(super) fn publish(&self, manifest: Manifest) {
        let mut inner = self.inner();
        let newest = inner.manifests.last().map(|m| m.id);
        let id = manifest.id;
        // A savepoint may take long: checkpoints after it are complete then, and sinks have committed those.
        let late = newest > Some(id);
        assert!(
            newest != Some(id) && (!late || manifest.asked_for),
            "checkpoint ids rise: {newest:?}, then {id}"
        );
        let before = self.all(&manifest.positions());
        let seen = manifest.seen();
        assert_eq!(seen.len(), before.len(), "checkpoint {id}: {seen:?} is not what came before {before:?}");
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), before, "checkpoint {id}");
        let mut held = inner.committed.clone();
        held.extend(manifest.prepared());
        let held = held.into_values().flatten();
        let held: Vec<Value> = held.filter(|value| !late || before.contains(value)).collect();
        assert_eq!(held.len(), before.len(), "checkpoint {id}: {held:?} is in sinks");
        assert_eq!(held.into_iter().collect::<BTreeSet<_>>(), before, "checkpoint {id}, in its sinks");
        let at = inner.manifests.partition_point(|m| m.id < id);
        inner.manifests.insert(at, Arc::new(manifest));
    }

    /// A sink puts something aside under this name.
    pub(super) fn prepare(&self, name: &str) {
        assert!(self.inner().aside.insert(name.to_owned()), "{name} is prepared twice");
    }

    /// A sink makes visible what it prepared: some checkpoint that is complete must hold it.
    pub(super) fn commit(&self, prepared: &serde_json::Value) {
        let (name, values) = read_prepared(prepared);
        let mut inner = self.inner();
        let held = inner.manifests.iter().any(|m| m.prepared().contains_key(&name));
        assert!(held, "{name} is committed and no complete checkpoint holds it");
        // Committed again by another life: nothing to do.
        if !inner.committed.contains_key(&name) {
            assert!(inner.aside.remove(&name), "{name} is to be committed and has been thrown away");
            inner.committed.insert(name, values);
        }
    }

    /// A life begins from this: what else sinks have put aside belongs to lives that never were, and goes. Of one subtask, by the
    /// part of its names that says so.
    pub(super) fn throw_away(&self, of: &str, kept: &BTreeSet<String>) {
        self.inner().aside.retain(|name| !name.contains(of) || kept.contains(name));
    }

    /// A life begins from this manifest.
    pub(super) fn begin(&self, id: CheckpointId) {
        self.inner().begun.insert(id);
    }

    /// The user removes every savepoint that was asked for and that no life has begun from: the job must not need them.
    pub(super) fn remove_savepoints(&self) {
        let Inner { manifests, begun, .. } = &mut *self.inner();
        manifests.retain(|m| !m.asked_for || begun.contains(&m.id));
    }

    /// The newest manifest, savepoints included: what a life begins from.
    pub(super) fn newest(&self) -> Option<Arc<Manifest>> {
        self.inner().manifests.last().cloned()
    }

    /// The newest but for savepoints.
    pub(super) fn newest_checkpoint(&self) -> Option<Arc<Manifest>> {
        self.inner().manifests.iter().rev().find(|m| !m.savepoint).cloned()
    }

    /// Everything the sources had is visible, once.
    pub(super) fn is_complete(&self, positions: &BTreeMap<usize, u64>) {
        let visible: Vec<Value> = self.inner().committed.values().flatten().copied().collect();
        let all = self.all(positions);
        let twice =
            visible.iter().filter(|v| visible.iter().filter(|o| o == v).count() > 1).collect::<Vec<_>>();
        assert!(twice.is_empty(), "visible twice: {twice:?}");
        assert_eq!(visible.into_iter().collect::<BTreeSet<_>>(), all, "what is visible in the end");
    }
}
