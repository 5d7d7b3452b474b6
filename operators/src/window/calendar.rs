//! Windows that begin at local midnights: days, weeks and months of a time zone, as long as they are there.

use std::fmt;
use std::time::Duration;

use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use weir_engine::EventTime;

use crate::window::cuts::Cutting;
use crate::window::firing::Firing;
use crate::window::{TimeWindow, WindowError};

/// Days, weeks or months in a time zone of the IANA database: each begins at a local midnight, and is as long as it is
/// there. Where clocks go forward a day has 23 hours, where they go back 25; where midnight itself is skipped it begins with
/// the first moment after it.
///
/// The rules come from the machine's time zone database if it has one, else from the one that is built in. When they have changed
/// so that a window which was open at the checkpoint begins at another time now, the start is refused. Records before
/// 9000 BC are in one window, and so are those after 9000 AD.
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
/// # let job = weir_engine::Job::named("doc").parallelism(1);
/// # let clicks = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
/// clicks.key_by("by-user", |user| *user)
///     .window(Calendar::days("Asia/Shanghai"))
///     .aggregate("daily", count())
///     .sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    unit: Unit,
    zone: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Day,
    Week,
    Month,
}

impl Calendar {
    /// Days in this time zone, such as `Asia/Shanghai`. A name that nobody knows fails the start of the job.
    pub fn days(zone: &str) -> Self {
        Calendar { unit: Unit::Day, zone: zone.to_owned() }
    }

    /// Weeks in this time zone, from Monday on.
    pub fn weeks(zone: &str) -> Self {
        Calendar { unit: Unit::Week, zone: zone.to_owned() }
    }

    /// Months in this time zone.
    pub fn months(zone: &str) -> Self {
        Calendar { unit: Unit::Month, zone: zone.to_owned() }
    }

    /// As [`Tumbling::allow_lateness`](crate::Tumbling::allow_lateness).
    #[must_use]
    pub fn allow_lateness(self, lateness: Duration) -> Firing {
        Firing::of(Cutting::Calendar(self)).allow_lateness(lateness)
    }

    /// As [`Tumbling::early_every`](crate::Tumbling::early_every).
    #[must_use]
    pub fn early_every(self, records: u32) -> Firing {
        Firing::of(Cutting::Calendar(self)).early_every(records)
    }

    /// As [`Tumbling::early_after`](crate::Tumbling::early_after).
    #[must_use]
    pub fn early_after(self, time: Duration) -> Firing {
        Firing::of(Cutting::Calendar(self)).early_after(time)
    }

    /// Every result is of another window.
    pub(crate) fn gives_updates(&self) -> bool {
        false
    }

    pub(crate) fn check(&self) -> Result<Dates, WindowError> {
        let wrong = |reason: String| WindowError::Zone { zone: self.zone.clone(), reason };
        let zone = TimeZone::get(&self.zone).map_err(|error| wrong(error.to_string()))?;
        let mut dates = Dates { unit: self.unit, zone, first: 0, last: 0 };
        let bound = |day: Date| dates.midnight(dates.first_day(day)?);
        let bounds = bound(date(-9000, 1, 1)).zip(bound(date(9000, 1, 1)));
        let (first, last) = bounds.ok_or_else(|| wrong("its years are not ours".to_owned()))?;
        (dates.first, dates.last) = (first, last);
        Ok(dates)
    }
}

/// A calendar that was checked.
#[derive(Clone, Debug)]
pub(crate) struct Dates {
    unit: Unit,
    zone: TimeZone,
    /// Where the windows of one unit begin.
    first: i64,
    /// Where they end.
    last: i64,
}

impl fmt::Display for Dates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            Unit::Day => "days",
            Unit::Week => "weeks",
            Unit::Month => "months",
        };
        write!(f, "{unit} in {}", self.zone.iana_name().unwrap_or("UTC"))
    }
}

impl Dates {
    /// The first day of the unit that a day is in.
    fn first_day(&self, day: Date) -> Option<Date> {
        match self.unit {
            Unit::Day => Some(day),
            Unit::Week => day.checked_sub(i64::from(day.weekday().to_monday_zero_offset()).days()).ok(),
            Unit::Month => Some(day.first_of_month()),
        }
    }

    /// The first day of the next unit.
    fn next(&self, first: Date) -> Option<Date> {
        let unit = match self.unit {
            Unit::Day => 1.day(),
            Unit::Week => 1.week(),
            Unit::Month => 1.month(),
        };
        first.checked_add(unit).ok()
    }

    /// When a day begins. A midnight that comes twice is the first of the two; of one that is skipped, the moment after.
    fn midnight(&self, day: Date) -> Option<i64> {
        Some(self.zone.to_timestamp(day.at(0, 0, 0, 0)).ok()?.as_millisecond())
    }

