//! Pages come back as they were, their bytes are frozen, and no bytes make reading panic.

use super::*;
use crate::profile::stamp::base_around;
use proptest::prelude::*;

fn bytes(page: &impl Page) -> Vec<u8> {
    let mut out = Vec::new();
    page.encode(&mut out);
    out
}

fn hex(page: &impl Page) -> String {
    bytes(page).iter().map(|b| format!("{b:02x}")).collect()
}

/// Reads the bytes back and writes them again: equal bytes are equal pages, for a page has one image.
fn again<P: Page>(page: &P) -> P {
    let written = bytes(page);
    let mut input = Input(&written);
    let read = P::decode(&mut input).unwrap();
    assert_eq!(input.end(), Ok(()));
    assert_eq!(bytes(&read), written);
    read
}

fn time() -> impl Strategy<Value = i64> {
    prop_oneof![
        1_511_544_000_000i64..1_512_544_000_000,
        any::<i64>(),
        Just(i64::MIN),
        Just(i64::MAX),
        -5i64..5
    ]
}

fn stamp_page(base: i64, offsets: &[(usize, u32)]) -> StampPage {
    let mut page = [0; PAGE];
    offsets.iter().for_each(|(slot, offset)| page[*slot] = *offset);
    StampPage::Narrow { base, offsets: page }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn enum_pages_come_back(values in prop::collection::vec((0usize..PAGE, prop_oneof![0u32..3, any::<u32>()]), 0..300)) {
        let mut page = EnumPage::default();
        values.into_iter().for_each(|(slot, value)| page.0[slot] = value);
        prop_assert_eq!(again(&page).0, page.0);
    }

    #[test]
    fn int_pages_come_back(values in prop::collection::vec((0usize..PAGE, prop_oneof![-3i64..3, any::<i64>()]), 0..300)) {
        let mut page = IntPage::default();
        for (slot, value) in values {
            page.has[slot / 64] |= 1 << (slot % 64);
            page.values[slot] = value;
        }
        let read = again(&page);
        prop_assert!((0..PAGE).all(|slot| read.get(slot) == page.get(slot)));
    }

    #[test]
    fn set_pages_come_back(sets in prop::collection::btree_map(0usize..PAGE, prop::collection::vec(0u32..1 << 31, 0..4), 0..80)) {
        let mut page = SetPage::default();
        for (slot, values) in &sets {
            page.has[slot / 64] |= 1 << (slot % 64);
            page.lists.append(*slot, values.iter().copied());
        }
        let read = again(&page);
        prop_assert_eq!(read.has, page.has);
        for slot in 0..PAGE {
            prop_assert_eq!(read.lists.get(slot), sets.get(&slot).map_or(&[][..], |v| v));
        }
    }

    #[test]
    fn stamp_pages_come_back(times in prop::collection::vec((0usize..PAGE, time()), 1..300), near: bool) {
        let mut page = StampPage::Narrow { base: base_around(times[0].1), offsets: [0; PAGE] };
        for (slot, time) in times {
            page.set(slot, if near { time % 1_000 } else { time });
        }
        let read = again(&page);
        prop_assert!((0..PAGE).all(|slot| read.get(slot) == page.get(slot)));
        prop_assert_eq!(matches!(read, StampPage::Wide(_)), matches!(page, StampPage::Wide(_)));
    }

    #[test]
    fn element_pages_come_back(
        lists in prop::collection::btree_map(0usize..ELEMENT_PAGE, prop::collection::btree_map(any::<u32>().prop_map(|v| v / 2), time(), 0..5), 0..20),
        wide: bool,
    ) {
        let page = if wide {
            let mut all = Packed::default();
            lists.iter().for_each(|(slot, list)| all.append(*slot, list.iter().map(|(v, t)| (*v, *t))));
            ElementPage::Wide(all)
        } else {
            let mut all = Packed::default();
            lists.iter().for_each(|(slot, list)| all.append(*slot, list.iter().map(|(v, t)| (*v, *t as u32))));
            ElementPage::Narrow { base: base_around(0), lists: all }
        };
        let read = again(&page);
        prop_assert!((0..ELEMENT_PAGE).all(|slot| read.list(slot) == page.list(slot)));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(prop_oneof![0u8..5, any::<u8>()], 0..400)) {
        // What is read is a page of which every slot can be looked at.
        if let Ok(page) = SetPage::decode(&mut Input(&bytes)) {
            (0..PAGE).for_each(|slot| assert!(page.lists.get(slot).len() <= page.lists.items().len()));
        }
        if let Ok(page) = ElementPage::decode(&mut Input(&bytes)) {
            (0..ELEMENT_PAGE).for_each(|slot| drop(page.list(slot)));
        }
        if let Ok(page) = StampPage::decode(&mut Input(&bytes)) {
            (0..PAGE).for_each(|slot| _ = page.get(slot));
        }
        let _ = (EnumPage::decode(&mut Input(&bytes)), IntPage::decode(&mut Input(&bytes)));
    }

    #[test]
    fn no_damage_makes_it_panic(at: prop::sample::Index, with: u8, cut: prop::sample::Index) {
        let page = ElementPage::Narrow { base: 7, lists: {
            let mut lists = Packed::default();
            (0..ELEMENT_PAGE).for_each(|slot| lists.append(slot, (0..slot as u32 % 4).map(|v| (v * 3, 1 + v))));
            lists
        } };
        let mut damaged = bytes(&page);
        *at.get_mut(&mut damaged) = with;
        if let Ok(page) = ElementPage::decode(&mut Input(&damaged)) {
            (0..ELEMENT_PAGE).for_each(|slot| drop(page.list(slot)));
        }
        let short = &damaged[..cut.index(damaged.len())];
        let _ = ElementPage::decode(&mut Input(short));
    }
}

