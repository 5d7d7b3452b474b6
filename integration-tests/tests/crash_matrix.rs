//! Every fail point of the protocol, at every parallelism and on every backend: files and profile are those of the run without it.
//!
//! No case ends by the clock: the job runs without end until its point has fired and a checkpoint has completed after that; then
//! another process, as it were, reads to the end.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fail::FailScenario;
use weir_connectors::file::{FileSink, visible_lines};
use weir_connectors::generator::Generator;
use weir_connectors::random::Random;
use weir_engine::prelude::*;
use weir_engine::testkit::{run_within, until};
use weir_operators::prelude::*;
use weir_state::KEY_GROUPS;
use weir_state::checkpoint::Outcome;
use weir_state::profile::{Digest, ProfileUpdate, Profiles};

/// How a step that fails shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shows {
    /// The attempt fails, and another follows.
    Restart,
    /// As above, but only at the end of a bounded input, once for each task.
    RestartAtEnd,
    /// The attempt goes on; the checkpoint fails, and its record says so.
    Record,
    /// Nothing fails: what should have been deleted stays for now.
    Leftovers,
}

/// Where a step of the protocol can fail, and how that shows.
const POINTS: &[(&str, Shows)] = &[
    ("task::before_freeze", Shows::Restart),
    ("task::after_barrier", Shows::Restart),
    ("task::before_notice", Shows::Restart),
    ("task::before_end", Shows::RestartAtEnd),
    ("task::after_end", Shows::RestartAtEnd),
    ("snapshot::before_write", Shows::Record),
    ("snapshot::after_write", Shows::Record),
    ("store::before_freeze", Shows::Record),
    ("checkpoint::before_upload", Shows::Record),
    ("checkpoint::after_upload", Shows::Record),
    ("checkpoint::before_publish", Shows::Record),
    ("checkpoint::after_publish", Shows::Record),
    ("checkpoint::before_delete", Shows::Leftovers),
    ("sink::before_commit", Shows::Restart),
    ("sink::after_commit", Shows::Restart),
    ("file_sink::before_sync", Shows::Restart),
    ("file_sink::before_rename", Shows::Restart),
    ("file_sink::after_rename", Shows::Restart),
    ("file_sink::before_folder_sync", Shows::Restart),
    (RESTORE, Shows::Restart),
];

/// Nothing is restored unless something else has failed.
const RESTORE: &str = "restore::before_open";

const SOON: Duration = Duration::from_secs(60);
const KEYS: u64 = 97;
const WINDOW_MS: u64 = 100;

fn key(i: u64) -> u64 {
    i * 31 % KEYS
}

fn profiles() -> Profiles {
    Profiles::named("keys").int_tag("records").int_tag("sum").set_tag("last_digits")
}

fn update(i: u64) -> ProfileUpdate {
    ProfileUpdate::of(key(i))
        .increment("records", 1)
        .increment("sum", i as i64)
        .add("last_digits", (i % 10).to_string())
}

/// What the first `n` records leave, by a plain loop: key, window and sum of every window, and the profile.
fn expected(n: u64) -> (Vec<String>, Digest) {
    let (mut sums, space) = (BTreeMap::new(), profiles());
    let mut writer = space.writer(0..KEY_GROUPS, 1).unwrap();
    for i in 0..n {
        *sums.entry((key(i), i / WINDOW_MS * WINDOW_MS)).or_insert(0u64) += i;
        writer.apply(update(i).at(i as i64)).unwrap();
    }
    writer.publish(n as i64);
    let mut lines: Vec<String> =
        sums.iter().map(|((k, start), sum)| format!("[{k},{start},{sum}]")).collect();
    lines.sort();
    (lines, space.reader().digest().value)
}

/// One case: a fail point, and the job that meets it.
struct Case {
    point: &'static str,
    shows: Shows,
    /// How often the point is passed first.
    passes: usize,
    parallelism: usize,
    state: StateBackend,
    /// Failed checkpoints that the job puts up with.
    tolerates: u32,
    folder: tempfile::TempDir,
    /// How many records there have been, in all lives.
    made: Arc<AtomicU64>,
}

impl Case {
    fn name(&self) -> String {
        let Case { point, passes, parallelism, state, tolerates, .. } = self;
        format!(
            "{point} after {passes}, parallelism {parallelism}, {tolerates} failures tolerated, {state:?}"
        )
    }

    fn at(&self, what: &str) -> PathBuf {
        self.folder.path().join(what)
    }

    /// `n` records, or records without end; one a millisecond of event time, its key a function of its number.
    fn job(&self, n: Option<u64>, rate: f64, profiles: &Profiles, tolerates: u32) -> Job {
        let checkpoints = Checkpoints::to(self.at("checkpoints").display().to_string())
            .every(Duration::from_millis(10))
            .retain(1)
            .tolerate_failures(tolerates);
        let job = Job::named("matrix")
            .parallelism(self.parallelism)
            .state(self.state.clone().folder(self.at("state")))
            .checkpoints(checkpoints)
            .restart(RestartPolicy::FixedDelay { restarts: 20, delay: Duration::ZERO });
        let made = self.made.clone();
        let make = move |i: u64, _: &mut Random| {
            made.fetch_max(i + 1, Ordering::Relaxed);
            (i, EventTime(i as i64))
        };
        let numbers = job
            .source("numbers", Generator::new(1, n, make).rate(rate))
            .source_time(Watermarks::monotonic())
            .shared();
        numbers
            .stream()
            .key_by("by-key", |i| key(*i))
            .window(Tumbling::of(Duration::from_millis(WINDOW_MS)))
            .aggregate("sums", sum(|i: &u64| *i))
            .map(|w: WindowResult<u64, u64>| (w.key, w.window.start.millis(), w.value))
            .sink("files", FileSink::json_lines(self.at("out")));
        numbers.stream().map(update).update_profile("profile", profiles);
        job
    }

