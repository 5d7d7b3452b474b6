//! One live writer per key group; updates whole or not at all; what readers see across attempts.

use super::super::*;
use crate::key::{KEY_GROUPS, KeyGroup, key_groups_of};
use std::ops::Range;

fn all() -> Predicate {
    Predicate::all()
}

fn space() -> Profiles {
    Profiles::named("p").enum_tag("city").set_tag("cats").int_tag("buys")
}

#[test]
fn a_second_live_claim_is_refused_and_dropping_releases() {
    let profiles = space();
    let first = profiles.writer(0..64, 1).unwrap();
    let refused = profiles.writer(63..128, 2).unwrap_err();
    assert_eq!(refused, ProfileError::Claimed { group: KeyGroup(63), space: "p".into(), attempt: 1 });
    assert!(refused.to_string().contains("key group 63"), "{refused}");
    let rest = profiles.writer(64..128, 1).unwrap();
    drop(first);
    assert!(profiles.writer(0..65, 2).is_err(), "64 is still owned");
    drop(rest);
    assert!(profiles.writer(0..128, 2).is_ok());
    assert!(profiles.writer(5..5, 3).is_ok());
    for wrong in [0..129, 200..300, Range { start: 9, end: 3 }] {
        assert!(matches!(profiles.writer(wrong, 1), Err(ProfileError::NoSuchGroups { .. })));
    }
}

#[test]
fn a_new_attempt_replaces_only_when_it_publishes() {
    let profiles = space();
    let reader = profiles.reader();
    assert!(reader.count(&all()).unwrap().version.stale, "nothing was ever published");
    let mut old = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    for user in 0..100u64 {
        old.apply(ProfileUpdate::of(user).at(5).set("city", "a")).unwrap();
    }
    assert_eq!(old.unpublished(), 100);
    assert_eq!(reader.count(&all()).unwrap().value, 0);
    old.publish(4);
    assert_eq!((old.unpublished(), old.users()), (0, 100));
    let seen = reader.count(&all()).unwrap();
    assert_eq!(
        (seen.value, seen.version.attempt, seen.version.watermark, seen.version.stale),
        (100, 1, 4, false)
    );
    old.apply(ProfileUpdate::of(7u64).at(6).set("city", "lost")).unwrap();
    drop(old);
    // Two writers of the next attempt; one publishes.
    let mut left = profiles.writer(key_groups_of(0, 2, KEY_GROUPS), 2).unwrap();
    let mut right = profiles.writer(key_groups_of(1, 2, KEY_GROUPS), 2).unwrap();
    let seen = reader.count(&all()).unwrap();
    assert_eq!((seen.value, seen.version.attempt, seen.version.stale), (100, 1, true));
    left.publish(9);
    let seen = reader.count(&all()).unwrap();
    assert!(seen.value < 100 && seen.value > 0, "only the right half is left of the old attempt");
    assert_eq!((seen.version.attempt, seen.version.watermark, seen.version.stale), (2, 4, true));
    right.publish(8);
    let seen = reader.count(&all()).unwrap();
    assert_eq!((seen.value, seen.version.watermark, seen.version.stale), (0, 8, false));
    left.finish(20);
    right.finish(21);
    let seen = reader.count(&all()).unwrap();
    assert_eq!((seen.version.watermark, seen.version.stale), (20, false));
    assert!(profiles.writer(0..KEY_GROUPS, 3).is_ok(), "finishing releases");
}

#[test]
fn a_snapshot_stays_what_it_was() {
    let profiles = space();
    let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    writer.apply(ProfileUpdate::of(1u64).at(5).set("city", "a").add("cats", "x")).unwrap();
    writer.publish(5);
    let pinned = profiles.reader().snapshot();
    let before = pinned.digest();
    writer.apply(ProfileUpdate::of(1u64).at(6).set("city", "b").remove("cats", "x")).unwrap();
    writer.apply(ProfileUpdate::of(2u64).at(6).set("city", "new")).unwrap();
    writer.publish(6);
    assert_eq!(pinned.digest(), before);
    assert_eq!(pinned.users(), 1);
    assert_eq!(pinned.profile(&2u64.into()).value, None);
    assert_eq!(pinned.count(&tag("city").eq("new")).unwrap().value, 0);
    assert_eq!(pinned.count(&tag("city").eq("a")).unwrap().value, 1);
    let now = profiles.reader().snapshot();
    assert!(now.version().sequence > pinned.version().sequence);
    assert_eq!(now.count(&tag("city").eq("a")).unwrap().value, 0);
}

