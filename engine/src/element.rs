//! Everything that can cross a channel: batches of records, and the signals between them.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_state::KeyHash;

use crate::ids::CheckpointId;
use crate::time::{EventTime, Watermark};

/// What a stream can carry. Implemented for every type that qualifies.
pub trait Data: Clone + Send + 'static {}
impl<T: Clone + Send + 'static> Data for T {}

/// What a stream can be keyed by. A key is hashed by its serde image, so the hash does not depend on the compiler. Keys
/// that are equal must serialise equally.
pub trait Key: Data + Eq + Serialize + DeserializeOwned {}
impl<T: Data + Eq + Serialize + DeserializeOwned> Key for T {}

/// One value and when it happened.
///
/// ```
/// use weir_engine::{EventTime, Record};
/// let record = Record::new("7", EventTime(1_000));
/// assert_eq!(record.with(7), Record::new(7, EventTime(1_000)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<T> {
    /// What happened.
    pub value: T,
    /// When it happened, in event time: milliseconds since the epoch.
    pub time: EventTime,
}

impl<T> Record<T> {
    /// A record of `value` at `time` (milliseconds since the epoch).
    pub fn new(value: T, time: EventTime) -> Self {
        Record { value, time }
    }

    /// The same moment with another value.
    #[inline]
    pub fn with<U>(&self, value: U) -> Record<U> {
        Record { value, time: self.time }
    }
}

/// A value with its key. The key is hashed once, where the record leaves for its owner; routing, state and timers reuse
/// the hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyed<K, T> {
    /// The stable hash of `key`.
    pub hash: KeyHash,
    /// The key.
    pub key: K,
    /// The value.
    pub value: T,
}

/// A record of one of two streams that are read as one: what [`crate::KeyedStream::connect`] gives.
///
/// ```
/// use weir_engine::Either;
/// let amounts: Vec<Either<i64, &str>> = vec![Either::Left(7), Either::Right("refund")];
/// assert_eq!(amounts[0].as_ref().left(), Some(&7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Either<A, B> {
    /// Of the stream that was connected.
    Left(A),
    /// Of the stream that it was connected to.
    Right(B),
}

impl<A, B> Either<A, B> {
    /// The same, borrowed.
    pub fn as_ref(&self) -> Either<&A, &B> {
        match self {
            Either::Left(a) => Either::Left(a),
            Either::Right(b) => Either::Right(b),
        }
    }

    /// What came from the left.
    pub fn left(self) -> Option<A> {
        match self {
            Either::Left(a) => Some(a),
            Either::Right(_) => None,
        }
    }

    /// What came from the right.
    pub fn right(self) -> Option<B> {
        match self {
            Either::Left(_) => None,
            Either::Right(b) => Some(b),
        }
    }
}

/// Marks the place in the stream where a checkpoint cuts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Barrier {
    /// The checkpoint that this barrier belongs to.
    pub checkpoint: CheckpointId,
}

impl Barrier {
    /// Stands for the last snapshot of a task whose input has ended: it belongs to every checkpoint from then on.
    pub const LAST: Barrier = Barrier { checkpoint: CheckpointId(u64::MAX) };
}

/// What became of a checkpoint: told to every task, after the fact, at least once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It is complete and durable: a restart begins from it, or a later one. What was prepared for it, or for an earlier
    /// one, may be committed.
    Completed(CheckpointId),
    /// It was given up. What was prepared for it belongs to the next one that completes.
    Aborted(CheckpointId),
}

/// How a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndKind {
    /// The job will go on from here in another life: windows and timers stay as they are.
    Keep,
    /// Nothing will ever follow: windows and timers have fired (a watermark of [`Watermark::MAX`] came before).
    Flush,
}

/// What crosses a channel. Signals never sit inside a batch, so no operator matches an enum per record.
#[derive(Clone, Debug)]
pub enum Element<T> {
    /// Records, at most a batch of them.
    Batch(Vec<Record<T>>),
    /// Event time has advanced.
    Watermark(Watermark),
    /// Nothing will come for a while: do not wait for this input's watermark.
    Idle,
    /// The end of idleness: its watermark counts again. Goes to every consumer, before the first record.
    Active,
    /// A checkpoint cuts the stream here.
    Barrier(Barrier),
    /// The last element.
    End(EndKind),
}
