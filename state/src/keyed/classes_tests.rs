//! A smooth table against a plain map, and how smoothly it grows.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::key::key_hash;

type Pair = (u64, u32);

fn slot(key: u64) -> u64 {
    key_hash(&key).in_group()
}

fn slot_of(pair: &Pair) -> u64 {
    slot(pair.0)
}

fn filled(n: u64) -> Classes<Pair> {
    let mut table = Classes::default();
    for key in 0..n {
        table.insert(slot(key), (key, 0), 0, slot_of);
    }
    table
}

fn keys(table: &Classes<Pair>) -> Vec<u64> {
    let mut keys: Vec<u64> = table.iter().map(|((key, _), _)| *key).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn memory_follows_the_number_of_entries() {
    let mut table = Classes::default();
    let per_entry = size_of::<Pair>() + 2;
    let mut ratios = Vec::new();
    for key in 0..1_000_000_u64 {
        table.insert(slot(key), (key, 0), 0, slot_of);
        if key > 100_000 && key % 1_000 == 0 {
            ratios.push(table.bytes() as f64 / (key as usize * per_entry) as f64);
        }
    }
    let (least, most) = ratios.iter().fold((f64::MAX, 0.0_f64), |(a, b), r| (a.min(*r), b.max(*r)));
    assert!(most / least < 1.08, "{least} to {most}: a single table is between 1.14 and 2.29");
    let sum: usize = table.tables.iter().map(Marked::bytes).sum();
    assert_eq!(table.bytes(), sum);
}

#[test]
fn the_first_share_is_twice_the_last() {
    let mut cells = [0; CLASSES];
    CLASS_OF.iter().for_each(|class| cells[usize::from(*class)] += 1);
    assert!(cells.iter().all(|n| (46..=93).contains(n)), "{cells:?}");
    assert!(cells[0] > cells[63] * 19 / 10);
}

#[test]
fn everything_is_walked_once_around_and_taken_once() {
    for n in [0, 100, 150_000] {
        let mut table = filled(n);
        let mut cursor = Cursor { stripe: 9, class: 7, bucket: 3 };
        let mut seen = Vec::new();
        for _ in 0..50 {
            table.walk(&mut cursor, n as usize / 40 + 1, |(key, _), _| {
                seen.push(*key);
                Walk::Keep
            });
        }
        seen.truncate(n as usize);
        seen.sort_unstable();
        assert_eq!(seen, (0..n).collect::<Vec<_>>());

        table.walk(
            &mut cursor,
            usize::MAX,
            |(key, _), _| if *key % 2 == 0 { Walk::Drop } else { Walk::Keep },
        );
        assert_eq!(keys(&table), (0..n).filter(|key| key % 2 == 1).collect::<Vec<_>>());
        let mut taken = Vec::new();
        while !table.is_empty() {
            table.take_some(&mut cursor, 999, |(key, _), _| taken.push(key));
        }
        assert_eq!(taken.len() as u64, n / 2);
        for class in 0..CLASSES {
            table.tidy(class, slot_of);
        }
        assert!(table.bytes() < 10_000, "{}", table.bytes());
    }
}

#[test]
fn merging_moves_the_fewer() {
    let mut into = filled(80_000);
    let mut from = Classes::default();
    from.spread(slot_of);
    for key in 80_000..200_000 {
        from.insert(slot(key), (key, 1), 0, slot_of);
    }
    let moved: usize = from
        .into_tables()
        .into_iter()
        .enumerate()
        .map(|(class, table)| into.merge(class, table, slot_of))
        .sum();
    assert_eq!((moved, into.len()), (80_000, 200_000));
    assert_eq!(keys(&into), (0..200_000).collect::<Vec<_>>());
    let sum: usize = into.tables.iter().map(Marked::bytes).sum();
    assert_eq!(into.bytes(), sum);
}

proptest! {
    #[test]
    fn it_does_what_a_map_does(ops in prop::collection::vec((0u64..50, 0u8..3, any::<u32>()), 0..300)) {
        let (mut table, mut model) = (Classes::default(), BTreeMap::new());
        for (n, (key, op, value)) in ops.into_iter().enumerate() {
            let same = |pair: &Pair| pair.0 == key;
            match op {
                0 => match table.find(slot(key), same) {
                    Some(place) => table.at_mut(place).0.1 = value,
                    None => drop(table.insert(slot(key), (key, value), 0, slot_of)),
                },
                1 => prop_assert_eq!(table.remove(slot(key), same).map(|(p, _)| p.1), model.remove(&key)),
                _ => prop_assert_eq!(table.find(slot(key), same).map(|p| table.at(p).1), model.get(&key).copied()),
            }
            if op == 0 {
                model.insert(key, value);
            }
            if n == 100 {
                table.spread(slot_of);
            }
            prop_assert_eq!(table.len(), model.len());
        }
        prop_assert_eq!(keys(&table), model.into_keys().collect::<Vec<_>>());
    }
}
