//! One key group of some thousand users whose numbers are all different: bins, lists of numbers, sizes and counts of conditions, for
//! every type, against a plain loop over the rows.

use super::super::*;
use std::cmp::Ordering;

const USERS: u64 = 9_000;

/// Numbers that follow from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 27)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.roll() % n
    }
}

const KINDS: [(&str, TagType); 6] = [
    ("int", TagType::Int),
    ("uint", TagType::UInt),
    ("float", TagType::Float),
    ("price", TagType::Decimal(2)),
    ("day", TagType::Date),
    ("at", TagType::Timestamp),
];

/// A value of a kind, at times one of its ends.
fn value(kind: TagType, dice: &mut Dice) -> TagValue {
    let (n, odd) = (dice.roll(), dice.below(20));
    match kind {
        TagType::Int => match odd {
            0 => i64::MIN.into(),
            1 => i64::MAX.into(),
            2..10 => (dice.below(500) as i64 - 250).into(),
            _ => (n as i64).into(),
        },
        TagType::UInt => match odd {
            0 => u64::MAX.into(),
            1 => 0.into(),
            2..10 => dice.below(500).into(),
            _ => n.into(),
        },
        TagType::Float => match odd {
            0 => f64::NAN.into(),
            1 => f64::INFINITY.into(),
            2 => f64::NEG_INFINITY.into(),
            3 => (-0.0).into(),
            4..10 => (dice.below(400) as f64 / 8.0 - 25.0).into(),
            _ => f64::from_bits(n).into(),
        },
        TagType::Decimal(_) => Decimal::new(i128::from(n as i64 >> dice.below(60)), 2).into(),
        TagType::Date => Date(dice.below(40_000) as i32 - 20_000).into(),
        _ => Timestamp(n as i64 >> dice.below(60)).into(),
    }
}

/// How numbers of one kind stand to each other; nothing for a NaN.
fn order(a: &TagValue, b: &TagValue) -> Option<Ordering> {
    match (a, b) {
        (TagValue::Float(a), TagValue::Float(b)) => a.0.partial_cmp(&b.0),
        (TagValue::Decimal(a), TagValue::Decimal(b)) => Some(a.cmp(b)),
        (TagValue::Date(a), TagValue::Date(b)) => Some(a.cmp(b)),
        (TagValue::Timestamp(a), TagValue::Timestamp(b)) => Some(a.cmp(b)),
        _ => {
            let whole = |v: &TagValue| match v {
                TagValue::Int(n) => i128::from(*n),
                TagValue::UInt(n) => i128::from(*n),
                other => panic!("{other}"),
            };
            Some(whole(a).cmp(&whole(b)))
        }
    }
}

struct Row {
    numbers: Vec<Option<TagValue>>,
    set: Option<Vec<&'static str>>,
}

const WORDS: [&str; 5] = ["a", "b", "c", "d", "e"];

fn rows(dice: &mut Dice, writer: &mut Writer) -> Vec<Row> {
    let mut rows: Vec<Row> =
        (0..USERS).map(|_| Row { numbers: vec![None; KINDS.len()], set: None }).collect();
    // Twice, so that bins are drawn, changed, and drawn anew.
    for round in 1..=2 {
        for (user, row) in rows.iter_mut().enumerate() {
            let mut update = ProfileUpdate::of(user as u64).at(round);
            for (at, (name, kind)) in KINDS.iter().enumerate() {
                match dice.below(10) {
                    0 => {
                        row.numbers[at] = None;
                        update = update.unset(*name);
                    }
                    1..7 => {
                        let value = value(*kind, dice);
                        row.numbers[at] = Some(value.clone());
                        update = update.set(*name, value);
                    }
                    _ => {}
                }
            }
            let some: Vec<&str> = WORDS.into_iter().filter(|_| dice.below(3) == 0).collect();
            update = update.set("words", some.clone());
            row.set = Some(some);
            writer.apply(update).unwrap();
        }
        writer.publish(round);
    }
    rows
}

