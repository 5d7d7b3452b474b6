//! What the record of an attempt says of each task, when it was complete and when it was not.

use std::sync::Arc;

use weir_state::checkpoint::{FileReport, Kind, Mode, Part, UploadReport};
use weir_state::store::PartFormat;

use super::*;
use crate::ids::CheckpointId;
use crate::job::Job;
use crate::runtime::stats::TaskStats;
use crate::testkit::{NullSink, ScriptSource};

const ID: CheckpointId = CheckpointId(7);

/// Two sources, and a chain that takes both.
fn plan() -> Plan {
    let job = Job::named("j").parallelism(1);
    let slow = job.source("slow", ScriptSource::of([(1, 0)])).without_event_time();
    let fast = job.source("fast", ScriptSource::of([(1, 0)])).without_event_time();
    slow.union(fast).sink("out", NullSink);
    job.plan().unwrap()
}

fn draft(ended: &[bool], now: Instant) -> Draft {
    let record = AttemptRecord {
        format: AttemptRecord::FORMAT,
        id: ID.0,
        epoch: 1,
        attempt: 1,
        kind: Kind::Checkpoint,
        mode: Mode::ExactlyOnce,
        triggered_ms: 0,
        ended_ms: 0,
        outcome: Outcome::Aborted(String::new()),
        phases: Phases::default(),
        acknowledged: Acknowledged::default(),
        tasks: Vec::new(),
    };
    let mut draft = Draft::new(&plan(), record, ended, now);
    draft.told(now);
    draft
}

fn parts(uid: &str, upload_ms: u64) -> TaskParts {
    let file = |name: &str, upload_ms| FileReport {
        name: name.into(),
        bytes: 50,
        reused: upload_ms == 0,
        queue_ms: 0,
        upload_ms,
        failures: 0,
    };
    let part = Part {
        subtask: 0,
        key_groups: 0..128,
        format: PartFormat::Portable,
        tables: Vec::new(),
        items: std::collections::BTreeMap::default(),
        files: Vec::new(),
        finished: false,
    };
    let files = vec![file("old", 0), file("new", upload_ms)];
    let report = UploadReport { part, files, bytes: 100, uploaded_bytes: 50, upload_ms };
    let written = Duration::from_millis(30);
    Arc::new(vec![Written { uid: uid.into(), parallelism: 1, written, report }])
}

fn file(uid: &str, name: &str, phase: UploadPhase, phase_ms: u64, error: Option<&str>) -> FileProgress {
    FileProgress {
        uid: uid.into(),
        subtask: 0,
        name: name.into(),
        bytes: 100,
        sent: 40,
        phase,
        phase_ms,
        failures: 0,
        error: error.map(str::to_owned),
    }
}

/// What tasks say of themselves; the last one has the barrier of one input, if told for how long.
fn readings(aligning: Option<Duration>) -> Vec<TaskReading> {
    let of = |chain: &str| TaskStats::new(TaskId { chain: chain.into(), subtask: 0 }).reading();
    let mut readings = vec![of("slow"), of("fast"), of("union")];
    if let Some(aligning_for) = aligning {
        readings[2].aligning = vec!["slow[0]".into()];
        readings[2].aligning_for = aligning_for;
    }
    readings
}

fn at(start: Instant, ms: u64) -> Instant {
    start + Duration::from_millis(ms)
}

fn froze(start: Instant, came: u64, began: u64, ended: u64) -> Froze {
    Froze { came: at(start, came), began: at(start, began), ended: at(start, ended) }
}

#[test]
fn a_busy_source_shows_as_its_own_trigger_and_not_as_alignment_behind_it() {
    let start = Instant::now();
    let mut draft = draft(&[false; 3], start);
    // The barrier of the fast one came at 5; the slow one was in a call of 10 s; then it took 20 ms through the channel.
    draft.froze(2, froze(start, 5, 10_020, 10_023));
    draft.froze(1, froze(start, 3, 3, 4));
    draft.froze(0, froze(start, 10_000, 10_000, 10_000));
    for (i, uid) in ["slow", "fast", "union"].into_iter().enumerate() {
        draft.wrote(i, &parts(uid, 9 + i as u64), at(start, 10_100 + i as u64));
    }
    draft.publishes(at(start, 10_200));
    let record = draft.close(Outcome::Completed, &readings(None), Vec::new(), at(start, 10_206), 77);
    let told = |i: usize| record.tasks[i].phases.reached().collect::<Vec<_>>();
    assert_eq!(told(0), [("trigger", 10_000), ("freeze", 0), ("write", 30), ("upload", 9)]);
    assert_eq!(told(1), [("trigger", 3), ("freeze", 1), ("write", 30), ("upload", 10)]);
    let behind = [("start_delay", 0), ("align", 20), ("freeze", 3), ("write", 30), ("upload", 11)];
    assert_eq!(told(2), behind);
    assert_eq!(
        record.phases.reached().collect::<Vec<_>>(),
        [
            ("trigger", 10_000),
            ("start_delay", 0),
            ("align", 20),
            ("freeze", 3),
            ("write", 30),
            ("upload", 11),
            ("publish", 6)
        ]
    );
    let acknowledged = Acknowledged { tasks: 3, of: 3, latest_ms: Some(10_102) };
    assert_eq!((record.acknowledged.clone(), record.ended_ms), (acknowledged, 77));
    assert_eq!((record.full_bytes(), record.uploaded_bytes()), (300, 150));
    assert_eq!(record.tasks[2].slowest[0].name, "new");
}

