//! What the tests share: local parts with made-up files, manifests, and a storage with faults.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::backend::LocalFile;
use crate::checkpoint::faults::FaultyStore;
use crate::checkpoint::*;
use crate::store::{LocalPart, PartFormat};

pub(in crate::checkpoint) const JOB: &str = "job";
pub(in crate::checkpoint) const TTL: Duration = Duration::from_secs(30);

/// A local folder of snapshots, each a hard-linked set of files as a database makes them.
pub(in crate::checkpoint) struct Local {
    folder: TempDir,
    next: u64,
}

impl Local {
    pub(in crate::checkpoint) fn new() -> Self {
        Self { folder: TempDir::new().unwrap(), next: 0 }
    }

    pub(in crate::checkpoint) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file of the live database.
    pub(in crate::checkpoint) fn write(&self, name: &str, content: &[u8]) {
        let live = self.folder.path().join("live");
        std::fs::create_dir_all(&live).unwrap();
        let _ = std::fs::remove_file(live.join(name));
        std::fs::write(live.join(name), content).unwrap();
    }

    /// Links the live files into a new folder.
    pub(in crate::checkpoint) fn freeze(&mut self, subtask: usize, names: &[&str]) -> LocalPart {
        self.next += 1;
        let folder = self.folder.path().join(format!("frozen-{}", self.next));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &&str| {
            let path = folder.join(name);
            std::fs::hard_link(self.folder.path().join("live").join(name), &path).unwrap();
            let bytes = std::fs::metadata(&path).unwrap().len();
            LocalFile { name: (*name).to_owned(), path, bytes }
        };
        LocalPart {
            subtask,
            key_groups: 0..64,
            format: PartFormat::Rocks,
            tables: Vec::new(),
            items: BTreeMap::new(),
            files: names.iter().map(file).collect(),
        }
    }
}

/// A time of day that is moved by hand.
pub(in crate::checkpoint) fn hand_clock(start_ms: i64) -> (WallClock, Arc<AtomicI64>) {
    let now = Arc::new(AtomicI64::new(start_ms));
    let clock = now.clone();
    (Arc::new(move || clock.load(Ordering::SeqCst)), now)
}

/// Nothing is waited for but what the test injects.
pub(in crate::checkpoint) fn options() -> StoreOptions {
    StoreOptions {
        retry: Retry { tries: 6, first: Duration::from_millis(1), longest: Duration::from_millis(4) },
        ..StoreOptions::default()
    }
}

pub(in crate::checkpoint) fn over(faulty: &FaultyStore, options: StoreOptions) -> CheckpointStore {
    CheckpointStore::over(Arc::new(faulty.clone()), Some(Arc::new(faulty.clone())), JOB, options)
}

pub(in crate::checkpoint) fn manifest(pending: &Pending, parts: Vec<Part>) -> Manifest {
    let window =
        OperatorState { uid: "window".into(), kind: "window".into(), parallelism: parts.len(), parts };
    let made = pending.manifest(vec![window]);
    Manifest { lineage: "first".into(), triggered_ms: 1_000, completed_ms: 2_000, ..made }
}

/// Takes a whole checkpoint of one subtask.
pub(in crate::checkpoint) async fn checkpoint(
    store: &CheckpointStore,
    lease: &Lease,
    id: u64,
    local: LocalPart,
    previous: Option<&Part>,
) -> Result<(Saved, UploadReport)> {
    let pending = store.begin(id);
    let report = pending.upload_part("window", local, previous).await?;
    let saved = store.publish(&pending, manifest(&pending, vec![report.part.clone()]), lease).await?;
    Ok((saved, report))
}

/// The one part of a checkpoint that has one.
pub(in crate::checkpoint) fn only_part(saved: &Saved) -> &Part {
    &saved.manifest().operators[0].parts[0]
}

/// Every object of the job, by path below its folder, but for the lease.
pub(in crate::checkpoint) async fn objects(store: &CheckpointStore) -> Vec<String> {
    let listed = store.0.storage.list("").await.unwrap();
    let paths = listed.into_iter().map(|file| file.path);
    paths.filter(|path| !path.starts_with("lease/")).collect()
}

/// Bytes that do not repeat.
pub(in crate::checkpoint) fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    out.truncate(bytes);
    out
}
