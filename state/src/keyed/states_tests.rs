//! Values that expire against a model with a clock; turning a TTL on and off over restores; folds and lists. (over 400 lines: one model, many cases of it)

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::backend::BackendKind;
use crate::key::key_hash;
use crate::schema::Schema;
use crate::store::LocalPart;
use crate::testing::{Bench, KINDS};
use crate::ttl::{Ttl, TtlTouch};

const TTL_MS: i64 = 100;

fn table(ttl: Option<Ttl>) -> Table<u8, String> {
    Table::new("last").ttl(ttl)
}

fn by_wall() -> Ttl {
    Ttl::processing_time(Duration::from_millis(TTL_MS as u64))
}

fn hash(key: u8) -> KeyHash {
    key_hash(&key)
}

/// What a checkpoint of one subtask has.
fn frozen(bench: &mut Bench, store: &Store, state: &mut impl KeyedState) -> LocalPart {
    let mut snapshot = Snapshot::default();
    state.freeze(&mut snapshot).unwrap();
    bench.write_out(store, snapshot)
}

/// The clock moves; states look at it once per batch.
fn wait(bench: &Bench, state: &mut impl KeyedState, ms: i64) {
    bench.wall_ms.fetch_add(ms, Ordering::Relaxed);
    state.batch_end().unwrap();
}

fn rows(store: &Store) -> usize {
    let mut n = 0;
    let mut count = |_: &[u8], _: &[u8]| {
        n += 1;
        std::ops::ControlFlow::Continue(())
    };
    store.backend().scan(&[], &[], &mut count).unwrap();
    n
}

#[test]
fn e33_a_ttl_turned_on_over_a_restore_counts_from_there_and_off_lets_all_live() {
    for kind in KINDS {
        let mut bench = Bench::new(kind, 0);
        let store = bench.store(0..8, &[]);
        let mut state = store.value_state(table(None)).unwrap();
        state.set(hash(1), &1, "old".to_owned()).unwrap();
        let without = frozen(&mut bench, &store, &mut state);

        // On: what is there lives, and expires one TTL after the restore.
        bench.wall_ms.fetch_add(1_000_000, Ordering::Relaxed);
        let store = bench.store(0..8, std::slice::from_ref(&without));
        let mut state = store.value_state(table(Some(by_wall()))).unwrap();
        state.set(hash(2), &2, "new".to_owned()).unwrap();
        wait(&bench, &mut state, TTL_MS - 1);
        assert_eq!(state.get(hash(1), &1).unwrap().map(String::as_str), Some("old"));
        let with = frozen(&mut bench, &store, &mut state);
        assert_eq!(with.tables[0].adopted_at, Some(1_001_000));
        wait(&bench, &mut state, 1);
        assert_eq!(state.get(hash(1), &1).unwrap(), None);
        assert_eq!(state.get(hash(2), &2).unwrap(), None);

        // Restored once more with it on: no second life.
        let store = bench.store(0..8, std::slice::from_ref(&with));
        let mut state = store.value_state(table(Some(by_wall()))).unwrap();
        assert_eq!(state.get(hash(1), &1).unwrap(), None);
        assert_eq!(state.get(hash(2), &2).unwrap(), None);

        // Off: it lives, with and without a time; then on again: one TTL more.
        bench.wall_ms.fetch_add(1_000_000, Ordering::Relaxed);
        let store = bench.store(0..8, std::slice::from_ref(&with));
        let mut state = store.value_state(table(None)).unwrap();
        assert_eq!(state.get(hash(1), &1).unwrap().map(String::as_str), Some("old"));
        assert_eq!(state.get(hash(2), &2).unwrap().map(String::as_str), Some("new"));
        let off = frozen(&mut bench, &store, &mut state);
        bench.wall_ms.fetch_add(1_000_000, Ordering::Relaxed);
        let store = bench.store(0..8, &[off]);
        let mut state = store.value_state(table(Some(by_wall()))).unwrap();
        wait(&bench, &mut state, TTL_MS - 1);
        assert_eq!(state.get(hash(2), &2).unwrap().map(String::as_str), Some("new"));
        wait(&bench, &mut state, 1);
        assert_eq!(state.get(hash(2), &2).unwrap(), None);
    }
}

