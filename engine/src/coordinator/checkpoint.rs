//! One checkpoint after the other, and a savepoint beside them, as a pure decision: when to trigger, who has answered, when one is
//! complete, when to give up (over 400 lines: one machine, whose answers all read the same few fields).

use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::CheckpointId;

/// What a checkpoint is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The next in the row, for recovery.
    Periodic,
    /// Named, self-contained, kept until somebody removes it.
    Savepoint(String),
    /// What the tasks that have ended are waiting for. With a name it is a savepoint as well.
    Last(Option<String>),
}

impl Purpose {
    /// The savepoint's name, if it is one.
    pub(crate) fn savepoint(&self) -> Option<&str> {
        match self {
            Purpose::Savepoint(name) | Purpose::Last(Some(name)) => Some(name),
            Purpose::Periodic | Purpose::Last(None) => None,
        }
    }
}

/// The limits of a job's checkpoints. Times are on the coordinator's own monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) every: Duration,
    pub(crate) min_pause: Duration,
    pub(crate) timeout: Duration,
    pub(crate) tolerated_failures: u32,
    pub(crate) tolerated_age: Duration,
}

/// Why a checkpoint did not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// A task could not write its part, or the manifest could not be published.
    Failed(String),
    /// Not every task had its part written in time.
    Expired {
        /// Tasks that have not seen the barrier: they wait behind backpressure.
        unfrozen: Vec<usize>,
        /// Tasks whose part was not written yet.
        unwritten: Vec<usize>,
    },
    /// A task could not take its part, and ends the attempt with it.
    Declined(String),
    /// The attempt ended first.
    Attempt,
}

/// The pause after a last checkpoint that failed.
const RETRY_LAST: Duration = Duration::from_millis(500);

/// What the coordinator has to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order<P> {
    /// Put this checkpoint's barrier into the sources.
    Inject(CheckpointId, Purpose),
    /// Write what these tasks, which have ended, remembered last as their parts of the checkpoint.
    WriteLast(CheckpointId, Vec<usize>),
    /// Every part is written: publish the manifest.
    Publish(CheckpointId, Purpose, Vec<P>),
    /// It is complete. The tasks whose last snapshot is in it may go.
    Complete(CheckpointId, Purpose, Vec<usize>),
    /// Give it up.
    Abort(CheckpointId, Purpose, Lost),
    /// Fail the job: too many failed, or the last complete one is too old.
    Fail(String),
}

#[derive(Debug)]
struct Pending<P> {
    id: CheckpointId,
    purpose: Purpose,
    since: Duration,
    parts: Vec<Option<P>>,
    /// Tasks that have frozen at its barrier.
    frozen: Vec<bool>,
    publishing: bool,
    /// Tasks whose last snapshot is their part of it.
    last_of: Vec<usize>,
}

impl<P> Pending<P> {
    /// Somebody asked for it beside the row of checkpoints.
    fn is_asked_savepoint(&self) -> bool {
        matches!(self.purpose, Purpose::Savepoint(_))
    }
}

/// Follows the checkpoints of one attempt. No I/O, no threads, no clock. `P` is what a task has written.
#[derive(Debug)]
pub(crate) struct Checkpoints<P> {
    limits: Limits,
    next: CheckpointId,
    /// Tasks that have ended, with what they remember written down: that is their part of every checkpoint from then on.
    last: Vec<bool>,
    released: Vec<bool>,
    /// Tasks that have frozen for the last time, written or not.
    ended: Vec<bool>,
    /// In the order they were begun: the one whose barrier is on its way, if any, is the last. A savepoint that every task has frozen
    /// for stands behind nobody and before nobody: it is written beside what comes after it.
    pending: Vec<Pending<P>>,
    /// When the newest complete one was, or the attempt began.
    completed: Duration,
    ended_at: Duration,
    /// When the attempt began.
    began: Duration,
    /// One of this attempt is over, complete or not.
    tried: bool,
    failures: u32,
    /// Why the last one did not complete.
    lost: Option<String>,
    asked: VecDeque<Purpose>,
    stop_with: Option<String>,
}

