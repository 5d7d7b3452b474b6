//! Statistics of random segments of random rows of every type, against a plain loop over the rows.

use super::super::*;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const GROUPS: u16 = 3;

fn kinds() -> [(&'static str, TagType, Vec<TagValue>); 9] {
    let many = |values: [f64; 6]| values.map(TagValue::from).to_vec();
    [
        ("enum", TagType::Enum, ["a", "b", "ä", ""].map(TagValue::from).to_vec()),
        ("int", TagType::Int, [i64::MAX, i64::MIN, 0, 3, -3].map(TagValue::from).to_vec()),
        ("uint", TagType::UInt, [u64::MAX, 1 << 63, 0, 3].map(TagValue::from).to_vec()),
        ("float", TagType::Float, many([f64::NAN, f64::INFINITY, -0.5, 1e16, 1.0, -1e16])),
        ("bool", TagType::Bool, [true, false].map(TagValue::from).to_vec()),
        (
            "price",
            TagType::Decimal(2),
            [i64::MAX, 1250, -5].map(|n| Decimal::new(n.into(), 2).into()).to_vec(),
        ),
        ("day", TagType::Date, [-1, 0, 18_628].map(|d| Date(d).into()).to_vec()),
        ("at", TagType::Timestamp, [-1, 0, 1_609_459_200_000].map(|t| Timestamp(t).into()).to_vec()),
        ("set", TagType::Set, vec![["a", "b"].into(), ["b"].into(), TagValue::Set(Default::default())]),
    ]
}

type Row = BTreeMap<&'static str, TagValue>;

/// The rows of a segment that have something of a tag.
fn of<'r>(rows: &'r [(Row, bool)], tag: &'r str, all: bool) -> impl Iterator<Item = &'r TagValue> {
    rows.iter().filter(move |(_, inside)| *inside || all).filter_map(move |(row, _)| row.get(tag))
}

fn counted<'v>(values: impl Iterator<Item = &'v TagValue>) -> BTreeMap<TagValue, u64> {
    let mut counts = BTreeMap::new();
    for value in values {
        match value {
            TagValue::Set(set) => set.iter().for_each(|v| *counts.entry(v.as_str().into()).or_default() += 1),
            value => *counts.entry(value.clone()).or_default() += 1,
        }
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn statistics_equal_a_loop_over_rows(
        rows in prop::collection::vec((prop::collection::vec(prop::option::weighted(0.8, any::<prop::sample::Index>()), 9), any::<bool>()), 0..40),
        most in 0usize..6,
        tenths in 0usize..=1_000,
    ) {
        let space = Profiles::with_key_groups("p", GROUPS).tag("inside", TagType::Bool);
        let profiles = kinds().iter().fold(space, |space, (name, kind, _)| space.tag(name, *kind));
        let mut writer = profiles.writer(0..GROUPS, 1).unwrap();
        let rows: Vec<(Row, bool)> = rows.iter().enumerate().map(|(user, (picked, inside))| {
            let mut update = ProfileUpdate::of(user as u64).at(1).set("inside", *inside);
            let mut row = Row::new();
            for ((name, _, values), pick) in kinds().into_iter().zip(picked) {
                if let Some(pick) = pick {
                    let value = pick.get(&values).clone();
                    update = update.set(name, value.clone());
                    row.insert(name, value);
                }
            }
            writer.apply(update).unwrap();
            (row, *inside)
        }).collect();
        writer.publish(1);
        let snapshot = profiles.reader().snapshot();
        let segment = super::super::tag("inside").eq(true);
        let (all, inside) = (rows.len() as f64, rows.iter().filter(|r| r.1).count());
        for (name, kind, _) in kinds() {
            let everyone = counted(of(&rows, name, true));
            let mut expected: Vec<(TagValue, u64)> = counted(of(&rows, name, false)).into_iter().collect();
            expected.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            expected.truncate(most);
            let tops = snapshot.top_values(name, &segment, most).unwrap().value;
            let found: Vec<(TagValue, u64)> = tops.iter().map(|t| (t.value.clone(), t.users)).collect();
            prop_assert_eq!(&found, &expected, "{}", name);
            for top in &tops {
                prop_assert_eq!(top.everyone, everyone[&top.value], "{} {}", name, top.value);
                let lift = (top.users as f64 / inside as f64) / (top.everyone as f64 / all);
                prop_assert!((top.lift - lift).abs() < 1e-9);
            }
            if kind.shape() != Shape::Number {
                prop_assert!(snapshot.number_stats(name, &segment, &[]).is_err());
                continue;
            }
            let mut values: Vec<TagValue> = of(&rows, name, false).cloned().collect();
            let nan = |v: &TagValue| matches!(v, TagValue::Float(f) if f.0.is_nan());
            let nans = values.iter().filter(|v| nan(v)).count();
            values.retain(|v| !nan(v));
            values.sort();
            let stats = snapshot.number_stats(name, &segment, &[0.0, tenths as f64 / 10.0, 100.0]).unwrap().value;
            prop_assert_eq!((stats.users, stats.nans), (values.len() as u64, nans as u64));
            prop_assert_eq!((stats.min.as_ref(), stats.max.as_ref()), (values.first(), values.last()), "{}", name);
            // By counting, in whole numbers: the first of the values that enough of them do not exceed.
            let enough = |v: &&TagValue| 1_000 * values.iter().filter(|w| w <= v).count() >= tenths * values.len();
            let percentiles: Vec<TagValue> = stats.percentiles.iter().map(|p| p.1.clone()).collect();
            let ranked = [values.first(), values.iter().find(enough), values.last()];
            prop_assert_eq!(percentiles, ranked.into_iter().flatten().cloned().collect::<Vec<_>>(), "{}", name);
            let whole: i128 = values.iter().map(|v| match v {
                TagValue::Int(n) => i128::from(*n),
                TagValue::UInt(n) => i128::from(*n),
                TagValue::Decimal(d) => d.to_string().replace('.', "").parse().unwrap(),
                _ => 0,
            }).sum();
            match (kind, stats.sum) {
                (_, None) => prop_assert!(values.is_empty() || matches!(kind, TagType::Bool | TagType::Date | TagType::Timestamp)),
                (TagType::Float, Some(TagValue::Float(sum))) => {
                    let infinite = values.iter().filter(|v| matches!(v, TagValue::Float(f) if f.0.is_infinite())).count();
                    // In halves all of these are exact in whole numbers.
                    let halves: i128 = values.iter().map(|v| match v {
                        TagValue::Float(f) if f.0.is_finite() => (f.0 * 2.0) as i128,
                        _ => 0,
                    }).sum();
                    if infinite > 0 { prop_assert_eq!(sum.0, f64::INFINITY) } else { prop_assert_eq!(sum.0, halves as f64 / 2.0) }
                    prop_assert_eq!(stats.mean.unwrap(), sum.0 / values.len() as f64);
                }
                (TagType::Decimal(_), Some(sum)) => prop_assert_eq!(sum, Decimal::new(whole, 2).into()),
                (_, Some(sum)) => {
                    prop_assert_eq!(sum.to_string(), whole.to_string());
                    prop_assert_eq!(stats.mean.unwrap(), whole as f64 / values.len() as f64);
                }
            }
        }
        let (first, second) = (segment.clone(), super::super::tag("set").has_any(["a"]));
        let a = |row: &(Row, bool)| row.1;
        let b = |row: &(Row, bool)| matches!(row.0.get("set"), Some(TagValue::Set(s)) if s.contains("a"));
        let count = |holds: &dyn Fn(&(Row, bool)) -> bool| rows.iter().filter(|r| holds(r)).count() as u64;
        let overlap = snapshot.overlap(&first, &second).unwrap().value;
        prop_assert_eq!(
            (overlap.first, overlap.second, overlap.both, overlap.either),
            (count(&a), count(&b), count(&|r| a(r) && b(r)), count(&|r| a(r) || b(r)))
        );
        let jaccard = if overlap.either == 0 { 0.0 } else { overlap.both as f64 / overlap.either as f64 };
        prop_assert_eq!(overlap.jaccard, jaccard);
        let lift = if overlap.first == 0 || overlap.second == 0 { 0.0 } else {
            (overlap.both as f64 / overlap.first as f64) / (overlap.second as f64 / all)
        };
        prop_assert!((overlap.lift - lift).abs() < 1e-9);
    }
}

#[test]
fn percentiles_are_of_the_nearest_rank_whatever_floats_make_of_the_percentage() {
    for size in [1usize, 25, 50, 100, 999, 1_000] {
        let profiles = Profiles::with_key_groups("p", GROUPS).int_tag("n");
        let mut writer = profiles.writer(0..GROUPS, 1).unwrap();
        for n in 1..=size as i64 {
            writer.apply(ProfileUpdate::of(n as u64).at(1).set("n", n)).unwrap();
        }
        writer.publish(1);
        let tenths = 0..=1_000usize;
        let percentiles: Vec<f64> = tenths.clone().map(|t| t as f64 / 10.0).collect();
        let stats = profiles.reader().number_stats("n", &Predicate::all(), &percentiles).unwrap().value;
        for (tenths, (percent, found)) in tenths.zip(stats.percentiles) {
            let nearest = (1..=size).find(|n| 1_000 * n >= tenths * size).unwrap();
            assert_eq!(found, TagValue::from(nearest), "{percent} of {size}");
        }
        let odd =
            [f64::NAN, -1.0, -0.0, f64::MIN_POSITIVE, 1e-9, 1.0 / 3.0, 100.0 - 1e-14, 1e300, f64::INFINITY];
        let stats = profiles.reader().number_stats("n", &Predicate::all(), &odd).unwrap().value;
        let found: Vec<TagValue> = stats.percentiles.into_iter().map(|p| p.1).collect();
        let third = size.div_ceil(300);
        let expected = [1, 1, 1, 1, 1, third, size, size, size].map(TagValue::from);
        assert_eq!(found, expected, "{size}");
    }
}

#[test]
fn sums_keep_their_type_and_means_of_large_floats_are_finite() {
    let of = |kind: TagType, values: &[TagValue]| {
        let profiles = Profiles::with_key_groups("p", GROUPS).tag("n", kind);
        let mut writer = profiles.writer(0..GROUPS, 1).unwrap();
        for (user, value) in values.iter().enumerate() {
            writer.apply(ProfileUpdate::of(user as u64).at(1).set("n", value.clone())).unwrap();
        }
        writer.publish(1);
        let stats = profiles.reader().number_stats("n", &Predicate::all(), &[]).unwrap().value;
        (stats.sum.unwrap(), stats.mean.unwrap())
    };
    let floats = |values: &[f64]| of(TagType::Float, &values.iter().map(|n| (*n).into()).collect::<Vec<_>>());
    assert_eq!(floats(&[1e308, 1e308]), (f64::INFINITY.into(), 1e308));
    assert_eq!(floats(&[-f64::MAX, -f64::MAX, -f64::MAX]), (f64::NEG_INFINITY.into(), -f64::MAX));
    let (sum, mean) = floats(&[1e308, 1e308, -1e308, -1e308]);
    assert_eq!((sum, mean), (0.0.into(), 0.0));
    assert_eq!(floats(&[f64::INFINITY, 1.0]), (f64::INFINITY.into(), f64::INFINITY));
    let (sum, mean) = floats(&[f64::INFINITY, f64::NEG_INFINITY]);
    assert!(sum == f64::NAN.into() && mean.is_nan());
    assert_eq!(floats(&[5e-324, 5e-324]), (1e-323.into(), 5e-324));
    let large = |n: u64| TagValue::from(n);
    for kind in [TagType::Int, TagType::UInt] {
        assert_eq!(of(kind, &[large(1), large(2)]).0, TagValue::Int(3));
        assert_eq!(of(kind, &[large(i64::MAX as u64), large(1)]).0, TagValue::UInt(1 << 63));
    }
    let beyond = of(TagType::UInt, &[large(u64::MAX), large(1)]).0;
    assert_eq!(beyond, Decimal::new(1 << 64, 0).into());
    assert_eq!(of(TagType::Int, &[i64::MIN.into(), (-1).into()]).0, Decimal::new(-(1 << 63) - 1, 0).into());
}

#[test]
fn what_has_no_statistics_says_so() {
    let profiles = Profiles::named("p").tag("m", TagType::Map).enum_tag("city").tag("shops", TagType::IntSet);
    let mut writer = profiles.writer(0..profiles.key_groups(), 1).unwrap();
    writer.apply(ProfileUpdate::of(1u64).at(1).set("shops", [7, 8]).set("city", "x")).unwrap();
    writer.finish(1);
    let (reader, all) = (profiles.reader(), Predicate::all());
    let tops = reader.top_values("shops", &all, 1).unwrap().value;
    assert_eq!((tops[0].value.clone(), tops[0].users, tops[0].everyone), (TagValue::Int(7), 1, 1));
    let error = |e: QueryError| e.to_string();
    assert!(error(reader.top_values("m", &all, 1).unwrap_err()).contains("top values of map tag 'm'"));
    assert!(error(reader.top_values("nope", &all, 1).unwrap_err()).contains("tag 'nope' is not known"));
    assert!(
        error(reader.number_stats("city", &all, &[]).unwrap_err()).contains("statistics of enum tag 'city'")
    );
}
