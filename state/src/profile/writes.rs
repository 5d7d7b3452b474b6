//! Writes that come from outside a stream: journalled, taken by the writers of their users in order, and answered when they are visible.

use super::change::Change;
use super::error::ProfileError;
use super::group;
use super::journal::{Entry, Journal};
use super::space::{Profiles, Space};
use super::update::ProfileUpdate;
use super::user::UserId;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a write did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WriteDone {
    /// Its number in the journal; 0 if there was nothing to write.
    pub sequence: u64,
    /// Updates of users that it had.
    pub updates: usize,
    /// Those that could not be applied as users were by then (an increment beyond its range, say), with the reason; nothing of them took effect.
    pub refused: Vec<(UserId, String)>,
}

/// Why a write failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// It does not fit the tags there are, or cannot be journalled. Nothing of it was written.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// There is no journal, without which it would be lost with the process. Nothing of it was written.
    #[error(
        "profile '{space}' has no journal, so a write could be lost: build it with Profiles::journal(path)"
    )]
    NoJournal {
        /// The profile space.
        space: String,
    },
    /// No job runs that takes it. Nothing of it was written.
    #[error("nobody writes profile '{space}' now: start the job that updates it, then write again")]
    NoWriter {
        /// The profile space.
        space: String,
    },
    /// It is durable, and will be applied once; but it is not visible yet.
    #[error(
        "write {sequence} of profile '{space}' is durable but not visible after {waited_ms} ms: it will be, do not write it again"
    )]
    NotVisible {
        /// The profile space.
        space: String,
        /// Its number in the journal.
        sequence: u64,
        /// How long was waited.
        waited_ms: u64,
    },
}

impl Profiles {
    /// Keeps writes from outside a stream ([`write`](Self::write), `INSERT`, `UPDATE` and `DELETE` in SQL) and changes of tags and segments in a file until a
    /// completed checkpoint holds them: what was acknowledged survives a crash, and is applied exactly once. A space has one, and no other process
    /// may use it.
    ///
    /// *Blocking*: reads the file.
    ///
    /// # Errors
    /// [`ProfileError::Journal`] if it cannot be opened, is damaged, or another process uses it.
    pub fn journal(self, path: impl AsRef<Path>) -> Result<Self, ProfileError> {
        self.space.writes.open(path.as_ref())?;
        Ok(self)
    }

    /// Writes updates from outside a stream: journals them, lets the job that updates these profiles apply them as if they had come in its input, and
    /// returns when every reader sees them. Updates without a time take the clock's.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = std::env::temp_dir().join(format!("weir-doc-{}", std::process::id()));
    /// use std::time::Duration;
    /// use weir_state::profile::{ProfileUpdate, Profiles, WriteError};
    /// let profiles = Profiles::named("p").int_tag("n").journal(folder.join("journal"))?;
    /// let update = ProfileUpdate::of(7u64).set("n", 1);
    /// let error = profiles.write(vec![update], Duration::from_secs(5)).unwrap_err();
    /// assert!(matches!(error, WriteError::NoWriter { .. }), "no job runs here");
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// *Blocking*: until they are on disk and visible; for the latter `patience` at most.
    ///
    /// # Errors
    /// [`WriteError`]; only after [`WriteError::NotVisible`] was anything written.
    pub fn write(
        &self,
        mut updates: Vec<ProfileUpdate>,
        patience: Duration,
    ) -> Result<WriteDone, WriteError> {
        let space = &self.space;
        if updates.is_empty() {
            return Ok(WriteDone::default());
        }
        let now = space.writes.next_time(super::writer::now_ms());
        let catalogue = space.catalogue();
        let mut groups: Vec<u16> = Vec::new();
        for update in &mut updates {
            update.time.get_or_insert(now);
            group::check(&catalogue, update)?;
            groups.push(update.user.key_hash().group(space.groups).0);
        }
        groups.sort_unstable();
        groups.dedup();
        if !space.are_owned(&groups) {
            return Err(WriteError::NoWriter { space: self.name() });
        }
        let count = updates.len();
        let refusals = space.writes.append(catalogue.sequence, updates)?;
        let Some(refusals) = refusals else { return Err(WriteError::NoJournal { space: self.name() }) };
        let sequence = refusals.1;
        space.writes.ring();
        let began = Instant::now();
        let visible = || groups.iter().all(|group| space.writes.is_visible(*group, sequence));
        let done = space.waiting.until(patience, visible);
        let refused = refusals.take();
        if done {
            return Ok(WriteDone { sequence, updates: count, refused });
        }
        let waited_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Err(WriteError::NotVisible { space: self.name(), sequence, waited_ms })
    }
}

