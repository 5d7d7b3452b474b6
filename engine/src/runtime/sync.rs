//! What the concurrency kernel waits, locks and tells time with: std's, or under the feature `explore` what a seeded
//! scheduler drives.
//!
//! Everything in the kernel by which one thread can see what another did goes through here or through
//! [`super::channel`]. What only counts (statistics), and locks that one thread alone takes, stays with std: a scheduling
//! point there would make schedules longer and show nothing.

#[cfg(not(feature = "explore"))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
    time::Instant,
};

#[cfg(feature = "explore")]
pub(crate) use explored::Instant;
#[cfg(feature = "explore")]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};

#[cfg(feature = "explore")]
mod explored {
    use std::ops::Sub;
    use std::time::Duration;

    /// A moment of an explored schedule: a millisecond passes with each step, so that time comes again with the seed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct Instant(Duration);

    impl Instant {
        pub(crate) fn now() -> Self {
            Instant(Duration::from_millis(shuttle::current::context_switches() as u64))
        }

        pub(crate) fn checked_add(self, time: Duration) -> Option<Self> {
            self.0.checked_add(time).map(Instant)
        }

        pub(crate) fn saturating_duration_since(self, earlier: Instant) -> Duration {
            self.0.saturating_sub(earlier.0)
        }
    }

    impl Sub for Instant {
        type Output = Duration;
        fn sub(self, earlier: Instant) -> Duration {
            self.saturating_duration_since(earlier)
        }
    }
}
