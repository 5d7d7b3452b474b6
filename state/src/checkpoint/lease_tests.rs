//! The lease: who may take it when, and what happens to who lost it.

use std::sync::atomic::Ordering;

use super::*;
use crate::checkpoint::faults::{Call, Fault, FaultyStore};
use crate::checkpoint::takeover::FENCES;
use crate::checkpoint::tests::support::*;
use crate::checkpoint::{Kind, StoreOptions};

/// Makes the owner look as if it ran on another machine.
async fn move_away(store: &CheckpointStore) {
    let storage = &store.0.storage;
    let epoch = newest(storage).await.unwrap().unwrap();
    let mut record = read(storage, epoch).await.unwrap().unwrap();
    record.process.host = "elsewhere".into();
    storage.put_document(&lease_path(epoch), &record).await.unwrap();
}

fn timed(faulty: &FaultyStore) -> (CheckpointStore, std::sync::Arc<std::sync::atomic::AtomicI64>) {
    let (wall_ms, now) = hand_clock(1_764_443_852_000);
    (over(faulty, StoreOptions { wall_ms, ..options() }), now)
}

#[tokio::test(start_paused = true)]
async fn a_second_owner_is_refused_and_told_what_to_do() {
    let (store, now) = timed(&FaultyStore::memory());
    let first = Lease::acquire(&store, "first", TTL).await.unwrap();
    assert!(first.predecessor().is_none());
    now.fetch_add(12_000, Ordering::SeqCst);
    let error = Lease::acquire(&store, "second", TTL).await.unwrap_err();
    let pid = std::process::id();
    let host = ProcessId::current().host;
    assert_eq!(
        error.to_string(),
        format!(
            "job 'job' is being run by 'first' (process {pid} on {host}) since 2025-11-29 19:17:32 UTC (last heard of 2025-11-29 19:17:32 UTC); stop that process, wait 18 s in case it is gone, or break its lease (it is then refused at its next checkpoint)"
        )
    );
    first.renew().await.unwrap();
    now.fetch_add(29_000, Ordering::SeqCst);
    assert!(matches!(
        Lease::acquire(&store, "second", TTL).await,
        Err(CheckpointError::Held { wait_s: 1, .. })
    ));

    first.release().await.unwrap();
    let second = Lease::acquire(&store, "second", TTL).await.unwrap();
    assert_eq!(second.epoch(), first.epoch() + 1);
    assert!(second.predecessor().is_none(), "it had stopped as it should");
    assert!(first.renew().await.unwrap_err().is_fenced());
}

#[tokio::test(start_paused = true)]
async fn a_dead_owner_of_this_machine_is_followed_at_once() {
    let (store, _) = timed(&FaultyStore::memory());
    let first = Lease::acquire(&store, "first", TTL).await.unwrap();
    let epoch = first.epoch();
    drop(first);
    let started = tokio::time::Instant::now();
    let second = Lease::acquire(&store, "second", TTL).await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(second.predecessor().map(|record| record.epoch), Some(epoch));
}

