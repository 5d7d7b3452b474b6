//! Windows over a backend that counts: what is opened and closed between two barriers writes nothing; the rest survives.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::backend::BackendKind;
use crate::key::key_hash;
use crate::keyed::Tour;
use crate::store::LocalPart;
use crate::testing::{Bench, KINDS};

type Model = BTreeMap<i64, BTreeMap<u16, u32>>;

struct Trial {
    bench: Bench,
    store: Store,
    spaces: Spaces<u16, u32>,
    model: Model,
    frozen: Option<(Snapshot, Model)>,
    checkpoint: Option<(LocalPart, Model)>,
}

impl Trial {
    fn new(backend: BackendKind, cache_bytes: usize) -> Self {
        let mut bench = Bench::new(backend, cache_bytes);
        let store = bench.store(0..8, &[]);
        let spaces = store.spaces(Table::new("panes")).unwrap();
        Trial { bench, store, spaces, model: Model::new(), frozen: None, checkpoint: None }
    }

    fn add(&mut self, namespace: i64, key: u16) {
        let space = self.spaces.open(namespace);
        *self.spaces.map(space).get_or_insert_with(key_hash(&key), key, || 0).unwrap() += 1;
        *self.model.entry(namespace).or_default().entry(key).or_default() += 1;
    }

    /// Takes a namespace out, perhaps with a barrier after some, and closes it.
    fn fire(&mut self, namespace: i64, barrier: bool) {
        let Some(space) = self.spaces.get(namespace) else {
            assert_eq!(self.model.get(&namespace), None);
            return;
        };
        let mut wanted = self.model.remove(&namespace).unwrap_or_default();
        let mut out = Vec::new();
        let mut check = |out: &mut Vec<(u16, u32)>| {
            out.drain(..).for_each(|(key, n)| assert_eq!(wanted.remove(&key), Some(n), "{key}"));
            wanted.clone()
        };
        while self.spaces.map(space).pop(3, &mut out).unwrap() {
            let left = check(&mut out);
            if barrier {
                // A barrier in the middle keeps what has not been given yet.
                self.model.insert(namespace, left);
                self.freeze();
                self.model.remove(&namespace);
            }
            self.spaces.batch_end().unwrap();
        }
        assert!(check(&mut out).is_empty());
        self.spaces.close(namespace);
    }

    fn freeze(&mut self) {
        self.written();
        let mut snapshot = Snapshot::default();
        self.spaces.freeze(&mut snapshot).unwrap();
        self.frozen = Some((snapshot, self.model.clone()));
    }

    fn written(&mut self) {
        if let Some((snapshot, model)) = self.frozen.take() {
            self.checkpoint = Some((self.bench.write_out(&self.store, snapshot), model));
        }
    }

    fn failed(&mut self) {
        if let Some((snapshot, _)) = self.frozen.take() {
            self.bench.fail(&self.store, snapshot);
        }
    }

    fn restore(&mut self) {
        self.frozen = None;
        let parts: Vec<LocalPart> = self.checkpoint.iter().map(|(part, _)| part.clone()).collect();
        self.store = self.bench.store(0..8, &parts);
        self.spaces = self.store.spaces(Table::new("panes")).unwrap();
        self.model = self.checkpoint.as_ref().map(|(_, model)| model.clone()).unwrap_or_default();
        self.model.retain(|_, keys| !keys.is_empty());
        assert!(self.spaces.namespaces().map(|(ns, _)| ns).eq(self.model.keys().copied()));
    }

    fn check(&mut self) {
        let all: Vec<(i64, Space)> = self.spaces.namespaces().collect();
        for (namespace, space) in all {
            let mut held = BTreeMap::new();
            self.spaces.map(space).for_each(|key, n| assert_eq!(held.insert(*key, *n), None)).unwrap();
            assert_eq!(held, self.model.get(&namespace).cloned().unwrap_or_default(), "{namespace}");
            for (most, parts) in [(1, vec![0..8]), (3, vec![0..3, 3..8]), (1_000, vec![0..1, 1..7, 7..8])] {
                let mut toured = BTreeMap::new();
                for part in parts {
                    let all = part.len() == 8;
                    let mut tour = if all { Tour::default() } else { Tour::of_groups(part.clone(), 8) };
                    let mut more = true;
                    while more {
                        let mut seen = 0;
                        let visit = |key: &u16, n: &u32| {
                            seen += 1;
                            assert!(part.contains(&key_hash(key).group(8).0));
                            assert_eq!(toured.insert(*key, *n), None);
                        };
                        more = self.spaces.map(space).visit_some(&mut tour, most, visit).unwrap();
                        assert!(seen <= most);
                    }
                }
                assert_eq!(toured, held, "{namespace}");
            }
        }
    }

    /// How many keys of all namespaces are in the backend.
    fn stored(&self) -> usize {
        let mut n = 0;
        let mut count = |_: &[u8], _: &[u8]| {
            n += 1;
            ControlFlow::Continue(())
        };
        self.store.backend().scan(&[], &[], &mut count).unwrap();
        n
    }
}

