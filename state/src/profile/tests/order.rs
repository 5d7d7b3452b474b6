//! The order in which updates arrive does not matter where event times decide.

use super::super::*;
use super::model::{run, updates};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn shuffled_updates_give_the_same_digest(
        (updates, shuffled) in updates(false).prop_flat_map(|u| (Just(u.clone()), Just(u).prop_shuffle()))
    ) {
        let one = run(&updates, 1).reader();
        let other = run(&shuffled, 2).reader();
        prop_assert_eq!(one.digest().value, other.digest().value);
    }

    #[test]
    fn increments_commute(by in prop::collection::vec(-50i64..50, 1..40).prop_flat_map(|b| (Just(b.clone()), Just(b).prop_shuffle()))) {
        let of = |list: &[i64]| -> Vec<ProfileUpdate> {
            list.iter().map(|n| ProfileUpdate::of(1u64).at(n % 7).increment("buys", *n)).collect()
        };
        prop_assert_eq!(run(&of(&by.0), 1).reader().digest().value, run(&of(&by.1), 1).reader().digest().value);
    }
}
