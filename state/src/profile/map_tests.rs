//! Entries of a map under any order of updates, and conditions on keys, against a plain reading of the rules.

use super::super::*;
use super::*;
use crate::key::KEY_GROUPS;
use proptest::prelude::*;
use std::collections::BTreeMap;

const KEYS: [&str; 4] = ["city", "n", "", "n2"];

fn values() -> Vec<TagValue> {
    vec![
        "Paris".into(),
        "".into(),
        "5".into(),
        5.into(),
        (-5).into(),
        5.0.into(),
        0.5.into(),
        (-0.0).into(),
        true.into(),
        false.into(),
        u64::MAX.into(),
    ]
}

#[derive(Debug, Clone)]
enum Step {
    Put(usize, usize),
    Remove(usize),
    Set(Vec<(usize, usize)>),
    Unset,
}

fn step() -> impl Strategy<Value = Step> {
    let (key, value) = (|| 0..KEYS.len(), || 0..values().len());
    prop_oneof![
        6 => (key(), value()).prop_map(|(k, v)| Step::Put(k, v)),
        2 => key().prop_map(Step::Remove),
        1 => prop::collection::vec((key(), value()), 0..3).prop_map(Step::Set),
        1 => Just(Step::Unset),
    ]
}

/// The greatest (time, value) of a key decides, no value being least, unless a newer set or unset of the whole covers it.
fn plain(steps: &[(i64, Step)]) -> Option<BTreeMap<String, TagValue>> {
    let clears = steps.iter().filter(|s| matches!(s.1, Step::Set(_) | Step::Unset));
    let cleared = clears.map(|s| s.0).max().unwrap_or(i64::MIN);
    let touched = steps.iter().filter(|s| !matches!(s.1, Step::Unset)).map(|s| s.0).max()?;
    if touched < cleared {
        return None;
    }
    let mut said: BTreeMap<usize, (i64, Option<String>)> = BTreeMap::new();
    for (time, step) in steps.iter().filter(|s| s.0 >= cleared) {
        let mut say = |key: usize, value: Option<usize>| {
            let new = (*time, value.map(|v| encode(&values()[v]).unwrap()));
            let old = said.entry(key).or_insert_with(|| new.clone());
            *old = old.clone().max(new);
        };
        match step {
            Step::Put(key, value) => say(*key, Some(*value)),
            Step::Remove(key) => say(*key, None),
            Step::Set(all) => {
                let last: BTreeMap<usize, usize> = all.iter().copied().collect();
                last.into_iter().for_each(|(key, value)| say(key, Some(value)));
            }
            Step::Unset => {}
        }
    }
    let held =
        said.into_iter().filter_map(|(key, (_, value))| Some((KEYS[key].to_owned(), decode(&value?)?)));
    Some(held.collect())
}

