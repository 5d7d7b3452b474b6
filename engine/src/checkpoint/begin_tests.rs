//! Starts that are overtaken, and starts that are refused.

use tokio::runtime::Builder;

use super::super::storage::{NotFound, Storage};
use super::*;

/// Runs a test with a storage in a folder of its own.
fn with_folder(test: impl AsyncFnOnce(String)) {
    let folder = tempfile::tempdir().unwrap();
    let url = folder.path().display().to_string();
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap().block_on(test(url));
}

async fn open(config: Checkpoints) -> Result<(Arc<Storage>, Begun), String> {
    Storage::open(config, "job".into(), SystemClock::shared()).await
}

/// Another process takes the job over.
async fn overtake(url: &str) {
    let store = CheckpointStore::open(url, "job", StoreOptions::default()).await.unwrap();
    Lease::break_held(&store, "the test").await.unwrap();
}

#[test]
fn a_start_that_is_overtaken_does_not_go_on_as_if_it_had_the_job() {
    with_folder(async |url| {
        let store = CheckpointStore::open(&url, "job", StoreOptions::default()).await.unwrap();
        let lease = Lease::acquire(&store, "first", LEASE).await.unwrap();
        overtake(&url).await;
        let refused = begin_under(&store, &lease, &Checkpoints::to(&url), "job").await;
        let why = refused.err().expect("another process has the job");
        assert!(why.contains("released the lease") || why.contains("the test"), "{why}");
    });
}

#[test]
fn the_next_life_of_a_process_that_was_overtaken_does_not_begin() {
    with_folder(async |url| {
        let (storage, begun) = open(Checkpoints::to(&url)).await.unwrap();
        assert!(begun.manifest.is_none());
        assert!(storage.clone().newest().await.unwrap().is_none());
        overtake(&url).await;
        let newest = storage.clone().newest().await;
        assert!(matches!(newest, Err(NotFound::Fenced(_))), "{newest:?}");
        storage.close(false).await;
    });
}

#[test]
fn a_start_that_is_refused_is_no_death_of_the_process() {
    with_folder(async |url| {
        let to = || Checkpoints::to(&url).restarts_of_process(3, Duration::from_secs(600));
        for _ in 0..5 {
            let mistyped = to().start_from(StartFrom::Savepoint("no such".into()));
            let refused = open(mistyped).await;
            let why = refused.err().expect("there is none of that name");
            assert!(why.contains("no such"), "{why}");
        }
        let (storage, _) = open(to()).await.unwrap();
        storage.close(true).await;
    });
}

#[test]
fn snapshots_are_written_while_the_storage_holds_every_thread_that_waits_for_it() {
    with_folder(async |url| {
        let (storage, _) = open(Checkpoints::to(&url)).await.unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        for _ in 0..64 {
            let held = held.clone();
            storage.spawn(async move {
                let stalled = tokio::task::spawn_blocking(move || {
                    let _ = held.lock().map(|held| held.recv());
                });
                let _ = stalled.await;
            });
        }
        let written = tokio::time::timeout(Duration::from_secs(30), storage.write(|| Ok(7))).await;
        assert_eq!(written.expect("it does not wait for them"), Ok(7));
        drop(release);
        storage.close(true).await;
    });
}
