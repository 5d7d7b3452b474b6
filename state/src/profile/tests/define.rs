//! Tags and segments that change while they are asked: what readers see, what checkpoints keep, and what another process finds.
//! (over 400 lines: one test per promise, each on both backends)

use super::super::*;
use super::rig::{Folders, Rig};
use std::collections::BTreeMap;

fn base() -> Profiles {
    Profiles::named("p")
        .enum_tag("city")
        .int_tag("buys")
        .tag("day", TagType::Date)
        .set_tag("cats")
        .tag("shops", TagType::IntSet)
}

fn of(user: u64) -> ProfileUpdate {
    ProfileUpdate::of(user).at(1)
}

fn fill(rig: &mut Rig) {
    for user in 0..300u64 {
        let update = of(user)
            .set("city", if user % 2 == 0 { "Pau" } else { "Nice" })
            .set("buys", user)
            .set("day", Date(user as i32))
            .add("cats", (user % 7).to_string())
            .add("shops", (user % 5) as i64);
        rig.apply(&update);
    }
    rig.publish(1);
}

fn count(snapshot: &Snapshot, text: &str) -> u64 {
    let predicate = Predicate::parse(text).unwrap();
    snapshot.count(&predicate).unwrap_or_else(|e| panic!("{text}: {e}")).value
}

fn asked(profiles: &Profiles, text: &str) -> u64 {
    count(&profiles.reader().snapshot(), text)
}

fn both_backends(test: impl Fn(&mut Folders)) {
    test(&mut Folders::new());
    test(&mut Folders::of_rocks());
}

#[test]
fn segments_are_registered_changed_and_dropped_while_they_are_asked() {
    let mut folders = Folders::new();
    let mut rig = Rig::open(&mut folders, base(), 2, &[]);
    fill(&mut rig);
    let profiles = rig.profiles.clone();
    profiles.define_segment("south", tag("city").eq("Nice")).unwrap();
    profiles.define_segment("rich", Predicate::segment("south").and(tag("buys").ge(200))).unwrap();
    assert_eq!(asked(&profiles, "segment('rich')"), 50);
    assert_eq!(asked(&profiles, "not segment('rich') and buys >= 200"), 50);
    let pinned = profiles.reader().snapshot();
    profiles.define_segment("south", tag("city").eq("Pau")).unwrap();
    profiles.define_segment("rich", Predicate::segment("south").and(tag("buys").ge(290))).unwrap();
    assert_eq!(asked(&profiles, "segment('rich')"), 5);
    assert_eq!(count(&pinned, "segment('rich')"), 50, "a pinned version keeps its segments");

    let by_sql = profiles.sql("select count() from p where segment('rich') and buys > 291").unwrap();
    assert_eq!(by_sql.value.count(), Some(4));
    let json = serde_json::json!({"and": [{"segment": "rich"}, {"tag": "buys", "gt": 291}]});
    let predicate = Predicate::from_json(&json).unwrap();
    assert_eq!(profiles.reader().count(&predicate).unwrap().value, 4);
    let explained = profiles.reader().explain(&Predicate::segment("rich")).unwrap().value;
    assert_eq!((explained.condition.as_str(), explained.users), ("segment 'rich'", 5));
    assert_eq!(explained.parts[0].parts[0].condition, "segment 'south'");

    let error = profiles.define_segment("south", !Predicate::segment("rich")).unwrap_err();
    assert!(matches!(&error, ProfileError::SegmentCycle { through, .. } if through == "rich"), "{error}");
    let error = profiles.define_segment("self", Predicate::segment("self")).unwrap_err();
    assert!(matches!(error, ProfileError::SegmentCycle { .. }), "{error}");
    let error = profiles.drop_segment("south").unwrap_err();
    assert!(matches!(&error, ProfileError::SegmentUsed { by, .. } if by == "rich"), "{error}");
    let error = profiles.drop_tag("city").unwrap_err();
    assert!(matches!(&error, ProfileError::TagUsed { by, .. } if by == "south"), "{error}");
    for wrong in [tag("nope").exists(), Predicate::segment("nope"), tag("city").gt(1)] {
        let error = profiles.define_segment("bad", wrong).unwrap_err();
        assert!(matches!(error, ProfileError::BadSegment { .. }), "{error}");
    }
    assert!(profiles.drop_segment("rich").unwrap() && !profiles.drop_segment("rich").unwrap());
    let error = profiles.reader().count(&Predicate::segment("rich")).unwrap_err();
    assert!(matches!(&error, QueryError::UnknownSegment { known, .. } if known == "south"), "{error}");
}

