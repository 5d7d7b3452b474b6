//! Where a stream leaves the job.

use crate::context::OperatorContext;
use crate::element::{Data, Record};
use crate::error::Result;
use crate::operator::Closing;

/// The end of a stream. `Clone` is for the recipe: one copy per subtask is taken before `open`; what is heavy (a client)
/// belongs in an `Arc` that the copies share.
///
/// *Order*: `open`; then `write` and `flush` any number of times; then `close`. All on one thread.
pub trait Sink<In: Data>: Clone + Send + 'static {
    /// Called once, before any record of any task flows. May block; an error fails the start and names this sink.
    ///
    /// # Errors
    /// Whatever keeps the sink from working: unreachable, not allowed, no such place.
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Takes every record out of `batch` (at most 256). May block: that is the backpressure; a long wait must go
    /// through [`OperatorContext::wait`], which hears cancellation.
    ///
    /// # Errors
    /// An error fails the job.
    fn write(&mut self, batch: &mut Vec<Record<In>>) -> Result<()>;

    /// Makes everything written so far durable outside. Called at barriers and before the end; may block, like `write`.
    ///
    /// # Errors
    /// When something written could not be delivered.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Called last, also after a failure elsewhere. Must not block for long.
    fn close(&mut self, outcome: Closing) {
        let _ = outcome;
    }
}
