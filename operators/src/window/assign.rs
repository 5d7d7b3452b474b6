//! Which window a time belongs to. Pure arithmetic on milliseconds since the epoch, right for negative times too.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_engine::{EventTime, Watermark};

use crate::window::cuts::Cutting;
use crate::window::firing::Firing;

/// A span of event time: `start` is in it, `end` is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TimeWindow {
    /// The first moment of it.
    pub start: EventTime,
    /// The first moment after it.
    pub end: EventTime,
}

impl TimeWindow {
    /// The last moment of it: the time of its results. After a window that ends at `i64::MAX` there is only that moment,
    /// which belongs to it when it was cut there, so it is the last one of every such window.
    pub fn last(self) -> EventTime {
        EventTime(if self.end.0 == i64::MAX { i64::MAX } else { self.end.0.saturating_sub(1) })
    }

    /// True when `time` is in it.
    #[inline]
    pub fn contains(self, time: EventTime) -> bool {
        self.start <= time && time < self.end
    }

    /// True when the watermark promises that nothing more will come for it.
    #[inline]
    pub fn is_over(self, watermark: Watermark) -> bool {
        self.last().0 <= watermark.0
    }
}

impl fmt::Display for TimeWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}

/// Why a window cannot be. Told when the job starts, before any record flows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The size is no whole, positive number of milliseconds that fits.
    #[error("window size is {size:?}: it must be a whole number of milliseconds, from 1 to {}", i64::MAX)]
    Size {
        /// What was asked for.
        size: Duration,
    },
    /// The offset is no whole number of milliseconds less than the size.
    #[error(
        "window offset is {offset_ms} ms with size {size_ms} ms: it must be a whole number of milliseconds, nearer to 0 than the size"
    )]
    Offset {
        /// What was asked for, in ms.
        offset_ms: String,
        /// The size, in ms.
        size_ms: i64,
    },
    /// Another duration is no whole number of milliseconds that fits.
    #[error(
        "window {name} is {value:?}: it must be a whole number of milliseconds, from {least} to {}",
        i64::MAX
    )]
    Duration {
        /// What it is the duration of.
        name: &'static str,
        /// What was asked for.
        value: Duration,
        /// The least that can be, in ms.
        least: i64,
    },
    /// Windows that slide further than they are long leave gaps.
    #[error(
        "window slide is {slide:?} with size {size:?}: records between two windows would be in none, so the slide must not be \
         longer than the size"
    )]
    Slide {
        /// What was asked for.
        slide: Duration,
        /// The size.
        size: Duration,
    },
    /// The steps of a cumulating window do not fill it.
    #[error("window step is {step:?} with size {size:?}: the size must be a whole number of steps")]
    Step {
        /// What was asked for.
        step: Duration,
        /// The size.
        size: Duration,
    },
    /// Nobody knows the time zone.
    #[error(
        "window time zone is {zone:?}: {reason}; it must be a name of the IANA database, such as Europe/Berlin"
    )]
    Zone {
        /// What was asked for.
        zone: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What windows do not do where a function processes the records.
    #[error(
        "window {name} does nothing where a function processes the records, which itself says what is given, and when: leave it out"
    )]
    NotProcessed {
        /// What was asked for.
        name: &'static str,
    },
    /// A count that must be positive is 0.
    #[error("window {name} is 0: it must be 1 at least")]
    Zero {
        /// What it is the count of.
        name: &'static str,
    },
}

/// The milliseconds of a duration that must be whole ones, `least` at least.
pub(crate) fn checked_ms(name: &'static str, value: Duration, least: i64) -> Result<i64, WindowError> {
    whole_ms(value).filter(|ms| *ms >= least).ok_or(WindowError::Duration { name, value, least })
}

/// Windows of one size, one after the other, without gap or overlap, aligned to the epoch.
///
/// Days are of 24 hours in UTC. An offset moves every boundary: `Tumbling::of(days(1)).offset_ms(-8 * 3_600_000)` begins at
/// midnight in a zone eight hours ahead of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tumbling {
    size: Duration,
    offset: Offset,
}

