//! When a job that dies too often is not started any more.

use std::sync::atomic::Ordering;

use super::*;
use crate::checkpoint::StoreOptions;
use crate::checkpoint::faults::FaultyStore;
use crate::checkpoint::tests::support::*;

const NOW: i64 = 1_764_443_852_000;
const WITHIN: Duration = Duration::from_secs(600);

fn at(ms: i64) -> Restart {
    let died = "'worker' (process 7 on here)".to_owned();
    Restart { at_ms: ms, died, started_ms: ms - 90_000, heard_ms: ms - 30_000 }
}

#[test]
fn only_the_deaths_of_late_count() {
    let ago = |seconds: i64| at(NOW - seconds * 1000);
    allow("job", NOW, &[], 3, WITHIN).unwrap();
    allow("job", NOW, &[ago(601), ago(600), ago(599), ago(1)], 3, WITHIN).unwrap();
    allow("job", NOW, &[ago(1), ago(1)], 0, WITHIN).unwrap();
    let refused = allow("job", NOW, &[ago(900), ago(500), ago(300), ago(20)], 3, WITHIN).unwrap_err();
    assert_eq!(refused.wait_ms, 100_000, "until the one of 500 s ago is 600 s old");
    assert_eq!(
        refused.to_string(),
        "job 'job' is not started: its process died 3 times within 10 min (limit 3), last found at 2025-11-29 19:17:12 UTC: 'worker' (process 7 on here) after at least 60 s, found at 2025-11-29 19:12:32 UTC: 'worker' (process 7 on here) after at least 60 s, found at 2025-11-29 19:09:12 UTC: 'worker' (process 7 on here) after at least 60 s; find out from its logs why it dies, then reset the restart history to start it at once, or wait 100 s"
    );
    allow("job", NOW + refused.wait_ms, &refused.restarts, 3, WITHIN).unwrap();
    allow("job", NOW + refused.wait_ms - 1, &refused.restarts, 3, WITHIN).unwrap_err();
}

#[test]
fn a_clock_that_went_wrong_does_not_keep_a_job_down_for_ever() {
    let ahead = |seconds: i64| at(NOW + seconds * 1000);
    allow("job", NOW, &[ahead(3_600), ahead(3_601), ahead(3_602)], 3, WITHIN).unwrap();
    // A small step back is not a way around it.
    allow("job", NOW, &[ahead(5), ahead(6), ahead(7)], 3, WITHIN).unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn deaths_are_counted_across_processes_and_clean_stops_are_not() {
    let (wall_ms, now) = hand_clock(NOW);
    let store = over(&FaultyStore::memory(), StoreOptions { wall_ms, ..options() });
    for death in 0..4_usize {
        let lease = Lease::acquire(&store, "a process", TTL).await.unwrap();
        let restarts = store.count_restart(&lease).await.unwrap();
        assert_eq!(restarts.len(), death);
        assert_eq!(allow(JOB, store.0.now(), &restarts, 3, WITHIN).is_ok(), death < 3);
        now.fetch_add(10_000, Ordering::SeqCst);
        // It dies.
        drop(lease);
    }
    let lease = Lease::acquire(&store, "a process", TTL).await.unwrap();
    let restarts = store.count_restart(&lease).await.unwrap();
    assert_eq!(restarts.len(), 4);
    assert_eq!(restarts[3].at_ms, NOW + 40_000);
    assert!(allow(JOB, store.0.now(), &restarts, 3, WITHIN).is_err());
    // It refuses to start, and says so by a clean stop.
    lease.release().await.unwrap();

    let lease = Lease::acquire(&store, "a process", TTL).await.unwrap();
    assert_eq!(store.count_restart(&lease).await.unwrap().len(), 4);
    store.reset_restarts().await.unwrap();
    assert!(store.restarts().await.unwrap().is_empty());
    lease.release().await.unwrap();

    store.0.storage.put(RESTARTS, "{}").await.unwrap();
    let error = store.restarts().await.unwrap_err().to_string();
    assert!(error.contains("'job/restarts.json'") && error.ends_with("reset the restart history"), "{error}");
}