#[test]
fn e33_by_event_time_it_counts_from_the_first_watermark_after_the_restore() {
    let mut bench = Bench::new(BackendKind::Memory, 1 << 20);
    let event = Some(Ttl::event_time(Duration::from_millis(TTL_MS as u64)));
    let store = bench.store(0..8, &[]);
    let mut state = store.value_state(table(None)).unwrap();
    state.set(hash(1), &1, "old".to_owned()).unwrap();
    let without = frozen(&mut bench, &store, &mut state);

    let store = bench.store(0..8, &[without]);
    let mut state = store.value_state(table(event)).unwrap();
    state.set(hash(2), &2, "before the first watermark".to_owned()).unwrap();
    store.event_time(5_000);
    wait(&bench, &mut state, 1_000_000);
    store.event_time(5_000 + TTL_MS - 1);
    wait(&bench, &mut state, 0);
    assert!(state.get(hash(1), &1).unwrap().is_some() && state.get(hash(2), &2).unwrap().is_some());
    let with = frozen(&mut bench, &store, &mut state);
    store.event_time(5_000 + TTL_MS);
    wait(&bench, &mut state, 0);
    assert_eq!(state.get(hash(1), &1).unwrap(), None);
    assert_eq!(state.get(hash(2), &2).unwrap(), None);

    // The checkpoint has kept where event time stood.
    let store = bench.store(0..8, &[with]);
    let mut state = store.value_state(table(event)).unwrap();
    assert!(state.get(hash(1), &1).unwrap().is_some());
    store.event_time(5_000 + TTL_MS);
    wait(&bench, &mut state, 0);
    assert_eq!(state.get(hash(1), &1).unwrap(), None);
}

#[test]
fn what_has_expired_leaves_the_backend() {
    for cache_bytes in [0, 1 << 20] {
        let mut bench = Bench::new(BackendKind::Memory, cache_bytes);
        let store = bench.store(0..8, &[]);
        let mut state = store.value_state(table(Some(by_wall()))).unwrap();
        for key in 0..100 {
            state.set(hash(key), &key, "x".to_owned()).unwrap();
        }
        frozen(&mut bench, &store, &mut state);
        wait(&bench, &mut state, TTL_MS / 2);
        state.set(hash(7), &7, "y".to_owned()).unwrap();
        wait(&bench, &mut state, TTL_MS / 2);
        frozen(&mut bench, &store, &mut state);
        assert_eq!(rows(&store), 1);
        let mut alive = Vec::new();
        state.for_each(|key, value| alive.push((*key, value.clone()))).unwrap();
        assert_eq!(alive, [(7, "y".to_owned())]);
    }
}

#[test]
fn what_expires_before_it_is_written_is_not_written() {
    let mut bench = Bench::new(BackendKind::Memory, 1 << 20);
    let store = bench.store(0..8, &[]);
    let mut state = store.value_state(table(Some(by_wall()))).unwrap();
    state.set(hash(1), &1, "x".to_owned()).unwrap();
    wait(&bench, &mut state, TTL_MS);
    let mut snapshot = Snapshot::default();
    state.freeze(&mut snapshot).unwrap();
    let mut writes = 0;
    snapshot
        .write(&mut |batch| {
            writes += batch.len();
            Ok(())
        })
        .unwrap();
    assert_eq!(writes, 0);
}

