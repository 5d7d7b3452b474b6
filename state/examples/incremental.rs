//! What the checkpoints of a large state upload, each after one percent of it changed, and how long a restore takes.
//!
//! `cargo run --release -p weir-state --example incremental -- [GIB] [uniform|range] [CHECKPOINTS] [FOLDER]`
//!
//! The load is faster than compaction; what it leaves to compact is no change's doing. So the twenty begin once the files have come to
//! rest; a checkpoint says then what that had uploaded. `uniform` changes keys at random, `range` those of one percent of the key range (the same one each time). RocksDB, the
//! checkpoint storage a local folder beside it. Each checkpoint says what it uploaded, and how much of that was written by a
//! compaction, from which level of files on. Afterwards the newest one is restored into an empty folder, compared with what
//! there was, value by value, and timed beside a plain copy of the same files.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_state::backend::{BackendKind, Resources};
use weir_state::checkpoint::{
    CheckpointStore, Lease, OperatorState, Part, Saved, StoreOptions, UploadReport,
};
use weir_state::keyed::{StateMap, Table};
use weir_state::store::{RestoredPart, Snapshot, Store, StoreConfig};
use weir_state::{KEY_GROUPS, key_hash};

type Done<T> = Result<T, Box<dyn Error + Send + Sync>>;
/// 288 bytes when encoded: large numbers take nine bytes each.
type Value = [u64; 32];
/// With its key.
const ENTRY: u64 = 304;
const BATCH: u64 = 1_024;
const CACHE: usize = 256 << 20;

fn main() -> Done<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let gib: f64 = arguments.first().map_or(Ok(5.0), |n| n.parse())?;
    let range = arguments.get(1).is_some_and(|kind| kind == "range");
    let checkpoints: u64 = arguments.get(2).map_or(Ok(20), |n| n.parse())?;
    let place = arguments.get(3).map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(place)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(folder.path(), (gib * (1u64 << 30) as f64) as u64 / ENTRY, range, checkpoints))
}

async fn run(folder: &Path, keys: u64, range: bool, checkpoints: u64) -> Done<()> {
    let url = folder.join("storage").display().to_string();
    let storage = CheckpointStore::open(&url, "incremental", StoreOptions::default()).await?;
    let lease = Lease::acquire(&storage, "benchmark", Duration::from_secs(3_600)).await?;
    let store = open(&folder.join("live"), vec![])?;
    let mut map: StateMap<u64, Value> = store.state_map(Table::new("large"))?;
    let began = Instant::now();
    for key in 0..keys {
        map.insert(key_hash(&key), key, value(key, 0))?;
        if key % BATCH == 0 {
            map.batch_end()?;
        }
    }
    println!("{keys} keys of {ENTRY} bytes, made in {:.1?}", began.elapsed());
    let mut life = Life { store, storage: &storage, lease: &lease, folder, saved: None };
    let report = life.checkpoint(&mut map, 1).await?;
    println!("first checkpoint: {} MB in {} files", report.bytes / 1_000_000, report.files.len());
    let rested = life.come_to_rest().await?;
    let report = life.checkpoint(&mut map, 2).await?;
    let share = 100.0 * report.uploaded_bytes as f64 / report.bytes as f64;
    let all = life.by_level(&report, true)?;
    println!(
        "the load's compactions were done after {rested:.1?}; a checkpoint then uploaded {share:.2} %; now {all}"
    );

    // The keys of one percent of the key range: those of the first key group, and of the next as many as there are to make it so.
    let in_range: Vec<u64> =
        if range { (0..keys).filter(|key| first_hundredth(*key, keys)).collect() } else { Vec::new() };
    let (mut random, mut rounds) = (Random(7), vec![0u8; keys as usize]);
    let mut shares = Vec::new();
    for round in 1..=checkpoints {
        let began = Instant::now();
        for n in 0..keys / 100 {
            let key = if range { in_range[n as usize % in_range.len()] } else { random.next() % keys };
            rounds[key as usize] = round as u8;
            map.insert(key_hash(&key), key, value(key, round as u8))?;
            if n % BATCH == 0 {
                map.batch_end()?;
            }
        }
        let changed = began.elapsed();
        let began = Instant::now();
        let report = life.checkpoint(&mut map, round + 2).await?;
        let share = 100.0 * report.uploaded_bytes as f64 / report.bytes as f64;
        shares.push(share);
        println!(
            "{round:3}: {share:5.2} % of {} MB uploaded; {}; changed in {changed:.1?}, saved in {:.1?}",
            report.bytes / 1_000_000,
            life.by_level(&report, false)?,
            began.elapsed()
        );
    }
    let average = shares.iter().sum::<f64>() / shares.len() as f64;
    let most = shares.iter().copied().fold(0.0, f64::max);
    let kind = if range { "in one percent of the key range" } else { "uniform" };
    println!("one percent changed, {kind}: {average:.2} % uploaded on average, {most:.2} % at most");
    drop(map);
    life.restore(&rounds).await
}

struct Life<'a> {
    store: Store,
    storage: &'a CheckpointStore,
    lease: &'a Lease,
    folder: &'a Path,
    saved: Option<Saved>,
}

