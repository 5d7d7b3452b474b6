//! Maps under keys against maps of maps; empty values that stay until they expire; and that only what is asked for is read.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::backend::BackendKind;
use crate::key::key_hash;
use crate::store::LocalPart;
use crate::testing::{Bench, KINDS};
use crate::ttl::Ttl;

type Maps = MapState<u8, String, String>;
type Model = BTreeMap<u8, BTreeMap<String, String>>;

fn hash(key: u8) -> KeyHash {
    key_hash(&key)
}

fn name(n: u8) -> String {
    format!("name-{n}")
}

#[test]
fn e32_an_empty_value_is_there_until_it_expires() {
    for kind in KINDS {
        for cache_bytes in [0, 1 << 20] {
            let mut bench = Bench::new(kind, cache_bytes);
            let table = || Table::<u8, ()>::new("seen").ttl(Ttl::processing_time(Duration::from_millis(100)));
            let store = bench.store(0..8, &[]);
            let mut maps = store.map_state::<u8, String, ()>(table()).unwrap();
            maps.put(hash(1), &1, String::new(), ()).unwrap();
            assert!(maps.contains(hash(1), &1, &String::new()).unwrap());
            assert!(!maps.contains(hash(1), &1, &name(0)).unwrap());
            let mut snapshot = Snapshot::default();
            maps.freeze(&mut snapshot).unwrap();
            let part = bench.write_out(&store, snapshot);

            let store = bench.store(0..8, &[part]);
            let mut maps = store.map_state::<u8, String, ()>(table()).unwrap();
            bench.wall_ms.fetch_add(99, Ordering::Relaxed);
            maps.batch_end().unwrap();
            assert!(maps.contains(hash(1), &1, &String::new()).unwrap());
            assert_eq!(maps.entries(hash(1), &1).unwrap().count(), 1);
            bench.wall_ms.fetch_add(1, Ordering::Relaxed);
            maps.batch_end().unwrap();
            assert!(!maps.contains(hash(1), &1, &String::new()).unwrap());
            assert!(maps.is_empty(hash(1), &1).unwrap());
        }
    }
}

#[test]
fn a_map_that_was_emptied_is_empty_while_that_is_being_written() {
    for kind in KINDS {
        let mut bench = Bench::new(kind, 1 << 20);
        let store = bench.store(0..8, &[]);
        let mut maps = store.map_state::<u8, u32, u32>(Table::<u8, u32>::new("seen")).unwrap();
        (0..500).for_each(|n| maps.put(hash(1), &1, n, n).unwrap());
        let mut snapshot = Snapshot::default();
        maps.freeze(&mut snapshot).unwrap();
        bench.write_out(&store, snapshot);
        maps.batch_end().unwrap();
        assert!(!maps.is_empty(hash(1), &1).unwrap());
        (0..500).for_each(|n| maps.remove(hash(1), &1, &n).unwrap());
        assert!(maps.is_empty(hash(1), &1).unwrap());
        let mut snapshot = Snapshot::default();
        maps.freeze(&mut snapshot).unwrap();
        assert!(maps.is_empty(hash(1), &1).unwrap(), "{kind:?}, while it is being written");
        bench.write_out(&store, snapshot);
        maps.batch_end().unwrap();
        assert!(maps.is_empty(hash(1), &1).unwrap(), "{kind:?}, written");
    }
}

#[test]
fn of_a_large_map_only_what_is_asked_for_is_read() {
    let mut bench = Bench::new(BackendKind::Memory, 1 << 20);
    let store = bench.store(0..8, &[]);
    let table = || Table::<u8, u32>::new("seen");
    let mut maps = store.map_state::<u8, u32, u32>(table()).unwrap();
    (0..10_000).for_each(|n| maps.put(hash(1), &1, n, n * 2).unwrap());
    let mut snapshot = Snapshot::default();
    maps.freeze(&mut snapshot).unwrap();
    let part = bench.write_out(&store, snapshot);

    let store = bench.store(0..8, &[part]);
    let mut maps = store.map_state::<u8, u32, u32>(table()).unwrap();
    assert!(!maps.is_empty(hash(1), &1).unwrap());
    assert!(maps.is_empty(hash(2), &2).unwrap());
    let wanted = [7, 9_999, 10_001];
    maps.prefetch(wanted.iter().map(|n| (hash(1), &1, n))).unwrap();
    assert_eq!(maps.get(hash(1), &1, &7).unwrap(), Some(&14));
    assert_eq!(maps.get(hash(1), &1, &10_001).unwrap(), None);
    *maps.get_mut(hash(1), &1, &9_999).unwrap().unwrap() = 0;
    let place = maps.cache.find(hash(1).in_group(), &1).unwrap().unwrap();
    assert_eq!(maps.cache.at(place).cell.iter().count(), 2);

    // Only what changed is written.
    let mut snapshot = Snapshot::default();
    maps.freeze(&mut snapshot).unwrap();
    let mut writes = 0;
    snapshot
        .write(&mut |batch| {
            writes += batch.len();
            Ok(())
        })
        .unwrap();
    assert_eq!(writes, 1);
    assert_eq!(maps.entries(hash(1), &1).unwrap().count(), 10_000);
}

