//! Conditions on users, built as values: leaves on one tag, combined by and, or, not.

use super::update::{Element, Form, TagValue};
use super::user::UserId;
use std::fmt;
use std::sync::Arc;

/// A condition on a user's tags. The null rules are in [`crate::profile`].
///
/// ```
/// use weir_state::profile::{Predicate, tag};
/// let built = tag("buys_total").ge(2).and(tag("categories").has_any(["123", "4"])).and(!tag("last_behaviour").eq("pv"));
/// let read = Predicate::parse("buys_total >= 2 and hasAny(categories, ['123','4']) and not last_behaviour = 'pv'")?;
/// assert_eq!(built, read);
/// # Ok::<(), weir_state::profile::QueryError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Predicate {
    pub(crate) node: Node,
    pub(crate) depth: usize,
}

/// The tree. `And` and `Or` are kept flat, double negation is dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    All,
    And(Vec<Predicate>),
    Or(Vec<Predicate>),
    Not(Box<Predicate>),
    AtLeast(usize, Vec<Predicate>),
    Users(Vec<UserId>),
    /// Who is in a registered segment, by its name.
    Segment(Arc<str>),
    Leaf(Arc<str>, Test),
}

/// A test of one tag's value. None of them holds for a user without a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Test {
    Exists,
    In(Vec<TagValue>),
    NotIn(Vec<TagValue>),
    HasAny(Vec<Element>),
    HasAll(Vec<Element>),
    Prefix(String),
    /// Elements of the set, both ends included.
    Size(u32, u32),
    Lt(TagValue),
    Le(TagValue),
    Gt(TagValue),
    Ge(TagValue),
    Between(TagValue, TagValue),
    /// Of a map, what is under a key.
    Key(String, Box<Test>),
}

impl Test {
    /// Days and moments become the texts they are written as: that is what a map has of them.
    fn days_to_texts(&mut self) {
        let values: &mut [TagValue] = match self {
            Test::In(values) | Test::NotIn(values) => values,
            Test::Lt(n) | Test::Le(n) | Test::Gt(n) | Test::Ge(n) => std::slice::from_mut(n),
            Test::Between(low, high) => return [low, high].into_iter().for_each(written),
            Test::Exists
            | Test::HasAny(_)
            | Test::HasAll(_)
            | Test::Prefix(_)
            | Test::Size(..)
            | Test::Key(..) => {
                return;
            }
        };
        values.iter_mut().for_each(written);
    }
}

fn written(value: &mut TagValue) {
    match value {
        TagValue::Date(day) => *value = TagValue::Text(day.to_string()),
        TagValue::Timestamp(at) => *value = TagValue::Text(at.to_string()),
        _ => {}
    }
}

impl Predicate {
    /// Matches every user of the space.
    pub fn all() -> Self {
        Self { node: Node::All, depth: 1 }
    }

    pub(crate) fn leaf(tag: Arc<str>, mut test: Test) -> Self {
        if let Test::Key(_, under) = &mut test {
            under.days_to_texts();
        }
        Self { node: Node::Leaf(tag, test), depth: 1 }
    }

    /// Matches these users, as far as the space has them.
    ///
    /// ```
    /// use weir_state::profile::{Predicate, tag};
    /// let some = Predicate::users([7u64, 9]).and(tag("city").eq("Paris"));
    /// ```
    pub fn users<U: Into<UserId>>(users: impl IntoIterator<Item = U>) -> Self {
        Self { node: Node::Users(users.into_iter().map(Into::into).collect()), depth: 1 }
    }

    /// Matches who is in a segment that is [registered](crate::profile::Profiles::define_segment) under this name, as it is defined in the version asked.
    ///
    /// ```
    /// use weir_state::profile::{Predicate, tag};
    /// let some = Predicate::segment("buyers").and(!tag("city").eq("Paris"));
    /// assert_eq!(some, Predicate::parse("segment('buyers') and not city = 'Paris'")?);
    /// # Ok::<(), weir_state::profile::QueryError>(())
    /// ```
    pub fn segment(name: impl Into<Arc<str>>) -> Self {
        Self { node: Node::Segment(name.into()), depth: 1 }
    }

