//! Random updates and conditions against a row scan, with the key groups dealt to one, two and seven writers.

use super::super::*;
use crate::key::{KEY_GROUPS, key_groups_of};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const ENUMS: [&str; 2] = ["city", "last"];
pub(super) const SETS: [&str; 2] = ["cats", "lists"];
pub(super) const INTS: [&str; 2] = ["buys", "age"];

pub(super) fn space() -> Profiles {
    Profiles::named("model")
        .enum_tag("city")
        .enum_tag("last")
        .set_tag("cats")
        .set_tag("lists")
        .int_tag("buys")
        .int_tag("age")
}

/// Applies updates through `parallelism` writers, publishing now and then, and gives the space.
pub(super) fn run(updates: &[ProfileUpdate], parallelism: usize) -> Profiles {
    let profiles = space();
    let mut writers: Vec<Writer> = (0..parallelism)
        .map(|s| profiles.writer(key_groups_of(s, parallelism, KEY_GROUPS), 1).unwrap())
        .collect();
    for (i, update) in updates.iter().enumerate() {
        let group = update.user.key_hash().group(KEY_GROUPS);
        let writer = &mut writers[group.subtask(KEY_GROUPS, parallelism)];
        // Overflowing updates are refused whole, by the model too.
        let _ = writer.apply(update.clone());
        if i % 17 == 0 {
            writer.publish(i as i64);
        }
    }
    writers.into_iter().for_each(|w| w.finish(1_000));
    profiles
}

/// The plainest reading of the rules: what every user has after all updates.
struct Rows(BTreeMap<UserId, BTreeMap<String, TagValue>>);

/// What is kept per user: registers and numbers with their stamp, and all that was ever said of a set.
#[derive(Default, Clone)]
struct Row {
    registers: BTreeMap<String, (i64, Option<TagValue>)>,
    numbers: BTreeMap<String, (i64, Option<i64>)>,
    sets: BTreeMap<String, Vec<(i64, Delta)>>,
}

impl Rows {
    fn of(updates: &[ProfileUpdate]) -> Self {
        let mut rows: BTreeMap<UserId, Row> = BTreeMap::new();
        for u in updates {
            let mut row = rows.get(&u.user).cloned().unwrap_or_default();
            if u.deltas.iter().all(|d| row.apply(&d.tag, &d.delta, u.time.unwrap())) {
                rows.insert(u.user.clone(), row);
            }
        }
        Rows(rows.into_iter().map(|(user, row)| (user, row.values())).collect())
    }
}

impl Row {
    fn apply(&mut self, tag: &str, delta: &Delta, time: i64) -> bool {
        if ENUMS.contains(&tag) {
            let new = match delta {
                Delta::Set(v) => (time, Some(v.clone())),
                _ => (time, None),
            };
            let old = self.registers.entry(tag.to_owned()).or_insert((i64::MIN, None));
            *old = new.max(old.clone());
        } else if SETS.contains(&tag) {
            self.sets.entry(tag.to_owned()).or_default().push((time, delta.clone()));
        } else {
            let (stamp, value) = self.numbers.entry(tag.to_owned()).or_insert((i64::MIN, None));
            let register = |v: Option<i64>| (time, v).max((*stamp, *value));
            let new = match delta {
                Delta::Set(TagValue::Int(n)) => register(Some(*n)),
                Delta::Unset => register(None),
                _ if time < *stamp => (*stamp, *value),
                Delta::Increment(by) => match value.unwrap_or(0).checked_add(by.as_int().unwrap()) {
                    Some(n) => (*stamp, Some(n)),
                    None => return false,
                },
                Delta::Max(n) => (*stamp, (*value).max(n.as_int())),
                Delta::Min(n) => (*stamp, Some(value.unwrap_or(i64::MAX).min(n.as_int().unwrap()))),
                other => panic!("{other:?} on an int tag"),
            };
            (*stamp, *value) = new;
        }
        true
    }

    fn values(self) -> BTreeMap<String, TagValue> {
        let mut all = BTreeMap::new();
        all.extend(self.registers.into_iter().filter_map(|(t, (_, v))| Some((t, v?))));
        all.extend(self.numbers.into_iter().filter_map(|(t, (_, v))| Some((t, TagValue::Int(v?)))));
        for (tag, log) in self.sets {
            let cleared = |d: &Delta| matches!(d, Delta::Unset | Delta::Set(_));
            let clear = log.iter().filter(|(_, d)| cleared(d)).map(|(t, _)| *t).max().unwrap_or(i64::MIN);
            let touch = log.iter().filter(|(_, d)| *d != Delta::Unset).map(|(t, _)| *t).max();
            // (element, time, added): the greatest (time, added) of an element decides.
            let mut elements: BTreeMap<String, (i64, bool)> = BTreeMap::new();
            let mut saw = |v: &String, t, add| {
                let e = elements.entry(v.clone()).or_insert((i64::MIN, false));
                *e = (*e).max((t, add));
            };
            for (t, d) in &log {
                match d {
                    Delta::Add(v) => saw(v, *t, true),
                    Delta::Remove(v) => saw(v, *t, false),
                    Delta::Set(TagValue::Set(all)) => all.iter().for_each(|v| saw(v, *t, true)),
                    _ => {}
                }
            }
            if touch.is_some_and(|t| t >= clear) {
                let held = elements.into_iter().filter(|(_, (t, add))| *add && *t >= clear);
                all.insert(tag, TagValue::Set(held.map(|(v, _)| v).collect()));
            }
        }
        all
    }
}