#[test]
fn a_cleared_map_is_one_range_delete_and_a_new_one_has_nothing_of_it() {
    for kind in KINDS {
        let mut bench = Bench::new(kind, 1 << 20);
        let store = bench.store(0..8, &[]);
        let table = || Table::<u8, u32>::new("seen");
        let mut maps = store.map_state::<u8, u32, u32>(table()).unwrap();
        (0..100).for_each(|n| maps.put(hash(1), &1, n, n).unwrap());
        (0..100).for_each(|n| maps.put(hash(2), &2, n, n).unwrap());
        let mut snapshot = Snapshot::default();
        maps.freeze(&mut snapshot).unwrap();
        bench.write_out(&store, snapshot);
        maps.batch_end().unwrap();

        maps.clear(hash(1), &1);
        maps.clear(hash(2), &2);
        maps.put(hash(2), &2, 1_000, 1).unwrap();
        let mut snapshot = Snapshot::default();
        maps.freeze(&mut snapshot).unwrap();
        let part = bench.write_out(&store, snapshot);
        let store = bench.store(0..8, &[part]);
        let mut maps = store.map_state::<u8, u32, u32>(table()).unwrap();
        assert!(maps.is_empty(hash(1), &1).unwrap());
        assert_eq!(maps.entries(hash(2), &2).unwrap().collect::<Vec<_>>(), [(&1_000, &1)]);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Put(u8, u8, String),
    Change(u8, u8),
    Get(u8, u8),
    Remove(u8, u8),
    Clear(u8),
    IsEmpty(u8),
    Entries(u8),
    Prefetch(Vec<(u8, u8)>),
    BatchEnd,
    Freeze,
    Written,
    Failed,
    Lost,
    Restore,
}

fn op() -> impl Strategy<Value = Op> {
    let at = || (0u8..6, 0u8..8);
    prop_oneof![
        8 => (at(), "[a-z]{0,2}").prop_map(|((key, n), value)| Op::Put(key, n, value)),
        3 => at().prop_map(|(key, n)| Op::Change(key, n)),
        6 => at().prop_map(|(key, n)| Op::Get(key, n)),
        4 => at().prop_map(|(key, n)| Op::Remove(key, n)),
        2 => (0u8..6).prop_map(Op::Clear),
        2 => (0u8..6).prop_map(Op::IsEmpty),
        3 => (0u8..6).prop_map(Op::Entries),
        3 => prop::collection::vec(at(), 0..6).prop_map(Op::Prefetch),
        5 => Just(Op::BatchEnd),
        4 => Just(Op::Freeze),
        4 => Just(Op::Written),
        1 => Just(Op::Failed),
        1 => Just(Op::Lost),
        1 => Just(Op::Restore),
    ]
}

struct Trial {
    bench: Bench,
    store: Store,
    maps: Maps,
    model: Model,
    frozen: Option<(Snapshot, Model)>,
    checkpoint: Option<(LocalPart, Model)>,
}

impl Trial {
    fn new(kind: BackendKind, cache_bytes: usize) -> Self {
        let mut bench = Bench::new(kind, cache_bytes);
        let store = bench.store(0..8, &[]);
        let maps = store.map_state(Table::new("maps")).unwrap();
        Trial { bench, store, maps, model: Model::new(), frozen: None, checkpoint: None }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Put(key, n, value) => {
                self.maps.put(hash(key), &key, name(n), value.clone()).unwrap();
                self.model.entry(key).or_default().insert(name(n), value);
            }
            Op::Change(key, n) => {
                let held = self.maps.get_mut(hash(key), &key, &name(n)).unwrap();
                let of_model = self.model.get_mut(&key).and_then(|map| map.get_mut(&name(n)));
                assert_eq!(held.is_some(), of_model.is_some(), "{key}, {n}");
                held.into_iter().chain(of_model).for_each(|value| value.push('!'));
            }
            Op::Get(key, n) => {
                assert_eq!(
                    self.maps.get(hash(key), &key, &name(n)).unwrap(),
                    self.model.get(&key).and_then(|map| map.get(&name(n))),
                    "{key}, {n}"
                );
            }
            Op::Remove(key, n) => {
                self.maps.remove(hash(key), &key, &name(n)).unwrap();
                self.model.entry(key).or_default().remove(&name(n));
            }
            Op::Clear(key) => {
                self.maps.clear(hash(key), &key);
                self.model.remove(&key);
            }
            Op::IsEmpty(key) => {
                let empty = self.model.get(&key).is_none_or(BTreeMap::is_empty);
                assert_eq!(self.maps.is_empty(hash(key), &key).unwrap(), empty, "{key}");
            }
            Op::Entries(key) => {
                let mut all = BTreeMap::new();
                for (name, value) in self.maps.entries(hash(key), &key).unwrap() {
                    assert_eq!(all.insert(name.clone(), value.clone()), None);
                }
                assert_eq!(all, self.model.get(&key).cloned().unwrap_or_default(), "{key}");
            }
            Op::Prefetch(all) => {
                let names: Vec<(u8, String)> = all.iter().map(|(key, n)| (*key, name(*n))).collect();
                self.maps.prefetch(names.iter().map(|(key, name)| (hash(*key), key, name))).unwrap();
                all.into_iter().for_each(|(key, n)| self.apply(Op::Get(key, n)));
            }
            Op::BatchEnd => self.maps.batch_end().unwrap(),
            Op::Freeze => {
                self.apply(Op::Written);
                let mut snapshot = Snapshot::default();
                self.maps.freeze(&mut snapshot).unwrap();
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
            Op::Lost => self.frozen = None,
            Op::Restore => {
                self.frozen = None;
                let parts: Vec<LocalPart> = self.checkpoint.iter().map(|(part, _)| part.clone()).collect();
                self.store = self.bench.store(0..8, &parts);
                self.maps = self.store.map_state(Table::new("maps")).unwrap();
                self.model = self.checkpoint.as_ref().map(|(_, model)| model.clone()).unwrap_or_default();
            }
        }
    }

    fn run(mut self, ops: Vec<Op>) {
        ops.into_iter().for_each(|op| self.apply(op));
        for op in [Op::Freeze, Op::Written, Op::Restore] {
            (0..6).for_each(|key| self.apply(Op::Entries(key)));
            self.apply(op);
        }
        (0..6).for_each(|key| self.apply(Op::Entries(key)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, max_shrink_iters: 20_000, ..ProptestConfig::default() })]
    #[test]
    fn maps_over_memory_are_maps_of_maps(
        ops in prop::collection::vec(op(), 1..150),
        cache in prop_oneof![Just(0usize), Just(2_000), Just(1 << 20)],
    ) {
        Trial::new(KINDS[0], cache).run(ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 500, ..ProptestConfig::default() })]
    #[test]
    fn maps_over_rocks_are_maps_of_maps(ops in prop::collection::vec(op(), 1..150)) {
        Trial::new(KINDS[1], 2_000).run(ops);
    }
}