#[test]
fn a_barrier_behind_records_shows_as_start_delay() {
    let start = Instant::now();
    let mut draft = draft(&[false; 3], start);
    (0..2).for_each(|i| draft.froze(i, froze(start, 1, 1, 2)));
    let waits = draft.so_far(&readings(None), Vec::new(), at(start, 500));
    assert_eq!(waits.tasks[2].phases.reached().collect::<Vec<_>>(), [("start_delay", 498)], "so far");
    draft.froze(2, froze(start, 902, 1_000, 1_000));
    let came = draft.so_far(&readings(None), Vec::new(), at(start, 2_000));
    assert_eq!(
        came.tasks[2].phases.reached().collect::<Vec<_>>(),
        [("start_delay", 900), ("align", 98), ("freeze", 0)]
    );
}

#[test]
fn an_attempt_that_failed_says_what_was_done_and_what_was_not() {
    let start = Instant::now();
    let mut draft = draft(&[false; 3], start);
    draft.froze(0, froze(start, 2, 2, 3));
    draft.wrote(0, &parts("slow", 9), at(start, 50));
    draft.froze(1, froze(start, 4, 4, 9));
    draft.declined(2, "no room");
    assert_eq!(draft.waits_for(), (vec![2], vec![1]));
    let files = vec![
        file("fast", "sent", UploadPhase::Done, 900, None),
        file("fast", "waits", UploadPhase::Queued, 800, None),
        file("fast", "refused", UploadPhase::Failed, 1, Some("403")),
        file("elsewhere", "x", UploadPhase::Sending, 1, None),
    ];
    let aligning = Some(Duration::from_millis(60));
    let record = draft.close(Outcome::Failed("403".into()), &readings(aligning), files, at(start, 100), 5);
    assert_eq!(record.acknowledged, Acknowledged { tasks: 1, of: 3, latest_ms: Some(50) });
    let [slow, fast, union] = &record.tasks[..] else { panic!("{record:?}") };
    assert_eq!((slow.full_bytes, slow.slowest.len(), slow.phases.upload_ms), (100, 2, Some(9)));
    assert_eq!((fast.full_bytes, fast.uploaded_bytes), (0, 120));
    assert_eq!(fast.phases.reached().collect::<Vec<_>>(), [("trigger", 4), ("freeze", 5)]);
    let names: Vec<_> = fast.unfinished.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["refused", "waits"], "who failed is told first, who is through is not");
    assert_eq!(union.missing, [MissingChannel { from: "slow[0]".into(), waited_ms: 60 }]);
    assert_eq!(union.declined.as_deref(), Some("no room"));
    assert_eq!(union.phases.reached().collect::<Vec<_>>(), [("start_delay", 31), ("align", 60)]);
    assert_eq!(record.phases.publish_ms, None, "it never came to that");
}

#[test]
fn a_task_that_has_ended_waits_for_no_barrier() {
    let start = Instant::now();
    let mut draft = draft(&[true, false, false], start);
    assert_eq!(draft.waits_for(), (vec![1, 2], vec![0]));
    draft.ended(1);
    assert_eq!(draft.waits_for(), (vec![2], vec![0, 1]));
    draft.wrote(0, &parts("slow", 9), at(start, 50));
    let record = draft.so_far(&readings(None), Vec::new(), at(start, 100));
    assert_eq!(record.tasks[0].phases.reached().collect::<Vec<_>>(), [("write", 30), ("upload", 9)]);
    assert_eq!(record.tasks[1].phases, Phases::default());
    assert_eq!(record.tasks[2].phases.reached().collect::<Vec<_>>(), [("start_delay", 100)]);
}

#[test]
fn commits_are_told_of_each_sink_and_the_latest_of_all() {
    let start = Instant::now();
    let mut draft = draft(&[false; 3], start);
    draft.wrote(1, &parts("fast", 9), start);
    draft.wrote(2, &parts("out", 9), start);
    let mut record = draft.close(Outcome::Completed, &readings(None), Vec::new(), at(start, 9), 5);
    let sink = |uid: &str| {
        let (uid, attempt) = (uid.into(), crate::ids::AttemptId::FIRST);
        Committed { uid, subtask: 0, attempt, checkpoint: Some(ID) }
    };
    add_commits(&mut record, at(start, 9), &[(sink("out"), at(start, 40)), (sink("fast"), at(start, 9))]);
    let told: Vec<_> = record.tasks.iter().map(|task| task.phases.commit_ms).collect();
    assert_eq!((record.phases.commit_ms, told), (Some(31), vec![None, Some(0), Some(31)]));
    assert_eq!(said(&record.phases), "trigger 9 ms, write 30 ms, upload 9 ms, commit 31 ms");
}
