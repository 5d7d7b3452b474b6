//! Faults that users of other systems reported, as questions here: 64-bit values, numbers out of range, empty lists and null.

use super::super::locals::Locals;
use super::super::*;
use crate::key::KEY_GROUPS;
use std::collections::BTreeMap;

const NOBODY: [u64; 0] = [];

/// A space of one table whose users have what is given, and who matches a WHERE clause there.
struct Table(Profiles);

impl Table {
    fn of(tags: &[(&str, TagType)], users: impl IntoIterator<Item = ProfileUpdate>) -> Self {
        let profiles = tags.iter().fold(Profiles::named("t"), |p, (name, kind)| p.tag(name, *kind));
        let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
        users.into_iter().for_each(|update| _ = writer.apply(update.at(1)).unwrap());
        writer.finish(1);
        Table(profiles)
    }

    fn who(&self, condition: &str) -> Vec<u64> {
        let text = format!("select user_id from t where {condition}");
        let answer = self.0.reader().sql(&text).unwrap_or_else(|e| panic!("{text}: {e}")).value;
        let id = |row: Vec<Option<TagValue>>| match row[0] {
            Some(TagValue::Int(n)) => n as u64,
            Some(TagValue::UInt(n)) => n,
            ref other => panic!("{other:?}"),
        };
        let mut ids: Vec<u64> = answer.rows.into_iter().map(id).collect();
        ids.sort_unstable();
        ids
    }
}

fn user(id: u64) -> ProfileUpdate {
    ProfileUpdate::of(id)
}

#[test]
fn e53_removing_exactly_a_run_leaves_the_rest() {
    let without = |all: &[u16], gone: &[u16]| {
        let mut locals = Locals::of_sorted(all.to_vec());
        gone.iter().for_each(|l| locals.remove(*l));
        locals.to_vec()
    };
    assert_eq!(without(&[0, 1, 2, 4], &[0, 1, 2]), [4]);
    assert_eq!(without(&[2, 4, 5, 6, 7, 8], &[4, 5, 6, 7, 8]), [2]);
    // The same where there is a bit per user.
    let (run, rest): (Vec<u16>, Vec<u16>) = ((100..4_000).collect(), (10_000..14_000).step_by(2).collect());
    let all: Vec<u16> = run.iter().chain(&rest).copied().collect();
    assert_eq!(without(&all, &run), rest);
}

#[test]
fn e57_nothing_is_cut_to_32_bits() {
    let many: Vec<u64> = (0..33).map(|i| (1u64 << 32) + i).collect();
    let t = Table::of(
        &[("n", TagType::Int), ("u", TagType::UInt), ("s", TagType::IntSet)],
        many.iter().map(|id| user(*id).set("n", *id).set("u", *id).add("s", *id as i64)),
    );
    for name in ["n", "u"] {
        assert_eq!(t.who(&format!("{name} = 4294967301")), [many[5]]);
        assert_eq!(t.who(&format!("{name} = 5")), NOBODY);
        let list = |n: usize| many[..n].iter().rev().map(u64::to_string).collect::<Vec<_>>().join(",");
        for n in [1, 31, 32, 33] {
            assert_eq!(t.who(&format!("{name} in ({})", list(n))), many[..n]);
            assert_eq!(t.who(&format!("hasAny(s, [{}])", list(n))), many[..n]);
            assert_eq!(t.who(&format!("user_id in ({})", list(n))), many[..n]);
        }
        assert_eq!(t.who(&format!("{name} not in ({})", list(31))), many[31..]);
    }
    assert_eq!(t.who("has(s, 964291337)"), NOBODY);
    assert_eq!(t.who("user_id = 5"), NOBODY);
}

#[test]
fn e58_negative_numbers_wrap_nowhere_and_ranges_begin_below_all() {
    let values: Vec<u64> = (0..5).map(|e| 1_000 * 10u64.pow(e)).collect();
    let t = Table::of(
        &[("u", TagType::UInt), ("n", TagType::Int)],
        values.iter().map(|v| user(*v).set("u", *v)).chain([user(1), user(2).set("n", -1)]),
    );
    for all in
        ["u > 0", "u > -1", "u >= -9223372036854775808", "u != -1", "u between -5 and 18446744073709551615"]
    {
        assert_eq!(t.who(all), values, "{all}");
    }
    for none in [
        "u = -1",
        "u < 0",
        "u in (-1, -2)",
        "u = 18446744073709551615",
        "u > 18446744073709551615",
        "u > 1e30",
    ] {
        assert_eq!(t.who(none), NOBODY, "{none}");
    }
    assert_eq!(t.who("n = -1"), [2]);
    assert_eq!(t.who("n = 18446744073709551615"), NOBODY, "-1 is not 2^64-1");
    assert_eq!(t.who("n < 0 or u = 1000"), [2, 1_000], "unknown or true is true");
    let mut writer = t.0.writer(0..KEY_GROUPS, 2).unwrap();
    let refused = writer.apply(user(3).at(1).set("u", -1)).unwrap_err().to_string();
    assert!(
        refused.starts_with(
            "set -1 does not fit uint tag 'u' of user 3; it takes set with a whole number from 0"
        ),
        "{refused}"
    );
}