#[test]
fn the_bytes_are_frozen() {
    let mut page = EnumPage::default();
    assert_eq!(hex(&page), "00");
    page.0[0] = 4;
    page.0[2] = 0;
    // n = 3, least 0, width 1: 5, none, 1.
    assert_eq!(hex(&page), concat!("03", "00", "01", "050001"));
    page.0[1] = 300;
    page.0[255] = 9;
    assert!(hex(&page).starts_with(concat!("8002", "00", "02", "0500", "2d01", "0100", "0000")));

    let mut page = IntPage::default();
    for (slot, value) in [(1, -1), (9, 255)] {
        page.has[0] |= 1 << slot;
        page.values[slot] = value;
    }
    // n = 10, bits 1 and 9, least 2^63 - 1 (that is -1), width 2: 0, 256.
    assert_eq!(hex(&page), concat!("0a", "0202", "ffffffffffffffff7f", "02", "00000001"));

    let mut page = SetPage { has: [0b101, 0, 0, 0], ..SetPage::default() };
    page.lists.append(0, [7, 5]);
    // n = 3, bits 0 and 2, lengths 2, 0, 0, values from 5: 2, 0.
    assert_eq!(hex(&page), concat!("03", "05", "0001020000", "05010200"));

    let page = stamp_page(1_000, &[(0, 5), (1, 7)]);
    assert_eq!(hex(&page), concat!("00", "e803000000000000", "02", "05010002"));
    let mut times = Box::new([NEVER; PAGE]);
    times[0] = i64::MAX;
    assert_eq!(hex(&StampPage::Wide(times)), concat!("01", "01", "ffffffffffffffffff01", "00"));

    let mut lists = Packed::default();
    lists.append(1, [(3, 10), (9, 11)]);
    // n = 2, lengths 0 and 2, values from 3: 0, 6, offsets from 10: 0, 1.
    let narrow = ElementPage::Narrow { base: -1, lists };
    assert_eq!(hex(&narrow), concat!("00", "ffffffffffffffff", "02", "00010002", "03010006", "0a010001"));
    let mut lists = Packed::default();
    lists.append(0, [(3, 0)]);
    assert_eq!(
        hex(&ElementPage::Wide(lists)),
        concat!("01", "01", "0100", "0300", "80808080808080808001", "00")
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |bytes: &[u8]| SetPage::decode(&mut Input(bytes)).unwrap_err();
    assert_eq!(refused(&[3]), Bad("it ends too early"));
    assert_eq!(refused(&[0x81, 2]), Bad("a count is too large"));
    // One user, no bit, one element.
    assert_eq!(refused(&[1, 0, 1, 0, 5, 0]), Bad("elements belong to a user without a set"));
    // One user, two bits.
    assert_eq!(refused(&[1, 3, 1, 0, 5, 0]), Bad("bits are set behind the last one"));
    // A billion elements in no bytes.
    assert_eq!(refused(&[1, 1, 0x80, 0x80, 0x80, 0x80, 4, 0, 5, 0]), Bad("the width of a run is none"));
    // One user, two elements, 6 and 5, at the same time.
    let unordered = [1, 1, 2, 0, 5, 1, 1, 0, 0, 0];
    assert_eq!(
        ElementPage::decode(&mut Input(&unordered)).unwrap_err(),
        Bad("the elements of a set are not in order")
    );
    assert_eq!(StampPage::decode(&mut Input(&[2])).unwrap_err(), Bad("it is of no known kind"));
    let base = [0, 255, 255, 255, 255, 255, 255, 255, 127, 0];
    assert_eq!(StampPage::decode(&mut Input(&base)).unwrap_err(), Bad("a time is out of range"));
}
