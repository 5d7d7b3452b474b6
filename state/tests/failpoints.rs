//! A crash at every step of a checkpoint: what the next process finds is whole, and nothing is left over after its sweep.
//!
//! `cargo test -p weir-state --features failpoints --test failpoints`
#![cfg(feature = "failpoints")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use fail::FailScenario;
use futures_util::FutureExt;
use weir_state::backend::LocalFile;
use weir_state::checkpoint::{
    CheckpointError, CheckpointStore, Lease, OperatorState, Part, Saved, StoreOptions,
};
use weir_state::store::{LocalPart, PartFormat};

const JOB: &str = "job";
const TTL: Duration = Duration::from_secs(30);

fn frozen(folder: &Path, names: &[String]) -> LocalPart {
    let file = |name: &String| {
        let path = folder.join(name);
        LocalFile { name: name.clone(), bytes: std::fs::metadata(&path).unwrap().len(), path }
    };
    LocalPart {
        subtask: 0,
        key_groups: 0..128,
        format: PartFormat::Rocks,
        tables: Vec::new(),
        items: BTreeMap::new(),
        files: names.iter().map(file).collect(),
    }
}

fn part(saved: &Saved) -> &Part {
    &saved.manifest().operators[0].parts[0]
}

/// Takes checkpoint `id` with the files 1 to `id` and keeps the newest two.
async fn checkpoint(
    store: &CheckpointStore,
    lease: &Lease,
    local: &Path,
    id: u64,
    previous: Option<&Part>,
) -> Result<Saved, CheckpointError> {
    let names: Vec<String> = (id.saturating_sub(2).max(1)..=id).map(|i| format!("{i:06}.sst")).collect();
    for name in &names {
        if !local.join(name).exists() {
            std::fs::write(local.join(name), format!("file {name}")).unwrap();
        }
    }
    let pending = store.begin(id);
    let report = pending.upload_part("window", frozen(local, &names), previous).await?;
    let window = OperatorState {
        uid: "window".into(),
        kind: "window".into(),
        parallelism: 1,
        parts: vec![report.part],
    };
    let manifest = pending.manifest(vec![window]);
    let saved = store.publish(&pending, manifest, lease).await?;
    store.retain(2, lease).await?;
    Ok(saved)
}

fn objects(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries.flatten().map(|e| if e.path().is_dir() { objects(&e.path()) } else { 1 }).sum()
}

/// A process that takes checkpoints until it crashes at the fail point, and the one after it.
async fn crash_at(point: &str, action: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (root, local) = (folder.path().join("root"), folder.path().join("local"));
    std::fs::create_dir(&local).unwrap();
    let url = root.to_str().unwrap();
    let mut completed = 0;
    {
        let store = CheckpointStore::open(url, JOB, StoreOptions::default()).await.unwrap();
        let lease = Lease::acquire(&store, "first", TTL).await.unwrap();
        let mut previous: Option<Part> = None;
        for id in 1..=6 {
            if id == 5 {
                fail::cfg(point, action).unwrap();
            }
            let taken =
                std::panic::AssertUnwindSafe(checkpoint(&store, &lease, &local, id, previous.as_ref()));
            match taken.catch_unwind().await {
                Ok(Ok(saved)) => {
                    previous = Some(part(&saved).clone());
                    completed = id;
                }
                Ok(Err(CheckpointError::Injected(at))) => {
                    assert_eq!(at, point);
                    break;
                }
                Ok(Err(error)) => panic!("{error}"),
                Err(_) => break,
            }
        }
        assert_eq!(completed, 4, "{point} did not fire");
        fail::remove(point);
        // Nobody cleans up after a crash.
        std::mem::forget((store, lease));
    }
    // For the lease the process must be another one: it is broken instead.
    let store = CheckpointStore::open(url, JOB, StoreOptions::default()).await.unwrap();
    Lease::break_held(&store, "the test").await.unwrap();
    let lease = Lease::acquire(&store, "second", TTL).await.unwrap();
    let latest = store.latest().await.unwrap().unwrap();
    let published = matches!(point, "checkpoint::after_publish" | "checkpoint::before_delete");
    assert_eq!(latest.manifest().id, if published { 5 } else { 4 }, "{point}");
    for key in store.list().await.unwrap() {
        let saved = store.load(key.id).await.unwrap();
        let into = folder.path().join(format!("restored-{}", key.id));
        saved.download_part(part(&saved), &into, &[]).await.unwrap();
    }
    store.sweep(&lease).await.unwrap();
    store.retain(1, &lease).await.unwrap();
    let job = root.join(JOB);
    assert_eq!((objects(&job.join("checkpoints")), objects(&job.join("shared"))), (1, 3), "{point}");
    let next = store.next_id().await.unwrap();
    let previous = part(&latest).clone();
    checkpoint(&store, &lease, &local, next, Some(&previous)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_any_step_leaves_a_whole_checkpoint_and_no_orphans() {
    let scenario = FailScenario::setup();
    for point in [
        "checkpoint::before_upload",
        "checkpoint::after_upload",
        "checkpoint::before_publish",
        "checkpoint::after_publish",
        "checkpoint::before_delete",
    ] {
        for action in ["return", "panic(injected)"] {
            crash_at(point, action).await;
        }
    }
    // Between the manifests and the files.
    crash_at("checkpoint::before_delete", "1*off->return").await;
    scenario.teardown();
}
