//! The coordinator's side of checkpoints: carries out what [`super::checkpoint`] decides, and keeps the records
//! (over 400 lines: one step or handler per order, in their order).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{ActorFutureExt, AsyncContext, Context, Handler, WrapFuture};
use weir_state::checkpoint::{Kind, MANIFEST_FORMAT, Manifest, Mode, OperatorState, Outcome as Ended};

use super::checkpoint::{Checkpoints as Machine, Limits, Lost, Order, Purpose};
use super::messages::{Published, SnapshotMail};
use super::records::TARGET;
use super::{Coordinator, Failure};
use crate::checkpoint::check;
use crate::checkpoint::{Checkpoints, Publication, SnapshotNews, SnapshotWriter, Storage, Written};
use crate::element::{Barrier, Notice};
use crate::ids::CheckpointId;
use crate::job::JobError;
use crate::runtime::input::Control;
use crate::runtime::latch::Latch;

/// What one task has written, all its operators.
pub(super) type TaskParts = Arc<Vec<Written>>;

/// The answer to somebody who asked for a checkpoint: its number, or the savepoint's address; or why not.
pub(crate) type Asked = Arc<Latch<Result<String, String>>>;

/// Everything about checkpoints that outlives an attempt.
pub(super) struct Keeper {
    pub(super) config: Checkpoints,
    pub(super) storage: Option<Arc<Storage>>,
    /// Of the attempt at hand.
    pub(super) machine: Option<Machine<TaskParts>>,
    /// What the next attempt begins from.
    pub(super) newest: Option<Arc<Manifest>>,
    pub(super) next: CheckpointId,
    /// Which line of runs this is.
    lineage: String,
    pub(super) completed: u64,
    pub(super) completed_at: Instant,
    pub(super) failures: u32,
    /// Too many failed: what the job will say when its tasks are gone.
    pub(super) fatal: Option<String>,
    asked: BTreeMap<String, Vec<Asked>>,
    /// Those whom what is in the making is for: a checkpoint, and a savepoint beside it.
    pub(super) making: BTreeMap<CheckpointId, Vec<Asked>>,
    /// Of the attempt at hand.
    pub(super) writer: Option<Arc<dyn SnapshotWriter>>,
    /// A failure of no task's own: the attempt is over, the job may have another.
    pub(super) lost: Option<Failure>,
    /// Why the last attempt was over.
    pub(super) over_for: String,
    /// The complete one whose sinks have not all committed, and when they were told.
    pub(super) committing: Option<(CheckpointId, Instant)>,
    began: Instant,
    /// Since when it has been longer than half of what is tolerated.
    alarmed: bool,
}

/// How often the machine looks at the time, at most.
const LONGEST_TICK: Duration = Duration::from_millis(100);
const SHORTEST_TICK: Duration = Duration::from_millis(2);

