//! A storage that stalls, fails, is full or forgets to answer: what is said, what goes on, and that nothing is left behind.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::support::*;
use crate::checkpoint::faults::{Call, Fault, FaultyStore};
use crate::checkpoint::*;

#[tokio::test(start_paused = true)]
async fn a_storage_that_stalls_on_one_file_is_told_by_operator_file_phase_and_time() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let mut local = Local::new();
    let names: Vec<String> = (1..=9).map(|i| format!("00000{i}.sst")).collect();
    for (seed, name) in (0..).zip(&names) {
        local.write(name, &noise(8_000, seed));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    faulty.inject(Call::Put, "000003.sst", Fault::Delay(Duration::from_secs(38)));

    let pending = store.begin(1);
    let upload = pending.upload_part("buys-7d", local.freeze(2, &names), None);
    let watch = async {
        // The time limit of the checkpoint.
        sleep(Duration::from_secs(10)).await;
        let stuck = pending.progress().pending();
        assert_eq!(stuck.len(), 1, "the other files went on: {stuck:?}");
        assert_eq!(
            stuck[0].to_string(),
            "file 000003.sst of buys-7d[2]: sending for 10.0 s, 0 of 8000 bytes confirmed"
        );
        assert_eq!(pending.progress().files().iter().filter(|file| file.phase.is_over()).count(), 8);
    };
    let (report, ()) = futures_util::join!(upload, watch);
    let report = report.unwrap();
    assert_eq!(report.upload_ms, 38_000);
    let slowest = report.files.iter().max_by_key(|file| file.upload_ms).unwrap();
    assert_eq!((slowest.name.as_str(), slowest.upload_ms), ("000003.sst", 38_000));
    assert!(report.files.iter().filter(|file| file.name != "000003.sst").all(|file| file.upload_ms < 100));

    let mut task = TaskRecord { uid: "buys-7d".into(), subtask: 2, ..TaskRecord::default() };
    task.keep_slowest(report.files, 3);
    assert_eq!(task.slowest.len(), 3);
    assert_eq!(task.slowest[0].name, "000003.sst");
}

