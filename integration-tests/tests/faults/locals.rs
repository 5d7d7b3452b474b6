//! Local files: state spread over several folders is reused from each, and what is of no more use is removed.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_engine::prelude::*;
use weir_engine::testkit::{NullSink, until};
use weir_operators::prelude::*;
use weir_state::checkpoint::faults::{Call, Fault, FaultyStore};

use crate::restarts::Failing;
use crate::rig::*;

/// The data files below a folder.
fn tables(folder: &Path) -> usize {
    let below = fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    below
        .map(|path| match path.is_dir() {
            true => tables(&path),
            false => usize::from(path.extension().is_some_and(|e| e == "sst")),
        })
        .sum()
}

/// Ends the job with a failure, after which local files stay.
fn failed(job: &JobHandle, faulty: &FaultyStore) {
    faulty.inject(Call::Put, "shared/", Fault::Denied);
    assert!(job.checkpoint().is_err());
    assert!(matches!(job.wait_for(SOON).expect("it gives up"), Err(JobError::Checkpoints { .. })));
    faulty.heal();
}

#[test]
fn local_state_in_several_folders_is_reused_from_each() {
    let (rig, faulty) = Rig::in_faulty("several folders");
    let folders = [rig.at("disk-1"), rig.at("disk-2"), rig.at("disk-3")];
    let job = |n: Option<u64>, rate: f64, every: u64| {
        let state = folders.iter().fold(StateBackend::rocksdb(), |state, folder| state.folder(folder));
        let checkpoints = rig.checkpoints().every(Duration::from_millis(every)).tolerate_failures(0);
        let job = rig.empty_job(4, checkpoints).state(state);
        totals(&job, numbers(n, rate, &rig.made), &rig.at("out"));
        job
    };
    let first = job(None, 20_000.0, 20).start().unwrap();
    until_completed(&first, 3);
    failed(&first, &faulty);
    let used: Vec<usize> = folders.iter().map(|folder| tables(folder)).collect();
    assert!(used.iter().all(|tables| *tables > 0), "{used:?}");

    // As long as it has no checkpoint of its own, all that it knows is from the local files.
    let before = faulty.calls().len();
    let second = job(None, 20_000.0, 3_600_000).start().unwrap();
    until(&second, SOON, "records", || counted(&second) > 1_000);
    let fetched: Vec<String> = (faulty.calls().into_iter().skip(before))
        .filter(|(call, path)| *call == Call::Get && path.contains("/shared/"))
        .map(|(_, path)| path)
        .collect();
    assert!(fetched.is_empty(), "{fetched:?}");
    failed(&second, &faulty);

    // One disk is lost: its part comes from the storage. The life before may still be writing its last there.
    let began = Instant::now();
    while let Err(error) = fs::remove_dir_all(&folders[1]) {
        assert!(began.elapsed() < SOON, "{error}");
    }
    let before = faulty.calls().len();
    let n = rig.enough();
    let third = job(Some(n), 1_000_000.0, 20).start().unwrap();
    third.wait_for(SOON).expect("it ends").unwrap();
    let fetched =
        |of: &str| faulty.calls().iter().skip(before).any(|(c, path)| *c == Call::Get && path.contains(of));
    assert!(fetched("shared/totals/1/") && !fetched("shared/totals/0/") && !fetched("shared/totals/2/"));
    rig.assert_exact(n);
    assert!(folders.iter().all(|folder| tables(folder) == 0), "a clean end leaves no local files");
}

#[test]
fn a_job_without_checkpoints_leaves_no_local_files() {
    let folder = tempfile::tempdir().unwrap();
    let by_default = std::env::temp_dir().join("weir");
    let begins = format!("no-checkpoints-{}-", std::process::id());
    for state in [StateBackend::rocksdb(), StateBackend::rocksdb().folder(folder.path())] {
        for _ in 0..3 {
            let (fails, opened) = (Arc::new(AtomicBool::new(true)), Arc::<AtomicU64>::default());
            let restart = RestartPolicy::FixedDelay { restarts: 1, delay: Duration::ZERO };
            let job = Job::named("no-checkpoints").parallelism(2).state(state.clone()).restart(restart);
            job.source("numbers", numbers(Some(1_000), 1_000_000.0, &Arc::default()))
                .without_event_time()
                .key_by("by-key", |(key, _)| *key)
                .process(TOTALS, Failing { fails, opened: opened.clone() })
                .sink("out", NullSink);
            finished(job);
            assert_eq!(opened.load(Ordering::SeqCst), 4, "two lives of two subtasks");
        }
        let left = |of: &Path| {
            let names = fs::read_dir(of).into_iter().flatten().flatten().map(|e| e.file_name());
            names.filter_map(|name| name.into_string().ok()).collect::<Vec<_>>()
        };
        assert_eq!(left(folder.path()), Vec::<String>::new());
        let left: Vec<String> = left(&by_default).into_iter().filter(|n| n.starts_with(&begins)).collect();
        assert_eq!(left, Vec::<String>::new(), "in {}", by_default.display());
    }
}

/// Folders below this one with files that a store was restored from.
fn restored(folder: &Path) -> usize {
    let below = fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    let own = |path: &Path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("restored-"));
    below.filter(|path| path.is_dir()).map(|path| usize::from(own(&path)) + restored(&path)).sum()
}

