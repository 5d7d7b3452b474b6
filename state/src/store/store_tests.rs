//! Stores over the memory backend: items, tables, freezing, restoring other groups, and what happens when it fails.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::tables::Now;
use super::*;
use crate::key_hash;
use crate::keyed::{KeyedState, Table};
use crate::ttl::Ttl;
use crate::value::Head;

fn config(folder: &Path, groups: Range<u16>) -> StoreConfig {
    StoreConfig {
        uid: "totals".to_owned(),
        subtask: usize::from(groups.start),
        key_groups: groups,
        groups: 8,
        backend: BackendKind::Memory,
        folder: folder.join("live"),
        resources: Resources::default(),
        cache_bytes: 1 << 20,
        wall_ms: Arc::new(|| 1_000),
    }
}

fn restored(part: LocalPart) -> RestoredPart {
    let LocalPart { subtask, key_groups, format, tables, items, files } = part;
    let folder = files.first().map_or(PathBuf::new(), |file| file.path.parent().unwrap().to_owned());
    RestoredPart { subtask, key_groups, format, folder, tables, items }
}

fn key(group: u16, table: u16, key: &str) -> Vec<u8> {
    [&keyspace::prefix(KeyGroup(group), table), key.as_bytes()].concat()
}

fn all(store: &Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    let mut take = |key: &[u8], value: &[u8]| {
        all.push((key.to_vec(), value.to_vec()));
        std::ops::ControlFlow::Continue(())
    };
    store.backend().scan(&[], &[], &mut take).unwrap();
    all
}

/// A piece that puts one value, or fails; says how it was settled.
struct Piece {
    put: Option<(Vec<u8>, Vec<u8>)>,
    settled: Arc<Mutex<Vec<bool>>>,
}

impl Frozen for Piece {
    fn write(
        &mut self,
        out: &mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let (key, value) =
            self.put.take().ok_or_else(|| StateError::Cancelled { uid: "totals".to_owned() })?;
        let mut batch = WriteBatch::default();
        batch.put(&key, &value);
        out(&batch)
    }
    fn settled(self: Box<Self>, written: bool) {
        self.settled.lock().unwrap().push(written);
    }
}

#[test]
fn an_operator_with_items_only_has_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(config(folder.path(), 0..4), vec![]).unwrap();
    assert!(!store.is_restored() && store.restored_items("offsets").is_empty());
    let mut snapshot = Snapshot::default();
    assert!(snapshot.is_empty());
    snapshot.item("offsets", "p0", json!(17));
    snapshot.item("offsets", "p1", json!(18));
    let part = store.write_out(snapshot, &folder.path().join("cp1")).unwrap();
    assert!(part.files.is_empty() && part.tables.is_empty());
    assert!(!folder.path().join("cp1").exists());

    let again = Store::open(config(folder.path(), 4..8), vec![restored(part)]).unwrap();
    assert!(again.is_restored());
    assert_eq!(
        again.restored_items("offsets"),
        [(0, "p0".to_owned(), json!(17)), (0, "p1".to_owned(), json!(18))]
    );
}

/// Two subtasks, each with a value in each of its groups and tables declared in another order, frozen.
fn two_parts(folder: &Path, backend: BackendKind, portable: bool) -> Vec<RestoredPart> {
    let part = |groups: Range<u16>, tables: [&str; 2]| {
        let name = format!("{backend:?}-{portable}-{}", groups.start);
        let folder = folder.join(&name);
        fs::create_dir(&folder).unwrap();
        let config = StoreConfig { backend, ..config(&folder, groups.clone()) };
        let store = Store::open(config, vec![]).unwrap();
        let settled = Arc::new(Mutex::new(Vec::new()));
        let mut snapshot = Snapshot::default();
        let n = usize::from(groups.end - groups.start) * 2;
        for name in tables {
            let table = store.register(TableMeta::raw(name, 1)).unwrap();
            for group in groups.clone() {
                let put = Some((key(group, table, name), vec![group as u8]));
                snapshot.add(Box::new(Piece { put, settled: settled.clone() }));
            }
        }
        let part = if portable {
            store.write_portable(snapshot, &folder.join("state.kv"))
        } else {
            store.write_out(snapshot, &folder.join("cp"))
        };
        assert_eq!(*settled.lock().unwrap(), vec![true; n]);
        restored(part.unwrap())
    };
    vec![part(0..4, ["s", "t"]), part(4..8, ["t", "s"])]
}

#[test]
fn state_moves_between_backends_and_parallelisms() {
    let folder = tempfile::tempdir().unwrap();
    let kinds = [BackendKind::Memory, BackendKind::Rocks];
    let mut n = 0;
    for (from, portable) in [(kinds[0], false), (kinds[0], true), (kinds[1], false), (kinds[1], true)] {
        let parts = two_parts(folder.path(), from, portable);
        // The same, one where there were two, one of three, and a part that another one has numbered otherwise.
        for (to, groups) in kinds.iter().flat_map(|to| [0..4, 4..8, 0..8, 3..6, 5..6].map(|g| (*to, g))) {
            n += 1;
            let live = folder.path().join(format!("live-{n}"));
            let config = StoreConfig { backend: to, folder: live, ..config(folder.path(), groups.clone()) };
            let store = Store::open(config, parts.clone()).unwrap();
            assert_eq!(store.unclaimed().len(), 2);
            let ids = ["s", "t"].map(|name| (name, store.register(TableMeta::raw(name, 1)).unwrap()));
            let mut wanted: Vec<_> = ids
                .iter()
                .flat_map(|(name, id)| groups.clone().map(move |g| (key(g, *id, name), vec![g as u8])))
                .collect();
            wanted.sort();
            assert_eq!(all(&store), wanted, "{from:?} (portable: {portable}) to {to:?}, groups {groups:?}");
        }
        let error = Store::open(config(folder.path(), 3..6), parts[..1].to_vec()).unwrap_err().to_string();
        assert_eq!(
            error,
            "operator 'totals': key groups 3 to 6 are to be restored, but the checkpoint has no part with group 4; \
             restore from another checkpoint or savepoint"
        );
    }
}

