//! Names and numbers that must not be mistaken for each other.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The name an operator's state, metrics and errors are kept under. Unique in a job, which the plan checks; stable across
/// edits of it when it was given, not when it is the kind and a number.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperatorUid(Arc<str>);

impl OperatorUid {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for OperatorUid {
    fn from(name: &str) -> Self {
        OperatorUid(name.into())
    }
}

impl From<String> for OperatorUid {
    fn from(name: String) -> Self {
        OperatorUid(name.into())
    }
}

impl Serialize for OperatorUid {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl Serialize for TaskId {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl Borrow<str> for OperatorUid {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for OperatorUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl fmt::Display for OperatorUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One fused chain on one thread: the chain's name and which of its subtasks this is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The uid of the chain's first operator.
    pub chain: OperatorUid,
    /// 0-based subtask.
    pub subtask: usize,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.chain, self.subtask)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One life of a job, counted from 1. Guards against control messages of a life that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptId(pub u32);

impl AttemptId {
    /// The first life of a job.
    pub const FIRST: AttemptId = AttemptId(1);

    /// The life after this one.
    #[must_use]
    pub fn next(self) -> AttemptId {
        AttemptId(self.0 + 1)
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Names one checkpoint; ids rise within a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CheckpointId(pub u64);

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
