//! What the first format of profiles wrote is read the same for ever, and written the same.

use super::super::*;
use super::rig::{Folders, Rig, open_store};
use crate::backend::{BackendKind, WriteBatch};
use crate::keyspace::PREFIX;
use crate::store::{Store, TableMeta};
use std::fmt::Write as _;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A checkpoint of `updates()`, written by the build before tags of more types than enum, set and int: a piece a line.
const FIRST: &str = include_str!("golden/first.txt");
/// The digest of what that build saw.
const DIGEST: &str = "3efe163fd35276e47e189496649861b5";

fn space() -> Profiles {
    Profiles::with_key_groups("p", 2).enum_tag("city").set_tag("cats").int_tag("n")
}

/// Every delta there was, in order and late, near and far in time, numbers of both ends, texts and numbers as ids.
fn updates() -> Vec<ProfileUpdate> {
    let mut updates = Vec::new();
    for user in 0..40u64 {
        let at = 1_511_544_000_000 + user as i64 * 977;
        let mut update = ProfileUpdate::of(user)
            .at(at)
            .set("city", format!("c{}", user % 7))
            .add("cats", format!("x{}", user % 3));
        update = match user % 5 {
            0 => update.set("n", user * 1_000),
            1 => update.increment("n", 3),
            2 => update.max("n", -5),
            3 => update.min("n", i64::MIN),
            _ => update.unset("n"),
        };
        updates.push(update);
        match user % 4 {
            0 => updates.push(ProfileUpdate::of(user).at(at - 10).set("city", "late").remove("cats", "x1")),
            1 => updates.push(
                ProfileUpdate::of(user).at(at + 1).unset("city").set("cats", [""; 0]).increment("n", 7),
            ),
            2 => updates
                .push(ProfileUpdate::of(user).at(at + 1).set("cats", ["a", "ä", ""]).set("n", i64::MAX)),
            _ => updates
                .push(ProfileUpdate::of(user).at(-3_000_000_000).add("cats", "old").remove("cats", "x0")),
        }
    }
    updates.push(ProfileUpdate::of("7").at(0).set("city", "Orléans").unset("cats"));
    updates.push(ProfileUpdate::of("a-uuid").at(5).set("n", 0));
    updates
}

fn written() -> (String, Digest) {
    let mut rig = Rig::open(&mut Folders::new(), space(), 1, &[]);
    updates().iter().for_each(|update| rig.apply(update));
    rig.checkpoint();
    let mut text = String::new();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    for (key, value) in rig.bytes() {
        writeln!(text, "{} {}", hex(&key), hex(&value)).unwrap();
    }
    (text, rig.seen().digest().value)
}

/// A store that holds the golden pieces, the lists of tags in this format.
fn store(head: u8) -> Store {
    let store = open_store(BackendKind::Memory, std::path::Path::new("nowhere"), 0, 1, 2, &[]);
    // The table's number is the one that the first table of any store gets.
    let id = store.register(TableMeta::raw("other", 1)).unwrap();
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    };
    let mut batch = WriteBatch::default();
    for line in FIRST.lines() {
        let (key, value) = line.split_once(' ').unwrap();
        let mut key = bytes(key);
        key[2..PREFIX].copy_from_slice(&(id + 1).to_be_bytes());
        let mut value = bytes(value);
        // The head's part is 0.
        if key[PREFIX] == 0 {
            assert_eq!(value[0], 1);
            value[0] = head;
            let (sealed, stored) = value.split_last_chunk_mut::<4>().unwrap();
            let group = u16::from_be_bytes([key[0], key[1]]);
            let seed = xxh3_64_with_seed(&key[PREFIX..], u64::from(group));
            *stored = (xxh3_64_with_seed(sealed, seed) as u32).to_le_bytes();
        }
        batch.put(&key, &value);
    }
    store.backend().write(&batch).unwrap();
    store
}

#[test]
fn what_the_first_format_wrote_is_read_the_same() {
    let profiles = space();
    let mut writer = profiles.restore_writer(&store(1), 1).unwrap();
    writer.publish(0);
    let reader = profiles.reader();
    assert_eq!(reader.digest().value.to_string(), DIGEST);
    // The stamps too: what is older than what is known changes nothing, and what was said again neither but for increments.
    for update in updates() {
        let mut again = update;
        again.deltas.retain(|d| !matches!(d.delta, Delta::Increment(_)));
        let _ = writer.apply(again);
    }
    writer.publish(0);
    let count = |text: &str| reader.count(&Predicate::parse(text).unwrap()).unwrap().value;
    assert_eq!(count("city = 'late'"), 0);
    assert_eq!(count("city = 'Orléans' and cats is null"), 1);
    assert_eq!(count("n = 9223372036854775807"), 10);
}

#[test]
fn a_later_list_of_tags_of_the_first_types_is_read_too() {
    let profiles = space();
    profiles.restore_writer(&store(2), 1).unwrap().publish(0);
    assert_eq!(profiles.reader().digest().value.to_string(), DIGEST);
    let refused = space().restore_writer(&store(3), 1).unwrap_err().to_string();
    assert!(refused.contains("format 3"), "{refused}");
}

#[test]
fn the_same_updates_still_write_the_same_pieces() {
    let (text, digest) = written();
    assert_eq!(digest.to_string(), DIGEST);
    assert!(text == FIRST, "the format has changed: give it a number, and keep reading the first");
}
