//! Keys, seals and names are frozen, and tell damage from what was written.

use super::*;
use proptest::prelude::*;

fn key(part: Part, tag: &str, page: u32) -> Vec<u8> {
    let mut key = Vec::new();
    Place { part, tag, page }.key(KeyGroup(0x0102), 0x0304, &mut key);
    key
}

fn sealed(key: &[u8], contents: &[u8]) -> Vec<u8> {
    let mut value = Vec::new();
    seal(FORMAT, key, &mut value, |out| out.extend_from_slice(contents));
    value
}

#[test]
fn keys_are_frozen() {
    assert_eq!(key(Part::Head, "", 0), [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(key(Part::Users, "", 258), [1, 2, 3, 4, 1, 0, 0, 0, 0, 1, 2]);
    let elements = [&[1, 2, 3, 4, 7, 0, 3][..], "ät".as_bytes(), &[0, 0, 0, 9]].concat();
    assert_eq!(key(Part::Elements, "ät", 9), elements);
    let parts = [
        (Part::Head, 0),
        (Part::Users, 1),
        (Part::Values, 2),
        (Part::Forward, 3),
        (Part::Stamps, 4),
        (Part::Touched, 5),
        (Part::Cleared, 6),
        (Part::Elements, 7),
    ];
    for (part, number) in parts {
        let key = key(part, "t", 7);
        assert_eq!(key[PREFIX], number);
        assert_eq!(Place::of(&key), Ok(Place { part, tag: "t", page: 7 }));
    }
    for wrong in [&[1, 2, 3, 4][..], &[1, 2, 3, 4, 8, 0, 0, 0, 0, 0, 0], &[1, 2, 3, 4, 3, 0, 1, 0, 0, 0, 0]] {
        assert!(Place::of(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn seals_are_frozen() {
    let value = sealed(&key(Part::Forward, "t", 1), b"abc");
    assert_eq!(value[..4], [FORMAT, b'a', b'b', b'c']);
    assert_eq!(value[4..], [0x91, 0x5a, 0xec, 0xe9]);
}

#[test]
fn a_format_that_is_not_known_is_told_from_damage() {
    let head = key(Part::Head, "", 0);
    let mut value = sealed(&head, b"later");
    value[0] = 3;
    assert_eq!(open(&head, &value).unwrap_err(), Unopened::Bad(Bad("its checksum is wrong")));
    let resealed = |format: u8, key: &[u8]| {
        let mut value = Vec::new();
        seal(format, key, &mut value, |out| out.extend_from_slice(b"later"));
        value
    };
    for (format, known) in [(0, false), (1, true), (2, true), (3, false)] {
        let found = resealed(format, &head);
        let opened = open(&head, &found).map(|input| input.0);
        assert_eq!(opened, if known { Ok(&b"later"[..]) } else { Err(Unopened::Format(format)) });
    }
    let page = key(Part::Users, "", 0);
    assert_eq!(open(&page, &resealed(2, &page)).unwrap_err(), Unopened::Format(2), "only heads have it");
}

#[test]
fn heads_are_frozen() {
    let mut catalogue = Catalogue::new("p".into());
    for (name, kind) in [("city", TagType::Enum), ("ä", TagType::Set), ("n", TagType::Int)] {
        assert_eq!(catalogue.add(name, kind), Ok(true));
    }
    let mut out = Vec::new();
    head(&mut out, 300, &catalogue, &[7, 0, 0], &[]);
    let expected =
        [&[0xac, 2, 3, 0, 4][..], b"city", &[7, 1, 2], "ä".as_bytes(), &[0, 2, 1, b'n', 0]].concat();
    assert_eq!(out, expected);
    let read = Head::decode(&mut Input(&out)).unwrap();
    let tags = vec![("city", TagType::Enum, 7), ("ä", TagType::Set, 0), ("n", TagType::Int, 0)];
    assert_eq!(read, Head { users: 300, tags });
    for n in 0..out.len() {
        assert!(Head::decode(&mut Input(&out[..n])).is_err());
    }
}

#[test]
fn heads_with_later_types_are_frozen_and_of_a_later_format() {
    let later = [
        TagType::UInt,
        TagType::Float,
        TagType::Bool,
        TagType::Decimal(2),
        TagType::Date,
        TagType::Timestamp,
        TagType::IntSet,
        TagType::Map,
    ];
    let mut catalogue = Catalogue::new("p".into());
    assert_eq!(catalogue.add("n", TagType::Int), Ok(true));
    assert_eq!(head_format(&catalogue), FORMAT);
    let names: Vec<String> = (0..later.len()).map(|i| format!("t{i}")).collect();
    for (name, kind) in names.iter().zip(later) {
        assert_eq!(catalogue.add(name, kind), Ok(true));
    }
    assert_eq!(head_format(&catalogue), HEAD_FORMAT);
    let mut out = Vec::new();
    head(&mut out, 1, &catalogue, &[0, 0, 0, 0, 0, 0, 0, 5, 6], &[]);
    let tags = [
        &[2, 1, b'n', 0][..],
        &[3, 2, b't', b'0', 0],
        &[4, 2, b't', b'1', 0],
        &[5, 2, b't', b'2', 0],
        &[6, 2, 2, b't', b'3', 0],
        &[7, 2, b't', b'4', 0],
        &[8, 2, b't', b'5', 0],
        &[9, 2, b't', b'6', 5],
        &[10, 2, b't', b'7', 6],
    ];
    assert_eq!(out, [&[1, 9][..], &tags.concat()].concat());
    let read = Head::decode(&mut Input(&out)).unwrap();
    assert_eq!(read.tags[4], ("t3", TagType::Decimal(2), 0));
    assert_eq!(read.tags[8], ("t7", TagType::Map, 6));
}

#[test]
fn names_are_frozen() {
    let of = |user: UserId| {
        let mut out = Vec::new();
        user.encode(&mut out);
        assert_eq!(UserId::decode(&mut Input(&out)), Ok(user));
        out
    };
    assert_eq!(of(7u64.into()), [0, 7]);
    assert_eq!(of(300u64.into()), [0, 0xac, 2]);
    assert_eq!(of("7".into()), [1, 1, b'7']);
    assert_eq!(of("".into()), [1, 0]);
    assert_eq!(UserId::decode(&mut Input(&[2, 0])), Err(Bad("a user id is of no known kind")));
    assert_eq!(UserId::decode(&mut Input(&[1, 1, 0xff])), Err(Bad("a text is not UTF-8")));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bit_matters(contents in prop::collection::vec(any::<u8>(), 0..50), at: prop::sample::Index, bit in 0u8..8, page: u32) {
        let place = key(Part::Stamps, "tag", page);
        let mut value = sealed(&place, &contents);
        prop_assert_eq!(open(&place, &value).unwrap().0, &contents[..]);
        // Under another table it is the same, under another page it is not.
        let mut moved = place.clone();
        moved[3] ^= 1;
        prop_assert!(open(&moved, &value).is_ok());
        prop_assert!(open(&key(Part::Stamps, "tag", page ^ 1), &value).is_err());
        *at.get_mut(&mut value) ^= 1 << bit;
        prop_assert!(open(&place, &value).is_err());
        prop_assert!(open(&place, &value[..at.index(value.len())]).is_err());
    }

    #[test]
    fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = (Place::of(&bytes), Head::decode(&mut Input(&bytes)), UserId::decode(&mut Input(&bytes)));
    }
}
