//! Results in parts: the watermark waits behind the last, barriers do not, and after a restore the rest comes, once.

use std::collections::BTreeSet;
use std::time::Duration;

use weir_engine::testkit::{Given, OpHarness, SideProbe};
use weir_engine::{EndKind, HeldSignal, Keyed, Operator, SideSlot, Watermark};
use weir_state::{KEY_GROUPS, key_hash};

use super::PART;
use crate::aggregate::count;
use crate::fleet::Fleet;
use crate::window::cuts::Cutting;
use crate::window::sliced::Sliced;
use crate::window::{
    Calendar, Cumulate, Pane, PanedAggregate, Session, SessionAggregate, SlicedAggregate, Sliding, Tumbling,
    TumblingAggregate, WindowResult,
};

const KEYS: u64 = 20;
const DAY: i64 = 86_400_000;

fn keyed(key: u64) -> Keyed<u64, i64> {
    Keyed { hash: key_hash(&key), key, value: 0 }
}

/// The keys that were given, and the watermarks that went by.
fn given<V>(given: Vec<Given<WindowResult<u64, V>>>) -> (Vec<u64>, Vec<i64>) {
    let (mut keys, mut watermarks) = (Vec::new(), Vec::new());
    for given in given {
        match given {
            Given::Record(record) => {
                assert!(watermarks.is_empty(), "results come before the watermark");
                keys.push(record.value.key);
            }
            Given::Signal(HeldSignal::Watermark(watermark)) => watermarks.push(watermark.0),
            Given::Signal(_) => {}
        }
    }
    (keys, watermarks)
}

/// A window of a day is given in parts; a checkpoint is taken in the middle, and what comes after it is lost.
fn is_resumable<Op: Operator<Keyed<u64, i64>, Out = WindowResult<u64, u64>>>(op: Op) {
    for parallelism in [1, 3] {
        let mut h = OpHarness::new(op.clone()).unwrap();
        h.batch((0..KEYS).map(|key| (keyed(key), 1_000))).unwrap();
        // Frozen once before, so that some of it is where the first checkpoint has put it.
        h.save(1).unwrap();
        h.batch((0..KEYS / 2).map(|key| (keyed(key), 1_001))).unwrap();
        h.begin_watermark(DAY).unwrap();
        let (mut before, watermarks) = given(h.take_given());
        assert!(before.len() <= PART && watermarks.is_empty());
        while before.is_empty() {
            // Sessions that have grown were looked at too early.
            h.quiet().unwrap();
            before = given(h.take_given()).0;
        }
        // The task reads on meanwhile: this is of the next window.
        h.send(keyed(7), DAY + 5_000).unwrap();
        let (more, watermarks) = given(h.take_given());
        // One more at most: the session of the key that came.
        assert!(more.len() <= PART + 1 && watermarks.is_empty());
        before.extend(more);
        let saved = h.save(2).unwrap();
        // It goes on as if nothing had been.
        while h.has_more() {
            h.quiet().unwrap();
        }
        let (after, watermarks) = given(h.take_given());
        assert_eq!(watermarks, [DAY]);
        let all: BTreeSet<u64> = before.iter().chain(&after).copied().collect();
        assert_eq!((all.len() as u64, before.len() + after.len()), (KEYS, KEYS as usize));

        let mut again = Vec::new();
        for subtask in 0..parallelism {
            let mut h = OpHarness::restored(op.clone(), &[&saved], subtask, parallelism).unwrap();
            assert!(h.has_more(), "without a watermark");
            while h.has_more() {
                h.quiet().unwrap();
            }
            let (keys, watermarks) = given(h.take_given());
            assert_eq!(watermarks, [DAY], "it had not gone downstream");
            again.extend(keys);
            h.watermark(10).unwrap();
            assert_eq!(given(h.take_given()), (vec![], vec![]), "event time does not go back");
            h.watermark(3 * DAY).unwrap();
            let (next, _) = given(h.take_given());
            let owner = key_hash(&7u64).group(KEY_GROUPS).subtask(KEY_GROUPS, parallelism);
            assert_eq!(next, if owner == subtask { vec![7] } else { vec![] });
        }
        again.sort_unstable();
        let expected: Vec<u64> = (0..KEYS).filter(|key| !before.contains(key)).collect();
        assert_eq!(again, expected);
    }
}

