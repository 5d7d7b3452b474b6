//! Where a stream enters the job: the source contract and the batch a source fills.

use std::time::Duration;

use crate::context::OperatorContext;
use crate::dead_letter::DeadLetter;
use crate::element::{Barrier, Data, Notice, Record};
use crate::error::Result;
use crate::memory::Footprint;
use crate::operator::Closing;
use crate::time::EventTime;

/// The beginning of a stream. `Clone` is for the recipe: one copy per subtask and attempt is taken before `open`.
///
/// *Order*: `open`; then `poll` until it says [`SourceStatus::End`], or the job drains, fails or is cancelled; then
/// `close`, when `open` succeeded. All on one thread.
///
/// ```
/// use {std::time::Duration, weir_engine::{EventTime, Source, SourceBatch, SourceStatus, SplitId, prelude::*}};
/// # #[derive(Clone)]
/// struct Once;
/// impl Source for Once {
///     type Out = &'static str;
/// #     fn open(&mut self, _: &OperatorContext) -> Result<()> { Ok(()) }
///     fn poll(&mut self, out: &mut SourceBatch<&'static str>, _: Duration) -> Result<SourceStatus> {
///         out.push(SplitId(0), "hello", EventTime(0));
///         Ok(SourceStatus::End)
///     }
/// }
/// # let mut batch = SourceBatch::new(1);
/// # assert_eq!(Once.poll(&mut batch, Duration::ZERO)?, SourceStatus::End);
/// # assert_eq!((batch.records()[0].value, batch.room()), ("hello", 0));
/// # Ok::<(), TaskError>(())
/// ```
pub trait Source: Clone + Send + 'static {
    /// What it gives.
    type Out: Data;

    /// Called once, before any record of any task flows. `cx` says which share of the splits is this subtask's. May
    /// block; an error fails the start and names this source.
    ///
    /// # Errors
    /// Whatever keeps the source from working.
    fn open(&mut self, cx: &OperatorContext) -> Result<()>;

    /// Pushes records while `out` has room, and returns within about `budget`, whether or not there were any: the task
    /// hears a drain, a barrier or a cancel only between two polls.
    ///
    /// # Errors
    /// An error fails the job; a record that does not decode is not one: give it to [`SourceBatch::reject`].
    fn poll(&mut self, out: &mut SourceBatch<Self::Out>, budget: Duration) -> Result<SourceStatus>;

    /// Where the subtask stands, for the checkpoint: a position per split, under the split's own stable name, as JSON. A
    /// life that begins from this checkpoint finds the positions of all subtasks, of however many there were, by
    /// [`OperatorContext::restored`] in `open`, and goes on with those of the splits that are now its own. Everything that
    /// `poll` gave so far is before the position, and nothing else. `barrier` says which checkpoint: [`Source::on_notice`]
    /// will name it when it is complete, which may be after later positions were asked for, those at the end
    /// ([`Barrier::LAST`]) for one.
    ///
    /// The default, none, is for a source that cannot be replayed: after a restart it gives whatever it gives.
    ///
    /// # Errors
    /// As for `poll`.
    fn positions(&mut self, barrier: Barrier) -> Result<Vec<(String, serde_json::Value)>> {
        let _ = barrier;
        Ok(Vec::new())
    }

    /// The split's own stable name: the topic and partition, the file. Where event time stands in the split is kept in
    /// checkpoints under it, and errors and quarantined records name it. What has the same name in the next life, at
    /// whatever parallelism, must be the same split.
    ///
    /// The default, none, is for splits that are not the same from life to life: their event time begins anew with the first
    /// record.
    fn split_name(&self, split: SplitId) -> Option<String> {
        let _ = split;
        None
    }

    /// Called when a checkpoint is complete, or was given up; not for every one. A source that tells the outside how far it
    /// has read does so here, with the positions of that checkpoint, and nowhere else.
    ///
    /// # Errors
    /// As for `poll`; what the outside refuses is better counted than made a failure.
    fn on_notice(&mut self, notice: Notice) -> Result<()> {
        let _ = notice;
        Ok(())
    }

    /// A checkpoint mark that the outside world put here, asked for before each `poll` (what Flink calls an externally
    /// induced checkpoint); it goes downstream before what that poll gives. Sources without such marks keep the default.
    fn external_barrier(&mut self) -> Option<Barrier> {
        None
    }

    /// Called last, also after a failure, its own included. Must not block for long; a panic
    /// is logged and fails nothing.
    fn close(&mut self, outcome: Closing) {
        let _ = outcome;
    }

    /// What its client will take in memory and threads: asked once, when the source is added to a job, for the job's memory
    /// plan. A source without a client keeps the default.
    fn footprint(&self) -> Footprint {
        Footprint::none()
    }
}

