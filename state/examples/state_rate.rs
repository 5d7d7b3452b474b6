//! What keyed state costs per record: in memory against a bare hash table, and over RocksDB against a `get` and a `put` each.
//!
//! `cargo run --release -p weir-state --example state_rate -- hot [KEYS] [RECORDS]`
//! `cargo run --release -p weir-state --example state_rate -- large [KEYS] [RECORDS] [zipf|uniform]`
//! `cargo run --release -p weir-state --example state_rate -- freeze [KEYS]`
//!
//! `large` gives the map a tenth of the state as cache, and the rest of the process what the memory plan of a job gives it
//! beside that. The plain run has the same memory in all, as RocksDB's cache. Every run checks that the values add up to the records.

use std::env;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hashbrown::HashTable;
use weir_state::backend::{BackendKind, Resources, RocksBackend, StateBackend, WriteBatch};
use weir_state::keyed::{StateMap, Table};
use weir_state::store::{Snapshot, Store, StoreConfig};
use weir_state::{KEY_GROUPS, KeyHash, StateError, key_hash};

/// RocksDB's own malloc goes here too. The C library's keeps about as much again as RocksDB holds.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

type Value = [u64; 4];
const BATCH: usize = 1_024;

fn main() -> Result<(), StateError> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number =
        |at: usize, or: u64| arguments.get(at).and_then(|n| n.replace('_', "").parse().ok()).unwrap_or(or);
    match arguments.first().map(String::as_str) {
        Some("hot") => hot(number(1, 1_000_000), number(2, 20_000_000)),
        Some("large") => {
            let zipf = arguments.get(3).is_none_or(|kind| kind == "zipf");
            large(number(1, 5_000_000), number(2, 5_000_000), zipf)
        }
        Some("freeze") => freeze(number(1, 1_000_000)),
        _ => {
            println!("hot [KEYS] [RECORDS] | large [KEYS] [RECORDS] [zipf|uniform] | freeze [KEYS]");
            Ok(())
        }
    }
}

fn store(folder: &Path, cache_bytes: usize, resources: Resources) -> Result<Store, StateError> {
    let config = StoreConfig {
        uid: "rate".to_owned(),
        subtask: 0,
        key_groups: 0..KEY_GROUPS,
        groups: KEY_GROUPS,
        backend: BackendKind::Rocks,
        folder: folder.join("live"),
        resources,
        cache_bytes,
        wall_ms: Arc::new(|| 0),
    };
    Store::open(config, vec![])
}

fn told(what: &str, records: u64, took: Duration) {
    let per_record = took.as_nanos() as f64 / records as f64;
    println!("{what:<40} {:8.3} M records/s {per_record:9.1} ns each", 1_000.0 / per_record);
}

/// The same keys for every run.
struct Keys {
    state: u64,
    keys: u64,
    zipf: Option<Zipf>,
}

impl Keys {
    fn new(keys: u64, zipf: bool) -> Self {
        Keys { state: 7, keys, zipf: zipf.then(|| Zipf::new(keys, 0.99)) }
    }

    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn next(&mut self) -> u64 {
        let uniform = self.random();
        match &self.zipf {
            None => uniform % self.keys,
            // Scattered, so that frequent keys are no neighbours.
            Some(zipf) => {
                let rank = zipf.rank((uniform >> 11) as f64 / (1_u64 << 53) as f64);
                rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.keys
            }
        }
    }

    fn batch(&mut self, into: &mut Vec<(KeyHash, u64)>) {
        into.clear();
        for _ in 0..BATCH {
            let key = self.next();
            into.push((key_hash(&key), key));
        }
    }
}

/// Ranks by the formula of Gray and others, as YCSB does.
struct Zipf {
    keys: f64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(keys: u64, theta: f64) -> Self {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let (all, two) = (zeta(keys), zeta(2));
        let n = keys as f64;
        let eta = (1.0 - (2.0 / n).powf(1.0 - theta)) / (1.0 - two / all);
        Zipf { keys: n, theta, alpha: 1.0 / (1.0 - theta), zeta: all, eta }
    }