/// What a writer is called by when there is something for it.
type Bell = Box<dyn Fn() + Send + Sync>;

/// The writes that are in no completed checkpoint yet. While there is no journal, all of this is a number that stays 0.
#[derive(Default)]
pub(crate) struct Writes {
    /// The number of the newest entry.
    last: AtomicU64,
    /// The time that was given to the last write.
    time: AtomicI64,
    /// Up to which number entries are visible, by key group.
    visible: Box<[AtomicU64]>,
    kept: Mutex<Kept>,
    bells: Mutex<Vec<(u16, Bell)>>,
    /// Who waits to hear what was refused.
    hearing: Mutex<Vec<(u64, Refused)>>,
}

type Refused = Arc<Mutex<Vec<(UserId, String)>>>;

#[derive(Default)]
struct Kept {
    journal: Option<Journal>,
    entries: VecDeque<Arc<Entry>>,
    /// Up to which number entries are in a completed checkpoint, by key group.
    settled: Vec<u64>,
}

impl fmt::Debug for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writes").field("last", &self.last).finish_non_exhaustive()
    }
}

/// What was refused of a write, for the one who wrote it.
struct Refusals<'w>(&'w Writes, u64, Refused);

impl Refusals<'_> {
    fn take(self) -> Vec<(UserId, String)> {
        std::mem::take(&mut *locked(&self.2))
    }
}

impl Drop for Refusals<'_> {
    fn drop(&mut self) {
        locked(&self.0.hearing).retain(|(sequence, _)| *sequence != self.1);
    }
}