    /// It passes so many times, fails once, and passes from then on; what shows only when it goes on fails until it shows.
    fn arm(&self) {
        let action = match self.shows {
            Shows::Leftovers => format!("{}*off->return", self.passes),
            _ => format!("{}*off->1*return->off", self.passes),
        };
        if self.point == RESTORE {
            fail::cfg("task::before_notice", "5*off->1*return->off").unwrap();
        }
        fail::cfg(self.point, &action).unwrap();
    }

    /// What the job has to show for the failure.
    fn shown(&self, job: &JobHandle) -> bool {
        match self.shows {
            Shows::Restart | Shows::RestartAtEnd => {
                let of_this = if self.point == RESTORE { self.point } else { "fail point" };
                job.history().iter().any(|s| s.state == JobState::Suspended && s.why.contains(of_this))
            }
            Shows::Record => {
                let failed = |o: &Outcome| matches!(o, Outcome::Failed(why) if why.contains(self.point));
                job.checkpoints().iter().any(|c| failed(&c.outcome))
            }
            Shows::Leftovers => manifests(&self.at("checkpoints")) >= 4,
        }
    }

    /// The life in which the point fires. It ends as a job does that is cancelled, or by itself when it tolerates nothing.
    fn first_life(&self) {
        let name = self.name();
        if self.shows != Shows::RestartAtEnd {
            self.arm();
        }
        let job = self.job(None, 20_000.0, &profiles(), self.tolerates).start().unwrap();
        if self.shows == Shows::Record && self.tolerates == 0 {
            let error = job.wait_for(SOON).unwrap_or_else(|| panic!("{name}: it did not fail")).unwrap_err();
            assert!(matches!(error, JobError::Checkpoints { .. }), "{name}: {error}");
            assert!(error.to_string().contains(self.point), "{name}: {error}");
            return assert!(self.shown(&job), "{name}: {:?}", job.checkpoints());
        }
        let going_on = |what: &str, condition: &dyn Fn() -> bool| {
            until(&job, SOON, &format!("{what} ({name})"), || job.is_over() || condition());
            assert!(!job.is_over(), "{name}: {:?}", job.wait());
        };
        if self.shows != Shows::RestartAtEnd {
            going_on("the failure", &|| self.shown(&job));
        }
        if self.shows == Shows::Leftovers {
            fail::remove(self.point);
            going_on("the deletion", &|| manifests(&self.at("checkpoints")) <= 2);
        }
        let before = newest(&job);
        going_on("two checkpoints after it", &|| newest(&job) >= before + 2);
        job.cancel();
        let ended = job.wait_for(SOON).expect("it hears a cancel");
        assert!(matches!(ended, Err(JobError::Cancelled { .. })), "{name}: {ended:?}");
    }

    /// The job with the failure, and the one after it: what they leave is what a run that never failed leaves.
    fn run(self) {
        let scenario = FailScenario::setup();
        let name = self.name();
        self.first_life();
        if self.shows == Shows::RestartAtEnd {
            self.arm();
        }
        let (n, profiles) = (self.made.load(Ordering::Relaxed) + 1_000, profiles());
        let report = run_within(self.job(Some(n), 1e9, &profiles, 100), SOON)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        // In that life nothing fails, unless the point is at the end.
        assert_eq!(
            report.attempts > 1,
            self.shows == Shows::RestartAtEnd,
            "{name}: {} attempts",
            report.attempts
        );
        let (lines, digest) = expected(n);
        let found = visible_lines(self.at("out")).unwrap();
        assert!(found == lines, "{name}: {} rows, expected {}", found.len(), lines.len());
        let index = profiles.reader().digest().value;
        assert!(index == digest, "{name}: the profile is another");
        assert_eq!(manifests(&self.at("checkpoints")), 1, "{name}: old checkpoints are left behind");
        scenario.teardown();
    }
}

/// How many complete checkpoints lie in the storage.
fn manifests(checkpoints: &Path) -> usize {
    fs::read_dir(checkpoints.join("matrix").join("checkpoints"))
        .map_or(0, |entries| entries.flatten().count())
}

/// The number of the newest complete checkpoint.
fn newest(job: &JobHandle) -> u64 {
    let completed = job.checkpoints().into_iter().filter(|c| c.outcome == Outcome::Completed);
    completed.map(|c| c.id).max().unwrap_or(0)
}

fn matrix(state: fn() -> StateBackend) {
    let soak = std::env::var_os("WEIR_SOAK").is_some();
    let passes: &[usize] = if soak { &[0, 1, 2, 5, 11] } else { &[2] };
    for (point, shows) in POINTS.iter().copied() {
        for parallelism in [1, 2, 3] {
            let case = |passes: usize, tolerates: u32| Case {
                point,
                shows,
                passes,
                parallelism,
                state: state(),
                tolerates,
                folder: tempfile::tempdir().unwrap(),
                made: Arc::default(),
            };
            match point {
                // Each of two operators opens a store for each subtask, in the first attempt in vain.
                RESTORE => case(2 * parallelism, 100).run(),
                _ if shows == Shows::RestartAtEnd => case(0, 100).run(),
                _ => passes.iter().for_each(|passes| case(*passes, 100).run()),
            }
            if shows == Shows::Record {
                passes.iter().for_each(|passes| case(*passes, 0).run());
            }
        }
    }
}

#[test]
fn every_fail_point_at_every_parallelism_in_memory() {
    matrix(StateBackend::memory);
}

#[test]
fn every_fail_point_at_every_parallelism_on_rocksdb() {
    matrix(StateBackend::rocksdb);
}
