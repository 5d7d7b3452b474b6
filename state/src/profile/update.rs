//! What a stream says about one user: tag deltas with an event time, built cheaply once per event.

use super::scalar::{Date, Decimal, Float, Timestamp};
use super::user::UserId;
use super::wire::Written;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The name of a tag. A literal costs nothing.
pub type TagName = Cow<'static, str>;

/// What values a tag takes. How they compare, and what no value means, is in [`crate::profile`] and `docs/profiles.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TagType {
    /// One text per user, out of any number of texts.
    Enum,
    /// A set of texts per user; the empty set differs from no value.
    Set,
    /// One `i64` per user.
    Int,
    /// One `u64` per user.
    UInt,
    /// One `f64` per user; see [`Float`].
    Float,
    /// True or false.
    Bool,
    /// One number per user with so many digits behind the point (18 at most), as an `i64` of units of the last.
    Decimal(u8),
    /// One day per user.
    Date,
    /// One moment per user, to the ms.
    Timestamp,
    /// A set of `i64` per user; the empty set differs from no value.
    IntSet,
    /// A text, number or truth value per key and user; the empty map differs from no value.
    Map,
}

/// How a type is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One text.
    Text,
    /// Texts, numbers written in digits, or entries of a map.
    Set,
    /// An integer of the same order.
    Number,
}

impl TagType {
    #[inline]
    pub(crate) fn shape(self) -> Shape {
        match self {
            TagType::Enum => Shape::Text,
            TagType::Set | TagType::IntSet | TagType::Map => Shape::Set,
            _ => Shape::Number,
        }
    }
}

impl fmt::Display for TagType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TagType::Enum => "enum",
            TagType::Set => "set",
            TagType::Int => "int",
            TagType::UInt => "uint",
            TagType::Float => "float",
            TagType::Bool => "bool",
            TagType::Decimal(scale) => return write!(f, "decimal({scale})"),
            TagType::Date => "date",
            TagType::Timestamp => "timestamp",
            TagType::IntSet => "intset",
            TagType::Map => "map",
        })
    }
}

/// A value of a tag.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TagValue {
    /// A value of an enum tag; a date or a moment in its written form.
    Text(String),
    /// A whole number within the range of `i64`; of a timestamp tag, ms since the epoch.
    Int(i64),
    /// A whole number above `i64::MAX`.
    #[serde(alias = "toolarge")]
    UInt(u64),
    /// A value of a set tag.
    Set(BTreeSet<String>),
    /// A value of a float tag.
    Float(Float),
    /// A value of a bool tag.
    Bool(bool),
    /// A value of a decimal tag.
    Decimal(Decimal),
    /// A value of a date tag.
    Date(Date),
    /// A value of a timestamp tag.
    Timestamp(Timestamp),
    /// A value of an int set tag.
    IntSet(BTreeSet<i64>),
    /// A value of a map tag: texts, whole numbers, finite floats and truth values by key.
    Map(BTreeMap<String, TagValue>),
}

impl TagValue {
    /// The text of an enum value.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            TagValue::Text(s) => Some(s),
            _ => None,
        }
    }

    /// The number of an int value.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            TagValue::Int(n) => Some(*n),
            _ => None,
        }
    }
}

