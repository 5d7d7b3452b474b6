//! A record that could not be used, with enough to find it again.

use serde::{Deserialize, Serialize};

use crate::ids::OperatorUid;

/// A record that could not be used: where it was, why it failed, and its bytes.
///
/// ```
/// let letter = weir_engine::DeadLetter::new("orders", 3, 17, "not JSON", b"{");
/// assert_eq!((letter.origin.as_str(), letter.partition, letter.offset), ("orders", 3, 17));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The uid of the operator that refused it.
    pub uid: String,
    /// The topic or file it came from, or the name of its split.
    pub origin: String,
    /// Its partition; 0 for a file, the number of its split when it was refused for its time.
    pub partition: i32,
    /// Its offset in the partition, or its 1-based line in a file; -1 when it was refused for its time.
    pub offset: i64,
    /// What is wrong with it.
    pub reason: String,
    /// The record as it came; empty when it was refused for its time: [`Quarantined`](crate::Quarantined) has it whole.
    pub payload: Vec<u8>,
}

impl DeadLetter {
    /// A refused record; its uid is empty until a source gives it to [`crate::SourceBatch::reject`] and the engine fills
    /// it in.
    pub fn new(origin: &str, partition: i32, offset: i64, reason: impl Into<String>, payload: &[u8]) -> Self {
        DeadLetter {
            uid: String::new(),
            origin: origin.to_owned(),
            partition,
            offset,
            reason: reason.into(),
            payload: payload.to_owned(),
        }
    }

    pub(crate) fn refused_by(mut self, uid: &OperatorUid) -> Self {
        self.uid = uid.to_string();
        self
    }
}

/// What a source does about a record that does not decode, or whose time it refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BadRecords {
    /// Send it to the dead-letter output (and [quarantine](crate::SourceStream::quarantined) it, if it is its time), count it, and go on.
    #[default]
    DeadLetter,
    /// Fail the job.
    Fail,
}
