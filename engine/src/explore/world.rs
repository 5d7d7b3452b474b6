//! Jobs in a world of their own: their real tasks, their coordinator's real decisions, and a storage, a user and mistakes that do
//! what chance says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::outside::Outside;
use super::process::Process;
use super::shell::{After, Flaw};
use super::storage::{Inbox, Storage, Work};
use super::{once_in, spawn};
use crate::job::Job;
use crate::runtime::sync::Instant;
use crate::time::{Clock, SharedClock};

/// A clock that goes with the steps of the schedule.
#[derive(Debug)]
pub(super) struct StepClock(Instant);

impl StepClock {
    pub(super) fn shared() -> SharedClock {
        Arc::new(StepClock(Instant::now()))
    }
}

impl Clock for StepClock {
    fn now_ms(&self) -> i64 {
        self.elapsed().as_millis() as i64
    }
    fn elapsed(&self) -> Duration {
        Instant::now() - self.0
    }
}

/// Mistakes that may still happen.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    left: Arc<AtomicU64>,
}

impl Faults {
    pub(super) fn up_to(n: u64) -> Self {
        Faults { left: Arc::new(AtomicU64::new(n)) }
    }

    /// Does one happen here?
    pub(super) fn strike(&self, one_in: u64) -> bool {
        if self.left.load(Relaxed) == 0 || !once_in(one_in) {
            return false;
        }
        self.left.fetch_sub(1, Relaxed);
        true
    }

    pub(super) fn are_over(&self) -> bool {
        self.left.load(Relaxed) == 0
    }
}

/// What a scenario begins with, and what its operators share.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) sources: usize,
    /// Records of each subtask of the source.
    pub(super) each: u64,
    pub(super) outside: Outside,
    /// Of operators and the storage.
    pub(super) faults: Faults,
    /// Orders of the user's that end a process.
    pub(super) orders: Faults,
    pub(super) clock: SharedClock,
    pub(super) flaw: Flaw,
}

/// Runs the job, from process to process, until it has read everything; checks what it leaves outside.
pub(super) fn live_through(setting: &Setting, write: fn(&Setting) -> Job) {
    while live_once(setting, write(setting)) != After::Finished {}
    setting.outside.is_complete(&(0..setting.sources).map(|s| (s, setting.each)).collect());
}

/// One process: its mail and the threads of its storage end with it, and its numbers may come again in the next one.
fn live_once(setting: &Setting, job: Job) -> After {
    let (mail, mail_bell) = Inbox::new();
    let (work, work_bell) = Inbox::new();
    let storage = Storage::new(work);
    let (own, to, outside, faults) =
        (storage.clone(), mail.clone(), setting.outside.clone(), setting.faults.clone());
    let thread = spawn("storage", move || own.run(&work_bell, &to, &outside, &faults));
    let after = Process::new(setting, job, (&mail, &mail_bell), &storage).run();
    storage.work.put(Work::Close);
    thread.join().expect("the storage ends");
    after
}