impl fmt::Display for TagValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TagValue::Text(s) => write!(f, "'{s}'"),
            TagValue::Int(n) => n.fmt(f),
            TagValue::UInt(n) => n.fmt(f),
            TagValue::Set(s) => f.debug_set().entries(s).finish(),
            TagValue::Float(n) => n.fmt(f),
            TagValue::Bool(b) => b.fmt(f),
            TagValue::Decimal(n) => n.fmt(f),
            TagValue::Date(d) => write!(f, "'{d}'"),
            TagValue::Timestamp(t) => write!(f, "'{t}'"),
            TagValue::IntSet(s) => f.debug_set().entries(s).finish(),
            TagValue::Map(m) => {
                f.write_str("{")?;
                for (i, (key, value)) in m.iter().enumerate() {
                    write!(f, "{}{key:?}: {value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}

macro_rules! values {
    ($($t:ty => $v:ident: $e:expr),* $(,)?) => { $(
        impl From<$t> for TagValue {
            #[inline]
            fn from($v: $t) -> Self { $e }
        }
    )* };
}
values! {
    &str => s: TagValue::Text(s.to_owned()),
    String => s: TagValue::Text(s),
    i64 => n: TagValue::Int(n),
    i32 => n: TagValue::Int(n.into()),
    u8 => n: TagValue::Int(n.into()),
    u32 => n: TagValue::Int(n.into()),
    u64 => n: i64::try_from(n).map_or(TagValue::UInt(n), TagValue::Int),
    usize => n: TagValue::from(n as u64),
    f64 => n: TagValue::Float(Float(n)),
    Float => n: TagValue::Float(n),
    bool => b: TagValue::Bool(b),
    Decimal => n: TagValue::Decimal(n),
    Date => d: TagValue::Date(d),
    Timestamp => t: TagValue::Timestamp(t),
    BTreeSet<String> => s: TagValue::Set(s),
    BTreeSet<i64> => s: TagValue::IntSet(s),
    BTreeMap<String, TagValue> => m: TagValue::Map(m),
    Vec<String> => s: TagValue::Set(s.into_iter().collect()),
    Vec<&str> => s: TagValue::Set(s.into_iter().map(str::to_owned).collect()),
    Vec<i64> => s: TagValue::IntSet(s.into_iter().collect()),
}
impl<const N: usize> From<[&str; N]> for TagValue {
    fn from(s: [&str; N]) -> Self {
        TagValue::Set(s.into_iter().map(str::to_owned).collect())
    }
}
impl<const N: usize> From<[i64; N]> for TagValue {
    fn from(s: [i64; N]) -> Self {
        TagValue::IntSet(s.into())
    }
}

/// An element of a set: a text, or a whole number, which is kept in digits. Asked of a set, the two are not the same.
///
/// ```
/// use weir_state::profile::tag;
/// let either = tag("watched").has_any(["TSLA", "AAPL"]).or(tag("shops").has_any([7, 12]));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    pub(crate) text: String,
    pub(crate) form: Form,
}

/// As what an element was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Number,
    /// In JSON, which does not convert: a set of the other type holds no such element, and to ask for it is no error.
    JsonText,
    JsonNumber,
    /// A truth value, null, or a number that is not whole: no set holds it.
    JsonOther,
}

macro_rules! elements {
    ($($t:ty => $form:ident),*) => { $(
        impl From<$t> for Element {
            fn from(element: $t) -> Self {
                Element { text: element.to_string(), form: Form::$form }
            }
        }
    )* };
}
elements!(&str => Text, &String => Text, i64 => Number, i32 => Number, u32 => Number);
impl From<String> for Element {
    fn from(text: String) -> Self {
        Element { text, form: Form::Text }
    }
}

/// Whether a text is a number as an int set keeps it.
pub(crate) fn is_int_element(text: &str) -> bool {
    text.parse::<i64>().is_ok_and(|n| n.to_string() == text)
}

/// One change of one tag. What wins over what is written in [`crate::profile`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "Written")]
#[non_exhaustive]
pub enum Delta {
    /// The tag has this value, whatever it had before.
    Set(TagValue),
    /// The tag has no value any more.
    Unset,
    /// A set tag holds this element; an int set takes it in digits.
    Add(String),
    /// A set tag does not hold this element, a map tag this key; the tag is left with a value, if only the empty set or map.
    Remove(String),
    /// A number tag grows by this; no value counts as 0.
    Increment(TagValue),
    /// A number tag is at least this; no value takes it.
    Max(TagValue),
    /// A number tag is at most this; no value takes it.
    Min(TagValue),
    /// A map tag has this value under this key.
    Put(String, TagValue),
}

impl Delta {
    /// Names the kind, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Delta::Set(_) => "set",
            Delta::Unset => "unset",
            Delta::Add(_) => "add",
            Delta::Remove(_) => "remove",
            Delta::Increment(_) => "increment",
            Delta::Max(_) => "max",
            Delta::Min(_) => "min",
            Delta::Put(..) => "put",
        }
    }
}