/// A condition as data, so that the scan does not read the builder's result.
#[derive(Debug, Clone)]
pub(super) enum Cond {
    All,
    In(usize, Vec<&'static str>, bool),
    Any(usize, Vec<&'static str>),
    Every(usize, Vec<&'static str>),
    Num(usize, u8, i64, i64),
    Exists(&'static str),
    Prefix(usize, &'static str),
    Size(usize, u32, u32),
    Users(Vec<UserId>),
    AtLeast(usize, Vec<Cond>),
    And(Vec<Cond>),
    Or(Vec<Cond>),
    Not(Box<Cond>),
}

impl Cond {
    pub(super) fn predicate(&self) -> Predicate {
        match self {
            Cond::All => Predicate::all(),
            Cond::In(t, v, true) => tag(ENUMS[*t]).is_in(v.iter().copied()),
            Cond::In(t, v, false) => tag(ENUMS[*t]).not_in(v.iter().copied()),
            Cond::Any(t, v) => tag(SETS[*t]).has_any(v.iter().copied()),
            Cond::Every(t, v) => tag(SETS[*t]).has_all(v.iter().copied()),
            Cond::Num(t, op, a, b) => {
                let t = tag(INTS[*t]);
                match op {
                    0 => t.eq(*a),
                    1 => t.ne(*a),
                    2 => t.lt(*a),
                    3 => t.le(*a),
                    4 => t.gt(*a),
                    5 => t.ge(*a),
                    6 => t.between(*a, *b),
                    7 => t.is_in([*a, *b]),
                    _ => t.not_in([*b, *a]),
                }
            }
            Cond::Exists(t) => tag(*t).exists(),
            Cond::Prefix(t, text) => tag(ENUMS[*t]).starts_with(*text),
            Cond::Size(t, low, high) => tag(SETS[*t]).size_between(*low, *high),
            Cond::Users(users) => Predicate::users(users.iter().cloned()),
            Cond::AtLeast(n, of) => Predicate::at_least(*n, of.iter().map(Cond::predicate)),
            Cond::And(all) => all.iter().map(Cond::predicate).reduce(Predicate::and).unwrap(),
            Cond::Or(any) => any.iter().map(Cond::predicate).reduce(Predicate::or).unwrap(),
            Cond::Not(c) => !c.predicate(),
        }
    }

    fn holds(&self, user: &UserId, row: &BTreeMap<String, TagValue>) -> bool {
        let set = |t: usize| match row.get(SETS[t]) {
            Some(TagValue::Set(s)) => Some(s),
            _ => None,
        };
        match self {
            Cond::All => true,
            Cond::In(t, v, want) => {
                row.get(ENUMS[*t]).is_some_and(|x| v.iter().any(|v| *x == TagValue::from(*v)) == *want)
            }
            Cond::Any(t, v) => set(*t).is_some_and(|s| v.iter().any(|v| s.contains(*v))),
            Cond::Every(t, v) => set(*t).is_some_and(|s| v.iter().all(|v| s.contains(*v))),
            Cond::Num(t, op, a, b) => {
                let Some(TagValue::Int(n)) = row.get(INTS[*t]) else { return false };
                match op {
                    0 => n == a,
                    1 => n != a,
                    2 => n < a,
                    3 => n <= a,
                    4 => n > a,
                    5 => n >= a,
                    6 => a <= n && n <= b,
                    7 => n == a || n == b,
                    _ => n != a && n != b,
                }
            }
            Cond::Exists(t) => row.contains_key(*t),
            Cond::Prefix(t, text) => {
                row.get(ENUMS[*t]).and_then(TagValue::as_text).is_some_and(|v| v.starts_with(text))
            }
            Cond::Size(t, low, high) => set(*t).is_some_and(|s| (*low..=*high).contains(&(s.len() as u32))),
            Cond::Users(users) => users.contains(user),
            Cond::AtLeast(n, of) => of.iter().filter(|c| c.holds(user, row)).count() >= *n,
            Cond::And(all) => all.iter().all(|c| c.holds(user, row)),
            Cond::Or(any) => any.iter().any(|c| c.holds(user, row)),
            Cond::Not(c) => !c.holds(user, row),
        }
    }
}

fn text() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c", "d", "", "ä", "never"])
}

pub(super) fn stored() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c", "d", "", "ä"])
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -3i64..4, 1 => Just(i64::MAX), 1 => Just(i64::MIN)]
}

pub(super) fn condition() -> impl Strategy<Value = Cond> {
    let leaf = prop_oneof![
        Just(Cond::All),
        (0..2usize, prop::collection::vec(text(), 0..4), any::<bool>())
            .prop_map(|(t, v, w)| Cond::In(t, v, w)),
        (0..2usize, prop::collection::vec(text(), 0..4)).prop_map(|(t, v)| Cond::Any(t, v)),
        (0..2usize, prop::collection::vec(text(), 0..3)).prop_map(|(t, v)| Cond::Every(t, v)),
        (0..2usize, 0..9u8, number(), number()).prop_map(|(t, op, a, b)| Cond::Num(t, op, a, b)),
        prop::sample::select(vec!["city", "cats", "buys"]).prop_map(Cond::Exists),
        (0..2usize, prop::sample::select(vec!["", "a", "ä", "ab"])).prop_map(|(t, v)| Cond::Prefix(t, v)),
        (0..2usize, 0..4u32, 0..4u32).prop_map(|(t, a, b)| Cond::Size(t, a, b)),
        prop::collection::vec(user(), 0..5).prop_map(Cond::Users),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..5).prop_map(Cond::And),
            prop::collection::vec(inner.clone(), 1..5).prop_map(Cond::Or),
            (0..5usize, prop::collection::vec(inner.clone(), 0..6)).prop_map(|(n, of)| Cond::AtLeast(n, of)),
            inner.prop_map(|c| Cond::Not(Box::new(c))),
        ]
    })
}

