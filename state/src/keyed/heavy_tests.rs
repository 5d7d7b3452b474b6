//! Heavy entries are counted one by one, by whatever way they come, change and go, and are evicted by what they weigh.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::backend::BackendKind;
use crate::key::key_hash;
use crate::keyed::cell::One;
use crate::keyed::{KeyedState, Table, ValueState};
use crate::store::{LocalPart, Snapshot, Store};
use crate::testing::Bench;

/// Enough for all that there will be.
const ROOM: usize = 1 << 30;

type Values = ValueState<u16, String>;
type Strings = Cache<u16, One<String, i64>, String>;

/// What the entries of all tiers really own, those that are heavy.
fn owned(cache: &Strings) -> usize {
    let weight = |entry: &Entry<u16, One<String, i64>>| {
        let weight = entry.cell.weight(&entry.key);
        if weight > WEIGHT { weight } else { 0 }
    };
    let thawing = cache.thaw.iter().flat_map(|thaw| thaw.tables[thaw.next..].iter().flat_map(|t| t.iter()));
    let mut all: usize = cache.live.iter().chain(cache.settled.iter()).map(|(entry, _)| weight(entry)).sum();
    all += thawing.map(|(entry, _)| weight(entry)).sum::<usize>();
    if let Some(pending) = &cache.pending {
        let mut add = |all: &mut usize, entry: &mut Entry<u16, One<String, i64>>, _: &mut u8| {
            *all += weight(entry);
            Ok::<bool, ()>(false)
        };
        pending.generation.entries.visit(&mut all, &mut add, |_| Ok(())).unwrap();
    }
    all
}

fn long(n: usize) -> String {
    "x".repeat(n)
}

#[test]
fn one_large_value_among_many_small_ones_is_seen_at_once() {
    let mut bench = Bench::new(BackendKind::Rocks, 64 << 20);
    let store = bench.store(0..8, &[]);
    let mut values: Values = store.value_state(Table::new("values")).unwrap();
    for key in 0..10_000 {
        values.set(key_hash(&key), &key, "small".to_owned()).unwrap();
    }
    values.batch_end().unwrap();
    let before = store.cached_bytes();
    values.set(key_hash(&7u16), &7, long(8 << 20)).unwrap();
    values.batch_end().unwrap();
    let grown = store.cached_bytes() - before;
    assert!(grown.abs_diff(8 << 20) < 64 << 10, "{grown} bytes more");
    // And as it grows in place.
    values.get_mut(key_hash(&7u16), &7).unwrap().unwrap().push_str(&long(8 << 20));
    values.batch_end().unwrap();
    let grown = store.cached_bytes() - before;
    assert!(grown.abs_diff(16 << 20) < 64 << 10, "{grown} bytes more");
    assert_eq!(values.cache.entries(), 10_000, "and nothing was evicted for it");
    values.clear(key_hash(&7u16), &7);
    values.batch_end().unwrap();
    assert!(store.cached_bytes().abs_diff(before) < 64 << 10);
}

