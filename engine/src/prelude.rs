//! What a job author imports, nothing more.

pub use crate::checkpoint::{Checkpoints, StartFrom, StateBackend};
pub use crate::context::OperatorContext;
pub use crate::coordinator::RestartPolicy;
pub use crate::dead_letter::{BadRecords, DeadLetter};
pub use crate::element::{Either, EndKind, Record};
pub use crate::error::{Result, TaskError};
pub use crate::job::{Job, JobError, JobHandle};
pub use crate::operator::Collector;
pub use crate::state::JobState;
pub use crate::stream::{BroadcastStream, KeyedStream, Shared, SourceStream, Stream, WindowedStream};
pub use crate::time::{EventTime, Watermark};
pub use crate::watermarks::{Quarantined, Watermarks};
