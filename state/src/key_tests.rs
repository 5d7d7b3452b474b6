//! Golden hashes, which never change, and the arithmetic of key groups.

use super::*;
use proptest::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

#[derive(Serialize)]
enum Shape {
    Dot,
    Circle(u32),
    Line(i64, i64),
    Box { w: u8, h: u8 },
}

#[derive(Serialize)]
struct Point {
    x: u8,
    y: u8,
}

#[derive(Serialize)]
struct Meters(u64);

fn h<K: Serialize + ?Sized>(k: &K) -> u64 {
    key_hash(k).0
}

/// If this fails, existing state is routed elsewhere: undo the change that made it fail.
#[test]
fn golden_hashes_are_frozen() {
    let golden = [
        ("0", h(&0u64), 0x7a92_a609_c476_18c8),
        ("1", h(&1u64), 0x3fa2_51e3_354b_cc80),
        ("42", h(&42u32), 0x2266_a41a_6770_8944),
        ("u64::MAX", h(&-1i64), 0x4481_d96b_3633_d730),
        ("2^64 + 1", h(&((1u128 << 64) + 1)), 0xef2d_4fe5_f61a_ee65),
        ("true", h(&true), 0x3fa2_51e3_354b_cc80),
        ("'ä'", h(&'ä'), 0x9cfd_b6b1_1dcc_d854),
        ("1.5", h(&1.5f64), 0x103b_caf9_27a6_730a),
        ("empty", h(""), 0xd5d9_4b03_1dd3_9264),
        ("wu", h("wu"), 0xb6eb_87c7_3bf9_6d05),
        ("unicode", h("thingäöüÄÖÜ 用户 🦀"), 0x8e10_1a61_ec13_7621),
        ("300 bytes", h(&"x".repeat(300)), 0x8019_e5df_d896_6c89),
        ("pair", h(&(7u64, "seven")), 0x27ea_4add_d8b5_5d1c),
        ("struct", h(&Point { x: 1, y: 2 }), 0x4a95_c746_7478_7f35),
        ("vec", h(&vec![1u8, 2, 3]), 0x8c3d_b6c8_ba25_f10b),
        ("map", h(&BTreeMap::from([("a", 1), ("b", 2)])), 0x606c_025c_0e85_243a),
        ("none", h(&None::<u64>), 0x7a92_a609_c476_18c8),
        ("some", h(&Some(7u64)), 0xe09f_da6e_5cdc_d0ac),
        ("unit variant", h(&Shape::Dot), 0x7a92_a609_c476_18c8),
        ("newtype variant", h(&Shape::Circle(3)), 0x8078_6c2c_f1b6_c45a),
        ("tuple variant", h(&Shape::Line(-1, 1)), 0x4eb3_d2ec_16e0_a17f),
        ("struct variant", h(&Shape::Box { w: 2, h: 3 }), 0xfe9a_c9a3_ae55_cf36),
    ];
    for (what, got, frozen) in golden {
        assert_eq!(got, frozen, "{what}: got {got:#018x}");
    }
}

#[test]
fn equal_images_hash_alike() {
    assert_eq!(h(&7u32), h(&7u64));
    assert_eq!(h(&-1i32), h(&u64::MAX));
    assert_eq!(h(&-1i64), h(&-1i8));
    assert_eq!(h("wu"), h(&String::from("wu")));
    assert_eq!(h(&Meters(5)), h(&5u64));
    assert_eq!(h(&-0.0f64), h(&0.0f32));
    assert_eq!(h(&f64::NAN), h(&-f64::NAN));
    assert_eq!(h(&vec![1, 2, 3]), h(&[1u64, 2, 3][..]));
    assert_eq!(h(&Ipv4Addr::LOCALHOST), h("127.0.0.1"));
    let mut shown = Fold { state: START };
    serde::Serializer::collect_str(
        &mut shown,
        &format_args!("{}-{}", "long enough to span", "x".repeat(300)),
    )
    .unwrap();
    assert_eq!(shown.state, h(&format!("long enough to span-{}", "x".repeat(300))));
}

#[test]
fn different_shapes_hash_apart() {
    let all = [
        h(&(1, 2)),
        h(&(2, 1)),
        h(&((1,), 2)),
        h(&vec![1, 2]),
        h(&Some(1)),
        h(&("a", "bc")),
        h(&("ab", "c")),
        h(&Shape::Dot),
        h(&Shape::Circle(0)),
        h(&Shape::Line(0, 0)),
        h(&(vec![1], vec![2, 3])),
        h(&(vec![1, 2], vec![3])),
    ];
    for (i, a) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|b| b != a), "shape {i} collides");
    }
}

#[test]
fn a_key_that_refuses_still_has_a_stable_hash() {
    struct Refuses;
    impl Serialize for Refuses {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("no"))
        }
    }
    assert_eq!(h(&Refuses), h(&Refuses));
}

#[test]
fn groups_are_even() {
    let mut seen = vec![0u32; KEY_GROUPS as usize];
    for id in 0..128_000u64 {
        seen[key_hash(&id).group(KEY_GROUPS).0 as usize] += 1;
    }
    let (least, most) = (seen.iter().min().unwrap(), seen.iter().max().unwrap());
    assert!(*least > 850 && *most < 1150, "{least}..{most} users per group, 1000 expected");
}

proptest! {
    #[test]
    fn ranges_are_the_inverse_of_subtask(groups in 1u16..=1024, share in 0.0f64..1.0) {
        let parallelism = 1 + (share * f64::from(groups - 1)) as usize;
        let mut next = 0;
        for subtask in 0..parallelism {
            let range = key_groups_of(subtask, parallelism, groups);
            prop_assert_eq!(range.start, next);
            next = range.end;
            for group in range {
                prop_assert_eq!(KeyGroup(group).subtask(groups, parallelism), subtask);
            }
        }
        prop_assert_eq!(next, groups);
    }

    #[test]
    fn group_is_in_range(hash in any::<u64>(), groups in 1u16..) {
        prop_assert!(KeyHash(hash).group(groups).0 < groups);
    }
}

#[test]
fn every_parallelism_of_the_default_groups() {
    for parallelism in 1..=KEY_GROUPS as usize {
        let all: Vec<u16> =
            (0..parallelism).flat_map(|s| key_groups_of(s, parallelism, KEY_GROUPS)).collect();
        assert!(all.iter().copied().eq(0..KEY_GROUPS), "{parallelism} subtasks");
    }
    assert!(key_groups_of(200, 300, KEY_GROUPS).len() <= 1);
    assert!(key_groups_of(130, 128, KEY_GROUPS).is_empty());
}
