//! Where checkpoints can lie: URLs and their refusals, a local folder after a crash, and a process that was killed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::support::*;
use crate::checkpoint::*;

async fn refusal(url: &str) -> String {
    let error = CheckpointStore::open(url, JOB, options()).await.unwrap_err();
    assert!(matches!(error, CheckpointError::Open { .. }) && !error.is_transient(), "{error}");
    error.to_string()
}

#[tokio::test]
async fn what_cannot_be_used_is_refused_with_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let way = "write a folder's path, file:///path, s3://bucket/prefix, or memory://name";
    for (url, expected) in [
        ("", format!("checkpoint storage '' cannot be used: it is empty; {way}")),
        (
            "gs://bucket",
            format!(
                "checkpoint storage 'gs://bucket' cannot be used: there is no storage for 'gs://'; {way}"
            ),
        ),
        (
            "file://relative/path",
            "a file URL has an absolute path; write file:///path/to/folder, or just the path".into(),
        ),
        ("memory://", "it has no name; write memory://name".into()),
        ("s3://", "it names no bucket; write s3://bucket/prefix".into()),
        (file.to_str().unwrap(), "cannot be written; a file is in the way: choose another path".into()),
        (
            file.join("below").to_str().unwrap(),
            "cannot be written; a file is in the way: choose another path".into(),
        ),
        ("/proc/weir", "folder /proc/weir cannot be written; ".into()),
    ] {
        let text = refusal(url).await;
        assert!(text.contains(&expected), "{text}");
        assert!(text.contains(&format!("'{url}'")), "{text}");
    }
}

#[tokio::test]
async fn a_folder_without_the_right_to_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    // Root may write anyway.
    if fs::write(closed.join("probe"), b"").is_err() {
        let text = refusal(closed.to_str().unwrap()).await;
        assert!(
            text.ends_with("give this user the right to it (chown, chmod), or choose another folder"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn memory_is_shared_by_name_within_the_process() {
    let one = CheckpointStore::open("memory://shared-by-name", JOB, options()).await.unwrap();
    let lease = Lease::acquire(&one, "test", TTL).await.unwrap();
    let mut local = Local::new();
    local.write("000001.sst", b"one");
    checkpoint(&one, &lease, 1, local.freeze(0, &["000001.sst"]), None).await.unwrap();
    let again = CheckpointStore::open("memory://shared-by-name", JOB, options()).await.unwrap();
    assert_eq!(again.latest().await.unwrap().unwrap().manifest().id, 1);
    let other = CheckpointStore::open("memory://another-name", JOB, options()).await.unwrap();
    assert!(other.latest().await.unwrap().is_none());
    let other = CheckpointStore::open("memory://shared-by-name", "another-job", options()).await.unwrap();
    assert!(other.latest().await.unwrap().is_none());
}

#[tokio::test]
async fn a_folder_is_durable_and_what_a_crash_left_half_written_is_swept() {
    let folder = tempfile::tempdir().unwrap();
    let url = folder.path().to_str().unwrap().to_owned();
    let store = CheckpointStore::open(&url, JOB, options()).await.unwrap();
    let objects = format!("{:?}", store.0.storage.objects.objects);
    assert!(objects.contains("fsync: true"), "what is published outlives a power cut: {objects}");

    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    local.write("000001.sst", b"one");
    let (saved, _) = checkpoint(&store, &lease, 1, local.freeze(0, &["000001.sst"]), None).await.unwrap();
    let job = folder.path().join(JOB);
    let data = job.join(&only_part(&saved).files[0].path);
    let orphan = data.with_file_name("0000000000000000-000009.sst");
    let half = data.with_file_name("0000000000000001-000010.sst#1");
    let half_manifest = job.join("checkpoints/0000000002-000001.json#1");
    for path in [&orphan, &half, &half_manifest] {
        fs::write(path, b"half").unwrap();
    }
    assert_eq!(store.list().await.unwrap().len(), 1);
    assert_eq!(store.sweep(&lease).await.unwrap().files, 3);
    for path in [&orphan, &half, &half_manifest] {
        assert!(!path.exists(), "{}", path.display());
    }
    assert!(data.exists());
    assert_eq!(store.sweep(&lease).await.unwrap(), Deleted::default());
    saved.download_part(only_part(&saved), &local.path().join("restored"), &[]).await.unwrap();
}

const CHILD: &str = "WEIR_TEST_LEASE_CHILD";

/// Not a test of its own: what the child process of the next test runs.
#[tokio::test]
async fn a_child_that_takes_the_lease_and_waits_to_be_killed() {
    let Ok(folder) = std::env::var(CHILD) else { return };
    let store = CheckpointStore::open(&folder, JOB, options()).await.unwrap();
    let lease = Lease::acquire(&store, "the child", TTL).await.unwrap();
    fs::write(Path::new(&folder).join("ready"), b"").unwrap();
    lease.keep().await;
}

#[tokio::test]
async fn a_killed_process_is_followed_at_once_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let url = folder.path().to_str().unwrap().to_owned();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "checkpoint::tests::places::a_child_that_takes_the_lease_and_waits_to_be_killed"])
        .env(CHILD, &url)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let ready = async {
        while !folder.path().join("ready").exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ready).await.expect("the child takes the lease");

    let store = CheckpointStore::open(&url, JOB, options()).await.unwrap();
    let error = Lease::acquire(&store, "the parent", TTL).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("is being run by 'the child' (process {} on ", child.id())), "{text}");

    child.kill().unwrap();
    child.wait().unwrap();
    let started = std::time::Instant::now();
    let lease = Lease::acquire(&store, "the parent", TTL).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "no waiting for a lease whose owner is dead");
    let restarts = store.count_restart(&lease).await.unwrap();
    assert_eq!(restarts.len(), 1);
    assert!(restarts[0].died.starts_with("'the child'"), "{restarts:?}");
}

const FULL: &str = "WEIR_TEST_FULL_DISK";

/// Not a test of its own: what the child process of the next test runs, with a limit on the size of files.
#[tokio::test]
async fn a_child_whose_disk_takes_small_files_only() {
    let Ok(folder) = std::env::var(FULL) else { return };
    let folder = Path::new(&folder);
    let store = CheckpointStore::open(folder.to_str().unwrap(), JOB, options()).await.unwrap();
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    local.write("000002.sst", b"small");
    let mut frozen = local.freeze(0, &["000002.sst"]);
    let path = folder.join("large.sst");
    frozen.files.push(crate::backend::LocalFile { name: "000001.sst".into(), bytes: 0, path });
    let error = checkpoint(&store, &lease, 1, frozen, None).await.unwrap_err();
    assert!(matches!(error, CheckpointError::NoSpace { .. }), "{error:?}");
    assert!(error.to_string().starts_with("no space left to upload 'job/shared/window/0/"), "{error}");
    store.idle().await;
    let left = walk(&folder.join(JOB));
    assert!(left.iter().all(|path| path.contains("/lease/")), "{left:?}");
    let small = local.freeze(0, &["000002.sst"]);
    checkpoint(&store, &lease, 2, small, None).await.unwrap();
}

/// Every file below a folder, those that no listing shows included.
fn walk(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path.display().to_string()] })
        .collect()
}

#[tokio::test]
async fn a_full_disk_is_told_as_such_and_left_clean() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("large.sst"), noise(20_000_000, 1)).unwrap();
    let child = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 2000; exec \"$0\" --exact --nocapture \"$1\""])
        .arg(std::env::current_exe().unwrap())
        .arg("checkpoint::tests::places::a_child_whose_disk_takes_small_files_only")
        .env(FULL, folder.path())
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}