#[test]
fn segments_that_double_again_and_again_are_refused_before_they_take_for_ever() {
    let profiles = base();
    profiles.define_segment("s0", tag("buys").ge(1).or(tag("city").eq("x"))).unwrap();
    let mut refused = None;
    for n in 1..40 {
        let before = || Predicate::segment(format!("s{}", n - 1));
        match profiles.define_segment(&format!("s{n}"), (!before()).or(before().and(tag("buys").lt(n)))) {
            Ok(()) => {}
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let error = refused.expect("it doubles 40 times");
    assert!(error.to_string().contains("parts, with those of its segments"), "{error}");
    // Nor by changing the first of the chain.
    let large = Predicate::at_least(1, (0..200).map(|n| tag("buys").eq(n)));
    let error = profiles.define_segment("s0", large).unwrap_err();
    assert!(error.to_string().contains("parts, with those of its segments"), "{error}");
}

#[test]
fn tags_are_added_altered_dropped_and_renamed_under_a_pinned_version() {
    let mut folders = Folders::new();
    let mut rig = Rig::open(&mut folders, base(), 3, &[]);
    fill(&mut rig);
    let profiles = rig.profiles.clone();
    let pinned = profiles.reader().snapshot();
    let digest = pinned.digest().value;

    profiles.alter_tag("buys", TagType::Float).unwrap();
    profiles.alter_tag("day", TagType::Timestamp).unwrap();
    profiles.alter_tag("shops", TagType::Set).unwrap();
    let answers = |profiles: &Profiles| {
        [
            "buys > 149.5",
            "day >= '1970-01-02 00:00:00'",
            "hasAny(shops, ['3', 'x'])",
            "buys = 7",
            "length(shops) = 1",
        ]
        .map(|text| asked(profiles, text))
    };
    let before = answers(&profiles);
    assert_eq!(before, [150, 299, 60, 1, 300], "before any writer has followed");
    rig.apply(&of(7).set("buys", 0.5).at(2));
    rig.publish(2);
    assert_eq!(answers(&profiles), [150, 299, 60, 0, 300]);
    let profile = profiles.reader().profile(&8u64.into()).value.unwrap();
    assert_eq!(profile["buys"], TagValue::from(8.0));
    assert_eq!(profile["day"], TagValue::from(Timestamp(8 * 86_400_000)));
    assert_eq!(profile["shops"], TagValue::from(["3"]));
    assert_eq!(profiles.reader().number_stats("buys", &tag("city").eq("Pau"), &[]).unwrap().value.users, 150);

    profiles.rename_tag("city", "town").unwrap();
    rig.apply(&of(8).set("town", "Lyon").at(3));
    rig.apply(&of(9).set("city", "never").at(3));
    profiles.drop_tag("cats").unwrap();
    profiles.add_tag("cats", TagType::Enum).unwrap();
    rig.apply(&of(1).set("cats", "again").at(3));
    rig.publish(3);
    assert_eq!((asked(&profiles, "town = 'Lyon'"), asked(&profiles, "cats is not null")), (1, 1));
    assert!(matches!(profiles.reader().count(&tag("city").exists()), Err(QueryError::UnknownTag { .. })));

    assert_eq!(count(&pinned, "city = 'Pau' and hasAny(cats, ['1']) and buys = 8"), 1, "as it was");
    assert_eq!(pinned.digest().value, digest);

    for (name, to) in [("town", TagType::Int), ("buys", TagType::Int), ("day", TagType::Date)] {
        let error = profiles.alter_tag(name, to).unwrap_err();
        assert!(matches!(error, ProfileError::Narrows { .. }), "{error}");
    }
    assert!(matches!(profiles.rename_tag("town", "buys"), Err(ProfileError::TypeClash { .. })));
    assert!(matches!(profiles.drop_tag("nope"), Err(ProfileError::UnknownTag { .. })));
}

#[test]
fn a_value_that_the_wider_type_lacks_refuses_the_change_or_stays_as_it_is() {
    let profiles = Profiles::with_key_groups("p", 1).int_tag("n");
    let mut writer = profiles.writer(0..1, 1).unwrap();
    let odd = (1i64 << 53) + 1;
    writer.apply(ProfileUpdate::of(1u64).at(1).set("n", odd)).unwrap();
    writer.publish(1);
    let error = profiles.alter_tag("n", TagType::Float).unwrap_err();
    assert!(
        matches!(&error, ProfileError::Unwidened { value, .. } if **value == TagValue::from(odd)),
        "{error}"
    );
    writer.apply(ProfileUpdate::of(1u64).at(2).set("n", 5)).unwrap();
    writer.publish(2);
    // One that nobody has seen yet when the tag is altered.
    writer.apply(ProfileUpdate::of(1u64).at(3).set("n", odd)).unwrap();
    profiles.alter_tag("n", TagType::Float).unwrap();
    writer.publish(3);
    let reader = profiles.reader();
    assert_eq!(reader.count(&tag("n").eq(odd)).unwrap().value, 1, "exactly, though no float is");
    assert_eq!(reader.profile(&1u64.into()).value.unwrap()["n"], TagValue::from(odd));
    let error = writer.apply(ProfileUpdate::of(1u64).at(4).set("n", 0.5)).unwrap_err();
    assert!(matches!(error, ProfileError::Mismatch { is: TagType::Int, .. }), "{error}");
    writer.apply(ProfileUpdate::of(1u64).at(4).set("n", 7)).unwrap();
    writer.publish(4);
    writer.apply(ProfileUpdate::of(1u64).at(5).set("n", 0.5)).unwrap();
    writer.publish(5);
    assert_eq!(reader.count(&tag("n").lt(0.75)).unwrap().value, 1);
}

#[test]
fn what_was_changed_at_run_time_is_there_after_a_restore_at_any_parallelism() {
    both_backends(|folders| {
        let built = || base().segment("all", tag("city").exists()).segment("gone", tag("day").exists());
        let mut rig = Rig::open(folders, built(), 2, &[]);
        fill(&mut rig);
        rig.checkpoint();
        let profiles = rig.profiles.clone();
        profiles.drop_segment("all").unwrap();
        profiles.rename_tag("city", "town").unwrap();
        profiles.alter_tag("buys", TagType::Decimal(2)).unwrap();
        profiles.drop_segment("gone").unwrap();
        profiles.drop_tag("day").unwrap();
        profiles.drop_tag("cats").unwrap();
        profiles.add_tag("cats", TagType::Int).unwrap();
        profiles.add_tag("vip", TagType::Bool).unwrap();
        profiles.define_segment("b", tag("town").eq("Nice")).unwrap();
        profiles.define_segment("a", Predicate::segment("b").and(tag("buys").ge(100))).unwrap();
        rig.apply(&of(3).set("cats", 5).set("vip", true).at(2));
        rig.apply(&of(3).set("buys", Decimal::new(150, 2)).at(2));
        rig.publish(2);
        let expected = (rig.seen().digest().value, users_of(&rig.profiles, &Predicate::segment("a")));
        let parts = rig.checkpoint();
        drop(rig);
        for of in [1, 2, 7] {
            let mut again = Rig::open(folders, built(), of, &parts);
            let found = (again.seen().digest().value, users_of(&again.profiles, &Predicate::segment("a")));
            assert_eq!(found, expected, "at {of}");
            let kinds: BTreeMap<String, TagType> = again.profiles.tags().into_iter().collect();
            assert_eq!(kinds["buys"], TagType::Decimal(2));
            assert_eq!((kinds.get("city"), kinds.get("day"), kinds["cats"]), (None, None, TagType::Int));
            let segments: Vec<String> = again.profiles.segments().into_iter().map(|(name, _)| name).collect();
            assert_eq!(segments, ["a", "b"]);
            // And once more from there, after more changes.
            again.profiles.rename_tag("vip", "very").unwrap();
            again.profiles.drop_segment("a").unwrap();
            again.apply(&ProfileUpdate::of(4u64).at(3).set("very", false));
            again.publish(3);
            let (digest, parts) = (again.seen().digest().value, again.checkpoint());
            drop(again);
            let mut third = Rig::open(folders, built(), 3, &parts);
            assert_eq!(third.seen().digest().value, digest);
            assert_eq!(third.profiles.segments().len(), 1);
            assert!(third.profiles.tags().iter().any(|(name, _)| name == "very"));
        }
    });
}

fn users_of(profiles: &Profiles, predicate: &Predicate) -> Vec<UserId> {
    profiles.reader().ids(predicate, Page::first(1_000)).unwrap().value
}

#[test]
fn a_restart_in_the_process_keeps_what_was_changed_after_the_checkpoint() {
    both_backends(|folders| {
        let mut rig = Rig::open(folders, base(), 2, &[]);
        fill(&mut rig);
        rig.profiles.rename_tag("city", "town").unwrap();
        let parts = rig.checkpoint();
        let profiles = rig.profiles.clone();
        profiles.rename_tag("town", "city").unwrap();
        profiles.drop_tag("cats").unwrap();
        profiles.alter_tag("buys", TagType::Float).unwrap();
        rig.publish(5);
        let digest = profiles.reader().digest().value;
        drop(rig);
        let mut again = Rig::open(folders, profiles, 3, &parts);
        assert_eq!(again.seen().digest().value, digest);
        let parts = again.checkpoint();
        drop(again);
        let mut fresh = Rig::open(folders, base(), 1, &parts);
        assert_eq!(fresh.seen().digest().value, digest);
        assert!(fresh.profiles.tags().iter().all(|(name, _)| name != "cats"));
    });
}

#[test]
fn what_was_dropped_or_renamed_leaves_nothing_in_the_store_even_when_a_snapshot_fails() {
    both_backends(|folders| {
        let mut rig = Rig::open(folders, base(), 2, &[]);
        fill(&mut rig);
        rig.checkpoint();
        rig.profiles.drop_tag("cats").unwrap();
        rig.profiles.rename_tag("city", "town").unwrap();
        rig.profiles.add_tag("city", TagType::Int).unwrap();
        rig.apply(&of(5).set("city", 3).at(2));
        let failed = rig.freeze(Some((0, 40)));
        assert!(rig.settle(failed).is_none());
        rig.profiles.add_tag("cats", TagType::Enum).unwrap();
        rig.apply(&of(6).set("cats", "x").at(2));
        rig.publish(2);
        let (digest, parts) = (rig.seen().digest().value, rig.checkpoint());
        let cats = rig.bytes().iter().filter(|(key, _)| key.windows(4).any(|w| w == b"cats")).count();
        // One user's: values, dictionary and stamps.
        assert_eq!(cats, 3);
        drop(rig);
        let mut again = Rig::open(folders, base(), 3, &parts);
        assert_eq!(again.seen().digest().value, digest);
        assert_eq!(asked(&again.profiles, "city = 3 and town is not null"), 1);
        assert_eq!(asked(&again.profiles, "cats = 'x'"), 1);
    });
}

#[test]
fn adding_a_tag_writes_that_tag_alone() {
    let mut folders = Folders::new();
    let mut rig = Rig::open(&mut folders, base(), 1, &[]);
    fill(&mut rig);
    rig.checkpoint();
    rig.profiles.add_tag("vip", TagType::Bool).unwrap();
    (0..300u64).for_each(|user| rig.apply(&of(user).set("vip", true)));
    rig.checkpoint();
    let written = rig.subtasks[0].1.last_written();
    let groups = u64::from(rig.profiles.key_groups());
    // Of each key group the list of tags, a page of values and one of stamps.
    assert!(written.pieces <= 3 * groups, "{written:?}");
}

#[test]
fn a_program_that_gives_a_tag_a_wider_type_takes_over_its_values() {
    both_backends(|folders| {
        let mut rig = Rig::open(folders, base(), 2, &[]);
        fill(&mut rig);
        let parts = rig.checkpoint();
        drop(rig);
        let wider =
            Profiles::named("p").enum_tag("city").tag("buys", TagType::Float).tag("shops", TagType::Set);
        let mut again = Rig::open(folders, wider, 2, &parts);
        again.seen();
        assert_eq!(asked(&again.profiles, "buys < 0.5"), 1);
        assert_eq!(asked(&again.profiles, "has(shops, '4')"), 60);
        let parts = again.checkpoint();
        drop(again);
        let error = Rig::try_open(folders, base(), 2, &parts).err().expect("it is wider in the checkpoint");
        assert!(matches!(error, RestoreError::TagType { .. }), "{error}");
    });
}

#[test]
fn statements_change_tags_and_segments_in_the_forms_of_both() {
    let profiles = Profiles::named("crowd").key_column("uuid").int_tag("b.n").set_tag("b.s");
    let mut writer = profiles.writer(0..profiles.key_groups(), 1).unwrap();
    writer.apply(ProfileUpdate::of(1u64).at(1).set("b.n", 3).add("b.s", "x")).unwrap();
    writer.publish(1);
    let run = |text: &str| profiles.sql(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    run(
        "ALTER TABLE b ADD COLUMN IF NOT EXISTS city LowCardinality(String), ADD COLUMN price Decimal(10, 2) AFTER n",
    );
    run("alter table b add column born date, add age int(11) unsigned");
    run("alter table b modify column n Float64");
    run("alter table b change column age years decimal(10, 0)");
    run("alter table b rename column s to watched");
    run("alter table b drop column if exists nope, drop column born");
    run("create table c (uuid bigint, score double, tags Array(String), primary key (uuid))");
    writer.publish(2);
    let tags: Vec<(String, TagType)> = profiles.tags();
    let expected = [
        ("b.n", TagType::Float),
        ("b.watched", TagType::Set),
        ("b.city", TagType::Enum),
        ("b.price", TagType::Decimal(2)),
        ("b.years", TagType::Decimal(0)),
        ("c.score", TagType::Float),
        ("c.tags", TagType::Set),
    ];
    assert_eq!(tags, expected.map(|(name, kind)| (name.to_owned(), kind)));
    run("create segment x as select uuid from b where n > 2.5 and has(watched, 'x')");
    run("create or replace segment y as segment('x') and b.n is not null"
        .replace("b.n is not null", "`b.n` is not null")
        .as_str());
    assert_eq!(run("select count() from b where segment('y')").value.count(), Some(1));
    assert_eq!(run("select count() from c where segment('y')").value.count(), Some(0), "with a row there");
    assert_eq!(run("show segments").value.rows.len(), 2);
    run("alter segment y as not segment('x')");
    assert_eq!(run("select count() from b where segment('y')").value.count(), Some(0));
    for (text, says) in [
        ("alter table b modify column city Int64", "can be widened"),
        ("alter table b add column j JSON", "line 1, column 26: 'j JSON'"),
        ("alter table nope add column j Int64", "table 'nope' is not known"),
        ("alter table b drop column price, drop column nope", "'b.nope' is not known"),
        ("alter table b drop column uuid", "the user's id"),
        ("alter table b rename to d", "ALTER TABLE"),
        ("drop segment nope", "segment 'nope' is not known"),
        ("drop segment x", "named by segment 'y'"),
        ("create segment x as segment('y')", "a part of itself"),
        ("create segment as a = 1", ""),
        ("drop table b", "SHOW SEGMENTS"),
    ] {
        let error = profiles.sql(text).expect_err(text).to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    assert!(profiles.tags().iter().any(|(name, _)| name == "b.price"), "a statement is whole or not at all");
    run("drop segment if exists nope");
    let error = profiles.reader().sql("drop segment x").unwrap_err().to_string();
    assert!(error.contains("POST /sql"), "{error}");
}

#[test]
fn tags_change_again_and_again_while_others_read_and_write() {
    let profiles = base();
    let mut writer = profiles.writer(0..profiles.key_groups(), 1).unwrap();
    (0..1_000u64).for_each(|user| drop(writer.apply(of(user).set("buys", user).set("city", "x"))));
    writer.publish(1);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut asked = 0u64;
                    while !done.load(std::sync::atomic::Ordering::Acquire) {
                        let found =
                            profiles.reader().count(&tag("buys").ge(0).and(tag("city").eq("x"))).unwrap();
                        assert_eq!(found.value, 1_000);
                        asked += 1;
                    }
                    asked
                })
            })
            .collect();
        for round in 0..60i64 {
            profiles.add_tag("extra", TagType::Int).unwrap();
            writer.apply(of(round as u64).at(round).set("extra", round)).unwrap();
            writer.publish(round);
            assert_eq!(asked_now(&profiles, &tag("extra").ge(0)), 1, "round {round}");
            profiles.define_segment("s", tag("buys").lt(round)).unwrap();
            profiles.alter_tag("extra", TagType::Decimal(3)).unwrap();
            profiles.drop_tag("extra").unwrap();
            profiles.alter_tag("buys", if round < 30 { TagType::Int } else { TagType::Decimal(1) }).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Release);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
}

fn asked_now(profiles: &Profiles, predicate: &Predicate) -> u64 {
    profiles.reader().count(predicate).unwrap().value
}
