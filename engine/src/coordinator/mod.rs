//! The job coordinator: starts an attempt, hears every exit, keeps the first primary cause, and restarts or fails
//! (over 400 lines: the life of a job in one place).

mod asks;
mod attempt;
mod board;
mod checkpoint;
mod checkpoints;
mod deploy;
mod draft;
mod health;
mod launch;
mod lives;
mod messages;
mod records;
mod restart;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, WrapFuture};
use tokio::sync::oneshot;
use weir_state::backend::Resources;

use crate::checkpoint::{Checkpoints, LocalFolders, StateBackend, Waits, job_folders};
use crate::element::EndKind;
use crate::graph::Graph;
use crate::ids::AttemptId;
use crate::job::{JobError, JobReport};
use crate::memory::Metered;
use crate::metrics;
use crate::plan::Plan;
use crate::runtime::actor::{TaskActor, Tell};
use crate::runtime::channel::{CancelHandle, cancellation};
use crate::runtime::input::Control;
use crate::runtime::mail::mailbox;
use crate::runtime::pump::Pump;
use crate::runtime::stats::TaskReading;
use crate::state::JobState;
use crate::time::SharedClock;

pub use attempt::Failure;
pub(crate) use attempt::{After, Attempt, Outcome, Step};
pub(crate) use board::Board;
pub(crate) use checkpoints::Asked;
use checkpoints::Keeper;
use deploy::{forget_channels, make_tasks};
pub use draft::CheckpointInFlight;
pub use health::{CheckpointAge, Health, Level};
pub(crate) use launch::launch;
pub(crate) use messages::{AskCheckpoint, Cancel, Drain, InjectBarrier, Interrupt, TaskExited, TaskReady};
pub use restart::RestartPolicy;
use restart::{Decision, Fall};

/// The decisions and the deployment, for explorations that have no actors.
#[cfg(test)]
pub(crate) mod explored {
    pub(crate) use super::attempt::{After, Attempt, Outcome, Step};
    pub(crate) use super::checkpoint::{Checkpoints, Limits, Order, Purpose};
    pub(crate) use super::deploy::{forget_channels, make_tasks};
}

/// What a job is told about its own life.
#[derive(Clone)]
pub(crate) struct LifeConfig {
    pub(crate) restart: RestartPolicy,
    pub(crate) drain_timeout: Duration,
    pub(crate) cancel_timeout: Duration,
    pub(crate) on_interrupt: EndKind,
    pub(crate) clock: SharedClock,
    pub(crate) checkpoints: Option<Checkpoints>,
    pub(crate) state: StateBackend,
}

/// The actor that answers for a job. Handlers decide by [`Attempt`] and send; they never wait.
pub(crate) struct Coordinator {
    graph: Graph,
    plan: Plan,
    life: LifeConfig,
    board: Arc<Board>,
    over: Option<oneshot::Sender<()>>,
    /// The job has its result, and gives its storage back: nothing begins any more.
    finishing: bool,
    attempt_id: AttemptId,
    /// The first life of this process: attempts are counted on from the checkpoint's.
    first_attempt: AttemptId,
    attempt: Option<Attempt>,
    keeper: Option<Keeper>,
    tasks: Vec<Addr<TaskActor>>,
    cancel: Option<Ending>,
    began: Instant,
    deploy_began: Instant,
    drain: Option<EndKind>,
    held_by: Option<String>,
    history: Vec<Failure>,
    /// Where its local folders are to lie, one on each disk.
    folders: Vec<PathBuf>,
    /// Those that it has, of all its lives.
    local: Option<Arc<LocalFolders>>,
    falls: Vec<Fall>,
    /// When records began to flow in this attempt.
    flows_since: Option<Instant>,
    reporter: metrics::Reporter,
    /// One block cache and one write buffer for all stores of the job.
    resources: Resources,
    /// What is measured of them.
    _metered: [Metered; 2],
}

/// Ends every wait of an attempt: at channels, for stores, for the storage. Dropping it does too.
struct Ending {
    channels: CancelHandle,
    waits: Arc<Waits>,
}

