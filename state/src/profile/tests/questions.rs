//! Conditions: null rules, empty lists, many values, errors, and reading them from text.

use super::super::*;
use crate::key::KEY_GROUPS;

const NOBODY: [u64; 0] = [];
const NO_TEXTS: [&str; 0] = [];

/// Users 0 none, 1 {}, 2 {a}, 3 {a, b}; ids from 2^32 on as well.
fn space() -> Profiles {
    let profiles = Profiles::named("p").enum_tag("city").set_tag("cats").int_tag("buys");
    let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    let of = |user: u64| ProfileUpdate::of(user).at(1);
    for update in [
        of(0),
        of(1).set("cats", NO_TEXTS).set("buys", -5),
        of(2).add("cats", "a").set("buys", 0).set("city", "x"),
        of(3).set("cats", ["a", "b"]).set("buys", 5).set("city", ""),
    ] {
        writer.apply(update).unwrap();
    }
    writer.finish(1);
    profiles
}

fn ids(profiles: &Profiles, predicate: &Predicate) -> Vec<u64> {
    let found = profiles.reader().ids(predicate, Page::first(1_000)).unwrap().value;
    let mut found: Vec<u64> = found.iter().map(|u| u.to_string().parse().unwrap()).collect();
    found.sort_unstable();
    found
}

#[test]
fn empty_lists_and_missing_values() {
    let p = space();
    let none: [&str; 0] = [];
    assert_eq!(ids(&p, &tag("cats").has_all(none)), [1, 2, 3]);
    assert_eq!(ids(&p, &tag("cats").has_any(none)), NOBODY);
    assert_eq!(ids(&p, &!tag("cats").has_any(none)), [0, 1, 2, 3]);
    assert_eq!(ids(&p, &tag("cats").has_any(["a", "zzz"])), [2, 3]);
    assert_eq!(ids(&p, &tag("cats").has_all(["a", "zzz"])), NOBODY);
    assert_eq!(ids(&p, &tag("city").ne("x")), [3], "no value is not another value");
    assert_eq!(ids(&p, &!tag("city").eq("x")), [0, 1, 3]);
    assert_eq!(ids(&p, &tag("city").eq("")), [3], "no value is not the empty text");
    assert_eq!(ids(&p, &tag("city").is_in(none)), NOBODY);
    assert_eq!(ids(&p, &tag("city").not_in(none)), [2, 3]);
    assert_eq!(ids(&p, &tag("buys").eq(0)), [2], "no value is not zero");
    assert_eq!(ids(&p, &Predicate::all()), [0, 1, 2, 3]);
    assert_eq!(ids(&p, &!Predicate::all()), NOBODY);
}

#[test]
fn integer_ranges_at_their_edges() {
    let p = space();
    let of = |text: &str| ids(&p, &Predicate::parse(text).unwrap());
    assert_eq!(of("buys < 0"), [1]);
    assert_eq!(of("buys <= 0"), [1, 2]);
    assert_eq!(of("buys between -5 and 0"), [1, 2]);
    assert_eq!(of("buys not between -5 and 0"), [3]);
    assert_eq!(of("buys > 100"), NOBODY);
    assert_eq!(of("-100 < buys"), [1, 2, 3]);
    assert_eq!(ids(&p, &tag("buys").lt(i64::MIN)), NOBODY);
    assert_eq!(ids(&p, &tag("buys").gt(i64::MAX)), NOBODY);
    assert_eq!(ids(&p, &tag("buys").between(3, -3)), NOBODY);
    assert_eq!(ids(&p, &tag("buys").between(i64::MIN, i64::MAX)), [1, 2, 3]);
}

#[test]
fn large_ids_and_more_than_32_values() {
    let profiles = Profiles::named("p").enum_tag("v").set_tag("s").int_tag("n");
    let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    let base = 1u64 << 32;
    for i in 0..300 {
        let update =
            ProfileUpdate::of(base + i).at(1).set("v", i.to_string()).add("s", i.to_string()).set("n", i);
        writer.apply(update).unwrap();
    }
    writer.finish(1);
    for many in [1, 31, 32, 33, 64, 65, 200] {
        let expected: Vec<u64> = (base..base + many).collect();
        let texts = || (0..many).rev().map(|i| i.to_string());
        assert_eq!(ids(&profiles, &tag("v").is_in(texts())), expected);
        assert_eq!(ids(&profiles, &tag("s").has_any(texts())), expected);
        assert_eq!(ids(&profiles, &tag("n").is_in((0..many).rev())), expected);
    }
    assert_eq!(profiles.reader().profile(&300u64.into()).value, None, "ids are not cut to 32 bits");
    assert_eq!(profiles.reader().profile(&base.to_string().into()).value, None, "a text is another user");
}

