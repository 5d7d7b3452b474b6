//! Which version is asked: the newest, one that is complete up to an event time, or that of the last completed checkpoint.

use super::catalogue::Catalogue;
use super::error::QueryError;
use super::reader::{Reader, Snapshot};
use super::space::{Profiles, RangeVersion};
use arc_swap::ArcSwapOption;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

impl Profiles {
    /// Keeps what was frozen for the last completed checkpoint, for [`Reader::at_checkpoint`]. It holds the memory of what changed since; without this
    /// nothing is held.
    #[must_use]
    pub fn keep_checkpoints(self) -> Self {
        self.space.checkpoints.kept.store(true, Ordering::Release);
        self
    }
}

impl Reader {
    /// The event time in ms since the epoch that the newest version is complete up to; `i64::MIN` if some key group has none.
    pub fn watermark(&self) -> i64 {
        let layout = self.space().layout();
        layout.cells.chunk_by(Arc::ptr_eq).map(|run| run[0].load().watermark).min().unwrap_or(i64::MIN)
    }

    /// Pins the newest version once it is complete up to an event time, in ms since the epoch.
    ///
    /// *Blocking*: until then, `patience` at most.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weir_state::profile::Profiles;
    /// let profiles = Profiles::named("p").int_tag("n");
    /// let mut writer = profiles.writer(0..profiles.key_groups(), 1)?;
    /// writer.publish(1_000);
    /// assert!(profiles.reader().at_least(1_000, Duration::ZERO).is_ok());
    /// assert!(profiles.reader().at_least(1_001, Duration::ZERO).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`QueryError::NotYet`] if it takes longer.
    pub fn at_least(&self, watermark: i64, patience: Duration) -> Result<Snapshot, QueryError> {
        let began = Instant::now();
        if self.space().waiting.until(patience, || self.watermark() >= watermark) {
            let snapshot = self.snapshot();
            // A restart may have taken it back between the two.
            if snapshot.version().watermark >= watermark {
                return Ok(snapshot);
            }
        }
        Err(self.not_yet(watermark, began.elapsed()))
    }

    /// Says that a version is not complete up to an event time, after so long a wait.
    pub fn not_yet(&self, wanted: i64, waited: Duration) -> QueryError {
        QueryError::NotYet {
            space: self.space().catalogue().space.to_string(),
            wanted,
            is: self.watermark(),
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Pins what all writers had frozen at the barrier of the last completed checkpoint: one cut through the streams, which a restart would go on from.
    /// In a process that began from a checkpoint it is that one until the next is complete. *Blocking*: never.
    ///
    /// # Errors
    /// [`QueryError::NoCheckpoint`] before the first is complete, and without [`Profiles::keep_checkpoints`].
    pub fn at_checkpoint(&self) -> Result<Snapshot, QueryError> {
        let checkpoints = &self.space().checkpoints;
        match &*checkpoints.newest.load() {
            Some(newest) => Ok(newest.snapshot.clone()),
            None => Err(QueryError::NoCheckpoint {
                space: self.space().catalogue().space.to_string(),
                why: if checkpoints.are_kept() {
                    "yet; ask again when one is complete, or for the newest version"
                } else {
                    "since none are kept; build it with Profiles::keep_checkpoints"
                },
            }),
        }
    }
}

/// Readers that wait for a publication. Costs a writer a look at a counter per publication while nobody waits.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    waiters: AtomicUsize,
    lock: Mutex<()>,
    moved: Condvar,
}

impl Waiting {
    fn locked(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whoever waits that there is a new version.
    pub(crate) fn moved(&self) {
        // Either this sees the waiter, or the waiter sees the version.
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            drop(self.locked());
            self.moved.notify_all();
        }
    }

