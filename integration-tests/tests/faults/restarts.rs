//! Two hundred restarts from checkpoints in a row (for an hour under soak): the output is exact, and nothing piles up.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_connectors::file::FileSink;
use weir_engine::prelude::*;
use weir_engine::testkit::{thread_names, until};
use weir_operators::prelude::*;

use crate::children::child as process;
use crate::rig::*;

/// Of the job within itself, each time it is started.
const WITHIN: u64 = 10;
const PARALLELISM: usize = 2;

/// [`Totals`] that fail when told to, and count how often they were opened.
#[derive(Clone)]
pub(crate) struct Failing {
    pub(crate) fails: Arc<AtomicBool>,
    pub(crate) opened: Arc<AtomicU64>,
}

impl ProcessFunction<u64, (u64, u64)> for Failing {
    type Out = (u64, u64);
    type State = u64;
    fn open(&mut self, _: &OperatorContext) -> Result<()> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn process(
        &mut self,
        record: Record<(u64, u64)>,
        cx: &mut KeyedContext<'_, u64, u64>,
        out: &mut impl Collector<(u64, u64)>,
    ) -> Result<()> {
        if self.fails.swap(false, Ordering::SeqCst) {
            return Err(TaskError::user("once more"));
        }
        Totals.process(record, cx, out)
    }
}

fn files(folder: &Path) -> usize {
    let below = fs::read_dir(folder).into_iter().flatten().flatten();
    below.map(|e| if e.path().is_dir() { files(&e.path()) } else { 1 }).sum()
}

/// What must not grow.
#[derive(Clone, Copy, Debug)]
struct Counts {
    open_files: usize,
    threads: usize,
    local_files: usize,
    stored_files: usize,
    unfinished: usize,
}

impl Counts {
    fn now(rig: &Rig) -> Counts {
        let hidden = |e: &fs::DirEntry| e.file_name().to_string_lossy().starts_with('.');
        let out = fs::read_dir(rig.at("out")).into_iter().flatten().flatten();
        Counts {
            open_files: fs::read_dir("/proc/self/fd").unwrap().count(),
            threads: thread_names().len(),
            local_files: files(&rig.at("state")),
            // Up to a hundred records of attempts are kept.
            stored_files: ["checkpoints", "shared", "lease"]
                .iter()
                .map(|part| files(&rig.at("checkpoints").join("restarts").join(part)))
                .sum(),
            unfinished: out.filter(hidden).count(),
        }
    }

    /// No more than before, but for what depends on the moment.
    fn assert_flat(self, before: Counts, slack: usize) {
        let flat = self.open_files <= before.open_files + slack
            && self.threads <= before.threads
            && self.local_files <= before.local_files + 2 * slack
            && self.stored_files <= before.stored_files + 2 * slack
            && self.unfinished <= before.unfinished + slack;
        assert!(flat, "before: {before:?}, after: {self:?}");
    }
}

pub(crate) fn child(folder: PathBuf) {
    let rig = Rig::at_path("restarts", folder);
    let (fails, opened) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let every = Duration::from_millis(if soak() { 100 } else { 5 });
    let job = |n: Option<u64>, rate: f64| {
        let job = rig
            .empty_job(PARALLELISM, rig.checkpoints().every(every).restarts_of_process(1, Duration::ZERO))
            .restart(RestartPolicy::FixedDelay { restarts: 1_000, delay: Duration::ZERO });
        job.source("numbers", numbers(n, rate, &rig.made))
            .without_event_time()
            .key_by("by-key", |(key, _)| *key)
            .process(TOTALS, Failing { fails: fails.clone(), opened: opened.clone() })
            .sink("out", FileSink::json_lines(rig.at("out")));
        job
    };
    let began = Instant::now();
    let (mut restarts, mut stopped, mut running) = (0, Vec::new(), Vec::new());
    while restarts < 200 || (soak() && began.elapsed() < Duration::from_secs(3_600)) {
        let handle = job(None, 1_000.0).start().unwrap();
        for _ in 0..WITHIN {
            until_completed(&handle, 1);
            let before = opened.load(Ordering::SeqCst);
            fails.store(true, Ordering::SeqCst);
            let again = || opened.load(Ordering::SeqCst) >= before + PARALLELISM as u64;
            until(&handle, SOON, "the next life", again);
            restarts += 1;
        }
        until_completed(&handle, 1);
        running.push(Counts::now(&rig));
        cancelled(&handle);
        // They end by themselves, once what they wait for has come.
        let storing = || thread_names().iter().any(|name| name.starts_with("weir-storage"));
        until(&handle, SOON, "the end of the threads that write", || !storing());
        drop(handle);
        stopped.push(Counts::now(&rig));
    }
    println!("{restarts} restarts in {:.1?}; {:?}", began.elapsed(), stopped.last());
    // The first ones make what is made once.
    let settled = 3;
    stopped[stopped.len() - 1].assert_flat(stopped[settled], 8);
    let most = |of: &[Counts], what: fn(&Counts) -> usize| of.iter().map(what).max().unwrap_or(0);
    let (early, late) = running.split_at(running.len() / 2);
    for what in [|c: &Counts| c.open_files, |c: &Counts| c.threads, |c: &Counts| c.local_files] {
        assert!(most(late, what) <= most(early, what) * 5 / 4 + 8, "{running:?}");
    }
    let n = rig.enough();
    finished(job(Some(n), 1_000_000.0));
    rig.assert_exact(n);
}

#[test]
fn e39_restarts_leave_no_file_no_thread_and_nothing_open() {
    let folder = tempfile::tempdir().unwrap();
    let output = process("restarts", folder.path()).stderr(Stdio::piped()).output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    println!("{}", said(&output.stdout));
    assert!(output.status.success(), "{}\n{}", said(&output.stdout), said(&output.stderr));
}
