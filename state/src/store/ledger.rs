//! `Ledger`: what the caches of one store share: their budget, and which snapshots are not yet settled.
//!
//! Until a snapshot is written, flushed and linked, nothing newer may reach the backend: it would be in files of a checkpoint
//! it does not belong to. So whoever must write waits here, and hears when the task is cancelled.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Store;

#[derive(Debug)]
pub(crate) struct Ledger {
    /// How many bytes all caches of the store may hold.
    pub(crate) limit: usize,
    used: AtomicUsize,
    unsettled: AtomicUsize,
    cancelled: AtomicBool,
    waited_ns: AtomicU64,
    /// Held while one of the two above changes, so that no waiter misses it.
    change: Mutex<()>,
    changed: Condvar,
}

/// The wait was broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cancelled;

impl Ledger {
    pub(crate) fn new(limit: usize) -> Self {
        Ledger {
            limit,
            used: AtomicUsize::new(0),
            unsettled: AtomicUsize::new(0),
            cancelled: AtomicBool::new(false),
            waited_ns: AtomicU64::new(0),
            change: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// A cache that used `before` bytes uses `now`; gives what all caches use.
    pub(crate) fn account(&self, before: usize, now: usize) -> usize {
        let others = self.used.fetch_sub(before, Ordering::Relaxed) - before;
        self.used.fetch_add(now, Ordering::Relaxed);
        others + now
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// True when the caches hold more than they may.
    pub(crate) fn is_over(&self) -> bool {
        self.used() > self.limit
    }

    /// True when the caches hold far more than they may: a quarter, or this if that is more. They may grow up to there while
    /// the backend refuses what they would write, as it does when a disk is full.
    pub(crate) fn is_far_over(&self) -> bool {
        const AT_LEAST: usize = 1 << 20;
        self.used().saturating_sub(self.limit) > (self.limit / 4).max(AT_LEAST)
    }

    /// True when everything frozen is in files, so that the backend may be written.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.unsettled.load(Ordering::Acquire) == 0
    }

    /// A snapshot is being collected.
    pub(crate) fn begin(&self) {
        self.unsettled.fetch_add(1, Ordering::Relaxed);
    }

    /// It is settled.
    pub(crate) fn end(&self) {
        self.change(|| {
            self.unsettled.fetch_sub(1, Ordering::Release);
        });
    }

    pub(crate) fn cancel(&self) {
        self.change(|| self.cancelled.store(true, Ordering::Relaxed));
    }

    fn change(&self, how: impl FnOnce()) {
        let _held = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        how();
        self.changed.notify_all();
    }

    /// Waits until every snapshot is settled.
    pub(crate) fn wait(&self) -> Result<(), Cancelled> {
        if self.is_settled() {
            return Ok(());
        }
        let begun = Instant::now();
        let held = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |(): &mut ()| !self.is_settled() && !self.cancelled.load(Ordering::Relaxed);
        drop(self.changed.wait_while(held, waits).unwrap_or_else(PoisonError::into_inner));
        let waited = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waited_ns.fetch_add(waited, Ordering::Relaxed);
        if self.is_settled() { Ok(()) } else { Err(Cancelled) }
    }

    /// How long caches have waited so far.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed))
    }
}

impl Store {
    /// Tells at any later time how many bytes the typed caches of this store hold, without keeping the store open.
    pub fn cache_meter(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let ledger = self.ledger().clone();
        move || ledger.used() as u64
    }

    /// As [`cancel`](Self::cancel), at any later time and from any thread, without keeping the store open.
    pub fn canceller(&self) -> impl Fn() + Send + Sync + 'static {
        let ledger = self.ledger().clone();
        move || ledger.cancel()
    }
}