    /// Waits until something is so; whether it is.
    pub(crate) fn until(&self, patience: Duration, is: impl Fn() -> bool) -> bool {
        if is() || patience.is_zero() {
            return is();
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let waited = self.moved.wait_timeout_while(self.locked(), patience, |_| !is());
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        match waited {
            Ok((_, late)) => !late.timed_out() || is(),
            Err(_) => is(),
        }
    }
}

/// What writers froze for checkpoints, until one is complete and all of it is swapped in by one pointer.
#[derive(Default)]
pub(crate) struct Checkpoints {
    kept: AtomicBool,
    newest: ArcSwapOption<Complete>,
    frozen: Mutex<Vec<Frozen>>,
}

struct Complete {
    number: u64,
    snapshot: Snapshot,
}

/// One writer's key groups at the barrier of a checkpoint.
struct Frozen {
    number: u64,
    version: Arc<RangeVersion>,
    catalogue: Arc<Catalogue>,
}

/// Names it, rather than printing every user.
impl fmt::Debug for Checkpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoints").field("kept", &self.kept).finish_non_exhaustive()
    }
}

/// The number of what an ended input leaves: it belongs to every checkpoint from then on.
const LAST: u64 = u64::MAX;
/// What is held of checkpoints that are not complete yet, or never will be.
const MOST: usize = 3;

impl Checkpoints {
    pub(crate) fn are_kept(&self) -> bool {
        self.kept.load(Ordering::Acquire)
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Frozen>> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn frozen(&self, number: u64, version: RangeVersion, catalogue: Arc<Catalogue>) {
        let mut frozen = self.locked();
        let start = version.start;
        frozen.push(Frozen { number, version: Arc::new(version), catalogue });
        // Of those that were given up, the oldest go.
        while frozen.iter().filter(|f| f.version.start == start).count() > MOST {
            match frozen.iter().position(|f| f.version.start == start) {
                Some(oldest) => drop(frozen.remove(oldest)),
                None => break,
            }
        }
    }

    pub(crate) fn completed(&self, number: u64, groups: u16) {
        if !self.are_kept() {
            return;
        }
        let mut frozen = self.locked();
        if self.newest.load().as_ref().is_some_and(|newest| newest.number >= number) {
            return;
        }
        self.put(number, &frozen, groups);
        frozen.retain(|f| f.number > number);
    }

    /// Notes what a writer began from. What this process completed itself stays: it began again from that.
    pub(crate) fn restored(&self, version: RangeVersion, catalogue: Arc<Catalogue>, groups: u16) {
        let mut frozen = self.locked();
        if self.newest.load().is_none() {
            let start = version.start;
            frozen.retain(|f| f.number != 0 || f.version.start != start);
            frozen.push(Frozen { number: 0, version: Arc::new(version), catalogue });
            if self.put(0, &frozen, groups) {
                frozen.retain(|f| f.number > 0);
            }
        }
    }

    /// Shows a checkpoint, if all key groups are there.
    fn put(&self, number: u64, frozen: &[Frozen], groups: u16) -> bool {
        let mut parts: Vec<&Frozen> =
            frozen.iter().filter(|f| f.number == number || f.number == LAST).collect();
        // Of a writer that froze for it and then ended, what it froze for it.
        parts.sort_by_key(|f| (f.version.start, f.number));
        parts.dedup_by_key(|f| f.version.start);
        let mut next = 0;
        for part in parts.iter().filter(|part| !part.version.groups.is_empty()) {
            if usize::from(part.version.start) != next {
                return false;
            }
            next += part.version.groups.len();
        }
        let Some(catalogue) = parts.iter().map(|f| &f.catalogue).max_by_key(|c| c.revision) else {
            return false;
        };
        if next != usize::from(groups) {
            return false;
        }
        let parts = parts.iter().filter(|part| !part.version.groups.is_empty());
        let ranges = parts.map(|f| (f.version.clone(), f.version.groups.len(), false));
        let snapshot = Snapshot::of(ranges, || catalogue.clone()).of_checkpoint(number);
        self.newest.store(Some(Arc::new(Complete { number, snapshot })));
        true
    }
}
