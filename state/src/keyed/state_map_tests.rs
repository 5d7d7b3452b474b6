//! Maps over restores: other backends, other parallelisms, other versions; and what freezing costs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::*;
use crate::backend::BackendKind;
use crate::key::{key_groups_of, key_hash};
use crate::schema::Schema;
use crate::store::LocalPart;
use crate::testing::{Bench, KINDS};

/// What each key is to have, over all subtasks.
fn held(
    bench: &mut Bench,
    parts: &[LocalPart],
    parallelism: usize,
) -> (BTreeMap<String, u64>, Vec<LocalPart>) {
    let mut all = BTreeMap::new();
    let mut next = Vec::new();
    for subtask in 0..parallelism {
        let store = bench.store(key_groups_of(subtask, parallelism, 8), parts);
        let mut map = store.state_map(Table::<String, u64>::new("sums")).unwrap();
        map.for_each(|key, n| assert_eq!(all.insert(key.clone(), *n), None, "{key} is with two subtasks"))
            .unwrap();
        // One more each, so that the next generation of files has work.
        let keys: Vec<String> = all
            .keys()
            .filter(|key| store.key_groups().contains(&key_hash(key).group(8).0))
            .cloned()
            .collect();
        map.prefetch(keys.iter().map(|key| (key_hash(key), key))).unwrap();
        for key in keys {
            *map.get_or_insert_with(key_hash(&key), key, || 0).unwrap() += 1;
        }
        let mut snapshot = Snapshot::default();
        map.freeze(&mut snapshot).unwrap();
        next.push(if subtask % 2 == 0 {
            bench.write_out(&store, snapshot)
        } else {
            bench.savepoint(&store, snapshot)
        });
    }
    (all, next)
}

#[test]
fn maps_move_between_parallelisms_and_backends() {
    let mut bench = Bench::new(BackendKind::Memory, 1 << 20);
    let store = bench.store(0..8, &[]);
    let mut map = store.state_map(Table::<String, u64>::new("sums")).unwrap();
    let mut wanted = BTreeMap::new();
    for n in 0..2_000_u64 {
        let key = format!("user-{n}");
        map.insert(key_hash(&key), key.clone(), n).unwrap();
        wanted.insert(key, n);
    }
    let mut snapshot = Snapshot::default();
    map.freeze(&mut snapshot).unwrap();
    let mut parts = vec![bench.write_out(&store, snapshot)];
    for (round, parallelism) in [2, 3, 7, 1].into_iter().enumerate() {
        bench.backend = KINDS[(round + 1) % 2];
        bench.cache_bytes = if round == 2 { 0 } else { 1 << 20 };
        let (all, next) = held(&mut bench, &parts, parallelism);
        assert_eq!(all, wanted, "parallelism {parallelism}");
        wanted.values_mut().for_each(|n| *n += 1);
        parts = next;
    }
}

#[test]
fn values_of_older_versions_are_brought_up_to_date_when_read() {
    for kind in KINDS {
        let mut bench = Bench::new(kind, 0);
        let store = bench.store(0..8, &[]);
        let mut old = store.state_map(Table::<u8, i32>::new("sums")).unwrap();
        [1u8, 2].iter().for_each(|key| old.insert(key_hash(key), *key, -7).unwrap());
        let mut snapshot = Snapshot::default();
        old.freeze(&mut snapshot).unwrap();
        let first = bench.write_out(&store, snapshot);

        let schema = || Schema::<(i64, u8)>::after(Schema::<i32>::first(), |sum| (sum.into(), 0));
        let store = bench.store(0..8, std::slice::from_ref(&first));
        let table = Table::<u8, (i64, u8)>::new("sums").schema(schema()).codec(CodecId::POSTCARD);
        let mut map = store.state_map(table.clone()).unwrap();
        assert_eq!(map.get(key_hash(&1u8), &1).unwrap(), Some(&(-7, 0)));
        map.get_or_insert_with(key_hash(&2u8), 2, || (0, 0)).unwrap().1 = 9;
        let mut snapshot = Snapshot::default();
        map.freeze(&mut snapshot).unwrap();
        let second = bench.write_out(&store, snapshot);

        // Key 1 is still as version 1 wrote it, key 2 as version 2, in another codec.
        let store = bench.store(0..8, std::slice::from_ref(&second));
        let mut map = store.state_map(table).unwrap();
        assert_eq!(map.get(key_hash(&1u8), &1).unwrap(), Some(&(-7, 0)));
        assert_eq!(map.get(key_hash(&2u8), &2).unwrap(), Some(&(-7, 9)));

        let shorter = Schema::<(i64, u8)>::starting_at(2);
        let store = bench.store(0..8, &[second]);
        let error =
            store.state_map(Table::<u8, (i64, u8)>::new("sums").schema(shorter)).unwrap_err().to_string();
        assert!(
            error.starts_with("operator 'totals', table 'sums': the checkpoint may hold values of version 1"),
            "{error}"
        );
    }
}