    fn rank(&self, u: f64) -> u64 {
        let uz = u * self.zeta;
        if uz < 1.0 {
            0
        } else if uz < 1.0 + 0.5_f64.powf(self.theta) {
            1
        } else {
            (self.keys * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
        }
    }
}

fn hot(keys: u64, records: u64) -> Result<(), StateError> {
    let records = records / BATCH as u64 * BATCH as u64;
    let folder = tempfile::tempdir().map_err(io)?;
    let mut batch = Vec::new();

    let mut source = Keys::new(keys, false);
    let mut bare: HashTable<(u64, u64)> = HashTable::new();
    let begun = Instant::now();
    for _ in 0..records / BATCH as u64 {
        source.batch(&mut batch);
        for (hash, key) in batch.drain(..) {
            let entry = bare.entry(hash.in_group(), |e| e.0 == key, |e| key_hash(&e.0).in_group());
            entry.or_insert_with(|| (key, 0)).into_mut().1 += 1;
        }
    }
    told("bare hash table", records, begun.elapsed());
    assert_eq!(bare.iter().map(|e| e.1).sum::<u64>(), records);

    let mut source = Keys::new(keys, false);
    let store = store(folder.path(), 4 << 30, Resources::default())?;
    let mut map: StateMap<u64, u64> = store.state_map(Table::new("hot"))?;
    let begun = Instant::now();
    for _ in 0..records / BATCH as u64 {
        source.batch(&mut batch);
        map.prefetch(batch.iter().map(|(hash, key)| (*hash, key)))?;
        for (hash, key) in batch.drain(..) {
            *map.get_or_insert_with(hash, key, || 0)? += 1;
        }
        map.batch_end()?;
    }
    told("StateMap", records, begun.elapsed());
    let mut sum = 0;
    map.for_each(|_, n| sum += n)?;
    assert_eq!(sum, records);
    Ok(())
}

fn large(keys: u64, records: u64, zipf: bool) -> Result<(), StateError> {
    let records = records / BATCH as u64 * BATCH as u64;
    let state = keys as usize * 40;
    let cache = state / 10;
    let (blocks, buffers, limit) = planned(cache);
    println!(
        "{keys} keys, {} MB of keys and values, {} MB cache, {} + {} MB for RocksDB, {} MB for the process",
        state >> 20,
        cache >> 20,
        blocks >> 20,
        buffers >> 20,
        limit >> 20
    );
    let folder = tempfile::tempdir().map_err(io)?;
    // First, so that the memory of the process is its own.
    let cached = large_cached(folder.path(), keys, records, zipf, [cache, blocks, buffers])?;
    let plain = large_plain(folder.path(), keys, records, zipf, Resources::new(blocks + cache, buffers))?;
    println!("{:.2} times as fast", plain.as_secs_f64() / cached.as_secs_f64());
    Ok(())
}

/// The block cache, the write buffers and the whole limit of a process whose memory plan gives state caches so much: of what the
/// program itself leaves, 40 % are theirs, 15 % and 10 % RocksDB's, 20 % headroom; there is no index to take the rest.
fn planned(cache: usize) -> (usize, usize, usize) {
    const PROGRAM: usize = 40 << 20;
    (cache * 15 / 40, cache * 10 / 40, cache * 85 / 40 + PROGRAM)
}

fn large_cached(
    folder: &Path,
    keys: u64,
    records: u64,
    zipf: bool,
    [cache, blocks, buffers]: [usize; 3],
) -> Result<Duration, StateError> {
    let store = store(folder, cache, Resources::new(blocks, buffers))?;
    let mut map: StateMap<u64, Value> = store.state_map(Table::new("large"))?;
    for key in 0..keys {
        map.insert(key_hash(&key), key, [0, 1 << 60, 1 << 61, 1 << 62])?;
        if key % BATCH as u64 == 0 {
            map.batch_end()?;
        }
    }
    let mut snapshot = Snapshot::default();
    map.freeze(&mut snapshot)?;
    store.write_out(snapshot, &folder.join("map-frozen"))?;
    let mut batch = Vec::new();
    let mut source = Keys::new(keys, zipf);
    let (mut most, mut most_resident) = (0, 0);
    let begun = Instant::now();
    for n in 0..records / BATCH as u64 {
        source.batch(&mut batch);
        map.prefetch(batch.iter().map(|(hash, key)| (*hash, key)))?;
        for (hash, key) in batch.drain(..) {
            map.get_or_insert_with(hash, key, || [0; 4])?[0] += 1;
        }
        map.batch_end()?;
        most = most.max(store.cached_bytes());
        if n % 256 == 0 {
            most_resident = most_resident.max(resident());
        }
    }
    let took = begun.elapsed();
    told("StateMap", records, took);
    let limit = planned(cache).2;
    println!(
        "{} MB cached at most; {map:?}; the process took {} MB, {:.2} of its limit; {:?}",
        most >> 20,
        most_resident >> 20,
        most_resident as f64 / limit as f64,
        store.backend().usage()
    );
    let mut sum = 0;
    map.for_each(|_, value| sum += value[0])?;
    assert_eq!(sum, records);
    Ok(took)
}

fn large_plain(
    folder: &Path,
    keys: u64,
    records: u64,
    zipf: bool,
    resources: Resources,
) -> Result<Duration, StateError> {
    let never: weir_state::backend::Droppable = Arc::new(|| Box::new(|_, _| false));
    let plain = RocksBackend::create(&folder.join("plain"), &resources, never)?;
    let mut write = WriteBatch::default();
    for key in 0..keys {
        write.put(&key.to_be_bytes(), &[0; 32]);
        if write.len() == 10_000 {
            plain.write(&write)?;
            write.clear();
        }
    }
    plain.write(&write)?;
    plain.freeze(&folder.join("plain-frozen"))?;
    let mut batch = Vec::new();
    let mut source = Keys::new(keys, zipf);
    let mut value = Vec::new();
    let begun = Instant::now();
    for _ in 0..records / BATCH as u64 {
        source.batch(&mut batch);
        for (_, key) in &batch {
            assert!(plain.get(&key.to_be_bytes(), &mut value)?, "every key is there");
            let n = u64::from_le_bytes(value[..8].try_into().unwrap_or_default()) + 1;
            value[..8].copy_from_slice(&n.to_le_bytes());
            write.clear();
            write.put(&key.to_be_bytes(), &value);
            plain.write(&write)?;
        }
    }
    let took = begun.elapsed();
    told("get and put each", records, took);
    let mut sum = 0;
    plain.scan(&[], &[], &mut |_, value| {
        sum += u64::from_le_bytes(value[..8].try_into().unwrap_or_default());
        std::ops::ControlFlow::Continue(())
    })?;
    assert_eq!(sum, records);
    Ok(took)
}

/// Memory of the process in bytes, where the system says it.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).map_or(0, |pages| pages * 4096)
}

