//! The life of checkpoints and savepoints: upload, publish, list, load, download, reuse, retain.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::support::*;
use crate::checkpoint::faults::FaultyStore;
use crate::checkpoint::*;

/// Three checkpoints, with one file that stays, one that is rewritten under its name, and one that is new each time.
async fn three_checkpoints(store: &CheckpointStore, local: &mut Local, lease: &Lease) -> Vec<Saved> {
    let mut saved: Vec<Saved> = Vec::new();
    local.write("000001.sst", &noise(100_000, 1));
    for id in 1..=3_u64 {
        let new = format!("{:06}.sst", id + 1);
        local.write(&new, &noise(5_000, id + 1));
        local.write("CURRENT", format!("MANIFEST-{id:06}\n").as_bytes());
        let frozen = local.freeze(0, &["000001.sst", &new, "CURRENT"]);
        let previous = saved.last().map(|saved| only_part(saved).clone());
        let (one, report) = checkpoint(store, lease, id, frozen, previous.as_ref()).await.unwrap();
        assert_eq!(report.bytes, 105_016);
        assert_eq!(report.uploaded_bytes, if id == 1 { 105_016 } else { 5_016 });
        assert_eq!(report.files.iter().filter(|file| file.reused).count(), usize::from(id > 1));
        saved.push(one);
    }
    saved
}

