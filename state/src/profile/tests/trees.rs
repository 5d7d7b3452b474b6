//! Random trees of conditions over random users with tags of every type equal a scan of rows, after deltas, changes of tags, a crash and a
//! restore, at any parallelism.

use super::super::*;
use super::rig::{Folders, Rig};
use std::collections::{BTreeMap, BTreeSet};

/// A generator that gives the same again (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }
}

const TEXTS: [&str; 8] = ["", "a", "ab", "abc", "b", "ba", "ä", "z"];
const FLOATS: [f64; 8] = [f64::NEG_INFINITY, -1.5, -0.0, 0.0, 0.25, 1e300, f64::INFINITY, f64::NAN];

/// Tags whose values are one scalar, each with a value of a number of 0 to 7.
fn scalar(tag: &str, n: u64) -> TagValue {
    let at = n as usize;
    match tag {
        "city" => TEXTS[at].into(),
        "n" => ([i64::MIN, -7, -1, 0, 1, 7, 1 << 40, i64::MAX][at]).into(),
        "narrow" => (n as i64 * 3 - 9).into(),
        "u" => ([0, 1, 2, 9, 1 << 40, i64::MAX as u64, 1 << 63, u64::MAX][at]).into(),
        "f" => FLOATS[at].into(),
        "b" => n.is_multiple_of(2).into(),
        "d" => Decimal::new(n as i128 * 25 - 75, 2).into(),
        "day" => Date(n as i32 * 100 - 350).into(),
        _ => Timestamp(n as i64 * 86_400_000 - 1).into(),
    }
}

const SCALARS: [&str; 9] = ["city", "n", "narrow", "u", "f", "b", "d", "day", "at"];

fn space() -> Profiles {
    let profiles =
        Profiles::named("p").enum_tag("city").int_tag("n").int_tag("narrow").tag("u", TagType::UInt);
    let profiles = profiles.tag("f", TagType::Float).tag("b", TagType::Bool).tag("d", TagType::Decimal(2));
    let profiles = profiles.tag("day", TagType::Date).tag("at", TagType::Timestamp).set_tag("s");
    profiles.tag("i", TagType::IntSet).tag("m", TagType::Map)
}

fn update(random: &mut Random, users: u64, time: i64) -> ProfileUpdate {
    let mut update = ProfileUpdate::of(random.below(users)).at(time);
    for _ in 0..=random.below(4) {
        let (tag, n) = (random.one(&SCALARS), random.below(8));
        update = match random.below(12) {
            0 => update.unset(random.one(&["city", "n", "f", "s", "m", "day"])),
            1 => update.set("s", BTreeSet::<String>::new()),
            2 => update.add("s", random.one(&TEXTS)),
            3 => update.remove("s", random.one(&TEXTS)),
            4 => update.add("i", n as i64 - 3),
            5 => update.put("m", random.one(&["k", "l"]), n as i64),
            6 => update.put("m", "k", random.one(&TEXTS)),
            _ => update.set(tag, scalar(tag, n)),
        };
    }
    update
}

