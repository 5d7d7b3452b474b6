//! What a checkpoint writes is what changed, in pages.

use super::super::*;
use super::rig::{Folders, Rig, written};
use std::collections::BTreeSet;

const USERS: u64 = 200_000;
/// Of the users below, one group in one chunk and part of another.
const GROUPS: u16 = 2;

fn update(user: u64, round: u64) -> ProfileUpdate {
    ProfileUpdate::of(user)
        .at(1_511_544_000_000 + (user * 7 % 100_000 + round) as i64)
        .set("city", format!("city-{}", (user + round) % 300))
        .set("seen", user as i64 * 1_000 + round as i64)
        .add("cats", format!("{}", (user + round) % 97))
}

#[test]
fn writes_the_pages_that_were_touched_and_no_others() {
    let of = || Profiles::with_key_groups("p", GROUPS).enum_tag("city").int_tag("seen").set_tag("cats");
    let mut rig = Rig::open(&mut Folders::new(), of(), 1, &[]);
    (0..USERS).for_each(|user| rig.apply(&update(user, 0)));
    rig.publish(0);
    let order = super::rig::users(&rig.seen());
    let (store, writer) = &mut rig.subtasks[0];
    let backend = store.backend().clone();
    let memory = writer.memory_meter().unwrap();
    assert!(memory() < 4_096, "nobody has counted yet, and the store was empty: {}", memory());
    let (all, total) = written(writer, &*backend);
    assert!(all.len() > 3_000 && total > 4_000_000, "{} pieces, {total} bytes", all.len());

    // Stored, numbers are as short as they can be and bitmaps are left out.
    let held = memory();
    assert!(
        (2 * total as u64..20 * total as u64).contains(&held),
        "{held} bytes in memory for {total} stored"
    );

    assert_eq!(written(writer, &*backend), (Vec::new(), 0), "nothing changed");
    assert_eq!(memory(), held);

    // A hundredth of the users of one chunk who are neighbours: three or four pages of a column, 21 of set elements.
    let near: Vec<u64> = order[1_000..1_655].iter().map(number).collect();
    let pages = |users: usize| near.len() / users + 2;
    let apply = |writer: &mut Writer, users: &[u64], round| {
        for user in users {
            let applied = writer.apply(update(*user, round)).unwrap();
            assert_eq!(applied.effective, 3);
        }
    };
    apply(writer, &near, 1);
    let (keys, bytes) = written(writer, &*backend);
    // Three columns, two kinds of stamps of registers and one of sets; then the elements.
    assert!(keys.len() <= 6 * pages(256) + pages(32), "{} pieces", keys.len());
    assert!(bytes < 50_000, "{bytes} of {total} bytes");

    // The same number all over the chunk: no more pages than there are users, and each once.
    let far: Vec<u64> = order[..65_500].iter().step_by(100).map(number).collect();
    apply(writer, &far, 2);
    let (keys, bytes) = written(writer, &*backend);
    assert!(keys.len() <= far.len() + 6 * 256, "{} pieces", keys.len());
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
    assert!(bytes < total / 3, "{bytes} of {total} bytes");

    // New users: their pages, the last page of the dictionary, the head of their group.
    writer.apply(update(USERS, 0)).unwrap();
    let (keys, bytes) = written(writer, &*backend);
    assert_eq!(
        keys.len(),
        9,
        "three columns, three stamps and elements, a head and a dictionary page: {keys:02x?}"
    );
    assert!(bytes < 12_000, "{bytes} bytes");

    // What lost writes nothing.
    apply_late(writer, &near);
    assert_eq!(written(writer, &*backend), (Vec::new(), 0));
}

#[test]
fn rocksdb_uploads_what_changed_and_reads_it_back_at_any_parallelism() {
    let of = || Profiles::with_key_groups("p", 8).enum_tag("city").int_tag("seen").set_tag("cats");
    let mut folders = Folders::of_rocks();
    let mut rig = Rig::open(&mut folders, of(), 2, &[]);
    (0..20_000).for_each(|user| rig.apply(&update(user, 0)));
    rig.checkpoint();
    let all = rig.new_bytes;
    (0..20).for_each(|user| rig.apply(&update(user, 1)));
    rig.checkpoint();
    let few = rig.new_bytes;
    assert!(few < all / 4, "{few} bytes in new files after 20 users changed, {all} at first");
    for (round, parallelism) in [(2, 2), (3, 3), (4, 7), (5, 1)] {
        (0..20_000).filter(|user| user % 50 == round).for_each(|user| rig.apply(&update(user, round)));
        let parts = rig.checkpoint();
        let (digest, order) = (rig.seen().digest().value, super::rig::users(&rig.seen()));
        let held = memory(&rig);
        // Not in it, and gone with this life.
        rig.apply(&update(1, 100));
        drop(rig);
        rig = Rig::open(&mut folders, of(), parallelism, &parts);
        assert_eq!(rig.seen().digest().value, digest, "at {parallelism}");
        assert_eq!(super::rig::users(&rig.seen()), order);
        let restored = memory(&rig);
        assert!(
            restored * 2 > held && restored < held * 2,
            "{held} bytes in memory were restored to {restored}"
        );
    }
}

/// What all writers say they take.
fn memory(rig: &Rig) -> u64 {
    rig.subtasks.iter().map(|(_, writer)| writer.memory_meter().unwrap()()).sum()
}

fn apply_late(writer: &mut Writer, users: &[u64]) {
    for user in users {
        let update = ProfileUpdate::of(*user).at(5).set("city", "city-7").unset("seen");
        assert_eq!(writer.apply(update).unwrap().superseded, 2);
    }
}

fn number(user: &UserId) -> u64 {
    let UserId::Number(n) = user else { panic!("{user}") };
    *n
}
