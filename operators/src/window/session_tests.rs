//! Sessions against plain computations, over saves, losses and restores; and the cases of merging and of late records.
//! (over 400 lines: one oracle, and the cases that it does not meet)

use super::*;
use crate::aggregate::{Count, count};
use crate::fleet::Fleet;
use crate::window::Timing;
use crate::window::model::{Model, Row, agree, both, rows, steps};
use crate::window::session::{FixedGap, GapBy};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use weir_engine::testkit::{ManualClock, OpHarness, SideProbe, context, context_by};
use weir_state::key_hash;

fn ms(n: i64) -> Duration {
    Duration::from_millis(n as u64)
}

fn keyed(key: u64, value: i64) -> Keyed<u64, i64> {
    Keyed { hash: key_hash(&key), key, value }
}

fn sessions<G: Gap<i64>, A: Aggregate<i64>>(
    window: Session<G>,
    aggregate: A,
) -> SessionAggregate<u64, i64, G, A> {
    SessionAggregate::new(window, aggregate, SideSlot::default())
}

type Counting = OpHarness<Keyed<u64, i64>, SessionAggregate<u64, i64, FixedGap, Count>>;

fn counting(gap: i64) -> Counting {
    OpHarness::new(sessions(Session::gap(ms(gap)), count())).unwrap()
}

/// `(start, end, value)`, in the order in which they were given.
fn results(h: &mut Counting) -> Vec<(i64, i64, u64)> {
    let given = h.take();
    assert!(given.iter().all(|r| r.time == r.value.window.last()));
    given.into_iter().map(|r| (r.value.window.start.0, r.value.window.end.0, r.value.value)).collect()
}

#[test]
fn e17_a_late_record_opens_no_session() {
    let late = SideSlot::default();
    let probe = SideProbe::attach(&late);
    let cx = context("under-test", 0, 1);
    let mut h = OpHarness::with(SessionAggregate::new(Session::gap(ms(10)), count(), late), &cx).unwrap();
    h.batch([(keyed(1, 0), 0), (keyed(1, 0), 5)]).unwrap();
    h.watermark(100).unwrap();
    assert_eq!(results(&mut h), [(0, 15, 2)]);
    h.send(keyed(1, 7), 7).unwrap();
    h.quiet().unwrap();
    assert_eq!(probe.take(), [Record::new(7, EventTime(7))]);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut h), []);
    assert_eq!(cx.counter("late_records").get(), 1);
}

#[test]
fn e18_a_record_exactly_the_gap_later_begins_the_next_session() {
    for watermark in [None, Some(3), Some(4), Some(5)] {
        for (time, expected) in [(4, vec![(0, 9, 2)]), (5, vec![(0, 5, 1), (5, 10, 1)])] {
            let mut h = counting(5);
            h.send(keyed(1, 0), 0).unwrap();
            if let Some(watermark) = watermark.filter(|watermark| *watermark < time) {
                h.watermark(watermark).unwrap();
            }
            h.send(keyed(1, 0), time).unwrap();
            h.end(EndKind::Flush).unwrap();
            assert_eq!(results(&mut h), expected, "time {time}, watermark {watermark:?}");
        }
    }
    // Not before the last millisecond of the session has passed.
    let mut h = counting(5);
    h.send(keyed(1, 0), 0).unwrap();
    h.watermark(3).unwrap();
    assert_eq!(results(&mut h), []);
    h.watermark(4).unwrap();
    assert_eq!(results(&mut h), [(0, 5, 1)]);
}

#[test]
fn e20_a_merged_session_goes_on_after_a_restore() {
    let run = |kill: bool| {
        let mut fleet = Fleet::of(sessions(Session::gap(ms(10)), both()), 2);
        fleet.batch([(1, 1, 0), (1, 2, 15), (2, 5, 3)]);
        fleet.watermark(2);
        fleet.batch([(1, 3, 8)]);
        let saved = fleet.save();
        if kill {
            fleet.batch([(1, 100, 20)]);
            fleet.restore(&saved, 3);
        }
        fleet.batch([(1, 4, 24)]);
        fleet.end(EndKind::Flush);
        rows(fleet.take())
    };
    assert_eq!(run(true), run(false));
    assert_eq!(run(true), [(13, 3, 2, (1, 5), Pane::ONLY), (34, 0, 1, (4, 10), Pane::ONLY)]);
}