/// A delta and the tag it changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TagDelta {
    /// The tag's name.
    pub tag: TagName,
    /// The change.
    pub delta: Delta,
}

/// Everything one event says about one user. It is applied and published whole or not at all.
///
/// ```
/// use weir_state::profile::ProfileUpdate;
/// let update = ProfileUpdate::of(42u64)
///     .at(1_511_544_070_000)
///     .set("last_behaviour", "buy")
///     .add("categories", "123")
///     .increment("buys_total", 1);
/// assert_eq!(update.deltas.len(), 3);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProfileUpdate {
    /// The user it is about.
    pub user: UserId,
    /// Event time in ms since the epoch; none until [`at`](Self::at) or [`or_at`](Self::or_at) gives one.
    pub time: Option<i64>,
    /// The changes, applied in this order.
    pub deltas: Vec<TagDelta>,
}

impl ProfileUpdate {
    /// Begins an update of `user` that says nothing yet.
    #[inline]
    pub fn of(user: impl Into<UserId>) -> Self {
        Self { user: user.into(), time: None, deltas: Vec::new() }
    }

    /// Sets the event time, in ms since the epoch.
    #[inline]
    #[must_use]
    pub fn at(mut self, ms: i64) -> Self {
        self.time = Some(ms);
        self
    }

    /// Sets the event time, in ms since the epoch, unless [`at`](Self::at) did: for the time of the record it came in.
    #[inline]
    #[must_use]
    pub fn or_at(mut self, ms: i64) -> Self {
        self.time = self.time.or(Some(ms));
        self
    }

    /// Adds any delta.
    #[inline]
    #[must_use]
    pub fn delta(mut self, tag: impl Into<TagName>, delta: Delta) -> Self {
        self.deltas.push(TagDelta { tag: tag.into(), delta });
        self
    }

    /// Gives the tag a value, as its type asks.
    #[inline]
    #[must_use]
    pub fn set(self, tag: impl Into<TagName>, value: impl Into<TagValue>) -> Self {
        self.delta(tag, Delta::Set(value.into()))
    }

    /// Takes the tag's value away.
    #[inline]
    #[must_use]
    pub fn unset(self, tag: impl Into<TagName>) -> Self {
        self.delta(tag, Delta::Unset)
    }

    /// Adds an element to a set tag.
    #[inline]
    #[must_use]
    pub fn add(self, tag: impl Into<TagName>, element: impl Into<Element>) -> Self {
        self.delta(tag, Delta::Add(element.into().text))
    }

    /// Gives a key of a map tag a value: a text, a number, or true or false.
    #[inline]
    #[must_use]
    pub fn put(self, tag: impl Into<TagName>, key: impl Into<String>, value: impl Into<TagValue>) -> Self {
        self.delta(tag, Delta::Put(key.into(), value.into()))
    }

    /// Removes an element from a set tag, or a key from a map tag.
    #[inline]
    #[must_use]
    pub fn remove(self, tag: impl Into<TagName>, element: impl Into<Element>) -> Self {
        self.delta(tag, Delta::Remove(element.into().text))
    }

    /// Adds `by`, which may be negative, to a number tag; a timestamp grows by ms, a float by float arithmetic.
    #[inline]
    #[must_use]
    pub fn increment(self, tag: impl Into<TagName>, by: impl Into<TagValue>) -> Self {
        self.delta(tag, Delta::Increment(by.into()))
    }

    /// Raises a number tag to `to` if it is below or has no value.
    #[inline]
    #[must_use]
    pub fn max(self, tag: impl Into<TagName>, to: impl Into<TagValue>) -> Self {
        self.delta(tag, Delta::Max(to.into()))
    }

    /// Lowers a number tag to `to` if it is above or has no value.
    #[inline]
    #[must_use]
    pub fn min(self, tag: impl Into<TagName>, to: impl Into<TagValue>) -> Self {
        self.delta(tag, Delta::Min(to.into()))
    }
}
