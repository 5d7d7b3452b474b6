//! The one thread of an exactly-once sink that speaks to Kafka: does what the machine says, and tells the subtasks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_engine::{Piece, Result, Spool, TaskError};

use super::super::client::drop_within;
use super::super::errors::NowAndThen;
use super::failed::Failed;
use super::line::Line;
use super::machine::{Machine, Sent, Step, Trouble};
use super::marker::{Prepared, Reached};

/// How long the pump waits for the other subtasks' pieces of a checkpoint, so that they become visible together.
const GATHER: Duration = Duration::from_millis(20);
/// How long it waits before another try: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// How long closing may take: the open transaction is aborted meanwhile.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// The subtasks' side of the pump. The last of them closes it.
pub(in super::super) struct Pump {
    shared: Arc<Shared>,
    life: String,
    who: String,
    thread: Option<JoinHandle<()>>,
}

/// What the subtasks and the thread tell each other.
pub(super) struct Shared {
    desk: Mutex<Desk>,
    /// Rung when there is something on the desk.
    bell: Condvar,
    pub(super) stop: AtomicBool,
}

#[derive(Default)]
struct Desk {
    /// Of each subtask that has opened.
    spools: Vec<Spool>,
    handed: Vec<Piece>,
    /// When the first of those was.
    since: Option<Instant>,
    visible: Reached,
    begun: bool,
    trouble: Option<Trouble>,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        // Whole between statements, whoever panicked.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Waits until the bell rings, at most so long.
    fn wait<'a>(&'a self, desk: MutexGuard<'a, Desk>, most: Duration) -> MutexGuard<'a, Desk> {
        // Looked at under the lock that the ringer takes: a ring is not missed.
        if self.is_stopping() {
            return desk;
        }
        self.bell.wait_timeout(desk, most).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Pump {
    /// Starts the thread for `parallelism` subtasks; it begins once all of them have said where their spools are.
    pub(super) fn start(
        line: Line,
        (life, since): (String, i64),
        prepared: Vec<Prepared>,
        accept_duplicates: bool,
        patience: Duration,
        parallelism: usize,
    ) -> Result<Pump> {
        let desk = Mutex::new(Desk::default());
        let shared = Arc::new(Shared { desk, bell: Condvar::new(), stop: AtomicBool::new(false) });
        let machine = Machine::new(life.clone(), since, prepared, accept_duplicates);
        let who = line.who().to_owned();
        let mut run = Run {
            shared: Arc::clone(&shared),
            machine,
            line,
            parallelism,
            patience,
            failing: None,
            warned: NowAndThen::default(),
        };
        let work = move || {
            if catch_unwind(AssertUnwindSafe(|| run.run())).is_err() {
                let why = "its thread panicked".to_owned();
                run.shared.desk().trouble.get_or_insert(Trouble::Hopeless(why));
            }
        };
        let thread = (std::thread::Builder::new().name(format!("pump-{who}")).spawn(work))
            .map_err(|e| TaskError::external("the pump of a Kafka sink gets no thread").caused_by(e))?;
        Ok(Pump { shared, life, who, thread: Some(thread) })
    }

    /// The life whose pump it is.
    pub(super) fn life(&self) -> &str {
        &self.life
    }

    /// A subtask is there, and has this spool.
    pub(super) fn join(&self, spool: Spool) {
        self.shared.desk().spools.push(spool);
        self.shared.bell.notify_all();
    }

    /// True once all that the checkpoint held is visible.
    ///
    /// # Errors
    /// When the pump has stopped for good.
    pub(super) fn has_begun(&self) -> Result<bool> {
        let desk = self.shared.desk();
        self.check(&desk)?;
        Ok(desk.begun)
    }

    /// A complete checkpoint has these pieces.
    pub(super) fn hand(&self, pieces: impl IntoIterator<Item = Piece>) {
        let mut desk = self.shared.desk();
        desk.handed.extend(pieces);
        desk.since.get_or_insert_with(Instant::now);
        self.shared.bell.notify_all();
    }

    /// The newest piece of this subtask that is visible; 0 when none is.
    ///
    /// # Errors
    /// When the pump has stopped for good.
    pub(super) fn visible(&self, subtask: usize) -> Result<u64> {
        let desk = self.shared.desk();
        self.check(&desk)?;
        Ok(desk.visible.get(&subtask).copied().unwrap_or(0))
    }

    fn check(&self, desk: &Desk) -> Result<()> {
        desk.trouble.as_ref().map_or(Ok(()), |trouble| Err(explained(&self.who, trouble)))
    }
}

impl Drop for Pump {
    /// Ends the thread; an open transaction is aborted.
    ///
    /// *Blocking*: for 5 s at most.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        drop(self.shared.desk());
        self.shared.bell.notify_all();
        if let Some(thread) = self.thread.take() {
            drop_within(format!("the pump of {}", self.who), Joined(Some(thread)), CLOSE_PATIENCE);
        }
    }
}

/// Joins when it is dropped.
struct Joined(Option<JoinHandle<()>>);

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // It says why it ended by itself.
            drop(thread.join());
        }
    }
}