impl Life<'_> {
    async fn checkpoint(&mut self, map: &mut StateMap<u64, Value>, id: u64) -> Done<UploadReport> {
        let mut snapshot = Snapshot::default();
        map.freeze(&mut snapshot)?;
        let (store, cut) = (self.store.clone(), self.folder.join(format!("cut-{id}")));
        let local = tokio::task::spawn_blocking(move || store.write_out(snapshot, &cut)).await??;
        let pending = self.storage.begin(id);
        let report = pending.upload_part("large", local, self.saved.as_ref().map(part)).await?;
        let large = OperatorState {
            uid: "large".into(),
            kind: "process".into(),
            parallelism: 1,
            parts: vec![report.part.clone()],
        };
        let saved = self.storage.publish(&pending, pending.manifest(vec![large]), self.lease).await?;
        self.saved = Some(saved);
        self.storage.retain(1, self.lease).await?;
        // Those before are not needed to upload the next.
        let _ = fs::remove_dir_all(self.folder.join(format!("cut-{}", id - 1)));
        map.batch_end()?;
        Ok(report)
    }

    /// Waits until nothing has been left to compact for a while.
    async fn come_to_rest(&self) -> Done<Duration> {
        const QUIET: Duration = Duration::from_secs(2);
        let began = Instant::now();
        let mut since = began;
        while since.elapsed() < QUIET {
            tokio::time::sleep(QUIET / 20).await;
            if self.store.backend().usage().to_compact > 0 {
                since = Instant::now();
            }
        }
        Ok(since - began)
    }

    /// What was uploaded, by the level that the files are at: above level 0 a compaction wrote them.
    fn by_level(&self, report: &UploadReport, reused_too: bool) -> Done<String> {
        let levels = self.store.backend().levels()?;
        let mut megabytes = [0.0; 8];
        for file in report.files.iter().filter(|file| reused_too || !file.reused) {
            let level = levels.get(&file.name).map_or(7, |level| *level as usize);
            megabytes[level.min(7)] += file.bytes as f64 / 1e6;
        }
        let name = |level: usize| match level {
            0 => "flushed".to_owned(),
            7 => "compacted away since, and lists of files".to_owned(),
            level => format!("compacted into level {level}"),
        };
        let told = megabytes.iter().enumerate().filter(|(_, mb)| **mb >= 0.5);
        Ok(told.map(|(level, mb)| format!("{mb:.0} MB {}", name(level))).collect::<Vec<_>>().join(", "))
    }

    async fn restore(self, rounds: &[u8]) -> Done<()> {
        let saved = self.saved.ok_or("there is no checkpoint")?;
        drop(self.store);
        let from = part(&saved);
        let began = Instant::now();
        let to = self.folder.join("restored");
        let report = saved.download_part(from, &to, &[]).await?;
        let downloaded = began.elapsed();
        let restored = RestoredPart {
            subtask: 0,
            key_groups: 0..KEY_GROUPS,
            format: from.format,
            folder: to.clone(),
            tables: from.tables.clone(),
            items: from.items.clone(),
        };
        let store = open(&self.folder.join("live-again"), vec![restored])?;
        let mut map: StateMap<u64, Value> = store.state_map(Table::new("large"))?;
        let opened = began.elapsed();
        let key = 0;
        assert_eq!(map.get(key_hash(&key), &key)?, Some(&value(key, rounds[0])));
        let ready = began.elapsed();

        let began = Instant::now();
        let copies = self.folder.join("copied");
        fs::create_dir(&copies)?;
        for file in &from.files {
            fs::copy(to.join(&file.name), copies.join(&file.name))?;
        }
        let copied = began.elapsed();
        println!(
            "restored {} MB: downloaded and verified in {downloaded:.1?}, opened at {opened:.1?}, first value at {ready:.1?}; \
             a plain copy of the files takes {copied:.1?}",
            report.downloaded_bytes / 1_000_000,
        );
        let mut seen = 0;
        let mut wrong = 0;
        map.for_each(|key, found| {
            seen += 1;
            wrong += u64::from(*found != value(*key, rounds[*key as usize]));
        })?;
        assert_eq!((seen, wrong), (rounds.len(), 0), "entries, and those that differ");
        println!("all {seen} values are as they were");
        Ok(())
    }
}

fn open(folder: &Path, restored: Vec<RestoredPart>) -> Done<Store> {
    let config = StoreConfig {
        uid: "large".to_owned(),
        subtask: 0,
        key_groups: 0..KEY_GROUPS,
        groups: KEY_GROUPS,
        backend: BackendKind::Rocks,
        folder: folder.to_owned(),
        resources: Resources::new(CACHE, CACHE),
        cache_bytes: CACHE,
        wall_ms: Arc::new(|| 0),
    };
    Ok(Store::open(config, restored)?)
}

fn part(saved: &Saved) -> &Part {
    &saved.manifest().operators[0].parts[0]
}

/// Keys lie in the order of their groups, and in these by number.
fn first_hundredth(key: u64, keys: u64) -> bool {
    // One group is 0.78 % of the range.
    match key_hash(&key).group(KEY_GROUPS).0 {
        0 => true,
        1 => key < keys / 100 * 28,
        _ => false,
    }
}

/// Does not compress.
fn value(key: u64, round: u8) -> Value {
    let mut random = Random(key ^ u64::from(round) << 56);
    std::array::from_fn(|_| random.next() | 1 << 63)
}

/// SplitMix64, <https://prng.di.unimi.it/splitmix64.c>.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
