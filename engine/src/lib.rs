//! The engine of Weir: vocabulary, typed DSL, plan, and the runtime that turns a plan into actors with threads.
//!
//! A [`Job`] is written as streams: sources, operators, sinks. Operators that follow each other are fused into one chain;
//! each subtask of a chain is a *task*: an actor outside, one thread inside. Tasks are connected by bounded channels, one
//! per producer and consumer, so a slow consumer holds its producers back all the way to the source. What crosses a
//! channel is an [`Element`]: a batch of records, or a signal between batches (watermark, idle, barrier, end).
//!
//! Operators themselves live in `weir-operators`, sources and sinks in `weir-connectors`; this crate holds the contracts
//! they implement: [`Operator`], [`Source`], [`Sink`].
//!
//! ```
//! use weir_engine::{OperatorInfo, prelude::*, testkit::*};
//! let (job, probe) = (Job::named("copy").parallelism(1), Probe::new());
//! let numbers = job.source("in", ScriptSource::of([(1, 1_000), (2, 2_000)]));
//! let numbers = numbers.source_time(Watermarks::monotonic());
//! numbers.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
//! job.run()?;
//! assert_eq!(probe.values(), [1, 2]);
//! # Ok::<(), JobError>(())
//! ```

mod checkpoint;
mod context;
mod coordinator;
mod dead_letter;
mod element;
mod error;
#[cfg(test)]
mod explore;
mod graph;
pub mod http;
mod ids;
mod job;
pub mod log;
pub mod memory;
pub mod metrics;
mod operator;
mod pipe;
pub mod plan;
pub mod prelude;
mod protocol;
mod runtime;
mod side;
mod signals;
mod sink;
mod source;
mod spool;
mod state;
pub mod stream;
mod task_state;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
mod time;
mod watermarks;

pub use checkpoint::{Checkpoints, StartFrom, StateBackend};
#[doc(hidden)]
pub use context::TaskContext;
pub use context::{Counter, OperatorContext, TaskWaker};
pub use coordinator::{CheckpointAge, CheckpointInFlight, Failure, Health, Level, RestartPolicy};
pub use dead_letter::{BadRecords, DeadLetter};
pub use element::{Barrier, Data, Either, Element, EndKind, Key, Keyed, Notice, Record};
pub use error::{Cause, Domain, Result, TaskError};
pub use graph::OperatorInfo;
pub use ids::{AttemptId, CheckpointId, OperatorUid, TaskId};
pub use job::{Job, JobError, JobHandle, JobReport};
pub use operator::{Closing, Collector, HeldSignal, Operator};
pub use pipe::{Pipe, Stage, Then};
pub use runtime::calls::{CallId, Calls};
pub use runtime::stats::{Activity, Committed, TaskReading};
#[doc(hidden)]
pub use runtime::task::{Seat, TaskBody};
pub use side::{SideOutput, SideSlot, SignalPort};
pub use sink::Sink;
pub use source::{Source, SourceBatch, SourceStatus, SplitId};
pub use spool::{Piece, Spool};
pub use state::{JobState, Status};
pub use stream::{BroadcastStream, Head, KeyedStream, Shared, SourceStream, Stream, WindowedStream};
pub use task_state::RestoredItem;
pub use time::{Clock, EventTime, SharedClock, SystemClock, Watermark};
pub use watermarks::{
    ByLatest, PerRecord, Quarantined, RestoredSplit, TimeFault, WatermarkGenerator, Watermarks,
};
pub use weir_state::store::{Snapshot, Store};
pub use weir_state::{KEY_GROUPS, KeyGroup, KeyHash};