fn days() -> Tumbling {
    Tumbling::of(Duration::from_millis(DAY as u64))
}

fn tumbling(late: SideSlot<i64>) -> TumblingAggregate<u64, i64, crate::aggregate::Count> {
    TumblingAggregate::new(Cutting::Tumbling(days()), count(), late)
}

#[test]
fn a_tumbling_window_is_resumable() {
    is_resumable(tumbling(SideSlot::default()));
}

#[test]
fn a_calendar_window_is_resumable() {
    let window = Cutting::Calendar(Calendar::days("UTC"));
    is_resumable(TumblingAggregate::new(window, count(), SideSlot::default()));
}

#[test]
fn a_window_with_early_results_is_resumable() {
    is_resumable(PanedAggregate::new(days().early_every(1_000), count(), SideSlot::default()));
}

#[test]
fn a_window_that_allows_lateness_is_resumable() {
    let window = days().allow_lateness(Duration::from_millis(DAY as u64 / 2));
    is_resumable(PanedAggregate::new(window, count(), SideSlot::default()));
}

/// A barrier in the middle, and then late records for all keys: each is given once on time and once late, in this order.
#[test]
fn late_records_of_a_window_that_is_being_given_come_after_what_is_on_time() {
    let window = days().allow_lateness(Duration::from_millis(DAY as u64 / 2));
    let op = || PanedAggregate::new(window.clone(), count(), SideSlot::default());
    for parallelism in [1, 3] {
        let mut h = OpHarness::new(op()).unwrap();
        h.batch((0..KEYS).map(|key| (keyed(key), 1_000))).unwrap();
        h.begin_watermark(DAY).unwrap();
        let mut results = h.take();
        assert!(results.len() <= PART);
        let saved = h.save(1).unwrap();
        for subtask in 0..parallelism {
            let mut h = OpHarness::restored(op(), &[&saved], subtask, parallelism).unwrap();
            let owns =
                |key: &u64| key_hash(key).group(KEY_GROUPS).subtask(KEY_GROUPS, parallelism) == subtask;
            h.batch((0..KEYS).filter(owns).map(|key| (keyed(key), 1_001))).unwrap();
            while h.has_more() {
                h.quiet().unwrap();
            }
            results.extend(h.take());
        }
        for key in 0..KEYS {
            let of_key = results.iter().filter(|r| r.value.key == key).map(|r| (r.value.value, r.value.pane));
            assert_eq!(of_key.collect::<Vec<_>>(), [(1, Pane::ONLY), (2, Pane::late(1))], "{key}");
        }
        assert_eq!(results.len() as u64, 2 * KEYS);
    }
}

/// Of two subtasks one gives a window, and the other has not heard of any time.
#[test]
fn a_signal_waits_only_where_it_waited_before() {
    let begun = || {
        let mut fleet = Fleet::of(tumbling(SideSlot::default()), 2);
        fleet.batch((0..KEYS).map(|key| (key, 0, 1_000)));
        fleet.begin_watermark_of(0, DAY);
        let before = fleet.take().len();
        assert!((1..=PART).contains(&before) && fleet.has_more());
        (fleet.save(), before)
    };
    let (saved, before) = begun();
    let waits = |subtask, parallelism| {
        let saved: Vec<_> = saved.iter().collect();
        OpHarness::restored(tumbling(SideSlot::default()), &saved, subtask, parallelism).unwrap().has_more()
    };
    assert_eq!([waits(0, 2), waits(1, 2), waits(0, 1)], [true, false, false]);
    for parallelism in [1, 2, 3] {
        let mut fleet = Fleet::of(tumbling(SideSlot::default()), parallelism);
        fleet.restore(&saved, parallelism);
        fleet.watermark(DAY);
        assert_eq!(before + fleet.take().len(), KEYS as usize);
    }
}

#[test]
fn sessions_are_resumable() {
    let window = Session::gap(Duration::from_secs(3_600));
    is_resumable(SessionAggregate::new(window, count(), SideSlot::default()));
    is_resumable(SessionAggregate::new(
        window.allow_lateness(Duration::from_secs(60)),
        count(),
        SideSlot::default(),
    ));
}

