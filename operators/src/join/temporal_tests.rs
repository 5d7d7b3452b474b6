//! The temporal join against a look at all changes, with failures in between; what it forgets.

use proptest::prelude::*;
use weir_engine::testkit::{OpHarness, SideProbe};
use weir_engine::{EndKind, KeyHash};

use super::*;
use crate::fleet::Fleet;
use crate::join::kind::{Anti, Inner, LeftOuter, Semi};
use crate::join::testing::{self, Both, Known, Value};
use crate::trial::{self, Cuts};

type Join<J> = Timely<u64, Both, Ordered<u64, Both, Versions<Value, J, fn(Value) -> Change<Value>>>>;

fn change(value: Value) -> Change<Value> {
    if value.0 % 4 == 0 { Change::Delete } else { Change::Put(value) }
}

fn join<J: TableJoinKind<Value, Value>>(late: SideSlot<Both>) -> Join<J> {
    Timely::new(Ordered::new(Versions::new(change as fn(Value) -> Change<Value>)), late)
}

fn agrees<J: Known + TableJoinKind<Value, Value>>(
    _: J,
    input: &testing::Input,
    cuts: &Cuts,
) -> Result<(), TestCaseError> {
    let given = testing::rows::<J>(trial::run(join::<J>(SideSlot::default()), input, cuts, true));
    let (pairs, alone, _, met_once) = J::GIVES;
    let changes = testing::right(input);
    let mut expected = Vec::new();
    for (key, value, time) in testing::left(input) {
        let before = changes.iter().filter(|c| c.0 == key && c.2 <= time);
        // Of those of one time the last that came: `max_by_key` gives the last of equals.
        let valid = before.max_by_key(|c| c.2).map(|c| c.1).filter(|v| matches!(change(*v), Change::Put(_)));
        match valid {
            Some(version) if pairs => expected.push(((Some(value), Some(version)), time)),
            Some(_) if met_once => expected.push(((Some(value), None), time)),
            None if alone => expected.push(((Some(value), None), time)),
            _ => {}
        }
    }
    expected.sort_unstable();
    prop_assert_eq!(given, expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    #[test]
    fn every_record_meets_the_version_of_its_time(input in testing::input(), cuts in trial::cuts()) {
        agrees(Inner, &input, &cuts)?;
        agrees(LeftOuter, &input, &cuts)?;
        agrees(Semi, &input, &cuts)?;
        agrees(Anti, &input, &cuts)?;
    }
}

fn keyed(value: Both) -> Keyed<u64, Both> {
    Keyed { hash: KeyHash(7), key: 7, value }
}

fn left(n: usize) -> Keyed<u64, Both> {
    keyed(Both::Left((0, n)))
}

fn put(n: usize) -> Keyed<u64, Both> {
    keyed(Both::Right((1, n)))
}

fn delete() -> Keyed<u64, Both> {
    keyed(Both::Right((0, 0)))
}

#[test]
fn a_change_is_valid_from_its_very_time_on_whichever_came_first() {
    let mut h = OpHarness::new(join::<LeftOuter>(SideSlot::default())).unwrap();
    h.batch([(left(1), -10), (put(100), -10), (left(2), -11), (left(3), -9), (delete(), -8), (left(4), -8)])
        .unwrap();
    assert_eq!(h.take(), []);
    h.watermark(-8).unwrap();
    let given: Vec<_> = h.take_values().into_iter().map(|(l, r)| (l.1, r.map(|r| r.1))).collect();
    assert_eq!(given, [(2, None), (1, Some(100)), (3, Some(100)), (4, None)]);
}

#[test]
fn only_the_version_that_is_valid_now_is_kept_and_none_of_a_deleted_row() {
    let recipe = join::<LeftOuter>(SideSlot::default());
    let mut fleet = Fleet::of(recipe, 2);
    fleet.batch((0..50u64).flat_map(|key| (0..9).map(move |n| (key, Both::Right((1, n)), n as i64))));
    fleet.batch((0..25u64).map(|key| (key, Both::Right((0, 0)), 10)));
    fleet.watermark(20);
    let saved = fleet.save();
    fleet.restore(&saved, 5);
    fleet.batch((0..50u64).map(|key| (key, Both::Left((0, key as usize)), 21)));
    fleet.end(EndKind::Flush);
    let mut given: Vec<_> = fleet.take().into_iter().map(|r| (r.value.0.1, r.value.1.map(|v| v.1))).collect();
    given.sort_unstable();
    let expected: Vec<_> = (0..50).map(|key| (key, (key >= 25).then_some(8))).collect();
    assert_eq!(given, expected);
}

#[test]
fn e12_late_changes_and_records_change_nothing_and_come_out() {
    let slot = SideSlot::default();
    let late = SideProbe::attach(&slot);
    let mut h = OpHarness::new(join::<LeftOuter>(slot)).unwrap();
    h.send(put(1), 10).unwrap();
    h.watermark(20).unwrap();
    h.batch([(put(2), 15), (left(7), 20), (left(8), 21)]).unwrap();
    h.end(EndKind::Flush).unwrap();
    let given: Vec<_> = h.take_values().into_iter().map(|(l, r)| (l.1, r.map(|r| r.1))).collect();
    assert_eq!(given, [(8, Some(1))]);
    assert_eq!(late.take().len(), 2);
}
