//! Golden hashes, which never change, and the arithmetic of key groups.

use super::*;
use proptest::prelude::*;
use serde::Serialize;
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
        ("0", h(&0u64), 0),
        ("1", h(&1u64), 0),
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
    serde::Serializer::collect_str(&mut shown, &format_args!("{}-{}", "long enough to span", "x".repeat(300))).unwrap();
    assert_eq!(shown.state, h(&format!("long enough to span-{}", "x".repeat(300))));
}

#[test]
fn different_shapes_hash_apart() {
    let all = [
        h(&()),
        h(&(1, 2)),
        h(&(2, 1)),
        h(&((1,), 2)),
        h(&vec![1, 2]),
        h(&Some(1)),
        h(&None::<u8>),
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
        let all: Vec<u16> = (0..parallelism).flat_map(|s| key_groups_of(s, parallelism, KEY_GROUPS)).collect();
        assert!(all.iter().copied().eq(0..KEY_GROUPS), "{parallelism} subtasks");
    }
    assert!(key_groups_of(200, 300, KEY_GROUPS).len() <= 1);
    assert!(key_groups_of(130, 128, KEY_GROUPS).is_empty());
}