fn update(time: i64, step: &Step) -> ProfileUpdate {
    let update = ProfileUpdate::of(7u64).at(time);
    match step {
        Step::Put(key, value) => update.put("m", KEYS[*key], values()[*value].clone()),
        Step::Remove(key) => update.remove("m", KEYS[*key]),
        Step::Set(all) => {
            let all = all.iter().map(|(k, v)| (KEYS[*k].to_owned(), values()[*v].clone()));
            update.set("m", TagValue::Map(all.collect()))
        }
        Step::Unset => update.unset("m"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_newest_word_on_each_key_counts(steps in prop::collection::vec((0i64..5, step()), 0..14)) {
        let profiles = Profiles::named("t").tag("m", TagType::Map);
        let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
        for (time, step) in &steps {
            writer.apply(update(*time, step)).unwrap();
        }
        writer.publish(1);
        let seen = profiles.reader().profile(&7u64.into()).value.unwrap_or_default();
        let expected = plain(&steps);
        let whole = expected.clone().map(TagValue::Map);
        prop_assert_eq!(seen.get("m"), whole.as_ref());
        for (key, name) in KEYS.iter().enumerate() {
            let held = expected.as_ref().and_then(|m| m.get(*name));
            let count = |p: Predicate| profiles.reader().count(&p).unwrap().value == 1;
            prop_assert_eq!(count(tag("m").key(*name).exists()), held.is_some(), "{}", key);
            for value in values() {
                let same = held.is_some_and(|h| order(h, &value) == Some(Ordering::Equal));
                prop_assert_eq!(count(tag("m").key(*name).eq(value.clone())), same, "{:?} = {}", held, value);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn values_come_back_as_they_were(float: f64, int: i64, uint: u64, text: String) {
        let back = |value: TagValue| decode(&encode(&value).unwrap()).unwrap();
        if float.is_finite() {
            let TagValue::Float(read) = back(float.into()) else { panic!("{float}") };
            prop_assert_eq!(read.0.to_bits(), (float + 0.0).to_bits());
        }
        prop_assert_eq!(back(int.into()), int.into());
        prop_assert_eq!(back(uint.into()), uint.into());
        prop_assert_eq!(back(text.as_str().into()), text.into());
    }
}

#[test]
fn a_float_is_found_by_itself() {
    let profiles = Profiles::named("t").tag("m", TagType::Map);
    let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    let float = 0.9452706955539223;
    writer.apply(ProfileUpdate::of(1u64).at(1).put("m", "k", float)).unwrap();
    writer.finish(1);
    let profile = profiles.reader().profile(&1u64.into()).value.unwrap();
    assert_eq!(profile["m"], TagValue::Map([("k".to_owned(), float.into())].into()));
    for (condition, expected) in [("=", 1), ("!=", 0), (">", 0), (">=", 1)] {
        let text = format!("select count() from t where m['k'] {condition} {float}");
        assert_eq!(profiles.reader().sql(&text).unwrap().value.count(), Some(expected), "{text}");
    }
}

#[test]
fn statements_ask_for_keys() {
    let profiles = Profiles::named("t").tag("m", TagType::Map);
    let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    let of = |user: u64| ProfileUpdate::of(user).at(1);
    for update in [
        of(1).put("m", "city", "Paris").put("m", "n", 5),
        of(2).put("m", "n", 7.5),
        of(3).set("m", TagValue::Map(BTreeMap::new())),
        of(4).put("m", "city", "Pau").put("m", "n", "5").put("m", "vip", true),
    ] {
        writer.apply(update).unwrap();
    }
    writer.finish(1);
    for (condition, expected) in [
        ("m['city'] = 'Paris'", vec![1]),
        ("m['city'] like 'Pa%'", vec![1, 4]),
        ("m['city'] != 'Paris'", vec![4]),
        ("not m['city'] = 'Paris'", vec![4]),
        ("m['city'] is null", vec![2, 3]),
        ("m['n'] >= 5", vec![1, 2]),
        ("m['n'] between 5.5 and 8", vec![2]),
        ("m['n'] not between 5.5 and 8", vec![1]),
        ("m['n'] in (5, 6)", vec![1]),
        ("m['n'] = '5'", vec![4]),
        ("m['vip'] = true", vec![4]),
        ("mapContains(m, 'n') and not mapContains(m, 'city')", vec![2]),
        ("not mapContains(m, 'city')", vec![2, 3]),
        ("JSON_UNQUOTE(JSON_EXTRACT(m, '$.\"city\"')) = 'Pau'", vec![4]),
        ("JSON_EXTRACT(m, '$.city') = 'Paris'", vec![1]),
        ("length(m) = 0", vec![3]),
        ("m is not null", vec![1, 2, 3, 4]),
    ] {
        let rows =
            profiles.reader().sql(&format!("select user_id from t where {condition}")).unwrap().value.rows;
        let mut ids: Vec<i64> = rows.iter().map(|row| row[0].as_ref().unwrap().as_int().unwrap()).collect();
        ids.sort_unstable();
        assert_eq!(ids, expected, "{condition}");
    }
    let cell =
        profiles.reader().sql("select m from t where user_id = 4").unwrap().value.rows.remove(0).remove(0);
    assert_eq!(cell.unwrap().to_string(), r#"{"city": 'Pau', "n": '5', "vip": true}"#);
    for (wrong, message) in [
        ("m = 'x'", "does not fit map tag 'm'"),
        ("m[1] = 'x'", "m[1]"),
        ("hasAny(m, ['x'])", "does not fit map tag"),
        ("JSON_EXTRACT(m, '$.a.b') = 1", "JSON_EXTRACT(m, '$.a.b')"),
    ] {
        let error =
            profiles.reader().sql(&format!("select user_id from t where {wrong}")).unwrap_err().to_string();
        assert!(error.contains(message), "{wrong}: {error}");
    }
    let mut writer = profiles.writer(0..KEY_GROUPS, 2).unwrap();
    for wrong in [of(1).put("m", "a\0b", 1), of(1).put("m", "a", f64::NAN), of(1).set("m", "x")] {
        assert!(writer.apply(wrong).unwrap_err().to_string().contains("map tag 'm'"));
    }
}

#[test]
fn a_day_compared_with_what_is_under_a_key_is_its_text() {
    let profiles = Profiles::with_key_groups("t", 2).tag("m", TagType::Map);
    let mut writer = profiles.writer(0..2, 1).unwrap();
    for (user, day) in [(1u64, "2021-02-27"), (2, "2021-02-28"), (3, "2021-03-01")] {
        writer.apply(ProfileUpdate::of(user).at(1).put("m", "born", day)).unwrap();
    }
    writer.publish(1);
    let reader = profiles.reader();
    for day in [
        "toDate('2021-02-28')",
        "date('2021-02-28')",
        "date('2021-02-28 10:00:00')",
        "'2021-02-28'",
        "DATE '2021-02-28'",
    ] {
        for (condition, users) in [
            (format!("m['born'] = {day}"), 1),
            (format!("m['born'] != {day}"), 2),
            (format!("m['born'] >= {day}"), 2),
            (format!("m['born'] < {day}"), 1),
            (format!("m['born'] in ({day}, 'x')"), 1),
            (format!("m['born'] not in ({day})"), 2),
            (format!("m['born'] between {day} and {day}"), 1),
            (format!("JSON_EXTRACT(m, '$.born') <= {day}"), 2),
        ] {
            let counted = reader.sql(&format!("select count(*) from t where {condition}")).unwrap().value;
            assert_eq!(counted.count(), Some(users), "{condition}");
            let bare = Predicate::parse(&condition).unwrap();
            assert_eq!(reader.count(&bare).unwrap().value, users, "{condition}, bare");
        }
    }
    let day: Date = "2021-02-28".parse().unwrap();
    assert_eq!(reader.count(&tag("m").key("born").eq(day)).unwrap().value, 1);
    let moment: Timestamp = "2021-02-28 10:00:00".parse().unwrap();
    assert_eq!(reader.count(&tag("m").key("born").le(moment)).unwrap().value, 2);
}
