//! What every file of a checkpoint is doing right now, readable while it is uploaded: which one is stuck, where, and for how long.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// Where a file's upload stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UploadPhase {
    /// Waits for one of the uploads before it to end.
    Queued,
    /// Is read from the local disk.
    Reading,
    /// Waits for the bandwidth limit.
    Limited,
    /// Is on its way: the storage has not answered yet.
    Sending,
    /// Waits to be tried again after the storage failed.
    BackingOff,
    /// Is in the storage.
    Done,
    /// Was given up.
    Failed,
}

impl UploadPhase {
    /// The word in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Reading => "reading",
            Self::Limited => "held back by the bandwidth limit",
            Self::Sending => "sending",
            Self::BackingOff => "waiting to be tried again",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    /// True when nothing more will happen to it.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }
}

/// One file's upload, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileProgress {
    /// The operator it belongs to.
    pub uid: String,
    /// The subtask.
    pub subtask: usize,
    /// The file's local name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// How much of it the storage has confirmed.
    pub sent: u64,
    /// Where it stands.
    pub phase: UploadPhase,
    /// How long it has been there, in milliseconds.
    pub phase_ms: u64,
    /// How often the storage was asked in vain.
    pub failures: u32,
    /// What it said last, if it failed.
    pub error: Option<String>,
}

impl fmt::Display for FileProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uid, subtask, name, bytes, sent, phase, phase_ms, failures, error } = self;
        write!(f, "file {name} of {uid}[{subtask}]: {}", phase.as_str())?;
        write!(f, " for {:.1} s, {sent} of {bytes} bytes confirmed", *phase_ms as f64 / 1000.0)?;
        if *failures > 0 {
            write!(f, ", {failures} failures")?;
        }
        match error {
            Some(error) => write!(f, ", the last: {error}"),
            None => Ok(()),
        }
    }
}

/// The uploads of one checkpoint; clones see the same.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<Vec<Entry>>>);

#[derive(Debug)]
struct Entry {
    /// Its `phase_ms` is not kept up; `since` is.
    file: FileProgress,
    since: Instant,
}

impl Progress {
    /// Every file that was to be uploaded so far, in the order they were announced. Files that the storage had already are
    /// not among them.
    pub fn files(&self) -> Vec<FileProgress> {
        let now = Instant::now();
        self.entries().iter().map(|entry| entry.at(now)).collect()
    }

    /// The files that are not over yet, the one longest in its phase first.
    pub fn pending(&self) -> Vec<FileProgress> {
        let mut files = self.files();
        files.retain(|file| !file.phase.is_over());
        files.sort_by_key(|file| std::cmp::Reverse(file.phase_ms));
        files
    }

    /// Announces a file.
    pub(crate) fn add(&self, uid: &str, subtask: usize, name: &str, bytes: u64) -> Note {
        let file = FileProgress {
            uid: uid.to_owned(),
            subtask,
            name: name.to_owned(),
            bytes,
            sent: 0,
            phase: UploadPhase::Queued,
            phase_ms: 0,
            failures: 0,
            error: None,
        };
        let mut entries = self.entries();
        entries.push(Entry { file, since: Instant::now() });
        Note { progress: self.clone(), index: entries.len() - 1 }
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn at(&self, now: Instant) -> FileProgress {
        FileProgress { phase_ms: millis(now.duration_since(self.since)), ..self.file.clone() }
    }
}

/// Where one upload writes down how it stands.
#[derive(Debug)]
pub(crate) struct Note {
    progress: Progress,
    index: usize,
}

impl Note {
    pub(crate) fn phase(&self, phase: UploadPhase) {
        self.update(|entry| {
            if entry.file.phase != phase {
                entry.file.phase = phase;
                entry.since = Instant::now();
            }
        });
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.update(|entry| entry.file.sent += bytes);
    }

    /// The storage failed: the file waits to be tried again.
    pub(crate) fn failed(&self, error: &object_store::Error) {
        self.update(|entry| {
            entry.file.failures += 1;
            entry.file.error = Some(error.to_string());
            entry.file.phase = UploadPhase::BackingOff;
            entry.since = Instant::now();
        });
    }

    /// All of it has to be sent again.
    pub(crate) fn restart(&self) {
        self.update(|entry| entry.file.sent = 0);
    }

    pub(crate) fn failures(&self) -> u32 {
        self.progress.entries()[self.index].file.failures
    }

    fn update(&self, change: impl FnOnce(&mut Entry)) {
        change(&mut self.progress.entries()[self.index]);
    }
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn says_which_file_is_stuck_where_and_for_how_long() {
        let progress = Progress::default();
        let one = progress.add("window", 2, "000012.sst", 100);
        let two = progress.add("window", 2, "000013.sst", 200);
        one.phase(UploadPhase::Sending);
        tokio::time::sleep(Duration::from_secs(5)).await;
        two.phase(UploadPhase::Sending);
        two.failed(&object_store::Error::Generic { store: "s", source: "no answer".into() });
        tokio::time::sleep(Duration::from_secs(33)).await;
        one.phase(UploadPhase::Sending);

        let pending = progress.pending();
        assert_eq!(
            pending.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "file 000012.sst of window[2]: sending for 38.0 s, 0 of 100 bytes confirmed",
                "file 000013.sst of window[2]: waiting to be tried again for 33.0 s, 0 of 200 bytes confirmed, 1 failures, the last: Generic s error: no answer",
            ]
        );
        one.sent(100);
        one.phase(UploadPhase::Done);
        assert_eq!(progress.pending().len(), 1);
        assert_eq!(progress.files()[0].sent, 100);
    }
}
