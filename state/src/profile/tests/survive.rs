//! A profile that is frozen, restored and fed again is the profile that never stopped.

use super::super::*;
use super::model::{Cond, condition, delta};
use super::rig::{Folders, Rig, open_store, users};
use crate::backend::BackendKind;
use crate::store::RestoredPart;
use proptest::prelude::*;

/// Few, so that pages and dictionaries of one group fill.
const GROUPS: u16 = 4;

fn space() -> Profiles {
    Profiles::with_key_groups("model", GROUPS)
        .enum_tag("city")
        .enum_tag("last")
        .set_tag("cats")
        .set_tag("lists")
        .int_tag("buys")
        .int_tag("age")
}

#[derive(Debug, Clone)]
enum Step {
    Apply(Vec<ProfileUpdate>),
    Publish,
    /// A barrier; the subtask, if there is one of that number, fails after some writes.
    Freeze(Option<(usize, usize)>),
    /// The snapshot thread gets to it.
    Settle,
    Abort,
    /// The job dies and comes back with another parallelism from its last complete checkpoint.
    Restore(usize),
}

fn many_values() -> impl Strategy<Value = (&'static str, Delta)> {
    let value = (0u32..150).prop_map(|n| format!("v{n}"));
    (0..3u8, value).prop_map(|(kind, value)| match kind {
        0 => ("city", Delta::Set(value.into())),
        1 => ("cats", Delta::Add(value)),
        _ => ("cats", Delta::Remove(value)),
    })
}

