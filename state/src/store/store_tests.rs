//! Stores over the memory backend: items, tables, freezing, restoring other groups, and what happens when it fails.

use std::sync::atomic::AtomicBool;

use serde_json::json;

use super::*;

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

#[test]
fn tables_are_frozen_and_restored_by_key_groups() {
    let folder = tempfile::tempdir().unwrap();
    let settled = Arc::new(Mutex::new(Vec::new()));
    let part = |groups: Range<u16>, name: &str| {
        let store = Store::open(config(folder.path(), groups.clone()), vec![]).unwrap();
        let table = store.register(TableMeta::raw("t", 1)).unwrap();
        let mut snapshot = Snapshot::default();
        for group in groups {
            let put = Some((key(group, table, "k"), vec![group as u8]));
            snapshot.add(Box::new(Piece { put, settled: settled.clone() }));
        }
        restored(store.write_out(snapshot, &folder.path().join(name)).unwrap())
    };
    let parts = vec![part(0..4, "cp-0"), part(4..8, "cp-1")];
    assert_eq!(*settled.lock().unwrap(), [true; 8]);

    // Three subtasks where there were two: the middle one takes from both.
    let store = Store::open(config(folder.path(), 3..6), parts.clone()).unwrap();
    assert_eq!(store.unclaimed(), ["t"]);
    assert_eq!(store.register(TableMeta::raw("t", 1)).unwrap(), 0);
    assert!(store.unclaimed().is_empty());
    assert_eq!(all(&store), [3, 4, 5].map(|g| (key(g, 0, "k"), vec![g as u8])));

    let error = Store::open(config(folder.path(), 3..6), parts[..1].to_vec()).unwrap_err().to_string();
    assert_eq!(
        error,
        "operator 'totals': key groups 3 to 6 are to be restored, but the checkpoint has no part with group 4; restore \
         from another checkpoint or savepoint"
    );
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
