//! What can go wrong with a checkpoint's storage; each message names the object and the way out.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use super::names::CheckpointKey;
use super::restarts::TooManyRestarts;

/// The result of this module's calls.
pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// Why a checkpoint could not be written, read or deleted.
///
/// [`is_transient`](Self::is_transient) answers whether trying again may help.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The URL is not understood, or what it names cannot be used. A person must mend it.
    #[error("checkpoint storage '{url}' cannot be used: {why}; {fix}")]
    Open {
        /// The URL as given.
        url: String,
        /// What is wrong.
        why: String,
        /// What to do.
        fix: String,
        /// The cause, if another layer told one.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The storage did not do what was asked, after all tries.
    #[error("checkpoint storage '{url}' failed to {action} '{object}' ({tries} tries)")]
    Storage {
        /// The storage.
        url: String,
        /// What was asked of it.
        action: &'static str,
        /// The object, by its path in the storage.
        object: String,
        /// How often it was tried.
        tries: u32,
        /// What the storage said last.
        source: Box<object_store::Error>,
    },
    /// There is no room left in the storage or on the local disk.
    #[error("no space left to {action} '{object}' in '{place}'; free some, or give the job another folder")]
    NoSpace {
        /// The storage or local folder.
        place: String,
        /// What was asked.
        action: &'static str,
        /// The object or file.
        object: String,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A local file could not be read or written.
    #[error("cannot {action} local file {}", path.display())]
    Local {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A manifest, lease or ledger is not what was written: cut short, changed, or not ours.
    #[error("'{object}' in checkpoint storage '{url}' cannot be read: {why}; {fix}")]
    Unreadable {
        /// The storage.
        url: String,
        /// The object, by its path in the storage.
        object: String,
        /// What is wrong with it.
        why: String,
        /// What to do.
        fix: &'static str,
    },
    /// The file was written in a format this build does not know.
    #[error(
        "'{object}' in checkpoint storage '{url}' has format {found}, this build reads {known}; use the version of weir that wrote it, or a newer one"
    )]
    UnknownFormat {
        /// The storage.
        url: String,
        /// The object, by its path in the storage.
        object: String,
        /// The format in the file.
        found: u64,
        /// The formats this build reads.
        known: u32,
    },
    /// A data file is not the one the manifest names.
    #[error(
        "'{object}' in checkpoint storage '{url}' is damaged: expected {expected}, found {found}; restore from another checkpoint or savepoint"
    )]
    Damaged {
        /// The storage.
        url: String,
        /// The object, by its path in the storage.
        object: String,
        /// The length or checksum in the manifest.
        expected: String,
        /// That of the file.
        found: String,
    },
    /// A data file that a manifest names is not there.
    #[error(
        "'{object}' is missing from checkpoint storage '{url}' though a manifest names it; restore from another checkpoint or savepoint"
    )]
    Missing {
        /// The storage.
        url: String,
        /// The object, by its path in the storage.
        object: String,
    },
    /// The name cannot be given to a savepoint.
    #[error("savepoint name '{name}' cannot be used: {why}")]
    BadName {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is no such checkpoint or savepoint.
    #[error("{what} is not in checkpoint storage '{url}'; there are: {known}")]
    NotFound {
        /// What was asked for.
        what: String,
        /// The storage.
        url: String,
        /// What there is.
        known: String,
    },
    /// The savepoint was completed by a process that had lost the job by then: whoever has it since may have begun from before it, and
    /// sinks may have thrown away what it names.
    #[error(
        "savepoint '{name}' in checkpoint storage '{url}' does not count: it was completed under lease epoch {epoch} when another process had taken job '{job}' over without it; begin from another, and delete its folder"
    )]
    Disowned {
        /// Its name.
        name: String,
        /// The storage.
        url: String,
        /// The job.
        job: String,
        /// The lease epoch it was completed under.
        epoch: u64,
    },
    /// A newer checkpoint than the newest one there is was complete, and its manifest is gone.
    #[error(
        "{gone} of job '{job}' was complete, and is not in checkpoint storage '{url}' any more; the newest one there is {newest}. To begin from that shows again whatever sinks have shown since. Put the missing one back or name the place it was moved to; or accept it by naming where to begin"
    )]
    Gone {
        /// The job.
        job: String,
        /// What is gone, in words.
        gone: String,
        /// The newest one that is there, in words.
        newest: String,
        /// The storage.
        url: String,
    },
    /// The checkpoint or savepoint was published before. Nothing was overwritten.
    #[error("{what} already exists in checkpoint storage '{url}'; {fix}")]
    Exists {
        /// What exists.
        what: String,
        /// The storage.
        url: String,
        /// What to do.
        fix: &'static str,
    },
    /// Another process has taken the job over; this one must stop.
    #[error(
        "this process no longer owns job '{job}': its lease epoch {ours} was followed by {theirs}, held by {holder}; stop it, the other one goes on"
    )]
    Fenced {
        /// The job.
        job: String,
        /// The epoch of this process.
        ours: u64,
        /// The newest epoch.
        theirs: u64,
        /// Who has it: owner, host and process.
        holder: String,
    },
    /// Another process runs the job.
    #[error(
        "job '{job}' is being run by {holder} since {since} (last heard of {heard}); stop that process, wait {wait_s} s in case it is gone, or break its lease (it is then refused at its next checkpoint)"
    )]
    Held {
        /// The job.
        job: String,
        /// Who has it: owner, host and process.
        holder: String,
        /// Since when, UTC.
        since: String,
        /// The time of its last renewal, UTC.
        heard: String,
        /// Seconds until the lease may be taken if it is not renewed.
        wait_s: u64,
    },
    /// It is not known whether the manifest was published: the storage neither confirmed nor denied it. Its files are kept.
    /// Whoever reads the storage next finds out; sinks must keep what they prepared until then.
    #[error(
        "checkpoint {key} of job '{job}' may or may not have been published: the storage does not answer; restart from the latest checkpoint when it does"
    )]
    Unsure {
        /// The job.
        job: String,
        /// The checkpoint.
        key: CheckpointKey,
        /// What the storage said last.
        source: Box<CheckpointError>,
    },
    /// The checkpoint was given up while this was going on.
    #[error("checkpoint {id} was given up")]
    Discarded {
        /// Its id.
        id: u64,
    },
    /// A manifest names a file that its checkpoint did not bring along: a fault of the caller.
    #[error("the manifest of checkpoint {id} {why}")]
    Inconsistent {
        /// The checkpoint.
        id: u64,
        /// What does not fit.
        why: String,
    },
    /// The process died too often.
    #[error(transparent)]
    TooManyRestarts(#[from] TooManyRestarts),
    /// A fail point of a test fired.
    #[error("fail point {0} fired")]
    Injected(&'static str),
}

impl CheckpointError {
    /// True if the storage's answer may be another one next time: the checkpoint counts as failed, the job may go on. A
    /// full disk counts: somebody may free it.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Storage { source, .. } => transient(source),
            Self::NoSpace { .. } | Self::Local { .. } | Self::Discarded { .. } | Self::Injected(_) => true,
            _ => false,
        }
    }

    /// True if this process must stop because another one owns the job.
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Fenced { .. })
    }
}

