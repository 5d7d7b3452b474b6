//! `Job` while it is written, `JobHandle` while it runs: start, wait, drain, cancel.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::coordinator::{
    self, Board, Cancel, Coordinator, Drain, Failure, InjectBarrier, LifeConfig, RestartPolicy,
};
use crate::element::{Barrier, EndKind};
use crate::graph::{Graph, GraphRef};
use crate::plan::{Plan, PlanError};
use crate::runtime::address::Address;
use crate::runtime::stats::TaskReading;
use crate::source::Source;
use crate::state::Status;
use crate::stream::SourceStream;
use crate::time::{SharedClock, SystemClock};

/// A job being written: sources, what happens to their streams, sinks. Nothing runs before [`Job::run`] or [`Job::start`].
pub struct Job {
    graph: GraphRef,
    life: LifeConfig,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({})", self.graph.borrow().name)
    }
}

impl Job {
    /// An empty job. The name shows in metrics, logs and errors.
    pub fn named(name: &str) -> Self {
        Job {
            graph: Rc::new(RefCell::new(Graph::new(name))),
            life: LifeConfig {
                restart: RestartPolicy::None,
                drain_timeout: Duration::from_secs(30),
                cancel_timeout: Duration::from_secs(10),
                on_interrupt: EndKind::Keep,
                clock: SystemClock::shared(),
            },
        }
    }

    /// Subtasks of every operator that does not say otherwise (default: the number of cores).
    #[must_use]
    pub fn parallelism(self, n: usize) -> Self {
        self.graph.borrow_mut().parallelism = n;
        self
    }

    /// `false` makes every operator a task of its own with its own channels (default: fuse what can be fused). Say it
    /// before the first source.
    #[must_use]
    pub fn chaining(self, fuse: bool) -> Self {
        self.graph.borrow_mut().chaining = fuse;
        self
    }

    /// Batches and signals that each channel holds (default: 8). What is in flight on an edge is at most depth × 1,024
    /// records × producers × consumers.
    #[must_use]
    pub fn channel_depth(self, elements: usize) -> Self {
        self.graph.borrow_mut().channel_depth = elements;
        self
    }

    /// What happens after a failure (default: the job fails).
    #[must_use]
    pub fn restart(mut self, policy: RestartPolicy) -> Self {
        self.life.restart = policy;
        self
    }

    /// How long a drain may take before the job is cancelled and says what held it (default: 30 s).
    #[must_use]
    pub fn drain_timeout(mut self, time: Duration) -> Self {
        self.life.drain_timeout = time;
        self
    }

    /// How long a cancelled task may take to notice before its thread is given up (default: 10 s). Only code of the job
    /// itself that neither returns nor waits through its context can take that long.
    #[must_use]
    pub fn cancel_timeout(mut self, time: Duration) -> Self {
        self.life.cancel_timeout = time;
        self
    }

    /// How Ctrl-C and SIGTERM drain the job in [`Job::run`]: keep windows and timers as they are (default), or fire them.
    #[must_use]
    pub fn on_interrupt(mut self, kind: EndKind) -> Self {
        self.life.on_interrupt = kind;
        self
    }

    /// Where processing time comes from (default: the machine's clock).
    #[must_use]
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.life.clock = clock;
        self
    }

    /// A stream from outside. Its uid is what its offsets, metrics and errors are kept under.
    pub fn source<S: Source>(&self, uid: &str, source: S) -> SourceStream<S> {
        SourceStream::new(&self.graph, uid, source)
    }

    /// The checked plan, without running it.
    ///
    /// # Errors
    /// What is wrong with the job as written.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        self.graph.borrow().plan()
    }

    /// Starts the job and returns at once; tasks open in the background.
    ///
    /// # Errors
    /// What is wrong with the job as written, or that a thread cannot be started. What goes wrong later is told by
    /// [`JobHandle::wait`].
    pub fn start(self) -> Result<JobHandle, JobError> {
        self.launch(false)
    }

    /// Runs the job to its end. Ctrl-C and SIGTERM drain it; a second one cancels it.
    ///
    /// *Blocking*: until every source has ended, or the job was drained, cancelled or failed.
    ///
    /// # Errors
    /// Why the job could not start, or how it failed.
    pub fn run(self) -> Result<JobReport, JobError> {
        self.launch(true)?.wait()
    }

    /// Like [`Job::start`], but Ctrl-C and SIGTERM drain the job as they do in [`Job::run`].
    ///
    /// # Errors
    /// As for `start`.
    pub fn start_with_signals(self) -> Result<JobHandle, JobError> {
        self.launch(true)
    }

    fn launch(self, signals: bool) -> Result<JobHandle, JobError> {
        let began = Instant::now();
        let plan = self.plan()?;
        tracing::info!(
            job = %plan.job,
            "plan    {} chains, {} tasks on {} threads, {} channels in {:.1?}",
            plan.chains.len(), plan.tasks(), plan.tasks(),
            plan.edges.iter().map(|e| e.channels).sum::<usize>(), began.elapsed()
        );
        tracing::debug!("{plan}");
        let board = Arc::new(Board::new(plan.clone(), self.life.clock.now_ms()));
        // Streams that were kept by the caller share the graph; from here on they write into an empty one.
        let graph = self.graph.replace(Graph::new(&plan.job));
        let (address, thread) = coordinator::launch(graph, plan, self.life, board.clone(), signals)?;
        Ok(JobHandle { board, address: Address::new(address), thread: Mutex::new(Some(thread)) })
    }
}