#[tokio::test(start_paused = true)]
async fn giving_up_does_not_wait_for_a_stalled_storage_and_leaves_nothing_when_it_comes_back() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let mut local = Local::new();
    local.write("000001.sst", &noise(1_000, 1));
    local.write("000002.sst", &noise(1_000, 2));
    faulty.inject(Call::Put, "000002.sst", Fault::Delay(Duration::from_secs(38)));
    let pending = store.begin(1);
    let upload = pending.upload_part("window", local.freeze(0, &["000001.sst", "000002.sst"]), None);
    assert!(timeout(Duration::from_secs(10), upload).await.is_err());
    assert_eq!(objects(&store).await.len(), 1);
    let started = Instant::now();
    pending.discard();
    assert_eq!(started.elapsed(), Duration::ZERO);
    let error = pending.upload_part("window", local.freeze(1, &[]), None).await.unwrap_err();
    assert_eq!(error.to_string(), "checkpoint 1 was given up");
    store.idle().await;
    assert_eq!(started.elapsed(), Duration::from_secs(28));
    assert!(objects(&store).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_hundred_expired_attempts_leave_no_file() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, StoreOptions { part_bytes: 1_000, ..options() });
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    local.write("000001.sst", &noise(5_500, 1));
    let (saved, _) = checkpoint(&store, &lease, 1, local.freeze(0, &["000001.sst"]), None).await.unwrap();
    let before = objects(&store).await;

    for attempt in 0..100_u64 {
        local.write("000002.sst", &noise(7_300, attempt));
        local.write("000003.sst", &noise(30, attempt));
        let frozen = local.freeze(0, &["000001.sst", "000002.sst", "000003.sst"]);
        // Every way to get stuck: at the beginning of a file, in its middle, at its end; or it fails altogether.
        faulty.heal();
        match attempt % 5 {
            0 => faulty.inject(Call::Put, "000002.sst", Fault::Delay(Duration::from_secs(20))),
            1 => faulty.inject(Call::Put, "000003.sst", Fault::Delay(Duration::from_secs(20))),
            2 => faulty.inject(Call::Put, "000002.sst", Fault::Fail),
            3 => faulty.inject(Call::Put, "000002.sst", Fault::LoseAnswer),
            _ => faulty.inject(Call::Put, "000002.sst", Fault::Delay(Duration::from_secs(3))),
        }
        let pending = store.begin(attempt + 2);
        let limit = Duration::from_secs(attempt % 30);
        let upload = pending.upload_part("window", frozen, Some(only_part(&saved)));
        let _ = timeout(limit, upload).await;
        match attempt % 2 {
            0 => pending.discard(),
            _ => drop(pending),
        }
    }
    store.idle().await;
    assert_eq!(objects(&store).await, before);
    // And nothing that was reused went with them.
    let into = local.path().join("restored");
    saved.download_part(only_part(&saved), &into, &[]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_is_overtaken_while_it_sweeps_deletes_nothing_of_the_new_owner() {
    // Wherever in the sweep the storage stalls.
    for stalls_at in ["checkpoints", "shared", "lease"] {
        let faulty = FaultyStore::memory();
        let (first, second) = (over(&faulty, options()), over(&faulty, options()));
        let lease = Lease::acquire(&first, "first", TTL).await.unwrap();
        let mut local = Local::new();
        local.write("000001.sst", &noise(1_000, 1));
        checkpoint(&first, &lease, 1, local.freeze(0, &["000001.sst"]), None).await.unwrap();
        faulty.inject_times(Call::List, stalls_at, Fault::Delay(Duration::from_secs(38)), 1);
        let overtaking = async {
            sleep(Duration::from_secs(1)).await;
            Lease::break_held(&second, "the test").await.unwrap();
            let lease = Lease::acquire(&second, "second", TTL).await.unwrap();
            local.write("000002.sst", &noise(1_000, 2));
            let frozen = local.freeze(0, &["000001.sst", "000002.sst"]);
            checkpoint(&second, &lease, 2, frozen, None).await.unwrap().0
        };
        let (swept, saved) = futures_util::join!(first.sweep(&lease), overtaking);
        let error = swept.expect_err("somebody else has the job");
        assert!(error.is_fenced(), "stalled at {stalls_at}: {error}");
        let into = local.path().join("restored");
        saved.download_part(only_part(&saved), &into, &[]).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_fails_three_calls_in_ten_completes_most_checkpoints() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, StoreOptions { part_bytes: 2_000, ..options() });
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    faulty.seed(7);
    for call in [Call::Put, Call::Get, Call::Delete, Call::List] {
        faulty.inject(call, "", Fault::FailPercent(30));
    }
    let mut local = Local::new();
    let mut completed: Vec<Saved> = Vec::new();
    let tries = 60;
    for id in 1..=tries {
        local.write(&format!("{id:06}.sst"), &noise(9_000, id));
        local.write("CURRENT", &id.to_le_bytes());
        let names: Vec<String> = (id.saturating_sub(3).max(1)..=id).map(|i| format!("{i:06}.sst")).collect();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.push("CURRENT");
        let previous = completed.last().map(|saved| only_part(saved).clone());
        match checkpoint(&store, &lease, id, local.freeze(0, &names), previous.as_ref()).await {
            Ok((saved, _)) => {
                completed.push(saved);
                let _ = store.retain(2, &lease).await;
            }
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
    assert!(completed.len() as u64 >= tries * 9 / 10, "{} of {tries}", completed.len());
    faulty.heal();
    store.idle().await;
    let deleted = store.retain(1, &lease).await.unwrap();
    assert!(deleted.unreadable.is_empty());
    let latest = store.latest().await.unwrap().unwrap();
    assert_eq!(latest.manifest(), completed.last().unwrap().manifest());
    latest.download_part(only_part(&latest), &local.path().join("restored"), &[]).await.unwrap();
    // Without a sweep: nothing was lost track of.
    assert_eq!(objects(&store).await.len(), 1 + only_part(&latest).files.len());
}

#[tokio::test(start_paused = true)]
async fn a_full_storage_is_told_as_such_and_not_asked_again_and_again() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    local.write("000001.sst", &noise(1_000, 1));
    faulty.inject(Call::Put, "000001.sst", Fault::NoSpace);
    let before = faulty.calls().len();
    let error = checkpoint(&store, &lease, 1, local.freeze(0, &["000001.sst"]), None).await.unwrap_err();
    assert!(matches!(error, CheckpointError::NoSpace { .. }) && error.is_transient(), "{error}");
    let text = error.to_string();
    assert!(
        text.starts_with("no space left to upload 'job/shared/window/0/") && text.contains("000001.sst"),
        "{text}"
    );
    assert_eq!(faulty.calls().iter().skip(before).filter(|(call, _)| *call == Call::Put).count(), 1);

    // Full at the very end: the manifest cannot be written. Space comes, and the next one completes.
    faulty.heal();
    faulty.inject(Call::Put, "checkpoints/", Fault::NoSpace);
    let error = checkpoint(&store, &lease, 2, local.freeze(0, &["000001.sst"]), None).await.unwrap_err();
    assert!(matches!(error, CheckpointError::NoSpace { .. }), "{error}");
    store.idle().await;
    assert!(objects(&store).await.is_empty());
    faulty.heal();
    checkpoint(&store, &lease, 3, local.freeze(0, &["000001.sst"]), None).await.unwrap();
    assert_eq!(objects(&store).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_manifest_whose_answer_was_lost_is_found_and_counts() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    local.write("000001.sst", b"one");
    faulty.inject_times(Call::Put, "checkpoints/", Fault::LoseAnswer, 1);
    checkpoint(&store, &lease, 1, local.freeze(0, &["000001.sst"]), None).await.unwrap();
    // All answers are lost.
    faulty.inject(Call::Put, "checkpoints/", Fault::LoseAnswer);
    checkpoint(&store, &lease, 2, local.freeze(0, &["000001.sst"]), None).await.unwrap();
    assert_eq!(store.list().await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_manifest_that_lands_after_it_was_reported_failed_never_counts() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    local.write("000001.sst", b"one");
    let (one, _) = checkpoint(&store, &lease, 1, local.freeze(0, &["000001.sst"]), None).await.unwrap();
    local.write("000002.sst", b"two");
    faulty.inject(Call::Put, "checkpoints/", Fault::Late(Duration::from_secs(60)));
    let frozen = local.freeze(0, &["000002.sst"]);
    let error = checkpoint(&store, &lease, 2, frozen, None).await.unwrap_err();
    assert!(matches!(error, CheckpointError::Storage { .. }) && error.is_transient(), "{error}");
    faulty.heal();
    sleep(Duration::from_secs(120)).await;
    assert_eq!(store.listed().await.unwrap().len(), 2, "it is there");
    assert_eq!(store.latest().await.unwrap().unwrap().manifest(), one.manifest(), "and does not count");
    // The same owner goes on, under its next epoch.
    let frozen = local.freeze(0, &["000002.sst"]);
    let (three, _) = checkpoint(&store, &lease, store.next_id().await.unwrap(), frozen, None).await.unwrap();
    assert_eq!((three.manifest().id, three.manifest().epoch), (3, 2));
    assert_eq!(store.latest().await.unwrap().unwrap().manifest(), three.manifest());
    lease.renew().await.unwrap();
    store.retain(1, &lease).await.unwrap();
    store.sweep(&lease).await.unwrap();
    assert_eq!(objects(&store).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_manifest_that_lands_while_its_writer_finds_out_is_not_both_disowned_and_acknowledged() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    local.write("000001.sst", b"one");
    faulty.inject(Call::Put, "checkpoints/", Fault::Late(Duration::from_secs(60)));
    // The next epoch has begun without it; it is there when somebody looks.
    faulty.inject(Call::Get, "checkpoints/", Fault::Delay(Duration::from_secs(120)));
    faulty.inject(Call::Put, "lease/000002", Fault::Delay(Duration::from_secs(1)));
    let taken = checkpoint(&store, &lease, 1, local.freeze(0, &["000001.sst"]), None).await;
    sleep(Duration::from_secs(300)).await;
    assert_eq!(store.listed().await.unwrap().len(), 1);
    assert_eq!(taken.is_ok(), store.latest().await.unwrap().is_some());
    // The same when it lands before the next epoch begins.
    faulty.inject(Call::Put, "lease/000003", Fault::Delay(Duration::from_secs(120)));
    let taken = checkpoint(&store, &lease, 2, local.freeze(0, &["000001.sst"]), None).await;
    assert_eq!(taken.unwrap().0.manifest().id, store.latest().await.unwrap().unwrap().manifest().id);
}

#[tokio::test(start_paused = true)]
async fn when_nobody_can_say_the_files_stay_and_the_next_reader_decides() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    local.write("000001.sst", b"one");
    let pending = store.begin(1);
    let report = pending.upload_part("window", local.freeze(0, &["000001.sst"]), None).await.unwrap();
    // The manifest gets there, but from then on the storage says nothing.
    faulty.inject_times(Call::Put, "checkpoints/", Fault::LoseAnswer, 1);
    faulty.inject(Call::Put, "", Fault::Fail);
    faulty.inject(Call::Get, "", Fault::Fail);
    let manifest = manifest(&pending, vec![report.part]);
    let error = store.publish(&pending, manifest, &lease).await.unwrap_err();
    assert!(matches!(error, CheckpointError::Unsure { .. }) && !error.is_transient(), "{error}");
    drop(pending);
    store.idle().await;
    faulty.heal();
    let saved = store.latest().await.unwrap().unwrap();
    saved.download_part(only_part(&saved), &local.path().join("restored"), &[]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_bandwidth_limit_holds_over_all_uploads_of_the_process() {
    let bandwidth = Bandwidth::per_second(1_000_000);
    let mut local = Local::new();
    let names: Vec<String> = (0..6).map(|i| format!("00000{i}.sst")).collect();
    for (seed, name) in (0..).zip(&names) {
        local.write(name, &noise(1_000_000, seed));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let limited = StoreOptions { bandwidth: bandwidth.clone(), part_bytes: 100_000, ..options() };
    let stores: Vec<CheckpointStore> =
        (0..3).map(|_| over(&FaultyStore::memory(), limited.clone())).collect();
    let started = Instant::now();
    let pending: Vec<Pending> = stores.iter().map(|store| store.begin(1)).collect();
    let uploads = pending.iter().map(|pending| pending.upload_part("window", local.freeze(0, &names), None));
    let uploads: Vec<_> = uploads.collect();
    for report in join_all(uploads).await {
        assert_eq!(report.unwrap().uploaded_bytes, 6_000_000);
    }
    let rate = 18_000_000.0 / started.elapsed().as_secs_f64();
    assert!((900_000.0..=1_100_000.0).contains(&rate), "{rate} bytes/s of 1000000");
    assert!(pending[0].progress().pending().is_empty());
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_checkpoint_in_the_making_is_deleted_by_a_sweep_or_by_retention() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    local.write("000001.sst", &noise(100, 1));
    let (one, _) = checkpoint(&store, &lease, 1, local.freeze(0, &["000001.sst"]), None).await.unwrap();
    local.write("000002.sst", &noise(100, 2));
    let pending = store.begin(2);
    let frozen = local.freeze(0, &["000001.sst", "000002.sst"]);
    let report = pending.upload_part("window", frozen, Some(only_part(&one))).await.unwrap();

    // Meanwhile another one is published that does not have the first file, and the first one goes.
    local.write("000003.sst", &noise(100, 3));
    let (_, _) = checkpoint(&store, &lease, 3, local.freeze(0, &["000003.sst"]), None).await.unwrap();
    let deleted = store.retain(1, &lease).await.unwrap();
    assert_eq!((deleted.checkpoints.len(), deleted.files), (1, 0));
    assert_eq!(store.sweep(&lease).await.unwrap().files, 0);

    let saved = store.publish(&pending, manifest(&pending, vec![report.part]), &lease).await.unwrap();
    saved.download_part(only_part(&saved), &local.path().join("restored"), &[]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn files_that_could_not_be_deleted_go_with_the_next_ones() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    let mut local = Local::new();
    for id in 1..=3 {
        local.write("000001.sst", &noise(100, id));
        checkpoint(&store, &lease, id, local.freeze(0, &["000001.sst"]), None).await.unwrap();
    }
    faulty.inject(Call::Delete, "shared/", Fault::Fail);
    assert!(store.retain(2, &lease).await.is_err());
    // One that is given up meanwhile leaves its file behind too.
    let pending = store.begin(4);
    local.write("000004.sst", &noise(100, 4));
    pending.upload_part("window", local.freeze(0, &["000004.sst"]), None).await.unwrap();
    drop(pending);
    store.idle().await;
    assert_eq!(objects(&store).await.len(), 2 + 3 + 1);
    faulty.heal();
    assert_eq!(store.retain(2, &lease).await.unwrap().files, 2);
    assert_eq!(objects(&store).await.len(), 4);
}