#[test]
fn folds_keep_what_was_added() {
    struct Mean;
    impl Fold<f64> for Mean {
        type Acc = (f64, u32);
        type Out = f64;
        fn create(&self) -> (f64, u32) {
            (0.0, 0)
        }
        fn add(&self, acc: &mut (f64, u32), value: &f64) {
            *acc = (acc.0 + value, acc.1 + 1);
        }
        fn result(&self, acc: &(f64, u32)) -> f64 {
            acc.0 / f64::from(acc.1)
        }
    }
    for kind in KINDS {
        let mut bench = Bench::new(kind, 0);
        let store = bench.store(0..8, &[]);
        let most = Table::<u8, u64>::new("most").ttl(by_wall());
        let mean = Table::<u8, (f64, u32)>::new("mean").ttl(by_wall());
        let mut maxima = store.reducing_state(most.clone(), |a: &mut u64, b| *a = (*a).max(b)).unwrap();
        let mut means = store.aggregating_state(mean.clone(), Mean).unwrap();
        for n in [3, 9, 6] {
            maxima.add(hash(1), &1, n).unwrap();
            means.add(hash(1), &1, &(n as f64)).unwrap();
        }
        assert_eq!(means.get(hash(2), &2).unwrap(), None);
        let mut snapshot = Snapshot::default();
        maxima.freeze(&mut snapshot).unwrap();
        means.freeze(&mut snapshot).unwrap();
        let part = bench.write_out(&store, snapshot);

        let store = bench.store(0..8, &[part]);
        let mut maxima = store.reducing_state(most, |a: &mut u64, b| *a = (*a).max(b)).unwrap();
        let mut means = store.aggregating_state(mean, Mean).unwrap();
        maxima.prefetch([(hash(1), &1)].into_iter()).unwrap();
        means.prefetch([(hash(1), &1)].into_iter()).unwrap();
        assert_eq!(maxima.get(hash(1), &1).unwrap(), Some(&9));
        assert_eq!(means.get(hash(1), &1).unwrap(), Some(6.0));
        wait(&bench, &mut maxima, TTL_MS);
        means.batch_end().unwrap();
        maxima.add(hash(1), &1, 2).unwrap();
        means.add(hash(1), &1, &2.0).unwrap();
        assert_eq!(maxima.get(hash(1), &1).unwrap(), Some(&2), "what expired is not added to");
        assert_eq!(means.get(hash(1), &1).unwrap(), Some(2.0));
        maxima.clear(hash(1), &1);
        means.clear(hash(1), &1);
        assert_eq!(maxima.get(hash(1), &1).unwrap(), None);
        assert_eq!(means.get(hash(1), &1).unwrap(), None);
    }
}

#[test]
fn elements_of_a_list_expire_one_by_one() {
    for kind in KINDS {
        let mut bench = Bench::new(kind, 0);
        let table = || Table::<u8, u32>::new("seen").ttl(by_wall());
        let store = bench.store(0..8, &[]);
        let mut lists = store.list_state(table()).unwrap();
        lists.push(hash(1), &1, 10).unwrap();
        wait(&bench, &mut lists, TTL_MS / 2);
        lists.extend(hash(1), &1, [11, 12]).unwrap();
        lists.extend(hash(2), &2, []).unwrap();
        assert_eq!(lists.get(hash(1), &1).unwrap(), [10, 11, 12]);
        assert!(lists.get(hash(2), &2).unwrap().is_empty());
        let part = frozen(&mut bench, &store, &mut lists);
        let store = bench.store(0..8, &[part]);
        let mut lists = store.list_state(table()).unwrap();
        wait(&bench, &mut lists, TTL_MS / 2);
        assert_eq!(lists.get(hash(1), &1).unwrap(), [11, 12]);
        lists.push(hash(1), &1, 13).unwrap();
        wait(&bench, &mut lists, TTL_MS / 2);
        assert_eq!(lists.get(hash(1), &1).unwrap(), [13]);
        lists.set(hash(1), &1, vec![1, 2]).unwrap();
        assert_eq!(lists.get(hash(1), &1).unwrap(), [1, 2]);
        lists.set(hash(1), &1, vec![]).unwrap();
        assert!(lists.get(hash(1), &1).unwrap().is_empty());
    }
}

#[test]
fn a_list_that_is_only_pushed_to_gives_back_what_has_expired() {
    for kind in KINDS {
        let mut bench = Bench::new(kind, 1 << 20);
        let store = bench.store(0..8, &[]);
        let mut lists = store.list_state(Table::<u8, u32>::new("seen").ttl(by_wall())).unwrap();
        for n in 0..10_000 {
            lists.push(hash(1), &1, n).unwrap();
            wait(&bench, &mut lists, 1);
        }
        let place = lists.cache.find(hash(1).in_group(), &1).unwrap().unwrap();
        let held = lists.cache.at(place).cell.value.elements.len();
        assert!(held <= 2 * TTL_MS as usize + 8, "{held} elements are kept");
        let alive: Vec<u32> = (10_000 - TTL_MS as u32 + 1..10_000).collect();
        assert_eq!(lists.get(hash(1), &1).unwrap(), alive);
    }
}