/// A condition as the model evaluates it.
enum Tree {
    Scalar(&'static str, &'static str, Vec<TagValue>),
    Has(&'static str, bool, Vec<String>),
    Size(&'static str, u32, u32),
    Key(&'static str, i64),
    Exists(&'static str),
    Not(Box<Tree>),
    Many(usize, Vec<Tree>),
}

type Row = BTreeMap<String, TagValue>;

/// Compares as IEEE does: nothing with a NaN.
fn order(a: &TagValue, b: &TagValue) -> Option<std::cmp::Ordering> {
    let number = |value: &TagValue| match value {
        TagValue::Int(n) => Some(i128::from(*n) * 100),
        TagValue::UInt(n) => Some(i128::from(*n) * 100),
        TagValue::Decimal(n) => Some(n.unscaled() * 10i128.pow(2 - u32::from(n.scale()))),
        TagValue::Bool(b) => Some((*b).into()),
        TagValue::Date(day) => Some(i128::from(day.0) * 86_400_000),
        TagValue::Timestamp(at) => Some(at.0.into()),
        _ => None,
    };
    match (a, b) {
        (TagValue::Text(a), TagValue::Text(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
        (TagValue::Float(a), TagValue::Float(b)) => a.0.partial_cmp(&b.0),
        _ => Some(number(a)?.cmp(&number(b)?)),
    }
}

impl Tree {
    fn random(random: &mut Random, depth: u64) -> Tree {
        if depth > 0 && random.below(3) > 0 {
            let parts = |random: &mut Random| {
                (0..2 + random.below(3)).map(|_| Tree::random(random, depth - 1)).collect::<Vec<_>>()
            };
            return match random.below(4) {
                0 => Tree::Not(Box::new(Tree::random(random, depth - 1))),
                1 => Tree::Many(1, parts(random)),
                2 => {
                    let parts = parts(random);
                    Tree::Many(parts.len(), parts)
                }
                _ => Tree::Many(random.below(5) as usize, parts(random)),
            };
        }
        let tag = random.one(&SCALARS);
        let values =
            |random: &mut Random, n: u64| (0..n).map(|_| scalar(tag, random.below(8))).collect::<Vec<_>>();
        let texts =
            |random: &mut Random| (0..random.below(4)).map(|_| random.one(&TEXTS).to_owned()).collect();
        match random.below(10) {
            0 => Tree::Exists(random.one(&["city", "f", "s", "i", "m", "at"])),
            1 => Tree::Has("s", random.below(2) == 0, texts(random)),
            2 => {
                let numbers =
                    (0..random.below(4)).map(|_| (random.below(8) as i64 - 3).to_string()).collect();
                Tree::Has("i", random.below(2) == 0, numbers)
            }
            3 => Tree::Size(random.one(&["s", "i", "m"]), random.below(3) as u32, random.below(5) as u32),
            4 => Tree::Key(random.one(&["=", "<", ">="]), random.below(8) as i64),
            5 => {
                let count = random.below(4);
                Tree::Scalar(tag, random.one(&["in", "not in"]), values(random, count))
            }
            // Truth values are only equal or not.
            _ if tag == "b" => Tree::Scalar(tag, random.one(&["=", "!="]), values(random, 1)),
            6 => Tree::Scalar(tag, "between", values(random, 2)),
            _ => Tree::Scalar(tag, random.one(&["=", "!=", "<", "<=", ">", ">="]), values(random, 1)),
        }
    }

    fn predicate(&self) -> Predicate {
        match self {
            Tree::Scalar(name, test, values) => {
                let (name, one) = (tag(*name), || values[0].clone());
                match *test {
                    "=" => name.eq(one()),
                    "!=" => name.ne(one()),
                    "<" => name.lt(one()),
                    "<=" => name.le(one()),
                    ">" => name.gt(one()),
                    ">=" => name.ge(one()),
                    "in" => name.is_in(values.clone()),
                    "not in" => name.not_in(values.clone()),
                    _ => name.between(one(), values[1].clone()),
                }
            }
            Tree::Has(name, all, elements) => {
                let numbers: Vec<i64> = elements.iter().filter_map(|e| e.parse().ok()).collect();
                match (*name, all) {
                    ("s", true) => tag("s").has_all(elements),
                    ("s", false) => tag("s").has_any(elements),
                    (name, true) => tag(name).has_all(numbers),
                    (name, false) => tag(name).has_any(numbers),
                }
            }
            Tree::Size(name, least, most) => tag(*name).size_between(*least, *most),
            Tree::Key("=", n) => tag("m").key("k").eq(*n),
            Tree::Key("<", n) => tag("m").key("k").lt(*n),
            Tree::Key(_, n) => tag("m").key("k").ge(*n),
            Tree::Exists(name) => tag(*name).exists(),
            Tree::Not(inner) => !inner.predicate(),
            Tree::Many(needed, parts) => {
                let parts: Vec<Predicate> = parts.iter().map(Tree::predicate).collect();
                match (*needed, parts.len()) {
                    (1, _) => parts.into_iter().reduce(Predicate::or).unwrap(),
                    (n, all) if n == all => parts.into_iter().reduce(Predicate::and).unwrap(),
                    (n, _) => Predicate::at_least(n, parts),
                }
            }
        }
    }

    fn holds(&self, row: &Row) -> bool {
        use std::cmp::Ordering::{Equal, Greater, Less};
        match self {
            Tree::Scalar(tag, test, values) => {
                let Some(value) = row.get(*tag) else { return false };
                let is = |at: usize, fits: &[std::cmp::Ordering]| {
                    order(value, &values[at]).is_some_and(|o| fits.contains(&o))
                };
                let equal = |other: &TagValue| order(value, other) == Some(Equal);
                match *test {
                    "=" => is(0, &[Equal]),
                    "!=" => !is(0, &[Equal]),
                    "<" => is(0, &[Less]),
                    "<=" => is(0, &[Less, Equal]),
                    ">" => is(0, &[Greater]),
                    ">=" => is(0, &[Greater, Equal]),
                    "in" => values.iter().any(equal),
                    "not in" => !values.iter().any(equal),
                    _ => is(0, &[Greater, Equal]) && is(1, &[Less, Equal]),
                }
            }
            Tree::Has(tag, all, elements) => {
                let has = |element: &String| match row.get(*tag) {
                    Some(TagValue::Set(set)) => set.contains(element),
                    Some(TagValue::IntSet(set)) => element.parse().is_ok_and(|n| set.contains(&n)),
                    _ => false,
                };
                row.contains_key(*tag)
                    && if *all { elements.iter().all(has) } else { elements.iter().any(has) }
            }
            Tree::Size(tag, least, most) => {
                let size = match row.get(*tag) {
                    Some(TagValue::Set(set)) => set.len(),
                    Some(TagValue::IntSet(set)) => set.len(),
                    Some(TagValue::Map(map)) => map.len(),
                    _ => return false,
                };
                (*least as usize..=*most as usize).contains(&size)
            }
            Tree::Key(test, n) => match row.get("m") {
                Some(TagValue::Map(map)) => match (map.get("k"), *test) {
                    (Some(TagValue::Int(is)), "=") => is == n,
                    (Some(TagValue::Int(is)), "<") => is < n,
                    (Some(TagValue::Int(is)), _) => is >= n,
                    _ => false,
                },
                _ => false,
            },
            Tree::Exists(tag) => row.contains_key(*tag),
            Tree::Not(inner) => !inner.holds(row),
            Tree::Many(needed, parts) => parts.iter().filter(|part| part.holds(row)).count() >= *needed,
        }
    }
}

fn compare(snapshot: &Snapshot, random: &mut Random, trees: usize) {
    let users = super::rig::users(snapshot);
    let rows: Vec<Row> = users.iter().map(|user| snapshot.profile(user).value.unwrap()).collect();
    for _ in 0..trees {
        let tree = Tree::random(random, 4);
        let predicate = tree.predicate();
        let found = snapshot.ids(&predicate, Page::first(usize::MAX)).unwrap().value;
        let expected: Vec<&UserId> =
            users.iter().zip(&rows).filter(|(_, row)| tree.holds(row)).map(|(user, _)| user).collect();
        assert!(
            found.iter().eq(expected.iter().copied()),
            "{}: {} of {}",
            predicate.to_json(),
            found.len(),
            expected.len()
        );
        assert_eq!(snapshot.count(&predicate).unwrap().value, found.len() as u64);
        let read =
            Predicate::from_json(&serde_json::from_str(&predicate.to_json().to_string()).unwrap()).unwrap();
        assert_eq!(snapshot.count(&read).unwrap().value, found.len() as u64, "{}", predicate.to_json());
    }
}

#[test]
fn random_trees_equal_a_scan_of_rows_through_deltas_changes_and_restores() {
    let soak = std::env::var_os("WEIR_SOAK").is_some();
    let (users, trees, updates) = if soak { (100_000, 2_500, 300_000) } else { (700, 150, 4_000) };
    let mut random = Random(20_261_130);
    let mut folders = Folders::new();
    let mut rig = Rig::open(&mut folders, space(), 2, &[]);
    for round in 0..4usize {
        for _ in 0..updates {
            let time = random.below(1_000) as i64;
            let update = update(&mut random, users, time);
            rig.apply(&update);
        }
        match round {
            0 => rig.profiles.alter_tag("narrow", TagType::Decimal(2)).unwrap(),
            1 => {
                rig.profiles.rename_tag("m", "other").unwrap();
                rig.profiles.rename_tag("other", "m").unwrap();
            }
            2 => {
                rig.profiles.drop_tag("u").unwrap();
                rig.profiles.add_tag("u", TagType::UInt).unwrap();
            }
            _ => rig.profiles.alter_tag("day", TagType::Timestamp).unwrap(),
        }
        compare(&rig.profiles.reader().snapshot(), &mut random, trees / 3);
        let seen = rig.seen();
        compare(&seen, &mut random, trees);
        let (digest, parts) = (seen.digest().value, rig.checkpoint());
        drop(seen);
        drop(rig);
        rig = Rig::open(&mut folders, space(), [7, 1, 3, 2][round], &parts);
        let seen = rig.seen();
        assert_eq!(seen.digest().value, digest);
        compare(&seen, &mut random, trees / 3);
    }
}
