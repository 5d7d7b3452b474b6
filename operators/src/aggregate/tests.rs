//! Every aggregate against plain computations, in one go and in parts, and through the codec that state is written with.

use super::*;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use weir_state::codec::CodecId;

fn add<In, A: Aggregate<In>>(a: &A, values: &[In]) -> A::Acc {
    let mut acc = a.create();
    values.iter().for_each(|v| a.add(&mut acc, v));
    acc
}

/// What is written and read back.
fn stored<T: Serialize + DeserializeOwned>(value: &T) -> T {
    let mut bytes = Vec::new();
    CodecId::BINCODE.encode(value, &mut bytes).unwrap();
    CodecId::BINCODE.decode(&bytes).unwrap()
}

/// Adding in one go is adding in parts, each of which may have been stored; and that is what it gives.
fn come_to<In, A: Aggregate<In, Out: PartialEq + fmt::Debug>>(a: &A, values: &[In], at: usize) -> A::Out {
    let (left, right) = values.split_at(at.min(values.len()));
    let mut parts = stored(&add(a, left));
    a.merge(&mut parts, stored(&add(a, right)));
    let mut onto_nothing = a.create();
    a.merge(&mut onto_nothing, add(a, values));
    a.merge(&mut onto_nothing, a.create());
    let result = a.result(add(a, values));
    assert_eq!(a.result(parts), result, "in parts");
    assert_eq!(a.result(onto_nothing), result, "merged with nothing");
    result
}

/// Values with many ties, and which of them came when.
fn values() -> impl Strategy<Value = Vec<(i64, usize)>> {
    let value = prop_oneof![4 => -5..5i64, 1 => any::<i64>()];
    prop::collection::vec(value, 0..40)
        .prop_map(|values| values.into_iter().enumerate().map(|(at, v)| (v, at)).collect())
}

type Value = (i64, usize);

proptest! {
    #[test]
    fn agree_with_plain_computations(values in values(), at in 0usize..40, n in 1usize..6) {
        let plain: Vec<i64> = values.iter().map(|v| v.0).collect();
        prop_assert_eq!(come_to(&count(), &values, at), values.len() as u64);
        let positive = plain.iter().filter(|v| **v > 0).count() as u64;
        prop_assert_eq!(come_to(&count_where(|v: &Value| v.0 > 0), &values, at), positive);
        let total: i128 = plain.iter().map(|v| i128::from(*v)).sum();
        prop_assert_eq!(come_to(&sum(|v: &Value| i128::from(v.0)), &values, at), total);
        let mean = (!plain.is_empty()).then(|| total as f64 / plain.len() as f64);
        prop_assert_eq!(come_to(&avg(|v: &Value| v.0), &values, at), mean);
        prop_assert_eq!(come_to(&min(|v: &Value| v.0), &values, at), plain.iter().min().copied());
        prop_assert_eq!(come_to(&max(|v: &Value| v.0), &values, at), plain.iter().max().copied());
        // A stable sort keeps the first of equals first.
        let mut sorted = values.clone();
        sorted.sort_by_key(|v| v.0);
        prop_assert_eq!(come_to(&min_by(|v: &Value| v.0), &values, at), sorted.first().copied());
        prop_assert_eq!(come_to(&top(n, |v: &Value| Reverse(v.0)), &values, at), sorted[..n.min(sorted.len())].to_vec());
        sorted.sort_by_key(|v| (Reverse(v.0), v.1));
        prop_assert_eq!(come_to(&max_by(|v: &Value| v.0), &values, at), sorted.first().copied());
        prop_assert_eq!(come_to(&top(n, |v: &Value| v.0), &values, at), sorted[..n.min(sorted.len())].to_vec());
        let different = plain.iter().collect::<BTreeSet<_>>().len() as u64;
        prop_assert_eq!(come_to(&distinct(|v: &Value| v.0), &values, at), different);
        prop_assert_eq!(come_to(&distinct_of(|v: &Value| &v.0), &values, at), different);
        prop_assert_eq!(come_to(&approx_distinct(|v: &Value| &v.0), &values, at), different);
        prop_assert_eq!(come_to(&collect(|v: &Value| v.0), &values, at), plain);
        let later = reduce(|held: &mut Value, next: &Value| if next.0 >= held.0 { *held = *next });
        prop_assert_eq!(come_to(&later, &values, at), values.iter().max_by_key(|v| **v).copied());
    }

    #[test]
    fn several_at_once_are_each_by_itself(values in values(), at in 0usize..40) {
        let all = (count(), min_by(|v: &Value| v.0), top(3, |v: &Value| v.0), distinct(|v: &Value| v.0),
                   max(|v: &Value| v.0), collect(|v: &Value| v.1));
        let expected = (
            come_to(&all.0, &values, at), come_to(&all.1, &values, at), come_to(&all.2, &values, at),
            come_to(&all.3, &values, at), come_to(&all.4, &values, at), come_to(&all.5, &values, at),
        );
        prop_assert_eq!(come_to(&all, &values, at), expected);
    }

    /// A sketch of thousands says the same however its values were split and whatever their order.
    #[test]
    fn a_sketch_depends_on_the_set_alone(seed in any::<u64>(), n in 1usize..30_000, at in 0usize..30_000, by in 1usize..7) {
        let values: Vec<u64> = (0..n as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed).collect();
        let a = approx_distinct(|v: &u64| v).precision(12);
        let counted = come_to(&a, &values, at);
        let mut turned = values.clone();
        turned.rotate_left(at % n);
        turned.extend_from_slice(&values[..n / by]);
        prop_assert_eq!(a.result(add(&a, &turned)), counted);
        // Five standard errors.
        let off = (counted as f64 - n as f64).abs() / n as f64;
        prop_assert!(off < 5.0 * 1.04 / 64.0, "{counted} of {n}");
    }
}

