//! What is written is what is set, whatever was set, fired and failed in between; the layout of a row is frozen.

use super::super::Timers;
use super::*;
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_engine::EventTime;
use weir_state::backend::{BackendKind, Resources};
use weir_state::store::{LocalPart, RestoredPart, StoreConfig};
use weir_state::{KEY_GROUPS, key_groups_of};

/// A folder that is gone after the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("weir-timers-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn store(folder: &Folder, subtask: usize, parallelism: usize, restored: &[RestoredPart]) -> Store {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let config = StoreConfig {
        uid: "timed".to_owned(),
        subtask,
        key_groups: key_groups_of(subtask, parallelism, KEY_GROUPS),
        groups: KEY_GROUPS,
        backend: BackendKind::Memory,
        folder: folder.0.join(format!("db-{}", NEXT.fetch_add(1, Ordering::Relaxed))),
        resources: Resources::default(),
        cache_bytes: usize::MAX,
        wall_ms: Arc::new(|| 0),
    };
    Store::open(config, restored.to_vec()).unwrap()
}

fn save(store: &Store, timers: &mut Timers<u64>, folder: &Folder) -> RestoredPart {
    let mut snapshot = Snapshot::default();
    timers.freeze(&mut snapshot);
    write(store, snapshot, folder)
}

