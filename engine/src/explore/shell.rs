//! What the coordinator's handlers do with its decisions, without the actors around them: events in, effects out
//! (over 400 lines: all the coordinator does, and the mistakes that may be put into it).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::outside::{Manifest, Outside, Parts};
use super::storage::Work;
use crate::coordinator::Failure;
use crate::coordinator::explored::{self, Attempt, Checkpoints, Limits, Order, Outcome, Purpose, Step};
use crate::element::{Barrier, EndKind, Notice};
use crate::error::{Cause, Domain, Result};
use crate::ids::{AttemptId, CheckpointId, TaskId};
use crate::runtime::input::Control;

/// What the coordinator hears, and from which attempt.
pub(super) type Mail = (AttemptId, Event);

#[derive(Debug)]
pub(super) enum Event {
    Ready(usize),
    Exited(usize, Result<()>),
    Froze(usize, Barrier),
    Written(usize, CheckpointId, Parts),
    WrittenLast(usize),
    /// A part could not be written.
    Failed(usize, Barrier),
    Published(CheckpointId, Published),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Published {
    Done,
    Failed,
    /// Nobody knows.
    Unsure,
    /// Another process has the job.
    Fenced,
}

/// What the coordinator does to the world.
#[derive(Debug)]
pub(super) enum Effect {
    /// Every task is open.
    Run,
    /// Ends every wait of the attempt.
    Cancel,
    /// Uploads for this checkpoint are taken.
    Open(CheckpointId),
    GiveUp(CheckpointId),
    Work(Work),
    Over(Outcome),
}

/// What comes after a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Another,
    /// Every source has ended.
    Finished,
    /// It was drained or cancelled, or has failed: another process may go on.
    Broken,
}

/// Numbers below the one given, from wherever.
pub(super) type Pick<'a> = &'a mut dyn FnMut(u64) -> u64;

/// A coordinator.
pub(super) struct Shell {
    limits: Limits,
    /// The tasks that are sources.
    sources: Vec<usize>,
    pub(super) attempt: AttemptId,
    /// Of this process, so far.
    lives: u32,
    next: CheckpointId,
    now: Duration,
    completed_at: Duration,
    failures: u32,
    drain: bool,
    /// Why the job must not go on: too many checkpoints failed, or another process has it.
    fatal: Option<String>,
    /// An attempt is over because nobody knows whether a manifest is there.
    lost: Option<Failure>,
    newest: CheckpointId,
    decides: Option<Attempt>,
    machine: Option<Checkpoints<Parts>>,
    /// By task: what its actor has not forwarded yet.
    tells: Vec<VecDeque<Control>>,
    /// Checkpoints whose storage is being asked whether they may begin.
    begins: VecDeque<CheckpointId>,
    effects: Vec<Effect>,
    /// The newest checkpoint that it has heard to be complete.
    completed: Option<CheckpointId>,
    flaw: Flaw,
}

/// A mistake put in on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    /// A restart begins from the newest checkpoint although there is a newer savepoint.
    LeavesSavepointsOut,
    /// A checkpoint is open for uploads only once the sources may be told of it.
    OpensLate,
    /// After a manifest of which nobody knows whether it is there, the next life begins from what was known before.
    ForgetsToLook,
    /// A sink commits as soon as it has prepared.
    CommitsEarly,
    /// A sink takes back what it prepared for a checkpoint that is given up.
    TakesBack,
    /// An input is read after its barrier.
    ReadsOn,
    /// Sinks commit when a savepoint is complete, which somebody may remove.
    CommitsForSavepoints,
}

/// How long the coordinator waits until it looks at the time again.
pub(super) const TICK: Duration = Duration::from_millis(250);

