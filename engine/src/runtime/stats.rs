//! What a task counts about itself: one writer, any number of readers, one store per batch.
// HOT: per batch. Clocks are read only where the task waits.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use crate::context::Counter;
use crate::element::Barrier;
use crate::ids::{AttemptId, CheckpointId, OperatorUid, TaskId};
use crate::time::Watermark;

/// What a task is doing, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Opening its operators.
    Opening,
    /// Open, waiting for the other tasks of the attempt.
    Ready,
    /// In the code of its operators.
    Busy,
    /// Waiting for input.
    Idle,
    /// Done, and waiting for the checkpoint that holds its last snapshot.
    Committing,
    /// Waiting for room before this operator (or in it, when it waits for the outside).
    Blocked(OperatorUid),
    /// Gone.
    Exited,
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Activity::Opening => f.write_str("opening"),
            Activity::Ready => f.write_str("waiting for the others to open"),
            Activity::Busy => f.write_str("in operator code"),
            Activity::Idle => f.write_str("waiting for input"),
            Activity::Committing => f.write_str("waiting for the last checkpoint"),
            Activity::Blocked(at) => write!(f, "waiting for {at}"),
            Activity::Exited => f.write_str("gone"),
        }
    }
}

/// A task's own counts. Written by its thread, read by anyone.
// Aligned as tasks are.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct TaskStats {
    task: TaskId,
    epoch: Instant,
    pub(crate) records_in: AtomicU64,
    pub(crate) batches_in: AtomicU64,
    pub(crate) records_out: AtomicU64,
    pub(crate) batches_out: AtomicU64,
    pub(crate) dead_letters: AtomicU64,
    pub(crate) queued: AtomicUsize,
    pub(crate) queue_capacity: AtomicUsize,
    pub(crate) watermark: AtomicI64,
    idle_ns: AtomicU64,
    blocked_ns: AtomicU64,
    running_since_ns: AtomicU64,
    /// `(nanoseconds since epoch << 3) | activity`: one word, so that readers never see half of a change.
    activity: AtomicU64,
    blocked_at: Mutex<Option<OperatorUid>>,
    aligning: Mutex<Aligning>,
    counters: Mutex<Vec<(OperatorUid, &'static str, Counter)>>,
    committed: Mutex<Option<(Committed, Instant)>>,
}

/// A barrier on its way into a task.
#[derive(Debug, Default)]
struct Aligning {
    /// When which barrier first came on an input.
    came: Option<(CheckpointId, Instant)>,
    /// The inputs that it has not come on.
    missing: Vec<String>,
}

/// How far a sink has got with making what it was given visible outside. In one life of a job it never goes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Committed {
    /// The sink.
    pub uid: OperatorUid,
    /// Which of its subtasks.
    pub subtask: usize,
    /// The life of the job that this was said in.
    pub attempt: AttemptId,
    /// The last checkpoint whose part it has committed: all that it was given before that barrier is out. None before the
    /// first one, and when the job takes none.
    pub checkpoint: Option<CheckpointId>,
}

/// One reading of a task's counts. As JSON, times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct TaskReading {
    /// Which task.
    pub task: TaskId,
    /// Records taken from inputs, or from the outside by a source.
    pub records_in: u64,
    /// Batches taken.
    pub batches_in: u64,
    /// Records given to outputs, once per consumer, or written by a sink.
    pub records_out: u64,
    /// Batches given.
    pub batches_out: u64,
    /// Records that did not decode or whose time was refused, whether or not somebody reads the dead letters.
    pub dead_letters: u64,
    /// Elements waiting in its input channels when it last looked.
    pub queued: usize,
    /// The room of its input channels, in elements.
    pub queue_capacity: usize,
    /// The last watermark it passed on.
    pub watermark: Watermark,
    /// Time spent in operators since it ran.
    #[serde(serialize_with = "as_millis")]
    pub busy: Duration,
    /// Time spent waiting for input.
    #[serde(serialize_with = "as_millis")]
    pub idle: Duration,
    /// Time spent waiting for room downstream.
    #[serde(serialize_with = "as_millis")]
    pub backpressured: Duration,
    /// What it is doing now, and for how long.
    #[serde(serialize_with = "activity_as_json")]
    pub activity: (Activity, Duration),
    /// The inputs that a checkpoint's barrier has not come on while others wait for it.
    pub aligning: Vec<String>,
    /// For how long others have waited for them.
    #[serde(rename = "aligning_ms", serialize_with = "as_millis")]
    pub aligning_for: Duration,
    /// Counters of its operators: uid, name, count.
    pub counters: Vec<(OperatorUid, &'static str, u64)>,
    /// What the sink at its end has committed, if it ends in one and that is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub committed: Option<Committed>,
}