/// A running job. Dropping the handle lets the job go on by itself.
pub struct JobHandle {
    board: Arc<Board>,
    address: Address<Coordinator>,
    thread: Mutex<Option<JoinHandle<()>>>,
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

    /// The state it is in, and why.
    pub fn status(&self) -> Status {
        self.board.status()
    }

    /// Every state it has been in, oldest first.
    pub fn history(&self) -> Vec<Status> {
        self.board.history()
    }

    /// What each task counts about itself, now.
    pub fn tasks(&self) -> Vec<TaskReading> {
        self.board.readings()
    }

    /// What each task that has not exited is doing, in words.
    pub fn holding(&self) -> String {
        self.board.holding()
    }

    /// Stops the sources and lets what is in flight be processed; `Flush` fires every window and timer, `Keep` none.
    /// Returns at once; [`JobHandle::wait`] tells how it went.
    pub fn drain(&self, kind: EndKind) {
        self.address.send(Drain(kind));
    }

    /// Ends every wait of the job at once, without flushing. Returns at once.
    pub fn cancel(&self) {
        self.address.send(Cancel);
    }

    /// Puts a barrier into the stream of every source at its next batch edge.
    pub fn inject_barrier(&self, barrier: Barrier) {
        self.address.send(InjectBarrier(barrier));
    }

    /// Waits for the job to be over.
    ///
    /// *Blocking*: until then. Every thread of the job has been joined when it returns (unless the error is
    /// [`JobError::Stuck`], which names those that could not be).
    ///
    /// # Errors
    /// How the job failed, or that it was cancelled.
    pub fn wait(&self) -> Result<JobReport, JobError> {
        match self.result(None) {
            Some(result) => result,
            None => Err(self.lost()),
        }
    }

    /// Like `wait`, for at most `time`; none when the job is not over by then.
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

    /// Name, states and tasks, as JSON.
    pub(crate) fn describe(&self) -> serde_json::Value {
        serde_json::json!({
            "job": self.plan().job,
            "status": self.status(),
            "history": self.board.history(),
            "tasks": self.board.readings(),
        })
    }
}

/// What a finished job leaves behind.
#[derive(Clone, Debug)]
pub struct JobReport {
    /// Its name.
    pub job: String,
    /// How many lives it had.
    pub attempts: u32,
    /// The last counts of every task.
    pub tasks: Vec<TaskReading>,
}

/// Why a job did not finish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The job as written makes no sense.
    #[error("plan: {0}")]
    Plan(#[from] PlanError),
    /// A task could not be made.
    #[error("deploy: job {job:?} could not make task {task}: an operator panicked in `clone`")]
    Deploy {
        /// The job.
        job: String,
        /// The task.
        task: String,
    },
    /// A task failed and the restart policy gave up.
    #[error("{}: job {job:?}: {failure}{}", if failure.at_start { "deploy" } else { "run" }, after(history))]
    Failed {
        /// The job.
        job: String,
        /// The last failure.
        failure: Box<Failure>,
        /// Every failure, the last one included, oldest first.
        history: Vec<Failure>,
    },
    /// Somebody cancelled it.
    #[error("job {job:?} was cancelled")]
    Cancelled {
        /// The job.
        job: String,
    },
    /// The drain took too long and the job was cancelled instead.
    #[error("job {job:?} did not drain within {after:?}: held by {held_by}")]
    DrainTimedOut {
        /// The job.
        job: String,
        /// The limit.
        after: Duration,
        /// Which tasks were still there, and what each was doing.
        held_by: String,
    },
    /// Tasks did not notice the cancel; their threads are left behind.
    #[error("job {job:?} did not hear its cancel within {after:?}: threads are left behind: {held_by}")]
    Stuck {
        /// The job.
        job: String,
        /// The limit.
        after: Duration,
        /// Which tasks, and what each was doing.
        held_by: String,
    },
    /// The control side failed.
    #[error("job {job:?}: {reason}")]
    Control {
        /// The job.
        job: String,
        /// What happened.
        reason: String,
    },
}

fn after(history: &[Failure]) -> String {
    if history.len() < 2 {
        return String::new();
    }
    let earlier: Vec<_> =
        history[..history.len() - 1].iter().map(|f| format!("attempt {}: {f}", f.attempt)).collect();
    format!(" (before that, {})", earlier.join("; "))
}
