//! `ScriptSource` and `Probe`: a source that plays a script, and a sink that remembers everything, signals included.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_state::store::Snapshot;

use crate::context::OperatorContext;
use crate::element::{Barrier, Data, EndKind, Record};
use crate::error::{Result, TaskError};
use crate::ids::CheckpointId;
use crate::operator::{Closing, Collector, Operator};
use crate::source::{Source, SourceBatch, SourceStatus, SplitId};
use crate::time::{EventTime, SharedClock, Watermark};

/// One line of a [`ScriptSource`].
#[derive(Clone, Debug)]
pub enum Line<T> {
    /// A record at a time (ms since the epoch).
    Record(T, i64),
    /// A barrier, at exactly this place.
    Barrier(u64),
    /// Nothing to read for this long, by the job's clock.
    Pause(Duration),
    /// An error of the outside world.
    Fail(&'static str),
    /// A panic inside the source.
    Panic(&'static str),
}

/// Plays a script per subtask, then ends, or stays idle for ever. Each subtask is one split. A new attempt plays it anew.
///
/// ```
/// use weir_engine::{OperatorInfo, prelude::*, testkit::*};
/// let (job, probe) = (Job::named("script").parallelism(1), Probe::new());
/// let script = vec![Line::Record("a", 0), Line::Barrier(7), Line::Record("b", 5)];
/// let letters = job.source("in", ScriptSource::new(vec![script])).without_event_time();
/// letters.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
/// job.run()?;
/// assert_eq!(probe.seen_by(0)[..3], [Seen::Record("a", 0), Seen::Barrier(7), Seen::Record("b", 5)]);
/// # Ok::<(), JobError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ScriptSource<T> {
    scripts: Arc<Vec<Vec<Line<T>>>>,
    ends: bool,
    at: usize,
    subtask: usize,
    announced: bool,
    clock: Option<SharedClock>,
    paused_until: Option<Duration>,
}

impl<T: Data + Sync> ScriptSource<T> {
    /// `scripts[i]` is played by subtask i; subtasks without a script end at once (unless [`ScriptSource::endless`]), and
    /// scripts without a subtask are not played.
    pub fn new(scripts: Vec<Vec<Line<T>>>) -> Self {
        ScriptSource {
            scripts: Arc::new(scripts),
            ends: true,
            at: 0,
            subtask: 0,
            announced: false,
            clock: None,
            paused_until: None,
        }
    }

    /// Records with their times (milliseconds since the epoch), all in one script: subtask 0's.
    pub fn of(records: impl IntoIterator<Item = (T, i64)>) -> Self {
        Self::new(vec![records.into_iter().map(|(v, t)| Line::Record(v, t)).collect()])
    }

    /// After the script the source stays open and gives nothing.
    #[must_use]
    pub fn endless(mut self) -> Self {
        self.ends = false;
        self
    }

    fn line(&self) -> Option<&Line<T>> {
        self.scripts.get(self.subtask).and_then(|s| s.get(self.at))
    }
}

impl<T: Data + Sync> Source for ScriptSource<T> {
    type Out = T;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.subtask = cx.subtask();
        self.clock = Some(cx.clock().clone());
        let of_this = |key: &str| key.parse() == Ok(self.subtask);
        let position = cx.restored("positions").into_iter().find(|item| of_this(&item.key));
        self.at = position.and_then(|p| p.value.as_u64()).unwrap_or(0) as usize;
        Ok(())
    }

    fn poll(&mut self, out: &mut SourceBatch<T>, _: Duration) -> Result<SourceStatus> {
        if !std::mem::replace(&mut self.announced, true) && self.line().is_some() {
            out.split_started(SplitId(self.subtask as u32));
        }
        let now = self.clock.as_ref().map_or(Duration::ZERO, |clock| clock.elapsed());
        if let Some(left) =
            self.paused_until.and_then(|until| until.checked_sub(now)).filter(|left| !left.is_zero())
        {
            return Ok(SourceStatus::Idle(left));
        }
        while out.room() > 0 {
            let Some(line) = self.line() else {
                return Ok(if self.ends {
                    SourceStatus::End
                } else {
                    SourceStatus::Idle(Duration::from_secs(1))
                });
            };
            match line.clone() {
                Line::Record(value, ms) => out.push(SplitId(self.subtask as u32), value, EventTime(ms)),
                Line::Barrier(_) => return Ok(SourceStatus::More),
                Line::Pause(time) if out.is_empty() => {
                    self.at += 1;
                    self.paused_until = Some(now + time);
                    return Ok(SourceStatus::Idle(time));
                }
                Line::Pause(_) => return Ok(SourceStatus::More),
                Line::Fail(message) => return Err(TaskError::external(message)),
                Line::Panic(message) => panic!("{message}"),
            }
            self.at += 1;
        }
        Ok(SourceStatus::More)
    }