pub(crate) fn as_millis<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(time.as_millis() as u64)
}

fn activity_as_json<S: Serializer>(
    (activity, time): &(Activity, Duration),
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{activity} for {time:.1?}"))
}

const OPENING: u64 = 0;
const READY: u64 = 1;
const BUSY: u64 = 2;
const IDLE: u64 = 3;
const BLOCKED: u64 = 4;
const EXITED: u64 = 5;
const COMMITTING: u64 = 6;

impl TaskStats {
    pub(crate) fn new(task: TaskId) -> Arc<Self> {
        Arc::new(TaskStats {
            task,
            epoch: Instant::now(),
            records_in: AtomicU64::new(0),
            batches_in: AtomicU64::new(0),
            records_out: AtomicU64::new(0),
            batches_out: AtomicU64::new(0),
            dead_letters: AtomicU64::new(0),
            queued: AtomicUsize::new(0),
            queue_capacity: AtomicUsize::new(0),
            watermark: AtomicI64::new(Watermark::MIN.0),
            idle_ns: AtomicU64::new(0),
            blocked_ns: AtomicU64::new(0),
            running_since_ns: AtomicU64::new(0),
            activity: AtomicU64::new(OPENING),
            blocked_at: Mutex::new(None),
            aligning: Mutex::default(),
            counters: Mutex::new(Vec::new()),
            committed: Mutex::new(None),
        })
    }

    /// Adds to a count of which this thread is the only writer: a load and a store, no locked instruction.
    #[inline]
    pub(crate) fn add(count: &AtomicU64, n: u64) {
        count.store(count.load(Relaxed) + n, Relaxed);
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn set(&self, activity: u64) -> u64 {
        let now = self.now_ns();
        self.activity.store((now << 3) | activity, Relaxed);
        now
    }

    pub(crate) fn ready(&self) {
        self.set(READY);
    }

    pub(crate) fn running(&self) {
        let now = self.set(BUSY);
        // Waits while opening are not part of the run.
        self.idle_ns.store(0, Relaxed);
        self.blocked_ns.store(0, Relaxed);
        self.running_since_ns.store(now.max(1), Relaxed);
    }

    pub(crate) fn exited(&self) {
        // Times stand still from here on.
        let reading = self.reading();
        self.idle_ns.store(reading.idle.as_nanos() as u64, Relaxed);
        self.blocked_ns.store(reading.backpressured.as_nanos() as u64, Relaxed);
        self.set(EXITED);
    }

    /// Counts the time until the guard drops as idle.
    pub(crate) fn idle(&self) -> Waiting<'_> {
        self.wait(IDLE, &self.idle_ns)
    }

