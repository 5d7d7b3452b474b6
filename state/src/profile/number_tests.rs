//! Ranges and lists over columns of few and of many numbers, after any changes, equal a look at every number.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn words(mut word: impl FnMut(usize, usize) -> u64) -> Vec<u16> {
    let mut found = Vec::new();
    for (page, at) in (0..256).flat_map(|page| (0..4).map(move |at| (page, at))) {
        let bits = word(page, at);
        found.extend(
            (0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| (page * 256 + at * 64 + bit) as u16),
        );
    }
    found
}

/// Who is found from `low` to `high`, and in the list of the two.
fn find(index: &NumberIndex, forward: &Column<IntPage>, low: i64, high: i64) -> (Vec<u16>, Vec<u16>) {
    let first = |at: usize| (at * PAGE) as u16;
    let number = |at: usize| move |slot: usize| forward.value(first(at) + slot as u16);
    match index {
        NumberIndex::Few(few) => {
            let mut range: Vec<u16> = index
                .few(low, high)
                .unwrap()
                .flat_map(|(n, _)| few.iter().find(|f| f.0 == n).unwrap().1.to_vec())
                .collect();
            range.sort_unstable();
            let mut listed: Vec<u16> =
                few.iter().filter(|f| f.0 == low || f.0 == high).flat_map(|f| f.1.to_vec()).collect();
            listed.sort_unstable();
            (range, listed)
        }
        NumberIndex::Bins(bins) => {
            let range = bins.range(low, high);
            let mut both = [low, high];
            both.sort_unstable();
            let list = Listed::new(bins, &both);
            (
                if low > high {
                    Vec::new()
                } else {
                    words(|p, w| {
                        bins.users.page(first(p)).map_or(0, |page| range.narrow(page, w, !0, number(p)))
                    })
                },
                words(|p, w| bins.users.page(first(p)).map_or(0, |page| list.narrow(page, w, !0, number(p)))),
            )
        }
    }
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 0i64..8,
        4 => -40i64..40,
        8 => -100_000i64..100_000,
        1 => any::<i64>(),
        1 => Just(i64::MIN),
        1 => Just(i64::MAX),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn equals_a_look_at_every_number(
        runs in prop::collection::vec((any::<u16>(), 1u16..2_000, number(), prop_oneof![0i64..2, 1i64..50]), 1..10),
        gone in prop::collection::vec(any::<u16>(), 0..40),
        questions in prop::collection::vec((number(), number()), 1..12),
    ) {
        let (mut index, mut forward) = (NumberIndex::default(), Column::<IntPage>::default());
        let mut model: BTreeMap<u16, i64> = BTreeMap::new();
        for (from, len, first, step) in runs {
            for i in 0..len {
                let local = from.wrapping_add(i.wrapping_mul(33));
                let number = first.wrapping_add(step.wrapping_mul(i64::from(i % 400)));
                forward.put(local, Some(number));
                index.put(&forward, local, model.insert(local, number), Some(number));
            }
        }
        for local in gone {
            let old = model.remove(&local);
            forward.put(local, None);
            index.put(&forward, local, old, None);
        }
        let rebuilt = NumberIndex::of(&forward);
        for (low, high) in questions {
            let inside = |n: i64| low <= n && n <= high;
            let range: Vec<u16> = model.iter().filter(|(_, n)| inside(**n)).map(|(l, _)| *l).collect();
            let listed: Vec<u16> = model.iter().filter(|(_, n)| **n == low || **n == high).map(|(l, _)| *l).collect();
            prop_assert_eq!(&find(&index, &forward, low, high), &(range.clone(), listed.clone()), "{} {}", low, high);
            prop_assert_eq!(&find(&rebuilt, &forward, low, high), &(range, listed), "built again: {} {}", low, high);
        }
    }
}

#[test]
fn many_changes_draw_the_bins_anew() {
    let (mut index, mut forward) = (NumberIndex::default(), Column::<IntPage>::default());
    let mut old = vec![None; 1 << 16];
    for round in 0..3i64 {
        for local in 0..=u16::MAX {
            let number = round * 1_000_000 + i64::from(local.wrapping_mul(40_503));
            forward.put(local, Some(number));
            index.put(&forward, local, old[local as usize].replace(number), Some(number));
        }
    }
    let NumberIndex::Bins(bins) = &index else { panic!("it has {} numbers", 1 << 16) };
    assert!(bins.bounds.len() > 200 && bins.bounds[0] >= 1_000_000, "drawn when the first ones were gone");
    let (range, _) = find(&index, &forward, 2_000_010, 2_000_500);
    let expected: Vec<u16> =
        (0..=u16::MAX).filter(|l| (10..=500).contains(&l.wrapping_mul(40_503))).collect();
    assert_eq!(range, expected);
}
