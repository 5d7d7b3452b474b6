//! Which records a source refuses for their time: too far ahead, gone back, or without any. Pure: the clock is told to it.
// HOT: `passes` looks at each run once; whatever is slower happens only when a record is refused.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::element::Record;
use crate::time::EventTime;

/// What is wrong with a record's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TimeFault {
    /// It has none.
    Missing,
    /// It is too far ahead of the job's clock: [`Watermarks::future_limit`](crate::Watermarks::future_limit).
    AheadOfClock {
        /// By how much, in milliseconds.
        ahead_ms: i64,
        /// What is allowed.
        limit_ms: i64,
    },
    /// It is too far ahead of the latest of its split: [`Watermarks::jump_limit`](crate::Watermarks::jump_limit).
    AheadOfSplit {
        /// By how much, in milliseconds.
        ahead_ms: i64,
        /// What is allowed.
        limit_ms: i64,
    },
    /// It lies before an earlier record of its split, which [`Watermarks::monotonic`](crate::Watermarks::monotonic) rules out.
    WentBack {
        /// The latest time of the split until then.
        latest: EventTime,
    },
}

fn ms(n: i64) -> Duration {
    Duration::from_millis(n.unsigned_abs())
}

impl fmt::Display for TimeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimeFault::Missing => f.write_str("it has no time"),
            TimeFault::AheadOfClock { ahead_ms, limit_ms } => {
                write!(
                    f,
                    "it is {:?} ahead of the clock, and future_limit allows {:?}",
                    ms(*ahead_ms),
                    ms(*limit_ms)
                )
            }
            TimeFault::AheadOfSplit { ahead_ms, limit_ms } => write!(
                f,
                "it is {:?} ahead of the latest of its split, and jump_limit allows {:?}",
                ms(*ahead_ms),
                ms(*limit_ms)
            ),
            TimeFault::WentBack { latest } => {
                write!(f, "it lies before an earlier record of its split, which was at {latest}")
            }
        }
    }
}

/// A record that its source refused for its time: [`SourceStream::quarantined`](crate::SourceStream::quarantined) gives them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined<T> {
    /// The value, whole.
    pub value: T,
    /// The time that was refused.
    pub time: EventTime,
    /// The split it came from, by the source's own name if it has one.
    pub split: String,
    /// What is wrong with the time.
    pub fault: TimeFault,
}

/// The latest time of a split, and what the clock said when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Latest {
    pub(crate) time: EventTime,
    pub(crate) at_ms: i64,
}

impl Latest {
    pub(crate) const NONE: Latest = Latest { time: EventTime::NONE, at_ms: 0 };

    pub(crate) fn reach(&mut self, time: EventTime, now_ms: i64) {
        if time > self.time {
            *self = Latest { time, at_ms: now_ms };
        }
    }
}

/// What a source holds the times of its records against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) future_ms: Option<i64>,
    pub(crate) jump_ms: Option<i64>,
    pub(crate) in_order: bool,
    /// A record must have a time.
    pub(crate) timed: bool,
}

fn are_in_order<T>(records: &[Record<T>], mut latest: EventTime) -> bool {
    records.iter().all(|r| {
        let fine = r.time >= latest || r.time == EventTime::NONE;
        latest = latest.max(r.time);
        fine
    })
}

impl Guard {
    /// True when it takes a look at the clock.
    pub(crate) fn asks_the_clock(&self) -> bool {
        self.future_ms.is_some() || self.jump_ms.is_some()
    }

    /// May the whole run pass, of which the latest time is `to`? `false` may also mean that it takes a closer look.
    #[inline]
    pub(crate) fn passes<T>(
        &self,
        records: &[Record<T>],
        to: EventTime,
        before: Latest,
        now_ms: i64,
    ) -> bool {
        to <= self.limit(before, now_ms)
            && (!self.in_order || are_in_order(records, before.time))
            && (!self.timed || records.iter().all(|r| r.time != EventTime::NONE))
    }

    /// No time up to here is too far ahead.
    #[inline]
    fn limit(&self, before: Latest, now_ms: i64) -> EventTime {
        let by_clock = self.future_ms.map_or(i64::MAX, |ahead| now_ms.saturating_add(ahead));
        EventTime(by_clock).min(self.reach(before, now_ms))
    }

    /// No time up to here is too far ahead of a split that came as far as `before`.
    #[inline]
    fn reach(&self, before: Latest, now_ms: i64) -> EventTime {
        match self.jump_ms {
            None => EventTime(i64::MAX),
            // The first time of a split is a place to measure from, wherever it lies; the next is held against it.
            Some(_) if before.time == EventTime::NONE => EventTime::NONE,
            Some(jump) => {
                EventTime(before.time.0.saturating_add(jump).saturating_add(passed(before, now_ms)))
            }
        }
    }

    /// Looks at one record; `latest` goes on when it may pass. Up to `reach` it is not ahead of its split: what a whole run may reach, each of
    /// its records may, whichever of them comes first.
    fn check(
        &self,
        time: EventTime,
        latest: &mut Latest,
        reach: EventTime,
        now_ms: i64,
    ) -> Result<(), TimeFault> {
        if time == EventTime::NONE {
            return if self.timed { Err(TimeFault::Missing) } else { Ok(()) };
        }
        if let Some(limit_ms) = self.future_ms {
            let ahead_ms = time.0.saturating_sub(now_ms);
            if ahead_ms > limit_ms {
                return Err(TimeFault::AheadOfClock { ahead_ms, limit_ms });
            }
        }
        if latest.time != EventTime::NONE {
            if let Some(limit_ms) = self.jump_ms.filter(|_| time > reach) {
                let ahead_ms = time.0.saturating_sub(latest.time.0);
                if ahead_ms > limit_ms.saturating_add(passed(*latest, now_ms)) {
                    return Err(TimeFault::AheadOfSplit { ahead_ms, limit_ms });
                }
            }
            if self.in_order && time < latest.time {
                return Err(TimeFault::WentBack { latest: latest.time });
            }
        }
        latest.reach(time, now_ms);
        Ok(())
    }

    /// Takes what may not pass out of `records[from..to]`; gives it with its place in the batch as it was.
    #[cold]
    pub(crate) fn sift<T>(
        &self,
        records: &mut Vec<Record<T>>,
        (from, to): (usize, usize),
        before: Latest,
        now_ms: i64,
    ) -> Vec<(usize, Record<T>, TimeFault)> {
        let (mut latest, mut place, mut faults) = (before, from, Vec::new());
        let reach = self.reach(before, now_ms);
        let refused: Vec<_> = records
            .extract_if(from..to, |r| {
                let fault = self.check(r.time, &mut latest, reach, now_ms).err();
                faults.extend(fault.map(|fault| (place, fault)));
                place += 1;
                fault.is_some()
            })
            .collect();
        refused.into_iter().zip(faults).map(|(record, (place, fault))| (place, record, fault)).collect()
    }
}

/// Time that has passed by the clock since the latest record came: a split that was silent may go on at the present.
fn passed(latest: Latest, now_ms: i64) -> i64 {
    now_ms.saturating_sub(latest.at_ms).max(0)
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
