//! Scenarios on real threads: a few runs each, in whatever order the machine makes of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::dice::Dice;
use super::spawn;

const RUNS: u64 = 20;
/// A scenario is over in milliseconds; one that hangs must not hang the build.
const LIMIT: Duration = Duration::from_secs(60);

static CHOICES: AtomicU64 = AtomicU64::new(1);

/// A number below `n`, for whatever a scenario leaves to chance.
pub(super) fn pick(n: u64) -> u64 {
    Dice::new(CHOICES.fetch_add(1, Ordering::Relaxed)).below(n)
}

/// Does it; the test harness keeps its panics from being shown.
pub(super) fn quietly<T>(run: impl FnOnce() -> T) -> T {
    run()
}

/// Runs the scenario a few times.
pub(super) fn explore(name: &str, scenario: impl Fn() + Send + Sync + 'static) {
    let (over, end) = channel();
    let running = spawn(name, move || {
        (0..RUNS).for_each(|_| scenario());
        drop(over);
    });
    let end: Result<(), _> = end.recv_timeout(LIMIT);
    assert!(!matches!(end, Err(RecvTimeoutError::Timeout)), "{name} hangs");
    if let Err(panic) = running.join() {
        std::panic::resume_unwind(panic);
    }
}