fn sliced(window: Sliced, late: SideSlot<i64>) -> SlicedAggregate<u64, i64, crate::aggregate::Count> {
    SlicedAggregate::new(window, count(), late)
}

#[test]
fn windows_made_of_slices_are_resumable() {
    let day = Duration::from_millis(DAY as u64);
    for lateness in [Duration::ZERO, day / 2] {
        let sliding = Sliced::Sliding(Sliding::of(day).every(day).allow_lateness(lateness));
        is_resumable(sliced(sliding, SideSlot::default()));
        let cumulating = Sliced::Cumulate(Cumulate::of(day).every(day).allow_lateness(lateness));
        is_resumable(sliced(cumulating, SideSlot::default()));
    }
}

/// Each record is in three windows that slide, one of which is being given when late records come.
#[test]
fn what_comes_while_a_window_that_slides_is_given_counts_in_those_to_come() {
    let window = Sliding::of(Duration::from_millis(30)).every(Duration::from_millis(10));
    let mut h = OpHarness::new(sliced(Sliced::Sliding(window), SideSlot::default())).unwrap();
    h.batch((0..KEYS).map(|key| (keyed(key), 5))).unwrap();
    h.begin_watermark(9).unwrap();
    assert!(h.has_more());
    h.batch((0..KEYS).map(|key| (keyed(key), 6))).unwrap();
    h.watermark(100).unwrap();
    let mut results: Vec<_> =
        h.take().iter().map(|r| (r.value.window.end.0, r.value.key, r.value.value)).collect();
    results.sort_unstable();
    let expected = [(10, 1), (20, 2), (30, 2)];
    let expected = expected.iter().flat_map(|(end, n)| (0..KEYS).map(move |key| (*end, key, *n)));
    assert_eq!(results, expected.collect::<Vec<_>>());
}

#[test]
fn what_comes_while_a_window_is_given_is_late_for_it() {
    let late = SideSlot::default();
    let probe = SideProbe::attach(&late);
    let mut h = OpHarness::new(tumbling(late)).unwrap();
    h.batch((0..KEYS).map(|key| (keyed(key), 1_000))).unwrap();
    h.begin_watermark(DAY).unwrap();
    // The last window used is still there.
    h.batch((0..KEYS).map(|key| (keyed(key), 1_000))).unwrap();
    h.end(EndKind::Flush).unwrap();
    let results = h.take();
    assert!(results.len() as u64 == KEYS && results.iter().all(|r| r.value.value == 1));
    assert_eq!(probe.take().len() as u64, KEYS);
}

#[test]
fn a_record_of_a_session_whose_turn_has_not_come_begins_the_next() {
    let window = Session::gap(Duration::from_millis(10));
    let mut h = OpHarness::new(SessionAggregate::new(window, count(), SideSlot::default())).unwrap();
    h.batch((0..KEYS).map(|key| (keyed(key), 1_000))).unwrap();
    h.begin_watermark(1_009).unwrap();
    h.batch((0..KEYS).map(|key| (keyed(key), 1_005))).unwrap();
    h.end(EndKind::Flush).unwrap();
    let mut bounds: Vec<_> =
        h.take().iter().map(|r| (r.value.window.start.0, r.value.key, r.value.value)).collect();
    bounds.sort_unstable();
    let expected: Vec<_> =
        [1_000, 1_005].into_iter().flat_map(|start| (0..KEYS).map(move |key| (start, key, 1))).collect();
    assert_eq!(bounds, expected);
}

#[test]
fn other_signals_wait_too_and_keep_their_places() {
    let mut h = OpHarness::new(tumbling(SideSlot::default())).unwrap();
    h.batch((0..KEYS).map(|key| (keyed(key), 1_000))).unwrap();
    h.begin_watermark(DAY).unwrap();
    h.idle(true).unwrap();
    h.idle(false).unwrap();
    h.watermark(DAY + 1).unwrap();
    let signals: Vec<_> = h
        .take_given()
        .into_iter()
        .filter_map(|given| if let Given::Signal(signal) = given { Some(signal) } else { None })
        .collect();
    let at = |ms| HeldSignal::Watermark(Watermark(ms));
    assert_eq!(signals, [at(DAY), HeldSignal::Idle, HeldSignal::Active, at(DAY + 1)]);
}
