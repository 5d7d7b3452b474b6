//! Numbers of every kind as integers of the same order, and what a bound means for values that may lie on neither side of it.
//!
//! A number tag keeps an `i64` per user, its key: greater numbers have greater keys. Floats: −0.0 is 0.0; a NaN, whichever it
//! is, lies above +∞ and no comparison reaches it. A bound is read exactly, whatever its form: `> 1.5` on an int tag is `>= 2`,
//! `> -1` on a uint tag is everyone who has a value.
//! (over 400 lines: every kind's order and its rules of conversion side by side)

use super::update::{TagType, TagValue};
use jiff::civil::{self, DateTime};
use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

/// A float as a tag's value: equal, ordered and hashed by number, −0.0 like 0.0, all NaNs alike and above +∞.
///
/// ```
/// use weir_state::profile::Float;
/// assert_eq!(Float(-0.0), Float(0.0));
/// assert!(Float(f64::NAN) == Float(-f64::NAN) && Float(f64::NAN) > Float(f64::INFINITY));
/// ```
///
/// For programs it is a number, and in formats for people, such as JSON, a NaN or an infinity is a text: `NaN`, `inf`, `-inf`.
#[derive(Debug, Clone, Copy)]
pub struct Float(pub f64);

impl Float {
    pub(crate) fn key(self) -> i64 {
        let number = if self.0.is_nan() { f64::NAN.abs() } else { self.0 + 0.0 };
        turn(number.to_bits() as i64)
    }

    pub(crate) fn of_key(key: i64) -> Self {
        Float(f64::from_bits(turn(key) as u64))
    }
}