#[test]
fn a_value_of_another_type_is_refused_by_name() {
    let mut bench = Bench::new(BackendKind::Memory, 0);
    let store = bench.store(0..8, &[]);
    let mut map = store.state_map(Table::<u8, u8>::new("sums")).unwrap();
    map.insert(key_hash(&1u8), 1, 1).unwrap();
    let mut snapshot = Snapshot::default();
    map.freeze(&mut snapshot).unwrap();
    let part = bench.write_out(&store, snapshot);
    let store = bench.store(0..8, &[part]);
    let mut map = store.state_map(Table::<u8, String>::new("sums")).unwrap();
    let error = map.get(key_hash(&1u8), &1).unwrap_err().to_string();
    let wanted = "operator 'totals', table 'sums': cannot decode a value of version 1; if the type has changed";
    assert!(error.starts_with(wanted) && error.contains("Schema::after"), "{error}");
}

#[test]
fn declarations_that_cannot_work_are_refused() {
    let mut bench = Bench::new(BackendKind::Memory, 0);
    let store = bench.store(0..8, &[]);
    let refused = |table: Table<u8, u8>| store.state_map(table).unwrap_err().to_string();
    let table = || Table::<u8, u8>::new("sums");
    assert!(
        refused(table().ttl(crate::ttl::Ttl::event_time(Duration::from_secs(1)))).contains("honours no TTL")
    );
    assert!(refused(table().codec(CodecId::RAW)).contains("use bincode or postcard"));
    assert!(refused(table().schema(Schema::starting_at(64))).contains("versions are 1 to 63"));
}

#[test]
fn freezing_a_million_dirty_entries_takes_no_time_per_entry() {
    let mut bench = Bench::new(BackendKind::Memory, 1 << 30);
    let store = bench.store(0..8, &[]);
    let mut map = store.state_map(Table::<u64, u64>::new("sums")).unwrap();
    for key in 0..1_000_000_u64 {
        *map.get_or_insert_with(key_hash(&key), key, || 0).unwrap() += 1;
    }
    let mut snapshot = Snapshot::default();
    let begun = Instant::now();
    map.freeze(&mut snapshot).unwrap();
    assert!(begun.elapsed() < Duration::from_millis(20), "{:?}", begun.elapsed());
    assert_eq!(map.cached(), 1_000_000);
    assert_eq!(map.get(key_hash(&7u64), &7).unwrap(), Some(&1));
}

#[test]
fn memory_stays_within_the_budget() {
    for (kind, budget) in [(KINDS[0], 4 << 20), (KINDS[1], 4 << 20), (KINDS[0], 40 << 20)] {
        let mut bench = Bench::new(kind, budget);
        let store = bench.store(0..8, &[]);
        let mut map = store.state_map(Table::<u64, [u64; 4]>::new("sums")).unwrap();
        for key in 0..200_000_u64 {
            map.get_or_insert_with(key_hash(&key), key, || [0; 4]).unwrap()[0] = key;
            if key % 1_000 == 999 {
                map.batch_end().unwrap();
                assert!(store.cached_bytes() <= budget + budget / 10, "{} of {budget}", store.cached_bytes());
            }
        }
        let tables = map.cache.live.bytes() + map.cache.settled.bytes();
        assert!(tables <= budget + budget / 10, "{tables} of {budget}");
        assert_eq!(map.cached() == 200_000, budget > 20 << 20);
        assert!(map.cached() * 49 * 2 > budget.min(200_000 * 49), "the budget is used: {}", map.cached());
        for key in (0..200_000_u64).step_by(997) {
            assert_eq!(map.get(key_hash(&key), &key).unwrap().map(|v| v[0]), Some(key));
        }
        drop(map);
        assert_eq!(store.cached_bytes(), 0);
    }
}