    fn split_name(&self, split: SplitId) -> Option<String> {
        Some(format!("script {}", split.0))
    }

    fn positions(&mut self, _: Barrier) -> Result<Vec<(String, serde_json::Value)>> {
        Ok(vec![(self.subtask.to_string(), self.at.into())])
    }

    fn external_barrier(&mut self) -> Option<Barrier> {
        let Some(Line::Barrier(id)) = self.line() else { return None };
        let barrier = Barrier { checkpoint: CheckpointId(*id) };
        self.at += 1;
        Some(barrier)
    }
}

/// Something that reached a [`Probe`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen<T> {
    /// A record.
    Record(T, i64),
    /// A watermark.
    Watermark(i64),
    /// A barrier.
    Barrier(u64),
    /// The end.
    End(EndKind),
    /// The operator was closed.
    Closed(Closing),
}

/// Which subtask saw what, in the order it was seen.
type Story<T> = Vec<(usize, Seen<T>)>;

/// An operator that remembers, per subtask and in order, everything that passes but idleness, and passes it on.
///
/// ```
/// use weir_engine::{EndKind, testkit::{OpHarness, Probe}};
/// let probe = Probe::new();
/// let mut harness = OpHarness::new(probe.clone())?;
/// harness.send("a", 1)?;
/// assert_eq!((probe.values(), harness.take_values()), (vec!["a"], vec!["a"]));
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Probe<T> {
    seen: Arc<Mutex<Story<T>>>,
    subtask: usize,
}

impl<T> Default for Probe<T> {
    fn default() -> Self {
        Probe { seen: Arc::default(), subtask: 0 }
    }
}

impl<T: Data> Probe<T> {
    /// An empty probe. Clones remember in the same place.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Story<T>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, seen: Seen<T>) {
        self.lock().push((self.subtask, seen));
    }

    /// Everything seen: the subtask, and what.
    pub fn seen(&self) -> Vec<(usize, Seen<T>)> {
        self.lock().clone()
    }

    /// What one subtask saw.
    pub fn seen_by(&self, subtask: usize) -> Vec<Seen<T>> {
        self.lock().iter().filter(|(s, _)| *s == subtask).map(|(_, seen)| seen.clone()).collect()
    }

    /// The values of the records, in the order they came, all subtasks together.
    pub fn values(&self) -> Vec<T> {
        (self.lock().iter())
            .filter_map(|(_, seen)| if let Seen::Record(v, _) = seen { Some(v.clone()) } else { None })
            .collect()
    }
}

impl<T: Data> Operator<T> for Probe<T> {
    type Out = T;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.subtask = cx.subtask();
        Ok(())
    }
    fn process(&mut self, r: Record<T>, out: &mut impl Collector<T>) -> Result<()> {
        self.note(Seen::Record(r.value.clone(), r.time.0));
        out.emit(r)
    }
    fn on_watermark(&mut self, w: Watermark, _: &mut impl Collector<T>) -> Result<()> {
        self.note(Seen::Watermark(w.0));
        Ok(())
    }
    fn snapshot(&mut self, b: Barrier, _: &mut Snapshot) -> Result<()> {
        if b != Barrier::LAST {
            self.note(Seen::Barrier(b.checkpoint.0));
        }
        Ok(())
    }
    fn on_end(&mut self, kind: EndKind, _: &mut impl Collector<T>) -> Result<()> {
        self.note(Seen::End(kind));
        Ok(())
    }
    fn close(&mut self, outcome: Closing) {
        self.note(Seen::Closed(outcome));
    }
}

/// A sink that drops everything.
#[derive(Clone, Debug, Default)]
pub struct NullSink;

impl<T: Data> crate::sink::Sink<T> for NullSink {
    fn write(&mut self, batch: &mut Vec<Record<T>>) -> Result<()> {
        batch.clear();
        Ok(())
    }
}