pub(super) const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl Shell {
    /// Of a process that finds this as the newest manifest, savepoints included. Its checkpoints have so long.
    pub(super) fn new(newest: Option<&Manifest>, sources: Vec<usize>, timeout: Duration, flaw: Flaw) -> Self {
        let (id, attempt) = newest.map_or((0, 0), |m| (m.id.0, m.attempt.0));
        let (tolerated_failures, tolerated_age) = (2, s(1_000_000_000));
        Shell {
            limits: Limits { every: s(1), min_pause: s(0), timeout, tolerated_failures, tolerated_age },
            sources,
            attempt: AttemptId(attempt + 1),
            lives: 0,
            next: CheckpointId(id + 1),
            now: s(0),
            completed_at: s(0),
            failures: 0,
            drain: false,
            fatal: None,
            lost: None,
            newest: CheckpointId(id),
            decides: None,
            machine: None,
            tells: Vec::new(),
            begins: VecDeque::new(),
            effects: Vec::new(),
            completed: newest.map(|m| m.id),
            flaw,
        }
    }

    /// A life begins.
    pub(super) fn begin(&mut self, tasks: Vec<TaskId>) {
        self.lives += 1;
        self.tells = tasks.iter().map(|_| VecDeque::new()).collect();
        self.begins.clear();
        self.machine = None;
        self.decides = Some(Attempt::new(self.attempt, tasks));
    }

    /// The life is over; `newest` is what the storage says then.
    pub(super) fn after(&mut self, outcome: Outcome, newest: Option<&Manifest>) -> After {
        let must_end = self.fatal.is_some();
        match outcome.then(self.fatal.take(), self.lost.take()) {
            explored::After::Finish if !self.drain => return After::Finished,
            explored::After::Failed(_) if !self.drain => {}
            _ => return After::Broken,
        }
        assert!(!must_end, "the job lives again although it must not go on");
        self.attempt = AttemptId(self.attempt.0 + 1);
        self.next = self.next.max(CheckpointId(newest.map_or(0, |m| m.id.0) + 1));
        After::Another
    }

    /// The highest checkpoint that was ever begun.
    pub(super) fn newest(&self) -> CheckpointId {
        self.newest
    }

    /// What the next life begins from.
    pub(super) fn begins_from(&self, outside: &Outside) -> Option<Arc<Manifest>> {
        let from = match self.flaw {
            Flaw::LeavesSavepointsOut if self.lives > 0 => outside.newest_checkpoint(),
            Flaw::ForgetsToLook => outside.newest().filter(|m| Some(m.id) <= self.completed),
            _ => outside.newest(),
        };
        from.iter().for_each(|m| outside.begin(m.id));
        from
    }

    /// Does checkpoints, and so cares for the time?
    pub(super) fn ticks(&self) -> bool {
        self.machine.is_some()
    }

    pub(super) fn is_running(&self) -> bool {
        self.decides.as_ref().is_some_and(Attempt::is_running)
    }

    /// What happens because of the calls before.
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Does one of the things that are under way by themselves, if there is one: an actor forwards to its task, which is then
    /// given, or the storage lets a checkpoint begin.
    pub(super) fn goes_on(
        &mut self,
        pick: Pick<'_>,
        fails: impl FnOnce() -> bool,
    ) -> Option<(usize, Control)> {
        let told: Vec<usize> = (0..self.tells.len()).filter(|&i| !self.tells[i].is_empty()).collect();
        let choices = told.len() as u64 + u64::from(!self.begins.is_empty());
        let chosen = if choices == 0 { return None } else { pick(choices) as usize };
        if let Some(&i) = told.get(chosen) {
            return self.tells[i].pop_front().map(|control| (i, control));
        }
        let id = self.begins.pop_front()?;
        if fails() {
            self.with_machine(|machine, now| machine.failed(id, "it cannot begin".into(), now));
        } else {
            if self.flaw == Flaw::OpensLate {
                self.effects.push(Effect::Open(id));
            }
            self.tell_sources(&Control::Barrier(Barrier { checkpoint: id }));
        }
        None
    }

    /// Is anything under way by itself?
    pub(super) fn has_more(&self) -> bool {
        !self.begins.is_empty() || self.tells.iter().any(|t| !t.is_empty())
    }

    pub(super) fn tick(&mut self) {
        self.now += TICK;
        self.with_machine(|machine, now| machine.tick(now));
    }

    pub(super) fn hear(&mut self, (attempt, event): Mail) {
        if attempt != self.attempt {
            return;
        }
        match event {
            Event::Ready(index) => self.decide(|attempt| attempt.ready(index)),
            Event::Exited(index, exit) => self.decide(|attempt| attempt.exited(index, exit)),
            Event::Froze(index, Barrier::LAST) => self.with_machine(|machine, _| {
                machine.ended(index);
                Vec::new()
            }),
            Event::Froze(index, barrier) => self.with_machine(|machine, _| {
                machine.froze(index, barrier.checkpoint);
                Vec::new()
            }),
            Event::Written(index, id, parts) => {
                self.with_machine(|machine, _| machine.written(index, id, parts))
            }
            Event::WrittenLast(index) => self.with_machine(|machine, now| machine.written_last(index, now)),
            Event::Failed(index, Barrier::LAST) => {
                let again = self.machine.as_mut().and_then(|machine| machine.last_failed("it was to be"));
                self.with_machine(|_, _| Vec::new());
                self.tells[index].push_back(match again {
                    Some(_) => Control::FreezeLast,
                    None => Control::LastFailed("it was to be".to_owned()),
                });
            }
            Event::Failed(_, barrier) => {
                self.with_machine(|machine, now| {
                    machine.failed(barrier.checkpoint, "it was to be".into(), now)
                });
            }
            Event::Published(id, Published::Done) => {
                self.with_machine(|machine, now| machine.published(id, Ok(()), now));
            }
            Event::Published(id, Published::Failed) => {
                self.with_machine(|machine, now| machine.published(id, Err("it was to be".into()), now));
            }
            Event::Published(_, Published::Fenced) => self.end_for_good("it was taken over".into()),
            Event::Published(id, Published::Unsure)
                if self.machine.as_ref().is_some_and(|machine| machine.is_beside_the_row(id)) =>
            {
                self.with_machine(|machine, now| machine.published(id, Err("who knows".into()), now));
            }
            Event::Published(_, Published::Unsure) => {
                self.lost = Some(self.unsure());
                self.decide(Attempt::cancel);
            }
        }
    }

    /// What a user may want of a job, whether it opens, runs or is being drained.
    pub(super) fn order(&mut self, outside: &Outside, pick: Pick<'_>) {
        let next = self.next;
        match pick(6) {
            0 => {
                self.drain = true;
                self.decide(Attempt::cancel);
            }
            1 => self.drain(),
            2 => outside.remove_savepoints(),
            // Nobody takes checkpoints yet.
            _ if self.machine.is_none() => {}
            3 => {
                if let Some(machine) = &mut self.machine {
                    machine.stop_with(format!("stop-{next}"));
                }
                self.drain();
            }
            _ => {
                let named = Purpose::Savepoint(format!("asked-{next}"));
                let purpose = if pick(3) == 0 { Purpose::Periodic } else { named };
                self.with_machine(|machine, now| {
                    machine.ask(purpose);
                    machine.tick(now)
                });
            }
        }
    }

    /// A job that does not run yet is drained once it does.
    fn drain(&mut self) {
        if !std::mem::replace(&mut self.drain, true) && self.is_running() {
            self.tell_sources(&Control::Drain(EndKind::Keep));
        }
    }

    fn decide(&mut self, ask: impl FnOnce(&mut Attempt) -> Step) {
        let Some(attempt) = &mut self.decides else { return };
        match ask(attempt) {
            Step::Nothing => {}
            Step::Cancel => self.effects.push(Effect::Cancel),
            Step::Run => {
                self.effects.push(Effect::Run);
                self.tell_all(&Control::Run);
                let aged = self.now - self.completed_at;
                self.machine = Some(Checkpoints::new(
                    self.limits,
                    self.tells.len(),
                    self.next,
                    self.now,
                    aged,
                    self.failures,
                ));
                if self.drain {
                    self.tell_sources(&Control::Drain(EndKind::Keep));
                }
            }
            Step::Over(outcome) => {
                self.with_machine(|machine, now| machine.over(now));
                self.machine = None;
                self.decides = None;
                self.effects.push(Effect::Over(outcome));
            }
        }
    }

    /// Consumers before producers.
    fn tell_all(&mut self, control: &Control) {
        self.tells.iter_mut().rev().for_each(|tells| tells.push_back(control.clone()));
    }

    fn tell_sources(&mut self, control: &Control) {
        for &source in &self.sources {
            self.tells[source].push_back(control.clone());
        }
    }

    fn with_machine(&mut self, ask: impl FnOnce(&mut Checkpoints<Parts>, Duration) -> Vec<Order<Parts>>) {
        let Some(machine) = &mut self.machine else { return };
        let orders = ask(machine, self.now);
        (self.next, self.failures) = (machine.next_id(), machine.failures());
        orders.into_iter().for_each(|order| self.obey(order));
    }

    fn obey(&mut self, order: Order<Parts>) {
        let attempt = self.attempt;
        match order {
            Order::Inject(id, _) => {
                assert!(self.newest < id, "checkpoint {id} is begun after {}", self.newest);
                self.newest = id;
                self.begins.push_back(id);
                if self.flaw != Flaw::OpensLate {
                    self.effects.push(Effect::Open(id));
                }
            }
            Order::WriteLast(id, tasks) => {
                let work = tasks.into_iter().map(|task| Effect::Work(Work::UploadLast(attempt, task, id)));
                self.effects.extend(work);
            }
            Order::Publish(id, purpose, parts) => {
                assert_eq!(parts.len(), self.tells.len(), "a part of every task");
                let parts = parts.iter().flat_map(|p| p.iter().cloned()).collect();
                let manifest = Manifest {
                    id,
                    attempt,
                    savepoint: purpose.savepoint().is_some(),
                    asked_for: matches!(purpose, Purpose::Savepoint(_)),
                    parts,
                };
                self.effects.push(Effect::Work(Work::Publish(attempt, manifest)));
            }
            Order::Complete(id, purpose, released) => {
                let commits = !matches!(purpose, Purpose::Savepoint(_));
                if commits || self.flaw == Flaw::CommitsForSavepoints {
                    self.tell_all(&Control::Notice(Notice::Completed(id)));
                }
                released.into_iter().for_each(|i| self.tells[i].push_back(Control::Released));
                if commits {
                    self.completed_at = self.now;
                }
                self.completed = self.completed.max(Some(id));
            }
            Order::Abort(id, ..) => {
                self.tell_all(&Control::Notice(Notice::Aborted(id)));
                self.effects.push(Effect::GiveUp(id));
            }
            Order::Fail(reason) => self.end_for_good(reason),
        }
    }

    fn end_for_good(&mut self, reason: String) {
        self.fatal.get_or_insert(reason);
        self.decide(Attempt::cancel);
    }

    fn unsure(&self) -> Failure {
        Failure {
            attempt: self.attempt,
            at_start: false,
            task: TaskId { chain: "checkpoints".into(), subtask: 0 },
            uid: "checkpoints".into(),
            cause: Cause::Failed,
            domain: Domain::External,
            message: "nobody knows whether the manifest is there".into(),
            also: Vec::new(),
            echoes: self.tells.len(),
        }
    }
}
