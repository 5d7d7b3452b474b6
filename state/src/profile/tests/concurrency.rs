//! Readers beside a writer: counts never waver and no user is ever seen half updated.

use super::super::*;
use crate::key::{KEY_GROUPS, key_groups_of};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const USERS: u64 = 2_000;

#[test]
fn counts_never_waver_while_users_change_values() {
    let profiles = Profiles::named("p").enum_tag("city").set_tag("cats").int_tag("n").enum_tag("mirror");
    let mut writers: Vec<Writer> =
        (0..2).map(|s| profiles.writer(key_groups_of(s, 2, KEY_GROUPS), 1).unwrap()).collect();
    let cities = ["a", "b", "c", "d"];
    // In every update city, mirror, cats and n tell the same story.
    let story = |user: u64, round: u64| {
        let at = ((user + round) % 4) as usize;
        ProfileUpdate::of(user)
            .at(round as i64)
            .set("city", cities[at])
            .set("cats", [cities[at], "always"])
            .set("n", at as i64)
            .set("mirror", cities[at])
    };
    let write = |writers: &mut [Writer], round: u64| {
        for user in 0..USERS {
            let group = UserId::from(user).key_hash().group(KEY_GROUPS);
            let writer = &mut writers[group.subtask(KEY_GROUPS, 2)];
            writer.apply(story(user, round)).unwrap();
            if user % 97 == 0 {
                writer.publish(round as i64);
            }
        }
        writers.iter_mut().for_each(|w| w.publish(round as i64));
    };
    write(&mut writers, 0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            let reader = profiles.reader();
            scope.spawn(|| {
                let reader = reader;
                let whole = cities.iter().map(|c| tag("city").eq(*c)).reduce(Predicate::or).unwrap();
                let torn = cities.iter().enumerate().map(|(i, c)| {
                    let one = tag("city").eq(*c);
                    let same = tag("mirror")
                        .eq(*c)
                        .and(tag("cats").has_all([*c, "always"]))
                        .and(tag("n").eq(i as i64));
                    one.clone().and(!same.clone()).or(same.and(!one))
                });
                let torn = torn.reduce(Predicate::or).unwrap();
                let (mut questions, mut sequence) = (0u64, 0);
                while !done.load(Ordering::Relaxed) || questions < 20 {
                    let snapshot = reader.snapshot();
                    assert_eq!(snapshot.count(&whole).unwrap().value, USERS);
                    assert_eq!(snapshot.count(&torn).unwrap().value, 0, "half an update is visible");
                    let sum: u64 =
                        cities.iter().map(|c| snapshot.count(&tag("city").eq(*c)).unwrap().value).sum();
                    assert_eq!(sum, USERS, "one snapshot adds up");
                    let profile = snapshot.profile(&(questions % USERS).into()).value.unwrap();
                    assert_eq!(profile["city"], profile["mirror"]);
                    assert!(snapshot.version().sequence >= sequence, "versions do not go back");
                    sequence = snapshot.version().sequence;
                    questions += 1;
                }
            });
        }
        for round in 1..40 {
            write(&mut writers, round);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn handles_go_where_they_are_needed() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    fn moved<T: Send + 'static>() {}
    shared::<Profiles>();
    shared::<Reader>();
    shared::<Snapshot>();
    shared::<Predicate>();
    moved::<Writer>();
}