impl Keeper {
    pub(super) fn new(config: Checkpoints) -> Self {
        Keeper {
            config,
            storage: None,
            machine: None,
            newest: None,
            next: CheckpointId(1),
            lineage: String::new(),
            completed: 0,
            completed_at: Instant::now(),
            failures: 0,
            fatal: None,
            writer: None,
            lost: None,
            over_for: String::new(),
            asked: BTreeMap::new(),
            committing: None,
            making: BTreeMap::new(),
            began: Instant::now(),
            alarmed: false,
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn limits(&self) -> Limits {
        let c = &self.config;
        Limits {
            every: c.every,
            min_pause: c.min_pause,
            timeout: c.timeout,
            tolerated_failures: c.tolerated_failures,
            tolerated_age: c.tolerated_age,
        }
    }

    /// Every how long the machine should look at the time.
    fn tick_every(&self) -> Duration {
        (self.config.every.min(self.config.timeout) / 10).clamp(SHORTEST_TICK, LONGEST_TICK)
    }

    pub(super) fn ask(&mut self, purpose: &Purpose, asked: Asked) {
        let key = purpose.savepoint().unwrap_or_default().to_owned();
        self.asked.entry(key).or_default().push(asked);
    }

    /// A checkpoint begins: it is for those who have asked by now. Who asks later wants what is true then.
    fn begin(&mut self, id: CheckpointId, purpose: &Purpose) {
        let key = purpose.savepoint().unwrap_or_default();
        let asked = self.asked.remove(key).unwrap_or_default();
        self.making.insert(id, asked);
    }

    /// The next life begins from this.
    pub(super) fn begin_from(&mut self, manifest: Option<Arc<Manifest>>) {
        if let Some(manifest) = &manifest {
            self.next = self.next.max(CheckpointId(manifest.id + 1));
        }
        self.newest = manifest;
    }

    /// Nobody will be answered any more.
    pub(super) fn answer_all(&mut self, answer: &Result<String, String>) {
        let making = std::mem::take(&mut self.making).into_values().flatten();
        making.for_each(|asked| asked.open(answer.clone()));
        for asked in std::mem::take(&mut self.asked).into_values().flatten() {
            asked.open(answer.clone());
        }
    }
}

impl Coordinator {
    /// The attempt runs: checkpoints are taken from here on.
    pub(super) fn begin_checkpoints(&mut self, cx: &mut Context<Self>) {
        let tasks = self.plan.tasks();
        let Some(keeper) = self.keeper.as_mut().filter(|k| k.storage.is_some()) else { return };
        let aged = keeper.completed_at.elapsed();
        let machine = Machine::new(keeper.limits(), tasks, keeper.next, keeper.now(), aged, keeper.failures);
        let machine = keeper.machine.insert(machine);
        // What the attempt before did not come to.
        for name in keeper.asked.keys() {
            machine.ask(if name.is_empty() { Purpose::Periodic } else { Purpose::Savepoint(name.clone()) });
        }
        self.next_tick(cx);
    }

    fn next_tick(&mut self, cx: &mut Context<Self>) {
        let Some(keeper) = &self.keeper else { return };
        let attempt = self.attempt_id;
        cx.run_later(keeper.tick_every(), move |me, cx| {
            if me.attempt_id == attempt && me.attempt.is_some() {
                me.with_machine(cx, |machine, now| machine.tick(now));
                me.look_at_age();
                me.look_at_commits();
                me.next_tick(cx);
            }
        });
    }

    /// Asks the machine and does what it says.
    pub(super) fn with_machine(
        &mut self,
        cx: &mut Context<Self>,
        ask: impl FnOnce(&mut Machine<TaskParts>, Duration) -> Vec<Order<TaskParts>>,
    ) {
        let Some(keeper) = &mut self.keeper else { return };
        let now = keeper.now();
        let Some(machine) = &mut keeper.machine else { return };
        let orders = ask(machine, now);
        (keeper.next, keeper.failures) = (machine.next_id(), machine.failures());
        self.board.checkpoint_failures(keeper.failures);
        for order in orders {
            self.obey(cx, order);
        }
    }

    /// Says so once when the last complete checkpoint is older than half of what is tolerated.
    fn look_at_age(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        let Some(machine) = &keeper.machine else { return };
        let age = machine.age(keeper.now());
        let old = age > keeper.config.tolerated_age / 2;
        if old && !keeper.alarmed {
            let waits = machine.pending().map(|(id, _, unfrozen, unwritten)| {
                format!("checkpoint {id} waits for {}", self.board.waited_for(&unfrozen, &unwritten))
            });
            tracing::warn!(
                job = %self.plan.job,
                "the last complete checkpoint is {age:.1?} old; at {:?} the job fails; {}",
                keeper.config.tolerated_age, waits.unwrap_or_else(|| "none is in flight".into())
            );
        }
        keeper.alarmed = old;
    }

    fn obey(&mut self, cx: &mut Context<Self>, order: Order<TaskParts>) {
        match order {
            Order::Inject(id, purpose) => self.inject(cx, id, &purpose),
            Order::WriteLast(id, tasks) => {
                if let Some(writer) = self.keeper.as_ref().and_then(|k| k.writer.as_ref()) {
                    tasks.into_iter().for_each(|task| writer.submit_last(task, id));
                }
            }
            Order::Publish(id, purpose, parts) => self.publish(cx, id, &purpose, &parts),
            Order::Complete(id, purpose, released) => self.complete(id, &purpose, &released),
            Order::Abort(id, purpose, lost) => self.abort(id, &purpose, &lost),
            Order::Fail(reason) => self.end_for_good(cx, reason),
        }
    }

    /// The job cannot go on with checkpoints like these.
    fn end_for_good(&mut self, cx: &mut Context<Self>, reason: String) {
        if self.finishing {
            return;
        }
        tracing::error!(job = %self.plan.job, "checkpoints: {reason}");
        if self.attempt.is_none() {
            // Between two attempts: there must be no other.
            let job = self.plan.job.clone();
            return self.finish(cx, Err(JobError::Checkpoints { job, reason }));
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.fatal.get_or_insert(reason);
        }
        self.cancel_attempt(cx);
    }

    fn inject(&mut self, cx: &mut Context<Self>, id: CheckpointId, purpose: &Purpose) {
        let Some(keeper) = &mut self.keeper else { return };
        let Some(storage) = keeper.storage.clone() else { return };
        keeper.begin(id, purpose);
        self.begin_record(id, purpose, storage.epoch());
        let attempt = self.attempt_id;
        let begun = storage.begin_checkpoint(id, purpose.savepoint().map(str::to_owned));
        // Whatever the storage takes to make room for a savepoint: only uploads wait for that, no checkpoint behind its barrier.
        self.of_draft(id, |draft| draft.told(Instant::now()));
        tracing::debug!(target: TARGET, job = %self.plan.job, checkpoint = %id, "triggered");
        self.tell_sources(Control::Barrier(Barrier { checkpoint: id }));
        cx.spawn(begun.into_actor(self).map(move |begun, me, cx| {
            if me.attempt_id == attempt
                && me.attempt.is_some()
                && let Err(reason) = begun
            {
                me.with_machine(cx, |machine, now| machine.failed(id, reason, now));
            }
        }));
    }

    fn publish(&mut self, cx: &mut Context<Self>, id: CheckpointId, purpose: &Purpose, parts: &[TaskParts]) {
        let manifest = self.manifest(id, purpose, parts);
        self.of_draft(id, |draft| draft.publishes(Instant::now()));
        let Some(storage) = self.keeper.as_ref().and_then(|k| k.storage.clone()) else { return };
        let (attempt, coordinator) = (self.attempt_id, cx.address());
        storage.publish(id, manifest, move |outcome, manifest| {
            coordinator.do_send(Published { attempt, id, manifest, outcome });
        });
    }

    fn manifest(&self, id: CheckpointId, purpose: &Purpose, parts: &[TaskParts]) -> Manifest {
        let mut operators: Vec<OperatorState> = Vec::new();
        for written in parts.iter().flat_map(|p| p.iter()) {
            let uid = written.uid.as_str();
            let at = operators.iter().position(|o| o.uid == uid).unwrap_or_else(|| {
                operators.push(OperatorState {
                    uid: uid.to_owned(),
                    kind: self.plan.kind_of(uid).unwrap_or_default().to_owned(),
                    parallelism: written.parallelism,
                    parts: Vec::new(),
                });
                operators.len() - 1
            });
            operators[at].parts.push(written.report.part.clone());
        }
        let keeper = self.keeper.as_ref();
        let triggered = self.board.drafts(|d| d.get(&id).map_or(0, |d| d.record().triggered_ms));
        Manifest {
            format: MANIFEST_FORMAT,
            job: self.plan.job.clone(),
            lineage: keeper.map(|k| k.lineage.clone()).unwrap_or_default(),
            id: id.0,
            epoch: 0,
            kind: if purpose.savepoint().is_some() { Kind::Savepoint } else { Kind::Checkpoint },
            attempt: u64::from(self.attempt_id.0),
            key_groups: self.plan.key_groups,
            triggered_ms: triggered,
            completed_ms: self.life.clock.now_ms(),
            mode: Mode::ExactlyOnce,
            operators,
        }
    }

    fn complete(&mut self, id: CheckpointId, purpose: &Purpose, released: &[usize]) {
        self.look_at_commits();
        // A savepoint is not what a restart begins from, so nothing is committed for it; the last of a job that stops with it
        // is: another will go on from there.
        if !matches!(purpose, Purpose::Savepoint(_)) {
            self.keeper.iter_mut().for_each(|k| k.committing = Some((id, Instant::now())));
            (0..self.tasks.len()).rev().for_each(|i| self.tell(i, Control::Notice(Notice::Completed(id))));
        }
        released.iter().for_each(|&i| self.tell(i, Control::Released));
        let Some(keeper) = &mut self.keeper else { return };
        keeper.completed += 1;
        if !matches!(purpose, Purpose::Savepoint(_)) {
            keeper.completed_at = Instant::now();
            self.board.checkpoint_completed(id);
        }
        let answer = match (purpose.savepoint(), &keeper.storage) {
            (Some(name), Some(storage)) => storage.savepoint_address(name),
            _ => id.to_string(),
        };
        self.close_record(id, Ended::Completed, Vec::new(), &Ok(answer));
    }

    fn abort(&mut self, id: CheckpointId, purpose: &Purpose, lost: &Lost) {
        (0..self.tasks.len()).rev().for_each(|i| self.tell(i, Control::Notice(Notice::Aborted(id))));
        let Some(keeper) = &mut self.keeper else { return };
        let files = keeper.storage.as_ref().map(|s| s.files(id)).unwrap_or_default();
        if let Some(storage) = &keeper.storage {
            storage.give_up(id);
        }
        let (ended, reason) = self.ended(lost, &files);
        if *lost != Lost::Attempt {
            tracing::warn!(job = %self.plan.job, checkpoint = %id, "checkpoint given up: {reason}");
            // A savepoint that somebody asked for says nothing of the row of checkpoints.
            if !matches!(purpose, Purpose::Savepoint(_)) {
                self.board.checkpoint_lost(id, &reason);
            }
        }
        self.close_record(id, ended, files, &Err(format!("checkpoint {id} was given up: {reason}")));
    }

    /// The attempt is over, and so is what was in flight.
    pub(super) fn checkpoints_over(&mut self, cx: &mut Context<Self>, why: String) {
        self.look_at_commits();
        if let Some(keeper) = &mut self.keeper {
            (keeper.over_for, keeper.committing) = (why, None);
        }
        self.with_machine(cx, |machine, now| machine.over(now));
        if let Some(keeper) = &mut self.keeper {
            keeper.machine = None;
        }
    }

    /// Opens the storage, takes the lease, and finds where to begin; then deploys.
    pub(super) fn open_storage(&mut self, cx: &mut Context<Self>) {
        let Some(keeper) = &self.keeper else { return };
        let opening = Storage::open(keeper.config.clone(), self.plan.job.clone(), self.life.clock.clone());
        cx.spawn(opening.into_actor(self).map(|opened, me, cx| {
            let job = me.plan.job.clone();
            let (storage, begun) = match opened {
                Ok(opened) => opened,
                Err(reason) => return me.finish(cx, Err(JobError::Checkpoints { job, reason })),
            };
            me.watch_lease(cx, &storage);
            me.board.watch_storage(&storage);
            let Some(keeper) = &mut me.keeper else { return };
            keeper.storage = Some(storage);
            let checked = begun.manifest.as_ref().map_or(Ok(Default::default()), |manifest| {
                check(manifest, &me.plan, &keeper.config.drop_state)
                    .map_err(|why| format!("cannot begin {}: {why}", begun.said))
            });
            match checked {
                Err(reason) => {
                    keeper.storage.iter().for_each(|storage| storage.refused());
                    return me.finish(cx, Err(JobError::Checkpoints { job, reason }));
                }
                Ok(dropped) => dropped.0.iter().for_each(|uid| {
                    tracing::warn!(%job, operator = %uid, "restoring drops the state of an operator, as it was told to");
                }),
            }
            keeper.storage.iter().for_each(|storage| storage.accepted());
            tracing::info!(%job, "restore begins {}", begun.said);
            keeper.lineage = match &begun.manifest {
                Some(manifest) => manifest.lineage.clone(),
                None => format!("{}-{}", begun.next, me.life.clock.now_ms()),
            };
            keeper.newest = begun.manifest;
            keeper.next = CheckpointId(begun.next);
            (me.attempt_id, me.first_attempt) = (begun.attempt, begun.attempt);
            me.deploy(cx);
        }));
    }

    /// The job ends when another process takes it over.
    fn watch_lease(&mut self, cx: &mut Context<Self>, storage: &Arc<Storage>) {
        let fenced = storage.clone().fenced();
        cx.spawn(fenced.into_actor(self).map(|reason, me, cx| me.end_for_good(cx, reason)));
    }
}

impl Handler<SnapshotMail> for Coordinator {
    type Result = ();
    fn handle(&mut self, SnapshotMail { attempt, news }: SnapshotMail, cx: &mut Context<Self>) {
        if attempt != self.attempt_id || self.attempt.is_none() {
            return;
        }
        match news {
            SnapshotNews::Froze { index, barrier, froze } => {
                self.froze_record(index, barrier, froze);
                self.with_machine(cx, |machine, _| {
                    if barrier == Barrier::LAST {
                        machine.ended(index);
                    } else {
                        machine.froze(index, barrier.checkpoint);
                    }
                    Vec::new()
                });
            }
            SnapshotNews::Written { index, id, parts } => {
                let parts = Arc::new(parts);
                self.of_draft(id, |draft| {
                    draft.wrote(index, &parts, Instant::now());
                    tracing::debug!(target: TARGET, checkpoint = %id, task = %draft.task(index), "its part is in storage");
                });
                self.with_machine(cx, |machine, _| machine.written(index, id, parts));
            }
            SnapshotNews::WrittenLast { index } => {
                self.with_machine(cx, |machine, now| machine.written_last(index, now));
            }
            SnapshotNews::Failed { index, barrier: Barrier::LAST, reason } => {
                self.last_failed(cx, index, reason)
            }
            SnapshotNews::Failed { barrier, reason, .. } => {
                self.with_machine(cx, |machine, now| machine.failed(barrier.checkpoint, reason, now));
            }
        }
    }
}

impl Coordinator {
    fn is_beside_the_row(&self, id: CheckpointId) -> bool {
        let machine = self.keeper.as_ref().and_then(|k| k.machine.as_ref());
        machine.is_some_and(|machine| machine.is_beside_the_row(id))
    }

    /// A task that has ended could not write what it remembers: it freezes that again after a while, as often as checkpoints may
    /// fail. Then, without its last snapshot, the attempt has failed.
    fn last_failed(&mut self, cx: &mut Context<Self>, index: usize, reason: String) {
        let machine = self.keeper.as_mut().and_then(|k| k.machine.as_mut());
        let Some(wait) = machine.and_then(|machine| machine.last_failed(&reason)) else {
            return self.tell(index, Control::LastFailed(reason));
        };
        tracing::warn!(job = %self.plan.job, "the last snapshot of a task is tried again in {wait:?}: {reason}");
        self.with_machine(cx, |_, _| Vec::new());
        let attempt = self.attempt_id;
        cx.run_later(wait, move |me, _| {
            if me.attempt_id == attempt {
                me.tell(index, Control::FreezeLast);
            }
        });
    }
}

impl Handler<Published> for Coordinator {
    type Result = ();
    fn handle(&mut self, m: Published, cx: &mut Context<Self>) {
        if m.attempt != self.attempt_id || self.attempt.is_none() {
            return;
        }
        match m.outcome {
            Publication::Done => {
                if let (Some(keeper), Some(manifest)) = (&mut self.keeper, m.manifest)
                    && manifest.kind == Kind::Checkpoint
                {
                    keeper.newest = Some(manifest);
                }
                self.with_machine(cx, |machine, now| machine.published(m.id, Ok(()), now));
            }
            Publication::Failed(reason) => {
                self.with_machine(cx, |machine, now| machine.published(m.id, Err(reason), now));
            }
            // It may be there or not: who asked for it is told, and who begins next finds out.
            Publication::Unsure(reason) if self.is_beside_the_row(m.id) => {
                self.with_machine(cx, |machine, now| machine.published(m.id, Err(reason), now));
            }
            Publication::Fenced(reason) => self.end_for_good(cx, reason),
            Publication::Unsure(reason) => {
                let lost = self.storage_failed(reason);
                if let Some(keeper) = &mut self.keeper {
                    keeper.lost = Some(lost);
                }
                self.cancel_attempt(cx);
            }
        }
    }
}
