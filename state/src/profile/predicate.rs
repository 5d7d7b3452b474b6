//! Conditions on users, built as values: leaves on one tag, combined by and, or, not.

use super::update::TagValue;
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
    Leaf(Arc<str>, Test),
}

/// A test of one tag's value. None of them holds for a user without a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Test {
    Exists,
    In(Vec<TagValue>),
    NotIn(Vec<TagValue>),
    HasAny(Vec<String>),
    HasAll(Vec<String>),
    Lt(i64),
    Le(i64),
    Gt(i64),
    Ge(i64),
    Between(i64, i64),
}

impl Predicate {
    /// Matches every user of the space.
    pub fn all() -> Self {
        Self { node: Node::All, depth: 1 }
    }

    pub(crate) fn leaf(tag: Arc<str>, test: Test) -> Self {
        Self { node: Node::Leaf(tag, test), depth: 1 }
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
    Tag { name: name.into() }
}

/// A tag a condition is about to be put on.
#[derive(Debug, Clone)]
pub struct Tag {
    name: Arc<str>,
}

impl Tag {
    fn is(self, test: Test) -> Predicate {
        Predicate::leaf(self.name, test)
    }

    /// The value is this text (enum) or number (int).
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
    pub fn has_any<V: Into<String>>(self, values: impl IntoIterator<Item = V>) -> Predicate {
        self.is(Test::HasAny(values.into_iter().map(Into::into).collect()))
    }

    /// The set holds all of these; all of none of them, whenever there is a set.
    pub fn has_all<V: Into<String>>(self, values: impl IntoIterator<Item = V>) -> Predicate {
        self.is(Test::HasAll(values.into_iter().map(Into::into).collect()))
    }

    /// There is a value, be it an empty set.
    pub fn exists(self) -> Predicate {
        self.is(Test::Exists)
    }

    /// The number is below this.
    pub fn lt(self, n: i64) -> Predicate {
        self.is(Test::Lt(n))
    }

    /// The number is at most this.
    pub fn le(self, n: i64) -> Predicate {
        self.is(Test::Le(n))
    }

    /// The number is above this.
    pub fn gt(self, n: i64) -> Predicate {
        self.is(Test::Gt(n))
    }

    /// The number is at least this.
    pub fn ge(self, n: i64) -> Predicate {
        self.is(Test::Ge(n))
    }

    /// The number is in this range, both ends included; in a range whose ends are crossed, never.
    pub fn between(self, low: i64, high: i64) -> Predicate {
        self.is(Test::Between(low, high))
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Test::Exists => f.write_str("is not null"),
            Test::In(v) => write!(f, "{} {}", if v.len() == 1 { "=" } else { "in" }, List(v)),
            Test::NotIn(v) => write!(f, "{} {}", if v.len() == 1 { "!=" } else { "not in" }, List(v)),
            Test::HasAny(v) => write!(f, "hasAny of {v:?}"),
            Test::HasAll(v) => write!(f, "hasAll of {v:?}"),
            Test::Lt(n) => write!(f, "< {n}"),
            Test::Le(n) => write!(f, "<= {n}"),
            Test::Gt(n) => write!(f, "> {n}"),
            Test::Ge(n) => write!(f, ">= {n}"),
            Test::Between(a, b) => write!(f, "between {a} and {b}"),
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