/// Nothing under these locks can panic half-way.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Writes {
    pub(crate) fn of(groups: u16) -> Self {
        let visible = (0..groups).map(|_| AtomicU64::new(0)).collect();
        let kept = Mutex::new(Kept { settled: vec![0; groups.into()], ..Kept::default() });
        Writes { visible, kept, ..Writes::default() }
    }

    fn open(&self, path: &Path) -> Result<(), ProfileError> {
        let failed = |reason: String| ProfileError::Journal { path: path.display().to_string(), reason };
        let mut kept = locked(&self.kept);
        if kept.journal.is_some() {
            return Err(failed("the profile has a journal already".to_owned()));
        }
        let (journal, entries, last) = Journal::open(path).map_err(|e| failed(e.to_string()))?;
        kept.journal = Some(journal);
        kept.entries = entries.into_iter().map(Arc::new).collect();
        self.last.fetch_max(last, Ordering::AcqRel);
        Ok(())
    }

    /// The time of a write: the clock's, but later than that of the one before, so that the later of two wins.
    fn next_time(&self, now: i64) -> i64 {
        let next = |last: i64| Some(now.max(last.saturating_add(1)));
        match self.time.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
            Ok(last) | Err(last) => now.max(last.saturating_add(1)),
        }
    }

    /// The number of the newest entry: a writer looks at it between batches.
    #[inline]
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Notes a number that a checkpoint has: none below is given again.
    pub(crate) fn seen(&self, sequence: u64) {
        self.last.fetch_max(sequence, Ordering::AcqRel);
    }

    /// Journals updates; nothing without a journal. They are there for writers when this is done.
    fn append(
        &self,
        catalogue: u64,
        updates: Vec<ProfileUpdate>,
    ) -> Result<Option<Refusals<'_>>, ProfileError> {
        let mut kept = locked(&self.kept);
        let sequence = self.last() + 1;
        let Kept { journal: Some(journal), entries, .. } = &mut *kept else { return Ok(None) };
        let entry = Arc::new(Entry { sequence, catalogue, updates, changes: Vec::new() });
        let failed = |e: std::io::Error| ProfileError::Journal { path: String::new(), reason: e.to_string() };
        journal.append(&entry).map_err(failed)?;
        entries.push_back(entry);
        // Before any writer can refuse something of it.
        let refusals = self.hear_of(sequence);
        self.last.store(sequence, Ordering::Release);
        Ok(Some(refusals))
    }

    /// Journals changes of the catalogue, and makes them so once they are on disk; with the number to note, 0 without a journal.
    pub(crate) fn record(
        &self,
        changes: &[Change],
        catalogue: u64,
        then: impl FnOnce(u64),
    ) -> Result<(), ProfileError> {
        let mut kept = locked(&self.kept);
        let sequence = self.last() + 1;
        let Kept { journal: Some(journal), entries, .. } = &mut *kept else {
            then(0);
            return Ok(());
        };
        let entry = Arc::new(Entry { sequence, catalogue, updates: Vec::new(), changes: changes.to_vec() });
        let failed = |e: std::io::Error| ProfileError::Journal { path: String::new(), reason: e.to_string() };
        journal.append(&entry).map_err(failed)?;
        entries.push_back(entry);
        // A writer that has taken this number has this catalogue.
        then(sequence);
        self.last.store(sequence, Ordering::Release);
        Ok(())
    }

    /// The entries above a number.
    pub(crate) fn above(&self, taken: u64) -> Vec<Arc<Entry>> {
        let kept = locked(&self.kept);
        let from = kept.entries.partition_point(|entry| entry.sequence <= taken);
        kept.entries.range(from..).cloned().collect()
    }

    fn hear_of(&self, sequence: u64) -> Refusals<'_> {
        let refused = Refused::default();
        locked(&self.hearing).push((sequence, refused.clone()));
        Refusals(self, sequence, refused)
    }

    #[cold]
    pub(crate) fn refuse(&self, sequence: u64, user: &UserId, error: &ProfileError) {
        let hearing = locked(&self.hearing);
        if let Some((_, refused)) = hearing.iter().find(|(of, _)| *of == sequence) {
            locked(refused).push((user.clone(), error.to_string()));
        }
    }

    fn is_visible(&self, group: u16, sequence: u64) -> bool {
        self.visible[group as usize].load(Ordering::Acquire) >= sequence
    }

    /// Notes that what writers of these key groups took up to a number is published.
    pub(crate) fn visible(&self, groups: Range<u16>, taken: u64) {
        for group in groups {
            self.visible[group as usize].store(taken, Ordering::Release);
        }
    }

    /// Notes that a completed checkpoint has all of these key groups up to a number; cuts what all have. *Blocking*: now and then writes the journal anew.
    pub(crate) fn settled(&self, groups: Range<u16>, taken: u64) {
        let mut kept = locked(&self.kept);
        let Kept { journal, entries, settled } = &mut *kept;
        for group in groups {
            settled[group as usize] = settled[group as usize].max(taken);
        }
        let all = settled.iter().copied().min().unwrap_or(0);
        let cut = entries.partition_point(|entry| entry.sequence <= all);
        let cut: Vec<Arc<Entry>> = entries.drain(..cut).collect();
        if let Some(journal) = journal
            && let Err(error) = journal.cut(&cut, all, entries.iter().map(|entry| &**entry))
        {
            tracing::warn!("the journal of writes could not be shortened: {error}");
        }
    }

    /// Calls whoever takes writes. The first key group tells bells apart.
    fn ring(&self) {
        locked(&self.bells).iter().for_each(|(_, bell)| bell());
    }

    pub(crate) fn hang(&self, first: u16, bell: Bell) {
        let mut bells = locked(&self.bells);
        bells.retain(|(of, _)| *of != first);
        bells.push((first, bell));
    }

    pub(crate) fn unhang(&self, first: u16) {
        locked(&self.bells).retain(|(of, _)| *of != first);
    }
}

impl Space {
    /// Carries out the changes of the catalogue that the journal has and no checkpoint.
    pub(crate) fn replay(&self) {
        let catalogue = self.catalogue();
        for entry in self.writes.above(catalogue.journal).iter().filter(|entry| !entry.changes.is_empty()) {
            let replay = self.edit(|catalogue| {
                for change in &entry.changes {
                    let mut next = catalogue.clone();
                    match next.change(change.clone()) {
                        Ok(_) => *catalogue = next,
                        // The program may define other tags than it did.
                        Err(error) => {
                            tracing::warn!("a change in the journal is not possible any more: {error}")
                        }
                    }
                }
                catalogue.journal = entry.sequence;
                Ok(true)
            });
            debug_assert!(replay.is_ok());
        }
    }
}