    /// Matches who matches at least `needed` of these: of none needed, everyone. A query takes 255 conditions at most here.
    ///
    /// ```
    /// use weir_state::profile::{Predicate, tag};
    /// let two_of_three = Predicate::at_least(2, [tag("a").exists(), tag("b").exists(), tag("c").exists()]);
    /// ```
    pub fn at_least(needed: usize, of: impl IntoIterator<Item = Predicate>) -> Self {
        let of: Vec<Predicate> = of.into_iter().collect();
        let depth = 1 + of.iter().map(|p| p.depth).max().unwrap_or(0);
        Self { node: Node::AtLeast(needed, of), depth }
    }

    /// Matches who matches both.
    #[must_use]
    pub fn and(self, other: Predicate) -> Self {
        let depth = self.under(Node::is_and).max(other.under(Node::is_and));
        let parts = |p: Predicate| match p.node {
            Node::And(parts) => parts,
            _ => vec![p],
        };
        let mut all = parts(self);
        all.extend(parts(other));
        Self { node: Node::And(all), depth }
    }

    /// Matches who matches either.
    #[must_use]
    pub fn or(self, other: Predicate) -> Self {
        let depth = self.under(Node::is_or).max(other.under(Node::is_or));
        let parts = |p: Predicate| match p.node {
            Node::Or(parts) => parts,
            _ => vec![p],
        };
        let mut any = parts(self);
        any.extend(parts(other));
        Self { node: Node::Or(any), depth }
    }

    /// How deep a run gets by taking this in: a run of the same kind is merged, anything else goes one below.
    fn under(&self, same: impl Fn(&Node) -> bool) -> usize {
        self.depth + usize::from(!same(&self.node))
    }
}

impl Node {
    /// The parts of a condition that is made of others.
    pub(crate) fn parts(&self) -> &[Predicate] {
        match self {
            Node::And(parts) | Node::Or(parts) | Node::AtLeast(_, parts) => parts,
            Node::Not(inner) => std::slice::from_ref(inner),
            Node::All | Node::Users(_) | Node::Segment(_) | Node::Leaf(..) => &[],
        }
    }

    fn is_and(&self) -> bool {
        matches!(self, Node::And(_))
    }

    fn is_or(&self) -> bool {
        matches!(self, Node::Or(_))
    }
}

/// Matches every user of the space who does not match, users without the tag included. Also a method: `p.not()`, with
/// [`std::ops::Not`] in scope.
impl std::ops::Not for Predicate {
    type Output = Predicate;
    fn not(self) -> Predicate {
        match self.node {
            Node::Not(inner) => *inner,
            _ => Predicate { depth: self.depth + 1, node: Node::Not(Box::new(self)) },
        }
    }
}

/// Begins a condition on a tag.
pub fn tag(name: impl Into<Arc<str>>) -> Tag {
    Tag { name: name.into(), key: None }
}

/// A tag a condition is about to be put on.
#[derive(Debug, Clone)]
pub struct Tag {
    name: Arc<str>,
    key: Option<String>,
}

impl Tag {
    fn is(self, test: Test) -> Predicate {
        let test = match self.key {
            Some(key) => Test::Key(key, Box::new(test)),
            None => test,
        };
        Predicate::leaf(self.name, test)
    }

    /// What is under a key of a map; a key that is not there has no value.
    ///
    /// ```
    /// use weir_state::profile::tag;
    /// let adults = tag("attributes").key("age").ge(18);
    /// ```
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Tag {
        self.key = Some(key.into());
        self
    }

    /// The value is this text, number, truth value, day or moment, as the tag's type asks.
    pub fn eq(self, value: impl Into<TagValue>) -> Predicate {
        self.is_in([value])
    }

    /// There is a value and it is not this one.
    pub fn ne(self, value: impl Into<TagValue>) -> Predicate {
        self.not_in([value])
    }