#[test]
fn e60_constants_out_of_range_and_negative_numbers_compare_as_numbers() {
    // Few distinct numbers, then as many as make bins: the answers may not depend on it.
    for extra in [0u64, 5_000] {
        let own = [(1, 11), (2, 15), (3, 1_000), (4, -5), (5, 0), (6, 5)].map(|(id, n)| user(id).set("n", n));
        let more = (0..extra).map(|i| user(1_000_000 + i).set("n", 1_000_000 + i));
        let t = Table::of(&[("n", TagType::Int)], own.into_iter().chain(more));
        let who = |condition: &str| t.who(&format!("user_id in (1, 2, 3, 4, 5, 6) and ({condition})"));
        assert_eq!(who("n > 1000"), NOBODY);
        assert_eq!(who("n < 10000"), [1, 2, 3, 4, 5, 6]);
        assert_eq!(who("n between -9223372036854775808 and 9223372036854775807"), [1, 2, 3, 4, 5, 6]);
        assert_eq!(who("n > 9223372036854775807 or n < -9223372036854775808"), NOBODY);
        assert_eq!(who("n <= 99999999999999999999 and n >= -99999999999999999999"), [1, 2, 3, 4, 5, 6]);
        assert_eq!(who("n < 0"), [4]);
        assert_eq!(who("n <= 0"), [4, 5]);
        assert_eq!(who("n between -5 and 0"), [4, 5]);
        assert_eq!(who("n = 0"), [5]);
        assert_eq!(who("n > 10.5 and n < 15.0"), [1]);
        assert_eq!(who("n not between 0 and 15"), [3, 4]);
        assert_eq!(who("n in (5, -5, 77) or n = 15"), [2, 4, 6]);
    }
}

#[test]
fn e61_empty_lists_and_null_do_not_depend_on_other_rows() {
    let (none, texts): ([&str; 0], [&str; 2]) = ([], ["", "0"]);
    let rows = [
        user(1).set("n", 1),
        user(2).set("s", none),
        user(3).set("s", ["a"]),
        user(4).set("s", texts).set("n", 0).set("e", ""),
    ];
    let tags = [("s", TagType::Set), ("n", TagType::Int), ("e", TagType::Enum)];
    let expected: BTreeMap<&str, Vec<u64>> = BTreeMap::from([
        ("hasAll(s, [])", vec![2, 3, 4]),
        ("hasAny(s, [])", vec![]),
        ("not hasAny(s, [])", vec![2, 3, 4]),
        ("hasAny(s, ['a', 'b'])", vec![3]),
        ("hasAll(s, ['a', 'b'])", vec![]),
        ("not hasAll(s, ['a'])", vec![2, 4]),
        ("has(s, '')", vec![4]),
        ("has(s, '0')", vec![4]),
        ("JSON_CONTAINS(s, '[]')", vec![2, 3, 4]),
        ("JSON_OVERLAPS(s, '[]')", vec![]),
        ("JSON_CONTAINS(s, '0')", vec![]),
        ("s is null", vec![1]),
        ("empty(s)", vec![2]),
        ("length(s) != 0", vec![3, 4]),
        ("n = 0", vec![4]),
        ("n != 0", vec![1]),
        ("not n = 0", vec![1]),
        ("n is null", vec![2, 3]),
        ("e = ''", vec![4]),
        ("not (e = '' or e != '')", vec![]),
        ("e is null or e = 'x'", vec![1, 2, 3]),
    ]);
    let together = Table::of(&tags, rows.clone());
    for (condition, expected) in &expected {
        assert_eq!(&together.who(condition), expected, "{condition}");
        for (i, row) in rows.iter().enumerate() {
            let id = i as u64 + 1;
            let alone = Table::of(&tags, [row.clone()]).who(condition);
            assert_eq!(
                alone,
                if expected.contains(&id) { vec![id] } else { vec![] },
                "{condition}, user {id} alone"
            );
        }
    }
    assert!(together.0.reader().sql("select count() from t where hasAny(s, [null])").is_err());
}

#[test]
fn e64_text_ids_grow_past_any_size_and_are_known_to_every_reader() {
    let of = |n: u64| format!("device-{n:08x}");
    let profiles = Profiles::with_key_groups("t", 8).tag("n", TagType::Int);
    let mut writers: Vec<Writer> = (0..4u16).map(|w| profiles.writer(w * 2..w * 2 + 2, 1).unwrap()).collect();
    for n in 0..60_000 {
        let update = ProfileUpdate::of(of(n)).at(1).set("n", n);
        let group = update.user.key_hash().group(8);
        writers[group.0 as usize / 2].apply(update).unwrap();
    }
    writers.into_iter().for_each(|w| w.finish(1));
    let reader = profiles.reader();
    assert_eq!(reader.count(&tag("n").ge(0)).unwrap().value, 60_000);
    for n in [0, 1, 59_999] {
        let text = format!("select n from t where user_id = '{}'", of(n));
        assert_eq!(reader.sql(&text).unwrap().value.rows, [[Some(n.into())]]);
    }
}