#[test]
fn e22_a_session_ends_after_a_restore_though_nothing_comes_for_its_key() {
    for parallelism in [1, 2, 3] {
        let mut fleet = Fleet::of(sessions(Session::gap(ms(10)), both()), 2);
        fleet.batch((0..50).map(|key| (key, 1, key as i64)));
        fleet.batch((0..50).map(|key| (key, 1, key as i64 + 5)));
        fleet.watermark(3);
        let saved = fleet.save();
        fleet.restore(&saved, parallelism);
        fleet.watermark(1_000);
        let given = rows(fleet.take());
        assert_eq!(given.len(), 50);
        assert!(
            given
                .iter()
                .all(|(end, start, key, (n, _), _)| (*end, *start, *n) == (*key as i64 + 15, *key as i64, 2))
        );
    }
}

#[test]
fn a_record_joins_the_sessions_on_both_sides_of_it() {
    let mut h = counting(10);
    h.batch([(keyed(1, 0), 0), (keyed(1, 0), 18), (keyed(2, 0), 0)]).unwrap();
    h.send(keyed(1, 0), 9).unwrap();
    h.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut h), [(0, 10, 1), (0, 28, 3)]);
}

#[test]
fn sessions_are_given_in_the_order_they_end() {
    let mut h = counting(10);
    h.batch((0..20).map(|n| (keyed(n, 0), n as i64 * 7 % 20))).unwrap();
    h.batch((0..20).map(|n| (keyed(n, 0), n as i64 * 7 % 20 + n as i64 % 3))).unwrap();
    h.end(EndKind::Flush).unwrap();
    let given = results(&mut h);
    assert!(given.len() == 20 && given.is_sorted_by_key(|(_, end, _)| *end), "{given:?}");
}

#[test]
fn a_key_that_goes_on_is_one_session() {
    let mut h = counting(10);
    for time in 0..1_000 {
        h.send(keyed(1, 0), time * 9).unwrap();
        h.watermark(time * 9).unwrap();
    }
    assert_eq!(results(&mut h), []);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut h), [(0, 9_001, 1_000)]);
}

#[test]
fn a_late_record_within_the_allowed_lateness_changes_the_session_it_belongs_to() {
    let mut h = OpHarness::new(sessions(Session::gap(ms(10)).allow_lateness(ms(20)), count())).unwrap();
    let take = |h: &mut Counting| -> Vec<_> {
        h.take()
            .into_iter()
            .map(|r| (r.value.window.start.0, r.value.window.end.0, r.value.value, r.value.pane))
            .collect()
    };
    let pane = |number, timing| Pane { number, timing };
    h.batch([(keyed(1, 0), 0), (keyed(1, 0), 30)]).unwrap();
    h.watermark(25).unwrap();
    assert_eq!(take(&mut h), [(0, 10, 1, Pane::ONLY)]);
    h.send(keyed(1, 0), 5).unwrap();
    assert_eq!(take(&mut h), [(0, 15, 2, pane(1, Timing::Late))]);
    // Of both, which joins them: not over, so it waits for its end.
    h.batch([(keyed(1, 0), 14), (keyed(1, 0), 22)]).unwrap();
    assert_eq!(take(&mut h), [(0, 24, 3, pane(2, Timing::Late))]);
    h.watermark(39).unwrap();
    assert_eq!(take(&mut h), [(0, 40, 5, pane(3, Timing::OnTime))]);
    h.watermark(59).unwrap();
    h.send(keyed(1, 0), 25).unwrap();
    assert_eq!(take(&mut h), [], "forgotten: nothing joins it, and the record alone is too late");
    h.send(keyed(1, 0), 35).unwrap();
    assert_eq!(
        take(&mut h),
        [(35, 45, 1, pane(0, Timing::Late))],
        "forgotten too, but this one is not too late"
    );
    h.end(EndKind::Flush).unwrap();
    assert_eq!(take(&mut h), []);
}

