//! Statements against tables of a few users: the seeds' six queries in all their forms, what is shown, and what is refused and where.
//! (over 400 lines: a table of texts per rule)

use super::super::super::*;
use crate::key::KEY_GROUPS;

/// Users of `b` 1 to 9, of `a` 4 to 12; every third has what the queries ask for.
fn crowd() -> Profiles {
    let columns = [
        ("channel_type", TagType::Enum),
        ("user_type", TagType::Int),
        ("lang", TagType::Enum),
        ("region", TagType::Enum),
        ("country", TagType::Enum),
        ("gender", TagType::Int),
        ("score", TagType::Float),
        ("user_watch_list", TagType::Set),
        ("reg_time", TagType::Timestamp),
    ];
    let tables = ["user_profile_b", "user_profile_a"];
    let all = tables.iter().flat_map(|table| columns.map(|(name, kind)| (format!("{table}.{name}"), kind)));
    let profiles =
        all.fold(Profiles::named("crowd").key_column("uuid"), |p, (name, kind)| p.tag(&name, kind));
    let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    for (table, users) in [("user_profile_b", 1..10u64), ("user_profile_a", 4..13)] {
        for user in users {
            let hit = user % 3 == 0;
            let of = |name: &str| format!("{table}.{name}");
            let mut update = ProfileUpdate::of(user)
                .at(1)
                .set(of("channel_type"), if hit { "nature" } else { "ads" })
                .set(of("user_type"), 2)
                .set(of("lang"), "zh_CN")
                .set(of("region"), "CHN")
                .set(of("country"), "CHN")
                .set(of("gender"), 0)
                .set(of("score"), user as f64 / 10.0)
                .set(of("user_watch_list"), ["AAPL"])
                .set(of("reg_time"), "2021-01-01 00:00:00");
            if user % 2 == 0 {
                update = update.add(of("user_watch_list"), "TSLA");
            }
            writer.apply(update).unwrap();
        }
    }
    writer.finish(1);
    profiles
}

const SCALARS: &str = "lang = 'zh_CN' and region = 'CHN' and country = 'CHN' and gender = 0";