/// What a source has to say after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceStatus {
    /// There may be more at once.
    More,
    /// Nothing is ready; ask again after this long at the latest. The task waits, and hears control meanwhile. (When
    /// the same poll gave records it asks again as soon as these are processed.)
    Idle(Duration),
    /// This subtask will never have another record.
    End,
}

/// One ordered part of a source's input (a partition, a file): the unit that watermarks are kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SplitId(pub u32);

/// What a source says of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitNews {
    Started,
    /// After that many records of the batch.
    Drained(usize),
    Finished,
}

/// What a poll fills: records in runs of the same split, dead letters, and news about splits.
///
/// ```
/// use weir_engine::{DeadLetter, EventTime, SourceBatch, SplitId};
/// let mut batch = SourceBatch::new(256);
/// batch.split_started(SplitId(3));
/// batch.push(SplitId(3), "paid", EventTime(1_000));
/// batch.reject(DeadLetter::new("orders", 3, 17, "not JSON", b"{"));
/// assert_eq!((batch.room(), batch.records().len(), batch.rejected().len()), (255, 1, 1));
/// ```
#[derive(Debug)]
pub struct SourceBatch<T> {
    pub(crate) records: Vec<Record<T>>,
    /// `(split, end)`: records up to index `end` came from `split`.
    pub(crate) runs: Vec<(SplitId, usize)>,
    pub(crate) rejected: Vec<DeadLetter>,
    pub(crate) splits: Vec<(SplitId, SplitNews)>,
    limit: usize,
}

impl<T> SourceBatch<T> {
    /// An empty batch with room for `limit` records.
    pub fn new(limit: usize) -> Self {
        SourceBatch {
            records: Vec::with_capacity(limit),
            runs: Vec::new(),
            rejected: Vec::new(),
            splits: Vec::new(),
            limit,
        }
    }

    /// How many more records fit. A source stops at 0.
    #[inline]
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.records.len())
    }

    /// Adds a record of `split`. `time` is the source's own idea of when it happened; an `event_time` extractor replaces it.
    /// What there is no room for is taken all the same, and makes the batch larger than downstream likes.
    #[inline]
    pub fn push(&mut self, split: SplitId, value: T, time: EventTime) {
        self.records.push(Record { value, time });
        let end = self.records.len();
        match self.runs.last_mut() {
            Some(run) if run.0 == split => run.1 = end,
            _ => self.runs.push((split, end)),
        }
    }

    /// Adds a record that could not be decoded; the engine counts it and routes it to the dead-letter output.
    pub fn reject(&mut self, letter: DeadLetter) {
        self.rejected.push(letter);
    }

    /// Announces a split, in the first poll those that are there from the start: its watermark holds the source's back from now on, until it is idle or finished. A record of a
    /// split that was not announced does so too.
    pub fn split_started(&mut self, split: SplitId) {
        self.splits.push((split, SplitNews::Started));
    }

    /// Says that a split will give nothing more: its watermark no longer counts.
    pub fn split_finished(&mut self, split: SplitId) {
        self.splits.push((split, SplitNews::Finished));
    }

    /// Says that a split has been read dry: nothing more is there just now. A record of it ends that. Only a split that has
    /// been dry for long enough is idle. A poll that ends in [`SourceStatus::Idle`] says it of every split that was never
    /// told of by this, and one that ends in [`SourceStatus::More`] takes that back, so a source needs this only when some of
    /// its splits can be dry while others keep it busy.
    pub fn split_drained(&mut self, split: SplitId) {
        self.splits.push((split, SplitNews::Drained(self.records.len())));
    }

    /// The records so far.
    pub fn records(&self) -> &[Record<T>] {
        &self.records
    }

    /// What was rejected so far.
    pub fn rejected(&self) -> &[DeadLetter] {
        &self.rejected
    }

    /// True when there is neither a record nor a dead letter in it, whatever news there is about splits.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.rejected.is_empty()
    }

    pub(crate) fn clear(&mut self, limit: usize) {
        self.records.clear();
        self.runs.clear();
        self.rejected.clear();
        self.splits.clear();
        self.limit = limit;
    }
}