impl<P: Clone> Checkpoints<P> {
    /// For an attempt of `tasks` tasks that begins at `now`; ids go on from `next`. `aged` is how long ago the newest
    /// complete checkpoint of the life before was, `failures` how many have failed since.
    pub(crate) fn new(
        limits: Limits,
        tasks: usize,
        next: CheckpointId,
        now: Duration,
        aged: Duration,
        failures: u32,
    ) -> Self {
        Checkpoints {
            limits,
            next,
            last: vec![false; tasks],
            released: vec![false; tasks],
            ended: vec![false; tasks],
            pending: Vec::new(),
            completed: now.saturating_sub(aged),
            ended_at: now,
            began: now,
            tried: false,
            failures,
            lost: None,
            asked: VecDeque::new(),
            stop_with: None,
        }
    }

    /// The id that the next checkpoint gets.
    pub(crate) fn next_id(&self) -> CheckpointId {
        self.next
    }

    /// By task: whether it has frozen for the last time.
    pub(crate) fn ended_tasks(&self) -> &[bool] {
        &self.ended
    }

    /// How many failed since the last complete one.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// How old the newest complete one is.
    pub(crate) fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.completed)
    }

    /// True when the newest complete one is older than is tolerated.
    fn is_too_old(&self, now: Duration) -> bool {
        self.age(now) > self.limits.tolerated_age
    }

    /// True when this attempt could have completed one. Until then its age says nothing of it: reading state back, or waiting
    /// to begin again, may have taken longer than that.
    fn had_its_chance(&self, now: Duration) -> bool {
        let chance = self.limits.tolerated_age.min(self.limits.timeout);
        self.tried || now.saturating_sub(self.began) >= chance
    }

    /// The one whose barrier is on its way, or a checkpoint that is being written: since when, and the tasks that have not frozen, and
    /// those that have and not written.
    pub(crate) fn pending(&self) -> Option<(CheckpointId, Duration, Vec<usize>, Vec<usize>)> {
        self.pending.iter().find(|p| self.has_the_row(p)).map(|p| self.standing(p))
    }

    fn standing(&self, p: &Pending<P>) -> (CheckpointId, Duration, Vec<usize>, Vec<usize>) {
        let missing = |written: bool| {
            let unwritten = p.parts.iter().enumerate().filter(|(_, part)| part.is_none()).map(|(i, _)| i);
            unwritten.filter(|&i| self.has_frozen(p, i) == written).collect()
        };
        (p.id, p.since, missing(false), missing(true))
    }

    /// Task `i` will not see its barrier any more: it has, or it has ended.
    fn has_frozen(&self, p: &Pending<P>, i: usize) -> bool {
        p.frozen[i] || p.parts[i].is_some() || self.ended[i]
    }

    /// Nothing else may be begun as long as it is there. A savepoint makes way once every task has frozen for it.
    fn has_the_row(&self, p: &Pending<P>) -> bool {
        !p.is_asked_savepoint() || (0..p.parts.len()).any(|i| !self.has_frozen(p, i))
    }

    fn find(&mut self, id: CheckpointId) -> Option<&mut Pending<P>> {
        self.pending.iter_mut().find(|p| p.id == id)
    }

    /// Somebody wants one now; with a savepoint in mind it has a name.
    pub(crate) fn ask(&mut self, purpose: Purpose) {
        self.asked.push_back(purpose);
    }

    /// True when that is a savepoint which somebody asked for beside the row: no life depends on what becomes of it.
    pub(crate) fn is_beside_the_row(&self, id: CheckpointId) -> bool {
        self.pending.iter().any(|p| p.id == id && p.is_asked_savepoint())
    }

    /// True when a savepoint of that name is in flight, or asked for.
    pub(crate) fn is_to_save(&self, name: &str) -> bool {
        let in_flight = self.pending.iter().map(|p| &p.purpose);
        in_flight.chain(&self.asked).any(|purpose| purpose.savepoint() == Some(name))
    }

    /// The savepoint that the job is being stopped with.
    pub(crate) fn stops_with(&self) -> Option<&str> {
        self.stop_with.as_deref()
    }

    /// The job is being drained, and what its tasks leave is to be a savepoint.
    pub(crate) fn stop_with(&mut self, name: String) {
        self.stop_with = Some(name);
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<Order<P>> {
        let mut orders = Vec::new();
        let too_long = |p: &&Pending<P>| !p.publishing && now.saturating_sub(p.since) >= self.limits.timeout;
        let expired: Vec<_> = self.pending.iter().filter(too_long).map(|p| self.standing(p)).collect();
        for (id, _, unfrozen, unwritten) in expired {
            orders.extend(self.lose(id, now, Lost::Expired { unfrozen, unwritten }));
        }
        if self.is_too_old(now) && self.had_its_chance(now) {
            let lost = self.lost.as_ref().map(|why| format!("; the last one that did not complete: {why}"));
            orders.push(Order::Fail(format!(
                "the last complete checkpoint is {:.1?} old, more than the {:?} tolerated; {} failed since{}",
                self.age(now),
                self.limits.tolerated_age,
                self.failures,
                lost.unwrap_or_default()
            )));
            return orders;
        }
        if !self.pending.iter().any(|p| self.has_the_row(p))
            && let Some(purpose) = self.due(now)
        {
            orders.extend(self.begin(now, purpose));
        }
        orders
    }

    /// What should be begun now, nothing being in flight.
    fn due(&mut self, now: Duration) -> Option<Purpose> {
        let all_ended = self.ended.iter().all(|e| *e);
        if all_ended {
            // Written as well: else there is nothing to publish yet. After a failure, not at once again.
            let calm = self.failures == 0 || now.saturating_sub(self.ended_at) >= RETRY_LAST;
            return (calm && !self.last.contains(&false) && self.released.contains(&false))
                .then(|| Purpose::Last(self.stop_with.clone()));
        }
        let since = now.saturating_sub(self.ended_at);
        // Savepoints take turns.
        let saving = self.pending.iter().any(Pending::is_asked_savepoint);
        let may = |asked: &Purpose| match asked {
            Purpose::Savepoint(_) => !saving,
            _ => since >= self.limits.min_pause,
        };
        if let Some(at) = self.asked.iter().position(may) {
            return self.asked.remove(at);
        }
        let overdue = self.is_too_old(now) && !self.tried;
        ((overdue || since >= self.limits.every.max(self.limits.min_pause)) && self.stop_with.is_none())
            .then_some(Purpose::Periodic)
    }

    fn begin(&mut self, now: Duration, purpose: Purpose) -> Vec<Order<P>> {
        let id = self.next;
        self.next = CheckpointId(id.0 + 1);
        let last_of: Vec<usize> = (0..self.last.len()).filter(|&i| self.last[i]).collect();
        self.pending.push(Pending {
            id,
            purpose: purpose.clone(),
            since: now,
            parts: vec![None; self.last.len()],
            frozen: vec![false; self.last.len()],
            publishing: false,
            last_of: last_of.clone(),
        });
        let mut orders = vec![Order::Inject(id, purpose)];
        orders.extend((!last_of.is_empty()).then_some(Order::WriteLast(id, last_of)));
        orders
    }

    /// Task `i` has frozen for the checkpoint; its part is being written.
    pub(crate) fn froze(&mut self, i: usize, id: CheckpointId) {
        if let Some(p) = self.find(id) {
            p.frozen[i] = true;
        }
    }

    /// Task `i` has frozen for the last time; its part is being written.
    pub(crate) fn ended(&mut self, i: usize) {
        self.ended[i] = true;
    }

    /// Task `i` has written its part. What comes for a checkpoint that is over is ignored.
    pub(crate) fn written(&mut self, i: usize, id: CheckpointId, part: P) -> Vec<Order<P>> {
        if let Some(p) = self.find(id).filter(|p| !p.publishing) {
            p.parts[i].get_or_insert(part);
        }
        self.publish(id)
    }

    /// Task `i` has ended, and what it remembers is written down here, not yet in storage.
    pub(crate) fn written_last(&mut self, i: usize, now: Duration) -> Vec<Order<P>> {
        self.ended[i] = true;
        self.last[i] = true;
        // A snapshot from before the end stands; the last one belongs to the next checkpoint then.
        let lacks = |p: &&mut Pending<P>| !p.frozen[i] && !p.publishing && !p.last_of.contains(&i);
        let lacking = self.pending.iter_mut().filter(lacks).map(|p| {
            p.last_of.push(i);
            Order::WriteLast(p.id, vec![i])
        });
        let mut orders: Vec<_> = lacking.collect();
        if !self.pending.iter().any(|p| self.has_the_row(p)) {
            orders.extend(self.tick(now));
        }
        orders
    }

    fn publish(&mut self, id: CheckpointId) -> Vec<Order<P>> {
        let Some(p) = self.find(id).filter(|p| !p.publishing) else { return Vec::new() };
        let Some(parts) = p.parts.iter().cloned().collect::<Option<Vec<P>>>() else { return Vec::new() };
        p.publishing = true;
        vec![Order::Publish(p.id, p.purpose.clone(), parts)]
    }

    /// Task `i` could not write its part of the checkpoint, or of its last one.
    pub(crate) fn failed(&mut self, id: CheckpointId, reason: String, now: Duration) -> Vec<Order<P>> {
        self.lose(id, now, Lost::Failed(reason))
    }

    /// A task could not write what it remembers last. It may try again after this time, unless too many have failed.
    pub(crate) fn last_failed(&mut self, reason: &str) -> Option<Duration> {
        self.failures += 1;
        self.lost = Some(format!("the last snapshot of a task, because {reason}"));
        let wait = RETRY_LAST.saturating_mul(1 << self.failures.min(6));
        (self.failures <= self.limits.tolerated_failures).then_some(wait)
    }

    /// A task has failed while it took its part in this one, which says so; the attempt ends.
    pub(crate) fn declined(&mut self, id: CheckpointId, reason: String, now: Duration) -> Vec<Order<P>> {
        self.lose(id, now, Lost::Declined(reason))
    }

    /// The manifest was published, or could not be.
    pub(crate) fn published(
        &mut self,
        id: CheckpointId,
        outcome: Result<(), String>,
        now: Duration,
    ) -> Vec<Order<P>> {
        if let Err(reason) = outcome {
            return self.lose(id, now, Lost::Failed(reason));
        }
        let Some(p) = self.take(id) else { return Vec::new() };
        // Sinks and sources hear nothing of a savepoint that was asked for: the newest checkpoint is as old as before.
        if !p.is_asked_savepoint() {
            self.completed = now;
            self.ended_at = now;
            self.tried = true;
            self.failures = 0;
            self.lost = None;
        }
        // A savepoint that somebody asked for may be gone before there is another checkpoint: nothing is committed for it, so
        // nobody is let go by it. With one to be written at the stop, only that one lets anybody go.
        let lets_go = match &p.purpose {
            Purpose::Savepoint(_) => false,
            purpose => self.stop_with.is_none() || purpose.savepoint() == self.stop_with.as_deref(),
        };
        let mut released = p.last_of;
        released.retain(|&i| lets_go && !std::mem::replace(&mut self.released[i], true));
        let mut orders = vec![Order::Complete(id, p.purpose, released)];
        orders.extend(self.tick(now));
        orders
    }

    fn take(&mut self, id: CheckpointId) -> Option<Pending<P>> {
        let at = self.pending.iter().position(|p| p.id == id)?;
        Some(self.pending.remove(at))
    }

    fn lose(&mut self, id: CheckpointId, now: Duration, lost: Lost) -> Vec<Order<P>> {
        let Some(p) = self.take(id) else { return Vec::new() };
        if p.is_asked_savepoint() {
            // Who asked for it hears of it. Of the row of checkpoints it says nothing.
            return vec![Order::Abort(p.id, p.purpose, lost)];
        }
        self.ended_at = now;
        self.tried = true;
        let counts = match &lost {
            Lost::Failed(_) => true,
            // The attempt of the job ends with it: how often that may be is for the restart policy to say.
            Lost::Declined(_) => false,
            Lost::Expired { unfrozen, .. } => unfrozen.is_empty(),
            Lost::Attempt => false,
        };
        self.failures += u32::from(counts);
        let reason = match &lost {
            Lost::Failed(reason) | Lost::Declined(reason) => reason.clone(),
            Lost::Expired { .. } => format!("it took longer than {:?}", self.limits.timeout),
            Lost::Attempt => "the attempt ended".into(),
        };
        self.lost = Some(format!("{}, because {reason}", p.id));
        let mut orders = vec![Order::Abort(p.id, p.purpose, lost)];
        if self.failures > self.limits.tolerated_failures {
            orders.push(Order::Fail(format!(
                "{} checkpoints failed in a row, more than the {} tolerated; the last one, {}, because {reason}",
                self.failures, self.limits.tolerated_failures, p.id
            )));
        }
        orders
    }

    /// The attempt is over: what was in flight will not complete.
    pub(crate) fn over(&mut self, now: Duration) -> Vec<Order<P>> {
        let ids: Vec<CheckpointId> = self.pending.iter().map(|p| p.id).collect();
        ids.into_iter().flat_map(|id| self.lose(id, now, Lost::Attempt)).collect()
    }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