#[test]
fn what_was_restored_is_forgotten_once_there_is_a_newer_checkpoint() {
    let rig = Rig::in_folder("forgets");
    let first = rig.job(2, None, 5_000.0, rig.checkpoints()).start().unwrap();
    until_completed(&first, 2);
    cancelled(&first);
    let rarely = rig.checkpoints().every(Duration::from_secs(3_600));
    let second = rig.job(2, None, 5_000.0, rarely).start().unwrap();
    until(&second, SOON, "records", || counted(&second) > 100);
    assert_eq!(restored(&rig.at("state")), 2, "one of each subtask");
    second.checkpoint().unwrap();
    second.checkpoint().unwrap();
    assert_eq!(restored(&rig.at("state")), 0);
    second.checkpoint().unwrap();
    cancelled(&second);
    rig.finish(3);
}

/// Folders of this kind below this one.
fn folders(below: &Path, kind: &str) -> usize {
    let own = |path: &Path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(kind));
    let entries = fs::read_dir(below).into_iter().flatten().flatten().map(|e| e.path());
    let dirs = entries.filter(|path| path.is_dir());
    dirs.map(|path| usize::from(own(&path)) + folders(&path, kind)).sum()
}

#[test]
fn snapshots_that_are_given_up_leave_no_local_files() {
    let (rig, faulty) = Rig::in_faulty("cuts");
    let job = rig.job(2, None, 5_000.0, rig.checkpoints().every(Duration::from_secs(3_600))).start().unwrap();
    until(&job, SOON, "records", || counted(&job) > 100);
    job.checkpoint().unwrap();
    faulty.inject(Call::Put, "shared/", Fault::Denied);
    for _ in 0..5 {
        let before = counted(&job);
        until(&job, SOON, "records", || counted(&job) > before + 100);
        job.checkpoint().unwrap_err();
    }
    faulty.heal();
    // What the complete one left is there for a restart.
    let left = || folders(&rig.at("state"), "cut-") == 2;
    until(&job, SOON, "only those of the complete one", left);
    job.savepoint("whole").unwrap();
    until(&job, SOON, "none of the savepoint", left);
    cancelled(&job);
    rig.finish(2);
}

/// Cannot be opened once it has been.
#[derive(Clone, Default)]
struct OpensOnce(Arc<AtomicU64>);

impl ProcessFunction<u64, (u64, u64)> for OpensOnce {
    type Out = (u64, u64);
    type State = u64;
    fn open(&mut self, _: &OperatorContext) -> Result<()> {
        match self.0.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(TaskError::external("not again")),
        }
    }
    fn process(
        &mut self,
        record: Record<(u64, u64)>,
        cx: &mut KeyedContext<'_, u64, u64>,
        _: &mut impl Collector<(u64, u64)>,
    ) -> Result<()> {
        *cx.state()? += record.value.1;
        if record.value.1 > 1_000 { Err(TaskError::external("for the first time")) } else { Ok(()) }
    }
}

#[test]
fn lives_that_never_open_leave_no_local_files() {
    let rig = Rig::in_folder("crash loop");
    let again = RestartPolicy::FixedDelay { restarts: u32::MAX, delay: Duration::from_millis(1) };
    let job = rig.empty_job(1, rig.checkpoints().every(Duration::from_secs(3_600))).restart(again);
    let opens = OpensOnce::default();
    job.source("numbers", numbers(None, 100_000.0, &rig.made))
        .without_event_time()
        .key_by("by-key", |(key, _)| *key)
        .process(TOTALS, opens.clone())
        .sink("out", NullSink);
    let job = job.start().unwrap();
    until(&job, SOON, "many lives", || opens.0.load(Ordering::SeqCst) > 12);
    until(&job, SOON, "few folders", || folders(&rig.at("state"), "life-") <= 3);
    job.cancel();
    // It may fail once more before it hears that.
    drop(job.wait_for(SOON).expect("it hears a cancel").unwrap_err());
}

#[test]
fn two_jobs_of_one_name_in_one_folder_do_not_touch_each_others_files() {
    let rig = Rig::in_folder("same name");
    let job = |checkpoints: Checkpoints, out: &str| {
        let job = rig.empty_job(2, checkpoints);
        totals(&job, numbers(None, 5_000.0, &rig.made), &rig.at(out));
        job.start().unwrap()
    };
    let elsewhere = Checkpoints::to(rig.at("elsewhere").display().to_string());
    let first = job(rig.checkpoints(), "out");
    let second = job(elsewhere.every(Duration::from_millis(20)), "out-2");
    until_completed(&first, 3);
    until_completed(&second, 3);
    assert_eq!(folders(&rig.at("state"), "same_20_name"), 2);
    // A clean end removes its own files and nobody else's.
    cancelled(&second);
    until_completed(&first, 3);
    let failed = |job: &JobHandle| {
        let all = job.checkpoints();
        all.into_iter().filter(|c| matches!(c.outcome, weir_state::checkpoint::Outcome::Failed(_))).count()
    };
    assert_eq!((failed(&first), failed(&second)), (0, 0));
    cancelled(&first);
    assert_eq!(folders(&rig.at("state"), "same_20_name"), 0);
    rig.finish(2);
}
