//! Joins of two keyed streams: by an interval of time, by window, with a table of versions; and what they share.
//!
//! All of them stand on [`connect`](weir_engine::KeyedStream::connect): records of both sides come to the subtask that owns their
//! key, are read as they come, and wait in state for what they may meet. No join refuses to read a side.

mod co_group;
mod interval;
mod kind;
mod ops;
mod temporal;
#[cfg(test)]
pub(crate) mod testing;

pub use co_group::{CoGroup, WindowJoined};
pub use interval::Interval;
pub use kind::{Anti, FullOuter, Inner, JoinKind, LeftOuter, RightOuter, Semi, TableJoinKind};
pub use ops::{JoinOps, WindowJoinOps};
pub use temporal::{Change, temporal};
