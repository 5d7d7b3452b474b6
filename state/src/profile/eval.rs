//! Evaluates a condition chunk by chunk: names become numbers once per query and group, then bitmaps are combined.

use super::PAGE;
use super::catalogue::Catalogue;
use super::chunk::{Chunk, GroupVersion, TagChunk};
use super::error::QueryError;
use super::predicate::{Node, Predicate, Test};
use super::update::{TagType, TagValue};
use roaring::{MultiOps, RoaringBitmap};
use std::borrow::Cow;

/// Deeper trees are refused, so that walking one cannot exhaust the stack.
const MAX_DEPTH: usize = 200;

/// Below this many candidates they are looked up one by one instead of scanning an int column.
const FEW: u64 = 2048;

/// A condition checked against the tags there are.
#[derive(Debug)]
pub(crate) struct Query<'p> {
    plan: Plan<&'p str>,
}

/// A condition by tag number; values are texts (`V = &str`), or, bound to one key group, their numbers (`V = u32`).
#[derive(Debug)]
enum Plan<V> {
    All,
    Nothing,
    Has(u32),
    AnyOf(u32, Vec<V>),
    AllOf(u32, Vec<V>),
    NoneOf(u32, Vec<V>),
    Number(u32, Numbers),
    And(Vec<Plan<V>>),
    Or(Vec<Plan<V>>),
    Not(Box<Plan<V>>),
}

/// A test of an integer. Lists are sorted.
#[derive(Debug, Clone)]
enum Numbers {
    Within(i64, i64),
    In(Vec<i64>),
    NotIn(Vec<i64>),
}

impl Numbers {
    #[inline]
    fn holds(&self, n: i64) -> bool {
        match self {
            Numbers::Within(low, high) => *low <= n && n <= *high,
            Numbers::In(list) => list.binary_search(&n).is_ok(),
            Numbers::NotIn(list) => list.binary_search(&n).is_err(),
        }
    }
}

impl<'p> Query<'p> {
    pub(crate) fn new(predicate: &'p Predicate, catalogue: &Catalogue) -> Result<Self, QueryError> {
        if predicate.depth > MAX_DEPTH {
            return Err(QueryError::TooLarge {
                what: "nesting depth",
                size: predicate.depth,
                limit: MAX_DEPTH,
            });
        }
        Ok(Self { plan: plan(predicate, catalogue)? })
    }

    /// The matching users of a group, chunk by chunk, chunks without a match left out.
    pub(crate) fn chunks<'g>(
        &self,
        group: &'g GroupVersion,
    ) -> impl Iterator<Item = (usize, Cow<'g, RoaringBitmap>)> {
        let bound = bind(&self.plan, group);
        let chunks = group.chunks.iter().enumerate();
        chunks.filter_map(move |(i, chunk)| {
            let found = evaluate(&bound, &View { chunk, users: group.users_in(i) });
            (!found.is_empty()).then_some((i, found))
        })
    }

    pub(crate) fn count(&self, group: &GroupVersion) -> u64 {
        self.chunks(group).map(|(_, found)| found.len()).sum()
    }
}

fn plan<'p>(predicate: &'p Predicate, catalogue: &Catalogue) -> Result<Plan<&'p str>, QueryError> {
    let many = |parts: &'p [Predicate]| parts.iter().map(|p| plan(p, catalogue)).collect::<Result<_, _>>();
    Ok(match &predicate.node {
        Node::All => Plan::All,
        Node::And(parts) => Plan::And(many(parts)?),
        Node::Or(parts) => Plan::Or(many(parts)?),
        Node::Not(inner) => Plan::Not(Box::new(plan(inner, catalogue)?)),
        Node::Leaf(tag, test) => {
            let (id, kind) = catalogue.find(tag).ok_or_else(|| catalogue.unknown_to_query(tag))?;
            leaf(id, kind, test).ok_or_else(|| QueryError::Mismatch {
                condition: test.to_string(),
                tag: tag.to_string(),
                is: kind,
                takes: match kind {
                    TagType::Enum => "=, !=, in, not in with texts in single quotes, and is (not) null",
                    TagType::Set => "hasAny, hasAll with texts in single quotes, and is (not) null",
                    TagType::Int => {
                        "=, !=, <, <=, >, >=, between, in, not in with whole numbers, and is (not) null"
                    }
                },
            })?
        }
    })
}