#[test]
fn what_settles_bit_by_bit_is_spread_over_classes_too() {
    let mut bench = Bench::new(KINDS[0], 4 << 20);
    let store = bench.store(0..8, &[]);
    let mut map = store.state_map(Table::<u64, u64>::new("sums")).unwrap();
    for barrier in 0..40_u64 {
        for key in barrier * 500..(barrier + 1) * 500 {
            map.insert(key_hash(&key), key, key).unwrap();
        }
        let mut snapshot = Snapshot::default();
        map.freeze(&mut snapshot).unwrap();
        bench.write_out(&store, snapshot);
        map.batch_end().unwrap();
    }
    map.batch_end().unwrap();
    let settled = &map.cache.settled;
    assert!(settled.len() >= 19_000, "{map:?}");
    assert_eq!(settled.classes(), 64);
    assert!(settled.bytes() < settled.len() * 18 * 2, "{map:?}");
}

#[test]
fn large_values_are_counted() {
    let budget = 4 << 20;
    let mut bench = Bench::new(KINDS[1], budget);
    let store = bench.store(0..8, &[]);
    let mut map = store.state_map(Table::<u64, String>::new("texts")).unwrap();
    for key in 0..20_000_u64 {
        map.insert(key_hash(&key), key, "x".repeat(1_000)).unwrap();
        if key % 100 == 99 {
            map.batch_end().unwrap();
            let held = map.cached() * 1_000;
            assert!(held <= budget + budget / 8, "{held} of {budget}");
        }
    }
    assert!(map.cached() > 2_000, "{}", map.cached());
}

#[test]
fn a_wait_for_a_snapshot_hears_that_the_task_is_cancelled() {
    let mut bench = Bench::new(BackendKind::Memory, 0);
    let store = bench.store(0..8, &[]);
    let mut map = store.state_map(Table::<u64, u64>::new("sums")).unwrap();
    map.insert(key_hash(&1u64), 1, 1).unwrap();
    let mut first = Snapshot::default();
    map.freeze(&mut first).unwrap();
    assert!(!store.is_settled());
    let canceller = store.clone();
    std::thread::scope(|threads| {
        threads.spawn(move || canceller.cancel());
        let error = map.freeze(&mut Snapshot::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "operator 'totals': cancelled while waiting for a snapshot to be written"
        );
    });
    drop(first);
    assert!(store.is_settled());
    map.freeze(&mut Snapshot::default()).unwrap();
}

#[test]
fn what_is_frozen_is_as_it_was_at_the_barrier_whatever_the_task_does_meanwhile() {
    for (kind, budget) in [(KINDS[0], 1 << 30), (KINDS[1], 1 << 20)] {
        let mut bench = Bench::new(kind, budget);
        let store = bench.store(0..8, &[]);
        let mut map = store.state_map(Table::<u32, String>::new("sums")).unwrap();
        let mut model = BTreeMap::new();
        let mut seed = 1_u64;
        let mut work = |map: &mut StateMap<u32, String>, model: &mut BTreeMap<u32, String>, n: usize| {
            for i in 0..n {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let key = (seed >> 33) as u32 % 20_000;
                if seed >> 60 == 0 {
                    map.remove(key_hash(&key), &key);
                    model.remove(&key);
                } else {
                    let value = map.get_or_insert_with(key_hash(&key), key, String::new).unwrap();
                    value.push('x');
                    assert_eq!(value.len(), {
                        let of_model = model.entry(key).or_default();
                        of_model.push('x');
                        of_model.len()
                    });
                }
                if i % 1_000 == 999 {
                    map.batch_end().unwrap();
                }
            }
        };
        work(&mut map, &mut model, 30_000);
        for _ in 0..6 {
            let mut snapshot = Snapshot::default();
            map.freeze(&mut snapshot).unwrap();
            let at_barrier = model.clone();
            let (path, writer) = (bench.path(), store.clone());
            let part = std::thread::scope(|threads| {
                let writing = threads.spawn(move || writer.write_out(snapshot, &path).unwrap());
                while !writing.is_finished() {
                    work(&mut map, &mut model, 2_000);
                }
                writing.join().unwrap()
            });
            let mut kept = BTreeMap::new();
            let restored = bench.store(0..8, &[part]);
            let mut again = restored.state_map(Table::<u32, String>::new("sums")).unwrap();
            again.for_each(|key, value| drop(kept.insert(*key, value.clone()))).unwrap();
            assert!(kept == at_barrier, "{kind:?}");
        }
        let mut all = BTreeMap::new();
        map.for_each(|key, value| drop(all.insert(*key, value.clone()))).unwrap();
        assert!(all == model, "{kind:?}");
    }
}
