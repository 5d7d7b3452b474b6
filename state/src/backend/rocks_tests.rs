//! RocksDB against the memory backend, the edges of prefixes, tombstones beside a scan, frozen files and their damage.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::MemoryBackend;
use super::*;
use crate::keyspace::after_prefix;

fn never() -> Droppable {
    Arc::new(|| Box::new(|_, _| false))
}

fn small() -> Resources {
    Resources::new(4 << 20, 4 << 20)
}

fn rocks(folder: &Path) -> RocksBackend {
    RocksBackend::create(&folder.join("db"), &small(), never()).unwrap()
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn scanned(backend: &dyn StateBackend, from: &[u8], to: &[u8]) -> Pairs {
    let mut all = Pairs::new();
    let mut last = None::<Vec<u8>>;
    let mut take = |key: &[u8], value: &[u8]| {
        assert!(last.as_deref().is_none_or(|last| last < key), "in order");
        last = Some(key.to_vec());
        all.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    };
    backend.scan(from, to, &mut take).unwrap();
    all
}

fn keys_of(backend: &dyn StateBackend, prefix: &[u8]) -> Vec<Vec<u8>> {
    scanned(backend, prefix, &after_prefix(prefix)).into_keys().collect()
}

fn put(backend: &dyn StateBackend, pairs: &[(&[u8], &[u8])]) {
    let mut batch = WriteBatch::default();
    pairs.iter().for_each(|(key, value)| batch.put(key, value));
    backend.write(&batch).unwrap();
}

#[test]
fn e29_a_prefix_gives_just_its_keys() {
    let folder = tempfile::tempdir().unwrap();
    let rocks = rocks(folder.path());
    let memory = MemoryBackend::new(never());
    for backend in [&rocks as &dyn StateBackend, &memory] {
        let keys: [&[u8]; 13] = [
            b"g-1",
            b"g-2",
            b"g-3",
            b"k-1",
            b"k-2",
            b"k-3",
            b"",
            b"f",
            b"h",
            b"k",
            &[0xFF],
            &[0xFF, 0xFF, 1],
            &[0xFF, 0xFF, 0xFF],
        ];
        put(backend, &keys.map(|key| (key, &b"v"[..])));
        assert_eq!(keys_of(backend, b"g"), [b"g-1", b"g-2", b"g-3"]);
        assert_eq!(keys_of(backend, b"g-2"), [b"g-2"]);
        assert_eq!(
            keys_of(backend, b"k"),
            [&b"k"[..], b"k-1", b"k-2", b"k-3"],
            "a key may be a prefix of another"
        );
        assert_eq!(keys_of(backend, &[0xFF, 0xFF]), [&[0xFF, 0xFF, 1][..], &[0xFF, 0xFF, 0xFF]]);
        assert_eq!(keys_of(backend, &[0xFF]).len(), 3, "a prefix without a successor");
        assert_eq!(keys_of(backend, b"").len(), keys.len());
        assert!(keys_of(backend, b"i").is_empty());
        assert!(scanned(backend, b"z", b"a").is_empty(), "bounds that cross");

        let mut batch = WriteBatch::default();
        batch.delete_range(&[0xFF], &[]);
        batch.delete_range(b"k", b"g");
        batch.delete_range(b"g-2", b"g-3");
        backend.write(&batch).unwrap();
        assert_eq!(scanned(backend, b"", b"").len(), keys.len() - 4);
    }
}

#[test]
fn e30_deletes_beside_a_prefix_do_not_slow_its_scan() {
    let folder = tempfile::tempdir().unwrap();
    let rocks = rocks(folder.path());
    put(&rocks, &[(b"a1", b"v"), (b"a2", b"v"), (b"c1", b"v")]);
    // The quickest of some: another program may have the processor meanwhile.
    let scan = || {
        let once = || {
            let begun = Instant::now();
            for _ in 0..20 {
                assert_eq!(keys_of(&rocks, b"a"), [b"a1", b"a2"]);
                assert_eq!(keys_of(&rocks, b"c"), [b"c1"]);
            }
            begun.elapsed()
        };
        (0..10).map(|_| once()).min().unwrap_or_default()
    };
    let before = scan();
    // Values that stay below, so that the deletes over them cannot be dropped.
    for deleted in [false, true] {
        let mut batch = WriteBatch::default();
        for n in 0..1_000_000_u32 {
            let key = [&b"b"[..], &n.to_be_bytes()].concat();
            if deleted {
                batch.delete(&key)
            } else {
                batch.put(&key, b"")
            }
            if batch.len() == 10_000 {
                rocks.write(&batch).unwrap();
                batch.clear();
            }
        }
        let after = scan();
        assert!(after < before * 5 + Duration::from_millis(20), "{before:?} before, {after:?} after");
    }
}

#[test]
fn what_is_frozen_stays_as_it_was_and_is_adopted_by_links() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let db = rocks(folder.path());
    put(&db, &[(b"a", b"1"), (b"b", b"1")]);
    let first = db.freeze(&path("cp/1")).unwrap();
    put(&db, &[(b"b", b"2"), (b"c", b"2")]);
    let second = db.freeze(&path("cp/2")).unwrap();

    let tables = |files: &[LocalFile]| {
        files.iter().filter(|f| f.name.ends_with(".sst")).map(|f| f.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!((tables(&first).len(), tables(&second).len()), (1, 2), "the second shares the first's file");
    assert_eq!(tables(&second)[0], tables(&first)[0]);
    assert!(first.iter().all(|f| f.bytes == fs::metadata(&f.path).unwrap().len()));
    let error = db.freeze(&path("cp/2")).unwrap_err();
    assert!(matches!(error, StateError::Backend { .. }), "{error}");

    let names =
        || -> Vec<_> { fs::read_dir(path("cp/1")).unwrap().map(|e| e.unwrap().file_name()).collect() };
    let before = names();
    let frozen = FrozenRocks::open(&path("cp/1"), &small()).unwrap();
    let mut seen = Vec::new();
    frozen
        .scan(b"", b"", &mut |key, value| {
            seen.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen, [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"1".to_vec())]);
    assert_eq!(names(), before, "reading leaves no file behind");

    let again = RocksBackend::adopt(&path("cp/2"), &path("again"), &small(), never()).unwrap();
    put(&again, &[(b"d", b"3")]);
    assert_eq!(scanned(&again, b"", b"").len(), 4);
    again.freeze(&path("cp/3")).unwrap();
    drop(again);
    // The source of the links is untouched: it can be adopted once more.
    let once_more = RocksBackend::adopt(&path("cp/2"), &path("once-more"), &small(), never()).unwrap();
    assert_eq!(scanned(&once_more, b"", b"").len(), 3);

    let error = RocksBackend::create(&path("again"), &small(), never()).unwrap_err();
    assert!(error.to_string().contains("it is not empty"), "{error}");
}

#[test]
fn a_damaged_or_missing_file_is_refused_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let db = rocks(folder.path());
    let value = vec![7; 50_000];
    put(&db, &[(b"a", &value), (b"b", &value)]);
    let frozen = folder.path().join("cp");
    let files = db.freeze(&frozen).unwrap();
    let table = files.iter().find(|f| f.name.ends_with(".sst")).unwrap();
    let whole = fs::read(&table.path).unwrap();

    let mut tried = 0;
    let mut refused = |what: &str| {
        tried += 1;
        let into = folder.path().join(format!("into-{tried}"));
        let error = RocksBackend::adopt(&frozen, &into, &small(), never())
            .and_then(|db| db.get(b"a", &mut Vec::new()))
            .unwrap_err();
        let text = format!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string));
        assert!(text.contains(&table.name), "{what}: {text}");
        assert!(text.contains(into.to_str().unwrap()), "{what}: {text}");
    };
    // Written anew rather than in place: the file is shared with the live database.
    let replace = |bytes: &[u8]| {
        fs::remove_file(&table.path).unwrap();
        fs::write(&table.path, bytes).unwrap();
    };
    replace(&whole[..whole.len() - 10]);
    refused("truncated");
    let mut flipped = whole.clone();
    flipped[100] ^= 4;
    replace(&flipped);
    refused("flipped");
    fs::remove_file(&table.path).unwrap();
    refused("missing");
}

