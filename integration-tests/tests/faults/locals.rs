//! Local state spread over several folders: each is used, and a restart takes its files from there.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_engine::prelude::*;
use weir_engine::testkit::until;
use weir_state::checkpoint::faults::{Call, Fault, FaultyStore};

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