fn write(store: &Store, snapshot: Snapshot, folder: &Folder) -> RestoredPart {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let folder = folder.0.join(format!("chk-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    let LocalPart { subtask, key_groups, format, tables, items, .. } =
        store.write_out(snapshot, &folder).unwrap();
    RestoredPart { subtask, key_groups, format, folder, tables, items }
}

fn set(timers: &mut Timers<u64>, key: u64, time: i64) {
    timers.set(key_hash(&key), &key, EventTime(time));
}

fn delete(timers: &mut Timers<u64>, key: u64, time: i64) {
    timers.delete(key_hash(&key), &key, EventTime(time));
}

fn fire(timers: &mut Timers<u64>, until: i64) -> Vec<(i64, u64)> {
    timers.reach(until);
    timers.fire_until(until);
    let fired = std::iter::from_fn(|| timers.next_due()).map(|due| (due.time.0, due.key)).collect();
    timers.rest();
    fired
}

fn open(store: &Store) -> Timers<u64> {
    Timers::open(store, "timers").unwrap()
}

#[test]
fn the_layout_of_a_row_is_frozen() {
    let shared =
        Shared::<String> { uid: String::new(), name: "timers", id: 0x0304, returned: Mutex::default() };
    let key = "a".to_owned();
    let group = key_hash(&key).group(KEY_GROUPS).0;
    let place = Place { time: -1, number: 5 << GROUP_BITS | u64::from(group) };
    let row = shared.key(place, &key).unwrap();
    assert_eq!(group, 37);
    assert_eq!(row, [0, 37, 3, 4, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, b'a', 0, 1]);
    let value = 5u64.to_be_bytes();
    assert_eq!(shared.read(group, &row, &value).unwrap(), (place, (key_hash(&key), key)));
    for (row, value) in [(&row[..11], &value[..]), (&row[..], &value[..7]), (&row[..12], &value[..])] {
        assert!(shared.read(group, row, value).unwrap_err().to_string().contains("'timers'"));
    }
}

#[test]
fn timers_of_one_time_keep_their_order_over_a_restore() {
    let folder = Folder::new();
    let first = store(&folder, 0, 1, &[]);
    let mut timers = open(&first);
    let keys = [9, 2, 7, 4, 30, 1];
    keys.iter().for_each(|key| set(&mut timers, *key, 50));
    let part = save(&first, &mut timers, &folder);
    let mut restored = open(&store(&folder, 0, 1, &[part]));
    set(&mut restored, 0, 50);
    set(&mut restored, 7, 50);
    let fired: Vec<_> = fire(&mut restored, 50).into_iter().map(|(_, key)| key).collect();
    assert_eq!(fired, [9, 2, 7, 4, 30, 1, 0]);
}

#[test]
fn what_comes_and_goes_between_two_barriers_leaves_nothing() {
    let folder = Folder::new();
    let store = store(&folder, 0, 1, &[]);
    let mut timers = open(&store);
    save(&store, &mut timers, &folder);
    for round in 0..100 {
        (0..100).for_each(|key| set(&mut timers, key, round));
        assert_eq!(fire(&mut timers, round).len(), 100);
        assert!(timers.changes.as_ref().unwrap().set.len() <= FEW + 100);
    }
    let mut snapshot = Snapshot::default();
    timers.freeze(&mut snapshot);
    assert!(snapshot.is_empty());
}

/// The rows of the backend.
fn rows(store: &Store) -> usize {
    let mut rows = 0;
    let mut count = |_: &[u8], _: &[u8]| {
        rows += 1;
        ControlFlow::Continue(())
    };
    store.backend().scan(&[], &[], &mut count).unwrap();
    rows
}

#[test]
fn what_was_not_written_goes_with_the_next_barrier() {
    let folder = Folder::new();
    let first = store(&folder, 0, 1, &[]);
    let mut timers = open(&first);
    set(&mut timers, 1, 10);
    set(&mut timers, 2, 10);
    save(&first, &mut timers, &folder);
    assert_eq!(rows(&first), 2);

    // Given up before it was written, and one after it was, in the other order.
    delete(&mut timers, 1, 10);
    set(&mut timers, 3, 10);
    let mut given_up = Snapshot::default();
    timers.freeze(&mut given_up);
    set(&mut timers, 1, 10);
    delete(&mut timers, 3, 10);
    set(&mut timers, 4, 10);
    let mut given_up_too = Snapshot::default();
    timers.freeze(&mut given_up_too);
    drop(given_up_too);
    drop(given_up);

    set(&mut timers, 5, 10);
    let part = save(&first, &mut timers, &folder);
    assert_eq!(rows(&first), 4);
    let mut restored = open(&store(&folder, 0, 1, &[part]));
    assert_eq!(fire(&mut restored, 10), fire(&mut timers, 10));
}

#[derive(Clone, Debug)]
enum Step {
    Set(u64, i64),
    Delete(u64, i64),
    Fire(i64),
    /// The snapshot is written, or lost.
    Barrier(bool),
    /// Everything begins again from the last snapshot, with this many subtasks.
    Restart(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..40u64, 0..30i64).prop_map(|(k, t)| Step::Set(k, t)),
        3 => (0..40u64, 0..30i64).prop_map(|(k, t)| Step::Delete(k, t)),
        2 => (0..30i64).prop_map(Step::Fire),
        2 => any::<bool>().prop_map(Step::Barrier),
        1 => (1..5usize).prop_map(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any number of subtasks, restored any number of times, have the timers of the last snapshot and fire them in order.
    #[test]
    fn agree_with_a_set(steps in prop::collection::vec(step(), 0..120)) {
        let folder = Folder::new();
        let begin = |parallelism: usize, parts: &[RestoredPart]| -> Vec<(Store, Timers<u64>)> {
            let all = (0..parallelism).map(|subtask| store(&folder, subtask, parallelism, parts));
            all.map(|store| { let timers = open(&store); (store, timers) }).collect()
        };
        let mut subtasks = begin(2, &[]);
        let owner = |key: u64, n: usize| key_hash(&key).group(KEY_GROUPS).subtask(KEY_GROUPS, n);
        let mut model: Vec<(i64, u64)> = Vec::new();
        let mut saved = (Vec::new(), Vec::new());
        for step in steps {
            let n = subtasks.len();
            match step {
                Step::Set(key, time) => {
                    set(&mut subtasks[owner(key, n)].1, key, time);
                    if !model.contains(&(time, key)) {
                        model.push((time, key));
                    }
                }
                Step::Delete(key, time) => {
                    delete(&mut subtasks[owner(key, n)].1, key, time);
                    model.retain(|timer| *timer != (time, key));
                }
                Step::Fire(until) => {
                    let mut fired: Vec<_> = subtasks.iter_mut().flat_map(|(_, timers)| {
                        let fired = fire(timers, until);
                        assert!(fired.is_sorted_by_key(|(time, _)| *time));
                        fired
                    }).collect();
                    fired.sort_unstable();
                    let mut due: Vec<_> = model.extract_if(.., |t| t.0 <= until).collect();
                    due.sort_unstable();
                    prop_assert_eq!(fired, due);
                }
                Step::Barrier(true) => {
                    let parts = subtasks.iter_mut().map(|(store, timers)| save(store, timers, &folder)).collect();
                    saved = (parts, model.clone());
                }
                Step::Barrier(false) => {
                    subtasks.iter_mut().for_each(|(_, timers)| timers.freeze(&mut Snapshot::default()));
                }
                Step::Restart(parallelism) => {
                    subtasks = begin(parallelism, &saved.0);
                    model = saved.1.clone();
                }
            }
            prop_assert_eq!(subtasks.iter().map(|(_, t)| t.len()).sum::<usize>(), model.len());
        }
    }
}