fn explained(who: &str, trouble: &Trouble) -> TaskError {
    match trouble {
        Trouble::Refused(refusal) => {
            let instead = if refusal.may_be_accepted() {
                "; begin from the newest checkpoint, or say that duplicates are accepted: ExactlyOnce::accept_duplicates()"
            } else {
                ""
            };
            TaskError::user(format!(
                "exactly-once sink {who} must not begin from this checkpoint: {refusal}{instead}"
            ))
        }
        Trouble::Overtaken { by } => TaskError::external(format!(
            "exactly-once sink {who} was overtaken by life {by}: either a later run of this job, which goes on, or another \
             sink of that name, and every exactly-once sink of a Kafka cluster needs a name of its own. If that life is over and \
             its clock was ahead, begin once with ExactlyOnce::accept_duplicates()"
        )),
        Trouble::MarkerLost => TaskError::external(format!(
            "exactly-once sink {who} no longer finds its own marker: was its control topic deleted or cut? Restart the job; \
             it says then what to do"
        )),
        Trouble::Hopeless(why) => TaskError::external(format!("exactly-once sink {who} cannot go on: {why}")),
    }
}

/// What the thread has.
struct Run {
    shared: Arc<Shared>,
    machine: Machine,
    line: Line,
    parallelism: usize,
    patience: Duration,
    /// Since when nothing has worked, and how long to wait before the next try.
    failing: Option<(Instant, Duration)>,
    warned: NowAndThen,
}

impl Run {
    fn run(&mut self) {
        let spools = self.spools();
        while !self.shared.is_stopping() {
            for piece in std::mem::take(&mut self.shared.desk().handed) {
                self.machine.hand(piece);
            }
            match self.machine.step() {
                Step::Wait => {
                    self.line.idle();
                    let desk = self.shared.desk();
                    if desk.handed.is_empty() {
                        drop(self.shared.wait(desk, Duration::from_secs(1)));
                    }
                }
                Step::Stop(_) => drop(self.shared.wait(self.shared.desk(), Duration::from_secs(1))),
                Step::Replace => match self.line.replace(&self.shared.stop) {
                    Ok(()) => self.machine.replaced(),
                    Err(failed) => self.failed(&failed),
                },
                Step::ReadMarker => match self.line.read_marker(&self.shared.stop) {
                    Ok(marker) => self.machine.read(marker),
                    Err(failed) => self.failed(&failed),
                },
                Step::Send(_) => self.send(&spools),
                Step::Abort => {
                    let done = self.line.abort();
                    self.machine.aborted(done.is_ok());
                }
            }
            self.tell();
        }
        self.line.close();
    }

    /// The spools of all subtasks, once they are there.
    fn spools(&self) -> Vec<Spool> {
        let mut desk = self.shared.desk();
        while desk.spools.len() < self.parallelism && !self.shared.is_stopping() {
            desk = self.shared.wait(desk, Duration::from_secs(1));
        }
        desk.spools.clone()
    }

    fn send(&mut self, spools: &[Spool]) {
        if self.machine.has_begun() {
            self.gather();
        }
        self.machine.sending();
        // What was handed over by now is in it.
        let Step::Send(offer) = self.machine.step() else { return };
        match self.line.send(&offer, spools, &self.shared.stop) {
            Ok(()) => {
                self.failing = None;
                self.machine.sent(Sent::Committed);
            }
            Err(failed) => {
                self.machine.sent(failed.sent);
                self.failed(&failed);
            }
        }
    }

    /// Waits a little for those subtasks whose pieces of the same checkpoint are still to come.
    fn gather(&mut self) {
        let mut desk = self.shared.desk();
        let until = desk.since.take().unwrap_or_else(Instant::now) + GATHER;
        loop {
            for piece in std::mem::take(&mut desk.handed) {
                self.machine.hand(piece);
            }
            let left = until.saturating_duration_since(Instant::now());
            if self.machine.waiting_subtasks() >= self.parallelism
                || left.is_zero()
                || self.shared.is_stopping()
            {
                desk.since = None;
                return;
            }
            desk = self.shared.wait(desk, left);
        }
    }

    /// Says so, gives up when nothing will come of it, and waits before the next try.
    fn failed(&mut self, failed: &Failed) {
        if self.shared.is_stopping() {
            return;
        }
        let (since, delay) = self.failing.unwrap_or((Instant::now(), RETRY.0));
        let who = self.line.who();
        if failed.hopeless {
            return self.machine.stop(Trouble::Hopeless(failed.reason.clone()));
        }
        if since.elapsed() > self.patience {
            let why = format!("nothing has worked for {:?}: {}", self.patience, failed.reason);
            return self.machine.stop(Trouble::Hopeless(why));
        }
        if let Some(held) = self.warned.may_say(Instant::now()) {
            tracing::warn!(operator = who, held, "exactly-once sink: {}; tries again", failed.reason);
        }
        self.failing = Some((since, (delay * 2).min(RETRY.1)));
        let until = Instant::now() + delay;
        let mut desk = self.shared.desk();
        while !self.shared.is_stopping() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            desk = self.shared.wait(desk, left);
        }
    }

    /// Tells the subtasks how far it is.
    fn tell(&mut self) {
        if let Some(refusal) = self.machine.take_accepted() {
            let who = self.line.who();
            tracing::warn!(
                operator = who,
                "exactly-once sink begins with duplicates, as was accepted: {refusal}"
            );
        }
        let visible = self.machine.take_visible();
        if !visible.is_empty() {
            // Whether a transaction answered, or its marker told that it had taken effect.
            self.failing = None;
        }
        let mut desk = self.shared.desk();
        // The pieces of former lives have numbers of their own.
        if desk.begun {
            for piece in visible {
                desk.visible.insert(piece.subtask, piece.number);
            }
        }
        desk.begun = self.machine.has_begun();
        if let Step::Stop(trouble) = self.machine.step() {
            desk.trouble.get_or_insert(trouble);
        }
    }
}
