//! A clock that stands still until it is moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Clock;

/// A clock that a test moves by hand. Clones are the same clock. It wakes nobody: a source that waits, and an operator that
/// asks to be woken, look at it again within 50 ms.
///
/// ```
/// use {std::time::Duration, weir_engine::{Clock, testkit::ManualClock}};
/// let clock = ManualClock::at(1_000);
/// clock.advance(Duration::from_secs(2));
/// clock.jump_to(0);
/// assert_eq!((clock.now_ms(), clock.elapsed()), (0, Duration::from_secs(2)));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    now_ms: Arc<AtomicI64>,
    elapsed_ns: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that stands at `now_ms` (milliseconds since the epoch).
    pub fn at(now_ms: i64) -> Self {
        ManualClock { now_ms: Arc::new(AtomicI64::new(now_ms)), elapsed_ns: Arc::default() }
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.now_ms.fetch_add(by.as_millis() as i64, Ordering::SeqCst);
        self.elapsed_ns.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Sets the wall clock to `now_ms`, as an administrator would: it may jump either way; elapsed time does not.
    pub fn jump_to(&self, now_ms: i64) {
        self.now_ms.store(now_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.now_ms.load(Ordering::SeqCst)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.elapsed_ns.load(Ordering::SeqCst))
    }
}