/// How much later than the epoch windows begin, as it was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offset {
    Later(Duration),
    Ms(i64),
}

impl Offset {
    pub(crate) const NONE: Offset = Offset::Ms(0);

    /// The same boundaries, from 0 to less than `period`.
    pub(crate) fn check(self, period: i64) -> Result<i64, WindowError> {
        let (offset, told) = match self {
            Offset::Ms(ms) => (Some(ms), ms.to_string()),
            Offset::Later(later) => (whole_ms(later), (later.as_secs_f64() * 1_000.0).to_string()),
        };
        let fits = |ms: &i64| ms.unsigned_abs() < period.unsigned_abs();
        let offset = offset.filter(fits).ok_or(WindowError::Offset { offset_ms: told, size_ms: period })?;
        Ok(offset.rem_euclid(period))
    }
}

impl Tumbling {
    /// Windows of this size: a whole, positive number of milliseconds. Anything else fails the start of the job.
    pub fn of(size: Duration) -> Self {
        Tumbling { size, offset: Offset::NONE }
    }

    /// Every window begins this much later; less than the size. Anything else fails the start of the job.
    #[must_use]
    pub fn offset(mut self, later: Duration) -> Self {
        self.offset = Offset::Later(later);
        self
    }

    /// Every window begins this many milliseconds later, or earlier when negative; nearer to 0 than the size. Anything
    /// else fails the start of the job.
    #[must_use]
    pub fn offset_ms(mut self, later: i64) -> Self {
        self.offset = Offset::Ms(later);
        self
    }

    /// Keeps windows for this long after they are over, in event time, and gives a new result for each late record within it:
    /// see [`Firing`].
    #[must_use]
    pub fn allow_lateness(self, lateness: Duration) -> Firing {
        Firing::of(Cutting::Tumbling(self)).allow_lateness(lateness)
    }

    /// Gives a result of a key after every `records` of it, before the window is over: see [`Firing`].
    #[must_use]
    pub fn early_every(self, records: u32) -> Firing {
        Firing::of(Cutting::Tumbling(self)).early_every(records)
    }

    /// Gives results before the window is over, this long (by the job's clock) after something new has come: see [`Firing`].
    #[must_use]
    pub fn early_after(self, time: Duration) -> Firing {
        Firing::of(Cutting::Tumbling(self)).early_after(time)
    }

    /// Every result is of another window.
    pub(crate) fn gives_updates(&self) -> bool {
        false
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// The first one that cannot be.
    pub(crate) fn check(&self) -> Result<Grid, WindowError> {
        let size = whole_ms(self.size).filter(|ms| *ms > 0).ok_or(WindowError::Size { size: self.size })?;
        Ok(Grid::new(size, self.offset.check(size)?))
    }
}

pub(crate) fn whole_ms(d: Duration) -> Option<i64> {
    d.subsec_nanos().is_multiple_of(1_000_000).then(|| i64::try_from(d.as_millis()).ok()).flatten()
}

/// Checked boundaries: those of `offset + n * size`, with `0 <= offset < size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    size: i64,
    offset: i64,
}

impl Grid {
    /// Boundaries every `size` ms, `offset` ms after those of the epoch.
    pub(crate) fn new(size: i64, offset: i64) -> Self {
        Grid { size, offset: offset.rem_euclid(size) }
    }

    /// The size of a window in ms.
    pub(crate) fn size(self) -> i64 {
        self.size
    }

    /// How much later than the epoch a window begins, in ms.
    pub(crate) fn offset(self) -> i64 {
        self.offset
    }