/// Floats order like their bits when those of the negative ones are turned round; the same back again.
fn turn(bits: i64) -> i64 {
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

impl PartialEq for Float {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Float {}

impl PartialOrd for Float {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Float {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl Hash for Float {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl Serialize for Float {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() && !self.0.is_finite() {
            // JSON has no such number; it would be written as null.
            serializer.collect_str(&self.0)
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(Written)
        } else {
            f64::deserialize(deserializer).map(Float)
        }
    }
}

/// Reads a float in a format for people.
struct Written;

impl de::Visitor<'_> for Written {
    type Value = Float;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or NaN, inf or -inf as a text")
    }

    fn visit_f64<E>(self, n: f64) -> Result<Float, E> {
        Ok(Float(n))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Float, E> {
        Ok(Float(n as f64))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Float, E> {
        Ok(Float(n as f64))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Float, E> {
        match text {
            "NaN" => Ok(Float(f64::NAN)),
            "inf" => Ok(Float(f64::INFINITY)),
            "-inf" => Ok(Float(f64::NEG_INFINITY)),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }
}

impl fmt::Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A decimal number: `unscaled` ÷ 10^`scale`. `1.5` and `1.50` are different values of this type, and the same to a tag. Ordered by
/// number, of equal ones that with fewer digits first.
///
/// ```
/// use weir_state::profile::Decimal;
/// let price: Decimal = "-12.50".parse()?;
/// assert_eq!((price, price.to_string()), (Decimal::new(-1250, 2), "-12.50".to_owned()));
/// # Ok::<(), weir_state::profile::NoSuchValue>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Decimal {
    unscaled: i128,
    scale: u8,
}

/// A decimal as it is written anywhere, before its scale is looked at.
#[derive(Deserialize)]
struct Unchecked {
    unscaled: i128,
    scale: u8,
}

impl TryFrom<Unchecked> for Decimal {
    type Error = String;

    fn try_from(Unchecked { unscaled, scale }: Unchecked) -> Result<Self, String> {
        let fits = scale <= MOST_DIGITS;
        let wrong = || format!("a decimal has {MOST_DIGITS} digits behind the point at most, not {scale}");
        fits.then_some(Decimal { unscaled, scale }).ok_or_else(wrong)
    }
}

/// Digits that a decimal has behind the point at most.
const MOST_DIGITS: u8 = 38;

impl Decimal {
    /// `unscaled` ÷ 10^`scale`; a scale above 38 counts as 38.
    pub fn new(unscaled: i128, scale: u8) -> Self {
        Decimal { unscaled, scale: scale.min(MOST_DIGITS) }
    }

    pub(crate) fn unscaled(self) -> i128 {
        self.unscaled
    }

    pub(crate) fn scale(self) -> u8 {
        self.scale
    }

    /// The number at another scale: rounded down, and whether nothing was lost. Nothing if it is out of range.
    fn at_scale(self, scale: u8) -> Option<(i128, bool)> {
        if scale >= self.scale {
            let grown = 10i128.checked_pow((scale - self.scale).into())?.checked_mul(self.unscaled)?;
            return Some((grown, true));
        }
        let by = 10i128.checked_pow((self.scale - scale).into())?;
        Some((self.unscaled.div_euclid(by), self.unscaled.rem_euclid(by) == 0))
    }

    fn float(self) -> f64 {
        // The nearest float of the number as it is written.
        self.to_string().parse().unwrap_or(f64::NAN)
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        // The part below one in units of the 38th digit fits: it is below 10^38.
        let parts = |d: &Decimal| {
            let (one, rest) = (10i128.pow(d.scale.into()), 38 - u32::from(d.scale));
            (d.unscaled.div_euclid(one), d.unscaled.rem_euclid(one) * 10i128.pow(rest), d.scale)
        };
        parts(self).cmp(&parts(other))
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, scale) = (if self.unscaled < 0 { "-" } else { "" }, self.scale as usize);
        let digits = format!("{:0>1$}", self.unscaled.unsigned_abs(), scale + 1);
        let (whole, part) = digits.split_at(digits.len() - scale);
        if scale == 0 { write!(f, "{sign}{whole}") } else { write!(f, "{sign}{whole}.{part}") }
    }
}

impl FromStr for Decimal {
    type Err = NoSuchValue;

    fn from_str(text: &str) -> Result<Self, NoSuchValue> {
        let none = || NoSuchValue { text: text.to_owned(), wanted: "a decimal number of up to 38 digits" };
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
        let all = format!("{whole}{part}");
        let plain = !all.is_empty() && all.len() <= 38 && all.bytes().all(|b| b.is_ascii_digit());
        let unscaled: i128 = all.parse().ok().filter(|_| plain).ok_or_else(none)?;
        Ok(Decimal { unscaled: if negative { -unscaled } else { unscaled }, scale: part.len() as u8 })
    }
}

/// A text that is no value of the kind asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {wanted}")]
pub struct NoSuchValue {
    text: String,
    wanted: &'static str,
}

const DAY_MS: i64 = 86_400_000;

/// A calendar day: days since 1970-01-01. Read from and written as `2026-11-30`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Date(pub i32);

/// A moment: ms since the epoch. Read from `2026-11-30`, `2026-11-30 12:00:00.5` (both UTC) or with an offset as in RFC 3339, and
/// written as `2026-11-30 12:00:00.500` in UTC, the part below a second left out if it is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

/// Whole ms at or before a moment, and whether it is that.
fn moment(text: &str) -> Option<(i64, bool)> {
    let text = text.trim();
    let at = match text.parse::<jiff::Timestamp>() {
        Ok(at) => at,
        Err(_) => text.parse::<DateTime>().ok()?.to_zoned_datetime(TimeZone::UTC).ok()?.timestamp(),
    };
    let ns = at.as_nanosecond();
    Some((i64::try_from(ns.div_euclid(1_000_000)).ok()?, ns.rem_euclid(1_000_000) == 0))
}

/// The day, UTC, of a moment or a date as it is written.
pub(crate) fn day(text: &str) -> Option<Date> {
    i32::try_from(moment(text)?.0.div_euclid(DAY_MS)).ok().map(Date)
}

impl FromStr for Date {
    type Err = NoSuchValue;

    fn from_str(text: &str) -> Result<Self, NoSuchValue> {
        let day = text.trim().parse::<civil::Date>().ok().filter(|_| text.trim().len() == 10);
        let days = day.and_then(|day| {
            Some(day.to_zoned_datetime(TimeZone::UTC).ok()?.timestamp().as_second() / 86_400)
        });
        let none = || NoSuchValue { text: text.to_owned(), wanted: "a date (2026-11-30)" };
        days.and_then(|days| i32::try_from(days).ok()).map(Date).ok_or_else(none)
    }
}

impl FromStr for Timestamp {
    type Err = NoSuchValue;

    fn from_str(text: &str) -> Result<Self, NoSuchValue> {
        let wanted = "a moment to the ms (2026-11-30 12:00:00, UTC unless it says otherwise)";
        let exact = moment(text).filter(|(_, exact)| *exact);
        exact.map(|(ms, _)| Timestamp(ms)).ok_or_else(|| NoSuchValue { text: text.to_owned(), wanted })
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = jiff::Timestamp::from_second(i64::from(self.0) * 86_400);
        match at {
            Ok(at) => at.to_zoned_datetime(TimeZone::UTC).date().fmt(f),
            // Beyond the years that have four digits.
            Err(_) => write!(f, "day {}", self.0),
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(at) = jiff::Timestamp::from_millisecond(self.0) else { return write!(f, "{} ms", self.0) };
        let at = at.to_zoned_datetime(TimeZone::UTC).datetime();
        write!(f, "{} {:02}:{:02}:{:02}", at.date(), at.hour(), at.minute(), at.second())?;
        if at.millisecond() == 0 { Ok(()) } else { write!(f, ".{:03}", at.millisecond()) }
    }
}

/// Where a bound lies among the values of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// No comparison with it holds.
    Unordered,
    /// Below all values.
    Below,
    /// At the greatest value that is not above it; `true` if it is that value.
    At(i64, bool),
}

/// The key of a `u64`.
fn unsigned(n: u64) -> i64 {
    (n ^ 1 << 63) as i64
}

/// Among whole numbers whose least is `least` and greatest is `most`.
fn whole(floor: i128, exact: bool, least: i128, most: i128, key: impl Fn(i128) -> i64) -> Place {
    match floor {
        n if n < least => Place::Below,
        n if n <= most => Place::At(key(n), exact),
        _ => Place::At(key(most), false),
    }
}

/// Where a value lies among those of a kind of numbers; nothing if the two cannot be compared.
pub(crate) fn place(kind: TagType, value: &TagValue) -> Option<Place> {
    let (least, most): (i128, i128) = match kind {
        TagType::UInt => (0, u64::MAX.into()),
        TagType::Date => (i32::MIN.into(), i32::MAX.into()),
        _ => (i64::MIN.into(), i64::MAX.into()),
    };
    let key = |n: i128| if kind == TagType::UInt { unsigned(n as u64) } else { n as i64 };
    Some(match (kind, value) {
        (TagType::Float, TagValue::Float(f)) if f.0.is_nan() => Place::Unordered,
        (TagType::Float, TagValue::Float(f)) => Place::At(f.key(), true),
        (TagType::Float, TagValue::Decimal(d)) => Place::At(Float(d.float()).key(), true),
        (TagType::Float, TagValue::Int(n)) => near(i128::from(*n)),
        (TagType::Float, TagValue::UInt(n)) => near(i128::from(*n)),
        (TagType::Bool, TagValue::Bool(b)) => Place::At((*b).into(), true),
        (TagType::Date, TagValue::Date(d)) => Place::At(d.0.into(), true),
        (TagType::Date, TagValue::Timestamp(t)) => {
            let (day, exact) = (t.0.div_euclid(DAY_MS), t.0.rem_euclid(DAY_MS) == 0);
            whole(day.into(), exact, least, most, key)
        }
        (TagType::Timestamp, TagValue::Timestamp(t)) => Place::At(t.0, true),
        (TagType::Timestamp, TagValue::Date(d)) => Place::At(i64::from(d.0) * DAY_MS, true),
        (TagType::Date | TagType::Timestamp, TagValue::Text(text)) => {
            let (ms, exact) = moment(text)?;
            return place(kind, &TagValue::Timestamp(Timestamp(ms))).map(|place| match place {
                Place::At(key, whole) => Place::At(key, whole & exact),
                other => other,
            });
        }
        (TagType::Int | TagType::UInt | TagType::Timestamp, TagValue::Int(n)) => {
            whole((*n).into(), true, least, most, key)
        }
        (TagType::Int | TagType::UInt | TagType::Timestamp, TagValue::UInt(n)) => {
            whole((*n).into(), true, least, most, key)
        }
        (TagType::Int | TagType::UInt, TagValue::Decimal(d)) => {
            let (floor, exact) = d.at_scale(0)?;
            whole(floor, exact, least, most, key)
        }
        (TagType::Int | TagType::UInt, TagValue::Float(f)) if f.0.is_nan() => Place::Unordered,
        (TagType::Int | TagType::UInt, TagValue::Float(f)) => {
            // The cast saturates at the range of i128, which is beyond both.
            whole(f.0.floor() as i128, f.0.fract() == 0.0, least, most, key)
        }
        (TagType::Decimal(scale), value) => {
            let number = match value {
                TagValue::Int(n) => Decimal::new((*n).into(), 0),
                TagValue::UInt(n) => Decimal::new((*n).into(), 0),
                TagValue::Decimal(d) => *d,
                TagValue::Float(f) if f.0.is_nan() => return Some(Place::Unordered),
                TagValue::Float(f) => match f.to_string().parse() {
                    Ok(number) => number,
                    // More digits than a decimal takes: far below the last digit that a tag may have, or far above the first.
                    Err(_) if f.0.abs() < 1.0 => return Some(Place::At(-i64::from(f.0 < 0.0), false)),
                    Err(_) if f.0 > 0.0 => return Some(Place::At(i64::MAX, false)),
                    Err(_) => return Some(Place::Below),
                },
                _ => return None,
            };
            match number.at_scale(scale) {
                Some((floor, exact)) => whole(floor, exact, least, most, key),
                None if number.unscaled < 0 => Place::Below,
                None => Place::At(i64::MAX, false),
            }
        }
        _ => return None,
    })
}

/// Where a whole number lies among floats.
fn near(n: i128) -> Place {
    let float = n as f64;
    match (float as i128).cmp(&n) {
        Ordering::Equal => Place::At(Float(float).key(), true),
        Ordering::Less => Place::At(Float(float).key(), false),
        Ordering::Greater => Place::At(Float(float).key() - 1, false),
    }
}

/// The key of a value that a tag of this kind is given; nothing if it is none of its values.
pub(crate) fn key(kind: TagType, value: &TagValue) -> Option<i64> {
    match (kind, value) {
        (TagType::Float, TagValue::Float(f)) => Some(f.key()),
        // A float that happens to be whole is no whole number, and may be another than was meant.
        (TagType::Int | TagType::UInt | TagType::Decimal(_), TagValue::Float(_)) => None,
        (TagType::Int | TagType::UInt, TagValue::Decimal(_)) => None,
        (TagType::Date, TagValue::Text(text)) => Some(text.parse::<Date>().ok()?.0.into()),
        _ => match place(kind, value)? {
            Place::At(key, true) => Some(key),
            _ => None,
        },
    }
}

/// The value that a key stands for.
pub(crate) fn value(kind: TagType, key: i64) -> TagValue {
    match kind {
        TagType::UInt => TagValue::from((key as u64) ^ 1 << 63),
        TagType::Float => TagValue::Float(Float::of_key(key)),
        TagType::Bool => TagValue::Bool(key != 0),
        TagType::Decimal(scale) => TagValue::Decimal(Decimal::new(key.into(), scale)),
        TagType::Date => TagValue::Date(Date(key.clamp(i32::MIN.into(), i32::MAX.into()) as i32)),
        TagType::Timestamp => TagValue::Timestamp(Timestamp(key)),
        _ => TagValue::Int(key),
    }
}

/// The key of the same value in a wider type; nothing if that lacks it.
pub(crate) fn widened(from: TagType, to: TagType, of: i64) -> Option<i64> {
    key(to, &value(from, of))
}

/// The key in a wider type of the value that is nearest below, where that lacks the value itself.
pub(crate) fn widened_or_below(from: TagType, to: TagType, of: i64) -> i64 {
    match place(to, &value(from, of)) {
        Some(Place::At(key, _)) => key,
        _ => i64::MIN,
    }
}

/// The greatest key that a comparison reaches.
pub(crate) fn top(kind: TagType) -> i64 {
    if kind == TagType::Float { Float(f64::INFINITY).key() } else { i64::MAX }
}

/// Why a number cannot grow by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotGrown {
    /// They do not add up.
    Mismatch,
    /// The sum is out of range.
    Overflow,
}

/// The key after a number has grown; no number counts as 0.
pub(crate) fn grown(kind: TagType, from: Option<i64>, by: &TagValue) -> Result<i64, NotGrown> {
    use NotGrown::{Mismatch, Overflow};
    let whole = match by {
        TagValue::Int(n) => Some(i128::from(*n)),
        TagValue::UInt(n) => Some(i128::from(*n)),
        _ => None,
    };
    match kind {
        TagType::Int | TagType::Timestamp => {
            let sum = i128::from(from.unwrap_or(0)) + whole.ok_or(Mismatch)?;
            i64::try_from(sum).map_err(|_| Overflow)
        }
        TagType::UInt => {
            let from = from.map_or(0, |key| (key as u64) ^ 1 << 63);
            let sum = i128::from(from) + whole.ok_or(Mismatch)?;
            u64::try_from(sum).map(unsigned).map_err(|_| Overflow)
        }
        TagType::Decimal(scale) => {
            let by = match (by, whole) {
                (TagValue::Decimal(d), _) => *d,
                (_, Some(n)) => Decimal::new(n, 0),
                _ => return Err(Mismatch),
            };
            let (by, exact) = by.at_scale(scale).ok_or(Overflow)?;
            let sum = by.checked_add(from.unwrap_or(0).into()).ok_or(Overflow)?;
            if exact { i64::try_from(sum).map_err(|_| Overflow) } else { Err(Mismatch) }
        }
        TagType::Float => {
            let by = match (by, whole) {
                (TagValue::Float(f), _) => f.0,
                (TagValue::Decimal(d), _) => d.float(),
                (_, Some(n)) => n as f64,
                _ => return Err(Mismatch),
            };
            Ok(Float(from.map_or(0.0, |key| Float::of_key(key).0) + by).key())
        }
        _ => Err(Mismatch),
    }
}

#[cfg(test)]
#[path = "scalar_tests.rs"]
mod tests;