/// Freezes again and again while records flow, and says how long the flow was held up.
fn freeze(keys: u64) -> Result<(), StateError> {
    let folder = tempfile::tempdir().map_err(io)?;
    let store = store(folder.path(), 4 << 30, Resources::default())?;
    let mut map: StateMap<u64, u64> = store.state_map(Table::new("freeze"))?;
    let mut pauses = Vec::new();
    let mut batches = Vec::new();
    let mut written = Vec::new();
    let mut batch = Vec::new();
    let mut records = 0;
    let mut writing: Option<thread::JoinHandle<Result<Duration, StateError>>> = None;
    for round in 0..20 {
        // All keys change, again and again until the snapshot before is written: a job begins no checkpoint earlier.
        let mut whole = false;
        while !whole || writing.as_ref().is_some_and(|w| !w.is_finished()) {
            for key in 0..keys {
                batch.push((key_hash(&key), key));
                if batch.len() == BATCH || key + 1 == keys {
                    let begun = Instant::now();
                    records += batch.len() as u64;
                    for (hash, key) in batch.drain(..) {
                        *map.get_or_insert_with(hash, key, || 0)? += 1;
                    }
                    map.batch_end()?;
                    batches.push(begun.elapsed());
                }
            }
            whole = true;
        }
        if let Some(writing) = writing.take() {
            written.push(writing.join().expect("a writer does not panic")?);
        }
        let begun = Instant::now();
        let mut snapshot = Snapshot::default();
        map.freeze(&mut snapshot)?;
        pauses.push(begun.elapsed());
        let writer = (store.clone(), folder.path().join(format!("cp-{round}")));
        let thread = thread::Builder::new().spawn(move || {
            let begun = Instant::now();
            writer.0.write_out(snapshot, &writer.1).map(|_| begun.elapsed())
        });
        writing = Some(thread.map_err(io)?);
    }
    if let Some(writing) = writing {
        written.push(writing.join().expect("a writer does not panic")?);
    }
    let mut sum = 0;
    map.for_each(|_, n| sum += n)?;
    assert_eq!(sum, records);
    pauses.sort();
    batches.sort();
    let at = |all: &[Duration], share: f64| all[((all.len() - 1) as f64 * share) as usize];
    println!("{keys} dirty entries, {} barriers", pauses.len());
    println!(
        "freeze: median {:?}, p99 {:?}, most {:?}",
        at(&pauses, 0.5),
        at(&pauses, 0.99),
        at(&pauses, 1.0)
    );
    println!(
        "a batch of {BATCH}: median {:?}, p99 {:?}, p999 {:?}, most {:?}",
        at(&batches, 0.5),
        at(&batches, 0.99),
        at(&batches, 0.999),
        at(&batches, 1.0)
    );
    written.sort();
    println!(
        "written off the thread: median {:?}, most {:?}; waited {:?}",
        at(&written, 0.5),
        at(&written, 1.0),
        store.waited()
    );
    Ok(())
}

fn io(source: std::io::Error) -> StateError {
    StateError::Io { doing: "make a folder or a thread for", path: env::temp_dir(), source }
}
