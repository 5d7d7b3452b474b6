//! Savepoints: whole in a folder of their own, movable, found by name or place, and nobody's to delete.

use std::fs;
use std::time::Duration;

use super::support::*;
use crate::checkpoint::faults::{Call, Fault, FaultyStore};
use crate::checkpoint::*;

async fn savepoint(
    store: &CheckpointStore,
    lease: &Lease,
    id: u64,
    name: &str,
    local: &mut Local,
    previous: Option<&Part>,
) -> Result<Saved> {
    let pending = store.begin_savepoint(id, name).await?;
    let frozen = local.freeze(0, &["000001.sst", "000002.sst"]);
    let report = pending.upload_part("window", frozen, previous).await?;
    assert_eq!(report.uploaded_bytes, report.bytes, "a savepoint shares nothing");
    store.publish(&pending, manifest(&pending, vec![report.part]), lease).await
}

fn files(local: &Local) {
    local.write("000001.sst", &noise(10_000, 1));
    local.write("000002.sst", &noise(20, 2));
}

#[tokio::test]
async fn a_savepoint_is_whole_and_can_be_moved() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("checkpoints");
    let store = CheckpointStore::open(root.to_str().unwrap(), JOB, options()).await.unwrap();
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    files(&local);
    let frozen = local.freeze(0, &["000001.sst", "000002.sst"]);
    let (one, _) = checkpoint(&store, &lease, 1, frozen, None).await.unwrap();
    let name = "before 2.0 = risky";
    let saved = savepoint(&store, &lease, 2, name, &mut local, Some(only_part(&one))).await.unwrap();
    assert_eq!(saved.manifest().kind, Kind::Savepoint);
    assert_eq!(store.savepoints().await.unwrap(), [name]);
    assert_eq!(store.list().await.unwrap().len(), 1, "it is not a checkpoint");
    assert_eq!(store.next_id().await.unwrap(), 3, "but has a number");

    let frozen = local.freeze(0, &["000001.sst", "000002.sst"]);
    let by_name = store.load_savepoint(name).await.unwrap();
    let (three, report) = checkpoint(&store, &lease, 3, frozen, Some(only_part(&by_name))).await.unwrap();
    assert_eq!(report.uploaded_bytes, report.bytes, "a checkpoint does not lean on a savepoint's files");
    assert!(only_part(&three).files.iter().all(|file| file.path.starts_with("shared/")));
    store.retain(1, &lease).await.unwrap();
    store.sweep(&lease).await.unwrap();
    by_name.download_part(only_part(&by_name), &local.path().join("by-name"), &[]).await.unwrap();

    // Moved away, and everything else deleted.
    let moved = folder.path().join("elsewhere/moved");
    fs::create_dir_all(moved.parent().unwrap()).unwrap();
    fs::rename(root.join("job/savepoints/before=202.0=20=3D=20risky"), &moved).unwrap();
    lease.release().await.unwrap();
    drop((store, lease, saved, by_name));
    fs::remove_dir_all(&root).unwrap();
    let other = CheckpointStore::open(root.to_str().unwrap(), "another job", options()).await.unwrap();
    let manifest = moved.join("savepoint.json");
    for url in
        [moved.display().to_string(), format!("file://{}", moved.display()), manifest.display().to_string()]
    {
        let saved = other.load_savepoint(&url).await.unwrap();
        assert_eq!((saved.manifest().job.as_str(), saved.manifest().id), (JOB, 2));
        let into = local.path().join("by-path");
        saved.download_part(only_part(&saved), &into, &[]).await.unwrap();
        assert_eq!(fs::read(into.join("000001.sst")).unwrap(), noise(10_000, 1));
    }

    let error = other.load_savepoint("nowhere").await.unwrap_err().to_string();
    assert!(
        error.starts_with("savepoint 'nowhere' of job 'another job' is not in")
            && error.ends_with("there are: none"),
        "{error}"
    );
    let error = other.load_savepoint(&folder.path().display().to_string()).await.unwrap_err().to_string();
    assert!(error.starts_with("a savepoint (savepoint.json) is not in checkpoint storage '/"), "{error}");
    let error = other.load_savepoint("/not/there").await.unwrap_err().to_string();
    assert!(error.contains("folder /not/there cannot be read; check the path"), "{error}");
}