/// Whether a storage's error may go away by itself within seconds.
pub(crate) fn transient(error: &object_store::Error) -> bool {
    use object_store::Error as E;
    match error {
        E::Generic { .. } => !no_space(error) && !io_kind(error).is_some_and(hopeless),
        E::JoinError { .. } => true,
        _ => false,
    }
}

/// Whether an error means that there is no room left.
pub(crate) fn no_space(error: &(dyn Error + 'static)) -> bool {
    io_kind(error).is_some_and(full)
}

/// Whether a kind of I/O error means that there is no room left.
pub(crate) fn full(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

fn hopeless(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::InvalidFilename
    )
}

/// The kind of the first I/O error in a chain of causes.
fn io_kind(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_from_a_passing_fault() {
        let generic = |kind: io::ErrorKind| object_store::Error::Generic {
            store: "test",
            source: Box::new(io::Error::from(kind)),
        };
        assert!(transient(&generic(io::ErrorKind::TimedOut)));
        assert!(!transient(&generic(io::ErrorKind::StorageFull)));
        assert!(no_space(&generic(io::ErrorKind::StorageFull)));
        assert!(!transient(&generic(io::ErrorKind::PermissionDenied)));
        assert!(!no_space(&generic(io::ErrorKind::PermissionDenied)));
    }
}