fn update() -> impl Strategy<Value = ProfileUpdate> {
    let user = prop_oneof![
        4 => (0u64..12).prop_map(UserId::from),
        4 => (0u64..2_000).prop_map(UserId::from),
        1 => (0u64..20).prop_map(|n| format!("u{n}").into())
    ];
    let time = prop_oneof![20 => 0i64..8, 1 => any::<i64>(), 1 => Just(i64::MIN), 1 => Just(i64::MAX)];
    let deltas = prop::collection::vec(prop_oneof![3 => delta(true), 1 => many_values()], 0..4);
    (user, time, deltas).prop_map(|(user, time, deltas)| {
        deltas.into_iter().fold(ProfileUpdate::of(user).at(time), |u, (tag, delta)| u.delta(tag, delta))
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec(update(), 0..80).prop_map(Step::Apply),
        2 => Just(Step::Publish),
        3 => prop::option::weighted(0.3, (0usize..3, 0usize..30)).prop_map(Step::Freeze),
        3 => Just(Step::Settle),
        1 => Just(Step::Abort),
        2 => (1usize..6).prop_map(Step::Restore),
    ]
}

/// The profile that never stopped.
fn plain(updates: &[ProfileUpdate]) -> (Profiles, Writer) {
    let profiles = space();
    let mut writer = profiles.writer(0..GROUPS, 1).unwrap();
    updates.iter().for_each(|update| _ = writer.apply(update.clone()));
    writer.publish(0);
    (profiles, writer)
}

fn same(seen: &Snapshot, expected: &Snapshot, conditions: &[Cond]) -> Result<(), TestCaseError> {
    prop_assert_eq!(users(seen), users(expected), "ordinals moved");
    prop_assert_eq!(seen.digest().value, expected.digest().value);
    for user in users(expected) {
        prop_assert_eq!(seen.profile(&user).value, expected.profile(&user).value, "{}", user);
    }
    for condition in conditions {
        let predicate = condition.predicate();
        let ids = |of: &Snapshot| of.ids(&predicate, Page::first(usize::MAX)).unwrap().value;
        prop_assert_eq!(ids(seen), ids(expected), "{:?}", condition);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_of_checkpoints_and_crashes_gives_the_same_profile(
        steps in prop::collection::vec(step(), 1..25),
        late in prop::collection::vec(update(), 0..80),
        conditions in prop::collection::vec(condition(), 1..5),
        last in 1usize..6,
    ) {
        let mut folders = Folders::new();
        let mut rig = Rig::open(&mut folders, space(), 2, &[]);
        let mut updates: Vec<ProfileUpdate> = Vec::new();
        let mut frozen = None;
        let mut complete: (Vec<RestoredPart>, usize) = (Vec::new(), 0);
        for (i, step) in steps.into_iter().chain([Step::Settle, Step::Freeze(None), Step::Settle, Step::Restore(last)]).enumerate() {
            match step {
                Step::Apply(more) => {
                    more.iter().for_each(|update| rig.apply(update));
                    updates.extend(more);
                }
                Step::Publish => rig.publish(i as i64),
                // One at a time, as the engine has it.
                Step::Freeze(failing) if frozen.is_none() => frozen = Some((rig.freeze(failing), updates.len())),
                Step::Freeze(_) => {}
                Step::Settle => {
                    if let Some((snapshots, cut)) = frozen.take()
                        && let Some(parts) = rig.settle(snapshots)
                    {
                        complete = (parts, cut);
                    }
                }
                Step::Abort => frozen = None,
                Step::Restore(parallelism) => {
                    frozen = None;
                    let (parts, cut) = &complete;
                    rig = Rig::open(&mut folders, space(), parallelism, parts);
                    let (profiles, _writer) = plain(&updates[..*cut]);
                    same(&rig.seen(), &profiles.reader().snapshot(), &conditions)?;
                    // The sources read again from the cut on: every increment counts once.
                    updates[*cut..].iter().for_each(|update| rig.apply(update));
                }
            }
        }
        let (profiles, mut writer) = plain(&updates);
        same(&rig.seen(), &profiles.reader().snapshot(), &conditions)?;
        for update in &late {
            rig.apply(update);
            let _ = writer.apply(update.clone());
        }
        writer.publish(1);
        same(&rig.seen(), &profiles.reader().snapshot(), &conditions)?;
    }
}

/// Values of all types for user numbers, more than a chunk of them in one group.
fn wide(user: u64, round: u64) -> ProfileUpdate {
    ProfileUpdate::of(user)
        .at((round * 1_000 + user % 7) as i64)
        .set("city", ((user + round) % 1_000).to_string())
        .add("cats", format!("x{}", (user + round) % 50))
        .increment("buys", user as i64)
}

#[test]
fn rescales_across_chunks_with_the_same_digest() {
    const USERS: u64 = 150_000;
    let of = || Profiles::with_key_groups("p", 2).enum_tag("city").set_tag("cats").int_tag("buys");
    let mut folders = Folders::new();
    let mut rig = Rig::open(&mut folders, of(), 2, &[]);
    (0..USERS).for_each(|user| rig.apply(&wide(user, 0)));
    let mut parts = rig.checkpoint();
    let order = users(&rig.seen());
    for (round, parallelism) in [(1, 3), (2, 7), (3, 1)] {
        let expected = rig.seen().digest().value;
        rig = Rig::open(&mut folders, of(), parallelism, &parts);
        let seen = rig.seen();
        assert_eq!(seen.digest().value, expected, "restored at {parallelism}");
        assert_eq!(users(&seen), order);
        let some = tag("city").eq("77").and(tag("cats").has_any(["x27", "x28"])).and(tag("buys").gt(70_000));
        let expected = order.iter().filter(|u| some_of(&seen, u)).count() as u64;
        assert_eq!(seen.count(&some).unwrap().value, expected);
        (0..USERS).filter(|user| user % 3 == round).for_each(|user| rig.apply(&wide(user, round)));
        parts = rig.checkpoint();
    }
}

/// The condition above, by looking at the profile.
fn some_of(seen: &Snapshot, user: &UserId) -> bool {
    let profile = seen.profile(user).value.unwrap();
    let TagValue::Set(cats) = &profile["cats"] else { panic!("{profile:?}") };
    profile["city"] == TagValue::from("77")
        && (cats.contains("x27") || cats.contains("x28"))
        && profile["buys"].as_int().unwrap() > 70_000
}

#[test]
fn tags_defined_at_run_time_are_there_again_whatever_the_code_defines() {
    let mut folders = Folders::new();
    let mut rig =
        Rig::open(&mut folders, Profiles::with_key_groups("p", 4).enum_tag("city").int_tag("age"), 1, &[]);
    rig.profiles.add_tag("cats", TagType::Set).unwrap();
    rig.profiles.add_tag("unused", TagType::Int).unwrap();
    let update = |user: u64| ProfileUpdate::of(user).at(1).set("city", "a").set("age", user).add("cats", "x");
    (0..50).for_each(|user| rig.apply(&update(user)));
    let expected = rig.seen().digest().value;
    let parts = rig.checkpoint();
    // The code defines its tags in another order, and a new one.
    let mut again = Rig::open(
        &mut folders,
        Profiles::with_key_groups("p", 4).int_tag("new").int_tag("age").enum_tag("city"),
        3,
        &parts,
    );
    assert_eq!(again.seen().digest().value, expected);
    let tags = again.profiles.tags();
    let named: Vec<(&str, TagType)> = tags.iter().map(|(name, kind)| (&**name, *kind)).collect();
    use TagType::{Enum, Int, Set};
    assert_eq!(named, [("new", Int), ("age", Int), ("city", Enum), ("cats", Set), ("unused", Int)]);
    // And the new one survives with its first values, though no user and no text is new.
    again.apply(&ProfileUpdate::of(7u64).at(2).set("new", 9));
    let expected = again.seen().digest().value;
    let parts = again.checkpoint();
    let mut last = Rig::open(&mut folders, Profiles::with_key_groups("p", 4), 2, &parts);
    assert_eq!(last.seen().digest().value, expected);
    assert_eq!(last.profiles.tags().len(), 5);
}

#[test]
fn two_stored_tags_that_are_one_column_come_back_whatever_the_program_defines() {
    use TagType::Int;
    let mut folders = Folders::new();
    // A space of another name takes both, as every space once did.
    let old = Profiles::with_key_groups("old", 4).int_tag("score").int_tag("crowd.score");
    let mut rig = Rig::open(&mut folders, old, 1, &[]);
    rig.apply(&ProfileUpdate::of(1u64).at(1).set("score", 5));
    rig.apply(&ProfileUpdate::of(2u64).at(1).set("score", 6).set("crowd.score", 7));
    let expected = rig.seen().digest().value;
    let mut parts = rig.checkpoint();
    let crowd = || Profiles::with_key_groups("crowd", 4);
    for now in [crowd(), crowd().int_tag("score"), crowd().int_tag("crowd.score"), crowd().int_tag("n")] {
        let mut again = Rig::open(&mut folders, now, 2, &parts);
        let seen = again.seen();
        assert_eq!(seen.digest().value, expected);
        // SQL knows the one that names its table; the other by its name in conditions and the builder.
        let rows = |text: &str| seen.sql(text).unwrap().value.rows;
        assert_eq!(rows("select user_id, score from crowd"), [[Some(2.into()), Some(7.into())]]);
        let described = rows("describe crowd");
        assert_eq!(described.iter().filter(|row| row[0] == Some("score".into())).count(), 1, "{described:?}");
        assert_eq!(seen.count(&Predicate::parse("score >= 5").unwrap()).unwrap().value, 2);
        assert!(
            again.profiles.add_tag("score", Int).is_ok()
                && again.profiles.add_tag("crowd.score", Int).is_ok()
        );
        parts = again.checkpoint();
    }
    let both = crowd().int_tag("score").int_tag("crowd.score");
    let refused = both.writer(0..4, 1).unwrap_err().to_string();
    assert!(refused.contains("the same column"), "{refused}");
}

#[test]
fn a_tag_of_another_type_is_refused_with_both_and_the_fix() {
    let mut folders = Folders::new();
    let mut rig = Rig::open(&mut folders, Profiles::with_key_groups("p", 4).enum_tag("city"), 1, &[]);
    let parts = rig.checkpoint();
    let profiles = Profiles::with_key_groups("p", 4).set_tag("city");
    let refused = Rig::try_open(&mut folders, profiles.clone(), 1, &parts).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "tag 'city' of profile 'p' is set in the job but enum in the checkpoint; define it as enum, or give the set tag \
         another name"
    );
    assert!(profiles.writer(0..4, 2).is_ok(), "its key groups are free again");
    let other = Profiles::with_key_groups("p", 8);
    let store = open_store(BackendKind::Memory, std::path::Path::new("nowhere"), 0, 1, 4, &[]);
    let refused = other.restore_writer(&store, 1).unwrap_err().to_string();
    assert!(refused.contains("with_key_groups(name, 4)"), "{refused}");
}

#[test]
fn readers_keep_the_last_version_until_the_restored_one_is_published() {
    let mut folders = Folders::new();
    let profiles = Profiles::with_key_groups("p", 4).int_tag("buys");
    let all = Predicate::all();
    let mut rig = Rig::open(&mut folders, profiles.clone(), 2, &[]);
    let buy = |user: u64| ProfileUpdate::of(user).at(1).increment("buys", 1);
    (0..10).for_each(|user| rig.apply(&buy(user)));
    rig.subtasks[0].1.publish(70);
    rig.subtasks[1].1.publish(50);
    let parts = rig.checkpoint();
    (10..30).for_each(|user| rig.apply(&buy(user)));
    rig.publish(99);
    drop(rig);
    let seen = profiles.reader().count(&all).unwrap();
    assert_eq!((seen.value, seen.version.watermark, seen.version.stale), (30, 99, true));
    let mut again = Rig::open(&mut folders, profiles.clone(), 3, &parts);
    let seen = profiles.reader().count(&all).unwrap();
    assert_eq!((seen.value, seen.version.stale), (30, true), "restored, not published");
    for (_, writer) in &mut again.subtasks {
        assert_eq!(writer.watermark(), 50, "complete up to the lowest of the writers before");
        let watermark = writer.watermark();
        writer.publish(watermark);
    }
    let seen = profiles.reader().count(&all).unwrap();
    assert_eq!((seen.value, seen.version.watermark, seen.version.stale), (10, 50, false));
}

#[test]
fn a_writer_without_a_store_cannot_be_frozen() {
    let mut writer = space().writer(0..GROUPS, 1).unwrap();
    let refused = writer.freeze(&mut crate::store::Snapshot::default()).unwrap_err();
    assert!(refused.to_string().contains("restore_writer"), "{refused}");
    assert_eq!(writer.watermark(), i64::MIN);
}
