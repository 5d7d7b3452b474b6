//! `Job`: a job while it is written, and its start.

mod control;
mod error;
mod handle;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) use control::JobControl;
pub use error::JobError;
pub(crate) use handle::JobView;
pub use handle::{JobHandle, JobReport};

use crate::checkpoint::{Checkpoints, StateBackend};
use crate::coordinator::{self, Board, LifeConfig, RestartPolicy};
use crate::element::EndKind;
use crate::graph::{Graph, GraphRef};
use crate::memory::{
    self, Footprint, MemoryBudget, MemoryConfig, MemoryError, MemoryPlan, Share, Surroundings,
};
use crate::plan::{Plan, PlanError};
use crate::runtime::address::Address;
use crate::source::Source;
use crate::stream::SourceStream;
use crate::time::{SharedClock, SystemClock};

/// A job being written: sources, what happens to their streams, sinks. Nothing runs before [`Job::run`] or [`Job::start`].
///
/// ```
/// use weir_engine::{prelude::*, testkit::*};
/// let job = Job::named("copy").parallelism(1);
/// job.source("in", ScriptSource::of([(1, 0), (2, 5)])).without_event_time().sink("out", NullSink);
/// let report = job.run()?;
/// assert_eq!((report.attempts, report.tasks[0].records_out), (1, 2));
/// # Ok::<(), JobError>(())
/// ```
pub struct Job {
    graph: GraphRef,
    life: LifeConfig,
    memory: MemoryConfig,
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
                checkpoints: None,
                state: StateBackend::default(),
            },
            memory: MemoryConfig::new(),
        }
    }

    /// Subtasks of every operator that does not say otherwise (default: the number of cores). The plan refuses 0, and
    /// more than there are key groups (128).
    ///
    /// ```
    /// # use weir_engine::{prelude::*, testkit::*};
    /// let job = Job::named("copy").parallelism(3);
    /// job.source("in", ScriptSource::of([(1, 0)])).without_event_time().sink("out", NullSink);
    /// assert_eq!(job.plan()?.tasks(), 3);
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn parallelism(self, n: usize) -> Self {
        self.graph.borrow_mut().parallelism = n;
        self
    }

    /// `false` makes every operator a task of its own with its own channels (default: fuse what can be fused); only
    /// `key_by` stays with the operator before it. Say it before the first source: what is written already stays fused.
    ///
    /// ```
    /// # use weir_engine::{prelude::*, testkit::*};
    /// let job = Job::named("copy").parallelism(1).chaining(false);
    /// job.source("in", ScriptSource::of([(1, 0)])).without_event_time().sink("out", NullSink);
    /// assert_eq!(job.plan()?.chains.len(), 2);
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn chaining(self, fuse: bool) -> Self {
        self.graph.borrow_mut().chaining = fuse;
        self
    }

    /// Batches and signals that each channel holds, from 1 to 4,096 (default: 8); the plan refuses others. What waits in
    /// an edge is at most depth × 1,024 records × channels; each producer also holds the batch that it is filling.
    ///
    /// ```
    /// # use weir_engine::{plan::PlanError, prelude::*, testkit::*};
    /// let job = Job::named("copy").channel_depth(0);
    /// job.source("in", ScriptSource::of([(1, 0)])).without_event_time().sink("out", NullSink);
    /// assert_eq!(job.plan(), Err(PlanError::ChannelDepth { depth: 0 }));
    /// ```
    #[must_use]
    pub fn channel_depth(self, elements: usize) -> Self {
        self.graph.borrow_mut().channel_depth = elements;
        self
    }

    /// Threads that the asynchronous calls of its operators run on (default: 2), if it has such. All jobs of a process share one
    /// pool: it is as large as the job says that starts it, and goes with the last one that uses it. The plan refuses 0.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let job = Job::named("asks").parallelism(1).async_threads(3);
    /// let numbers = job.source("in", ScriptSource::of([(1, 0)])).without_event_time();
    /// numbers.transform(OperatorInfo::stateless("asks").asynchronous(), Probe::new()).sink("out", NullSink);
    /// assert_eq!(job.plan()?.client_threads(), 3);
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn async_threads(self, n: usize) -> Self {
        {
            let mut graph = self.graph.borrow_mut();
            graph.async_threads = n;
            if n == 0 {
                let reason = "it has no threads for asynchronous calls: give it one at least".to_owned();
                graph.mistake(PlanError::Argument { uid: "async_threads".to_owned(), reason });
            }
        }
        self
    }

    /// What its process may take in memory and threads, and how that is divided ([`MemoryConfig`] shows it; default: the
    /// lowest of the cgroup's limit, `ulimit -v` and the machine's memory). A job that cannot fit is refused when it starts.
    #[must_use]
    pub fn memory(mut self, config: MemoryConfig) -> Self {
        self.memory = config;
        self
    }

    /// What happens after a failure (default: the job fails).
    ///
    /// ```
    /// # use {std::time::Duration, weir_engine::{prelude::*, testkit::*}};
    /// let policy = RestartPolicy::FixedDelay { restarts: 2, delay: Duration::ZERO };
    /// let job = Job::named("unlucky").parallelism(1).restart(policy);
    /// let source = ScriptSource::new(vec![vec![Line::Record(1, 0), Line::Fail("the broker is gone")]]);
    /// job.source("in", source).without_event_time().sink("out", NullSink);
    /// let Err(JobError::Failed { history, .. }) = job.run() else { panic!("it cannot succeed") };
    /// assert_eq!(history.len(), 3);
    /// ```
    #[must_use]
    pub fn restart(mut self, policy: RestartPolicy) -> Self {
        self.life.restart = policy;
        self
    }

    /// Takes checkpoints, and begins from the newest one that is there (default: takes none). [`Checkpoints`] shows it.
    #[must_use]
    pub fn checkpoints(mut self, checkpoints: Checkpoints) -> Self {
        self.life.checkpoints = Some(checkpoints);
        self
    }

    /// What keeps keyed state (default: memory). [`StateBackend`] shows it.
    #[must_use]
    pub fn state(mut self, backend: StateBackend) -> Self {
        self.life.state = backend;
        self
    }

    /// How long a drain may take, from when records flow, before the job is cancelled and says what held it
    /// ([`JobError::DrainTimedOut`]; default: 30 s).
    ///
    /// ```
    /// # use {std::time::Duration, weir_engine::{prelude::*, testkit::*}};
    /// let job = Job::named("endless").drain_timeout(Duration::from_secs(5));
    /// job.source("in", ScriptSource::of([(1, 0)]).endless()).without_event_time().sink("out", NullSink);
    /// let running = job.start()?;
    /// running.drain(EndKind::Keep);
    /// assert!(running.wait().is_ok(), "drained in time");
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn drain_timeout(mut self, time: Duration) -> Self {
        self.life.drain_timeout = time;
        self
    }

    /// How long a cancelled task may take to notice before its thread is given up (default: 10 s). Only code of the job
    /// itself that neither returns nor waits through its context can take that long. Then [`JobError::Stuck`] names it.
    ///
    /// ```
    /// # use {std::{sync::mpsc, thread, time::Duration}, weir_engine::{prelude::*, testkit::*}};
    /// let (deaf, begun) = mpsc::channel();
    /// let job = Job::named("deaf").parallelism(1).cancel_timeout(Duration::from_millis(10));
    /// job.source("in", ScriptSource::of([(1, 0)]))
    ///     .event_time(move |_| loop { drop(deaf.send(())); thread::park() }, Watermarks::monotonic())
    ///     .sink("out", NullSink);
    /// let running = job.start()?;
    /// begun.recv().expect("the only task sends it");
    /// running.cancel();
    /// assert!(matches!(running.wait(), Err(JobError::Stuck { .. })));
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn cancel_timeout(mut self, time: Duration) -> Self {
        self.life.cancel_timeout = time;
        self
    }

    /// How Ctrl-C and SIGTERM drain the job in [`Job::run`] and [`Job::start_with_signals`]: keep windows and timers as
    /// they are (default), or fire them.
    ///
    /// ```standalone_crate
    /// # use {std::{process::Command, time::Duration}, weir_engine::{OperatorInfo, prelude::*, testkit::*}};
    /// let (job, probe) = (Job::named("endless").parallelism(1).on_interrupt(EndKind::Flush), Probe::new());
    /// let numbers = job.source("in", ScriptSource::of([(1, 0)]).endless()).without_event_time();
    /// numbers.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// let running = job.start_with_signals()?;
    /// until(&running, Duration::from_secs(10), "a record", || !probe.values().is_empty());
    /// Command::new("sh").args(["-c", "kill $PPID"]).status().expect("a shell");
    /// running.wait()?;
    /// assert!(probe.seen_by(0).contains(&Seen::End(EndKind::Flush)));
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn on_interrupt(mut self, kind: EndKind) -> Self {
        self.life.on_interrupt = kind;
        self
    }

    /// Where processing time comes from (default: the machine's clock): what operators read, rates, idleness, and the
    /// times of states. The limits and delays of the job's own life keep to the machine's.
    ///
    /// ```
    /// # use {std::sync::Arc, weir_engine::{prelude::*, testkit::*}};
    /// let job = Job::named("1970").clock(Arc::new(ManualClock::at(1_000)));
    /// job.source("in", ScriptSource::of([(1, 0)])).without_event_time().sink("out", NullSink);
    /// let running = job.start()?;
    /// running.wait()?;
    /// assert!(running.history().iter().all(|status| status.since_ms == 1_000));
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.life.clock = clock;
        self
    }

    /// A stream from outside. Its uid is what its offsets, metrics and errors are kept under. A job may have several.
    ///
    /// ```
    /// # use weir_engine::{prelude::*, testkit::*};
    /// let job = Job::named("two");
    /// job.source("this", ScriptSource::of([(1, 0)])).without_event_time().sink("here", NullSink);
    /// job.source("that", ScriptSource::of([("x", 0)])).without_event_time().sink("there", NullSink);
    /// assert_eq!(job.plan()?.chains.iter().map(|c| &c.operators[0].uid).collect::<Vec<_>>(), ["this", "that"]);
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn source<S: Source>(&self, uid: &str, source: S) -> SourceStream<S> {
        SourceStream::new(&self.graph, uid, source)
    }

    /// The checked plan, without running it.
    ///
    /// # Errors
    /// The first thing that is wrong with the job as written.
    ///
    /// ```
    /// # use weir_engine::{plan::PlanError, prelude::*, testkit::*};
    /// let job = Job::named("unfinished");
    /// let stream = job.source("in", ScriptSource::of([(1, 0)])).without_event_time();
    /// assert_eq!(job.plan(), Err(PlanError::Dangling { uid: "in".into() }));
    /// stream.sink("out", NullSink);
    /// assert!(job.plan().is_ok());
    /// ```
    pub fn plan(&self) -> Result<Plan, PlanError> {
        self.graph.borrow().plan()
    }

    /// The memory and threads that it would start with here and now, without running it.
    ///
    /// # Errors
    /// What is wrong with the job as written, or that it does not fit: with every share, and what to change.
    ///
    /// ```
    /// # use weir_engine::{memory::MemoryConfig, prelude::*, testkit::*};
    /// let job = Job::named("cramped").parallelism(1).memory(MemoryConfig::new().limit(1 << 20));
    /// job.source("in", ScriptSource::of([(1, 0)])).without_event_time().sink("out", NullSink);
    /// let error = job.memory_plan().unwrap_err().to_string();
    /// assert!(error.contains("of memory and there are 1 MiB (set by the job):") && error.contains("headroom"));
    /// ```
    pub fn memory_plan(&self) -> Result<MemoryPlan, JobError> {
        Ok(self.plan_memory(&self.plan()?)?)
    }

    fn plan_memory(&self, plan: &Plan) -> Result<MemoryPlan, MemoryError> {
        let rocksdb = self.life.state.is_rocksdb();
        let mut engine = vec![Footprint::process("control", 0, 1)];
        engine.extend(self.life.checkpoints.as_ref().map(Checkpoints::footprint));
        let mut config = self.memory.clone();
        if let Some(bytes) = self.life.state.cache_bytes.filter(|_| rocksdb) {
            config = config.percent(Share::StateCaches, 0).minimum(Share::StateCaches, bytes as u64);
        }
        MemoryPlan::of(&memory::ask(plan, &config, &Surroundings::here(), &engine, rocksdb))
    }

    /// Starts the job and returns at once; tasks open in the background. A [`crate::Shared`] stream that was kept must
    /// not be read from any more.
    ///
    /// # Errors
    /// What is wrong with the job as written, or that a thread cannot be started. What goes wrong later is told by
    /// [`JobHandle::wait`].
    ///
    /// ```
    /// # use weir_engine::{prelude::*, testkit::*};
    /// let job = Job::named("short");
    /// job.source("in", ScriptSource::of([(1, 0)])).without_event_time().sink("out", NullSink);
    /// let running = job.start()?;
    /// running.wait()?;
    /// assert!(running.is_over() && running.status().state == JobState::Finished);
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn start(self) -> Result<JobHandle, JobError> {
        self.launch(false)
    }

    /// Runs the job to its end. Ctrl-C and SIGTERM drain it; a second one, or one while it drains already, cancels it. Once
    /// a job has listened for them, signals that come when none does end the process (status 130 or 143), whatever else
    /// in it may listen: a program that handles signals itself takes [`Job::start`] and [`JobHandle::drain`].
    ///
    /// *Blocking*: until every source has ended, or the job was drained, cancelled or failed.
    ///
    /// # Errors
    /// Why the job could not start, or how it failed.
    pub fn run(self) -> Result<JobReport, JobError> {
        self.launch(true)?.wait()
    }

    /// Like [`Job::start`], but Ctrl-C and SIGTERM drain the job as they do in [`Job::run`]; [`Job::on_interrupt`] shows
    /// it.
    ///
    /// # Errors
    /// As for `start`.
    pub fn start_with_signals(self) -> Result<JobHandle, JobError> {
        self.launch(true)
    }

    /// The job as written, and its plan, for whoever makes its tasks without a coordinator.
    #[cfg(test)]
    pub(crate) fn into_graph(self) -> (Graph, Plan) {
        let plan = self.plan().expect("a job without a mistake");
        (self.graph.replace(Graph::started(&plan.job)), plan)
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
        let memory = self.plan_memory(&plan)?;
        memory.say();
        let board = Arc::new(Board::new(plan.clone(), MemoryBudget::new(memory), self.life.clock.now_ms()));
        // Streams that were kept by the caller share the graph; from here on they write into an empty one.
        let graph = self.graph.replace(Graph::started(&plan.job));
        let (address, thread) = coordinator::launch(graph, plan, self.life, board.clone(), signals)?;
        Ok(JobHandle { board, address: Address::new(address), thread: Mutex::new(Some(thread)) })
    }
}