/// A leaf by tag number, or none if the test does not fit the type.
fn leaf(tag: u32, kind: TagType, test: &Test) -> Option<Plan<&str>> {
    Some(match (kind, test) {
        (_, Test::Exists) => Plan::Has(tag),
        (TagType::Enum, Test::In(list)) => Plan::AnyOf(tag, texts(list)?),
        (TagType::Enum, Test::NotIn(list)) => Plan::NoneOf(tag, texts(list)?),
        (TagType::Set, Test::HasAny(list)) => Plan::AnyOf(tag, list.iter().map(String::as_str).collect()),
        (TagType::Set, Test::HasAll(list)) if list.is_empty() => Plan::Has(tag),
        (TagType::Set, Test::HasAll(list)) => Plan::AllOf(tag, list.iter().map(String::as_str).collect()),
        (TagType::Int, test) => Plan::Number(
            tag,
            match test {
                Test::In(list) => Numbers::In(integers(list)?),
                Test::NotIn(list) => Numbers::NotIn(integers(list)?),
                // A bound beyond the range of i64 holds for nothing.
                Test::Lt(n) => {
                    n.checked_sub(1).map_or(Numbers::In(Vec::new()), |n| Numbers::Within(i64::MIN, n))
                }
                Test::Le(n) => Numbers::Within(i64::MIN, *n),
                Test::Gt(n) => {
                    n.checked_add(1).map_or(Numbers::In(Vec::new()), |n| Numbers::Within(n, i64::MAX))
                }
                Test::Ge(n) => Numbers::Within(*n, i64::MAX),
                Test::Between(low, high) => Numbers::Within(*low, *high),
                _ => return None,
            },
        ),
        _ => return None,
    })
}

fn texts(list: &[TagValue]) -> Option<Vec<&str>> {
    list.iter().map(TagValue::as_text).collect()
}

fn integers(list: &[TagValue]) -> Option<Vec<i64>> {
    let mut all: Vec<i64> = list.iter().map(TagValue::as_int).collect::<Option<_>>()?;
    all.sort_unstable();
    Some(all)
}

/// Looks values up in one key group; a value nobody there ever had matches nobody.
fn bind(plan: &Plan<&str>, group: &GroupVersion) -> Plan<u32> {
    let known =
        |tag: u32, list: &[&str]| list.iter().filter_map(|v| group.value(tag, v)).collect::<Vec<u32>>();
    let many = |parts: &[Plan<&str>]| parts.iter().map(|p| bind(p, group)).collect();
    match plan {
        Plan::All => Plan::All,
        Plan::Nothing => Plan::Nothing,
        Plan::Has(tag) => Plan::Has(*tag),
        Plan::AnyOf(tag, list) => Plan::AnyOf(*tag, known(*tag, list)),
        Plan::NoneOf(tag, list) => Plan::NoneOf(*tag, known(*tag, list)),
        Plan::AllOf(tag, list) => {
            let found = known(*tag, list);
            if found.len() == list.len() { Plan::AllOf(*tag, found) } else { Plan::Nothing }
        }
        Plan::Number(tag, test) => Plan::Number(*tag, test.clone()),
        Plan::And(parts) => Plan::And(many(parts)),
        Plan::Or(parts) => Plan::Or(many(parts)),
        Plan::Not(inner) => Plan::Not(Box::new(bind(inner, group))),
    }
}

/// A chunk and how many users it has.
struct View<'g> {
    chunk: &'g Chunk,
    users: u32,
}

type Found<'g> = Cow<'g, RoaringBitmap>;

fn evaluate<'g>(plan: &Plan<u32>, view: &View<'g>) -> Found<'g> {
    let postings = |tag: u32, values: &[u32]| -> Vec<Found<'g>> {
        let chunk = view.chunk.tag(tag);
        values.iter().filter_map(|&v| Some(chunk?.posting(v)?.bitmap())).collect()
    };
    match plan {
        Plan::All => {
            let mut all = RoaringBitmap::new();
            all.insert_range(0..view.users);
            Cow::Owned(all)
        }
        Plan::Nothing => Cow::Owned(RoaringBitmap::new()),
        Plan::Has(tag) => view.chunk.tag(*tag).map_or_else(Cow::default, |c| Cow::Borrowed(c.has())),
        Plan::AnyOf(tag, values) => union(postings(*tag, values)),
        Plan::AllOf(tag, values) => {
            let found = postings(*tag, values);
            if found.len() < values.len() { Cow::default() } else { intersection(found) }
        }
        Plan::NoneOf(tag, values) => match view.chunk.tag(*tag) {
            Some(c) => Cow::Owned(c.has() - &*union(postings(*tag, values))),
            None => Cow::default(),
        },
        Plan::Number(tag, test) => {
            view.chunk.tag(*tag).map_or_else(Cow::default, |c| Cow::Owned(scan(c, test)))
        }
        Plan::Or(parts) => union(parts.iter().map(|p| evaluate(p, view)).collect()),
        Plan::And(parts) => all_of(parts, view),
        Plan::Not(inner) => {
            let inner = evaluate(inner, view);
            let mut all = evaluate(&Plan::All, view).into_owned();
            all -= &*inner;
            Cow::Owned(all)
        }
    }
}

