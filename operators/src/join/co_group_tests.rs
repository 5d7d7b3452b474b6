//! Window joins against nested loops over each window, with failures in between.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use weir_engine::testkit::{OpHarness, SideProbe};
use weir_engine::{EndKind, KeyHash, Keyed, SideSlot};

use super::*;
use crate::join::kind::{Anti, FullOuter, Inner, LeftOuter, RightOuter, Semi};
use crate::join::testing::{self, Both, Input, Known, Value, nested_loops};
use crate::trial::{self, Cuts};
use crate::window::{Session, Sliding, Tumbling, Window};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Start and end of each window of a key that has a record, and the place of the record in the input.
type Windows = BTreeMap<(u64, i64, i64), Vec<usize>>;

fn aligned(input: &Input, size: i64, slide: i64) -> Windows {
    let mut windows = Windows::new();
    for (at, (key, _, time)) in input.iter().enumerate() {
        let last = time.div_euclid(slide) * slide;
        for start in (0..).map(|n| last - n * slide).take_while(|start| start + size > *time) {
            windows.entry((*key, start, start + size)).or_default().push(at);
        }
    }
    windows
}

fn sessions(input: &Input, gap: i64) -> Windows {
    let keys: BTreeSet<u64> = input.iter().map(|r| r.0).collect();
    let mut windows = Windows::new();
    for key in keys {
        let mut of_key: Vec<_> = (0..input.len()).filter(|at| input[*at].0 == key).collect();
        of_key.sort_by_key(|at| input[*at].2);
        let mut open: Option<(i64, i64, Vec<usize>)> = None;
        for at in of_key {
            let time = input[at].2;
            match &mut open {
                Some((_, end, records)) if time < *end => {
                    *end = time + gap;
                    records.push(at);
                }
                _ => {
                    if let Some((start, end, records)) = open.take() {
                        windows.insert((key, start, end), records);
                    }
                    open = Some((time, time + gap, vec![at]));
                }
            }
        }
        if let Some((start, end, records)) = open {
            windows.insert((key, start, end), records);
        }
    }
    windows
}

type Rows = Vec<(u64, i64, testing::Row, i64)>;

fn given<J: Known, W: Window<u64, Both>>(window: W, input: &Input, cuts: &Cuts) -> Rows {
    let collected = trial::run(window.operator(Sides::new(), SideSlot::default()), input, cuts, true);
    let mut joined = OpHarness::new(WindowJoined::<Value, Value, J>::new()).unwrap();
    joined.batch(collected.into_iter().map(|r| (r.value, r.time.0))).unwrap();
    let row = |r: Record<WindowResult<u64, J::Out>>| {
        assert_eq!(r.time, r.value.window.last());
        (r.value.key, r.value.window.start.0, J::row(r.value.value), r.time.0)
    };
    let mut rows: Rows = joined.take().into_iter().map(row).collect();
    rows.sort_unstable();
    rows
}

fn expected<J: Known>(windows: &Windows, input: &Input) -> Rows {
    let mut rows = Rows::new();
    for ((key, start, end), records) in windows {
        let inside: Input = records.iter().map(|at| input[*at]).collect();
        let (left, right) = (testing::left(&inside), testing::right(&inside));
        let of_window = nested_loops::<J>(&left, &right, |_, _| Some(end - 1), |_, _| end - 1);
        rows.extend(of_window.into_iter().map(|(row, time)| (*key, *start, row, time)));
    }
    rows.sort_unstable();
    rows
}

fn agrees<J: Known>(_: J, input: &Input, cuts: &Cuts) -> Result<(), TestCaseError> {
    prop_assert_eq!(
        given::<J, _>(Tumbling::of(ms(20)), input, cuts),
        expected::<J>(&aligned(input, 20, 20), input)
    );
    let sliding = Sliding::of(ms(20)).every(ms(5));
    prop_assert_eq!(given::<J, _>(sliding, input, cuts), expected::<J>(&aligned(input, 20, 5), input));
    prop_assert_eq!(
        given::<J, _>(Session::gap(ms(8)), input, cuts),
        expected::<J>(&sessions(input, 8), input)
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn every_kind_gives_what_nested_loops_over_each_window_give(input in testing::input(), cuts in trial::cuts()) {
        agrees(Inner, &input, &cuts)?;
        agrees(LeftOuter, &input, &cuts)?;
        agrees(RightOuter, &input, &cuts)?;
        agrees(FullOuter, &input, &cuts)?;
        agrees(Semi, &input, &cuts)?;
        agrees(Anti, &input, &cuts)?;
    }

    #[test]
    fn a_co_group_has_all_of_both_sides(input in testing::input(), cuts in trial::cuts()) {
        let collected = trial::run(Sliding::of(ms(20)).every(ms(10)).operator(Sides::new(), SideSlot::default()), &input, &cuts, true);
        let windows = aligned(&input, 20, 10);
        prop_assert_eq!(collected.len(), windows.len());
        for result in collected {
            let mut group = CoGroup::of(result.value);
            let inside: Input = windows[&(group.key, group.window.start.0, group.window.end.0)].iter().map(|at| input[*at]).collect();
            let sorted = |side: Vec<(u64, Value, i64)>| {
                let mut side: Vec<Value> = side.into_iter().map(|r| r.1).collect();
                side.sort_unstable();
                side
            };
            group.left.sort_unstable();
            group.right.sort_unstable();
            prop_assert_eq!((group.left, group.right), (sorted(testing::left(&inside)), sorted(testing::right(&inside))));
        }
    }
}

#[test]
fn e27_a_window_gives_nothing_alone_that_met_one() {
    let input: Input =
        vec![(1, Both::Left((0, 0)), 1), (1, Both::Right((0, 1)), 1), (2, Both::Left((0, 2)), 2)];
    let rows = given::<FullOuter, _>(Tumbling::of(ms(10)), &input, &Cuts::new());
    let (one, other) = ((0, 0), (0, 1));
    assert_eq!(rows, [(1, 0, (Some(one), Some(other)), 9), (2, 0, (Some((0, 2)), None), 9)]);
}

#[test]
fn e12_late_records_of_both_sides_come_out_as_the_windows_say() {
    let slot = SideSlot::default();
    let late = SideProbe::attach(&slot);
    let mut h = OpHarness::new(Tumbling::of(ms(10)).operator(Sides::<Value, Value>::new(), slot)).unwrap();
    let keyed = |value: Both| Keyed { hash: KeyHash(7), key: 7u64, value };
    h.send(keyed(Both::Left((0, 1))), 5).unwrap();
    h.watermark(9).unwrap();
    h.batch([(keyed(Both::Right((0, 2))), 9), (keyed(Both::Right((0, 3))), 10)]).unwrap();
    h.end(EndKind::Flush).unwrap();
    let sizes: Vec<_> = h.take_values().into_iter().map(|w| (w.value.0.len(), w.value.1.len())).collect();
    assert_eq!(sizes, [(1, 0), (0, 1)]);
    assert_eq!(late.take().into_iter().map(|r| r.value).collect::<Vec<_>>(), [Both::Right((0, 2))]);
}
