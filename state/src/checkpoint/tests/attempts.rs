//! Attempt records: what they look like, and that they do not pile up.

use super::support::*;
use crate::checkpoint::faults::FaultyStore;
use crate::checkpoint::*;

fn record(id: u64, outcome: Outcome) -> AttemptRecord {
    AttemptRecord {
        format: AttemptRecord::FORMAT,
        id,
        epoch: 1,
        attempt: 2,
        kind: Kind::Checkpoint,
        mode: Mode::ExactlyOnce,
        triggered_ms: 1_000,
        ended_ms: 11_000,
        outcome,
        phases: Phases { trigger_ms: Some(1), align_ms: Some(12), ..Phases::default() },
        acknowledged: Acknowledged { tasks: 3, of: 4, latest_ms: Some(9_905) },
        tasks: vec![TaskRecord {
            uid: "window".into(),
            subtask: 1,
            phases: Phases { freeze_ms: Some(3), upload_ms: Some(9_900), ..Phases::default() },
            full_bytes: 1_000_000,
            uploaded_bytes: 10_000,
            missing: vec![MissingChannel { from: "behaviour[0]".into(), waited_ms: 8_000 }],
            ..TaskRecord::default()
        }],
    }
}

#[tokio::test(start_paused = true)]
async fn every_attempt_leaves_a_record_and_the_oldest_go() {
    let store = over(&FaultyStore::memory(), StoreOptions { records: 3, ..options() });
    assert!(store.attempts(10).await.unwrap().is_empty());
    let outcomes = [
        Outcome::Completed,
        Outcome::Failed("no answer".into()),
        Outcome::Expired("file 000003.sst of window[1]: sending for 10.0 s".into()),
        Outcome::Declined("window[1]: value of table 'counts' cannot be encoded".into()),
        Outcome::Aborted("the job stopped".into()),
    ];
    for (id, outcome) in (1..).zip(outcomes.clone()) {
        store.record_attempt(&record(id, outcome)).await.unwrap();
    }
    let records = store.attempts(10).await.unwrap();
    assert_eq!(records.iter().map(|record| record.id).collect::<Vec<_>>(), [5, 4, 3]);
    assert_eq!(records[2], record(3, outcomes[2].clone()));
    assert_eq!((records[0].full_bytes(), records[0].uploaded_bytes()), (1_000_000, 10_000));
    assert_eq!(store.attempts(1).await.unwrap().len(), 1);
    let text = store.0.storage.read("attempts/0000000004-000001.json").await.unwrap().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(json["outcome"]["outcome"], "declined");
    assert_eq!(json["outcome"]["why"], "window[1]: value of table 'counts' cannot be encoded");
    assert_eq!(json["tasks"][0]["missing"][0]["from"], "behaviour[0]");
    assert_eq!(json["mode"], "exactly-once");
    assert_eq!(json["acknowledged"], serde_json::json!({"tasks": 3, "of": 4, "latest_ms": 9_905}));
}

#[test]
fn phases_are_told_in_their_order_and_the_longest_counts() {
    let one = Phases { trigger_ms: Some(7), upload_ms: Some(2), ..Phases::default() };
    let other = Phases { freeze_ms: Some(0), upload_ms: Some(3), ..Phases::default() };
    let both: Vec<_> = one.longest(&other).reached().collect();
    assert_eq!(both, [("trigger", 7), ("freeze", 0), ("upload", 3)]);
}

#[test]
fn a_record_of_a_version_before_is_read() {
    let mut json = serde_json::to_value(record(7, Outcome::Completed)).unwrap();
    json.as_object_mut().unwrap().remove("acknowledged");
    let read: AttemptRecord = serde_json::from_value(json).unwrap();
    assert_eq!((read.id, read.acknowledged), (7, Acknowledged::default()));
}

#[tokio::test(start_paused = true)]
async fn what_was_complete_is_known_by_its_record_or_by_the_lease() {
    let store = over(&FaultyStore::memory(), options());
    let lease = Lease::acquire(&store, "test", TTL).await.unwrap();
    assert_eq!(store.reached_after(0, &lease).await.unwrap(), None);
    for (id, outcome) in [(4, Outcome::Completed), (5, Outcome::Completed), (6, Outcome::Failed("x".into()))]
    {
        store.record_attempt(&record(id, outcome)).await.unwrap();
    }
    let savepoint = AttemptRecord { kind: Kind::Savepoint, ..record(7, Outcome::Completed) };
    store.record_attempt(&savepoint).await.unwrap();
    let at = |id: u64| Some(Reached { id, savepoint: None });
    assert_eq!(store.reached_after(4, &lease).await.unwrap(), at(5));
    assert_eq!(store.reached_after(5, &lease).await.unwrap(), None, "a savepoint may be removed");
    store.0.storage.put("attempts/0000000008-000001.json", "garbage").await.unwrap();
    assert_eq!(store.reached_after(0, &lease).await.unwrap(), at(5), "what cannot be read says nothing");
    assert_eq!(store.next_id().await.unwrap(), 9);

    let stopped = Reached { id: 7, savepoint: Some("stop".into()) };
    lease.reach(stopped.clone());
    lease.reach(Reached { id: 2, savepoint: None });
    lease.release().await.unwrap();
    let next = Lease::acquire(&store, "next", TTL).await.unwrap();
    assert_eq!(store.reached_after(6, &next).await.unwrap(), Some(stopped));
    next.reach(Reached { id: 30, savepoint: None });
    next.renew().await.unwrap();
    assert_eq!(store.next_id().await.unwrap(), 31);
}
