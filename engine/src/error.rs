//! What can go wrong in a task: whose fault it is, whether it is worth another try, and where it happened.

use std::error::Error;
use std::fmt;

use weir_state::StateError;

use crate::ids::{CheckpointId, OperatorUid};

/// The result of anything that runs on a task's thread. The error is one word, so the happy path tests one register.
pub type Result<T, E = TaskError> = std::result::Result<T, E>;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// The job's own code or data.
    User,
    /// A system outside the process: a broker, a disk, a database.
    External,
    /// Weir itself.
    Internal,
}

/// What stopped a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// An operator, source or sink returned an error.
    Failed,
    /// An operator, source or sink panicked.
    Panicked,
    /// The attempt was cancelled.
    Cancelled,
    /// A producer went away without saying `End`: an echo of its failure.
    UpstreamLost,
    /// A consumer went away before `End`: an echo of its failure.
    DownstreamLost,
}

impl Cause {
    /// True for causes of their own, false for what a task suffers because a neighbour died first or it was cancelled.
    pub fn is_primary(self) -> bool {
        matches!(self, Cause::Failed | Cause::Panicked)
    }
}

/// An error on a task's thread. It takes any error by `?`, remembers which operator it came from, and keeps its causes.
///
/// Like `anyhow::Error` it does not implement [`std::error::Error`] itself, or it could not be made from every error;
/// [`TaskError::source`] gives the cause. What `?` makes of another error is the user's ([`Domain::User`]); say
/// [`TaskError::external`] where it is not.
///
/// ```
/// use weir_engine::{Domain, TaskError};
/// let refused = std::io::Error::other("connection refused");
/// let error = TaskError::external("cannot read topic orders").caused_by(refused).at(&"orders-in".into());
/// assert_eq!((error.domain(), error.uid().unwrap().as_str()), (Domain::External, "orders-in"));
/// assert_eq!(error.to_string(), "cannot read topic orders");
/// assert_eq!(error.chain(), "cannot read topic orders: connection refused");
/// ```
pub struct TaskError(Box<Inner>);

struct Inner {
    cause: Cause,
    domain: Domain,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
    uid: Option<OperatorUid>,
    /// The checkpoint that it was taking its part in.
    in_snapshot: Option<CheckpointId>,
}

impl TaskError {
    fn new(cause: Cause, domain: Domain, message: impl Into<String>) -> Self {
        let message = message.into();
        TaskError(Box::new(Inner { cause, domain, message, source: None, uid: None, in_snapshot: None }))
    }

    /// The job's own code or data is at fault.
    pub fn user(message: impl Into<String>) -> Self {
        Self::new(Cause::Failed, Domain::User, message)
    }

    /// A system outside the process is at fault.
    pub fn external(message: impl Into<String>) -> Self {
        Self::new(Cause::Failed, Domain::External, message)
    }

    /// Weir is at fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Cause::Failed, Domain::Internal, message)
    }

    pub(crate) fn panicked(message: impl Into<String>) -> Self {
        Self::new(Cause::Panicked, Domain::User, message)
    }

    pub(crate) fn cancelled() -> Self {
        Self::new(Cause::Cancelled, Domain::Internal, "the attempt was cancelled")
    }

    pub(crate) fn upstream_lost() -> Self {
        Self::new(Cause::UpstreamLost, Domain::Internal, "a producer went away without saying that it ended")
    }

    pub(crate) fn downstream_lost() -> Self {
        Self::new(Cause::DownstreamLost, Domain::Internal, "a consumer went away before the end")
    }

    /// The same error with what brought it about.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The same error said to come from `uid`, unless it already knows better: the innermost operator wins.
    #[must_use]
    pub fn at(mut self, uid: &OperatorUid) -> Self {
        self.0.uid.get_or_insert_with(|| uid.clone());
        self
    }

    /// The same error said to have kept the task from taking its part in a checkpoint.
    #[must_use]
    pub(crate) fn in_snapshot(mut self, id: CheckpointId) -> Self {
        self.0.in_snapshot = Some(id);
        self
    }

    /// The checkpoint that the task was taking its part in when it failed, of itself.
    pub(crate) fn declines(&self) -> Option<CheckpointId> {
        self.0.in_snapshot.filter(|_| self.0.cause.is_primary())
    }

    /// What stopped the task.
    pub fn cause(&self) -> Cause {
        self.0.cause
    }

    /// Whose fault it is.
    pub fn domain(&self) -> Domain {
        self.0.domain
    }

    /// The operator it came from, once known.
    pub fn uid(&self) -> Option<&OperatorUid> {
        self.0.uid.as_ref()
    }

    /// The error that brought this one about.
    pub fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }

    /// The message followed by every cause, each after a colon, but for what the text so far ends with already.
    pub fn chain(&self) -> String {
        let mut text = self.0.message.clone();
        let mut next = self.source();
        while let Some(e) = next {
            // Many libraries repeat their cause inside their own message; saying it twice helps nobody.
            let part = e.to_string();
            if !text.ends_with(&part) {
                text.push_str(": ");
                text.push_str(&part);
            }
            next = e.source();
        }
        text
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for TaskError {
    #[cold]
    fn from(error: E) -> Self {
        let broken_off = (&error as &dyn std::any::Any).downcast_ref::<StateError>();
        if matches!(broken_off, Some(StateError::Cancelled { .. })) {
            return Self::new(Cause::Cancelled, Domain::Internal, error.to_string());
        }
        TaskError::user(error.to_string()).caused_by(error)
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskError")
            .field("cause", &self.0.cause)
            .field("domain", &self.0.domain)
            .field("uid", &self.0.uid)
            .field("chain", &self.chain())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_names_every_cause_once() {
        let io = std::io::Error::new(std::io::ErrorKind::NotFound, "no such file");
        let e = TaskError::external("cannot read /tmp/x").caused_by(io);
        assert_eq!(e.chain(), "cannot read /tmp/x: no such file");
        let wrapped: TaskError = std::io::Error::other("disk on fire").into();
        assert_eq!(wrapped.chain(), "disk on fire");
    }

    #[test]
    fn innermost_operator_keeps_the_blame() {
        let e = TaskError::user("bad").at(&"inner".into()).at(&"outer".into());
        assert_eq!(e.uid().map(OperatorUid::as_str), Some("inner"));
    }

    #[test]
    fn a_result_is_one_word() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }
}
