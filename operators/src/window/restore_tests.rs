//! Windows over saves, losses and restores with any parallelism: each is given once, with all that belongs to it.

use super::*;
use crate::aggregate::{Count, count, sum};
use crate::fleet::Fleet;
use crate::window::{Calendar, TimeWindow, Tumbling};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;
use weir_engine::testkit::{OpHarness, context};
use weir_state::key_hash;

type Windows<A> = Fleet<u64, i64, TumblingAggregate<u64, i64, A>>;

fn of<A: Aggregate<i64>>(size: u64, aggregate: A) -> TumblingAggregate<u64, i64, A> {
    let window = Cutting::Tumbling(Tumbling::of(Duration::from_millis(size)));
    TumblingAggregate::new(window, aggregate, SideSlot::default())
}

fn counting(parallelism: usize) -> Windows<Count> {
    Fleet::of(of(10, count()), parallelism)
}

/// `(start, key, value)`.
fn results<A: Aggregate<i64>>(fleet: &mut Windows<A>) -> Vec<(i64, u64, A::Out)>
where
    A::Out: Ord,
{
    let row = |r: Record<WindowResult<u64, A::Out>>| (r.value.window.start.0, r.value.key, r.value.value);
    let mut rows: Vec<_> = fleet.take().into_iter().map(row).collect();
    rows.sort_unstable();
    rows
}

#[test]
fn e22_a_window_closes_after_a_restore_though_nothing_comes_for_its_key() {
    for parallelism in [1, 2, 3] {
        let mut fleet = counting(2);
        fleet.batch([(1, 0, 3), (2, 0, 4), (1, 0, 5)]);
        let saved = fleet.save();
        fleet.restore(&saved, parallelism);
        fleet.watermark(8);
        assert_eq!(results(&mut fleet), []);
        fleet.watermark(9);
        assert_eq!(results(&mut fleet), [(0, 1, 2), (0, 2, 1)]);
        fleet.end(EndKind::Flush);
        assert_eq!(results(&mut fleet), []);
    }
}

#[test]
fn e23_windows_that_were_given_are_not_given_again_after_a_restore() {
    let mut fleet = counting(2);
    fleet.batch((0..100).map(|key| (key, 0, key as i64)));
    fleet.watermark(50);
    assert_eq!(results(&mut fleet).len(), 50);
    let saved = fleet.save();
    fleet.restore(&saved, 3);
    fleet.watermark(1);
    // Late before the restore, late after it.
    fleet.batch([(1, 0, 49), (2, 0, 50)]);
    fleet.watermark(50);
    assert_eq!(results(&mut fleet), []);
    fleet.end(EndKind::Flush);
    let given = results(&mut fleet);
    assert_eq!(given.len(), 51);
    assert!(given.iter().all(|(start, ..)| *start >= 50));
}

#[test]
fn e20_a_window_goes_on_after_a_restore_with_what_it_had() {
    let mut fleet = Fleet::of(of(10, (count(), sum(|n: &i64| *n))), 2);
    fleet.batch([(1, 5, 3), (2, 7, 4)]);
    let first = fleet.save();
    fleet.batch([(1, 6, 5)]);
    let second = fleet.save();
    for (saved, expected) in
        [(&first, [(0, 1, (2, 14)), (0, 2, (1, 7))]), (&second, [(0, 1, (3, 20)), (0, 2, (1, 7))])]
    {
        fleet.restore(saved, 2);
        fleet.batch([(1, 9, 1)]);
        fleet.watermark(9);
        assert_eq!(results(&mut fleet), expected);
    }
}

#[test]
fn e25_counts_are_exact_whatever_the_parallelism() {
    const KEYS: u64 = 5_000;
    let mut fleet = counting(2);
    for (round, parallelism) in [2, 3, 7, 1].into_iter().enumerate() {
        let saved = fleet.save();
        // What comes after the snapshot did not happen.
        fleet.batch((0..KEYS).map(|key| (key, 0, key as i64 % 100)));
        fleet.watermark(45);
        fleet.take();
        fleet.restore(&saved, parallelism);
        fleet.batch((0..KEYS).map(|key| (key, 0, key as i64 % 100)));
        fleet.watermark(round as i64);
    }
    fleet.watermark(49);
    let early = results(&mut fleet);
    assert!(early.len() == 2_500 && early.iter().all(|(_, _, n)| *n == 4));
    let saved = fleet.save();
    fleet.restore(&saved, 2);
    fleet.end(EndKind::Flush);
    let late = results(&mut fleet);
    assert!(late.len() == 2_500 && late.iter().all(|(_, _, n)| *n == 4));
}

#[test]
fn a_window_that_opens_and_ends_between_two_barriers_is_never_written() {
    let cx = context("windows", 0, 1);
    let mut h = OpHarness::with(of(10, count()), &cx).unwrap();
    let keyed = |key: u64| Keyed { hash: key_hash(&key), key, value: 0 };
    let rows = || {
        let mut rows = 0;
        let mut count = |_: &[u8], _: &[u8]| {
            rows += 1;
            ControlFlow::Continue(())
        };
        cx.store().unwrap().backend().scan(&[], &[], &mut count).unwrap();
        rows
    };
    for round in 0..5 {
        h.batch((0..100).map(|key| (keyed(key), round * 10))).unwrap();
        h.watermark(round * 10 + 9).unwrap();
        assert_eq!(h.take().len(), 100);
        h.save(1 + round as u64).unwrap();
        assert_eq!(rows(), 0);
    }
    // One that is open at a barrier is written, and gone at the barrier after its end.
    h.batch((0..100).map(|key| (keyed(key), 50))).unwrap();
    h.save(10).unwrap();
    assert_eq!(rows(), 100);
    h.watermark(59).unwrap();
    assert_eq!(h.take().len(), 100);
    h.save(11).unwrap();
    assert_eq!(rows(), 0);
}

