//! Keys order like values, and a bound of any form means for every kind what it means for the numbers themselves.

use super::*;
use proptest::prelude::*;

fn float() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        (-50i64..50).prop_map(|n| n as f64 / 4.0),
        prop::sample::select(vec![0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE, f64::MAX]),
        any::<i64>().prop_map(|n| n as f64),
    ]
}

fn whole_number() -> impl Strategy<Value = i128> {
    prop_oneof![
        -20i128..20,
        any::<i64>().prop_map(i128::from),
        any::<u64>().prop_map(i128::from),
        Just(i64::MAX.into()),
        Just(i64::MIN.into()),
        Just(u64::MAX.into()),
        Just(1 << 53),
        Just((1 << 53) + 1),
    ]
}

fn int_value(n: i128) -> Option<TagValue> {
    i64::try_from(n).map(TagValue::Int).ok().or_else(|| u64::try_from(n).map(TagValue::from).ok())
}

/// What a bound says of a key: whether the value is below it, at it, or above it.
fn seen(place: Place, key: i64) -> Option<Ordering> {
    match place {
        Place::Unordered => None,
        Place::Below => Some(Ordering::Greater),
        Place::At(at, true) => Some(key.cmp(&at)),
        Place::At(at, false) => Some(if key <= at { Ordering::Less } else { Ordering::Greater }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn floats_order_like_their_keys(a in float(), b in float()) {
        let expected = a.partial_cmp(&b);
        let keys = Float(a).key().cmp(&Float(b).key());
        match expected {
            Some(expected) => prop_assert_eq!(keys, expected, "{} {}", a, b),
            None => prop_assert!(a.is_nan() || b.is_nan()),
        }
        prop_assert_eq!(Float::of_key(Float(a).key()), Float(a));
        if a.is_nan() {
            prop_assert!(Float(a).key() > top(TagType::Float));
        } else {
            prop_assert!(Float(a).key() <= top(TagType::Float));
        }
    }

    #[test]
    fn whole_bounds_mean_the_number(value in whole_number(), bound in whole_number()) {
        let (Some(held), Some(written)) = (int_value(value), int_value(bound)) else { return Ok(()) };
        for kind in [TagType::Int, TagType::UInt, TagType::Decimal(0)] {
            let at = place(kind, &written).unwrap();
            if let Some(key) = key(kind, &held) {
                prop_assert_eq!(seen(at, key), Some(value.cmp(&bound)), "{} {}: {}", kind, value, bound);
                prop_assert_eq!(super::value(kind, key).to_string(), value.to_string());
            }
        }
    }

    #[test]
    fn whole_bounds_on_floats_are_exact(value in float(), bound in whole_number()) {
        let Some(written) = int_value(bound) else { return Ok(()) };
        // A float of less than 2^100 is a whole number and a part, both exact.
        if value.is_nan() || value.abs() > 1e30 { return Ok(()) }
        let (floor, part) = (value.floor() as i128, value.fract() != 0.0);
        let expected = floor.cmp(&bound).then(if part { Ordering::Greater } else { Ordering::Equal });
        prop_assert_eq!(seen(place(TagType::Float, &written).unwrap(), Float(value).key()), Some(expected));
    }

    #[test]
    fn decimal_bounds_are_exact(value in -2_000i64..2_000, scale in 0u8..4, bound in -200_000i128..200_000, written in 0u8..6) {
        let literal = TagValue::Decimal(Decimal::new(bound, written));
        let (a, b) = (i128::from(value) * 10i128.pow(written.into()), bound * 10i128.pow(scale.into()));
        prop_assert_eq!(seen(place(TagType::Decimal(scale), &literal).unwrap(), value), Some(a.cmp(&b)));
        if scale == 0 {
            prop_assert_eq!(seen(place(TagType::Int, &literal).unwrap(), value), Some(a.cmp(&b)));
        }
        let text = Decimal::new(bound, written).to_string();
        prop_assert_eq!(text.parse::<Decimal>().unwrap(), Decimal::new(bound, written));
    }

    /// Whatever a float's number of digits: here the value is exact as a float too.
    #[test]
    fn float_bounds_on_decimals_are_exact(value in -2_000i64..2_000, bound in float()) {
        if bound.is_nan() { return Ok(()) }
        let held = value as f64 / 4.0;
        let expected = held.partial_cmp(&bound);
        let at = place(TagType::Decimal(2), &TagValue::from(bound)).unwrap();
        prop_assert_eq!(seen(at, value * 25), expected, "{} {}", held, bound);
    }

    #[test]
    fn decimals_order_by_number(a in -2_000i128..2_000, b in -2_000i128..2_000, p in 0u8..39, q in 0u8..39, far: i128) {
        let (x, y) = (Decimal::new(a, p), Decimal::new(b, q));
        // At the same number of digits where both can be written so, else by size: far below one, 2,000 units are nothing.
        if p.abs_diff(q) < 30 {
            let most = p.max(q);
            let at = |n: i128, s: u8| n * 10i128.pow((most - s).into());
            prop_assert_eq!(x.cmp(&y), at(a, p).cmp(&at(b, q)).then(p.cmp(&q)), "{} {}", x, y);
        }
        prop_assert_eq!(x.cmp(&y), y.cmp(&x).reverse());
        let far = Decimal::new(far, p);
        prop_assert_eq!(far.cmp(&far), Ordering::Equal);
        prop_assert_eq!(far.cmp(&Decimal::new(0, p)), far.unscaled.cmp(&0));
    }

    #[test]
    fn days_and_moments_come_back(day in -700_000i32..2_900_000, ms in -60_000_000_000_000i64..250_000_000_000_000) {
        prop_assert_eq!(Date(day).to_string().parse::<Date>(), Ok(Date(day)), "{}", Date(day));
        prop_assert_eq!(Timestamp(ms).to_string().parse::<Timestamp>(), Ok(Timestamp(ms)), "{}", Timestamp(ms));
    }
}

#[test]
fn dates_are_read_in_utc_and_compare_with_moments() {
    let text = |t: &str| TagValue::from(t);
    assert_eq!("2021-01-01".parse::<Date>(), Ok(Date(18_628)));
    assert_eq!("2021-01-01 00:00:00".parse::<Timestamp>(), Ok(Timestamp(1_609_459_200_000)));
    assert_eq!("2021-01-01T08:00:00+08:00".parse::<Timestamp>(), Ok(Timestamp(1_609_459_200_000)));
    assert_eq!(Timestamp(-1).to_string(), "1969-12-31 23:59:59.999");
    let noon = place(TagType::Date, &text("2021-01-01 12:00:00")).unwrap();
    assert_eq!(noon, Place::At(18_628, false), "a day is before its noon");
    let day = place(TagType::Timestamp, &text("2021-01-01")).unwrap();
    assert_eq!(day, Place::At(1_609_459_200_000, true));
    for wrong in ["", "2021", "2021-13-01", "2021-02-30", "yesterday", "5"] {
        assert_eq!(place(TagType::Timestamp, &text(wrong)), None, "{wrong}");
        assert!(wrong.parse::<Date>().unwrap_err().to_string().contains("is not a date"), "{wrong}");
    }
}

#[test]
fn what_is_no_value_of_a_kind_is_refused() {
    for (kind, value) in [
        (TagType::Int, TagValue::from(1.0)),
        (TagType::Int, TagValue::from(u64::MAX)),
        (TagType::Int, TagValue::from("1")),
        (TagType::UInt, TagValue::from(-1)),
        (TagType::Bool, TagValue::from(1)),
        (TagType::Decimal(2), TagValue::from(0.5)),
        (TagType::Decimal(2), TagValue::from(Decimal::new(1, 3))),
        (TagType::Decimal(2), TagValue::from(i64::MAX)),
        (TagType::Date, TagValue::from(5)),
        (TagType::Date, TagValue::from("2021-01-01 12:00:00")),
        (TagType::Timestamp, TagValue::from("soon")),
        (TagType::Float, TagValue::from("1")),
        // It is no float exactly.
        (TagType::Float, TagValue::from(i64::MAX)),
    ] {
        assert_eq!(key(kind, &value), None, "{kind} {value}");
    }
    assert_eq!(key(TagType::Float, &TagValue::from(7)), Some(Float(7.0).key()));
    assert_eq!(key(TagType::Decimal(2), &TagValue::from(Decimal::new(50, 1))), Some(500));
}

#[test]
fn growing_stays_in_range_and_in_kind() {
    use NotGrown::{Mismatch, Overflow};
    let of = |kind, from: Option<TagValue>, by: TagValue| {
        grown(kind, from.map(|v| key(kind, &v).unwrap()), &by).map(|k| value(kind, k).to_string())
    };
    let from = |v: i64| Some(TagValue::from(v));
    assert_eq!(of(TagType::Int, None, 5.into()), Ok("5".into()));
    assert_eq!(of(TagType::Int, from(i64::MAX), 1.into()), Err(Overflow));
    assert_eq!(of(TagType::Int, None, 0.5.into()), Err(Mismatch));
    assert_eq!(of(TagType::UInt, from(3), (-4).into()), Err(Overflow));
    assert_eq!(of(TagType::UInt, Some(u64::MAX.into()), 1.into()), Err(Overflow));
    assert_eq!(of(TagType::UInt, from(i64::MAX), i64::MAX.into()), Ok((u64::MAX - 1).to_string()));
    assert_eq!(of(TagType::Float, Some(0.5.into()), 1.into()), Ok("1.5".into()));
    assert_eq!(of(TagType::Decimal(2), from(1), Decimal::new(5, 1).into()), Ok("1.50".into()));
    assert_eq!(of(TagType::Decimal(2), from(1), Decimal::new(5, 3).into()), Err(Mismatch));
    assert_eq!(of(TagType::Bool, None, 1.into()), Err(Mismatch));
    assert_eq!(of(TagType::Timestamp, from(1_000), 500.into()), Ok("'1970-01-01 00:00:01.500'".into()));
}

#[test]
fn a_decimal_with_more_digits_than_there_are_is_refused_when_read() {
    let price = Decimal::new(-1250, 2);
    let json = serde_json::to_string(&price).unwrap();
    assert_eq!(json, r#"{"unscaled":-1250,"scale":2}"#);
    assert_eq!(serde_json::from_str::<Decimal>(&json).unwrap(), price);
    assert!(serde_json::from_str::<Decimal>(r#"{"unscaled":1,"scale":38}"#).unwrap() < Decimal::new(1, 37));
    let error = serde_json::from_str::<Decimal>(r#"{"unscaled":1,"scale":200}"#).unwrap_err().to_string();
    assert!(error.contains("38 digits behind the point at most, not 200"), "{error}");
}