impl Ending {
    fn cancel(&self) {
        self.channels.cancel();
        self.waits.cancel();
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// How often counts go to the metrics facade.
const REPORT_EVERY: Duration = Duration::from_secs(1);

impl Coordinator {
    pub(crate) fn new(
        graph: Graph,
        plan: Plan,
        life: LifeConfig,
        board: Arc<Board>,
        over: oneshot::Sender<()>,
    ) -> Self {
        let (resources, metered) = lives::resources(board.memory());
        life.checkpoints.iter().for_each(|config| board.watch_checkpoints(config));
        let url = life.checkpoints.as_ref().map(|c| c.url.as_str());
        Coordinator {
            folders: job_folders(&life.state, &plan.job, url),
            local: None,
            keeper: life.checkpoints.clone().map(Keeper::new),
            reporter: metrics::Reporter::new(&plan.job),
            resources,
            _metered: metered,
            falls: Vec::new(),
            flows_since: None,
            graph,
            plan,
            life,
            board,
            over: Some(over),
            finishing: false,
            attempt_id: AttemptId::FIRST,
            first_attempt: AttemptId::FIRST,
            attempt: None,
            tasks: Vec::new(),
            cancel: None,
            began: Instant::now(),
            deploy_began: Instant::now(),
            drain: None,
            held_by: None,
            history: Vec::new(),
        }
    }

    fn enter(&self, state: JobState, why: impl Into<String>) {
        self.board.enter(state, why, self.life.clock.now_ms());
    }

    /// Counts go to the metrics facade.
    fn report(&mut self) -> Vec<TaskReading> {
        let readings = self.board.readings();
        self.reporter.publish(&readings, self.life.clock.now_ms());
        self.reporter.publish_memory(self.board.memory());
        if let Some(age) = self.board.checkpoint_age() {
            metrics::checkpoints::age(&self.plan.job, &age);
        }
        readings
    }

    /// Builds every task of the attempt before any thread starts, then starts them all.
    fn deploy(&mut self, cx: &mut Context<Self>) {
        self.deploy_began = Instant::now();
        let open = format!("waiting for {} tasks to open", self.plan.tasks());
        self.enter(JobState::Deploying, open);
        let env = self.state_env(cx);
        if env.is_restored() {
            self.enter(JobState::Restoring, "waiting for tasks to read their state back");
        }
        let (handle, cancel) = cancellation();
        let made = match make_tasks(&self.graph, &self.plan, &self.life.clock, &cancel, &env) {
            Ok(made) => made,
            Err(e) => return self.finish(cx, Err(e)),
        };
        // What the attempt before has counted since is told first: its tasks go now.
        self.report();
        self.reporter.attempt_over();
        self.board.set_tasks(made.iter().map(|(_, cx)| cx.stats.clone()).collect());
        let ids = made.iter().map(|(_, cx)| cx.task.clone()).collect();
        self.attempt = Some(Attempt::new(self.attempt_id, ids));
        self.cancel = Some(Ending { channels: handle, waits: env.waits.clone() });
        self.tasks = (made.into_iter().enumerate())
            .map(|(index, (body, context))| {
                let (mail, inbox) = mailbox();
                let pump = Some(Pump { body, cx: context, mail: inbox });
                let (attempt, coordinator) = (self.attempt_id, cx.address());
                TaskActor { attempt, index, coordinator, mail, pump, thread: None, exit: None }.start()
            })
            .collect();
    }

    /// Tells the tasks of the wanted chains, consumers before producers: nobody sends to one that has not been told.
    fn tell_chains(&self, control: Control, wanted: impl Fn(usize) -> bool) {
        let mut first = self.tasks.len();
        for (c, chain) in self.plan.chains.iter().enumerate().rev() {
            first -= chain.parallelism;
            if wanted(c) {
                self.tasks[first..first + chain.parallelism]
                    .iter()
                    .for_each(|t| t.do_send(Tell(control.clone())));
            }
        }
    }

    /// Tells one task.
    fn tell(&self, index: usize, control: Control) {
        if let Some(task) = self.tasks.get(index) {
            task.do_send(Tell(control));
        }
    }

    fn tell_sources(&self, control: Control) {
        let is_source = |c: usize| self.plan.chains[c].operators.first().is_some_and(|o| o.kind == "source");
        self.tell_chains(control, is_source);
    }

    fn step(&mut self, cx: &mut Context<Self>, step: Step) {
        match step {
            Step::Nothing => {}
            Step::Run => {
                let took = self.deploy_began.elapsed();
                tracing::info!(job = %self.plan.job, "deploy  {} tasks opened in {:.1?}", self.tasks.len(), took);
                // Side outputs have taken their ends while they opened; nobody will take the rest.
                forget_channels(&self.graph);
                self.tell_chains(Control::Run, |_| true);
                self.enter(JobState::Running, "records flow");
                self.flows_since = Some(Instant::now());
                if let Some(storage) = self.keeper.as_ref().and_then(|k| k.storage.as_ref()) {
                    storage.flows();
                }
                self.begin_checkpoints(cx);
                tracing::info!(job = %self.plan.job, attempt = %self.attempt_id, "run     records flow, {:.1?} after the start", self.began.elapsed());
                if let Some(kind) = self.drain {
                    self.drain_now(kind);
                }
            }
            Step::Cancel => self.cancel_now(cx),
            Step::Over(outcome) => self.attempt_over(cx, outcome),
        }
    }

    fn cancel_now(&mut self, cx: &mut Context<Self>) {
        if let Some(ending) = &self.cancel {
            ending.cancel();
        }
        let attempt = self.attempt_id;
        cx.run_later(self.life.cancel_timeout, move |me, cx| {
            if me.attempt_id == attempt && me.attempt.is_some() {
                let held_by = me.board.holding();
                tracing::error!(job = %me.plan.job, %held_by, "tasks do not hear the cancel: their threads are left behind");
                let error = JobError::Stuck { job: me.plan.job.clone(), after: me.life.cancel_timeout, held_by };
                me.finish(cx, Err(error));
            }
        });
    }

    fn drain_now(&self, kind: EndKind) {
        let what = match kind {
            EndKind::Flush => "waiting for what is in flight; windows fire",
            EndKind::Keep => "waiting for what is in flight; windows keep",
        };
        self.enter(JobState::Draining, what);
        self.tell_sources(Control::Drain(kind));
    }

    /// A drain has so long, whether records flow yet or not.
    fn limit_drain(&mut self, cx: &mut Context<Self>) {
        let attempt = self.attempt_id;
        cx.run_later(self.life.drain_timeout, move |me, cx| {
            if me.attempt_id == attempt && me.attempt.is_some() {
                let held_by = me.board.holding();
                tracing::warn!(job = %me.plan.job, %held_by, "the drain takes longer than {:?}: cancelling", me.life.drain_timeout);
                me.held_by = Some(held_by);
                me.cancel_attempt(cx);
            }
        });
    }

    fn cancel_attempt(&mut self, cx: &mut Context<Self>) {
        if let Some(attempt) = &mut self.attempt {
            let step = attempt.cancel();
            self.step(cx, step);
        }
    }

    fn attempt_over(&mut self, cx: &mut Context<Self>, outcome: Outcome) {
        let why = match &outcome {
            Outcome::Finished => "the attempt ended".to_owned(),
            Outcome::Cancelled => "the attempt was cancelled".to_owned(),
            Outcome::Failed(failure) => format!("the attempt ended: {failure}"),
        };
        self.checkpoints_over(cx, why);
        self.attempt = None;
        self.cancel = None;
        self.tasks.clear();
        self.forget_local_files();
        if let Some(storage) = self.keeper.as_ref().and_then(|k| k.storage.as_ref()) {
            storage.attempt_over(self.flows_since.is_some());
        }
        // Neither is left for the next attempt: it would end for what happened to this one.
        let (fatal, lost) = self.keeper.as_mut().map_or((None, None), |k| (k.fatal.take(), k.lost.take()));
        let job = self.plan.job.clone();
        match outcome.then(fatal, lost) {
            After::Finish => self.finish(cx, Ok(())),
            After::GiveUp(reason) => self.finish(cx, Err(JobError::Checkpoints { job, reason })),
            After::Cancelled => {
                let error = match self.held_by.take() {
                    Some(held_by) => JobError::DrainTimedOut { job, after: self.life.drain_timeout, held_by },
                    None => JobError::Cancelled { job },
                };
                self.finish(cx, Err(error));
            }
            After::Failed(failure) => self.attempt_failed(cx, failure),
        }
    }

    fn attempt_failed(&mut self, cx: &mut Context<Self>, failure: Failure) {
        tracing::error!(job = %self.plan.job, attempt = %failure.attempt, "{failure}");
        let ran = self.flows_since.take().map_or(Duration::ZERO, |since| since.elapsed());
        self.falls.push(Fall { at: self.began.elapsed(), ran });
        let decision = self.life.restart.decide(&failure, &self.falls);
        self.history.push(failure.clone());
        match decision {
            // A job that was asked to drain has no reason to come back.
            Decision::RestartAfter(delay) if self.drain.is_none() => {
                self.enter(JobState::Suspended, format!("restart in {delay:?} after: {failure}"));
                cx.run_later(delay, |me, cx| {
                    if !me.finishing {
                        me.begin_again(cx);
                    }
                });
            }
            _ => {
                let history = self.history.clone();
                self.finish(
                    cx,
                    Err(JobError::Failed { job: self.plan.job.clone(), failure: Box::new(failure), history }),
                );
            }
        }
    }

    /// Gives storage back first, then tells the result. The first result stays.
    fn finish(&mut self, cx: &mut Context<Self>, result: Result<(), JobError>) {
        if std::mem::replace(&mut self.finishing, true) {
            return;
        }
        self.attempt = None;
        if let Some(keeper) = &mut self.keeper {
            let how = result.as_ref().err().map(|e| format!(": {e}")).unwrap_or_default();
            keeper.answer_all(&Err(format!("the job is over without it{how}")));
            if let Some(storage) = keeper.storage.take() {
                let clean = matches!(&result, Ok(()) | Err(JobError::Cancelled { .. }));
                let closing = storage.close(clean);
                cx.spawn(closing.into_actor(self).map(move |(), me, cx| me.finish_now(cx, result)));
                return;
            }
        }
        // After the end of the attempt, unless its tasks are left behind.
        self.forget_local_files();
        self.finish_now(cx, result);
    }

    fn finish_now(&mut self, cx: &mut Context<Self>, result: Result<(), JobError>) {
        let readings = self.report();
        // Before anybody is told: the next job of that name finds them free.
        self.local.iter().for_each(|local| local.release());
        match &result {
            Ok(()) => self.enter(JobState::Finished, "every source ended"),
            Err(e @ (JobError::Cancelled { .. } | JobError::DrainTimedOut { .. })) => {
                self.enter(JobState::Finished, e.to_string());
            }
            Err(e) => self.enter(JobState::Failed, e.to_string()),
        }
        let attempts = self.attempt_id.0 - self.first_attempt.0 + 1;
        let checkpoints = self.keeper.as_ref().map_or(0, |k| k.completed);
        self.board.close(result.map(|()| JobReport {
            job: self.plan.job.clone(),
            attempts,
            checkpoints,
            tasks: readings,
        }));
        if let Some(over) = self.over.take() {
            // The thread that waits for this is our own System's; it is there as long as we are.
            let _ = over.send(());
        }
        cx.stop();
    }
}

impl Actor for Coordinator {
    type Context = Context<Self>;

    fn started(&mut self, cx: &mut Context<Self>) {
        // Control mail is small by rate; what must not happen is that a burst of exits is refused.
        cx.set_mailbox_capacity(1024);
        self.report();
        cx.run_interval(REPORT_EVERY, |me, _| drop(me.report()));
        if self.keeper.is_some() {
            self.open_storage(cx);
        } else {
            self.deploy(cx);
        }
    }
}

impl Handler<TaskReady> for Coordinator {
    type Result = ();
    fn handle(&mut self, m: TaskReady, cx: &mut Context<Self>) {
        if m.attempt != self.attempt_id {
            return;
        }
        if let Some(attempt) = &mut self.attempt {
            let step = attempt.ready(m.index);
            self.step(cx, step);
        }
    }
}

impl Handler<TaskExited> for Coordinator {
    type Result = ();
    fn handle(&mut self, m: TaskExited, cx: &mut Context<Self>) {
        if m.attempt != self.attempt_id {
            return;
        }
        if let Err(e) = &m.exit {
            self.checkpoint_declined(cx, m.index, e);
        }
        if let Some(attempt) = &mut self.attempt {
            let step = attempt.exited(m.index, m.exit);
            self.step(cx, step);
        }
    }
}

impl Handler<Drain> for Coordinator {
    type Result = ();
    fn handle(&mut self, Drain(kind): Drain, cx: &mut Context<Self>) {
        if self.drain.is_some() {
            return;
        }
        self.drain = Some(kind);
        self.limit_drain(cx);
        match &self.attempt {
            Some(attempt) if attempt.is_running() => self.drain_now(kind),
            // Opening or stopping: `Run` looks at `drain`, an end needs nothing.
            Some(_) => {
                tracing::info!(job = %self.plan.job, "drains when its tasks are open: {}", self.board.holding())
            }
            None if self.over.is_some() => {
                self.finish(cx, Err(JobError::Cancelled { job: self.plan.job.clone() }))
            }
            None => {}
        }
    }
}

impl Handler<Cancel> for Coordinator {
    type Result = ();
    fn handle(&mut self, _: Cancel, cx: &mut Context<Self>) {
        if self.attempt.is_some() {
            self.drain.get_or_insert(EndKind::Keep);
            self.cancel_attempt(cx);
        } else if self.over.is_some() {
            self.finish(cx, Err(JobError::Cancelled { job: self.plan.job.clone() }));
        }
    }
}

impl Handler<Interrupt> for Coordinator {
    type Result = ();
    fn handle(&mut self, _: Interrupt, cx: &mut Context<Self>) {
        if self.drain.is_none() {
            let within = self.life.drain_timeout;
            tracing::warn!(job = %self.plan.job, "interrupted: draining within {within:?}; once more cancels at once");
            cx.notify(Drain(self.life.on_interrupt));
        } else {
            tracing::warn!(job = %self.plan.job, "interrupted again: cancelling");
            cx.notify(Cancel);
        }
    }
}

impl Handler<InjectBarrier> for Coordinator {
    type Result = ();
    fn handle(&mut self, InjectBarrier(barrier): InjectBarrier, _: &mut Context<Self>) {
        self.tell_sources(Control::Barrier(barrier));
    }
}
