//! How long state lives: by which clock, counted from what, and what turning it on or off means for what is there.
//!
//! A value carries the time it was last touched. It has expired when the clock stands at that time plus the time to live, or
//! later. Turning a TTL on over restored state counts every value as touched at that restore: what is there lives at least
//! one TTL more, values without a time included. Turning it off lets everything live. A changed length holds for what is
//! there too.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The clock a TTL goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TtlClock {
    /// Event time: the watermark. Nothing expires before the first one.
    EventTime,
    /// The job's clock.
    ProcessingTime,
}

/// What counts as a touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TtlTouch {
    /// Only writing.
    Write,
    /// Reading too. Each read then makes the entry one that must be written at the next checkpoint.
    ReadAndWrite,
}

/// How long the values of a table live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ttl {
    /// For how long after the last touch, in milliseconds; at least 1.
    pub millis: i64,
    /// By which clock.
    pub clock: TtlClock,
    /// What counts as a touch.
    pub touch: TtlTouch,
}

impl Ttl {
    /// Lives this long (in whole milliseconds, at least one) after it was last written, by the watermark.
    pub fn event_time(after: Duration) -> Ttl {
        let millis = i64::try_from(after.as_millis()).unwrap_or(i64::MAX).max(1);
        Ttl { millis, clock: TtlClock::EventTime, touch: TtlTouch::Write }
    }

    /// Lives this long (in whole milliseconds, at least one) after it was last written, by the job's clock.
    pub fn processing_time(after: Duration) -> Ttl {
        Ttl { clock: TtlClock::ProcessingTime, ..Ttl::event_time(after) }
    }

    /// Counts a read as a touch, too.
    #[must_use]
    pub fn touched_by_reads(self) -> Ttl {
        Ttl { touch: TtlTouch::ReadAndWrite, ..self }
    }

    /// True when a value last touched at `touched` has expired at `now`. `adopted_at`: when the TTL was turned on over it.
    #[inline]
    pub fn is_over(self, touched: Option<i64>, adopted_at: Option<i64>, now: i64) -> bool {
        match touched.max(adopted_at) {
            Some(since) => since.saturating_add(self.millis) <= now,
            None => false,
        }
    }
}
