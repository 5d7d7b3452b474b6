//! `JobHandle`: a job while it runs. Look, wait, drain, cancel.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::JobError;
use super::control::JobControl;
use crate::coordinator::{Board, Cancel, CheckpointInFlight, Coordinator, Drain, Health, InjectBarrier};
use crate::element::{Barrier, EndKind};
use crate::memory::MemoryBudget;
use crate::plan::Plan;
use crate::runtime::address::Address;
use crate::runtime::stats::TaskReading;
use crate::state::Status;

/// A running job. Dropping the handle lets the job go on by itself.
///
/// ```
/// # use {std::time::Duration, weir_engine::{prelude::*, testkit::*}};
/// let job = Job::named("endless").parallelism(1);
/// job.source("in", ScriptSource::of([(1, 0)]).endless()).without_event_time().sink("out", NullSink);
/// let running = job.start()?;
/// until(&running, Duration::from_secs(10), "a record", || running.tasks().iter().any(|t| t.records_in > 0));
/// running.drain(EndKind::Flush);
/// running.wait()?;
/// let states: Vec<_> = running.history().iter().map(|status| status.state.to_string()).collect();
/// assert_eq!(states, ["CREATED", "PLANNED", "DEPLOYING", "RUNNING", "DRAINING", "FINISHED"]);
/// # Ok::<(), JobError>(())
/// ```
pub struct JobHandle {
    pub(super) board: Arc<Board>,
    pub(super) address: Address<Coordinator>,
    pub(super) thread: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for JobHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JobHandle({}, {})", self.board.plan().job, self.status().state)
    }
}

impl JobHandle {
    /// What was planned.
    pub fn plan(&self) -> &Plan {
        self.board.plan()
    }

    /// What its memory was planned to be, and what is measured of it.
    pub fn memory(&self) -> &MemoryBudget {
        self.board.memory()
    }

    /// The state it is in, and why.
    pub fn status(&self) -> Status {
        self.board.status()
    }

    /// Whether it is well, by its state and by the age of its last complete checkpoint; [`Health`] shows it.
    pub fn health(&self) -> Health {
        self.board.health()
    }

    /// Every state it has been in, oldest first.
    pub fn history(&self) -> Vec<Status> {
        self.board.history()
    }

    /// What each task of the current attempt counts about itself, now; nothing before there are tasks.
    pub fn tasks(&self) -> Vec<TaskReading> {
        self.board.readings()
    }

    /// What each task that has not exited is doing, in words.
    pub fn holding(&self) -> String {
        self.board.holding()
    }

    /// Stops the sources and lets what is in flight be processed; `Flush` fires every window and timer, `Keep` none. The
    /// first call decides. Before records flow it waits for that; between two attempts it cancels, and it ends restarts.
    /// Returns at once; [`JobHandle::wait`] tells how it went.
    pub fn drain(&self, kind: EndKind) {
        self.address.send(Drain(kind));
    }

    /// Ends every wait of the job at once, without flushing. Returns at once.
    ///
    /// ```
    /// # use {std::time::Duration, weir_engine::{prelude::*, testkit::*}};
    /// let job = Job::named("endless");
    /// job.source("in", ScriptSource::of([(1, 0)]).endless()).without_event_time().sink("out", NullSink);
    /// let running = job.start()?;
    /// assert!(running.wait_for(Duration::from_millis(1)).is_none());
    /// running.cancel();
    /// assert_eq!(running.wait().unwrap_err(), JobError::Cancelled { job: "endless".into() });
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn cancel(&self) {
        self.address.send(Cancel);
    }

    /// Puts a barrier into the stream of every source at its next batch edge. Returns at once; before records flow, and
    /// once sources end or drain, the barrier is lost.
    ///
    /// ```
    /// # use {std::time::Duration, weir_engine::{Barrier, CheckpointId, OperatorInfo, prelude::*, testkit::*}};
    /// let (job, probe) = (Job::named("endless").parallelism(1), Probe::new());
    /// let numbers = job.source("in", ScriptSource::of([(1, 0)]).endless()).without_event_time();
    /// numbers.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// let running = job.start()?;
    /// until(&running, Duration::from_secs(10), "a record", || !probe.values().is_empty());
    /// running.inject_barrier(Barrier { checkpoint: CheckpointId(7) });
    /// until(&running, Duration::from_secs(10), "it", || probe.seen_by(0).contains(&Seen::Barrier(7)));
    /// # running.cancel();
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn inject_barrier(&self, barrier: Barrier) {
        self.address.send(InjectBarrier(barrier));
    }

    /// Takes a checkpoint now, beside those that are due anyway; gives its number.
    ///
    /// *Blocking*: until it is complete.
    ///
    /// # Errors
    /// Why there is none: the job takes no checkpoints, is not running, or this one was given up.
    ///
    /// ```
    /// # use {std::time::Duration, weir_engine::{prelude::*, testkit::*}};
    /// let job = Job::named("endless").parallelism(1).checkpoints(Checkpoints::to("memory://doc-checkpoint"));
    /// job.source("in", ScriptSource::of([(1, 0)]).endless()).without_event_time().sink("out", NullSink);
    /// let running = job.start()?;
    /// until(&running, Duration::from_secs(10), "a record", || running.tasks().iter().any(|t| t.records_in > 0));
    /// assert_eq!(running.checkpoint().as_deref(), Ok("1"));
    /// let savepoint = running.stop_with_savepoint("before-the-upgrade").unwrap();
    /// assert!(savepoint.contains("before-the-upgrade") && running.wait().is_ok());
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn checkpoint(&self) -> Result<String, String> {
        self.ask(None, false)
    }