    pub(crate) fn window_of(&self, time: EventTime) -> TimeWindow {
        let window = |start, end| TimeWindow { start: EventTime(start), end: EventTime(end) };
        if time.0 < self.first {
            return window(i64::MIN, self.first);
        }
        if time.0 >= self.last {
            return window(self.last, i64::MAX);
        }
        let (start, end) =
            self.unit_of(time.0).expect("between the years -9000 and 9000 every day has a midnight");
        window(start, end)
    }

    fn unit_of(&self, time: i64) -> Option<(i64, i64)> {
        let day = self.zone.to_datetime(Timestamp::from_millisecond(time).ok()?).date();
        let mut first = self.first_day(day)?;
        let mut start = self.midnight(first)?;
        loop {
            let next = self.next(first)?;
            let end = self.midnight(next)?;
            // Where clocks go back over a midnight, the day before comes again after this one has begun.
            if time < end {
                return Some((start, end));
            }
            (first, start) = (next, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_millisecond()
    }

    fn hours_of(calendar: &Calendar, time: &str) -> (String, i64) {
        let window = calendar.check().unwrap().window_of(EventTime(ms(time)));
        let start = Timestamp::from_millisecond(window.start.0).unwrap().to_string();
        (start, (window.end.0 - window.start.0) / 3_600_000)
    }

    #[test]
    fn e11_days_begin_at_local_midnight_whatever_the_clocks_do() {
        let days = Calendar::days("America/New_York");
        for (time, start, hours) in [
            ("2026-03-07T12:00:00Z", "2026-03-07T05:00:00Z", 24),
            ("2026-03-08T06:59:59Z", "2026-03-08T05:00:00Z", 23),
            ("2026-03-09T03:59:59Z", "2026-03-08T05:00:00Z", 23),
            ("2026-03-09T04:00:00Z", "2026-03-09T04:00:00Z", 24),
            ("2026-03-11T12:00:00Z", "2026-03-11T04:00:00Z", 24),
            ("2026-11-01T05:30:00Z", "2026-11-01T04:00:00Z", 25),
            ("2026-11-02T04:59:59Z", "2026-11-01T04:00:00Z", 25),
            ("2026-11-02T05:00:00Z", "2026-11-02T05:00:00Z", 24),
        ] {
            assert_eq!(hours_of(&days, time), (start.to_owned(), hours), "{time}");
        }
    }

    #[test]
    fn weeks_begin_on_monday_and_months_on_the_first() {
        let shanghai = "Asia/Shanghai";
        // 2017-11-25 was a Saturday.
        let week = hours_of(&Calendar::weeks(shanghai), "2017-11-25T00:00:00Z");
        assert_eq!(week, ("2017-11-19T16:00:00Z".to_owned(), 7 * 24));
        let month = hours_of(&Calendar::months(shanghai), "2017-11-30T16:00:00Z");
        assert_eq!(month, ("2017-11-30T16:00:00Z".to_owned(), 31 * 24));
        let february = hours_of(&Calendar::months(shanghai), "2024-02-10T00:00:00Z");
        assert_eq!(february, ("2024-01-31T16:00:00Z".to_owned(), 29 * 24));
    }

    #[test]
    fn a_day_whose_midnight_is_skipped_begins_with_the_first_moment_after_it() {
        let day = hours_of(&Calendar::days("America/Havana"), "2024-03-10T12:00:00Z");
        assert_eq!(day, ("2024-03-10T05:00:00Z".to_owned(), 23));
        let before = hours_of(&Calendar::days("America/Havana"), "2024-03-10T04:59:59Z");
        assert_eq!(before, ("2024-03-09T05:00:00Z".to_owned(), 24));
    }

    #[test]
    fn a_zone_that_nobody_knows_is_named() {
        let error = Calendar::days("Europe/Atlantis").check().unwrap_err().to_string();
        assert!(error.contains("Europe/Atlantis") && error.contains("Europe/Berlin"), "{error}");
    }

    proptest! {
        #[test]
        fn every_time_is_in_one_window_and_windows_follow_each_other(time in any::<i64>(), near in -400_000_000_000i64..4_000_000_000_000) {
            for zone in ["America/New_York", "Asia/Shanghai", "America/Havana", "Pacific/Apia", "UTC"] {
                for calendar in [Calendar::days(zone), Calendar::weeks(zone), Calendar::months(zone)] {
                    let dates = calendar.check().unwrap();
                    for time in [time, near] {
                        let w = dates.window_of(EventTime(time));
                        prop_assert!(w.start.0 <= time && (time < w.end.0 || w.end.0 == i64::MAX));
                        prop_assert_eq!(dates.window_of(w.start), w);
                        if w.end.0 < i64::MAX {
                            prop_assert_eq!(dates.window_of(w.end).start, w.end);
                            prop_assert_eq!(dates.window_of(w.last()), w);
                        }
                    }
                }
            }
        }
    }
}
