//! Maps against a plain map: whatever freezes, fails, is evicted, removed, drained or restored in between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use crate::backend::BackendKind;
use crate::error::StateError;
use crate::key::{KeyHash, key_hash};
use crate::keyed::{StateMap, Table};
use crate::store::{LocalPart, Snapshot, Store};
use crate::testing::{Bench, Refusing};

type Model = BTreeMap<u16, String>;

#[derive(Clone, Debug)]
enum Op {
    Set(u16, String),
    Append(u16, char),
    Get(u16),
    Remove(u16),
    Take(u16),
    Prefetch(Vec<u16>),
    BatchEnd,
    Freeze,
    Written,
    Failed,
    Lost,
    Restore,
    /// From now on the backend takes what does not fit into memory, or refuses it.
    Refuse(bool),
    /// So many at a time, with a barrier after each so-manyth.
    Drain(usize, usize),
    Clear,
    All,
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0u16..40;
    prop_oneof![
        8 => (key(), "[a-z]{0,3}").prop_map(|(key, value)| Op::Set(key, value)),
        4 => (key(), any::<char>()).prop_map(|(key, c)| Op::Append(key, c)),
        6 => key().prop_map(Op::Get),
        4 => key().prop_map(Op::Remove),
        1 => key().prop_map(Op::Take),
        4 => prop::collection::vec(key(), 0..12).prop_map(Op::Prefetch),
        6 => Just(Op::BatchEnd),
        4 => Just(Op::Freeze),
        4 => Just(Op::Written),
        1 => Just(Op::Failed),
        1 => Just(Op::Lost),
        1 => Just(Op::Restore),
        2 => any::<bool>().prop_map(Op::Refuse),
        1 => (1usize..9, 1usize..4).prop_map(|(most, every)| Op::Drain(most, every)),
        1 => Just(Op::Clear),
        2 => Just(Op::All),
    ]
}

/// A map under test and what it must be like.
struct Trial {
    bench: Bench,
    store: Store,
    map: StateMap<u16, String>,
    model: Model,
    refuses: Arc<AtomicBool>,
    /// A snapshot that is not yet written, and what it holds.
    frozen: Option<(Snapshot, Model)>,
    checkpoint: Option<(LocalPart, Model)>,
}

/// The map of a store, over a backend that may refuse what it evicts.
fn map(store: &Store, refuses: &Arc<AtomicBool>) -> StateMap<u16, String> {
    let mut map = store.state_map(Table::new("t")).unwrap();
    let home = Arc::get_mut(&mut map.cache.home).unwrap();
    home.backend = Arc::new(Refusing { below: home.backend.clone(), refuses: refuses.clone() });
    map
}

fn hash(key: u16) -> KeyHash {
    key_hash(&key)
}

impl Trial {
    fn new(backend: BackendKind, cache_bytes: usize) -> Self {
        let mut bench = Bench::new(backend, cache_bytes);
        let store = bench.store(0..8, &[]);
        let refuses = Arc::default();
        let map = map(&store, &refuses);
        Trial { bench, store, map, model: Model::new(), refuses, frozen: None, checkpoint: None }
    }

    fn freeze(&mut self) {
        self.written();
        let mut snapshot = Snapshot::default();
        self.map.freeze(&mut snapshot).unwrap();
        self.frozen = Some((snapshot, self.model.clone()));
    }

    fn written(&mut self) {
        if let Some((snapshot, model)) = self.frozen.take() {
            self.checkpoint = Some((self.bench.write_out(&self.store, snapshot), model));
        }
    }

    fn restore(&mut self) {
        self.frozen = None;
        let parts: Vec<LocalPart> = self.checkpoint.iter().map(|(part, _)| part.clone()).collect();
        self.store = self.bench.store(0..8, &parts);
        self.map = map(&self.store, &self.refuses);
        self.model = self.checkpoint.as_ref().map(|(_, model)| model.clone()).unwrap_or_default();
    }

    fn all(&mut self) -> Model {
        let mut all = Model::new();
        let mut twice = 0;
        self.map
            .for_each(|key, value| twice += usize::from(all.insert(*key, value.clone()).is_some()))
            .unwrap();
        assert_eq!(twice, 0, "every key once");
        all
    }