#[tokio::test(start_paused = true)]
async fn an_owner_elsewhere_is_followed_after_its_time_if_it_stays_silent() {
    let (store, now) = timed(&FaultyStore::memory());
    let first = Lease::acquire(&store, "first", TTL).await.unwrap();
    move_away(&store).await;
    drop(first);
    assert!(matches!(
        Lease::acquire(&store, "second", TTL).await,
        Err(CheckpointError::Held { wait_s: 30, .. })
    ));

    // Its time is over by this clock, but it goes on: the clocks do not agree.
    now.fetch_add(31_000, Ordering::SeqCst);
    let renewing = async {
        tokio::time::sleep(Duration::from_secs(9)).await;
        let storage = &store.0.storage;
        let mut record = read(storage, 1).await.unwrap().unwrap();
        record.renewed_ms += 10_000;
        storage.put_document(&lease_path(1), &record).await.unwrap();
    };
    let (second, ()) = futures_util::join!(Lease::acquire(&store, "second", TTL), renewing);
    assert!(matches!(second, Err(CheckpointError::Held { .. })), "{second:?}");

    now.fetch_add(31_000, Ordering::SeqCst);
    let started = tokio::time::Instant::now();
    let second = Lease::acquire(&store, "second", TTL).await.unwrap();
    assert_eq!(started.elapsed(), TTL * 2 / 3);
    assert!(second.predecessor().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_costs_time_and_nothing_else() {
    let (store, now) = timed(&FaultyStore::memory());
    let first = Lease::acquire(&store, "first", TTL).await.unwrap();
    // An hour ahead, and an hour back: the owner lives, and is heard of within the time that is watched.
    for jump in [3_600_000, -7_200_000] {
        now.fetch_add(jump, Ordering::SeqCst);
        let keep = first.keep();
        let second = Lease::acquire(&store, "second", TTL);
        let second = match futures_util::future::select(std::pin::pin!(second), std::pin::pin!(keep)).await {
            futures_util::future::Either::Left((second, _)) => second,
            futures_util::future::Either::Right((error, _)) => panic!("{error}"),
        };
        assert!(matches!(second, Err(CheckpointError::Held { .. })), "{second:?}");
    }
    first.renew().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn of_many_at_once_one_gets_it() {
    let store = over(&FaultyStore::memory(), options());
    let tries = (0..20).map(|_| Lease::acquire(&store, "one of many", TTL));
    let got = futures_util::future::join_all(tries).await;
    assert_eq!(got.iter().filter(|lease| lease.is_ok()).count(), 1);
}

#[tokio::test]
async fn of_many_at_once_one_gets_it_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let store = CheckpointStore::open(folder.path().to_str().unwrap(), JOB, options()).await.unwrap();
    let tries = (0..20).map(|_| Lease::acquire(&store, "one of many", TTL));
    let got = futures_util::future::join_all(tries).await;
    assert_eq!(got.iter().filter(|lease| lease.is_ok()).count(), 1, "{got:?}");
}

#[tokio::test(start_paused = true)]
async fn an_overtaken_owner_publishes_nothing_more() {
    let store = over(&FaultyStore::memory(), options());
    let mut local = Local::new();
    local.write("000001.sst", b"one");
    let first = Lease::acquire(&store, "first", TTL).await.unwrap();
    let (one, _) = checkpoint(&store, &first, 1, local.freeze(0, &["000001.sst"]), None).await.unwrap();

    let broken = Lease::break_held(&store, "an operator").await.unwrap().unwrap();
    assert_eq!(broken.owner, "first");
    let second = Lease::acquire(&store, "second", TTL).await.unwrap();
    assert!(second.predecessor().is_none(), "breaking a lease is not a death");
    assert_eq!(store.latest().await.unwrap().unwrap().manifest(), one.manifest());

    let frozen = local.freeze(0, &["000001.sst"]);
    let error = checkpoint(&store, &first, 2, frozen, None).await.unwrap_err();
    assert!(error.is_fenced(), "{error}");
    assert!(error.to_string().contains("was followed by 3, held by 'second'"), "{error}");
    assert!(store.retain(1, &first).await.unwrap_err().is_fenced());
    assert!(store.sweep(&first).await.unwrap_err().is_fenced());
    let kept = first.keep();
    assert!(kept.await.is_fenced());

    let frozen = local.freeze(0, &["000001.sst"]);
    checkpoint(&store, &second, 2, frozen, None).await.unwrap();
    assert_eq!(store.list().await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_write_of_an_overtaken_owner_that_lands_late_does_not_count() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let mut local = Local::new();
    local.write("000001.sst", b"one");
    let first = Lease::acquire(&store, "first", TTL).await.unwrap();
    checkpoint(&store, &first, 1, local.freeze(0, &["000001.sst"]), None).await.unwrap();

    // The first owner has looked at its lease and is about to write when it stops for an hour.
    faulty.inject_times(Call::Put, "checkpoints/0000000002", Fault::Delay(Duration::from_secs(3600)), 1);
    let slow = checkpoint(&store, &first, 2, local.freeze(0, &["000001.sst"]), None);
    let meanwhile = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Lease::break_held(&store, "an operator").await.unwrap();
        let second = Lease::acquire(&store, "second", TTL).await.unwrap();
        store.sweep(&second).await.unwrap();
        second
    };
    let (slow, second) = futures_util::join!(slow, meanwhile);
    assert!(slow.unwrap_err().is_fenced());
    let manifests = store.0.storage.names("checkpoints").await.unwrap();
    assert_eq!(manifests.len(), 2, "it is there: {manifests:?}");
    assert_eq!(store.latest().await.unwrap().unwrap().manifest().id, 1, "but does not count");
    assert_eq!(store.next_id().await.unwrap(), 3, "nor is its number given again");

    // Nor for who comes after a further crash, before or after the second owner's own checkpoint.
    drop(second);
    let third = Lease::acquire(&store, "third", TTL).await.unwrap();
    assert_eq!(store.latest().await.unwrap().unwrap().manifest().id, 1);
    let swept = store.sweep(&third).await.unwrap();
    assert_eq!(swept.checkpoints.len(), 1, "{swept:?}");
    checkpoint(&store, &third, 3, local.freeze(0, &["000001.sst"]), None).await.unwrap();
    assert_eq!(store.latest().await.unwrap().unwrap().manifest().id, 3);
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_published_before_the_lease_was_taken_counts() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let mut local = Local::new();
    local.write("000001.sst", b"one");
    let first = Lease::acquire(&store, "first", TTL).await.unwrap();
    // The answer comes after the lease was taken, the write itself before.
    faulty.inject_times(Call::List, "lease", Fault::Delay(Duration::ZERO), 1);
    faulty.inject_times(Call::List, "lease", Fault::Delay(Duration::from_secs(60)), 1);
    let slow = checkpoint(&store, &first, 1, local.freeze(0, &["000001.sst"]), None);
    let meanwhile = async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        Lease::break_held(&store, "an operator").await.unwrap();
        let second = Lease::acquire(&store, "second", TTL).await.unwrap();
        assert_eq!(store.latest().await.unwrap().unwrap().manifest().id, 1);
        second
    };
    let (slow, second) = futures_util::join!(slow, meanwhile);
    assert!(slow.unwrap_err().is_fenced(), "the first owner must not commit: the second does");
    store.sweep(&second).await.unwrap();
    let saved = store.latest().await.unwrap().unwrap();
    saved.download_part(only_part(&saved), &local.path().join("r"), &[]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_file_that_cannot_be_read_is_named_and_can_be_broken() {
    let store = over(&FaultyStore::memory(), options());
    let first = Lease::acquire(&store, "first", TTL).await.unwrap();
    store.0.storage.put(&lease_path(first.epoch()), "{\"format\": 1, \"own").await.unwrap();
    let error = Lease::acquire(&store, "second", TTL).await.unwrap_err().to_string();
    assert!(error.contains("'job/lease/000001.json'") && error.contains("break its lease"), "{error}");
    Lease::break_held(&store, "an operator").await.unwrap();
    Lease::acquire(&store, "second", TTL).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn old_lease_files_do_not_pile_up() {
    let store = over(&FaultyStore::memory(), options());
    for _ in 0..50 {
        Lease::acquire(&store, "again", TTL).await.unwrap();
    }
    assert_eq!(store.0.storage.names("lease").await.unwrap(), ["000049.json", "000050.json"]);
    let record = read(&store.0.storage, 50).await.unwrap().unwrap();
    assert_eq!(record.fences.len(), FENCES);
}

#[tokio::test(start_paused = true)]
async fn renewing_survives_a_storage_that_fails_for_a_while() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let lease = Lease::acquire(&store, "first", TTL).await.unwrap();
    faulty.inject(Call::List, "", Fault::Fail);
    let heal = async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        faulty.heal();
        tokio::time::sleep(Duration::from_secs(100)).await;
    };
    let keep = lease.keep();
    match futures_util::future::select(std::pin::pin!(keep), std::pin::pin!(heal)).await {
        futures_util::future::Either::Left((error, _)) => panic!("{error}"),
        futures_util::future::Either::Right(_) => {}
    }
    let mut local = Local::new();
    local.write("000001.sst", b"one");
    let (saved, _) = checkpoint(&store, &lease, 1, local.freeze(0, &["000001.sst"]), None).await.unwrap();
    assert_eq!(saved.manifest().kind, Kind::Checkpoint);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_takes_long_does_not_undo_a_release() {
    let faulty = FaultyStore::memory();
    let (store, _) = timed(&faulty);
    let lease = Lease::acquire(&store, "first", TTL).await.unwrap();
    faulty.inject_times(Call::Put, "lease/", Fault::Delay(Duration::from_secs(5)), 1);
    let releasing = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        lease.release().await
    };
    let (renewed, released) = futures_util::join!(lease.renew(), releasing);
    renewed.unwrap();
    released.unwrap();
    let record = read(&store.0.storage, lease.epoch()).await.unwrap().unwrap();
    assert!(record.released, "{record:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_may_still_land_is_kept_from_counting_before_the_job_begins_again() {
    let faulty = FaultyStore::memory();
    let store = over(&faulty, options());
    let mut local = Local::new();
    local.write("000001.sst", b"one");
    let lease = Lease::acquire(&store, "first", TTL).await.unwrap();
    checkpoint(&store, &lease, 1, local.freeze(0, &["000001.sst"]), None).await.unwrap();

    // The manifest fails to be written, and lands an hour later; and just then no new epoch can be taken, or not wholly.
    for (id, broken) in [(2, "lease/"), (3, "checkpoints")] {
        faulty.inject_times(
            Call::Put,
            &format!("checkpoints/{id:010}"),
            Fault::Late(Duration::from_secs(3600)),
            usize::MAX,
        );
        let call = if broken == "lease/" { Call::Put } else { Call::List };
        faulty.inject(call, broken, Fault::Fail);
        let unsure = checkpoint(&store, &lease, id, local.freeze(0, &["000001.sst"]), None).await;
        assert!(matches!(unsure, Err(CheckpointError::Unsure { .. })), "{unsure:?}");
        assert!(lease.settle(&store).await.is_err(), "it is not certain yet");
        faulty.heal();
        lease.settle(&store).await.unwrap();
        assert_eq!(store.latest().await.unwrap().unwrap().manifest().id, 1, "what the job begins from");
        tokio::time::sleep(Duration::from_secs(3700)).await;
        assert_eq!(store.latest().await.unwrap().unwrap().manifest().id, 1, "though {id} is there by now");
    }
    let next = store.next_id().await.unwrap();
    checkpoint(&store, &lease, next, local.freeze(0, &["000001.sst"]), None).await.unwrap();
    assert_eq!(store.latest().await.unwrap().unwrap().manifest().id, next);
}

#[tokio::test(start_paused = true)]
async fn breaking_a_lease_that_cannot_be_read_keeps_what_the_one_before_knew() {
    let store = over(&FaultyStore::memory(), options());
    let first = Lease::acquire(&store, "first", TTL).await.unwrap();
    first.reach(Reached { id: 7, savepoint: None });
    first.release().await.unwrap();
    let second = Lease::acquire(&store, "second", TTL).await.unwrap();
    assert_eq!(second.record().reached.map(|reached| reached.id), Some(7));
    store.0.storage.put(&lease_path(second.epoch()), "{\"format\": 1, \"own").await.unwrap();
    Lease::break_held(&store, "an operator").await.unwrap();
    let third = Lease::acquire(&store, "third", TTL).await.unwrap();
    let record = third.record();
    assert_eq!(record.reached.map(|reached| reached.id), Some(7));
    assert_eq!(record.fences.iter().map(|fence| fence.epoch).collect::<Vec<_>>(), [1, 4]);
}