    /// Counts the time until the guard drops as idle: the task waits for its last checkpoint.
    pub(crate) fn committing(&self) -> Waiting<'_> {
        self.wait(COMMITTING, &self.idle_ns)
    }

    /// Counts the time until the guard drops as backpressured.
    pub(crate) fn blocked(&self, at: &OperatorUid) -> Waiting<'_> {
        *self.blocked_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(at.clone());
        self.wait(BLOCKED, &self.blocked_ns)
    }

    fn wait<'a>(&'a self, activity: u64, into: &'a AtomicU64) -> Waiting<'a> {
        let before = self.activity.load(Relaxed) & 7;
        Waiting { stats: self, before, since: self.set(activity), into }
    }

    fn lock_aligning(&self) -> MutexGuard<'_, Aligning> {
        self.aligning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A barrier has come on an input; the first one counts.
    pub(crate) fn barrier_came(&self, barrier: Barrier) {
        let mut aligning = self.lock_aligning();
        if aligning.came.is_none_or(|(of, _)| of < barrier.checkpoint) {
            aligning.came = Some((barrier.checkpoint, Instant::now()));
        }
    }

    /// When it did, if it came on an input: asked once.
    pub(crate) fn take_came(&self, barrier: Barrier) -> Option<Instant> {
        let came = self.lock_aligning().came.take();
        came.filter(|(of, _)| *of == barrier.checkpoint).map(|(_, at)| at)
    }

    /// The inputs whose barrier is missing while others wait for it; none when nothing is being aligned.
    pub(crate) fn aligning(&self, missing: Vec<String>) {
        self.lock_aligning().missing = missing;
    }

    /// A sink's part of a checkpoint is out, or it is open and none was.
    pub(crate) fn committed(&self, committed: Committed) {
        *self.committed.lock().unwrap_or_else(PoisonError::into_inner) = Some((committed, Instant::now()));
    }

    /// What the sink at its end has committed, and when, if there is one and it is still there.
    pub(crate) fn last_commit(&self) -> Option<(Committed, Instant)> {
        let gone = self.activity.load(Relaxed) & 7 == EXITED;
        self.committed.lock().unwrap_or_else(PoisonError::into_inner).clone().filter(|_| !gone)
    }

    pub(crate) fn counter(&self, uid: &OperatorUid, name: &'static str) -> Counter {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, _, c)) = counters.iter().find(|(u, n, _)| u == uid && *n == name) {
            return c.clone();
        }
        let counter = Counter::default();
        counters.push((uid.clone(), name, counter.clone()));
        counter
    }

    /// Reads every count. The counts are each exact but not of one instant.
    pub(crate) fn reading(&self) -> TaskReading {
        let word = self.activity.load(Relaxed);
        let (activity, since) = (word & 7, word >> 3);
        let now = self.now_ns();
        let lasting = now.saturating_sub(since);
        let mut idle = self.idle_ns.load(Relaxed);
        let mut blocked = self.blocked_ns.load(Relaxed);
        match activity {
            IDLE | COMMITTING => idle += lasting,
            BLOCKED => blocked += lasting,
            _ => {}
        }
        let (aligning, aligning_for) = {
            let aligning = self.lock_aligning();
            let since = aligning.came.filter(|_| !aligning.missing.is_empty());
            (aligning.missing.clone(), since.map_or(Duration::ZERO, |(_, at)| at.elapsed()))
        };
        let start = self.running_since_ns.load(Relaxed);
        let end = if activity == EXITED { since } else { now };
        let ran = if start == 0 { 0 } else { end.saturating_sub(start) };
        let activity = match activity {
            OPENING => Activity::Opening,
            READY => Activity::Ready,
            IDLE => Activity::Idle,
            COMMITTING => Activity::Committing,
            BLOCKED => {
                let at = self.blocked_at.lock().unwrap_or_else(PoisonError::into_inner);
                Activity::Blocked(at.clone().unwrap_or_else(|| self.task.chain.clone()))
            }
            EXITED => Activity::Exited,
            _ => Activity::Busy,
        };
        TaskReading {
            task: self.task.clone(),
            records_in: self.records_in.load(Relaxed),
            batches_in: self.batches_in.load(Relaxed),
            records_out: self.records_out.load(Relaxed),
            batches_out: self.batches_out.load(Relaxed),
            dead_letters: self.dead_letters.load(Relaxed),
            queued: self.queued.load(Relaxed),
            queue_capacity: self.queue_capacity.load(Relaxed),
            watermark: Watermark(self.watermark.load(Relaxed)),
            busy: Duration::from_nanos(ran.saturating_sub(idle + blocked)),
            idle: Duration::from_nanos(idle),
            backpressured: Duration::from_nanos(blocked),
            activity: (activity, Duration::from_nanos(lasting)),
            aligning,
            aligning_for,
            counters: (self.counters.lock().unwrap_or_else(PoisonError::into_inner).iter())
                .map(|(uid, name, c)| (uid.clone(), *name, c.get()))
                .collect(),
            committed: (self.committed.lock().unwrap_or_else(PoisonError::into_inner).as_ref())
                .map(|(committed, _)| committed.clone()),
        }
    }
}

/// A wait in progress; its time is counted when it is dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    stats: &'a TaskStats,
    /// What the task was doing, and goes on doing.
    before: u64,
    since: u64,
    into: &'a AtomicU64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let now = self.stats.set(self.before);
        TaskStats::add(self.into, now - self.since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_while_they_last_and_add_up() {
        let stats = TaskStats::new(TaskId { chain: "t".into(), subtask: 0 });
        stats.running();
        let waiting = stats.blocked(&"the sink".into());
        while stats.reading().backpressured < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        assert_eq!(stats.reading().activity.0, Activity::Blocked("the sink".into()));
        drop(waiting);
        drop(stats.idle());
        stats.exited();
        let r = stats.reading();
        assert!(r.backpressured >= Duration::from_millis(2));
        let total = r.busy + r.idle + r.backpressured;
        assert_eq!(total, {
            let r = stats.reading();
            r.busy + r.idle + r.backpressured
        });
        assert_eq!(r.activity.0, Activity::Exited);
    }
}