    /// The window that `time` is in. The first and the last window there can be are cut where `i64` ends.
    pub(crate) fn window_of(self, time: EventTime) -> TimeWindow {
        // Two remainders instead of one of the difference: near the ends of i64 that would overflow.
        let past = (time.0.rem_euclid(self.size) - self.offset).rem_euclid(self.size);
        let start = time.0.saturating_sub(past);
        let end = time.0.saturating_add(self.size - past);
        TimeWindow { start: EventTime(start), end: EventTime(end) }
    }
}

/// `n` seconds.
pub const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// `n` minutes.
pub const fn minutes(n: u64) -> Duration {
    Duration::from_secs(n.saturating_mul(60))
}

/// `n` hours.
pub const fn hours(n: u64) -> Duration {
    Duration::from_secs(n.saturating_mul(3_600))
}

/// `n` days of 24 hours.
pub const fn days(n: u64) -> Duration {
    Duration::from_secs(n.saturating_mul(86_400))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn window(tumbling: Tumbling, time: i64) -> (i64, i64) {
        let window = tumbling.check().unwrap().window_of(EventTime(time));
        (window.start.0, window.end.0)
    }

    #[test]
    fn e10_negative_times_fall_into_the_window_they_are_in() {
        let tens = Tumbling::of(ms(10));
        assert_eq!(window(tens, -1), (-10, 0));
        assert_eq!(window(tens, -10), (-10, 0));
        assert_eq!(window(tens, -11), (-20, -10));
        assert_eq!(window(tens, 0), (0, 10));
        assert_eq!(window(tens.offset(ms(3)), -8), (-17, -7));
        assert_eq!(window(tens.offset_ms(3), -7), (-7, 3));
    }

    #[test]
    fn a_negative_offset_moves_boundaries_back() {
        let tens = Tumbling::of(ms(10)).offset_ms(-3);
        assert_eq!(window(tens, 6), (-3, 7));
        assert_eq!(window(tens, 7), (7, 17));
        let shanghai = Tumbling::of(days(1)).offset_ms(-8 * 3_600_000);
        // 2017-11-25 00:00 +08:00 is 2017-11-24 16:00 UTC.
        assert_eq!(window(shanghai, 1_511_539_200_000).0, 1_511_539_200_000);
        assert_eq!(window(shanghai, 1_511_539_199_999).1, 1_511_539_200_000);
    }

    #[test]
    fn bad_parameters_are_named() {
        for size in [Duration::ZERO, Duration::from_micros(1_500), Duration::MAX] {
            let error = Tumbling::of(size).check().unwrap_err();
            assert_eq!(error, WindowError::Size { size });
            assert!(error.to_string().contains("window size"), "{error}");
        }
        for bad in [
            Tumbling::of(ms(10)).offset_ms(10),
            Tumbling::of(ms(10)).offset_ms(-10),
            Tumbling::of(ms(10)).offset_ms(i64::MIN),
            Tumbling::of(ms(10)).offset(Duration::from_micros(1)),
            Tumbling::of(ms(10)).offset(Duration::MAX),
        ] {
            let error = bad.check().unwrap_err();
            assert!(error.to_string().contains("window offset"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_time_is_in_its_window_and_boundaries_are_on_the_grid(
            time in any::<i64>(), size in 1i64..=i64::MAX, offset in any::<i64>()
        ) {
            let offset = offset % size;
            let w = Grid { size, offset: offset.rem_euclid(size) }.window_of(EventTime(time));
            prop_assert!(w.start.0 <= time && (time < w.end.0 || w.end.0 == i64::MAX));
            let (start, end, size) = (i128::from(w.start.0), i128::from(w.end.0), i128::from(size));
            let cut = w.start.0 == i64::MIN || w.end.0 == i64::MAX;
            prop_assert!(cut || end - start == size);
            prop_assert!(w.start.0 == i64::MIN || (start - i128::from(offset)).rem_euclid(size) == 0);
            prop_assert!(w.end.0 == i64::MAX || (end - i128::from(offset)).rem_euclid(size) == 0);
        }
    }
}