#[test]
fn the_gap_may_depend_on_the_record() {
    let gap = |gap: &i64| Duration::from_millis(*gap as u64);
    let mut h = OpHarness::new(sessions(Session::gap_by(gap), count())).unwrap();
    // The second ends before the first; the third is in what the first has opened.
    h.batch([(keyed(1, 100), 0), (keyed(1, 5), 10), (keyed(1, 5), 99), (keyed(1, 0), 104)]).unwrap();
    h.end(EndKind::Flush).unwrap();
    let given: Vec<_> =
        h.take().into_iter().map(|r| (r.value.window.start.0, r.value.window.end.0, r.value.value)).collect();
    assert_eq!(given, [(0, 104, 3), (104, 105, 1)]);
}

#[test]
fn the_ends_of_time_have_sessions_too() {
    let mut h = counting(10);
    h.batch([i64::MIN + 1, -1, i64::MAX - 1, i64::MAX].map(|t| (keyed(1, 0), t))).unwrap();
    h.watermark(i64::MAX - 1).unwrap();
    assert_eq!(results(&mut h), [(i64::MIN + 1, i64::MIN + 11, 1), (-1, 9, 1)]);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut h), [(i64::MAX - 1, i64::MAX, 2)]);
    let error = counting(10).send(keyed(1, 0), EventTime::NONE.0).unwrap_err();
    assert!(error.chain().contains("event time"), "{error:?}");
}

#[test]
fn keep_gives_nothing_and_what_is_kept_goes_on() {
    let mut h = counting(10);
    h.send(keyed(1, 0), 3).unwrap();
    h.end(EndKind::Keep).unwrap();
    assert_eq!(results(&mut h), []);
    let saved = h.saved_at_end().unwrap();
    let mut h: Counting =
        OpHarness::restored(sessions(Session::gap(ms(10)), count()), &[&saved], 0, 1).unwrap();
    h.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut h), [(3, 13, 1)]);
}

#[test]
fn early_results_of_sessions_come_by_the_clock() {
    let clock = ManualClock::at(0);
    let cx = context_by(Arc::new(clock.clone()), "under-test", 0, 1);
    let op = sessions(Session::gap(ms(10)).early_after(Duration::from_secs(1)), count());
    let mut h = OpHarness::with(op.clone(), &cx).unwrap();
    let take = |h: &mut Counting| -> Vec<_> {
        let row = |r: Record<WindowResult<u64, u64>>| {
            (r.value.window.end.0, r.value.key, r.value.value, r.value.pane)
        };
        let mut rows: Vec<_> = h.take().into_iter().map(row).collect();
        rows.sort_unstable();
        rows
    };
    let pane = |number, timing| Pane { number, timing };
    h.batch([(keyed(1, 0), 0), (keyed(1, 0), 5), (keyed(2, 0), 3), (keyed(1, 0), 50)]).unwrap();
    h.pause(&clock, Duration::from_millis(999)).unwrap();
    assert_eq!(take(&mut h), []);
    h.pause(&clock, Duration::from_millis(1)).unwrap();
    let early = pane(0, Timing::Early);
    assert_eq!(take(&mut h), [(13, 2, 1, early), (15, 1, 2, early), (60, 1, 1, early)]);
    h.pause(&clock, Duration::from_secs(10)).unwrap();
    assert_eq!(take(&mut h), [], "nothing is new");
    h.batch([(keyed(1, 0), 7), (keyed(2, 0), 4)]).unwrap();
    let saved = h.save(1).unwrap();
    h.watermark(13).unwrap();
    h.pause(&clock, Duration::from_secs(1)).unwrap();
    assert_eq!(take(&mut h), [(14, 2, 2, pane(1, Timing::OnTime)), (17, 1, 3, pane(1, Timing::Early))]);
    h.end(EndKind::Flush).unwrap();
    assert_eq!(take(&mut h), [(17, 1, 3, pane(2, Timing::OnTime)), (60, 1, 1, pane(1, Timing::OnTime))]);
    // What was new at the checkpoint is still to be told of.
    let mut h: Counting = OpHarness::restored(op, &[&saved], 0, 1).unwrap();
    h.quiet_until(Duration::from_secs(30), "early results", |h| h.given() >= 2).unwrap();
    assert_eq!(take(&mut h), [(14, 2, 2, pane(1, Timing::Early)), (17, 1, 3, pane(1, Timing::Early))]);
    assert!(Session::gap(ms(1)).early_every(0).check::<i64>().is_err());
    assert!(Session::gap(ms(1)).early_after(Duration::ZERO).check::<i64>().is_err());
}