    fn drain(&mut self, most: usize, every: usize) {
        let mut out = Vec::new();
        let mut calls = 0;
        while self.map.pop(most, &mut out).unwrap() {
            calls += 1;
            for (key, value) in out.drain(..) {
                assert_eq!(self.model.remove(&key), Some(value), "{key}");
            }
            if calls % every == 0 {
                self.freeze();
            }
            self.map.batch_end().unwrap();
            let still: Vec<u16> = self.model.keys().copied().take(3).collect();
            for key in still {
                assert_eq!(self.map.get(hash(key), &key).unwrap(), self.model.get(&key));
            }
            // Some turns come sooner.
            if calls % 3 == 0
                && let Some(key) = self.model.keys().next_back().copied()
            {
                assert_eq!(self.map.take(hash(key), &key).unwrap(), self.model.remove(&key), "{key}");
            }
        }
        for (key, value) in out {
            assert_eq!(self.model.remove(&key), Some(value), "{key}");
        }
        assert_eq!(self.model, Model::new());
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Set(key, value) => {
                self.map.insert(hash(key), key, value.clone()).unwrap();
                self.model.insert(key, value);
            }
            Op::Append(key, c) => {
                self.map.get_or_insert_with(hash(key), key, String::new).unwrap().push(c);
                self.model.entry(key).or_default().push(c);
            }
            Op::Get(key) => {
                assert_eq!(self.map.get(hash(key), &key).unwrap(), self.model.get(&key), "{key}");
            }
            Op::Remove(key) => {
                self.map.remove(hash(key), &key);
                self.model.remove(&key);
            }
            Op::Take(key) => {
                assert_eq!(self.map.take(hash(key), &key).unwrap(), self.model.remove(&key), "{key}");
            }
            Op::Prefetch(keys) => {
                self.map.prefetch(keys.iter().map(|key| (hash(*key), key))).unwrap();
                keys.into_iter().for_each(|key| self.apply(Op::Get(key)));
            }
            Op::BatchEnd => self.map.batch_end().unwrap(),
            Op::Freeze => self.freeze(),
            Op::Written => self.written(),
            Op::Failed => {
                if let Some((snapshot, _)) = self.frozen.take() {
                    self.bench.fail(&self.store, snapshot);
                }
            }
            Op::Lost => self.frozen = None,
            Op::Restore => self.restore(),
            Op::Refuse(refuses) => self.refuses.store(refuses, Ordering::Relaxed),
            Op::Drain(most, every) => self.drain(most, every),
            Op::Clear => {
                self.map.clear();
                self.model.clear();
            }
            Op::All => assert_eq!(self.all(), self.model),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, max_shrink_iters: 20_000, ..ProptestConfig::default() })]
    #[test]
    fn a_map_over_memory_is_a_map(
        ops in prop::collection::vec(op(), 1..150),
        cache in prop_oneof![Just(0usize), Just(300), Just(2_000), Just(1 << 20)],
    ) {
        let mut trial = Trial::new(BackendKind::Memory, cache);
        ops.into_iter().for_each(|op| trial.apply(op));
        prop_assert_eq!(trial.all(), trial.model.clone());
        trial.freeze();
        trial.written();
        trial.restore();
        prop_assert_eq!(trial.all(), trial.model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 500, ..ProptestConfig::default() })]
    #[test]
    fn a_map_over_rocks_is_a_map(
        ops in prop::collection::vec(op(), 1..150),
        cache in prop_oneof![Just(0usize), Just(2_000)],
    ) {
        let mut trial = Trial::new(BackendKind::Rocks, cache);
        ops.into_iter().for_each(|op| trial.apply(op));
        trial.freeze();
        trial.written();
        trial.restore();
        prop_assert_eq!(trial.all(), trial.model);
    }
}

#[test]
fn a_snapshot_that_fails_between_two_looks_at_it_loses_nothing() {
    let mut trial = Trial::new(BackendKind::Memory, 0);
    trial.apply(Op::Set(1, "x".to_owned()));
    trial.freeze();
    // A copy in the live tier, clean: only the frozen entry is still to be written.
    trial.apply(Op::Get(1));
    let (snapshot, _) = trial.frozen.take().unwrap();
    trial.bench.fail(&trial.store, snapshot);
    // The ledger says that the backend may be written: by then the copy must be known to be dirty again.
    assert!(trial.map.cache.may_write());
    for _ in 0..3 {
        trial.map.batch_end().unwrap();
    }
    assert_eq!(trial.map.cached(), 0, "evicted");
    trial.apply(Op::Get(1));
    trial.apply(Op::All);
}

#[test]
fn a_full_disk_is_told_of_by_the_snapshot_until_memory_is_far_over() {
    let mut trial = Trial::new(BackendKind::Memory, 0);
    for key in 0..500 {
        trial.apply(Op::Set(key, "before".to_owned()));
    }
    trial.apply(Op::BatchEnd);
    assert_eq!(trial.map.cached(), 0, "evicted");
    trial.refuses.store(true, Ordering::Relaxed);
    for key in 0..1_000 {
        trial.apply(Op::Set(key, "meanwhile".to_owned()));
        trial.apply(Op::BatchEnd);
    }
    assert_eq!(trial.map.cached(), 1_000, "all that must be written is still here");
    trial.apply(Op::All);
    // More than a MiB that it may not hold.
    let large = "x".repeat(64 << 10);
    let mut grow = 1_000..1_100;
    let error = loop {
        let key = grow.next().unwrap();
        trial.map.insert(hash(key), key, large.clone()).unwrap();
        trial.model.insert(key, large.clone());
        if let Err(error) = trial.map.batch_end() {
            break error;
        }
    };
    assert!(matches!(error, StateError::Backend { .. }), "{error}");
    // Nothing was lost by that: with room again it goes on.
    trial.refuses.store(false, Ordering::Relaxed);
    trial.apply(Op::BatchEnd);
    trial.apply(Op::BatchEnd);
    assert_eq!(trial.map.cached(), 0, "evicted");
    trial.apply(Op::All);
}