fn count(profiles: &Profiles, text: &str) -> u64 {
    let answer = profiles.reader().sql(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    answer.value.count().unwrap_or_else(|| panic!("{text}: {answer:?}"))
}

#[test]
fn the_six_queries_run_unchanged_in_their_forms() {
    let p = crowd();
    let one = format!("channel_type = 'nature' and user_type = 2 and {SCALARS}");
    let joined = "a.uuid = b.uuid and a.channel_type = 'nature' and a.user_type = 2 and b.lang = 'zh_CN' and b.region = 'CHN' and \
                  b.country = 'CHN' and b.gender = 0";
    let from = "select count(*) from user_profile_b b, user_profile_a a where";
    for (text, expected) in [
        (format!("select count(*) from user_profile_b where {one};"), 3),
        ("select count(*) from user_profile_b where score > 0.2;".into(), 7),
        ("select count() from user_profile_b where hasAny(user_watch_list, ['TSLA']);".into(), 4),
        (
            r#"select count(*) from user_profile_b where JSON_CONTAINS(user_watch_list, '"TSLA"', '$');"#
                .into(),
            4,
        ),
        (format!("select count() from user_profile_b where {one} and hasAny(user_watch_list, ['TSLA']);"), 1),
        (
            format!(
                r#"select count(*) from user_profile_b where {one} and JSON_CONTAINS(user_watch_list, '"TSLA"', '$');"#
            ),
            1,
        ),
        (format!("{from} {joined};"), 2),
        (format!("{from} {joined} and hasAny(a.user_watch_list, ['TSLA']);"), 1),
        (format!(r#"{from} {joined} and JSON_CONTAINS(a.user_watch_list, '"TSLA"', '$');"#), 1),
        // As ClickHouse's own benchmark of them is written.
        (
            format!(
                "SELECT count() FROM crowd.user_profile_a AS a INNER JOIN crowd.user_profile_b AS b ON a.uuid = b.uuid WHERE {}",
                &joined[20..]
            ),
            2,
        ),
        (
            format!(
                "SELECT count() FROM crowd.user_profile_b WHERE {SCALARS} AND uuid IN (SELECT uuid FROM crowd.user_profile_a WHERE channel_type='nature' AND user_type=2)"
            ),
            2,
        ),
    ] {
        assert_eq!(count(&p, &text), expected, "{text}");
    }
}

#[test]
fn rows_of_a_table_are_who_has_any_value_there() {
    let p = crowd();
    for (text, expected) in [
        ("select count(*) from user_profile_a", 9),
        ("select count(1) from user_profile_b as b join user_profile_a a using (uuid)", 6),
        ("select count(distinct uuid) from user_profile_b where not channel_type = 'nature'", 6),
        ("select uniqExact(uuid) from user_profile_b where channel_type is null", 0),
        ("select count(*) from user_profile_b where uuid in (3, 10, 77)", 1),
        ("select count(*) from user_profile_b where uuid != 3", 8),
        ("select count(*) from user_profile_b where uuid not in (select uuid from user_profile_a)", 3),
        ("select count(*) from user_profile_b where true", 9),
        ("select count(*) from user_profile_b where not (score > 0.2 or score is null)", 2),
        (
            "select count(*) from user_profile_b prewhere score > 0.2 where score < 0.5 settings max_threads = 1",
            2,
        ),
        ("select count(*) from user_profile_b where reg_time >= toDateTime('2021-01-01 00:00:00')", 9),
        ("select count(*) from user_profile_b where reg_time < '2021-01-01'", 0),
    ] {
        assert_eq!(count(&p, text), expected, "{text}");
    }
}

#[test]
fn shows_tables_columns_and_rows() {
    let p = crowd();
    let of = |text: &str| p.reader().sql(text).unwrap().value;
    let text = |t: &str| Some(TagValue::from(t));
    assert_eq!(of("show tables").rows, [[text("user_profile_b")], [text("user_profile_a")]]);
    let described = of("DESCRIBE user_profile_a;");
    assert_eq!(described.columns, ["name", "type"]);
    assert_eq!(described.rows[0], [text("uuid"), text("user id")]);
    assert_eq!(described.rows[7], [text("score"), text("float")]);
    assert_eq!((described.rows.len(), of("desc user_profile_b").rows.len()), (10, 10));
    let rows = of(
        "select b.uuid as id, a.score, b.user_watch_list from user_profile_b b join user_profile_a a on b.uuid = a.uuid where b.uuid = 6",
    );
    assert_eq!(rows.columns, ["id", "score", "user_watch_list"]);
    assert_eq!(rows.rows, [[Some(6.into()), Some(0.6.into()), Some(["AAPL", "TSLA"].into())]]);
    let all = of("select * from user_profile_b").rows;
    assert_eq!((all.len(), all[0].len()), (9, 10));
    let paged: Vec<_> =
        (0..5).flat_map(|i| of(&format!("select * from user_profile_b limit {}, 2", i * 2)).rows).collect();
    assert_eq!(paged, all);
    assert_eq!(of("select uuid from user_profile_b limit 2 offset 8").rows.len(), 1);
    assert_eq!(of("select uuid from user_profile_b limit 0").rows.len(), 0);
}

#[test]
fn converts_as_the_source_dialects_do_and_says_so() {
    let p = crowd();
    let answer = p
        .reader()
        .sql("select count(*) from user_profile_b where user_type = '2' and lang != 5")
        .unwrap()
        .value;
    assert_eq!(answer.count(), Some(9));
    assert_eq!(
        answer.notes,
        ["'2' was read as 2, since the tag is int", "5 was read as '5', since the tag is enum"]
    );
    let typed = tag("user_profile_b.user_type").eq("2");
    assert!(p.reader().count(&typed).is_err(), "the builder does not convert");
}

#[test]
fn a_note_is_given_once_however_long_the_list() {
    let p = crowd();
    let list = (0..9_000).map(|i| format!("'{i}'")).collect::<Vec<_>>().join(",");
    let text = format!("select count(*) from user_profile_b where user_type in ({list})");
    let answer = p.reader().sql(&text).unwrap().value;
    assert_eq!((answer.count(), answer.notes.len()), (Some(9), 1));
}

#[test]
fn ids_of_digits_are_found_in_either_form() {
    let profiles = Profiles::named("p").int_tag("n");
    let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    for user in [UserId::from(3u64), UserId::from(10u64), "4".into(), "04".into(), "x".into()] {
        writer.apply(ProfileUpdate::of(user).at(1).set("n", 1)).unwrap();
    }
    writer.finish(1);
    for (condition, expected) in [
        ("user_id = '3'", 1),
        ("user_id in ('3', '10')", 2),
        ("user_id = 4", 1),
        ("user_id = '04'", 1),
        ("user_id != '3'", 4),
        ("user_id in ('x', 3, '3', 77)", 2),
    ] {
        assert_eq!(
            count(&profiles, &format!("select count(*) from p where {condition}")),
            expected,
            "{condition}"
        );
    }
}

#[test]
fn an_answer_has_a_bounded_number_of_values_and_says_what_was_left_out() {
    let profiles = Profiles::named("p").int_tag("n").tag("s", TagType::IntSet);
    let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    for user in 0..10_001u64 {
        let update = ProfileUpdate::of(user).at(1).set("n", user);
        let many = user < 300;
        writer.apply(if many { update.set("s", (0..5_000i64).collect::<Vec<_>>()) } else { update }).unwrap();
    }
    writer.finish(1);
    let of = |text: &str| profiles.reader().sql(text).unwrap().value;
    let cut = of("select user_id from p");
    assert_eq!((cut.rows.len(), cut.notes.len()), (10_000, 1), "{:?}", cut.notes);
    let whole = of("select user_id from p where n < 10000");
    assert_eq!((whole.rows.len(), whole.notes.len()), (10_000, 0), "{:?}", whole.notes);
    assert_eq!(of("select user_id from p limit 10").notes, [""; 0]);
    let sets = of("select s from p where s is not null limit 300");
    assert_eq!(sets.notes, ["only the first 199 rows: go on with LIMIT and OFFSET"]);
    assert_eq!(sets.rows.len(), 199);
    let stars = |n: usize| vec!["*"; n].join(",");
    assert_eq!(of(&format!("select {} from p where s is null", stars(300))).notes.len(), 1);
    // One row is cut nowhere: 5,001 values a column, 199 of which are left.
    let columns = |n: usize| format!("select {} from p where n = 5", vec!["s"; n].join(","));
    assert_eq!(of(&columns(199)).rows[0].len(), 199);
    let error = profiles.reader().sql(&columns(200)).unwrap_err().to_string();
    assert_eq!(error, "the row of user 5 alone has over 1000000 values; ask for fewer columns");
    let error = profiles.reader().sql(&format!("select {} from p", stars(400))).unwrap_err().to_string();
    assert!(error.starts_with("line 1") && error.contains("a number of columns of at least 1002"), "{error}");
}

#[test]
fn long_texts_count_for_more_than_one_value() {
    let profiles = Profiles::named("p").enum_tag("e").set_tag("s").tag("m", TagType::Map).int_tag("n");
    let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    let long = "x".repeat(16 * 99);
    for user in 0..5_000u64 {
        let update = ProfileUpdate::of(user).at(1).set("e", long.as_str()).set("n", user);
        writer.apply(update.set("s", [long.as_str()]).put("m", long.as_str(), long.as_str())).unwrap();
    }
    writer.finish(1);
    for (columns, of_a_row) in [("e", 100), ("s", 101), ("m", 200), ("n, e", 101), ("e, s, m", 401)] {
        let found = profiles.reader().sql(&format!("select {columns} from p")).unwrap().value;
        assert_eq!(found.rows.len(), 5_000.min(1_000_000 / of_a_row), "{columns}");
        assert_eq!(found.notes.len(), usize::from(found.rows.len() < 5_000), "{columns}");
    }
}

#[test]
fn what_is_true_is_known_and_a_nan_is_neither_between_nor_outside() {
    let profiles = Profiles::named("p")
        .int_tag("x")
        .tag("f", TagType::Float)
        .tag("day", TagType::Date)
        .tag("at", TagType::Timestamp);
    let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    let of = |user: u64| ProfileUpdate::of(user).at(1);
    writer.apply(of(1).set("f", f64::NAN)).unwrap();
    writer.apply(of(2).set("x", 1).set("f", 0.5)).unwrap();
    writer
        .apply(of(3).set("x", 2).set("f", 2.5).set("day", "2021-02-28").set("at", "2021-02-28 10:00:00"))
        .unwrap();
    writer.finish(1);
    for (condition, expected) in [
        ("x is null and not ((x = 1) is true)", 1),
        ("(x = 1) is true", 1),
        ("not ((x = 1) is true)", 2),
        ("f not between 0 and 1", 1),
        ("not (f between 0 and 1)", 2),
        ("not (f not between 0 and 1)", 2),
        ("x not between 2 and 3", 1),
        ("day = date('2021-02-28 10:00:00')", 1),
        ("day = '2021-02-28 10:00:00'", 0),
        ("at >= date('2021-02-28 12:30:00')", 1),
        ("at >= toDateTime('2021-02-28 12:30:00')", 0),
    ] {
        assert_eq!(
            count(&profiles, &format!("select count(*) from p where {condition}")),
            expected,
            "{condition}"
        );
    }
    let bare = Predicate::parse("f not between 0 and 1").unwrap();
    assert_eq!(profiles.reader().count(&bare).unwrap().value, 1);
}

#[test]
fn a_table_of_the_spaces_name_may_be_written_out() {
    let profiles = Profiles::named("b")
        .tag("b.score", TagType::Float)
        .tag("n", TagType::Int)
        .tag("a.score", TagType::Float);
    let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    writer.apply(ProfileUpdate::of(1u64).at(1).set("b.score", 0.5)).unwrap();
    writer.apply(ProfileUpdate::of(2u64).at(1).set("n", 1).set("a.score", 0.5)).unwrap();
    writer.finish(1);
    assert_eq!(count(&profiles, "select count(*) from b"), 2);
    assert_eq!(count(&profiles, "select count(*) from b where score > 0"), 1);
    assert_eq!(
        count(&profiles, "select count(*) from b join a using (user_id) where n = 1 and a.score > 0"),
        1
    );
    let shown = profiles.reader().sql("select * from b where user_id = 1").unwrap().value;
    assert_eq!(shown.columns, ["user_id", "score", "n"]);
    let error = profiles.add_tag("score", TagType::Int).unwrap_err().to_string();
    assert!(error.contains("would be the same column as tag 'b.score'"), "{error}");
    let error = profiles.add_tag("b.n", TagType::Int).unwrap_err().to_string();
    assert!(error.contains("would be the same column as tag 'n'"), "{error}");
    let error = profiles.add_tag("d", TagType::Decimal(19)).unwrap_err().to_string();
    assert_eq!(error, "decimal tag 'd' cannot have 19 digits behind the point; give it 18 at most");
}

#[test]
fn refuses_with_the_place_and_what_there_is() {
    let p = crowd();
    let of = |text: &str| p.reader().sql(text).unwrap_err().to_string();
    let mut wrong = Vec::new();
    for (text, place, message) in [
        (
            "select count(*) from nobody",
            "line 1, column 22",
            "table 'nobody' is not known; known tables: user_profile_b, user_profile_a",
        ),
        (
            "select count(*) from user_profile_b\nwhere nope = 1",
            "line 2, column 7",
            "tag 'nope' is not known to profile 'user_profile_b'; known tags: uuid, channel_type",
        ),
        ("select count(*) from user_profile_b where lower(lang) = 'x'", "line 1, column 43", "lower(lang)"),
        (
            "select count(*) from user_profile_b where score > 0.2 group by lang",
            "line 1, column 64",
            "GROUP BY",
        ),
        (
            "select count(*) from user_profile_b where hasAny(lang, ['x'])",
            "line 1, column 43",
            "does not fit enum tag",
        ),
        ("select count(*) from user_profile_b where user_type = 'x'", "line 1, column 55", "'x' as a number"),
        ("select count(*) from user_profile_b where lang = null", "line 1, column 50", "NULL"),
        (
            "select count(*) from user_profile_b where hasAny(user_watch_list, [null])",
            "line 1, column 68",
            "NULL",
        ),
        (
            "select count(*) from user_profile_b where hasAny(user_watch_list, [1])",
            "line 1, column 68",
            "1 as an element",
        ),
        ("select count(*) from user_profile_b where score >", "line 1", "cannot be read"),
        ("select count(*) from user_profile_b; drop table x", "line 1, column 38", "unexpected 'drop'"),
        (
            "select count(*) from user_profile_b, user_profile_a",
            "line 1, column 1",
            "without user_profile_b.uuid = user_profile_a.uuid",
        ),
        (
            "select count(*) from user_profile_b a, user_profile_a a where a.uuid = a.uuid",
            "line 1, column 1",
            "two tables go by the name 'a'",
        ),
        (
            "select count(*) from user_profile_b b left join user_profile_a a on a.uuid = b.uuid",
            "line 1",
            "LEFT JOIN",
        ),
        (
            "select count(*) from user_profile_b b, user_profile_a a where a.uuid = b.uuid and lang = 'x'",
            "line 1, column 83",
            "'lang' is a tag of both 'b' and 'a'",
        ),
        (
            "select count(*) from user_profile_b b where c.lang = 'x'",
            "line 1, column 45",
            "'c' is no table of this FROM clause, which has b",
        ),
        ("select sum(score) from user_profile_b", "line 1, column 8", "sum(score)"),
        ("select uuid from user_profile_b order by score", "line 1, column 42", "ORDER BY"),
        ("select uuid from user_profile_b limit 10001", "line 1, column 39", "a LIMIT of 10001"),
        ("select distinct lang from user_profile_b", "line 1", "DISTINCT without the user's id"),
        ("select count(*) from user_profile_b where uuid > 3", "line 1, column 43", "a range of user ids"),
        ("select count(*) from (select uuid from user_profile_b)", "line 1", "SELECT uuid"),
        (
            "select count(*) from user_profile_b union all select count(*) from user_profile_a",
            "line 1",
            "UNION ALL",
        ),
        ("with x as (select 1) select count(*) from user_profile_b", "line 1", "WITH"),
        ("delete from user_profile_b where uuid = 3", "line 1, column 1", "DELETE"),
        ("describe nobody", "line 1, column 10", "known tables"),
        ("select count(*) from user_profile_b where lang rlike '^zh'", "line 1, column 43", "RLIKE"),
        (
            "select count(*) from user_profile_b where lang > 5",
            "line 1, column 50",
            "5 compared with texts (write '5')",
        ),
        (
            "select count(*) from user_profile_b where lang in (10.0)",
            "line 1, column 52",
            "10.0 compared with texts",
        ),
        (
            "select count(*) from user_profile_b where reg_time >= 1609459200",
            "line 1, column 55",
            "1609459200 as a date or moment (write it as '2026-11-30 12:00:00')",
        ),
        (
            "select count(*) from user_profile_b where reg_time > 'soon'",
            "line 1, column 54",
            "'soon' as a date or moment",
        ),
    ] {
        let error = of(text);
        if !error.starts_with(place) || !error.contains(message) {
            wrong.push(format!("{text}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let long: String = "x".repeat(70_000);
    assert!(
        of(&format!("select count(*) from user_profile_b where lang = '{long}'")).contains("length in bytes")
    );
}

#[test]
fn no_statement_exhausts_the_stack() {
    let p = crowd();
    let n = 30_000;
    for hostile in [
        "(".repeat(n),
        "select ".repeat(n / 8),
        format!("select {}1", "(".repeat(n)),
        format!("select count(*) from {}", "(".repeat(n)),
        format!("select count(*) from user_profile_b where {}score > 1{}", "(".repeat(n), ")".repeat(n)),
        format!("select count(*) from user_profile_b where {}score > 1", "not ".repeat(n / 2)),
        format!(
            "select count(*) from user_profile_b where uuid in {}",
            "(select uuid from user_profile_b where uuid in ".repeat(1_000)
        ),
        format!("select count(*) from user_profile_b{}", " union select 1".repeat(n / 20)),
        format!("select count(*) from user_profile_b where score > {}1", "- ".repeat(n)),
        format!(
            "select count(*) from user_profile_b where arrayExists(x -> {}x = 'a', user_watch_list)",
            "(".repeat(n)
        ),
    ] {
        assert!(p.reader().sql(&hostile).is_err(), "{}…", &hostile[..20]);
    }
    // Within the limit of words, so that the parser and what comes after it see them.
    let from = "select count(*) from user_profile_b where";
    for (deep, message) in [
        (format!("{from} {}score > 1{}", "(".repeat(200), ")".repeat(200)), "line 1, column"),
        (format!("{from} {}score > 1", "not ".repeat(200)), "line 1, column 231"),
        (format!("{from} score > 1{}", " is null".repeat(400)), "line 1, column"),
        (format!("{from} score > {}1", "- ".repeat(400)), "line 1, column"),
        (format!("select 1{} from user_profile_b", "+1".repeat(480)), "line 1, column"),
        (format!("{from} score > 1{}", "+1".repeat(480)), "line 1, column"),
        (
            format!("{from} score in {}", "(select uuid from user_profile_b where uuid in ".repeat(100)),
            "line 1, column",
        ),
    ] {
        let error = p.reader().sql(&deep).unwrap_err().to_string();
        assert!(error.contains(message) && error.starts_with("line 1, column"), "{}: {error}", &deep[..60]);
    }
    let true_of_true = format!("{from} (score > 0.2){}", " is true".repeat(480));
    assert_eq!(count(&p, &true_of_true), 7);
    let tables = (0..17).map(|i| format!("user_profile_b t{i}")).collect::<Vec<_>>().join(", ");
    let error = p.reader().sql(&format!("select count(*) from {tables}")).unwrap_err().to_string();
    assert!(error.starts_with("line 1, column") && error.contains("a number of tables of 17"), "{error}");
    let many = (0..150).map(|i| format!("x = '{i}'")).collect::<Vec<_>>().join(" or ");
    let text = format!(
        "select count(*) from user_profile_b where arrayExists(x -> {many} or x = 'TSLA', user_watch_list)"
    );
    assert_eq!(count(&p, &text), 4);
}