#[test]
fn wrong_questions_say_what_is_right() {
    let p = space();
    let of = |predicate: Predicate| p.reader().count(&predicate).unwrap_err().to_string();
    assert_eq!(
        of(tag("nope").eq("x")),
        "tag 'nope' is not known to profile 'p'; known tags: city, cats, buys"
    );
    assert!(of(tag("buys").eq("x")).starts_with("= 'x' does not fit int tag 'buys'; int tags take =, !=, <"));
    assert!(of(tag("city").is_in(["x"]).and(tag("city").gt(3))).starts_with("> 3 does not fit enum tag"));
    assert!(
        of(tag("city").starts_with("x").and(tag("buys").starts_with("x")))
            .contains("like 'x%' does not fit int")
    );
    assert!(of(tag("cats").eq("x")).contains("set tags take hasAny"));
    let deep = (0..500).fold(tag("city").eq("x"), |p, i| {
        if i % 2 == 0 { p.and(tag("buys").eq(1)) } else { p.or(tag("buys").eq(1)) }
    });
    assert_eq!(
        of(deep),
        "the condition has nesting depth 501, the limit is 200; split it or use in / hasAny lists"
    );
}

#[test]
fn reads_text() {
    let of = |text: &str| Predicate::parse(text).unwrap();
    let built = tag("buys").ge(2).and(tag("cats").has_any(["123", "4"])).and(!tag("city").eq("pv"));
    assert_eq!(of("buys >= 2 and hasAny(cats, ['123','4']) and not city = 'pv'"), built);
    assert_eq!(of("(buys>=2 AND HASANY(cats,['123','4'])) AND NOT (city='pv')"), built);
    assert_eq!(
        of("a = 'x' or b = 1 and c != 'y'"),
        tag("a").eq("x").or(tag("b").eq(1).and(tag("c").ne("y")))
    );
    assert_eq!(
        of("a in ('x', 'y') and b not in (1, -2)"),
        tag("a").is_in(["x", "y"]).and(tag("b").not_in([1, -2]))
    );
    assert_eq!(of("hasAll(s, []) and has(s, 'it''s')"), {
        tag("s").has_all(NO_TEXTS).and(tag("s").has_any(["it's"]))
    });
    assert_eq!(of("3 < \"a b\" and 5 >= `c`"), tag("a b").gt(3).and(tag("c").le(5)));
    assert_eq!(of("a is null or b is not null"), (!tag("a").exists()).or(tag("b").exists()));
    assert_eq!(of("true"), Predicate::all());
    assert_eq!(of("city = '中文'"), tag("city").eq("中文"));
    assert_eq!("buys <> 1".parse(), Ok(tag("buys").ne(1)));
    assert_eq!(of(&format!("a = {}", i64::MIN)), tag("a").eq(i64::MIN));
    assert_eq!(of("a = 9223372036854775808 or a > 1.50"), {
        tag("a").eq(1u64 << 63).or(tag("a").gt(Decimal::new(150, 2)))
    });
    assert_eq!(of("a < 1e3 and b >= '2021-03-01'"), tag("a").lt(1_000.0).and(tag("b").ge("2021-03-01")));
    assert_eq!(of("hasAny(a, [7, -1])"), tag("a").has_any([7, -1]));
    assert_eq!(of("a like 'x%' and b like 'y'"), tag("a").starts_with("x").and(tag("b").eq("y")));
    assert_eq!(of("length(a) >= 1 and empty(b)"), {
        tag("a").size_between(1, u32::MAX).and(tag("b").size_between(0, 0))
    });
}

