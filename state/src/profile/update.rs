//! What a stream says about one user: tag deltas with an event time, built cheaply once per event.

use super::user::UserId;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

/// The name of a tag. A literal costs nothing.
pub type TagName = Cow<'static, str>;

/// What values a tag takes.
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
}

impl fmt::Display for TagType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TagType::Enum => "enum",
            TagType::Set => "set",
            TagType::Int => "int",
        })
    }
}

/// A value of a tag.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TagValue {
    /// A value of an enum tag.
    Text(String),
    /// A value of an int tag.
    Int(i64),
    /// A number above `i64::MAX`: no tag takes it, and the error names it rather than a wrapped negative.
    TooLarge(u64),
    /// A value of a set tag.
    Set(BTreeSet<String>),
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
            TagValue::TooLarge(n) => n.fmt(f),
            TagValue::Set(s) => f.debug_set().entries(s).finish(),
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
    u32 => n: TagValue::Int(n.into()),
    u64 => n: i64::try_from(n).map_or(TagValue::TooLarge(n), TagValue::Int),
    usize => n: TagValue::from(n as u64),
    BTreeSet<String> => s: TagValue::Set(s),
    Vec<String> => s: TagValue::Set(s.into_iter().collect()),
    Vec<&str> => s: TagValue::Set(s.into_iter().map(str::to_owned).collect()),
}
impl<const N: usize> From<[&str; N]> for TagValue {
    fn from(s: [&str; N]) -> Self {
        TagValue::Set(s.into_iter().map(str::to_owned).collect())
    }
}

/// One change of one tag. What wins over what is written in [`crate::profile`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Delta {
    /// The tag has this value, whatever it had before.
    Set(TagValue),
    /// The tag has no value any more.
    Unset,
    /// A set tag holds this element.
    Add(String),
    /// A set tag does not hold this element; the tag is left with a value, if only the empty set.
    Remove(String),
    /// An int tag grows by this; no value counts as 0.
    Increment(i64),
    /// An int tag is at least this; no value takes it.
    Max(i64),
    /// An int tag is at most this; no value takes it.
    Min(i64),
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

    /// Gives the tag a value: a text, an integer or a set, as its type asks.
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
    pub fn add(self, tag: impl Into<TagName>, element: impl Into<String>) -> Self {
        self.delta(tag, Delta::Add(element.into()))
    }

    /// Removes an element from a set tag.
    #[inline]
    #[must_use]
    pub fn remove(self, tag: impl Into<TagName>, element: impl Into<String>) -> Self {
        self.delta(tag, Delta::Remove(element.into()))
    }

    /// Adds `by`, which may be negative, to an int tag.
    #[inline]
    #[must_use]
    pub fn increment(self, tag: impl Into<TagName>, by: i64) -> Self {
        self.delta(tag, Delta::Increment(by))
    }

    /// Raises an int tag to `to` if it is below or has no value.
    #[inline]
    #[must_use]
    pub fn max(self, tag: impl Into<TagName>, to: i64) -> Self {
        self.delta(tag, Delta::Max(to))
    }

    /// Lowers an int tag to `to` if it is above or has no value.
    #[inline]
    #[must_use]
    pub fn min(self, tag: impl Into<TagName>, to: i64) -> Self {
        self.delta(tag, Delta::Min(to))
    }
}