#[test]
fn ranges_lists_sizes_and_counts_equal_a_loop_over_rows() {
    let space = Profiles::with_key_groups("p", 1).set_tag("words");
    let profiles = KINDS.iter().fold(space, |space, (name, kind)| space.tag(name, *kind));
    let mut writer = profiles.writer(0..1, 1).unwrap();
    let mut dice = Dice(6);
    let rows = rows(&mut dice, &mut writer);
    let snapshot = profiles.reader().snapshot();
    let check = |what: &str, predicate: Predicate, holds: &dyn Fn(&Row) -> bool| {
        let expected: Vec<UserId> =
            (0..USERS).filter(|user| holds(&rows[*user as usize])).map(UserId::from).collect();
        assert_eq!(snapshot.count(&predicate).unwrap().value, expected.len() as u64, "{what}");
        assert!(snapshot.ids(&predicate, Page::first(usize::MAX)).unwrap().value == expected, "{what}");
    };
    for round in 0..25 {
        for (at, (name, kind)) in KINDS.iter().enumerate() {
            let (low, high) = (value(*kind, &mut dice), value(*kind, &mut dice));
            let what = format!("round {round}: {name} {low} {high}");
            let to = |row: &Row, bound: &TagValue| row.numbers[at].as_ref().map(|v| order(v, bound));
            let is = |row: &Row, bound: &TagValue, fits: fn(Ordering) -> bool| {
                to(row, bound).flatten().is_some_and(fits)
            };
            let of = || tag(*name);
            check(&what, of().lt(low.clone()), &|row| is(row, &low, Ordering::is_lt));
            check(&what, of().le(low.clone()), &|row| is(row, &low, Ordering::is_le));
            check(&what, of().gt(low.clone()), &|row| is(row, &low, Ordering::is_gt));
            check(&what, of().ge(low.clone()), &|row| is(row, &low, Ordering::is_ge));
            check(&what, of().eq(low.clone()), &|row| is(row, &low, Ordering::is_eq));
            check(&what, of().ne(low.clone()), &|row| {
                row.numbers[at].is_some() && !is(row, &low, Ordering::is_eq)
            });
            let between = |row: &Row| is(row, &low, Ordering::is_ge) && is(row, &high, Ordering::is_le);
            check(&what, of().between(low.clone(), high.clone()), &between);
            check(&what, !of().between(low.clone(), high.clone()), &|row| !between(row));
            // Values that are there, so that lists find some.
            let list: Vec<TagValue> = (0..dice.below(40))
                .filter_map(|_| rows[dice.below(USERS) as usize].numbers[at].clone())
                .chain([low.clone()])
                .collect();
            let listed = |row: &Row| list.iter().any(|v| is(row, v, Ordering::is_eq));
            check(&what, of().is_in(list.clone()), &listed);
            check(&what, of().not_in(list.clone()), &|row| row.numbers[at].is_some() && !listed(row));

            let (least, most, needed) = (dice.below(5) as u32, dice.below(6) as u32, dice.below(6) as usize);
            let sized =
                |row: &Row| row.set.as_ref().is_some_and(|s| (least..=most).contains(&(s.len() as u32)));
            check(&what, tag("words").size_between(least, most), &sized);
            let has = |row: &Row, word: &str| row.set.as_ref().is_some_and(|s| s.contains(&word));
            let parts = [
                of().between(low.clone(), high.clone()),
                of().is_in(list.clone()),
                tag("words").size_between(least, most),
                tag("words").has_any(["a"]),
                tag("words").has_any(["b"]),
                !tag("words").has_any(["c"]),
            ];
            let held = |row: &Row| {
                let all =
                    [between(row), listed(row), sized(row), has(row, "a"), has(row, "b"), !has(row, "c")];
                all.into_iter().filter(|holds| *holds).count()
            };
            check(&what, Predicate::at_least(needed, parts.clone()), &|row| held(row) >= needed);
            let [a, b, c, d, ..] = parts;
            check(&what, a.clone().and(d.clone()).or(b.and(!c)), &|row| {
                between(row) && has(row, "a") || listed(row) && !sized(row)
            });
            check(&what, (!a).and(d), &|row| !between(row) && has(row, "a"));
        }
    }
}
