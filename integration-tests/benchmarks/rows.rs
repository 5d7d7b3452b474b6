//! JSON files of user behaviour as ClickHouse writes them: the same columns, shares and skews as the peers' `stream_gen.py` makes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use weir_connectors::prelude::*;
use weir_connectors::random::Random;

/// The first row's time: 2017-11-26 01:00 UTC.
const START_MS: i64 = 1_511_658_000_000;
/// From the first row to the last.
const SPAN_MS: u64 = 48 * 3_600_000;

/// Rows over 48 hours, in the order of their times: 1,000,000 users (square-law skew), 400,000 items (cube-law skew), 8,000
/// categories; 89 % page views, 6 % cart, 3 % favourites, 2 % purchases.
#[derive(Clone, Copy)]
pub(crate) struct Rows(pub(crate) u64);

impl Rows {
    /// Row `i`: the event, its time in milliseconds.
    pub(crate) fn row(self, i: u64) -> Behaviour {
        let mut random = Random::of(1_726, i);
        let (u, v) = (random.unit(), random.unit());
        let item = (400_000.0 * v * v * v) as u64;
        let behavior = match random.below(100) {
            0..89 => Action::Pv,
            89..95 => Action::Cart,
            95..98 => Action::Fav,
            _ => Action::Buy,
        };
        Behaviour {
            user_id: 1 + (1_000_000.0 * u * u) as u64,
            item_id: 1 + item,
            category_id: Random::of(5, item).below(8_000),
            behavior,
            ts: START_MS + (u128::from(i) * u128::from(SPAN_MS) / u128::from(self.0)) as i64,
        }
    }

    /// Every second row in a file of its own, in `folder`; those that are there and whole are left.
    pub(crate) fn write(self, folder: &Path) -> anyhow::Result<[PathBuf; 2]> {
        let folder = folder.join("ub_json");
        std::fs::create_dir_all(&folder)?;
        let paths = [0, 1].map(|part| folder.join(format!("ub-{part}.json")));
        for (part, path) in (0..).zip(&paths) {
            if path.exists() {
                continue;
            }
            let unfinished = path.with_extension("new");
            let mut file = BufWriter::with_capacity(1 << 20, File::create(&unfinished)?);
            for i in (part..self.0).step_by(2) {
                let Behaviour { user_id, item_id, category_id, behavior, ts } = self.row(i);
                let (behavior, ts) = (behavior.as_str(), Timestamp::from_millisecond(ts)?);
                let ts = ts.strftime("%Y-%m-%d %H:%M:%S%.3f");
                writeln!(
                    file,
                    "{{\"user_id\":{user_id},\"item_id\":{item_id},\"category_id\":{category_id},\"behavior\":\"{behavior}\",\"ts\":\"{ts}\"}}"
                )?;
            }
            file.flush()?;
            std::fs::rename(unfinished, path)?;
        }
        Ok(paths)
    }
}

/// What the jobs need of a row; the rest is skipped.
#[derive(Clone, Copy, Deserialize)]
pub(crate) struct Row {
    pub(crate) user_id: u64,
    pub(crate) behavior: Action,
    /// In milliseconds since the epoch.
    #[serde(deserialize_with = "millis")]
    pub(crate) ts: i64,
}

fn millis<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    struct Text;
    impl serde::de::Visitor<'_> for Text {
        type Value = i64;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a time such as 2017-11-26 01:00:00.000")
        }
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<i64, E> {
            let wrong = || E::invalid_value(serde::de::Unexpected::Str(text), &self);
            parse(text.as_bytes()).ok_or_else(wrong)
        }
    }
    from.deserialize_str(Text)
}

/// `2017-11-26 01:00:00.000`, UTC, in milliseconds since the epoch.
fn parse(text: &[u8]) -> Option<i64> {
    let text: &[u8; 23] = text.try_into().ok()?;
    let separators = [(4, b'-'), (7, b'-'), (10, b' '), (13, b':'), (16, b':'), (19, b'.')];
    if separators.iter().any(|(at, separator)| text[*at] != *separator) {
        return None;
    }
    let number = |from: usize, to: usize| {
        let digits = text[from..to].iter();
        digits.fold(
            0,
            |n, digit| if digit.is_ascii_digit() { 10 * n + i64::from(digit - b'0') } else { -1_000_000 },
        )
    };
    let (year, month, day) = (number(0, 4), number(5, 7), number(8, 10));
    let (hour, minute, second, milli) = (number(11, 13), number(14, 16), number(17, 19), number(20, 23));
    let fields = [
        (year, 0, 9_999),
        (month, 1, 12),
        (day, 1, 31),
        (hour, 0, 23),
        (minute, 0, 59),
        (second, 0, 59),
        (milli, 0, 999),
    ];
    if fields.iter().any(|(field, least, most)| field < least || field > most) {
        return None;
    }
    // Years that begin in March end with the day that some do not have.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000 + milli)
}

/// The reading of times must be right before anything is compared.
pub(crate) fn check_times() -> anyhow::Result<()> {
    for ms in (-10_000_000_000_000..10_000_000_000_000i64).step_by(7_777_777_777) {
        let text = Timestamp::from_millisecond(ms)?.strftime("%Y-%m-%d %H:%M:%S%.3f").to_string();
        anyhow::ensure!(
            parse(text.as_bytes()) == Some(ms),
            "{text} is {ms}, not {:?}",
            parse(text.as_bytes())
        );
    }
    for wrong in [
        "2017-11-26 01:00:00.00x",
        "2017-13-26 01:00:00.000",
        "2017-11-26T01:00:00.000",
        "2017-11-26 01:00:00",
    ] {
        anyhow::ensure!(parse(wrong.as_bytes()).is_none(), "{wrong} is no time");
    }
    Ok(())
}