#[tokio::test]
async fn the_first_thing_in_a_new_storage_may_have_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("not/there/yet");
    let store = CheckpointStore::open(root.to_str().unwrap(), JOB, options()).await.unwrap();
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let pending = store.begin_savepoint(1, "empty").await.unwrap();
    store.publish(&pending, manifest(&pending, Vec::new()), &lease).await.unwrap();
    let pending = store.begin(2);
    store.publish(&pending, manifest(&pending, Vec::new()), &lease).await.unwrap();
    assert_eq!(store.savepoints().await.unwrap(), ["empty"]);
    assert_eq!(store.list().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_name_is_given_once_unless_the_first_try_failed() {
    let store = over(&FaultyStore::memory(), options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    files(&local);

    // Given up: nothing stays.
    let pending = store.begin_savepoint(1, "a").await.unwrap();
    pending.upload_part("window", local.freeze(0, &["000001.sst"]), None).await.unwrap();
    drop(pending);
    store.idle().await;
    assert!(objects(&store).await.is_empty());

    // Crashed: what stays is no savepoint, and no sweep touches it; the next try of that name clears it away.
    let crashed = over(
        &FaultyStore::over(store.0.storage.objects.objects.clone(), store.0.storage.objects.parts.clone()),
        options(),
    );
    let pending = crashed.begin_savepoint(1, "a").await.unwrap();
    pending.upload_part("window", local.freeze(0, &["000001.sst"]), None).await.unwrap();
    std::mem::forget(pending);
    assert!(store.savepoints().await.unwrap().is_empty());
    assert_eq!(store.sweep(&lease).await.unwrap(), Deleted::default());
    assert_eq!(objects(&store).await.len(), 1);

    savepoint(&store, &lease, 2, "a", &mut local, None).await.unwrap();
    assert_eq!(objects(&store).await.len(), 3);
    let error = store.begin_savepoint(3, "a").await.unwrap_err().to_string();
    assert!(
        error.starts_with("savepoint 'a' already exists")
            && error.ends_with("choose another name, or delete its folder"),
        "{error}"
    );
    for name in ["", "a/b", "..\\x", &"long".repeat(50)] {
        assert!(
            matches!(store.begin_savepoint(3, name).await, Err(CheckpointError::BadName { .. })),
            "{name}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_savepoint_that_cannot_be_read_keeps_nobody_from_starting() {
    let store = over(&FaultyStore::memory(), options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    files(&local);
    savepoint(&store, &lease, 7, "good", &mut local, None).await.unwrap();
    store.0.storage.put("savepoints/bad/savepoint.json", "garbage").await.unwrap();
    assert_eq!(store.next_id().await.unwrap(), 8);
    assert_eq!(store.savepoints().await.unwrap(), ["bad", "good"]);
    let error = store.load_savepoint("bad").await.unwrap_err().to_string();
    assert!(error.starts_with("'job/savepoints/bad/savepoint.json' in checkpoint storage"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_savepoint_completed_by_a_process_that_had_lost_the_job_is_disowned() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let first = Lease::acquire(&store, "first", TTL).await.unwrap();
    let (mut local, mut slow_local) = (Local::new(), Local::new());
    files(&local);
    files(&slow_local);
    savepoint(&store, &first, 1, "seen", &mut local, None).await.unwrap();

    // The first owner has looked at its lease and is about to write when it stops for an hour.
    faulty.inject_times(Call::Put, "late/savepoint.json", Fault::Delay(Duration::from_secs(3600)), 1);
    let slow = savepoint(&store, &first, 2, "late", &mut slow_local, None);
    let meanwhile = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Lease::break_held(&store, "an operator").await.unwrap();
        let second = Lease::acquire(&store, "second", TTL).await.unwrap();
        assert_eq!(store.newest_savepoint().await.unwrap().unwrap().manifest().id, 1);
        second
    };
    let (slow, second) = futures_util::join!(slow, meanwhile);
    assert!(slow.unwrap_err().is_fenced());
    assert_eq!(store.savepoints().await.unwrap(), ["late", "seen"], "it is there");
    for again in 0..2 {
        assert_eq!(store.newest_savepoint().await.unwrap().unwrap().manifest().id, 1, "but does not count");
        for named in ["late".to_owned(), store.savepoint_url("late")] {
            let error = store.load_savepoint(&named).await.unwrap_err().to_string();
            assert!(
                error.starts_with("savepoint 'late' in checkpoint storage")
                    && error.contains("does not count: it was completed under lease epoch 1"),
                "{error}"
            );
        }
        store.load_savepoint("seen").await.unwrap();
        assert_eq!(store.next_id().await.unwrap(), 3, "nor is its number given again");
        if again == 0 {
            // Nor for who comes later.
            second.release().await.unwrap();
            Lease::acquire(&store, "third", TTL).await.unwrap();
        }
    }
    // Its name is free.
    let fourth = Lease::acquire(&store, "fourth", TTL).await.unwrap();
    savepoint(&store, &fourth, 3, "late", &mut local, None).await.unwrap();
    assert_eq!(store.newest_savepoint().await.unwrap().unwrap().manifest().id, 3);
}

#[tokio::test(start_paused = true)]
async fn a_savepoint_that_takes_long_to_be_published_holds_no_checkpoint_up() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let (mut local, mut slow_local) = (Local::new(), Local::new());
    files(&local);
    files(&slow_local);
    faulty.inject_times(Call::Put, "slow/savepoint.json", Fault::Delay(Duration::from_secs(3600)), 1);
    let slow = savepoint(&store, &lease, 1, "slow", &mut slow_local, None);
    let began = tokio::time::Instant::now();
    let meanwhile = async {
        for id in 2..5 {
            checkpoint(&store, &lease, id, local.freeze(0, &["000001.sst"]), None).await.unwrap();
            store.retain(1, &lease).await.unwrap();
        }
        began.elapsed()
    };
    let (slow, took) = futures_util::join!(slow, meanwhile);
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert_eq!(slow.unwrap().manifest().id, 1);
    assert_eq!(store.newest_savepoint().await.unwrap().unwrap().manifest().id, 1);
}

#[tokio::test(start_paused = true)]
async fn a_savepoint_is_not_there_or_counts_whatever_answer_is_lost() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    files(&local);
    // It fails, and lands when its files have been deleted.
    faulty.inject(Call::Put, "a/savepoint.json", Fault::Late(Duration::from_secs(600)));
    savepoint(&store, &lease, 1, "a", &mut local, None).await.unwrap_err();
    store.idle().await;
    faulty.heal();
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert_eq!(store.savepoints().await.unwrap(), ["a"], "it has landed");
    assert!(store.newest_savepoint().await.unwrap().is_none());
    assert!(matches!(store.load_savepoint("a").await, Err(CheckpointError::Disowned { .. })));
    // Only the answers are lost: it counts.
    faulty.inject(Call::Put, "b/savepoint.json", Fault::LoseAnswer);
    savepoint(&store, &lease, 2, "b", &mut local, None).await.unwrap();
    assert_eq!(store.newest_savepoint().await.unwrap().unwrap().manifest().id, 2);
}

#[tokio::test(start_paused = true)]
async fn savepoints_leave_one_upload_to_checkpoints() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    files(&local);
    let names: Vec<String> = (1..=20).map(|n| format!("{n:06}.sst")).collect();
    names.iter().for_each(|name| local.write(name, &noise(100, 3)));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    faulty.inject(Call::Put, "savepoints/", Fault::Delay(Duration::from_secs(3600)));
    let pending = store.begin_savepoint(1, "large").await.unwrap();
    let (large, small) = (local.freeze(0, &names), local.freeze(0, &["000001.sst"]));
    let began = tokio::time::Instant::now();
    let checkpoint = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        checkpoint(&store, &lease, 2, small, None).await.unwrap();
        began.elapsed()
    };
    let uploads = pending.upload_part("window", large, None);
    let (uploaded, took) = futures_util::join!(uploads, checkpoint);
    assert!(took < Duration::from_secs(60), "{took:?}");
    uploaded.unwrap();
}
