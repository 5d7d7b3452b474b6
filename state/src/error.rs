//! What can go wrong with state; each message names the operator, the table or the file, and the way out.

use std::error::Error;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use crate::codec::CodecError;

/// Why state could not be read, written, frozen or restored.
///
/// *Again*: [`Io`](Self::Io) and [`Backend`](Self::Backend) may pass when the job restarts. The others come again with the
/// same job and the same checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A file could not be read or written.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was tried, as in "create".
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The database below refused an operation.
    #[error("the state database in {} could not {doing}", folder.display())]
    Backend {
        /// What was tried, as in "write".
        doing: &'static str,
        /// The folder of the database.
        folder: PathBuf,
        /// What the database says.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A file of a checkpoint or savepoint is not what was written.
    #[error("{} is damaged ({what}); restore from another checkpoint or savepoint", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Bytes of a table could not be made or read.
    #[error("operator '{uid}', table '{table}': cannot {doing}{}", if_the_type_changed(doing))]
    Codec {
        /// The operator.
        uid: String,
        /// The table.
        table: String,
        /// What was tried, as in "decode a value of version 2".
        doing: String,
        /// What the codec says.
        source: CodecError,
    },
    /// What is in the checkpoint does not fit what the job declares. Nothing was changed.
    #[error("operator '{uid}', table '{table}': {found}; {fix}")]
    Refused {
        /// The operator.
        uid: String,
        /// The table.
        table: String,
        /// What was found, with the versions.
        found: String,
        /// What to do about it.
        fix: String,
    },
    /// The parts of a checkpoint do not hold the key groups that are wanted.
    #[error(
        "operator '{uid}': key groups {} to {} are to be restored, but the checkpoint has no part with group {missing}; \
         restore from another checkpoint or savepoint",
        wanted.start, wanted.end
    )]
    MissingGroups {
        /// The operator.
        uid: String,
        /// The key groups wanted, the end not among them.
        wanted: Range<u16>,
        /// The first of them that is in no part.
        missing: u16,
    },
    /// The job used state in a way that cannot work.
    #[error("operator '{uid}', table '{table}': {what}")]
    Misused {
        /// The operator.
        uid: String,
        /// The table.
        table: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// A wait for a snapshot to be written was broken off because the task is cancelled.
    #[error("operator '{uid}': cancelled while waiting for a snapshot to be written")]
    Cancelled {
        /// The operator.
        uid: String,
    },
}

/// What to do about bytes that cannot be read: they passed their checksum, so they are another type's.
fn if_the_type_changed(doing: &str) -> &'static str {
    if doing.starts_with("decode a value") {
        "; if the type has changed since the checkpoint, give it a new version with Schema::after, or where the operator takes no \
         schema give it another uid and drop the state of this one"
    } else {
        ""
    }
}

impl StateError {
    /// True when a disk or database refused for now: the same may succeed later.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, StateError::Io { .. } | StateError::Backend { .. })
    }

    /// An [`Io`](Self::Io) error as `map_err` takes it.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> StateError {
        let path = path.into();
        move |source| StateError::Io { doing, path, source }
    }
}