#[test]
fn e33_a_ttl_that_is_turned_off_drops_nothing_before_its_table_is_declared() {
    for kind in KINDS {
        let mut bench = Bench::new(kind, 0);
        let store = bench.store(0..8, &[]);
        let mut state = store.value_state(table(Some(by_wall()))).unwrap();
        state.set(hash(1), &1, "old".to_owned()).unwrap();
        let part = frozen(&mut bench, &store, &mut state);
        bench.wall_ms.fetch_add(10 * TTL_MS, Ordering::Relaxed);
        let store = bench.store(0..8, &[part]);
        store.value_state(Table::<u8, String>::new("declared first")).unwrap();
        // Writes every row anew, as a compaction may by now.
        let part = bench.savepoint(&store, Snapshot::default());
        let store = bench.store(0..8, &[part]);
        let mut state = store.value_state(table(None)).unwrap();
        assert_eq!(state.get(hash(1), &1).unwrap().map(String::as_str), Some("old"), "{kind:?}");
    }
}

#[test]
fn e33_a_list_without_times_expires_one_ttl_after_the_restore() {
    let mut bench = Bench::new(BackendKind::Memory, 0);
    let table = |ttl: Option<Ttl>| Table::<u8, u32>::new("seen").ttl(ttl);
    let store = bench.store(0..8, &[]);
    let mut lists = store.list_state(table(None)).unwrap();
    lists.push(hash(1), &1, 10).unwrap();
    let part = frozen(&mut bench, &store, &mut lists);
    bench.wall_ms.fetch_add(1_000_000, Ordering::Relaxed);
    let store = bench.store(0..8, &[part]);
    let mut lists = store.list_state(table(Some(by_wall()))).unwrap();
    wait(&bench, &mut lists, TTL_MS / 2);
    lists.push(hash(1), &1, 11).unwrap();
    assert_eq!(lists.get(hash(1), &1).unwrap(), [10, 11]);
    wait(&bench, &mut lists, TTL_MS / 2);
    assert_eq!(lists.get(hash(1), &1).unwrap(), [11]);
}

#[test]
fn lists_migrate_element_by_element() {
    let mut bench = Bench::new(BackendKind::Memory, 0);
    let store = bench.store(0..8, &[]);
    let mut lists = store.list_state(Table::<u8, u32>::new("seen")).unwrap();
    lists.extend(hash(1), &1, [1, 2]).unwrap();
    let part = frozen(&mut bench, &store, &mut lists);
    let store = bench.store(0..8, &[part]);
    let schema = Schema::<String>::after(Schema::<u32>::first(), |n| format!("n{n}"));
    let mut lists = store.list_state(Table::<u8, String>::new("seen").schema(schema)).unwrap();
    lists.push(hash(1), &1, "new".to_owned()).unwrap();
    assert_eq!(lists.get(hash(1), &1).unwrap(), ["n1", "n2", "new"]);
}

#[derive(Clone, Debug)]
enum Op {
    Set(u8, String),
    Append(u8),
    Change(u8),
    Get(u8),
    Clear(u8),
    Prefetch(u8, u8),
    Wait(i64),
    Freeze,
    Written,
    Failed,
    Restore,
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0u8..12;
    prop_oneof![
        6 => (key(), "[a-z]{0,3}").prop_map(|(key, value)| Op::Set(key, value)),
        3 => key().prop_map(Op::Append),
        3 => key().prop_map(Op::Change),
        6 => key().prop_map(Op::Get),
        2 => key().prop_map(Op::Clear),
        2 => (key(), key()).prop_map(|(a, b)| Op::Prefetch(a, b)),
        6 => (0i64..70).prop_map(Op::Wait),
        3 => Just(Op::Freeze),
        3 => Just(Op::Written),
        1 => Just(Op::Failed),
        1 => Just(Op::Restore),
    ]
}

type Model = BTreeMap<u8, (String, i64)>;