#[test]
fn what_cannot_be_compared_is_passed_over() {
    let values = [f64::NAN, 1.0, f64::NAN, 3.0, 2.0];
    assert_eq!(come_to(&top(2, |v: &f64| *v), &values, 2), [3.0, 2.0]);
    assert_eq!(come_to(&max_by(|v: &f64| *v), &values, 1), Some(3.0));
    assert_eq!(come_to(&min_by(|v: &f64| *v), &values, 1), Some(1.0));
    assert!(come_to(&top(0, |v: &f64| *v), &values, 1).is_empty());
}

#[test]
fn integers_of_every_type_are_told_apart() {
    assert_eq!(come_to(&distinct(|v: &i8| *v), &[-1, 1, 0, -1, i8::MIN], 2), 4);
    assert_eq!(come_to(&distinct(|v: &bool| *v), &[true, false, true], 1), 2);
    assert_eq!(come_to(&distinct(|v: &char| *v), &['a', '人', 'a'], 1), 2);
    assert_eq!(come_to(&distinct(|v: &u64| *v), &[u64::MAX, 0, u64::MAX - 1], 1), 3);
}

#[test]
fn a_sketch_of_few_is_small() {
    let a = approx_distinct(|v: &u64| v);
    let size = |n: u64| {
        let mut bytes = Vec::new();
        CodecId::BINCODE.encode(&add(&a, &(0..n).collect::<Vec<_>>()), &mut bytes).unwrap();
        bytes.len()
    };
    assert!(size(1) < 40, "{}", size(1));
    assert!(size(1_000) < 6_000, "{}", size(1_000));
    assert!(size(1_000_000) < 20_000, "{}", size(1_000_000));
}

#[test]
#[should_panic(expected = "another precision than the job declares (14 bits)")]
fn sketches_of_two_precisions_are_not_merged() {
    let a = approx_distinct(|v: &u64| v);
    a.merge(&mut a.create(), a.clone().precision(12).create());
}

#[test]
fn a_later_life_with_a_shorter_top_gives_no_more_than_that() {
    let values = [1i64, 2, 3, 4, 5];
    let mut kept = top(5, |v: &i64| *v).create();
    values.iter().for_each(|v| top(5, |v: &i64| *v).add(&mut kept, v));
    assert_eq!(top(3, |v: &i64| *v).result(kept), [5, 4, 3]);
}
