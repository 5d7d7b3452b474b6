//! Where a stream leaves the job.

use crate::context::OperatorContext;
use crate::element::{Barrier, Data, Record};
use crate::error::{Result, TaskError};
use crate::memory::Footprint;
use crate::operator::Closing;

/// What the default [`Sink::commit`] answers with, to be told from the errors of sinks.
#[derive(Debug, thiserror::Error)]
#[error("the default of Sink::commit commits nothing")]
pub(crate) struct NoCommit;

impl NoCommit {
    /// Whether that is what went wrong.
    pub(crate) fn is_why(error: &TaskError) -> bool {
        error.source().is_some_and(|source| source.is::<NoCommit>())
    }
}

/// The end of a stream. `Clone` is for the recipe: one copy per subtask is taken before `open`; what is heavy (a client)
/// belongs in an `Arc` that the copies share.
///
/// *Order*: `open`, `recover`; then `write`, `flush`, `prepare` and `commit` any number of times; then `close`, when `open`
/// succeeded. All on one thread.
///
/// ```
/// use {std::sync::{Arc, Mutex}, weir_engine::{Sink, prelude::*, testkit::ScriptSource}};
/// #[derive(Clone, Default)]
/// struct Kept(Arc<Mutex<Vec<i64>>>);
/// impl Sink<i64> for Kept {
///     fn write(&mut self, batch: &mut Vec<Record<i64>>) -> Result<()> {
///         self.0.lock().expect("no writer panics").extend(batch.drain(..).map(|r| r.value));
///         Ok(())
///     }
/// }
/// # let (job, kept) = (Job::named("keep").parallelism(1), Kept::default());
/// # job.source("in", ScriptSource::of([(1, 0), (2, 5)])).without_event_time().sink("out", kept.clone());
/// # job.run()?;
/// # assert_eq!(*kept.0.lock().unwrap(), [1, 2]);
/// # Ok::<(), JobError>(())
/// ```
pub trait Sink<In: Data>: Clone + Send + 'static {
    /// Called once, before any record of any task flows. May block; an error fails the start and names this sink.
    ///
    /// # Errors
    /// Whatever keeps the sink from working: unreachable, not allowed, no such place.
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Takes every record out of `batch` (at most 256, never none); what it leaves counts as written and is dropped. May
    /// block: that is the backpressure; a long wait must go through [`OperatorContext::wait`], which hears cancellation.
    ///
    /// # Errors
    /// An error fails the job.
    fn write(&mut self, batch: &mut Vec<Record<In>>) -> Result<()>;

    /// Makes everything written so far durable outside. Called at barriers and at the end, not after a failure or a
    /// cancel; may block, like `write`.
    ///
    /// # Errors
    /// When something written could not be delivered.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Called after `flush` at a barrier and at the end: what must be done to make what was written since the last call
    /// visible, if that waits for the checkpoint. The answer is kept in the checkpoint until it is committed.
    ///
    /// A sink that gives something here is exactly-once: whatever happens, each piece of work is committed by this life or
    /// by the one that begins from that checkpoint. The default, nothing, is for sinks that write at once, and at least
    /// once.
    ///
    /// # Errors
    /// An error fails the job, and the checkpoint with it.
    fn prepare(&mut self, barrier: Barrier) -> Result<Option<serde_json::Value>> {
        let _ = barrier;
        Ok(None)
    }

    /// Does what `prepare` answered: the checkpoint is complete. May be called again with what was committed before, by
    /// another subtask too, after a restart: it must then do nothing.
    ///
    /// The default refuses: what was prepared, perhaps by another sink that had the uid before, would never be seen, and nobody
    /// would know. [`Checkpoints::drop_state`](crate::Checkpoints::drop_state) with the uid lets it go instead.
    ///
    /// # Errors
    /// An error fails the job; the next life tries again.
    fn commit(&mut self, prepared: serde_json::Value) -> Result<()> {
        let _ = prepared;
        Err(TaskError::user("it has no Sink::commit, and so cannot commit what was prepared")
            .caused_by(NoCommit))
    }

    /// Called once after `open`: this is all that was prepared before the checkpoint that this life begins from, by the
    /// subtasks that this one stands in for, and it has to be committed. What was prepared later belongs to a life that
    /// never was: remove it here. With `None` the job begins anew, without a checkpoint.
    ///
    /// # Errors
    /// An error fails the start.
    fn recover(&mut self, prepared: Option<Vec<serde_json::Value>>) -> Result<()> {
        prepared.into_iter().flatten().try_for_each(|p| self.commit(p))
    }

    /// Called last, also after a failure, its own included. Must not block for long, and must not panic: after a panic
    /// in the task that would end the process.
    fn close(&mut self, outcome: Closing) {
        let _ = outcome;
    }

    /// What its client will take in memory and threads: asked once, when the sink is added to a job, for the job's memory
    /// plan. A sink without a client keeps the default.
    fn footprint(&self) -> Footprint {
        Footprint::none()
    }
}
