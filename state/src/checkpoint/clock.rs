//! Times of day for people, in UTC.

/// Milliseconds since the Unix epoch as `2026-11-29 19:17:32 UTC`.
pub(crate) fn utc(ms: i64) -> String {
    let seconds = ms.div_euclid(1000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// The Gregorian date of a day counted from 1970-01-01: counted from a 1 March on, the leap day is a year's last.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months + 2) / 5 + 1;
    let month = if months < 10 { months + 3 } else { months - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// A duration as people say it: `38 s`, `14 min`, `3 h`, `12 d`.
pub(crate) fn span(ms: i64) -> String {
    match ms.max(0) / 1000 {
        s @ 0..=119 => format!("{s} s"),
        s @ 120..=7_199 => format!("{} min", s / 60),
        s @ 7_200..=172_799 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_days() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(-1), "1969-12-31 23:59:59 UTC");
        assert_eq!(utc(951_782_399_000), "2000-02-28 23:59:59 UTC");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(951_868_800_000), "2000-03-01 00:00:00 UTC");
        assert_eq!(utc(1_764_443_852_999), "2025-11-29 19:17:32 UTC");
        assert_eq!(utc(4_107_542_400_000), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn spans() {
        let spans = [-5, 38_000, 840_000, 3 * 3_600_000, 12 * 86_400_000].map(span);
        assert_eq!(spans, ["0 s", "38 s", "14 min", "3 h", "12 d"]);
    }
}
