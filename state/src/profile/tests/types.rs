//! Tags of every type in two tables, after random updates and a restart, asked in random SQL: equal to a row scan that knows SQL's
//! three values, null among them. (over 400 lines: one model of all types)

use super::super::*;
use super::rig::{Folders, Rig};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const GROUPS: u16 = 4;

/// Name, type, and values as SQL and as an update has them.
type Tag = (&'static str, TagType, Vec<(String, TagValue)>);

fn tags() -> Vec<Tag> {
    let plain = |values: Vec<TagValue>| values.into_iter().map(|v| (v.to_string(), v)).collect::<Vec<_>>();
    let dates = ["1969-12-31", "1970-01-01", "2021-02-28", "2021-03-01"];
    let moments =
        ["1969-12-31 23:59:59.999", "1970-01-01 00:00:00", "2021-03-01 00:00:00", "2021-03-01 12:30:00"];
    vec![
        ("a.lang", TagType::Enum, plain(vec!["zh_CN".into(), "zh_HK".into(), "".into(), "2".into()])),
        ("a.n", TagType::Int, plain(vec![0.into(), (-7).into(), 2.into(), i64::MAX.into(), i64::MIN.into()])),
        ("a.u", TagType::UInt, plain(vec![0.into(), 2.into(), u64::MAX.into(), (1u64 << 63).into()])),
        (
            "b.score",
            TagType::Float,
            plain(vec![0.0.into(), 0.2.into(), (-0.5).into(), 2.into(), 1e300.into(), f64::INFINITY.into()]),
        ),
        ("b.vip", TagType::Bool, plain(vec![true.into(), false.into()])),
        (
            "b.price",
            TagType::Decimal(2),
            plain(vec![
                Decimal::new(1999, 2).into(),
                Decimal::new(-5, 1).into(),
                2.into(),
                Decimal::new(200, 2).into(),
            ]),
        ),
        (
            "b.born",
            TagType::Date,
            dates.map(|d| (format!("'{d}'"), d.parse::<Date>().unwrap().into())).to_vec(),
        ),
        (
            "a.seen",
            TagType::Timestamp,
            moments.map(|m| (format!("'{m}'"), m.parse::<Timestamp>().unwrap().into())).to_vec(),
        ),
    ]
}

fn space() -> Profiles {
    let all = tags().into_iter().map(|(name, kind, _)| (name, kind));
    let sets = [("b.watched", TagType::Set), ("a.shops", TagType::IntSet), ("a.attributes", TagType::Map)];
    let space = Profiles::with_key_groups("crowd", GROUPS).key_column("uuid");
    all.chain(sets).fold(space, |space, (name, kind)| space.tag(name, kind))
}

type Row = BTreeMap<String, TagValue>;

/// What anyone may do to a tag.
#[derive(Debug, Clone)]
enum Change {
    Set(usize, usize),
    Unset(usize),
    Nan,
    Watch(Vec<&'static str>),
    Shop(Vec<i64>),
    Put(&'static str, usize),
    Forget(&'static str),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        12 => (0..8usize, 0..6usize).prop_map(|(tag, value)| Change::Set(tag, value)),
        2 => (0..8usize).prop_map(Change::Unset),
        1 => Just(Change::Nan),
        2 => prop::collection::vec(symbol(), 0..3).prop_map(Change::Watch),
        2 => prop::collection::vec(-2i64..4, 0..3).prop_map(Change::Shop),
        3 => (symbol(), 0..4usize).prop_map(|(key, value)| Change::Put(key, value)),
        1 => symbol().prop_map(Change::Forget),
    ]
}

/// Values of the map, the same under all keys.
fn entries() -> [TagValue; 4] {
    ["zh".into(), 2.into(), 2.5.into(), true.into()]
}

fn symbol() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["TSLA", "AAPL", "中文", ""])
}

/// Applies a change to a row and to an update.
fn apply(change: &Change, row: &mut Row, update: ProfileUpdate) -> ProfileUpdate {
    let (tag, value): (&str, TagValue) = match change {
        Change::Unset(tag) => {
            row.remove(tags()[*tag].0);
            return update.unset(tags()[*tag].0);
        }
        Change::Set(tag, value) => {
            let (name, _, values) = &tags()[*tag];
            (*name, values[value % values.len()].1.clone())
        }
        Change::Put(..) | Change::Forget(_) => {
            let Some(TagValue::Map(map)) = row.get_mut("a.attributes") else {
                row.insert("a.attributes".into(), TagValue::Map(BTreeMap::new()));
                return apply(change, row, update);
            };
            return match change {
                Change::Put(key, value) => {
                    map.insert((*key).to_owned(), entries()[*value].clone());
                    update.put("a.attributes", *key, entries()[*value].clone())
                }
                Change::Forget(key) => {
                    map.remove(*key);
                    update.remove("a.attributes", *key)
                }
                other => panic!("{other:?}"),
            };
        }
        Change::Nan => ("b.score", f64::NAN.into()),
        Change::Watch(all) => ("b.watched", all.clone().into()),
        Change::Shop(all) => ("a.shops", all.clone().into()),
    };
    row.insert(tag.to_owned(), read_back(tag, &value));
    update.set(tag.to_owned(), value)
}

/// A tag gives its values in its own type.
fn read_back(tag: &str, value: &TagValue) -> TagValue {
    match (tag, value) {
        ("b.score", TagValue::Int(n)) => TagValue::from(*n as f64),
        ("b.price", TagValue::Int(n)) => Decimal::new(i128::from(*n) * 100, 2).into(),
        ("b.price", TagValue::Decimal(d)) if d.to_string() == "-0.5" => Decimal::new(-50, 2).into(),
        _ => value.clone(),
    }
}

/// A condition as data: SQL text and a scan of a row are made of it apart.
#[derive(Debug, Clone)]
enum Cond {
    Compare(usize, &'static str, usize),
    In(usize, Vec<usize>, bool),
    Between(usize, usize, usize, bool),
    Null(usize, bool),
    Prefix(&'static str, bool),
    /// Forms of "has any" (`true`) or "has all" of the watch list.
    Watch(u8, Vec<&'static str>, bool),
    Shop(Vec<i64>, bool),
    Size(&'static str, i64),
    Users(Vec<u64>),
    Entry(&'static str, &'static str, usize),
    And(Vec<Cond>),
    Or(Vec<Cond>),
    Not(Box<Cond>),
}

fn condition() -> impl Strategy<Value = Cond> {
    let value = || (0..8usize, 0..6usize);
    let compare = prop::sample::select(vec!["=", "!=", "<", "<=", ">", ">="]);
    let leaf = prop_oneof![
        6 => (value(), compare.clone()).prop_map(|((t, v), op)| Cond::Compare(t, op, v)),
        2 => (0..8usize, prop::collection::vec(0..6usize, 1..4), any::<bool>()).prop_map(|(t, v, n)| Cond::In(t, v, n)),
        2 => (value(), 0..6usize, any::<bool>()).prop_map(|((t, a), b, n)| Cond::Between(t, a, b, n)),
        1 => (0..10usize, any::<bool>()).prop_map(|(t, n)| Cond::Null(t, n)),
        1 => (prop::sample::select(vec!["zh%", "%", "zh\\_H%", "2", ""]), any::<bool>()).prop_map(|(p, n)| Cond::Prefix(p, n)),
        3 => (0..6u8, prop::collection::vec(symbol(), 0..3), any::<bool>()).prop_map(|(f, v, any)| Cond::Watch(f, v, any)),
        1 => (prop::collection::vec(-2i64..4, 0..3), any::<bool>()).prop_map(|(v, any)| Cond::Shop(v, any)),
        1 => (compare.clone(), -1i64..3).prop_map(|(op, n)| Cond::Size(op, n)),
        1 => prop::collection::vec(0u64..12, 1..5).prop_map(Cond::Users),
        2 => (symbol(), compare, 0..4usize).prop_map(|(key, op, v)| Cond::Entry(key, op, v)),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(Cond::And),
            prop::collection::vec(inner.clone(), 1..4).prop_map(Cond::Or),
            inner.prop_map(|c| Cond::Not(Box::new(c))),
        ]
    })
}

const SETS: [&str; 2] = ["b.watched", "a.shops"];

fn name(tag: usize) -> &'static str {
    tags().get(tag).map_or_else(|| SETS[tag - 8], |t| t.0)
}

fn literal(tag: usize, value: usize) -> (String, TagValue) {
    let (_, _, values) = &tags()[tag];
    let (text, value) = values[value % values.len()].clone();
    // Infinity has no literal: a number beyond all others is one.
    (if text == "inf" { "1e999".to_owned() } else { text }, value)
}

fn quoted(all: &[&str]) -> String {
    all.iter().map(|v| format!("'{v}'")).collect::<Vec<_>>().join(", ")
}

impl Cond {
    fn sql(&self) -> String {
        let join = |all: &[Cond], word: &str| {
            all.iter().map(|c| format!("({})", c.sql())).collect::<Vec<_>>().join(word)
        };
        let not = |not: bool| if not { "not " } else { "" };
        match self {
            Cond::Compare(t, op, v) => format!("{} {op} {}", name(*t), literal(*t, *v).0),
            Cond::In(t, v, n) => {
                let all: Vec<String> = v.iter().map(|v| literal(*t, *v).0).collect();
                format!("{} {}in ({})", name(*t), not(*n), all.join(", "))
            }
            Cond::Between(t, a, b, n) => {
                format!("{} {}between {} and {}", name(*t), not(*n), literal(*t, *a).0, literal(*t, *b).0)
            }
            Cond::Null(t, n) => format!("{} is {}null", name(*t), not(*n)),
            Cond::Prefix(p, n) => format!("a.lang {}like '{p}'", not(*n)),
            Cond::Watch(form, all, any) => {
                let json = serde_json::to_string(all).unwrap();
                match (form, any) {
                    (0, true) => format!("hasAny(b.watched, [{}])", quoted(all)),
                    (0, false) => format!("hasAll(b.watched, [{}])", quoted(all)),
                    (1, true) => format!("JSON_OVERLAPS(b.watched, '{json}')"),
                    (1, false) => format!("JSON_CONTAINS(b.watched, '{json}', '$')"),
                    (2, true) if all.len() == 1 => format!("'{}' MEMBER OF(b.watched)", all[0]),
                    (3, true) if all.len() == 1 => format!("JSON_CONTAINS(b.watched, '\"{}\"', '$')", all[0]),
                    (4, true) if !all.is_empty() => {
                        format!("arrayExists(x -> x in ({}), b.watched)", quoted(all))
                    }
                    (5, true) if all.len() == 1 => format!("has(b.watched, '{}')", all[0]),
                    (_, true) => format!("hasany(`b`.watched, array({}))", quoted(all)),
                    (_, false) => format!("JSON_CONTAINS(b.watched, '{json}')"),
                }
            }
            Cond::Shop(all, any) => {
                let all: Vec<String> = all.iter().map(i64::to_string).collect();
                format!("{}(a.shops, [{}])", if *any { "hasAny" } else { "hasAll" }, all.join(", "))
            }
            Cond::Size(op, n) => format!("length(b.watched) {op} {n}"),
            Cond::Users(ids) => {
                format!("a.uuid in ({})", ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
            }
            Cond::Entry(key, op, v) => format!("a.attributes['{key}'] {op} {}", entries()[*v]),
            Cond::And(all) => join(all, " and "),
            Cond::Or(all) => join(all, " or "),
            Cond::Not(c) => format!("not ({})", c.sql()),
        }
    }

    /// Whether it holds: nothing is unknown.
    fn holds(&self, user: u64, row: &Row) -> Option<bool> {
        let compared = |t: usize, v: usize| order(row.get(name(t))?, &literal(t, v).1);
        let watched = || match row.get("b.watched")? {
            TagValue::Set(s) => Some(s.clone()),
            other => panic!("{other}"),
        };
        let all_of = |all: &[Cond], decides: bool| {
            let each: Vec<Option<bool>> = all.iter().map(|c| c.holds(user, row)).collect();
            match (each.contains(&Some(decides)), each.contains(&None)) {
                (true, _) => Some(decides),
                (false, true) => None,
                (false, false) => Some(!decides),
            }
        };
        match self {
            Cond::Compare(t, op, v) => compared(*t, *v).map(|o| fits(op, o)),
            Cond::In(t, v, n) => {
                row.get(name(*t))?;
                Some(v.iter().any(|v| fits("=", compared(*t, *v).unwrap())) != *n)
            }
            Cond::Between(t, a, b, n) => {
                row.get(name(*t))?;
                let (low, high) = (compared(*t, *a)?, compared(*t, *b)?);
                // A NaN is neither between nor outside.
                Some(if *n { fits("<", low) || fits(">", high) } else { fits(">=", low) && fits("<=", high) })
            }
            Cond::Null(t, n) => Some(row.contains_key(name(*t)) == *n),
            Cond::Prefix(p, n) => {
                let text = row.get("a.lang")?.as_text().unwrap();
                let pattern = p.replace("\\_", "_");
                let holds = pattern.strip_suffix('%').map_or(text == pattern, |p| text.starts_with(p));
                Some(holds != *n)
            }
            Cond::Watch(_, all, any) => {
                let set = watched()?;
                let has = |v: &&str| set.contains(*v);
                Some(if *any { all.iter().any(has) } else { all.iter().all(has) })
            }
            Cond::Shop(all, any) => {
                let TagValue::IntSet(set) = row.get("a.shops")? else { panic!("{row:?}") };
                Some(if *any {
                    all.iter().any(|n| set.contains(n))
                } else {
                    all.iter().all(|n| set.contains(n))
                })
            }
            Cond::Size(op, n) => Some(fits(op, Some((watched()?.len() as i64).cmp(n)))),
            Cond::Users(ids) => Some(ids.contains(&user)),
            Cond::Entry(key, op, v) => {
                let TagValue::Map(map) = row.get("a.attributes")? else { panic!("{row:?}") };
                let (held, asked) = (map.get(*key)?, &entries()[*v]);
                let number = |v: &TagValue| match v {
                    TagValue::Int(n) => Some(*n as f64),
                    TagValue::Float(f) => Some(f.0),
                    _ => None,
                };
                // Of two types nothing holds but that they differ.
                let order = match (number(held), number(asked)) {
                    (Some(held), Some(asked)) => held.partial_cmp(&asked),
                    _ if std::mem::discriminant(held) == std::mem::discriminant(asked) => {
                        Some(held.cmp(asked))
                    }
                    _ => None,
                };
                Some(fits(op, order))
            }
            Cond::And(all) => all_of(all, false),
            Cond::Or(all) => all_of(all, true),
            Cond::Not(c) => c.holds(user, row).map(|holds| !holds),
        }
    }
}

/// How a value stands to a literal; the inner nothing is that of a NaN, which only `!=` takes.
fn order(value: &TagValue, literal: &TagValue) -> Option<Option<std::cmp::Ordering>> {
    let number = |v: &TagValue| match v {
        TagValue::Float(f) => Some(f.0),
        TagValue::Int(n) => Some(*n as f64),
        TagValue::Decimal(d) => Some(d.to_string().parse::<f64>().unwrap()),
        _ => None,
    };
    Some(match (value, literal) {
        (TagValue::Float(_) | TagValue::Decimal(_), _) => number(value)?.partial_cmp(&number(literal)?),
        // An int literal and a uint one: the variants order them.
        _ => Some(value.cmp(literal)),
    })
}

fn fits(op: &str, order: Option<std::cmp::Ordering>) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    match op {
        "=" => order == Some(Equal),
        "!=" => order != Some(Equal),
        "<" => order == Some(Less),
        "<=" => matches!(order, Some(Less | Equal)),
        ">" => order == Some(Greater),
        _ => matches!(order, Some(Greater | Equal)),
    }
}

fn has_row(row: &Row, table: &str) -> bool {
    row.keys().any(|tag| tag.starts_with(table))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sql_equals_a_row_scan(
        changes in prop::collection::vec((0u64..12, prop::collection::vec(change(), 1..6)), 0..60),
        conditions in prop::collection::vec(condition(), 1..12),
        parallelism in 1usize..4,
    ) {
        let mut rows: BTreeMap<u64, Row> = BTreeMap::new();
        let mut folders = Folders::new();
        let mut rig = Rig::open(&mut folders, space(), 2, &[]);
        for (time, (user, changes)) in changes.iter().enumerate() {
            let row = rows.entry(*user).or_default();
            for (i, change) in changes.iter().enumerate() {
                // Each at its own time: what two changes at one time come to is the other model's to say.
                let update = ProfileUpdate::of(*user).at((time * 10 + i) as i64);
                rig.apply(&apply(change, row, update));
            }
        }
        let before = rig.seen();
        let parts = rig.checkpoint();
        let mut again = Rig::open(&mut folders, space(), parallelism, &parts);
        let after = again.seen();
        prop_assert_eq!(before.digest().value, after.digest().value);
        for (user, row) in &rows {
            prop_assert_eq!(&after.profile(&UserId::from(*user)).value.unwrap(), row);
        }
        for condition in &conditions {
            for (from, tables) in [("a, b where a.uuid = b.uuid and", &["a.", "b."]), ("b join a on b.uuid = a.uuid where", &["a.", "b."])] {
                let text = format!("select a.uuid from {from} ({})", condition.sql());
                let expected: BTreeSet<u64> = (rows.iter())
                    .filter(|(_, row)| tables.iter().all(|table| has_row(row, table)))
                    .filter(|(user, row)| condition.holds(**user, row) == Some(true))
                    .map(|(user, _)| *user)
                    .collect();
                for snapshot in [&before, &after] {
                    let answer = snapshot.sql(&text);
                    prop_assert!(answer.is_ok(), "{}: {}", text, answer.unwrap_err());
                    let found: BTreeSet<u64> = (answer.unwrap().value.rows.iter())
                        .map(|row| row[0].as_ref().unwrap().as_int().unwrap() as u64)
                        .collect();
                    prop_assert_eq!(&found, &expected, "{}", text);
                    let count = snapshot.sql(&text.replace("a.uuid from", "count() from")).unwrap().value.count();
                    prop_assert_eq!(count, Some(expected.len() as u64));
                }
            }
        }
    }
}
