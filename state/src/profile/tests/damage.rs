//! Whatever happens to the bytes of a checkpoint, restoring says which piece is damaged; it never panics.

use super::super::*;
use super::rig::{Folders, Rig, open_store};
use crate::backend::{BackendKind, WriteBatch};
use crate::keyspace::PREFIX;
use crate::store::{Store, TableMeta};
use proptest::prelude::*;
use std::sync::OnceLock;
use xxhash_rust::xxh3::xxh3_64_with_seed;

type Pieces = Vec<(Vec<u8>, Vec<u8>)>;

fn space() -> Profiles {
    Profiles::with_key_groups("p", 2).enum_tag("city").set_tag("cats").int_tag("n")
}

/// The pieces of a small profile of all types.
fn pieces() -> &'static Pieces {
    static PIECES: OnceLock<Pieces> = OnceLock::new();
    PIECES.get_or_init(|| {
        let mut rig = Rig::open(&mut Folders::new(), space(), 1, &[]);
        for user in 0..300u64 {
            rig.apply(
                &ProfileUpdate::of(user)
                    .at(user as i64)
                    .set("city", format!("c{}", user % 70))
                    .set("cats", [format!("x{}", user % 5), "all".to_owned()].to_vec())
                    .set("n", user * user),
            );
        }
        rig.checkpoint();
        rig.bytes()
    })
}

fn store_of(pieces: &Pieces) -> Store {
    let store = open_store(BackendKind::Memory, std::path::Path::new("nowhere"), 0, 1, 2, &[]);
    // The table's number is the one that the first table of any store gets.
    let id = store.register(TableMeta::raw("other", 1)).unwrap();
    let mut batch = WriteBatch::default();
    for (key, value) in pieces {
        let mut key = key.clone();
        if key.len() >= PREFIX {
            key[2..PREFIX].copy_from_slice(&(id + 1).to_be_bytes());
        }
        batch.put(&key, value);
    }
    store.backend().write(&batch).unwrap();
    store
}

/// Restores and, if that goes well, looks at everything.
fn restore(pieces: &Pieces) -> Result<Digest, RestoreError> {
    let profiles = space();
    let mut writer = profiles.restore_writer(&store_of(pieces), 1)?;
    writer.publish(0);
    let reader = profiles.reader();
    for text in ["city = 'c1' and n > 5", "hasAny(cats, ['all', 'x1'])", "not n < 9 or city is null"] {
        reader.count(&Predicate::parse(text).unwrap()).unwrap();
    }
    // Nor does writing on.
    for user in 0..300u64 {
        let update = ProfileUpdate::of(user).at(400).set("city", "z").remove("cats", "all").set("n", 1);
        writer.apply(update.set("cats", ["y"])).unwrap();
    }
    Ok(reader.digest().value)
}

/// Makes the checksum right again, so that what is behind it is read.
fn resealed(key: &[u8], mut value: Vec<u8>) -> Vec<u8> {
    if let Some(end) = value.len().checked_sub(4) {
        let seed = xxh3_64_with_seed(&key[PREFIX..], u64::from(u16::from_be_bytes([key[0], key[1]])));
        let sum = xxh3_64_with_seed(&value[..end], seed) as u32;
        value[end..].copy_from_slice(&sum.to_le_bytes());
    }
    value
}

#[test]
fn the_pieces_are_whole() {
    let expected = restore(pieces()).unwrap();
    assert_eq!(restore(pieces()).unwrap(), expected);
    let kinds: std::collections::BTreeSet<u8> = pieces().iter().map(|(key, _)| key[PREFIX]).collect();
    assert_eq!(kinds.len(), 8, "every part is there");
}

#[test]
fn the_message_names_group_tag_page_and_reason() {
    let mut damaged = pieces().clone();
    let elements =
        damaged.iter().position(|(key, _)| key[PREFIX] == 7 && key[1] == 1 && key.ends_with(&[3])).unwrap();
    damaged[elements].1[5] ^= 1;
    assert_eq!(
        restore(&damaged).unwrap_err().to_string(),
        "profile 'p', key group 1: page 3 of the times of elements of tag 'cats' is damaged (its checksum is wrong); \
         restore from another checkpoint or savepoint"
    );
    let mut later = pieces().clone();
    let (key, value) = &mut later[0];
    value[0] = 3;
    *value = resealed(key, value.clone());
    assert_eq!(
        restore(&later).unwrap_err().to_string(),
        "profile 'p', key group 0: the list of tags has format 3, and this build reads 2; use the build that wrote it or a \
         newer one"
    );
}

#[test]
fn a_lost_piece_of_the_list_of_tags_or_of_a_dictionary_is_noticed() {
    for lost in (0..pieces().len()).filter(|i| pieces()[*i].0[PREFIX] < 3) {
        let mut pieces = pieces().clone();
        let (key, _) = pieces.remove(lost);
        let error = restore(&pieces).expect_err(&format!("without {key:02x?}"));
        assert!(matches!(error, RestoreError::Damaged { .. }), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_flipped_bit_or_a_cut_value_is_an_error(piece: prop::sample::Index, at: prop::sample::Index, bit in 0u8..8, cut: bool) {
        let mut damaged = pieces().clone();
        let (_, value) = piece.get_mut(&mut damaged);
        if cut {
            let length = at.index(value.len());
            value.truncate(length);
        } else {
            *at.get_mut(value) ^= 1 << bit;
        }
        let error = restore(&damaged).unwrap_err();
        prop_assert!(matches!(error, RestoreError::Damaged { .. }), "{}", error);
    }

    #[test]
    fn no_damage_panics_though_the_checksum_is_right(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), prop_oneof![0u8..4, any::<u8>()], 0..6u8), 1..4)
    ) {
        let mut damaged = pieces().clone();
        for (piece, at, with, how) in changes {
            let other = at.get(pieces()).clone();
            let (key, value) = piece.get_mut(&mut damaged);
            match how {
                0 => value.truncate(at.index(value.len() + 1)),
                1 => value.insert(at.index(value.len() + 1), with),
                2 => *value = other.1,
                3 => {
                    let end = key.len() - 1;
                    key[end] = with;
                }
                _ if value.is_empty() => {}
                _ => *at.get_mut(value) = with,
            }
            *value = resealed(key, value.clone());
        }
        let _ = restore(&damaged);
    }
}