#[test]
fn expired_values_are_dropped_in_compaction() {
    let folder = tempfile::tempdir().unwrap();
    let on = Arc::new(AtomicBool::new(false));
    let rule = on.clone();
    let droppable: Droppable = Arc::new(move || {
        let on = rule.load(Ordering::Relaxed);
        Box::new(move |_, value| on && value == b"old")
    });
    let db = RocksBackend::create(&folder.path().join("db"), &small(), droppable).unwrap();
    put(&db, &[(b"a", b"old"), (b"b", b"new")]);
    db.db.flush().unwrap();
    put(&db, &[(b"a", b"old"), (b"c", b"old")]);
    db.db.flush().unwrap();
    db.db.compact_range(None::<&[u8]>, None::<&[u8]>);
    assert_eq!(keys_of(&db, b"").len(), 3);
    on.store(true, Ordering::Relaxed);
    put(&db, &[(b"d", b"new")]);
    db.db.flush().unwrap();
    db.db.compact_range(None::<&[u8]>, None::<&[u8]>);
    assert_eq!(keys_of(&db, b""), [b"b", b"d"]);
}

#[test]
fn files_are_loaded_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let db = rocks(folder.path());
    let mut load = db.bulk_load();
    let value = vec![3; 20_000];
    for n in 0..4_000_u32 {
        // Incompressible enough to fill more than one file.
        let value: Vec<u8> =
            value.iter().zip(0_u32..).map(|(_, i)| crate::key::mix(n.into(), i.into()) as u8).collect();
        load.push(&n.to_be_bytes(), &value).unwrap();
    }
    load.finish().unwrap();
    db.bulk_load().finish().unwrap();
    assert_eq!(scanned(&db, b"", b"").len(), 4_000);
    let left = |end: &str| {
        fs::read_dir(&db.folder)
            .unwrap()
            .filter(|e| e.as_ref().unwrap().path().to_string_lossy().ends_with(end))
            .count()
    };
    assert_eq!(left(".tmp"), 0);
    let usage = db.usage();
    assert!(left(".sst") >= 2, "{usage:?}");
    assert!(usage.disk > FILE && usage.memtables > 0, "{usage:?}");
}

