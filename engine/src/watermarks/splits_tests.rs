//! Splits by themselves: the slowest decides, silence is not guessed, and what a checkpoint holds is what there was.

use proptest::prelude::*;

use super::*;
use crate::Watermarks;
use crate::watermarks::{ByLatest, PerRecord};

fn s(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Two splits, A and B, known from the start.
struct Two<G = ByLatest>(SplitClocks<G>);
const A: usize = 0;
const B: usize = 1;

impl<G: WatermarkGenerator<u64>> Two<G> {
    fn of(watermarks: Watermarks<G>) -> Self {
        let mut clocks = SplitClocks::new(watermarks.generator, watermarks.rules.idle_after);
        for id in 0..2 {
            assert_eq!(clocks.start::<u64>(SplitId(id), None), id as usize);
        }
        Two(clocks)
    }

    fn sees(&mut self, i: usize, time: i64) -> Option<Watermark> {
        self.0.observe(i, &[Record::new(7u64, EventTime(time))], EventTime(time), 0).to
    }
}

#[test]
fn bounded_leaves_the_edge_in_time() {
    let mut two = Two::of(Watermarks::bounded(s(5)));
    two.0.finished(B);
    let w = two.sees(A, 10_000).unwrap();
    assert_eq!(w, Watermark(4_999));
    assert!(!w.is_late(EventTime(5_000)) && w.is_late(EventTime(4_999)));
}

#[test]
fn the_slowest_split_decides_until_it_is_idle() {
    let mut two = Two::of(Watermarks::monotonic().idle_after(s(2)));
    two.0.all_drained(s(0));
    // A trickles: each poll gives a record and finds nothing more.
    assert_eq!(two.sees(A, 100), None);
    two.0.all_drained(s(1));
    assert_eq!(two.0.tick(s(1)).to, None);
    assert_eq!(two.0.tick(s(2)).to, Some(Watermark(99)));
    // B comes back inside the open range: nothing is lost, and it counts again.
    assert_eq!(two.sees(B, 120), None);
    assert_eq!(two.sees(A, 200), Some(Watermark(119)));
}

#[test]
fn a_split_that_nobody_has_looked_into_is_not_silent() {
    let mut two = Two::of(Watermarks::monotonic().idle_after(s(2)));
    two.0.all_drained(s(0));
    two.sees(A, 100);
    two.0.more_to_come();
    assert_eq!((two.0.tick(s(3600)), two.0.dry_since()), (Advance::default(), None));
    two.0.all_drained(s(3600));
    assert_eq!(two.0.dry_since(), Some(s(3600)));
    assert_eq!(two.0.tick(s(3602)).to, Some(Watermark(99)));
}

#[test]
fn a_source_that_tells_which_splits_are_dry_is_believed() {
    let mut two = Two::of(Watermarks::monotonic().idle_after(s(2)));
    // Before it has fetched anything a poll finds nothing, which says nothing of B once there is something.
    two.0.all_drained(s(0));
    two.sees(A, 99);
    two.0.more_to_come();
    assert_eq!(two.0.tick(s(9)), Advance::default());
    two.0.drained(B, s(10));
    two.sees(A, 101);
    two.0.more_to_come();
    assert_eq!(two.0.tick(s(12)).to, Some(Watermark(100)));
}

#[test]
fn at_end_says_nothing_on_the_way_not_even_what_a_checkpoint_knew() {
    let mut two = Two::of(Watermarks::at_end());
    assert_eq!(two.sees(A, 100), None);
    assert_eq!(two.0.tick(s(1000)), Advance::default());
    let mark = Mark { latest: EventTime(5), at_ms: 0, watermark: Watermark(4), saved: Value::Null };
    two.0.start::<u64>(SplitId(9), Some(mark));
    assert_eq!(two.0.settle(), Advance::default());
}

#[test]
fn e10_negative_times_and_the_least_and_greatest_make_watermarks_like_others() {
    let mut two = Two::of(Watermarks::monotonic());
    two.0.finished(B);
    assert_eq!(two.sees(A, i64::MIN + 1), None, "what would promise nothing");
    assert_eq!(two.sees(A, -10), Some(Watermark(-11)));
    assert_eq!(two.sees(A, -1), Some(Watermark(-2)));
    assert_eq!(two.sees(A, i64::MAX), Some(FURTHEST));
    let mut far = Two::of(Watermarks::bounded(Duration::MAX));
    far.0.finished(B);
    assert_eq!(far.sees(A, -10), None);
}

#[test]
fn a_record_without_time_says_nothing_but_that_its_split_lives() {
    let mut two = Two::of(Watermarks::monotonic().idle_after(s(1)));
    two.0.all_drained(s(0));
    two.sees(A, EventTime::NONE.0);
    assert_eq!(two.0.latest(A), Latest::NONE);
    assert_eq!(two.0.tick(s(5)), Advance::default(), "A is not dry");
    assert_eq!(two.0.marks::<u64>().count(), 0);
}

#[test]
fn what_records_say_themselves_counts_and_the_end_is_not_for_them_to_say() {
    let mut two =
        Two::of(Watermarks::per_record(|r: &Record<u64>| (r.value > 0).then_some(Watermark(r.time.0))));
    two.0.finished(B);
    let batch = [(0u64, 9), (1, 5), (2, 3), (0, 8)].map(|(v, t)| Record::new(v, EventTime(t)));
    assert_eq!(two.0.observe(A, &batch, EventTime(9), 0).to, Some(Watermark(5)));
    assert_eq!(two.0.latest(A).time, EventTime(9));
    assert_eq!(two.sees(A, i64::MAX), Some(FURTHEST));
    assert_eq!(format!("{:?}", PerRecord(0)), "PerRecord");
}

/// Promises what the clock says, and counts its records.
#[derive(Clone, Debug)]
struct ByClock(u64);
impl WatermarkGenerator<u64> for ByClock {
    fn on_records(&mut self, records: &[Record<u64>], _: EventTime) -> Option<Watermark> {
        self.0 += records.len() as u64;
        None
    }
    fn on_clock(&mut self, now_ms: i64) -> Option<Watermark> {
        Some(Watermark(now_ms))
    }
    fn save(&self) -> Value {
        self.0.into()
    }
    fn restore(&mut self, split: &RestoredSplit) -> Option<Watermark> {
        self.0 = split.saved.as_u64().unwrap_or(0);
        Some(Watermark(split.watermark.0 + 1))
    }
}

#[test]
fn a_generator_of_the_users_own_goes_by_the_clock_and_comes_back_with_what_it_saved() {
    let mut two = Two::of(Watermarks::custom(ByClock(0)).idle_after(s(1)));
    two.sees(A, 1);
    two.sees(A, 2);
    assert_eq!(two.0.on_clock::<u64>(50), Some(Watermark(50)));
    assert_eq!(two.0.on_clock::<u64>(50), None);
    two.0.all_drained(s(0));
    assert!(two.0.tick(s(1)).idle);
    assert_eq!(two.0.on_clock::<u64>(60), Some(Watermark(60)));
    assert_eq!(two.0.tick(s(2)), Advance::default(), "the clock has woken nobody");
    let marks: Vec<_> = two.0.marks::<u64>().collect();
    let mut after = SplitClocks::new(ByClock(0), None);
    let told: Mark = serde_json::from_value(serde_json::to_value(&marks[0].1).unwrap()).unwrap();
    assert_eq!(told, marks[0].1);
    after.start::<u64>(SplitId(0), Some(told));
    assert_eq!(after.settle().to, Some(Watermark(61)));
    assert_eq!((after.splits[0].generator.0, after.latest(0).time), (2, EventTime(2)));
}

#[test]
fn of_two_marks_the_one_that_knows_more_counts() {
    let mark =
        |w, latest| Mark { latest: EventTime(latest), at_ms: 0, watermark: Watermark(w), saved: Value::Null };
    assert_eq!(mark(1, 9).further(mark(2, 3)), mark(2, 3));
    assert_eq!(mark(2, 9).further(mark(2, 3)), mark(2, 9));
}

proptest! {
    /// Cut anywhere, saved and begun again, the watermark comes to the same as without the cut.
    #[test]
    fn a_restore_changes_nothing(
        times in proptest::collection::vec((0usize..2, -1_000i64..1_000), 1..60), cut in 0usize..60, disorder in 0u64..50,
    ) {
        let watermarks = || Watermarks::bounded(Duration::from_millis(disorder)).never_idle();
        let (mut whole, mut before) = (Two::of(watermarks()), Two::of(watermarks()));
        let cut = cut.min(times.len());
        let mut expected = None;
        for (n, (i, time)) in times.iter().enumerate() {
            expected = whole.sees(*i, *time).or(expected);
            if n < cut {
                before.sees(*i, *time);
            }
        }
        let marks: Vec<_> = before.0.marks::<u64>().collect();
        let mut after = SplitClocks::new(watermarks().generator, None);
        let mut last = None;
        for id in 0..2 {
            let mark = marks.iter().find(|(of, _)| of.0 == id).map(|(_, mark)| mark.clone());
            after.start::<u64>(SplitId(id), mark);
        }
        last = after.settle().to.or(last);
        let mut after = Two(after);
        for (i, time) in &times[cut..] {
            last = after.sees(*i, *time).or(last);
        }
        prop_assert_eq!(last, expected);
        prop_assert_eq!((after.0.latest(0), after.0.latest(1)), (whole.0.latest(0), whole.0.latest(1)));
    }
}