#[test]
fn json_and_element_types_do_not_convert() {
    let profiles = Profiles::named("p").set_tag("texts").tag("shops", TagType::IntSet);
    let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    writer.apply(ProfileUpdate::of(1u64).at(1).set("texts", ["7", "a"]).set("shops", [7, 8])).unwrap();
    writer.apply(ProfileUpdate::of(2u64).at(1).set("texts", NO_TEXTS).set("shops", [9])).unwrap();
    writer.finish(1);
    for (condition, expected) in [
        ("'a' member of(texts)", &[1u64][..]),
        ("7 member of(texts)", &[]),
        ("'7' member of(shops)", &[]),
        ("7 member of(shops)", &[1]),
        ("JSON_CONTAINS(texts, '[\"a\", \"7\"]', '$')", &[1]),
        ("JSON_CONTAINS(texts, '7')", &[]),
        ("JSON_CONTAINS(texts, '[\"a\", 7]')", &[]),
        ("JSON_CONTAINS(texts, '[]')", &[1, 2]),
        ("JSON_CONTAINS(shops, '[7, 8.0]')", &[1]),
        ("JSON_CONTAINS(shops, '7.5')", &[]),
        ("JSON_CONTAINS(shops, 'null')", &[]),
        ("JSON_OVERLAPS(shops, '[\"7\", 9, true]')", &[2]),
        ("not JSON_OVERLAPS(texts, '[7]')", &[1, 2]),
        ("hasAny(shops, [9, 7])", &[1, 2]),
    ] {
        let bare = ids(&profiles, &Predicate::parse(condition).unwrap());
        assert_eq!(bare, expected, "{condition}");
        let rows =
            profiles.reader().sql(&format!("select user_id from p where {condition}")).unwrap().value.rows;
        let mut found: Vec<i64> = rows.iter().map(|row| row[0].as_ref().unwrap().as_int().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found.iter().map(|id| *id as u64).collect::<Vec<_>>(), expected, "{condition}");
    }
    for (condition, message) in [("hasAny(texts, [7])", "set"), ("has(shops, '7')", "intset")] {
        let bare = profiles.reader().count(&Predicate::parse(condition).unwrap()).unwrap_err().to_string();
        assert!(bare.contains(&format!("does not fit {message} tag")), "{bare}");
        assert!(profiles.reader().sql(&format!("select count() from p where {condition}")).is_err());
    }
}

#[test]
fn refuses_text_it_does_not_read() {
    let of = |text: &str| Predicate::parse(text).unwrap_err().to_string();
    for (text, message) in [
        ("", "cannot be read"),
        ("a = ", "cannot be read"),
        ("a = 1; drop table x", "unexpected ';'"),
        ("a = 1 b", "unexpected 'b'"),
        ("a = 'open", "cannot be read"),
        ("a", "'a' is not supported here; supported are and, or"),
        ("a like '%x'", "like '%x'"),
        ("a like 'x_'", "like 'x_'"),
        ("a ilike 'x%'", "a ILIKE 'x%'"),
        ("a + 1 = 2", "operator + on a tag"),
        ("hasAny(a, [1.5])", "1.5 as an element (write '1.5')"),
        ("length(a) > 'x'", "'x' as a number of elements"),
        ("JSON_CONTAINS(a, 'x')", "'x' in place of a JSON text"),
        ("JSON_CONTAINS(a, '\"x\"', '$.b')", "path '$.b'"),
        ("arrayExists(x -> y = 'a', a)", "x -> y = 'a'"),
        ("hasAny(a, 'x')", "hasAny(a, 'x')"),
        ("hasAny(a, ['x']) over ()", "hasAny(a, ['x']) OVER ()"),
        ("hasAny(distinct a, ['x'])", "hasAny(DISTINCT a, ['x'])"),
        ("hasAny(a)", "hasAny(a)"),
        ("lower(a) = 'x'", "lower(a) in place of a tag"),
        ("a = b", "b in place of a literal"),
        ("a = null", "NULL"),
        ("t.a = 1", "t.a in place of a tag"),
        ("a in (select 1)", "SELECT 1"),
        ("exists (select 1)", "SELECT 1"),
    ] {
        let error = of(text);
        assert!(error.contains(message), "{text}: {error}");
    }
    assert!(of(&format!("a = '{}'", "x".repeat(70_000))).contains("length in bytes of 700"));
}

#[test]
fn no_text_exhausts_the_stack() {
    let n = 30_000;
    for hostile in [
        format!("{}a = 1{}", "(".repeat(n), ")".repeat(n)),
        format!("{}a = 1", "not ".repeat(n / 2)),
        format!("a = {}1", "-".repeat(n)),
        format!("a = {}1", "- ".repeat(n)),
        format!("a{}", "+a".repeat(n)),
        format!("a{}", " or a".repeat(n / 3)),
        format!("a{}", "::int".repeat(n / 3)),
        format!("a{}", "[1]".repeat(n / 2)),
        format!("a{}", ".a".repeat(n)),
        format!("a{}", " is null".repeat(n / 5)),
        format!("a = {}", "[".repeat(n)),
        "case when ".repeat(n / 8),
        "f(".repeat(n),
        format!("a{}", "+1".repeat(1_000)),
        format!("a{} = 1", " is null".repeat(500)),
        format!("a{}", "::int".repeat(500)),
        format!("a{}", "[1]".repeat(340)),
        format!("{}a = 1{}", "(".repeat(500), ")".repeat(500)),
    ] {
        assert!(Predicate::parse(&hostile).is_err(), "{}…", &hostile[..20]);
    }
    let long = (0..250).map(|i| format!("a = {i}")).collect::<Vec<_>>();
    assert!(Predicate::parse(&long.join(" or ")).is_ok());
    let list = (0..9_000).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
    assert!(Predicate::parse(&format!("a in ({list})")).is_ok(), "long lists are flat");
}