#[test]
fn large_values_keep_to_the_budget() {
    let budget = 8 << 20;
    let mut bench = Bench::new(BackendKind::Rocks, budget);
    let store = bench.store(0..8, &[]);
    let mut values: Values = store.value_state(Table::new("values")).unwrap();
    for key in 0..500u16 {
        // Of twenty, one is a megabyte.
        let value = long(if key % 20 == 0 { 1 << 20 } else { 10 });
        values.set(key_hash(&key), &key, value).unwrap();
        values.batch_end().unwrap();
        assert!(owned(&values.cache) <= budget, "{} bytes after {key}", owned(&values.cache));
        assert!(store.cached_bytes() <= budget, "{} bytes after {key}", store.cached_bytes());
    }
    for key in 0..500u16 {
        let value = values.get(key_hash(&key), &key).unwrap().map(String::len);
        assert_eq!(value, Some(if key % 20 == 0 { 1 << 20 } else { 10 }), "{key}");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Set(u16, usize),
    Grow(u16, usize),
    Get(u16),
    Clear(u16),
    BatchEnd,
    Freeze,
    Written,
    Failed,
    Restore,
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0u16..24;
    let size = || prop_oneof![0usize..20, Just(5_000usize), Just(60_000)];
    prop_oneof![
        6 => (key(), size()).prop_map(|(key, size)| Op::Set(key, size)),
        4 => (key(), size()).prop_map(|(key, size)| Op::Grow(key, size)),
        5 => key().prop_map(Op::Get),
        2 => key().prop_map(Op::Clear),
        6 => Just(Op::BatchEnd),
        3 => Just(Op::Freeze),
        3 => Just(Op::Written),
        1 => Just(Op::Failed),
        1 => Just(Op::Restore),
    ]
}

struct Trial {
    bench: Bench,
    store: Store,
    values: Values,
    model: BTreeMap<u16, usize>,
    frozen: Option<(Snapshot, BTreeMap<u16, usize>)>,
    checkpoint: Option<(LocalPart, BTreeMap<u16, usize>)>,
}

impl Trial {
    fn apply(&mut self, op: Op) {
        match op {
            Op::Set(key, size) => {
                self.values.set(key_hash(&key), &key, long(size)).unwrap();
                self.model.insert(key, size);
            }
            Op::Grow(key, size) => {
                let value = self.values.get_or_insert_with(key_hash(&key), &key, String::new).unwrap();
                value.push_str(&long(size));
                *self.model.entry(key).or_default() += size;
            }
            Op::Get(key) => {
                let value = self.values.get(key_hash(&key), &key).unwrap().map(String::len);
                assert_eq!(value, self.model.get(&key).copied(), "{key}");
            }
            Op::Clear(key) => {
                self.values.clear(key_hash(&key), &key);
                self.model.remove(&key);
            }
            Op::BatchEnd => {
                if self.bench.cache_bytes < ROOM {
                    // It would be waited for, and nobody else is there to write it.
                    self.apply(Op::Written);
                }
                self.values.batch_end().unwrap();
                assert_eq!(self.values.cache.heavy.total(), owned(&self.values.cache));
            }
            Op::Freeze => {
                self.apply(Op::Written);
                let mut snapshot = Snapshot::default();
                self.values.freeze(&mut snapshot).unwrap();
                self.frozen = Some((snapshot, self.model.clone()));
            }
            Op::Written => {
                if let Some((snapshot, model)) = self.frozen.take() {
                    self.checkpoint = Some((self.bench.write_out(&self.store, snapshot), model));
                }
            }
            Op::Failed => {
                if let Some((snapshot, _)) = self.frozen.take() {
                    self.bench.fail(&self.store, snapshot);
                }
            }
            Op::Restore => {
                self.frozen = None;
                let parts: Vec<LocalPart> = self.checkpoint.iter().map(|(part, _)| part.clone()).collect();
                self.store = self.bench.store(0..8, &parts);
                self.values = self.store.value_state(Table::new("values")).unwrap();
                self.model = self.checkpoint.as_ref().map(|(_, model)| model.clone()).unwrap_or_default();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 5_000, ..ProptestConfig::default() })]
    #[test]
    fn what_is_counted_is_what_is_there(
        ops in prop::collection::vec(op(), 1..120),
        cache in prop_oneof![Just(0usize), Just(100_000), Just(1 << 20), Just(ROOM)],
    ) {
        let mut bench = Bench::new(BackendKind::Memory, cache);
        let store = bench.store(0..8, &[]);
        let values = store.value_state(Table::new("values")).unwrap();
        let mut trial =
            Trial { bench, store, values, model: BTreeMap::new(), frozen: None, checkpoint: None };
        ops.into_iter().for_each(|op| trial.apply(op));
        (0..24).for_each(|key| trial.apply(Op::Get(key)));
        trial.apply(Op::BatchEnd);
    }
}