#[test]
fn memory_is_bounded_and_shared_by_all_databases() {
    let folder = tempfile::tempdir().unwrap();
    let resources = small();
    let dbs: Vec<RocksBackend> = (0..3)
        .map(|n| RocksBackend::create(&folder.path().join(n.to_string()), &resources, never()).unwrap())
        .collect();
    let mut most = 0;
    for n in 0..3_000_u32 {
        let value = vec![n as u8; 10_000];
        dbs.iter().for_each(|db| put(db, &[(&n.to_be_bytes(), &value)]));
        let memtables: u64 = dbs.iter().map(|db| db.usage().memtables).sum();
        most = most.max(memtables + dbs[0].usage().block_cache);
    }
    assert!(most > 2 << 20 && most < 20 << 20, "{most} bytes of 8 MiB shared");
}

#[derive(Clone, Debug)]
enum Op {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
    Batch(Vec<Op>),
    GetMany(Vec<Vec<u8>>),
    Scan(Vec<u8>, Vec<u8>),
    Freeze,
    Reopen,
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xFE), Just(0xFF)], 0..4)
}

fn write() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (bytes(), bytes()).prop_map(|(key, value)| Op::Put(key, value)),
        2 => bytes().prop_map(Op::Delete),
        1 => (bytes(), bytes()).prop_map(|(from, to)| Op::DeleteRange(from, to)),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => prop::collection::vec(write(), 0..6).prop_map(Op::Batch),
        2 => prop::collection::vec(bytes(), 0..8).prop_map(|mut keys| { keys.sort(); Op::GetMany(keys) }),
        2 => (bytes(), bytes()).prop_map(|(from, to)| Op::Scan(from, to)),
        1 => Just(Op::Freeze),
        1 => Just(Op::Reopen),
    ]
}

fn apply(batch: &mut WriteBatch, op: &Op) {
    match op {
        Op::Put(key, value) => batch.put(key, value),
        Op::Delete(key) => batch.delete(key),
        Op::DeleteRange(from, to) => batch.delete_range(from, to),
        _ => {}
    }
}

fn many(backend: &dyn StateBackend, keys: &[Vec<u8>]) -> Vec<(usize, Vec<u8>)> {
    let mut all = Vec::new();
    backend.get_many(keys, &mut |at, value| all.push((at, value.to_vec()))).unwrap();
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn rocks_does_what_memory_does(ops in prop::collection::vec(op(), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let mut db = rocks(folder.path());
        let memory = MemoryBackend::new(never());
        for (n, op) in ops.iter().enumerate() {
            match op {
                Op::Batch(writes) => {
                    let mut batch = WriteBatch::default();
                    writes.iter().for_each(|write| apply(&mut batch, write));
                    db.write(&batch).unwrap();
                    memory.write(&batch).unwrap();
                }
                Op::GetMany(keys) => {
                    prop_assert_eq!(many(&db, keys), many(&memory, keys));
                    for key in keys {
                        let (mut a, mut b) = (vec![9], vec![9]);
                        prop_assert_eq!(db.get(key, &mut a).unwrap(), memory.get(key, &mut b).unwrap());
                        prop_assert_eq!(a, b);
                    }
                }
                Op::Scan(from, to) => prop_assert_eq!(scanned(&db, from, to), scanned(&memory, from, to)),
                Op::Freeze => drop(db.freeze(&folder.path().join(format!("cp-{n}"))).unwrap()),
                Op::Reopen => {
                    let frozen = folder.path().join(format!("re-{n}"));
                    db.freeze(&frozen).unwrap();
                    let into = folder.path().join(format!("db-{n}"));
                    db = RocksBackend::adopt(&frozen, &into, &small(), never()).unwrap();
                }
                _ => {}
            }
        }
        prop_assert_eq!(scanned(&db, b"", b""), scanned(&memory, b"", b""));
    }
}