#[test]
fn a_size_that_changes_under_open_windows_is_refused() {
    let mut fleet = counting(1);
    fleet.batch([(1, 0, 3)]);
    let saved = fleet.save();
    let restored =
        |size| OpHarness::<Keyed<u64, i64>, _>::restored(of(size, count()), &[&saved[0]], 0, 1).map(drop);
    assert!(restored(10).is_ok());
    let refused = restored(20).unwrap_err().chain();
    assert!(refused.contains("size_ms = 10, the job declares 20"), "{refused}");
    // Nothing is open any more.
    fleet.watermark(9);
    let saved = fleet.save();
    let mut longer = OpHarness::restored(of(20, count()), &[&saved[0]], 0, 1).unwrap();
    longer.send(Keyed { hash: key_hash(&1u64), key: 1, value: 0 }, 13).unwrap();
    longer.watermark(19).unwrap();
    assert_eq!(longer.take_values()[0].value, 1);
}

#[test]
fn midnights_that_the_rules_have_moved_are_refused_and_hang_nothing() {
    let days = || {
        let window = Cutting::Calendar(Calendar::days("America/New_York"));
        TumblingAggregate::<u64, i64, Count>::new(window, count(), SideSlot::default())
    };
    for hours in [1, -1] {
        let mut h = OpHarness::<Keyed<u64, i64>, _>::new(days()).unwrap();
        let panes = h.op().panes.0.as_mut().unwrap();
        // A day as it was when clocks were put differently.
        let day = panes.window_of(EventTime(1_772_900_000_000));
        let start = EventTime(day.start.0 + hours * 3_600_000);
        panes.map_of(TimeWindow { start, ..day }).get_or_insert_with(key_hash(&1u64), 1, || 5).unwrap();
        let saved = h.save(1).unwrap();
        let restored = OpHarness::<Keyed<u64, i64>, _>::restored(days(), &[&saved], 0, 1).map(drop);
        let refused = restored.unwrap_err().chain();
        for part in ["under-test", "days in America/New_York", start.0.to_string().as_str(), "another uid"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        // Were it not, it would be given and closed as what it is.
        h.watermark(day.end.0).unwrap();
        let given = h.take_values();
        assert_eq!(given.iter().map(|r| (r.window.start, r.value)).collect::<Vec<_>>(), [(start, 5)]);
        h.end(EndKind::Flush).unwrap();
        assert_eq!(h.take_values(), []);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Batch(Vec<(u64, i64, i64)>),
    Watermark(i64),
    /// What is given in parts is not waited for.
    Begin(i64),
    Quiet,
    Save,
    Lose,
    Restore(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec((0..60u64, -5..5i64, -10..40i64), 0..20).prop_map(Step::Batch),
        1 => (1..15i64).prop_map(Step::Watermark),
        2 => (1..35i64).prop_map(Step::Begin),
        1 => Just(Step::Quiet),
        2 => Just(Step::Save),
        1 => Just(Step::Lose),
        1 => (1..5usize).prop_map(Step::Restore),
    ]
}

#[derive(Clone, Default)]
struct Model {
    open: BTreeMap<(i64, u64), (u64, i64)>,
    watermark: i64,
}

impl Model {
    fn take(&mut self, key: u64, value: i64, time: i64) {
        let start = time.div_euclid(10) * 10;
        if start + 9 > self.watermark {
            let (n, total) = self.open.entry((start, key)).or_default();
            (*n, *total) = (*n + 1, *total + value);
        }
    }

    fn advance(&mut self, to: i64) -> Vec<(i64, u64, (u64, i64))> {
        self.watermark = to;
        let over = self.open.extract_if(.., |(start, _), _| start + 9 <= to);
        over.map(|((start, key), value)| (start, key, value)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Saved, lost and restored anywhere, windows give what a plain model gives.
    #[test]
    fn agree_with_a_model(steps in prop::collection::vec(step(), 0..60)) {
        let mut fleet = Fleet::of(of(10, (count(), sum(|n: &i64| *n))), 2);
        let mut model = Model::default();
        fleet.watermark(0);
        // What the model has given and the windows have not.
        let mut owed = Vec::new();
        let mut saved = (fleet.save(), model.clone(), owed.clone());
        for step in steps.into_iter().chain([Step::Watermark(10_000)]) {
            match step {
                Step::Batch(records) => {
                    // Around where event time is: some late, some windows far ahead.
                    let at = model.watermark;
                    let records = records.into_iter().map(|(key, value, time)| (key, value, at + time));
                    let records: Vec<_> = records.collect();
                    records.iter().for_each(|(key, value, time)| model.take(*key, *value, *time));
                    fleet.batch(records);
                }
                Step::Watermark(by) | Step::Begin(by) => {
                    let to = model.watermark + by;
                    owed.extend(model.advance(to));
                    match step {
                        Step::Begin(_) => fleet.begin_watermark(to),
                        _ => fleet.watermark(to),
                    }
                }
                Step::Quiet => fleet.quiet(),
                Step::Save => saved = (fleet.save(), model.clone(), owed.clone()),
                Step::Lose => fleet.lose(),
                Step::Restore(parallelism) => {
                    fleet.restore(&saved.0, parallelism);
                    (model, owed) = (saved.1.clone(), saved.2.clone());
                }
            }
            for row in results(&mut fleet) {
                let at = owed.iter().position(|owed| *owed == row);
                prop_assert!(at.is_some(), "{:?} was given, and only these were owed: {:?}", row, owed);
                owed.swap_remove(at.unwrap());
            }
            prop_assert!(fleet.has_more() || owed.is_empty(), "not given: {:?}", owed);
        }
    }
}
