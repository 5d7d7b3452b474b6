//! Maps with a TTL against a map of what is alive: whatever freezes, fails, is merged, evicted or restored in between.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::backend::BackendKind;
use crate::key::key_hash;
use crate::store::LocalPart;
use crate::testing::Bench;
use crate::ttl::Ttl;

fn hash(key: u8) -> KeyHash {
    key_hash(&key)
}

#[derive(Clone, Debug)]
enum Timed {
    Put(u8, u8),
    Get(u8, u8),
    Remove(u8, u8),
    Clear(u8),
    IsEmpty(u8),
    Entries(u8),
    Wait(i64),
    Freeze,
    Written,
    Failed,
    Restore,
}

fn timed() -> impl Strategy<Value = Timed> {
    let at = || (0u8..3, 0u8..12);
    prop_oneof![
        8 => at().prop_map(|(key, n)| Timed::Put(key, n)),
        5 => at().prop_map(|(key, n)| Timed::Get(key, n)),
        3 => at().prop_map(|(key, n)| Timed::Remove(key, n)),
        1 => (0u8..3).prop_map(Timed::Clear),
        2 => (0u8..3).prop_map(Timed::IsEmpty),
        2 => (0u8..3).prop_map(Timed::Entries),
        6 => (0i64..60).prop_map(Timed::Wait),
        4 => Just(Timed::Freeze),
        4 => Just(Timed::Written),
        1 => Just(Timed::Failed),
        1 => Just(Timed::Restore),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, max_shrink_iters: 20_000, ..ProptestConfig::default() })]
    /// Entries expire one by one, in whatever layer they lie.
    #[test]
    fn maps_with_a_ttl_are_maps_of_what_is_alive(
        ops in prop::collection::vec(timed(), 1..150),
        cache in prop_oneof![Just(0usize), Just(2_000), Just(1 << 20)],
    ) {
        const TTL: i64 = 100;
        let table = || Table::<u8, i64>::new("maps").ttl(Ttl::processing_time(Duration::from_millis(TTL as u64)));
        let mut bench = Bench::new(BackendKind::Memory, cache);
        let mut store = bench.store(0..8, &[]);
        let mut maps = store.map_state::<u8, u8, i64>(table()).unwrap();
        type Model = BTreeMap<(u8, u8), i64>;
        let (mut model, mut frozen, mut checkpoint) = (Model::new(), None::<(Snapshot, Model)>, None::<(LocalPart, Model)>);
        for op in ops {
            let now = bench.wall_ms.load(Ordering::Relaxed);
            let alive = |at: &i64| at + TTL > now;
            match op {
                Timed::Put(key, n) => {
                    maps.put(hash(key), &key, n, now).unwrap();
                    model.insert((key, n), now);
                }
                Timed::Get(key, n) => {
                    let expected = model.get(&(key, n)).filter(|at| alive(at));
                    prop_assert_eq!(maps.get(hash(key), &key, &n).unwrap(), expected);
                }
                Timed::Remove(key, n) => {
                    maps.remove(hash(key), &key, &n).unwrap();
                    model.remove(&(key, n));
                }
                Timed::Clear(key) => {
                    maps.clear(hash(key), &key);
                    model.retain(|(of, _), _| *of != key);
                }
                Timed::Entries(key) => {
                    let all: BTreeMap<u8, i64> = maps.entries(hash(key), &key).unwrap().map(|(n, at)| (*n, *at)).collect();
                    let expected = model.iter().filter(|((of, _), at)| *of == key && alive(at));
                    prop_assert_eq!(all, expected.map(|((_, n), at)| (*n, *at)).collect::<BTreeMap<u8, i64>>());
                }
                Timed::IsEmpty(key) => {
                    let empty = !model.iter().any(|((of, _), at)| *of == key && alive(at));
                    prop_assert_eq!(maps.is_empty(hash(key), &key).unwrap(), empty);
                }
                Timed::Wait(ms) => {
                    bench.wall_ms.fetch_add(ms, Ordering::Relaxed);
                    maps.batch_end().unwrap();
                }
                Timed::Freeze | Timed::Written => {
                    if let Some((snapshot, then)) = frozen.take() {
                        checkpoint = Some((bench.write_out(&store, snapshot), then));
                    }
                    if matches!(op, Timed::Freeze) {
                        let mut snapshot = Snapshot::default();
                        maps.freeze(&mut snapshot).unwrap();
                        frozen = Some((snapshot, model.clone()));
                    }
                }
                Timed::Failed => {
                    if let Some((snapshot, _)) = frozen.take() {
                        bench.fail(&store, snapshot);
                    }
                }
                Timed::Restore => {
                    frozen = None;
                    let parts: Vec<LocalPart> = checkpoint.iter().map(|(part, _)| part.clone()).collect();
                    store = bench.store(0..8, &parts);
                    maps = store.map_state(table()).unwrap();
                    model = checkpoint.as_ref().map(|(_, model)| model.clone()).unwrap_or_default();
                }
            }
        }
    }
}