fn values_expire_as_the_model_does(kind: BackendKind, ops: Vec<Op>, cache: usize, touch: TtlTouch) {
    let mut bench = Bench::new(kind, cache);
    let ttl = Some(Ttl { touch, ..by_wall() });
    let mut store = bench.store(0..8, &[]);
    let mut state = store.value_state(table(ttl)).unwrap();
    let (mut model, mut pending, mut checkpoint) = (Model::new(), None, None);
    for op in ops {
        let now = bench.wall_ms.load(Ordering::Relaxed);
        model.retain(|_, (_, at)| now - *at < TTL_MS);
        match op {
            Op::Set(key, value) => {
                state.set(hash(key), &key, value.clone()).unwrap();
                model.insert(key, (value, now));
            }
            Op::Append(key) => {
                state.get_or_insert_with(hash(key), &key, || "new".to_owned()).unwrap().push('+');
                let held = model.entry(key).or_insert_with(|| ("new".to_owned(), now));
                held.0.push('+');
                held.1 = now;
            }
            Op::Change(key) => {
                let held = state.get_mut(hash(key), &key).unwrap();
                assert_eq!(held.as_deref(), model.get(&key).map(|(value, _)| value));
                if let (Some(held), Some(of_model)) = (held, model.get_mut(&key)) {
                    held.push('!');
                    of_model.0.push('!');
                    of_model.1 = now;
                }
            }
            Op::Get(key) => {
                assert_eq!(state.get(hash(key), &key).unwrap(), model.get(&key).map(|(value, _)| value));
                if touch == TtlTouch::ReadAndWrite {
                    model.entry(key).and_modify(|held| held.1 = now);
                }
            }
            Op::Clear(key) => {
                state.clear(hash(key), &key);
                model.remove(&key);
            }
            Op::Prefetch(a, b) => {
                state.prefetch([(hash(a), &a), (hash(b), &b)].into_iter()).unwrap();
            }
            Op::Wait(ms) => wait(&bench, &mut state, ms),
            Op::Freeze | Op::Written | Op::Failed => {
                if let Some((snapshot, held)) = pending.take() {
                    if matches!(op, Op::Failed) {
                        bench.fail(&store, snapshot);
                    } else {
                        checkpoint = Some((bench.write_out(&store, snapshot), held));
                    }
                }
                if matches!(op, Op::Freeze) {
                    let mut snapshot = Snapshot::default();
                    state.freeze(&mut snapshot).unwrap();
                    pending = Some((snapshot, model.clone()));
                }
            }
            Op::Restore => {
                pending = None;
                let parts: Vec<LocalPart> =
                    checkpoint.iter().map(|(part, _): &(LocalPart, _)| part.clone()).collect();
                store = bench.store(0..8, &parts);
                state = store.value_state(table(ttl)).unwrap();
                model = checkpoint.as_ref().map(|(_, model)| model.clone()).unwrap_or_default();
            }
        }
    }
    let now = bench.wall_ms.load(Ordering::Relaxed);
    model.retain(|_, (_, at)| now - *at < TTL_MS);
    let mut all = BTreeMap::new();
    state.for_each(|key, value| assert_eq!(all.insert(*key, value.clone()), None)).unwrap();
    assert_eq!(all, model.into_iter().map(|(key, (value, _))| (key, value)).collect::<BTreeMap<_, _>>());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, max_shrink_iters: 20_000, ..ProptestConfig::default() })]
    #[test]
    fn values_expire_over_memory(
        ops in prop::collection::vec(op(), 1..120),
        cache in prop_oneof![Just(0usize), Just(1 << 20)],
        reads in any::<bool>(),
    ) {
        let touch = if reads { TtlTouch::ReadAndWrite } else { TtlTouch::Write };
        values_expire_as_the_model_does(KINDS[0], ops, cache, touch);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 500, ..ProptestConfig::default() })]
    #[test]
    fn values_expire_over_rocks(ops in prop::collection::vec(op(), 1..120), reads in any::<bool>()) {
        let touch = if reads { TtlTouch::ReadAndWrite } else { TtlTouch::Write };
        values_expire_as_the_model_does(KINDS[1], ops, 0, touch);
    }
}
