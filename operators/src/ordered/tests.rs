//! The order in which a function gets its records, what it is told of time, and what is left in the end.

use super::*;
use proptest::prelude::*;
use weir_engine::testkit::OpHarness;
use weir_engine::{EndKind, Keyed, SideSlot};
use weir_state::key_hash;

/// Tells all it is told, and asks to be woken five later; over when it was.
#[derive(Clone, Debug)]
struct Told;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Tell {
    Records(i64, Vec<i64>),
    Woken(i64, i64),
}

impl InOrder<u64, i64> for Told {
    type Out = Tell;
    /// When to be woken.
    type State = Vec<i64>;

    fn records(
        &mut self,
        time: EventTime,
        records: Peers<i64>,
        cx: &mut LineContext<'_, u64, Vec<i64>>,
        out: &mut impl Collector<Tell>,
    ) -> Result<()> {
        let wakes = time.0.saturating_add(5);
        cx.state()?.kept.push(wakes);
        wake(cx, wakes);
        out.emit(Record::new(Tell::Records(time.0, records.into_iter().collect()), time))
    }

    fn passed(
        &mut self,
        time: EventTime,
        cx: &mut LineContext<'_, u64, Vec<i64>>,
        out: &mut impl Collector<Tell>,
    ) -> Result<()> {
        while let Some(wakes) = cx.state()?.kept.first().copied().filter(|wakes| *wakes <= time.0) {
            cx.state()?.kept.remove(0);
            out.emit(Record::new(Tell::Woken(wakes, time.0), EventTime(wakes)))?;
        }
        Ok(())
    }

    fn is_over(state: &Vec<i64>) -> bool {
        state.is_empty()
    }
}

type Operator = Timely<u64, i64, Ordered<u64, i64, Told>>;

fn harness() -> OpHarness<Keyed<u64, i64>, Operator> {
    OpHarness::new(Timely::new(Ordered::new(Told), SideSlot::default())).unwrap()
}

fn keyed(value: i64) -> Keyed<u64, i64> {
    Keyed { hash: key_hash(&1u64), key: 1, value }
}

#[test]
fn records_come_by_time_and_those_of_one_time_as_they_came() {
    let mut h = harness();
    h.batch([(keyed(1), 7), (keyed(2), -3), (keyed(3), 7), (keyed(4), 9), (keyed(5), 7)]).unwrap();
    h.watermark(8).unwrap();
    let told = [Tell::Records(-3, vec![2]), Tell::Woken(2, 2), Tell::Records(7, vec![1, 3, 5])];
    assert_eq!(h.take_values(), told);
    // What comes now for a time that is still to come is behind what waits for it.
    h.batch([(keyed(6), 9), (keyed(7), 10)]).unwrap();
    h.watermark(9).unwrap();
    assert_eq!(h.take_values(), [Tell::Records(9, vec![4, 6])]);
}

#[test]
fn at_the_end_time_passes_as_it_would_have_and_then_wholly() {
    let mut h = harness();
    h.batch([(keyed(1), 0), (keyed(2), 3), (keyed(3), 20), (keyed(4), 22)]).unwrap();
    h.end(EndKind::Flush).unwrap();
    let told = [
        Tell::Records(0, vec![1]),
        Tell::Records(3, vec![2]),
        // Before what comes later, though no timer could be set.
        Tell::Woken(5, 19),
        Tell::Woken(8, 19),
        Tell::Records(20, vec![3]),
        Tell::Records(22, vec![4]),
        Tell::Woken(25, i64::MAX),
        Tell::Woken(27, i64::MAX),
    ];
    assert_eq!(h.take_values(), told);
}

proptest! {
    /// However watermarks cut the input, the function is told the same.
    #[test]
    fn watermarks_do_not_matter(times in prop::collection::vec(-30..30i64, 0..40), cuts in prop::collection::vec(-40..40i64, 0..10)) {
        let told = |cuts: &[i64]| {
            let mut h = harness();
            h.batch(times.iter().enumerate().map(|(i, time)| (keyed(i as i64), *time))).unwrap();
            let mut cuts = cuts.to_vec();
            cuts.sort_unstable();
            cuts.dedup();
            cuts.iter().for_each(|cut| h.watermark(*cut).unwrap());
            h.end(EndKind::Flush).unwrap();
            let told = h.take_values().into_iter().map(|tell| match tell {
                Tell::Woken(wakes, at) => {
                    assert!(wakes <= at);
                    Tell::Woken(wakes, wakes)
                }
                records => records,
            });
            told.collect::<Vec<_>>()
        };
        prop_assert_eq!(told(&cuts), told(&[]));
    }
}