/// Deltas of any kind; `mixed` lets int tags mix kinds, whose outcome depends on arrival.
pub(super) fn delta(mixed: bool) -> impl Strategy<Value = (&'static str, Delta)> {
    let ints = move |(t, kind, n): (usize, u8, i64)| {
        let kind = if mixed { kind } else { t as u8 * 2 + kind % 2 };
        let delta = match kind {
            0 => Delta::Set(n.into()),
            1 => Delta::Unset,
            2 | 3 => Delta::Max(n.into()),
            4 => Delta::Min(n.into()),
            _ => Delta::Increment(n.into()),
        };
        (INTS[t], delta)
    };
    prop_oneof![
        (0..2usize, stored()).prop_map(|(t, v)| (ENUMS[t], Delta::Set(v.into()))),
        (0..2usize).prop_map(|t| (ENUMS[t], Delta::Unset)),
        (0..2usize, stored()).prop_map(|(t, v)| (SETS[t], Delta::Add(v.to_owned()))),
        (0..2usize, stored()).prop_map(|(t, v)| (SETS[t], Delta::Remove(v.to_owned()))),
        (0..2usize, prop::collection::btree_set(stored().prop_map(str::to_owned), 0..3))
            .prop_map(|(t, v)| (SETS[t], Delta::Set(v.into()))),
        (0..2usize).prop_map(|t| (SETS[t], Delta::Unset)),
        (0..2usize, 0..6u8, number()).prop_map(ints),
    ]
}

fn user() -> impl Strategy<Value = UserId> {
    prop_oneof![(0u64..12).prop_map(UserId::from), (0u64..4).prop_map(|n| format!("u{n}").into())]
}

pub(super) fn updates(mixed: bool) -> impl Strategy<Value = Vec<ProfileUpdate>> {
    let update =
        (user(), 0i64..8, prop::collection::vec(delta(mixed), 0..5)).prop_map(|(user, time, deltas)| {
            deltas.into_iter().fold(ProfileUpdate::of(user).at(time), |u, (t, d)| u.delta(t, d))
        });
    prop::collection::vec(update, 0..150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_row_scan(updates in updates(true), conditions in prop::collection::vec(condition(), 1..8)) {
        let rows = Rows::of(&updates);
        let mut digests = BTreeSet::new();
        for parallelism in [1, 2, 7] {
            let snapshot = run(&updates, parallelism).reader().snapshot();
            prop_assert_eq!(snapshot.users(), rows.0.len() as u64);
            digests.insert(snapshot.digest().value.0);
            for (user, row) in &rows.0 {
                let profile = snapshot.profile(user).value;
                prop_assert_eq!(profile.as_ref(), Some(row));
            }
            for condition in &conditions {
                let predicate = condition.predicate();
                let expected: BTreeSet<&UserId> =
                    rows.0.iter().filter(|(u, row)| condition.holds(u, row)).map(|(u, _)| u).collect();
                let ids = snapshot.ids(&predicate, Page::first(usize::MAX)).unwrap().value;
                prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>(), expected, "{:?}", predicate);
                prop_assert_eq!(snapshot.count(&predicate).unwrap().value, ids.len() as u64);
                // Pages put together are the whole.
                let paged: Vec<UserId> = (0..)
                    .map(|i| snapshot.ids(&predicate, Page { offset: i * 3, limit: 3 }).unwrap().value)
                    .take_while(|page| !page.is_empty())
                    .flatten()
                    .collect();
                prop_assert_eq!(paged, ids);
            }
        }
        prop_assert_eq!(digests.len(), 1);
    }
}
