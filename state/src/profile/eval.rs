//! Makes a condition ready: tags become numbers once per query, values once per key group, postings once per chunk.
//! (over 400 lines: one condition on its way from names to what a chunk has)

use super::CHUNK_BITS;
use super::catalogue::Catalogue;
use super::chunk::{Chunk, GroupVersion, TagChunk};
use super::error::QueryError;
use super::fused::{Cond, MOST_COUNTED};
use super::locals::{WORDS, each_bit};
use super::map;
use super::number::{Listed, NumberIndex};
use super::predicate::{Node, Predicate, Test};
use super::scalar::{self, Place};
use super::update::{Element, Form, Shape, TagType, TagValue};
use super::user::UserId;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Deeper trees are refused, so that walking one cannot exhaust the stack.
pub(crate) const MAX_DEPTH: usize = 200;

/// A condition checked against the tags there are.
#[derive(Debug)]
pub(crate) struct Query<'p> {
    plan: Plan<'p, &'p str>,
}

/// A condition by tag number; values are texts (`V = &str`), or, bound to one key group, their numbers (`V = u32`).
#[derive(Debug)]
enum Plan<'p, V> {
    All,
    Nothing,
    Has(u32),
    AnyOf(u32, Vec<V>),
    AllOf(u32, Vec<V>),
    NoneOf(u32, Vec<V>),
    /// Becomes `AnyOf` when it is bound.
    Texts(u32, &'p Test),
    Size(u32, u32, u32),
    /// A test by keys of this type, and as it was written: a key group may keep a narrower type yet.
    Number(u32, TagType, Numbers, &'p Test),
    /// With their key groups, by key group. Becomes `Locals` when it is bound.
    Users(Vec<(u16, &'p UserId)>),
    /// Rising.
    Locals(Vec<u32>),
    And(Vec<Plan<'p, V>>),
    Or(Vec<Plan<'p, V>>),
    Not(Box<Plan<'p, V>>),
    AtLeast(usize, Vec<Plan<'p, V>>),
}

/// A test of a number's key. Lists rise; a clone shares them.
#[derive(Debug, Clone)]
enum Numbers {
    Within(i64, i64),
    In(Arc<[i64]>),
    NotIn(Arc<[i64]>),
}

impl<'p> Query<'p> {
    /// For a space of so many key groups.
    pub(crate) fn new(
        predicate: &'p Predicate,
        catalogue: &'p Catalogue,
        groups: usize,
    ) -> Result<Self, QueryError> {
        if predicate.depth > MAX_DEPTH {
            return Err(QueryError::TooLarge {
                what: "nesting depth",
                size: predicate.depth,
                limit: MAX_DEPTH,
            });
        }
        catalogue.measure(predicate)?;
        Ok(Self { plan: plan(predicate, catalogue, groups as u16)? })
    }

    /// Shows the matching users of key group `at` chunk by chunk, those without a match left out, until told to stop.
    pub(crate) fn chunks(
        &self,
        at: usize,
        group: &GroupVersion,
        mut each: impl FnMut(usize, &Found) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let bound = bind(&self.plan, at as u16, group);
        let mut found = Found { words: Box::new([0; WORDS]), len: 0 };
        for (i, chunk) in group.chunks.iter().enumerate() {
            let users = group.users_in(i);
            let cond = ready(&bound, i, chunk, users);
            if matches!(cond, Cond::Nobody) {
                continue;
            }
            cond.fill(users, &mut found.words);
            found.len = found.words.iter().map(|word| u64::from(word.count_ones())).sum();
            if found.len > 0 {
                each(i, &found)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Adds what each part of it comes to in key group `at`, alone: the whole first, each part before its own parts. Values are looked up once.
    pub(crate) fn tell(&self, at: usize, group: &GroupVersion, told: &mut [Told]) {
        tell(&self.plan, at as u16, group, &mut told.iter_mut());
    }

    /// How many users of key group `at` match.
    pub(crate) fn count(&self, at: usize, group: &GroupVersion) -> u64 {
        let bound = bind(&self.plan, at as u16, group);
        let counts = group.chunks.iter().enumerate().map(|(i, chunk)| {
            let users = group.users_in(i);
            u64::from(ready(&bound, i, chunk, users).count(users))
        });
        counts.sum()
    }
}

/// What a part of a condition comes to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    /// Who match it alone.
    pub(crate) users: u64,
    /// How long it took to look up and to count.
    pub(crate) took: Duration,
    /// What is read, of how many chunks.
    pub(crate) reads: BTreeMap<&'static str, u64>,
}

/// Binds a condition and tells of it and its parts; with how long the lookup took.
fn tell<'p, 't>(
    plan: &Plan<'p, &'p str>,
    at: u16,
    group: &GroupVersion,
    told: &mut std::slice::IterMut<'t, Told>,
) -> (Plan<'p, u32>, Duration) {
    let mut own = Told::default();
    let place = told.next().unwrap_or(&mut own);
    let mut looked_up = Duration::ZERO;
    let mut part = |plan: &Plan<'p, &'p str>| {
        let (bound, took) = tell(plan, at, group, told);
        looked_up += took;
        bound
    };
    let bound = match plan {
        Plan::And(parts) => Plan::And(parts.iter().map(part).collect()),
        Plan::Or(parts) => Plan::Or(parts.iter().map(part).collect()),
        Plan::AtLeast(needed, parts) => Plan::AtLeast(*needed, parts.iter().map(part).collect()),
        Plan::Not(inner) => Plan::Not(Box::new(part(inner))),
        leaf => {
            let began = Instant::now();
            let bound = bind(leaf, at, group);
            looked_up = began.elapsed();
            bound
        }
    };
    let began = Instant::now();
    for (i, chunk) in group.chunks.iter().enumerate() {
        let users = group.users_in(i);
        let cond = ready(&bound, i, chunk, users);
        *place.reads.entry(cond.reads()).or_default() += 1;
        place.users += u64::from(cond.count(users));
    }
    place.took += looked_up + began.elapsed();
    (bound, looked_up)
}

/// Who matches in one chunk.
#[derive(Debug)]
pub(crate) struct Found {
    words: Box<[u64; WORDS]>,
    pub(crate) len: u64,
}

impl Found {
    /// Their positions in the chunk, in order.
    pub(crate) fn locals(&self) -> impl Iterator<Item = u16> + '_ {
        each_bit(&self.words[..])
    }
}

fn plan<'p>(
    predicate: &'p Predicate,
    catalogue: &'p Catalogue,
    groups: u16,
) -> Result<Plan<'p, &'p str>, QueryError> {
    let many =
        |parts: &'p [Predicate]| parts.iter().map(|p| plan(p, catalogue, groups)).collect::<Result<_, _>>();
    Ok(match &predicate.node {
        Node::All => Plan::All,
        Node::And(parts) => Plan::And(many(parts)?),
        Node::Or(parts) => Plan::Or(many(parts)?),
        Node::Not(inner) => Plan::Not(Box::new(plan(inner, catalogue, groups)?)),
        Node::AtLeast(_, parts) if parts.len() > MOST_COUNTED => {
            let what = "conditions to be counted:";
            return Err(QueryError::TooLarge { what, size: parts.len(), limit: MOST_COUNTED });
        }
        Node::AtLeast(needed, parts) => Plan::AtLeast(*needed, many(parts)?),
        Node::Users(users) => {
            let of = |user: &'p UserId| (user.key_hash().group(groups).0, user);
            let mut users: Vec<(u16, &UserId)> = users.iter().map(of).collect();
            users.sort_unstable();
            users.dedup();
            Plan::Users(users)
        }
        // What a segment may come to was looked at when it was registered.
        Node::Segment(name) => {
            let defined = catalogue.segment(name).ok_or_else(|| catalogue.unknown_segment(name))?;
            Plan::And(vec![plan(defined, catalogue, groups)?])
        }
        Node::Leaf(tag, test) => {
            let (id, kind) = catalogue.find(tag).ok_or_else(|| catalogue.unknown_to_query(tag))?;
            leaf(id, kind, test).ok_or_else(|| QueryError::Mismatch {
                condition: test.to_string(),
                tag: tag.to_string(),
                is: kind,
                takes: takes(kind),
            })?
        }
    })
}

/// A leaf by tag number, or none if the test does not fit the type.
fn leaf<'p>(tag: u32, kind: TagType, test: &'p Test) -> Option<Plan<'p, &'p str>> {
    // Nothing in place of an element that no such set can hold.
    let element = |e: &'p Element| match (kind, e.form) {
        (TagType::Set, Form::Text | Form::JsonText) => Some(Some(e.text.as_str())),
        (TagType::IntSet, Form::Number | Form::JsonNumber) => Some(Some(e.text.as_str())),
        (_, Form::JsonText | Form::JsonNumber | Form::JsonOther) => Some(None),
        _ => None,
    };
    let elements = |list: &'p [Element]| list.iter().map(element).collect::<Option<Vec<_>>>();
    Some(match (kind.shape(), test) {
        (_, Test::Exists) => Plan::Has(tag),
        (Shape::Text, Test::In(list)) => Plan::AnyOf(tag, texts(list)?),
        (Shape::Text, Test::NotIn(list)) => Plan::NoneOf(tag, texts(list)?),
        (Shape::Text, Test::Prefix(_)) => Plan::Texts(tag, test),
        (Shape::Text, Test::Lt(b) | Test::Le(b) | Test::Gt(b) | Test::Ge(b)) => {
            b.as_text()?;
            Plan::Texts(tag, test)
        }
        (Shape::Text, Test::Between(low, high)) => {
            low.as_text().and(high.as_text())?;
            Plan::Texts(tag, test)
        }
        (Shape::Set, Test::Size(low, high)) => Plan::Size(tag, *low, *high),
        (Shape::Set, Test::Key(_, inner)) if kind == TagType::Map && map::can_test(inner) => {
            Plan::Texts(tag, test)
        }
        (Shape::Set, _) if kind == TagType::Map => return None,
        (Shape::Set, Test::HasAny(list)) => Plan::AnyOf(tag, elements(list)?.into_iter().flatten().collect()),
        (Shape::Set, Test::HasAll(list)) if list.is_empty() => Plan::Has(tag),
        (Shape::Set, Test::HasAll(list)) => match elements(list)?.into_iter().collect() {
            Some(all) => Plan::AllOf(tag, all),
            None => Plan::AnyOf(tag, Vec::new()),
        },
        (Shape::Number, test) => Plan::Number(tag, kind, numbers_of(kind, test)?, test),
        _ => return None,
    })
}

/// Whether a type takes a test.
pub(crate) fn fits(kind: TagType, test: &Test) -> bool {
    leaf(0, kind, test).is_some()
}

fn texts(list: &[TagValue]) -> Option<Vec<&str>> {
    list.iter().map(TagValue::as_text).collect()
}

/// Whether a test of texts holds, by bytes.
fn holds(test: &Test, text: &str) -> bool {
    let bound =
        |bound: &TagValue, fits: fn(&str, &str) -> bool| bound.as_text().is_some_and(|b| fits(text, b));
    match test {
        Test::Prefix(prefix) => text.starts_with(prefix.as_str()),
        Test::Lt(b) => bound(b, |text, b| text < b),
        Test::Le(b) => bound(b, |text, b| text <= b),
        Test::Gt(b) => bound(b, |text, b| text > b),
        Test::Ge(b) => bound(b, |text, b| text >= b),
        Test::Key(key, test) => map::holds(text, key, test),
        Test::Between(low, high) => bound(low, |text, b| text >= b) && bound(high, |text, b| text <= b),
        _ => false,
    }
}

/// The keys that a test holds for.
fn numbers_of(kind: TagType, test: &Test) -> Option<Numbers> {
    let top = scalar::top(kind);
    // Keys from here on are above the bound, or at it; keys up to here are below it, or at it. Nothing: none are.
    let from = |bound: &TagValue, at: bool| {
        Some(match scalar::place(kind, bound)? {
            Place::Unordered => None,
            Place::Below => Some(i64::MIN),
            Place::At(key, exact) if exact && at => Some(key),
            Place::At(key, _) => key.checked_add(1),
        })
    };
    let to = |bound: &TagValue, at: bool| {
        Some(match scalar::place(kind, bound)? {
            Place::Unordered | Place::Below => None,
            Place::At(key, exact) if exact && !at => key.checked_sub(1),
            Place::At(key, _) => Some(key),
        })
    };
    let within = |from: Option<i64>, to: Option<i64>| match (from, to) {
        (Some(from), Some(to)) => Numbers::Within(from, to.min(top)),
        _ => Numbers::In([].into()),
    };
    Some(match test {
        Test::In(list) => Numbers::In(keys(kind, list)?),
        Test::NotIn(list) => Numbers::NotIn(keys(kind, list)?),
        Test::Lt(bound) => within(Some(i64::MIN), to(bound, false)?),
        Test::Le(bound) => within(Some(i64::MIN), to(bound, true)?),
        Test::Gt(bound) => within(from(bound, false)?, Some(i64::MAX)),
        Test::Ge(bound) => within(from(bound, true)?, Some(i64::MAX)),
        Test::Between(low, high) => within(from(low, true)?, to(high, true)?),
        _ => return None,
    })
}

/// The keys of the values of a list that the kind has at all, rising.
fn keys(kind: TagType, list: &[TagValue]) -> Option<Arc<[i64]>> {
    let mut keys = Vec::with_capacity(list.len());
    for value in list {
        if let Place::At(key, true) = scalar::place(kind, value)? {
            keys.push(key);
        }
    }
    keys.sort_unstable();
    keys.dedup();
    Some(keys.into())
}

/// What conditions a type takes, for messages.
pub(crate) fn takes(kind: TagType) -> &'static str {
    match kind {
        TagType::Enum => {
            "=, !=, <, <=, >, >=, between, in, not in and like 'prefix%' with texts in single quotes, and is (not) null"
        }
        TagType::Set => "hasAny, hasAll with texts in single quotes, length, and is (not) null",
        TagType::IntSet => "hasAny, hasAll with whole numbers, length, and is (not) null",
        TagType::Map => "tag['key'] compared as the value is, mapContains, length, and is (not) null",
        TagType::Int | TagType::UInt | TagType::Float | TagType::Decimal(_) => {
            "=, !=, <, <=, >, >=, between, in, not in with numbers, and is (not) null"
        }
        TagType::Bool => "= and != with true or false, and is (not) null",
        TagType::Date => {
            "=, !=, <, <=, >, >=, between, in, not in with dates ('2026-11-30'), and is (not) null"
        }
        TagType::Timestamp => {
            "=, !=, <, <=, >, >=, between, in, not in with moments ('2026-11-30 12:00:00', UTC) or ms since the \
             epoch, and is (not) null"
        }
    }
}

/// Looks values up in one key group; a value nobody there ever had matches nobody.
fn bind<'p>(plan: &Plan<'p, &'p str>, at: u16, group: &GroupVersion) -> Plan<'p, u32> {
    let known = |tag: u32, list: &[&str]| {
        let mut known: Vec<u32> = list.iter().filter_map(|v| group.value(tag, v)).collect();
        // Each once: what is counted apart must be apart.
        known.sort_unstable();
        known.dedup();
        known
    };
    let many = |parts: &[Plan<'p, &'p str>]| parts.iter().map(|p| bind(p, at, group)).collect();
    match plan {
        Plan::All => Plan::All,
        Plan::Nothing => Plan::Nothing,
        Plan::Has(tag) => Plan::Has(*tag),
        Plan::AnyOf(tag, list) => Plan::AnyOf(*tag, known(*tag, list)),
        Plan::NoneOf(tag, list) => Plan::NoneOf(*tag, known(*tag, list)),
        Plan::AllOf(tag, list) => {
            let all = list.iter().all(|v| group.value(*tag, v).is_some());
            if all { Plan::AllOf(*tag, known(*tag, list)) } else { Plan::Nothing }
        }
        Plan::Texts(tag, test) => Plan::AnyOf(*tag, group.values_where(*tag, |text| holds(test, text))),
        Plan::Size(tag, low, high) => Plan::Size(*tag, *low, *high),
        Plan::Number(tag, kind, test, written) => {
            let test = match group.kind(*tag) {
                Some(is) if is != *kind => numbers_of(is, written).unwrap_or(Numbers::In([].into())),
                _ => test.clone(),
            };
            Plan::Number(*tag, *kind, test, written)
        }
        Plan::Users(users) => {
            let here = &users[users.partition_point(|(of, _)| *of < at)..];
            let here = here.iter().take_while(|(of, _)| *of == at).map(|(_, user)| *user);
            // The dictionary may know users newer than this version.
            let known = here.filter_map(|user| group.dict.number(user)).filter(|l| *l < group.users);
            let mut locals: Vec<u32> = known.collect();
            locals.sort_unstable();
            locals.dedup();
            Plan::Locals(locals)
        }
        Plan::Locals(locals) => Plan::Locals(locals.clone()),
        Plan::AtLeast(needed, parts) => Plan::AtLeast(*needed, many(parts)),
        Plan::And(parts) => Plan::And(many(parts)),
        Plan::Or(parts) => Plan::Or(many(parts)),
        Plan::Not(inner) => Plan::Not(Box::new(bind(inner, at, group))),
    }
}

/// Finds what a condition needs of one chunk.
fn ready<'g>(plan: &'g Plan<'_, u32>, at: usize, chunk: &'g Chunk, users: u32) -> Cond<'g> {
    let has = |tag: u32| Cond::one(chunk.tag(tag).map(|c| c.has().view()), users);
    let any = |tag: u32, values: &[u32]| {
        let Some(tag) = chunk.tag(tag) else { return Cond::Nobody };
        let postings = values.iter().filter_map(|v| tag.posting(*v)).collect();
        Cond::any(postings, matches!(tag, TagChunk::Enum { .. }), users)
    };
    let many = |parts: &'g [Plan<'_, u32>]| parts.iter().map(|p| ready(p, at, chunk, users)).collect();
    match plan {
        Plan::All => Cond::Everybody,
        Plan::Nothing => Cond::Nobody,
        Plan::Has(tag) => has(*tag),
        Plan::AnyOf(tag, values) => any(*tag, values),
        Plan::AllOf(tag, values) => {
            let one = |value: &u32| Cond::one(chunk.tag(*tag).and_then(|c| c.posting(*value)), users);
            Cond::all(values.iter().map(one).collect(), users)
        }
        Plan::NoneOf(tag, values) => Cond::all(vec![has(*tag), any(*tag, values).not()], users),
        Plan::Number(tag, _, test, _) => match chunk.tag(*tag) {
            Some(tag) => numbers(tag, test, users),
            None => Cond::Nobody,
        },
        Plan::Size(tag, low, high) => match chunk.tag(*tag) {
            Some(TagChunk::Set { forward, .. }) if low <= high => Cond::Sized(forward, *low, *high),
            _ => Cond::Nobody,
        },
        Plan::Locals(locals) => {
            let first = (at as u32) << CHUNK_BITS;
            let from = locals.partition_point(|l| *l < first);
            let here = locals[from..].iter().map(|l| l - first).take_while(|l| *l < users);
            let here: Vec<u16> = here.map(|l| l as u16).collect();
            if here.is_empty() { Cond::Nobody } else { Cond::Users(here) }
        }
        // Both are replaced when they are bound.
        Plan::Texts(..) | Plan::Users(_) => Cond::Nobody,
        Plan::And(parts) => Cond::all(many(parts), users),
        Plan::Or(parts) => Cond::either(many(parts), users),
        Plan::Not(inner) => ready(inner, at, chunk, users).not(),
        Plan::AtLeast(needed, parts) => Cond::AtLeast(*needed, many(parts)),
    }
}

fn numbers<'g>(tag: &'g TagChunk, test: &'g Numbers, users: u32) -> Cond<'g> {
    let TagChunk::Int { has, by_number, forward } = tag else { return Cond::Nobody };
    let within = |low: i64, high: i64| {
        if low > high {
            return Cond::Nobody;
        }
        if (low, high) == (i64::MIN, i64::MAX) {
            return Cond::one(Some(has.view()), users);
        }
        match by_number {
            NumberIndex::Bins(bins) => Cond::Numbers(bins, forward, bins.range(low, high)),
            few => Cond::any(few.few(low, high).into_iter().flatten().map(|f| f.1).collect(), true, users),
        }
    };
    let listed = |list: &'g [i64]| match (list, by_number) {
        ([one], _) => within(*one, *one),
        ([], _) => Cond::Nobody,
        (list, NumberIndex::Bins(bins)) => Cond::Listed(bins, forward, Listed::new(bins, list)),
        (list, few) => {
            let all = few.few(i64::MIN, i64::MAX).into_iter().flatten();
            let held = all.filter(|(number, _)| list.binary_search(number).is_ok());
            Cond::any(held.map(|f| f.1).collect(), true, users)
        }
    };
    match test {
        Numbers::Within(low, high) => within(*low, *high),
        Numbers::In(list) => listed(list),
        Numbers::NotIn(list) => {
            Cond::all(vec![Cond::one(Some(has.view()), users), listed(list).not()], users)
        }
    }
}
