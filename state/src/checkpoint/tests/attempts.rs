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
}