/// Cheapest first: bitmaps that are there, smallest first; then nested conditions; then integers, of the candidates left
/// if they are few; then what is taken away.
fn all_of<'g>(parts: &[Plan<u32>], view: &View<'g>) -> Found<'g> {
    let class = |p: &Plan<u32>| match p {
        Plan::And(_) | Plan::Or(_) => 1,
        Plan::Number(..) => 2,
        Plan::Not(_) => 3,
        _ => 0,
    };
    let mut ready: Vec<Found<'g>> = Vec::new();
    for part in parts.iter().filter(|p| class(p) == 0 && !matches!(p, Plan::All)) {
        let found = evaluate(part, view);
        if found.is_empty() {
            return Cow::default();
        }
        ready.push(found);
    }
    ready.sort_by_key(|f| f.len());
    let mut left: Option<Found<'g>> = None;
    for found in ready {
        left = Some(narrow(left, found));
    }
    for part in (1..=3).flat_map(|c| parts.iter().filter(move |p| class(p) == c)) {
        if left.as_ref().is_some_and(|l| l.is_empty()) {
            break;
        }
        left = Some(match (part, left) {
            (Plan::Number(tag, test), Some(few)) if few.len() < FEW => {
                let chunk = view.chunk.tag(*tag);
                let holds =
                    |l: &u32| chunk.and_then(|c| c.int_value(*l as u16)).is_some_and(|n| test.holds(n));
                Cow::Owned(few.iter().filter(holds).collect())
            }
            (Plan::Not(inner), Some(from)) => {
                let mut from = from.into_owned();
                from -= &*evaluate(inner, view);
                Cow::Owned(from)
            }
            (part, left) => narrow(left, evaluate(part, view)),
        });
    }
    left.unwrap_or_else(|| evaluate(&Plan::All, view))
}

fn narrow<'g>(left: Option<Found<'g>>, found: Found<'g>) -> Found<'g> {
    match left {
        None => found,
        Some(Cow::Owned(mut left)) => {
            left &= &*found;
            Cow::Owned(left)
        }
        Some(Cow::Borrowed(left)) => Cow::Owned(left & &*found),
    }
}

fn union(mut found: Vec<Found<'_>>) -> Found<'_> {
    match found.len() {
        0 | 1 => found.pop().unwrap_or_default(),
        _ => Cow::Owned(found.iter().map(|f| &**f).union()),
    }
}

fn intersection(mut found: Vec<Found<'_>>) -> Found<'_> {
    found.sort_by_key(|f| f.len());
    found.into_iter().fold(None, |left, f| Some(narrow(left, f))).unwrap_or_default()
}

/// Tests every integer of a chunk, a word of users at a time.
fn scan(tag: &TagChunk, test: &Numbers) -> RoaringBitmap {
    let TagChunk::Int { forward, .. } = tag else { return RoaringBitmap::new() };
    let mut bytes = Vec::new();
    for (first, page) in forward.pages() {
        bytes.resize(first / 8, 0u8);
        for (word, values) in page.values.chunks_exact(64).enumerate() {
            let mut bits = 0u64;
            match test {
                Numbers::Within(low, high) => {
                    for (i, n) in values.iter().enumerate() {
                        bits |= u64::from((low <= n) & (n <= high)) << i;
                    }
                }
                _ => {
                    for (i, n) in values.iter().enumerate() {
                        bits |= u64::from(test.holds(*n)) << i;
                    }
                }
            }
            bytes.extend_from_slice(&(bits & page.has[word]).to_le_bytes());
        }
        debug_assert_eq!(bytes.len() * 8, first + PAGE);
    }
    RoaringBitmap::from_lsb0_bytes(0, &bytes)
}