#[test]
fn a_large_map_that_is_being_written_is_not_copied_and_is_written_in_parts() {
    let mut bench = Bench::new(BackendKind::Rocks, 256 << 20);
    let store = bench.store(0..8, &[]);
    let table = || Table::<u8, u64>::new("seen");
    let mut maps = store.map_state::<u8, u64, u64>(table()).unwrap();
    (0..100_000).for_each(|n| maps.put(hash(1), &1, n, n).unwrap());
    maps.batch_end().unwrap();
    let before = store.cached_bytes();
    let mut snapshot = Snapshot::default();
    maps.freeze(&mut snapshot).unwrap();
    // It is touched while it is frozen: that takes what was touched, and no more.
    for n in 0..100 {
        assert_eq!(maps.get(hash(1), &1, &n).unwrap(), Some(&n));
        maps.put(hash(1), &1, n, 0).unwrap();
    }
    maps.remove(hash(1), &1, &500).unwrap();
    maps.batch_end().unwrap();
    let more = store.cached_bytes().saturating_sub(before);
    assert!(more < before / 10, "{more} bytes beside {before}");
    let mut largest = 0;
    snapshot
        .write(&mut |batch| {
            largest = largest.max(batch.bytes());
            Ok(())
        })
        .unwrap();
    assert!(largest < 2 << 20, "a batch of {largest} bytes");
    let part = bench.write_out(&store, snapshot);
    // Written, merged, and what was changed meanwhile is for the next one.
    for _ in 0..200 {
        assert_eq!(maps.get(hash(1), &1, &99_999).unwrap(), Some(&99_999));
        maps.put(hash(1), &1, 7, 1).unwrap();
        maps.batch_end().unwrap();
    }
    assert!(store.cached_bytes().abs_diff(before) < before / 4, "{} bytes", store.cached_bytes());
    let mut writes = 0;
    let mut snapshot = Snapshot::default();
    maps.freeze(&mut snapshot).unwrap();
    snapshot
        .write(&mut |batch| {
            writes += batch.len();
            Ok(())
        })
        .unwrap();
    assert_eq!(writes, 101);
    let next = bench.write_out(&store, snapshot);
    let sum = |bench: &mut Bench, part: LocalPart| {
        let store = bench.store(0..8, &[part]);
        let mut maps = store.map_state::<u8, u64, u64>(table()).unwrap();
        maps.entries(hash(1), &1).unwrap().map(|(_, value)| *value).sum::<u64>()
    };
    let all: u64 = (0..100_000).sum();
    assert_eq!(sum(&mut bench, part), all);
    assert_eq!(sum(&mut bench, next), all - (0..100).sum::<u64>() - 500 + 1);
}