#[test]
fn each_session_is_listed_once_for_the_clock() {
    let clock = ManualClock::at(0);
    let cx = context_by(Arc::new(clock.clone()), "under-test", 0, 1);
    let window = Session::gap(ms(10)).allow_lateness(ms(1_000)).early_every(2).early_after(ms(100));
    let op = sessions(window, count());
    let mut h: Counting = OpHarness::with(op.clone(), &cx).unwrap();
    h.send(keyed(1, 0), 0).unwrap();
    h.watermark(9).unwrap();
    // Beside the one that waits for late records.
    h.batch((0..101).map(|n| (keyed(1, 0), 20 + n / 20))).unwrap();
    assert_eq!(h.op().kept.0.as_ref().map(|kept| kept.new.len()), Some(2));
    let saved = h.save(1).unwrap();
    assert_eq!(results(&mut h).len(), 1 + 50);
    h.pause(&clock, ms(100)).unwrap();
    assert_eq!(results(&mut h), [(20, 35, 101)]);
    h.send(keyed(1, 0), 26).unwrap();
    assert_eq!(h.op().kept.0.as_ref().map(|kept| kept.new.len()), Some(1));

    let mut h: Counting = OpHarness::restored(op, &[&saved], 0, 1).unwrap();
    assert_eq!(h.op().kept.0.as_ref().map(|kept| kept.new.len()), Some(1));
    h.end(EndKind::Flush).unwrap();
    assert_eq!(results(&mut h), [(20, 35, 101)]);
}

#[test]
fn whether_results_are_discarded_cannot_change_under_open_sessions() {
    for discards in [false, true] {
        let op = |discards: bool| {
            let window = Session::gap(ms(10)).early_every(2);
            sessions(if discards { window.discarding() } else { window }, count())
        };
        let mut before: Counting = OpHarness::new(op(discards)).unwrap();
        before.send(keyed(1, 0), 0).unwrap();
        let open = before.save(1).unwrap();
        let refused = Counting::restored(op(!discards), &[&open], 0, 1).map(drop).unwrap_err().chain();
        assert!(refused.contains("discards"), "{refused}");
        assert!(Counting::restored(op(discards), &[&open], 0, 1).is_ok());
        before.watermark(9).unwrap();
        let closed = before.save(2).unwrap();
        assert!(Counting::restored(op(!discards), &[&closed], 0, 1).is_ok());
    }
}

/// The rules of sessions, with lists instead of timers and caches.
#[derive(Clone)]
struct Plain {
    gap: i64,
    lateness: i64,
    every: u32,
    discards: bool,
    watermark: i64,
    open: Vec<PlainSession>,
}

#[derive(Clone)]
struct PlainSession {
    key: u64,
    start: i64,
    end: i64,
    total: (u64, i64),
    panes: u32,
    since: u32,
    given: bool,
}

impl PlainSession {
    fn give(&mut self, discards: bool, pane: fn(u32) -> Pane, rows: &mut Vec<Row>) {
        rows.push((self.end, self.start, self.key, self.total, pane(self.panes)));
        self.panes += 1;
        self.since = 0;
        if discards {
            self.total = (0, 0);
        }
    }
}

impl Model for Plain {
    fn watermark(&self) -> i64 {
        self.watermark
    }

