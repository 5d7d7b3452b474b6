//! Days in UTC: a number, a name, and the tag that holds the purchases of that day.

use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp, tz::TimeZone};

const DAY_MS: i64 = 86_400_000;

/// One day, counted from 1970-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Day(i64);

/// The day that a moment (ms since the epoch) lies in.
pub(crate) fn day_of(ms: i64) -> Day {
    Day(ms.div_euclid(DAY_MS))
}

impl Day {
    fn date(self) -> Date {
        let moment =
            Timestamp::UNIX_EPOCH.saturating_add(SignedDuration::from_hours(self.0.saturating_mul(24)));
        TimeZone::UTC.to_datetime(moment.unwrap_or(Timestamp::MAX)).date()
    }

    /// `2017-11-25`.
    pub(crate) fn name(self) -> String {
        self.date().to_string()
    }

    /// `buys_20171125`.
    pub(crate) fn buys_tag(self) -> String {
        format!("buys_{}", self.date().strftime("%Y%m%d"))
    }
}

/// A range of days, both ends included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Days {
    first: Day,
    last: Day,
}

impl Days {
    /// The days between two moments (ms since the epoch).
    pub(crate) fn between(first_ms: i64, last_ms: i64) -> Days {
        Days { first: day_of(first_ms), last: day_of(last_ms) }
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Day> {
        (self.first.0..=self.last.0).map(Day)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_calendar_days_in_utc_before_the_epoch_too() {
        assert_eq!(day_of(1_511_848_894_000).name(), "2017-11-28");
        assert_eq!(day_of(-1).name(), "1969-12-31");
        assert_eq!(day_of(1_511_848_894_000).buys_tag(), "buys_20171128");
        assert_eq!(Days::between(-1, DAY_MS).iter().count(), 3);
    }
}
