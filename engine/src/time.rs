//! Event time, processing time and watermarks: plain numbers with names, and the clock that processing time comes from.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A moment in event time: milliseconds since the Unix epoch, negative before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct EventTime(pub i64);

impl EventTime {
    /// The time of a record in a stream that has no event time.
    pub const NONE: EventTime = EventTime(i64::MIN);

    /// The moment in milliseconds since the Unix epoch.
    pub const fn millis(self) -> i64 {
        self.0
    }
}

impl fmt::Debug for EventTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE { f.write_str("no time") } else { write!(f, "{}", self.0) }
    }
}

impl fmt::Display for EventTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A promise: no record with a time at or below this one is expected any more.
///
/// A record that breaks the promise is *late*. [`Watermark::MIN`] promises nothing, [`Watermark::MAX`] everything.
///
/// ```
/// use weir_engine::{EventTime, Watermark};
/// let w = Watermark(4_999); // milliseconds since the epoch
/// assert!(w.is_late(EventTime(4_999)) && !w.is_late(EventTime(5_000)));
/// assert!(!Watermark::MAX.is_late(EventTime::NONE));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Watermark(pub i64);

impl Watermark {
    /// Before any record: promises nothing.
    pub const MIN: Watermark = Watermark(i64::MIN);
    /// After every record: fires every window and timer.
    pub const MAX: Watermark = Watermark(i64::MAX);

    /// True when a record of this time breaks the promise. A record without a time never does.
    #[inline]
    pub fn is_late(self, time: EventTime) -> bool {
        time.0 <= self.0 && time != EventTime::NONE
    }
}

impl fmt::Debug for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::MIN => f.write_str("-inf"),
            Self::MAX => f.write_str("+inf"),
            Watermark(ms) => write!(f, "{ms}"),
        }
    }
}

/// Where processing time comes from. The engine reads no other clock for anything that a result depends on.
pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    /// Milliseconds since the Unix epoch.
    fn now_ms(&self) -> i64;
    /// Time since some fixed start; never goes back.
    fn elapsed(&self) -> Duration;
}

/// The machine's own clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A shared system clock.
    pub fn shared() -> SharedClock {
        Arc::new(SystemClock { start: Instant::now() })
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_millis() as i64,
            // A machine set before 1970.
            Err(before) => -(before.duration().as_millis() as i64),
        }
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A clock that tasks share.
pub type SharedClock = Arc<dyn Clock>;