#[test]
fn an_update_is_applied_whole_or_not_at_all() {
    let profiles = space();
    let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    writer.apply(ProfileUpdate::of(1u64).at(5).set("buys", i64::MAX - 1)).unwrap();
    writer.publish(0);
    let before = profiles.reader().digest().value;
    let good = || ProfileUpdate::of(1u64).at(6).set("city", "z").add("cats", "z");
    let bad = [
        (good().set("nope", "z"), "tag 'nope' is not known to profile 'p' (known: city, cats, buys)"),
        (good().increment("city", 1), "increment 1 does not fit enum tag 'city' of user 1"),
        (good().set("city", 3), "set 3 does not fit enum tag"),
        (good().set("cats", "x"), "set 'x' does not fit set tag 'cats'"),
        (good().set("buys", u64::MAX), "set 18446744073709551615 does not fit int tag 'buys'"),
        (good().increment("buys", 1).increment("buys", 1), "from 9223372036854775807 by 1 leaves"),
    ];
    for (update, message) in bad {
        let error = writer.apply(update).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let mut timeless = good();
    timeless.time = None;
    assert_eq!(writer.apply(timeless), Err(ProfileError::NoTime { user: 1u64.into() }));
    assert!(writer.apply(ProfileUpdate::of("new").at(1).set("nope", "z")).is_err());
    writer.publish(0);
    assert_eq!(profiles.reader().digest().value, before);
    assert_eq!(writer.users(), 1, "a refused update makes no user");
    // Within one update, an overflow is judged on what the deltas before it leave.
    let fits = ProfileUpdate::of(1u64).at(6).set("buys", 0).increment("buys", i64::MAX);
    assert_eq!(writer.apply(fits).unwrap(), Applied { effective: 2, superseded: 0 });
    let late = ProfileUpdate::of(1u64).at(2).set("buys", 1).increment("buys", 1).set("city", "a");
    assert_eq!(writer.apply(late).unwrap(), Applied { effective: 1, superseded: 2 });
}

#[test]
fn a_user_of_other_key_groups_is_refused() {
    let profiles = space();
    let mut writer = profiles.writer(10..20, 1).unwrap();
    let foreign = (0u64..).find(|u| UserId::from(*u).key_hash().group(KEY_GROUPS).0 == 20).unwrap();
    let error = writer.apply(ProfileUpdate::of(foreign).at(1)).unwrap_err();
    assert!(matches!(error, ProfileError::WrongKeyGroup { group: KeyGroup(20), start: 10, end: 20, .. }));
    let own = (0u64..).find(|u| UserId::from(*u).key_hash().group(KEY_GROUPS).0 == 10).unwrap();
    writer.apply(ProfileUpdate::of(own).at(1)).unwrap();
}

#[test]
fn tags_are_added_while_a_writer_runs() {
    let profiles = space();
    let mut writer = profiles.writer(0..KEY_GROUPS, 1).unwrap();
    writer.apply(ProfileUpdate::of(1u64).at(1).set("city", "a")).unwrap();
    profiles.add_tag("lang", TagType::Enum).unwrap();
    profiles.add_tag("lang", TagType::Enum).unwrap();
    let clash = profiles.add_tag("lang", TagType::Int).unwrap_err();
    assert_eq!(
        clash.to_string(),
        "tag 'lang' is already defined as enum, so it cannot be int; use another name"
    );
    writer.publish(1);
    assert_eq!(profiles.reader().count(&tag("lang").eq("zh")).unwrap().value, 0, "no user has it yet");
    writer.apply(ProfileUpdate::of(1u64).at(2).set("lang", "zh")).unwrap();
    writer.publish(2);
    assert_eq!(profiles.reader().count(&tag("lang").eq("zh").and(tag("city").eq("a"))).unwrap().value, 1);
    assert_eq!(profiles.tags().last(), Some(&("lang".to_owned(), TagType::Enum)));
    let built = space().int_tag("city");
    assert!(
        matches!(built.writer(0..1, 1), Err(ProfileError::TypeClash { .. })),
        "the builder cannot say it, so this does"
    );
}