    fn take(&mut self, key: u64, value: i64, time: i64, rows: &mut Vec<Row>) {
        let new = PlainSession {
            key,
            start: time,
            end: time + self.gap,
            total: (1, value),
            panes: 0,
            since: 1,
            given: false,
        };
        let (joined, apart): (Vec<_>, Vec<_>) =
            self.open.iter().cloned().partition(|s| s.key == key && s.start < new.end && new.start < s.end);
        let mut all = joined.into_iter().fold(new, |all, s| PlainSession {
            start: all.start.min(s.start),
            end: all.end.max(s.end),
            total: (all.total.0 + s.total.0, all.total.1 + s.total.1),
            panes: all.panes.max(s.panes),
            since: all.since + s.since,
            ..all
        });
        if all.end - 1 + self.lateness <= self.watermark {
            return;
        }
        self.open = apart;
        if all.end - 1 <= self.watermark {
            all.give(self.discards, Pane::late, rows);
            all.given = true;
        } else if all.since >= self.every {
            all.give(self.discards, Pane::early, rows);
        }
        self.open.push(all);
    }

    fn advance(&mut self, to: i64, rows: &mut Vec<Row>) {
        self.watermark = to;
        for session in self.open.iter_mut().filter(|s| !s.given && s.end - 1 <= to) {
            if !self.discards || session.since > 0 {
                session.give(self.discards, Pane::on_time, rows);
            }
            session.given = true;
        }
        self.open.retain(|s| s.end - 1 + self.lateness > to);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn sessions_agree_with_plain_rules(
        steps in steps(8, 30, 60),
        gap in 1..25i64,
        lateness in prop_oneof![Just(0), 0..40i64],
        every in prop_oneof![Just(None), (1..5u32).prop_map(Some)],
        discards in any::<bool>(),
    ) {
        let every_one = every.unwrap_or(u32::MAX);
        let model = Plain { gap, lateness, every: every_one, discards, watermark: -100, open: Vec::new() };
        let mut window = Session::gap(ms(gap)).allow_lateness(ms(lateness));
        if let Some(every) = every {
            window = window.early_every(every);
        }
        agree(sessions(if discards { window.discarding() } else { window }, both()), model, steps)?;
    }

    /// With disorder within the tolerance sessions are what sorting all records gives, whatever happens meanwhile.
    #[test]
    fn sessions_agree_with_a_batch_computation(
        mut records in prop::collection::vec((0u64..6, -300i64..300, 1i64..20, 0i64..40), 1..150),
        restores in prop::collection::vec((0usize..150, 1usize..5), 0..4),
        fixed in any::<bool>(),
    ) {
        const BOUND: i64 = 40;
        records.sort_by_key(|(_, time, _, delay)| time + delay);
        let gap_of = move |gap: i64| if fixed { 10 } else { gap };

        let mut by_key = BTreeMap::<u64, Vec<(i64, i64)>>::new();
        records.iter().for_each(|(key, time, gap, _)| by_key.entry(*key).or_default().push((*time, *gap)));
        let mut expected: Vec<Row> = Vec::new();
        for (key, mut records) in by_key {
            records.sort_unstable();
            let mut sessions: Vec<Row> = Vec::new();
            for (time, gap) in records {
                let end = time + gap_of(gap);
                match sessions.last_mut() {
                    Some(open) if time < open.0 => {
                        open.0 = open.0.max(end);
                        open.3 = (open.3.0 + 1, open.3.1 + gap);
                    }
                    _ => sessions.push((end, time, key, (1, gap), Pane::ONLY)),
                }
            }
            expected.extend(sessions);
        }
        expected.sort_unstable();

        let by = move |gap: &i64| Duration::from_millis(gap_of(*gap) as u64);
        let window: Session<GapBy<_>> = Session::gap_by(by);
        let mut fleet = Fleet::of(sessions(window, both()), 2);
        let (mut given, mut latest, mut watermark) = (Vec::new(), i64::MIN, i64::MIN);
        for (at, (key, time, gap, _)) in records.into_iter().enumerate() {
            fleet.batch([(key, gap, time)]);
            latest = latest.max(time);
            if at % 5 == 0 && latest - BOUND - 1 > watermark {
                watermark = latest - BOUND - 1;
                fleet.watermark(watermark);
                given.extend(fleet.take());
            }
            for (_, parallelism) in restores.iter().filter(|(when, _)| *when == at) {
                let saved = fleet.save();
                fleet.batch([(key, gap, time)]);
                fleet.restore(&saved, *parallelism);
            }
        }
        fleet.end(EndKind::Flush);
        given.extend(fleet.take());
        prop_assert_eq!(rows(given), expected);
    }
}