#[test]
fn an_unclaimed_table_stays_until_it_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(config(folder.path(), 0..8), vec![]).unwrap();
    let (a, b) =
        (store.register(TableMeta::raw("a", 1)).unwrap(), store.register(TableMeta::raw("b", 1)).unwrap());
    let mut batch = WriteBatch::default();
    [a, b].iter().for_each(|table| batch.put(&key(7, *table, "k"), b"1"));
    store.backend().write(&batch).unwrap();
    let first = store.write_out(Snapshot::default(), &folder.path().join("cp1")).unwrap();

    let store = Store::open(config(folder.path(), 0..8), vec![restored(first)]).unwrap();
    store.register(TableMeta::raw("b", 1)).unwrap();
    assert_eq!(store.unclaimed(), ["a"]);
    let second = store.write_out(Snapshot::default(), &folder.path().join("cp2")).unwrap();
    let names: Vec<&str> = second.tables.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["a", "b"], "nothing is lost by not being declared");

    let store = Store::open(config(folder.path(), 0..8), vec![restored(second)]).unwrap();
    store.register(TableMeta::raw("b", 1)).unwrap();
    store.drop_table("a").unwrap();
    store.drop_table("nobody").unwrap();
    assert_eq!(all(&store), [(key(7, b, "k"), b"1".to_vec())]);
    let third = store.write_portable(Snapshot::default(), &folder.path().join("save")).unwrap();
    assert_eq!(third.tables.len(), 1);
    assert_eq!(third.files[0].path, folder.path().join("save"));
}

#[test]
fn every_piece_hears_of_a_failure_and_of_a_snapshot_nobody_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(config(folder.path(), 0..8), vec![]).unwrap();
    store.register(TableMeta::raw("t", 1)).unwrap();
    let settled = Arc::new(Mutex::new(Vec::new()));
    let snapshot = || {
        let mut snapshot = Snapshot::default();
        let put = Some((key(0, 0, "k"), vec![1]));
        snapshot.add(Box::new(Piece { put, settled: settled.clone() }));
        snapshot.add(Box::new(Piece { put: None, settled: settled.clone() }));
        snapshot
    };
    store.write_out(snapshot(), &folder.path().join("cp1")).unwrap_err();
    drop(snapshot());
    store.write_portable(snapshot(), &folder.path().join("save")).unwrap_err();
    assert_eq!(*settled.lock().unwrap(), [false; 6]);
}

#[test]
fn expired_values_are_dropped_when_files_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let fresh = Arc::new(AtomicBool::new(true));
    let clock = fresh.clone();
    let wall_ms = Arc::new(move || if clock.load(Ordering::Relaxed) { 1_000 } else { 2_000 });
    let store = Store::open(StoreConfig { wall_ms, ..config(folder.path(), 0..8) }, vec![]).unwrap();
    let ttl = Some(Ttl::processing_time(std::time::Duration::from_millis(500)));
    let table = store.register(TableMeta { ttl, ..TableMeta::raw("t", 1) }).unwrap();
    let value = |touched| {
        let mut bytes = Vec::new();
        Head { version: 1, codec: crate::codec::CodecId::BINCODE, touched }.write(&mut bytes);
        bytes
    };
    let mut batch = WriteBatch::default();
    batch.put(&key(0, table, "old"), &value(Some(1_400)));
    batch.put(&key(0, table, "new"), &value(Some(1_501)));
    batch.put(&key(0, table, "without"), &value(None));
    store.backend().write(&batch).unwrap();
    store.write_out(Snapshot::default(), &folder.path().join("cp1")).unwrap();
    assert_eq!(all(&store).len(), 3);
    fresh.store(false, Ordering::Relaxed);
    store.write_out(Snapshot::default(), &folder.path().join("cp2")).unwrap();
    let keys: Vec<Vec<u8>> = all(&store).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [key(0, table, "new"), key(0, table, "without")]);
}

#[test]
fn event_time_never_goes_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(config(folder.path(), 0..8), vec![]).unwrap();
    store.event_time(50);
    store.event_time(40);
    assert_eq!(store.0.clocks.now(), Now { wall: 1_000, event: 50 });
}

#[test]
fn the_end_of_the_input_is_no_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(config(folder.path(), 0..8), vec![]).unwrap();
    store.event_time(50);
    // Timers that fire in the end find things as they would be at their time; that is not how far the input had come.
    store.event_time_passes(70);
    store.event_time_passes(i64::MAX);
    store.event_time(i64::MAX);
    assert_eq!(store.0.clocks.now().event, 70);
    let hour = Ttl::event_time(Duration::from_secs(3600));
    let mut state = store.value_state::<u64, u64>(Table::new("t").ttl(hour)).unwrap();
    state.set(key_hash(&1u64), &1, 1).unwrap();
    let mut snapshot = Snapshot::default();
    state.freeze(&mut snapshot).unwrap();
    let items = snapshot.take_items();
    assert_eq!(items["weir.store"]["event_time"], 50);
}
