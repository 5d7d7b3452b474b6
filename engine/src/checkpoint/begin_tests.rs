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

/// Opens it as a job does that finds nothing against what it begins from.
async fn open(config: Checkpoints) -> Result<(Arc<Storage>, Begun), String> {
    let opened = found(config).await?;
    opened.0.accepted();
    Ok(opened)
}

async fn found(config: Checkpoints) -> Result<(Arc<Storage>, Begun), String> {
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

/// Takes a checkpoint without state.
async fn take(store: &CheckpointStore, lease: &Lease, id: u64) {
    let pending = store.begin(id);
    let manifest = pending.manifest(Vec::new());
    store.publish(&pending, manifest, lease).await.unwrap();
}

/// A process completes checkpoints 1 to 3, and ends well.
async fn completed_three(url: &str) {
    let store = CheckpointStore::open(url, "job", StoreOptions::default()).await.unwrap();
    let lease = Lease::acquire(&store, "first", LEASE).await.unwrap();
    for id in 1..=3 {
        take(&store, &lease, id).await;
        lease.reach(Reached { id, savepoint: None });
    }
    lease.release().await.unwrap();
}

/// Somebody moves the manifest away; gives where it was and what it said.
fn lose(url: &str, id: u64) -> (std::path::PathBuf, Vec<u8>) {
    let folder = std::path::Path::new(url).join("job").join("checkpoints");
    let begins = format!("{id:010}-");
    let own = |e: &std::fs::DirEntry| e.file_name().to_string_lossy().starts_with(&begins);
    let lost = std::fs::read_dir(folder).unwrap().flatten().find(own).unwrap();
    let said = std::fs::read(lost.path()).unwrap();
    std::fs::remove_file(lost.path()).unwrap();
    (lost.path(), said)
}

#[test]
fn a_checkpoint_that_is_put_back_counts_again_and_a_mistaken_start_leaves_no_trace() {
    with_folder(async |url| {
        completed_three(&url).await;
        let (path, said) = lose(&url, 3);
        for _ in 0..2 {
            assert!(open(Checkpoints::to(&url)).await.is_err(), "the newest is gone");
        }
        std::fs::write(path, said).unwrap();
        // The job would not take it: its operators are others.
        let (storage, begun) = found(Checkpoints::to(&url)).await.unwrap();
        assert_eq!(begun.manifest.map(|m| m.id), Some(3));
        storage.refused();
        storage.close(false).await;

        // A savepoint of another job, with a number that this one is far from.
        let other = CheckpointStore::open(&url, "other", StoreOptions::default()).await.unwrap();
        let its = Lease::acquire(&other, "other", LEASE).await.unwrap();
        let pending = other.begin_savepoint(1_000, "far").await.unwrap();
        let manifest = pending.manifest(Vec::new());
        other.publish(&pending, manifest, &its).await.unwrap();
        let far = std::path::Path::new(&url).join("other/savepoints/far").display().to_string();
        let (storage, begun) =
            found(Checkpoints::to(&url).start_from(StartFrom::Savepoint(far))).await.unwrap();
        assert_eq!(begun.manifest.map(|m| m.id), Some(1_000));
        storage.refused();
        storage.close(false).await;
        let (storage, begun) = open(Checkpoints::to(&url)).await.unwrap();
        assert_eq!(begun.manifest.map(|m| m.id), Some(3), "as if nobody had tried");
        storage.close(false).await;
    });
}

#[test]
fn lives_that_complete_nothing_follow_a_savepoint_one_after_the_other() {
    with_folder(async |url| {
        let store = CheckpointStore::open(&url, "job", StoreOptions::default()).await.unwrap();
        let lease = Lease::acquire(&store, "first", LEASE).await.unwrap();
        let pending = store.begin_savepoint(2, "before").await.unwrap();
        let manifest = pending.manifest(Vec::new());
        store.publish(&pending, manifest, &lease).await.unwrap();
        for id in 3..=4 {
            take(&store, &lease, id).await;
            lease.reach(Reached { id, savepoint: None });
        }
        lease.release().await.unwrap();
        let back = StartFrom::Savepoint("before".into());
        for start in [back, StartFrom::Latest, StartFrom::Latest, StartFrom::Latest] {
            let (storage, begun) = open(Checkpoints::to(&url).start_from(start)).await.unwrap();
            assert_eq!(begun.manifest.map(|m| m.id), Some(2));
            storage.close(false).await;
        }
    });
}

#[test]
fn a_newest_checkpoint_that_is_gone_is_not_passed_over() {
    with_folder(async |url| {
        completed_three(&url).await;
        drop(lose(&url, 3));
        let refused = open(Checkpoints::to(&url)).await.err().expect("the newest is gone");
        let told = ["checkpoint 3 of job 'job' was complete", "there is checkpoint 2", "--checkpoint 2"];
        assert!(told.iter().all(|told| refused.contains(told)), "{refused}");
        let named = Checkpoints::to(&url).start_from(StartFrom::Checkpoint(2));
        let (storage, begun) = open(named).await.unwrap();
        assert_eq!((begun.manifest.map(|m| m.id), begun.next), (Some(2), 4));
        storage.close(false).await;
        let (storage, begun) = open(Checkpoints::to(&url)).await.unwrap();
        assert_eq!(
            (begun.manifest.map(|m| m.id), begun.next),
            (Some(2), 4),
            "as the process before was told"
        );
        storage.close(false).await;
        let (storage, begun) = open(Checkpoints::to(&url).start_from(StartFrom::Fresh)).await.unwrap();
        assert_eq!((begun.manifest.is_none(), begun.next), (true, 4));
        storage.close(false).await;
        let (storage, begun) = open(Checkpoints::to(&url)).await.unwrap();
        assert!(begun.manifest.is_none(), "sinks have thrown away what older ones name");
        take(&storage.store, &storage.lease, 4).await;
        storage.close(false).await;
        let (storage, begun) = open(Checkpoints::to(&url)).await.unwrap();
        assert_eq!(begun.manifest.map(|m| m.id), Some(4));
        // The same between two lives of one process.
        for id in 5..=6 {
            let own = storage.clone();
            let (tell, told) = tokio::sync::oneshot::channel();
            let id = crate::ids::CheckpointId(id);
            own.clone().begin_checkpoint(id, None).await.unwrap();
            let manifest = own.store.begin(id.0).manifest(Vec::new());
            own.publish(id, manifest, move |outcome, _| tell.send(outcome).unwrap());
            assert_eq!(told.await.unwrap(), super::super::storage::Publication::Done);
        }
        assert_eq!(storage.clone().newest().await.unwrap().map(|m| m.id), Some(6));
        drop(lose(&url, 6));
        let newest = storage.clone().newest().await;
        assert!(matches!(&newest, Err(NotFound::Gone(why)) if why.contains("checkpoint 6")), "{newest:?}");
        storage.close(false).await;
    });
}

#[test]
fn a_savepoint_that_a_life_began_from_is_missed_and_one_that_nobody_needs_is_not() {
    with_folder(async |url| {
        let store = CheckpointStore::open(&url, "job", StoreOptions::default()).await.unwrap();
        let lease = Lease::acquire(&store, "first", LEASE).await.unwrap();
        take(&store, &lease, 1).await;
        let save = async |id: u64, name: &str, lease: &Lease| {
            let pending = store.begin_savepoint(id, name).await.unwrap();
            let manifest = pending.manifest(Vec::new());
            store.publish(&pending, manifest, lease).await.unwrap();
        };
        save(2, "asked-for", &lease).await;
        let folder = |name: &str| std::path::Path::new(&url).join("job").join("savepoints").join(name);
        std::fs::remove_dir_all(folder("asked-for")).unwrap();
        save(3, "again", &lease).await;
        lease.release().await.unwrap();
        let (storage, begun) = open(Checkpoints::to(&url)).await.unwrap();
        assert_eq!(begun.manifest.map(|m| m.id), Some(3), "sinks commit what it holds");
        storage.close(false).await;
        let moved = std::path::Path::new(&url).join("moved");
        std::fs::rename(folder("again"), &moved).unwrap();
        let refused = open(Checkpoints::to(&url)).await.err().expect("it is not where it was");
        assert!(refused.contains("again") && refused.contains("(checkpoint 3)"), "{refused}");
        let there = StartFrom::Savepoint(moved.display().to_string());
        for start in [there, StartFrom::Latest] {
            let (storage, begun) = open(Checkpoints::to(&url).start_from(start)).await.unwrap();
            assert_eq!((begun.manifest.map(|m| m.id), begun.next), (Some(3), 4));
            storage.close(false).await;
        }
    });
}

#[test]
fn a_lease_is_broken_only_when_that_is_wanted() {
    with_folder(async |url| {
        let (first, _) = open(Checkpoints::to(&url)).await.unwrap();
        let refused = open(Checkpoints::to(&url)).await.err().expect("the first one has the job");
        assert!(refused.contains("is being run by") && refused.contains("--break-lease"), "{refused}");
        let (second, _) = open(Checkpoints::to(&url).break_lease(true)).await.unwrap();
        assert!(matches!(first.clone().newest().await, Err(NotFound::Fenced(_))));
        second.close(false).await;
        first.close(false).await;
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