async fn a_whole_life(store: &CheckpointStore) {
    let mut local = Local::new();
    assert!(store.latest().await.unwrap().is_none());
    assert_eq!(store.next_id().await.unwrap(), 1);
    let lease = Lease::acquire(store, "test", TTL).await.unwrap();
    let saved = three_checkpoints(store, &mut local, &lease).await;

    // Another process reads it.
    let other = store.clone();
    assert_eq!(other.list().await.unwrap().iter().map(|key| key.id).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(other.next_id().await.unwrap(), 4);
    let latest = other.latest().await.unwrap().unwrap();
    assert_eq!(latest.manifest(), saved[2].manifest());
    assert_eq!(latest.manifest().epoch, lease.epoch());
    let first = other.load(1).await.unwrap();
    assert_eq!(first.manifest(), saved[0].manifest());
    let error = other.load(9).await.unwrap_err().to_string();
    assert!(error.starts_with("checkpoint 9 of job 'job' is not in checkpoint storage"), "{error}");
    assert!(error.ends_with("there are: 1, 2, 3"), "{error}");

    let into = local.path().join("restored");
    let report = latest.download_part(only_part(&latest), &into, &[]).await.unwrap();
    assert_eq!((report.downloaded_bytes, report.reused_bytes), (105_016, 0));
    assert_eq!(fs::read(into.join("CURRENT")).unwrap(), b"MANIFEST-000003\n");
    assert_eq!(fs::read(into.join("000001.sst")).unwrap(), noise(100_000, 1));

    // Two go, with the files that only they name.
    let deleted = store.retain(1, &lease).await.unwrap();
    assert_eq!(deleted.checkpoints.iter().map(|key| key.id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(deleted.files, 4);
    let left = objects(store).await;
    assert_eq!(left.len(), 4, "a manifest and three files: {left:?}");
    assert_eq!(store.sweep(&lease).await.unwrap(), Deleted::default());
    store.latest().await.unwrap().unwrap().download_part(only_part(&latest), &into, &[]).await.unwrap();

    store.idle().await;
    lease.release().await.unwrap();
}

#[tokio::test]
async fn in_memory() {
    a_whole_life(&CheckpointStore::open("memory://a-whole-life", JOB, options()).await.unwrap()).await;
}

#[tokio::test]
async fn in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    for url in
        [folder.path().join("a/b").display().to_string(), format!("file://{}/c", folder.path().display())]
    {
        a_whole_life(&CheckpointStore::open(&url, JOB, options()).await.unwrap()).await;
    }
}

#[tokio::test]
async fn over_a_storage_without_parts_and_with_tiny_parts() {
    let faulty = FaultyStore::memory();
    let whole = CheckpointStore::over(
        std::sync::Arc::new(faulty.clone()),
        None,
        JOB,
        StoreOptions { part_bytes: 1_000, ..options() },
    );
    a_whole_life(&whole).await;
    let parts = over(&FaultyStore::memory(), StoreOptions { part_bytes: 1_000, parallel: 3, ..options() });
    a_whole_life(&parts).await;
}

#[tokio::test]
async fn local_files_with_the_right_content_are_linked_instead_of_downloaded() {
    let store = over(&FaultyStore::memory(), options());
    let mut local = Local::new();
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let saved = three_checkpoints(&store, &mut local, &lease).await.pop().unwrap();
    let part = only_part(&saved);

    // Spread over two disks; one file there is of the right length only.
    let (one, two) = (local.path().join("one"), local.path().join("two"));
    fs::create_dir_all(&one).unwrap();
    fs::create_dir_all(&two).unwrap();
    fs::write(one.join("000001.sst"), noise(100_000, 99)).unwrap();
    fs::write(two.join("000001.sst"), noise(100_000, 1)).unwrap();
    fs::write(two.join("CURRENT"), b"MANIFEST-000003\n").unwrap();
    let into = local.path().join("restored");
    let report = saved.download_part(part, &into, &[one, two.clone()]).await.unwrap();
    assert_eq!((report.downloaded_bytes, report.reused_bytes), (5_000, 100_016));
    assert_eq!(
        report.files.iter().map(|file| (file.name.as_str(), file.reused)).collect::<Vec<_>>(),
        [("000001.sst", true), ("000004.sst", false), ("CURRENT", true)]
    );
    let inode = |path: std::path::PathBuf| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(into.join("000001.sst")), inode(two.join("000001.sst")), "linked");
    assert_ne!(inode(into.join("CURRENT")), inode(two.join("CURRENT")), "copied: it may be changed");

    // What was restored is known: the next checkpoint uploads only what is new.
    local.write("000009.sst", b"new");
    let mut frozen = local.freeze(0, &["000009.sst"]);
    for name in ["000001.sst", "000004.sst", "CURRENT"] {
        let path = into.join(name);
        let bytes = fs::metadata(&path).unwrap().len();
        frozen.files.push(crate::backend::LocalFile { name: name.into(), path, bytes });
    }
    let (_, report) = checkpoint(&store, &lease, 4, frozen, Some(part)).await.unwrap();
    assert_eq!(report.uploaded_bytes, 3);
}

#[tokio::test]
async fn a_rebuilt_store_counts_its_files_again_and_is_not_taken_for_the_old_one() {
    let store = over(&FaultyStore::memory(), options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut old = Local::new();
    old.write("000001.sst", &noise(1_000, 1));
    old.write("000002.sst", &noise(1_000, 2));
    let frozen = old.freeze(0, &["000001.sst", "000002.sst"]);
    let (saved, _) = checkpoint(&store, &lease, 1, frozen, None).await.unwrap();
    let mut new = Local::new();
    new.write("000001.sst", &noise(1_000, 3));
    new.write("000002.sst", &noise(1_000, 2));
    let frozen = new.freeze(0, &["000001.sst", "000002.sst"]);
    let (saved, report) = checkpoint(&store, &lease, 2, frozen, Some(only_part(&saved))).await.unwrap();
    assert_eq!(
        report.files.iter().map(|file| file.reused).collect::<Vec<_>>(),
        [false, true],
        "same name and length: the content decides"
    );
    let into = new.path().join("restored");
    saved.download_part(only_part(&saved), &into, &[]).await.unwrap();
    assert_eq!(fs::read(into.join("000001.sst")).unwrap(), noise(1_000, 3));
}

/// Whoever spawns these calls on a runtime of many threads needs them to be `Send`.
#[tokio::test]
async fn every_call_can_be_spawned() {
    fn send<T: Send>(call: T) -> T {
        call
    }
    let store = send(CheckpointStore::open("memory://spawned", JOB, options())).await.unwrap();
    let mut local = Local::new();
    local.write("000001.sst", b"one");
    let lease = send(Lease::acquire(&store, "test", TTL)).await.unwrap();
    let pending = store.begin(1);
    let frozen = local.freeze(0, &["000001.sst"]);
    let report = send(pending.upload_part("window", frozen, None)).await.unwrap();
    let manifest = manifest(&pending, vec![report.part]);
    let saved = send(store.publish(&pending, manifest, &lease)).await.unwrap();
    send(saved.download_part(only_part(&saved), &local.path().join("r"), &[])).await.unwrap();
    send(store.latest()).await.unwrap();
    send(store.load(1)).await.unwrap();
    send(store.next_id()).await.unwrap();
    drop(send(store.begin_savepoint(2, "s")).await.unwrap());
    send(store.savepoints()).await.unwrap();
    send(store.load_savepoint("s")).await.unwrap_err();
    send(store.retain(1, &lease)).await.unwrap();
    send(store.sweep(&lease)).await.unwrap();
    send(store.count_restart(&lease)).await.unwrap();
    send(store.reset_restarts()).await.unwrap();
    send(store.attempts(1)).await.unwrap();
    send(store.idle()).await;
    send(lease.renew()).await.unwrap();
    drop(send(lease.keep()));
    send(lease.release()).await.unwrap();
    send(Lease::break_held(&store, "test")).await.unwrap();
}
