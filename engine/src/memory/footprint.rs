//! What a source, a sink or another part of the process takes outside the engine's own accounts: memory and threads.

use serde::Serialize;

/// How often a part is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Per {
    Subtask,
    Operator,
    /// Parts of one name are one and the same, whoever declares them.
    Process,
}

/// One named part of a footprint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) per: Per,
    pub(crate) memory_bytes: u64,
    pub(crate) threads: usize,
    #[serde(skip)]
    pub(crate) setting: Option<&'static str>,
}

/// What a connector takes beside the records that it hands on: buffers of its client, and the threads that the client
/// starts when it opens. A bound, not an average; threads that run before the job starts are counted by themselves.
///
/// ```
/// use weir_engine::memory::Footprint;
/// let client = Footprint::shared("database pool", 8 << 20, 2).lowered_by("DbSink::connections");
/// let both = client.and(Footprint::per_subtask("write buffer", 1 << 20, 0));
/// assert_eq!((both.memory_bytes(4), both.threads(4)), (12 << 20, 2));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Footprint {
    pub(crate) parts: Vec<Part>,
}

impl Footprint {
    /// Nothing worth counting.
    pub fn none() -> Self {
        Footprint::default()
    }

    /// Something that every subtask has one of.
    pub fn per_subtask(name: impl Into<String>, memory_bytes: u64, threads: usize) -> Self {
        Footprint::one(name.into(), Per::Subtask, memory_bytes, threads)
    }

    /// Something that all subtasks of the operator share.
    pub fn shared(name: impl Into<String>, memory_bytes: u64, threads: usize) -> Self {
        Footprint::one(name.into(), Per::Operator, memory_bytes, threads)
    }

    /// Something that the whole process has one of: declared under the same name by several, it is counted once, as the
    /// largest of them says.
    pub fn process(name: impl Into<String>, memory_bytes: u64, threads: usize) -> Self {
        Footprint::one(name.into(), Per::Process, memory_bytes, threads)
    }

    fn one(name: String, per: Per, memory_bytes: u64, threads: usize) -> Self {
        Footprint { parts: vec![Part { name, per, memory_bytes, threads, setting: None }] }
    }

    /// Both.
    #[must_use]
    pub fn and(mut self, other: Footprint) -> Self {
        self.parts.extend(other.parts);
        self
    }

    /// Which setting makes it smaller: named when a plan does not fit.
    #[must_use]
    pub fn lowered_by(mut self, setting: &'static str) -> Self {
        self.parts.iter_mut().for_each(|part| part.setting = Some(setting));
        self
    }

    /// True when there is nothing in it.
    pub fn is_none(&self) -> bool {
        self.parts.is_empty()
    }

    /// Bytes with so many subtasks.
    pub fn memory_bytes(&self, subtasks: usize) -> u64 {
        let of = |part: &Part| part.memory_bytes.saturating_mul(part.times(subtasks) as u64);
        self.parts.iter().fold(0, |sum: u64, part| sum.saturating_add(of(part)))
    }

    /// Threads with so many subtasks.
    pub fn threads(&self, subtasks: usize) -> usize {
        self.parts.iter().map(|part| part.threads * part.times(subtasks)).sum()
    }
}

impl Part {
    pub(crate) fn times(&self, subtasks: usize) -> usize {
        if self.per == Per::Subtask { subtasks } else { 1 }
    }
}