    /// The value is one of these; of none of them, never.
    pub fn is_in<V: Into<TagValue>>(self, values: impl IntoIterator<Item = V>) -> Predicate {
        self.is(Test::In(values.into_iter().map(Into::into).collect()))
    }

    /// There is a value and it is none of these.
    pub fn not_in<V: Into<TagValue>>(self, values: impl IntoIterator<Item = V>) -> Predicate {
        self.is(Test::NotIn(values.into_iter().map(Into::into).collect()))
    }

    /// The set holds at least one of these; of none of them, never.
    pub fn has_any<V: Into<Element>>(self, values: impl IntoIterator<Item = V>) -> Predicate {
        self.is(Test::HasAny(values.into_iter().map(Into::into).collect()))
    }

    /// The set holds all of these; all of none of them, whenever there is a set.
    pub fn has_all<V: Into<Element>>(self, values: impl IntoIterator<Item = V>) -> Predicate {
        self.is(Test::HasAll(values.into_iter().map(Into::into).collect()))
    }

    /// There is a set and it holds none of these; of none of them, whenever there is a set.
    pub fn has_none<V: Into<Element>>(self, values: impl IntoIterator<Item = V>) -> Predicate {
        self.clone().exists().and(!self.has_any(values))
    }

    /// The set has from `least` to `most` elements, both included.
    pub fn size_between(self, least: u32, most: u32) -> Predicate {
        self.is(Test::Size(least, most))
    }

    /// The text begins with this, compared by bytes.
    pub fn starts_with(self, text: impl Into<String>) -> Predicate {
        self.is(Test::Prefix(text.into()))
    }

    /// There is a value, be it an empty set.
    pub fn exists(self) -> Predicate {
        self.is(Test::Exists)
    }

    /// The number is below this.
    pub fn lt(self, n: impl Into<TagValue>) -> Predicate {
        self.is(Test::Lt(n.into()))
    }

    /// The number is at most this.
    pub fn le(self, n: impl Into<TagValue>) -> Predicate {
        self.is(Test::Le(n.into()))
    }

    /// The number is above this.
    pub fn gt(self, n: impl Into<TagValue>) -> Predicate {
        self.is(Test::Gt(n.into()))
    }

    /// The number is at least this.
    pub fn ge(self, n: impl Into<TagValue>) -> Predicate {
        self.is(Test::Ge(n.into()))
    }

    /// The number is in this range, both ends included; in a range whose ends are crossed, never.
    pub fn between(self, low: impl Into<TagValue>, high: impl Into<TagValue>) -> Predicate {
        self.is(Test::Between(low.into(), high.into()))
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Test::Exists => f.write_str("is not null"),
            Test::In(v) => write!(f, "{} {}", if v.len() == 1 { "=" } else { "in" }, List(v)),
            Test::NotIn(v) => write!(f, "{} {}", if v.len() == 1 { "!=" } else { "not in" }, List(v)),
            Test::HasAny(v) => write!(f, "hasAny of {}", Elements(v)),
            Test::HasAll(v) => write!(f, "hasAll of {}", Elements(v)),
            Test::Prefix(text) => write!(f, "like '{text}%'"),
            Test::Size(a, b) => write!(f, "size between {a} and {b}"),
            Test::Lt(n) => write!(f, "< {n}"),
            Test::Le(n) => write!(f, "<= {n}"),
            Test::Gt(n) => write!(f, "> {n}"),
            Test::Ge(n) => write!(f, ">= {n}"),
            Test::Between(a, b) => write!(f, "between {a} and {b}"),
            Test::Key(key, test) => write!(f, "['{key}'] {test}"),
        }
    }
}

struct List<'a>(&'a [TagValue]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one] = self.0 else {
            let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
            return write!(f, "({})", all.join(", "));
        };
        one.fmt(f)
    }
}

struct Elements<'a>(&'a [Element]);

impl fmt::Display for Elements<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |e: &Element| match e.form {
            Form::Text | Form::JsonText => format!("'{}'", e.text),
            _ => e.text.clone(),
        };
        write!(f, "[{}]", self.0.iter().map(quoted).collect::<Vec<_>>().join(", "))
    }
}
