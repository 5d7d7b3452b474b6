//! Count windows and global windows against a plain loop, over saves and restores.

use super::*;
use crate::fleet::Fleet;
use crate::window::Timing;
use crate::window::model::both;
use proptest::prelude::*;
use std::collections::BTreeMap;
use weir_engine::EndKind;

/// `(key, value, pane)`.
type Row = (u64, (u64, i64), Pane);

fn op(window: Endless) -> CountAggregate<u64, i64, impl Aggregate<i64, Out = (u64, i64)>> {
    CountAggregate::new(window, both(), SideSlot::default())
}

fn rows(given: Vec<Record<WindowResult<u64, (u64, i64)>>>) -> Vec<Row> {
    let mut rows: Vec<Row> = given.into_iter().map(|r| (r.value.key, r.value.value, r.value.pane)).collect();
    rows.sort_unstable();
    rows
}

#[test]
fn a_count_window_has_the_bounds_of_its_records() {
    let mut fleet = Fleet::of(op(Endless::Count(CountWindow::of(3))), 1);
    fleet.batch([(1, 1, 50), (1, 2, -7), (1, 3, 20), (1, 4, 99)]);
    let given = fleet.take();
    let window = TimeWindow { start: EventTime(-7), end: EventTime(51) };
    let value = WindowResult { key: 1, window, value: (3, 6), pane: Pane::ONLY };
    assert_eq!(given, [Record { value, time: EventTime(50) }]);
    fleet.end(EndKind::Flush);
    assert_eq!(rows(fleet.take()), [(1, (1, 4), Pane::ONLY)]);
}

#[test]
fn a_global_window_is_given_as_asked_and_at_the_end() {
    let pane = |number, timing| Pane { number, timing };
    for (discards, sums) in [(false, [3, 10, 10]), (true, [3, 7, 0])] {
        let window = Global::new().early_every(2);
        let window = if discards { window.discarding() } else { window };
        let mut fleet = Fleet::of(op(Endless::Global(window)), 1);
        fleet.batch([(1, 1, i64::MIN), (1, 2, i64::MIN), (1, 3, i64::MIN), (1, 4, i64::MIN)]);
        let early = rows(fleet.take()).into_iter().map(|(_, (_, sum), pane)| (sum, pane)).collect::<Vec<_>>();
        assert_eq!(early, [(sums[0], pane(0, Timing::Early)), (sums[1], pane(1, Timing::Early))]);
        fleet.end(EndKind::Flush);
        let last = rows(fleet.take());
        let expected = if discards { vec![] } else { vec![(1, (4, sums[2]), pane(2, Timing::OnTime))] };
        assert_eq!(last, expected);
    }
}

#[test]
fn e16_a_count_of_nothing_is_named() {
    assert!(CountWindow::of(0).check().unwrap_err().to_string().contains("window count"));
    assert!(Global::new().early_every(0).check().unwrap_err().to_string().contains("early_every"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn count_windows_agree_with_a_plain_loop(
        batches in prop::collection::vec((prop::collection::vec((0u64..5, -9i64..9), 0..20), any::<bool>(), 1usize..5), 0..20),
        n in 1u32..6,
    ) {
        let mut fleet = Fleet::of(op(Endless::Count(CountWindow::of(n))), 2);
        let mut open = BTreeMap::<u64, (u64, i64)>::new();
        let (mut given, mut expected) = (Vec::new(), Vec::new());
        for (records, fails, parallelism) in batches {
            for (key, value) in &records {
                let (count, sum) = open.entry(*key).or_default();
                (*count, *sum) = (*count + 1, *sum + value);
                if *count == u64::from(n) {
                    expected.push((*key, (*count, *sum), Pane::ONLY));
                    open.remove(key);
                }
            }
            fleet.batch(records.iter().map(|(key, value)| (*key, *value, 0)));
            given.extend(fleet.take());
            if fails {
                let saved = fleet.save();
                fleet.batch(records.iter().map(|(key, value)| (*key, *value, 0)));
                fleet.restore(&saved, parallelism);
            }
        }
        fleet.end(EndKind::Flush);
        given.extend(fleet.take());
        expected.extend(open.into_iter().map(|(key, value)| (key, value, Pane::ONLY)));
        expected.sort_unstable();
        prop_assert_eq!(rows(given), expected);
    }
}