    /// Takes a savepoint: a checkpoint with a name, complete in its own folder, that no retention removes and from which a
    /// changed job may begin ([`crate::StartFrom::Savepoint`]). Gives its address.
    ///
    /// *Blocking*: until it is complete.
    ///
    /// # Errors
    /// As for [`JobHandle::checkpoint`]; also when there is one of that name.
    pub fn savepoint(&self, name: &str) -> Result<String, String> {
        self.ask(Some(name), false)
    }

    /// Drains the job, keeping windows and timers as they are, and leaves what its tasks remember as a savepoint. Gives its
    /// address.
    ///
    /// *Blocking*: until the savepoint is complete; [`JobHandle::wait`] tells how the job ended.
    ///
    /// # Errors
    /// As for [`JobHandle::savepoint`].
    pub fn stop_with_savepoint(&self, name: &str) -> Result<String, String> {
        self.ask(Some(name), true)
    }

    fn ask(&self, savepoint: Option<&str>, stop: bool) -> Result<String, String> {
        self.control().save(savepoint, stop)
    }

    /// The power to save and drain it, for others.
    pub(crate) fn control(&self) -> JobControl {
        JobControl { board: self.board.clone(), address: self.address.clone() }
    }

    /// What became of the last checkpoints, oldest first: phases, files, bytes, reasons.
    pub fn checkpoints(&self) -> Vec<weir_state::checkpoint::AttemptRecord> {
        self.board.checkpoints()
    }

    /// The checkpoints that are under way, a savepoint beside them included: who has acknowledged each, and who is waited for.
    pub fn checkpoints_in_flight(&self) -> Vec<CheckpointInFlight> {
        self.board.in_flight()
    }

    /// Waits for the job to be over. It can be asked again, with the same answer.
    ///
    /// *Blocking*: until then. Every thread of its tasks has been joined when it returns (unless the error is
    /// [`JobError::Stuck`], which names those that could not be); the first call to return joins the control thread too.
    ///
    /// # Errors
    /// How the job failed, or that it was cancelled.
    pub fn wait(&self) -> Result<JobReport, JobError> {
        match self.result(None) {
            Some(result) => result,
            None => Err(self.lost()),
        }
    }

    /// Like [`JobHandle::wait`], for at most `time`; none when the job is not over by then. [`JobHandle::cancel`] shows
    /// it.
    pub fn wait_for(&self, time: Duration) -> Option<Result<JobReport, JobError>> {
        self.result(Some(time))
    }

    /// What may be shown of it to others, without the power to stop it.
    pub(crate) fn view(&self) -> JobView {
        JobView { board: self.board.clone() }
    }

    /// True when the job is over.
    pub fn is_over(&self) -> bool {
        self.board.result().get().is_some()
    }

    fn lost(&self) -> JobError {
        JobError::Control { job: self.plan().job.clone(), reason: "the control thread went away".into() }
    }

    fn result(&self, time: Option<Duration>) -> Option<Result<JobReport, JobError>> {
        let result = self.board.result().wait(time)?;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The control thread returns right after it has given the result.
        if thread.map(JoinHandle::join).is_some_and(|joined| joined.is_err()) {
            return Some(Err(self.lost()));
        }
        Some(result)
    }
}

/// A job as others may see it.
#[derive(Clone)]
pub(crate) struct JobView {
    board: Arc<Board>,
}

impl std::fmt::Debug for JobView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JobView({})", self.plan().job)
    }
}

impl JobView {
    pub(crate) fn plan(&self) -> &Plan {
        self.board.plan()
    }

    pub(crate) fn status(&self) -> Status {
        self.board.status()
    }

    pub(crate) fn health(&self) -> Health {
        self.board.health()
    }

    /// Name, states and tasks, as JSON.
    pub(crate) fn describe(&self) -> serde_json::Value {
        let tasks = self.board.readings();
        let sinks: Vec<_> = tasks.iter().filter_map(|t| t.committed.clone()).collect();
        serde_json::json!({
            "job": self.plan().job,
            "status": self.status(),
            "history": self.board.history(),
            "tasks": tasks,
            "sinks": sinks,
            "memory": self.board.memory().describe(),
            "checkpoints_in_flight": self.board.in_flight(),
            "checkpoints": self.board.checkpoints(),
        })
    }
}

/// What a finished job leaves behind.
#[derive(Clone, Debug)]
pub struct JobReport {
    /// Its name.
    pub job: String,
    /// How many lives it had: 1 and a restart each.
    pub attempts: u32,
    /// How many checkpoints were completed, the last ones of ended tasks and savepoints included.
    pub checkpoints: u64,
    /// The last counts of every task of the last one.
    pub tasks: Vec<TaskReading>,
}
