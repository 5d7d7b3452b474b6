//! A cancel while a task waits for its snapshot to be written, which takes long: the job begins again at once.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_connectors::file::FileSink;
use weir_engine::prelude::*;
use weir_engine::testkit::{NullSink, until};
use weir_engine::{Operator, OperatorInfo};
use weir_operators::prelude::*;

use crate::children::child as process;
use crate::rig::*;

const POINT: &str = "snapshot::before_write";
/// Far less than a cancel may take: after that threads would be left behind.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Keeps nothing, and fails once when it is told to.
#[derive(Clone)]
struct Fails(Arc<AtomicBool>);

impl Operator<(u64, u64)> for Fails {
    type Out = u64;
    fn process(&mut self, _: Record<(u64, u64)>, _: &mut impl Collector<u64>) -> Result<()> {
        if self.0.swap(false, Ordering::SeqCst) { Err(TaskError::user("once")) } else { Ok(()) }
    }
}

/// What the task with the state waits for.
enum For {
    /// To freeze again: the checkpoint before was given up.
    Barrier,
    /// For memory: every record has a key of its own.
    Memory,
}

fn waits(rig: &Rig, what: &For) {
    let (holds, holding) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let hold = {
        let (holds, holding) = (holds.clone(), holding.clone());
        move || {
            holding.store(true, Ordering::SeqCst);
            while holds.load(Ordering::SeqCst) {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
    };
    fail::cfg_callback(POINT, hold).unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let (timeout, spread) = match what {
        For::Barrier => (Duration::from_millis(100), false),
        For::Memory => (SOON, true),
    };
    let job = rig
        .empty_job(1, rig.checkpoints().timeout(timeout))
        .state(StateBackend::rocksdb().folder(rig.at("state")).cache_bytes(4 << 10))
        .restart(RestartPolicy::FixedDelay { restarts: 1, delay: Duration::ZERO });
    job.source("numbers", numbers(None, 20_000.0, &rig.made))
        .without_event_time()
        .key_by("by-key", move |(key, i)| if spread { *i } else { *key })
        .process(TOTALS, Totals)
        .sink("out", FileSink::json_lines(rig.at("out")));
    job.source("others", numbers(None, 1_000.0, &Arc::default()))
        .without_event_time()
        .transform(OperatorInfo::stateless("fails"), Fails(fails.clone()))
        .sink("nowhere", NullSink);
    let job = job.start().unwrap();

    let (mut last, mut since) = (0, Instant::now());
    until(&job, SOON, "a task that waits", || {
        let now = counted(&job);
        if now != last || !holding.load(Ordering::SeqCst) {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_millis(500)
    });
    fails.store(true, Ordering::SeqCst);
    let began = Instant::now();
    let lives = || job.history().iter().filter(|s| s.state == JobState::Running).count();
    until(&job, SOON, "the next life", || job.is_over() || lives() == 2);
    assert!(!job.is_over(), "{:?}", job.wait());
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    holds.store(false, Ordering::SeqCst);
    fail::remove(POINT);
    until_completed(&job, 2);
    cancelled(&job);
}

pub(crate) fn child(folder: PathBuf) {
    waits(&Rig::at_path("waits at a barrier", folder.join("barrier")), &For::Barrier);
    waits(&Rig::at_path("waits for memory", folder.join("memory")), &For::Memory);
}

#[test]
fn a_task_that_waits_for_its_snapshot_hears_that_another_has_failed() {
    let folder = tempfile::tempdir().unwrap();
    let output = process("waiting", folder.path()).output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", said(&output.stdout), said(&output.stderr));
}