#[test]
fn a_window_between_two_barriers_never_reaches_the_backend() {
    let mut trial = Trial::new(BackendKind::Memory, 1 << 20);
    trial.freeze();
    trial.written();
    for namespace in 0..10 {
        (0..100).for_each(|key| trial.add(namespace, key));
        trial.spaces.batch_end().unwrap();
        trial.fire(namespace, false);
    }
    (0..5).for_each(|key| trial.add(99, key));
    let mut snapshot = Snapshot::default();
    trial.spaces.freeze(&mut snapshot).unwrap();
    let mut writes = 0;
    snapshot
        .write(&mut |batch| {
            writes += batch.len();
            Ok(())
        })
        .unwrap();
    assert_eq!(writes, 5, "only the window that is still open");
    drop(snapshot);
    assert_eq!(trial.stored(), 0);
}

#[test]
fn a_stored_window_is_deleted_by_ranges_of_the_groups_it_was_in() {
    let mut trial = Trial::new(BackendKind::Memory, 1 << 20);
    (0..100).for_each(|key| trial.add(1, key));
    trial.add(2, 1);
    trial.freeze();
    trial.written();
    assert_eq!(trial.stored(), 101);
    trial.spaces.batch_end().unwrap();
    trial.fire(1, false);
    trial.fire(2, false);
    let mut snapshot = Snapshot::default();
    trial.spaces.freeze(&mut snapshot).unwrap();
    let mut ranges = 0;
    snapshot
        .write(&mut |batch| {
            ranges += batch.iter().filter(|w| matches!(w, crate::backend::Write::DeleteRange(..))).count();
            trial.store.backend().write(batch)
        })
        .unwrap();
    assert_eq!(ranges, 8 + 1);
    assert_eq!(trial.stored(), 0);
}

#[test]
fn without_barriers_closed_windows_leave_the_backend_too() {
    let mut trial = Trial::new(BackendKind::Memory, 0);
    (0..100).for_each(|key| trial.add(1, key));
    for _ in 0..3 {
        trial.spaces.batch_end().unwrap();
    }
    assert!(trial.stored() > 0, "evicted");
    trial.fire(1, false);
    trial.spaces.batch_end().unwrap();
    assert_eq!((trial.stored(), trial.spaces.closed.len()), (0, 0));
}

#[test]
fn a_map_and_maps_by_namespace_cannot_be_taken_for_each_other() {
    let mut bench = Bench::new(BackendKind::Memory, 0);
    let store = bench.store(0..8, &[]);
    store.spaces(Table::<u16, u32>::new("t")).unwrap();
    let part = bench.write_out(&store, Snapshot::default());
    let error = bench.store(0..8, &[part]).state_map(Table::<u16, u32>::new("t")).unwrap_err().to_string();
    assert!(error.contains("has its keys in ordered in namespaces, the job declares ordered"), "{error}");
}

#[derive(Clone, Debug)]
enum Op {
    Add(i64, u16),
    Fire(i64, bool),
    BatchEnd,
    Freeze,
    Written,
    Failed,
    Restore,
    Check,
}

fn op() -> impl Strategy<Value = Op> {
    let namespace = || prop_oneof![-2i64..3, Just(i64::MIN), Just(i64::MAX)];
    prop_oneof![
        12 => (namespace(), 0u16..30).prop_map(|(ns, key)| Op::Add(ns, key)),
        3 => (namespace(), any::<bool>()).prop_map(|(ns, barrier)| Op::Fire(ns, barrier)),
        4 => Just(Op::BatchEnd),
        3 => Just(Op::Freeze),
        3 => Just(Op::Written),
        1 => Just(Op::Failed),
        1 => Just(Op::Restore),
        1 => Just(Op::Check),
    ]
}

fn try_all(backend: BackendKind, ops: Vec<Op>, cache_bytes: usize) {
    let mut trial = Trial::new(backend, cache_bytes);
    for op in ops {
        match op {
            Op::Add(namespace, key) => trial.add(namespace, key),
            Op::Fire(namespace, barrier) => trial.fire(namespace, barrier),
            Op::BatchEnd => trial.spaces.batch_end().unwrap(),
            Op::Freeze => trial.freeze(),
            Op::Written => trial.written(),
            Op::Failed => trial.failed(),
            Op::Restore => trial.restore(),
            Op::Check => trial.check(),
        }
    }
    trial.check();
    trial.freeze();
    trial.written();
    let left = trial.model.values().map(BTreeMap::len).sum::<usize>();
    assert_eq!(trial.stored(), left, "what is closed is deleted");
    trial.restore();
    trial.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, max_shrink_iters: 20_000, ..ProptestConfig::default() })]
    #[test]
    fn windows_over_memory_are_maps_of_maps(
        ops in prop::collection::vec(op(), 1..150),
        cache in prop_oneof![Just(0usize), Just(1_000), Just(1 << 20)],
    ) {
        try_all(KINDS[0], ops, cache);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 500, ..ProptestConfig::default() })]
    #[test]
    fn windows_over_rocks_are_maps_of_maps(ops in prop::collection::vec(op(), 1..150)) {
        try_all(KINDS[1], ops, 1_000);
    }
}
