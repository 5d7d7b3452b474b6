//! A function in a window: its state is the window's, over saves and restores; late records pass it by.

use super::*;
use crate::fleet::Fleet;
use crate::prelude::{days, seconds};
use proptest::prelude::*;
use std::collections::BTreeMap;
use weir_engine::testkit::{NullSink, OpHarness, Probe, ScriptSource, context, run_within};
use weir_engine::{Job, Watermarks};
use weir_state::key_hash;

/// Gives every second value of a key and window at once; at the end how often each value came.
#[derive(Clone)]
struct Twos;

impl WindowFunction<u64, i64> for Twos {
    type Out = (u64, i64, Vec<(i64, u32)>);
    type State = BTreeMap<i64, u32>;
    fn process(
        &mut self,
        record: Record<i64>,
        state: &mut BTreeMap<i64, u32>,
        at: &InWindow<'_, u64>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        assert!(at.window.contains(record.time));
        *state.entry(record.value).or_default() += 1;
        let all: u32 = state.values().sum();
        if all.is_multiple_of(2) {
            return out.emit(record.with((*at.key, at.window.start.0, vec![(record.value, 0)])));
        }
        Ok(())
    }
    fn on_close(
        &mut self,
        state: BTreeMap<i64, u32>,
        at: &InWindow<'_, u64>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        out.emit(Record::new((*at.key, at.window.start.0, state.into_iter().collect()), at.window.last()))
    }
}

fn tens() -> WindowProcess<u64, i64, Twos> {
    let tens = Tumbling::of(std::time::Duration::from_millis(10));
    WindowProcess::new(Cutting::Tumbling(tens), Twos, SideSlot::default())
}

#[test]
fn what_is_remembered_goes_with_its_window() {
    let cx = context("under-test", 0, 1);
    let mut h = OpHarness::with(tens(), &cx).unwrap();
    let keyed = |value| Keyed { hash: key_hash(&1u64), key: 1u64, value };
    h.batch([(keyed(5), 3), (keyed(6), 12), (keyed(5), 4), (keyed(7), 5)]).unwrap();
    assert_eq!(h.take_values(), [(1, 0, vec![(5, 0)])]);
    h.watermark(9).unwrap();
    assert_eq!(h.take_values(), [(1, 0, vec![(5, 2), (7, 1)])]);
    h.send(keyed(5), 9).unwrap();
    assert_eq!(cx.counter("late_records").get(), 1);
    assert!(h.send(keyed(5), EventTime::NONE.0).unwrap_err().chain().contains("event time"));
    h.end(EndKind::Flush).unwrap();
    assert_eq!(h.take_values(), [(1, 10, vec![(6, 1)])]);
}

#[test]
fn a_job_runs_functions_in_windows_and_refuses_those_that_cannot_be() {
    for late in [false, true] {
        let (job, probe, lates) = (Job::named("twos").parallelism(1), Probe::new(), Probe::new());
        let numbers = ScriptSource::of([(7i64, 0), (7, 5), (8, 90_000_000)]);
        let numbers = job.source("in", numbers).source_time(Watermarks::monotonic());
        let windowed = numbers.key_by("all", |_| 1u64).window(Calendar::days("UTC"));
        let looks = |name: &str| OperatorInfo::named("probe", name);
        if late {
            let (twos, late) = windowed.process_with_late("twos", Twos);
            late.transform(looks("late-look"), lates.clone()).sink("late-out", NullSink);
            twos.transform(looks("look"), probe.clone()).sink("out", NullSink);
        } else {
            windowed.process("twos", Twos).transform(looks("look"), probe.clone()).sink("out", NullSink);
        }
        run_within(job, seconds(30)).unwrap();
        let day = 86_400_000;
        assert_eq!(probe.values(), [(1, 0, vec![(7, 0)]), (1, 0, vec![(7, 2)]), (1, day, vec![(8, 1)])]);
        assert!(lates.values().is_empty());
    }
    let job = Job::named("wrong").parallelism(1);
    let numbers = job.source("in", ScriptSource::of([(7i64, 0)])).source_time(Watermarks::monotonic());
    let windowed = numbers.key_by("all", |_| 1u64).window(Tumbling::of(days(1)).offset(days(1)));
    windowed.process("twos", Twos).sink("out", NullSink);
    let error = job.plan().unwrap_err().to_string();
    assert!(error.contains("twos") && error.contains("offset"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Saved and restored anywhere, in the middle of closing windows too, each window is what a map says.
    #[test]
    fn functions_in_windows_agree_with_a_map(
        steps in prop::collection::vec((0..6u64, 0..3i64, 0..40i64, 0..8u8, 1..4usize), 0..80),
    ) {
        let mut fleet = Fleet::of(tens(), 2);
        let mut open = BTreeMap::<(i64, u64), BTreeMap<i64, u32>>::new();
        let (mut rows, mut expected, mut now) = (Vec::new(), Vec::new(), 0);
        fleet.watermark(0);
        for (key, value, ahead, then, parallelism) in steps {
            let time = now + ahead - 10;
            fleet.batch([(key, value, time)]);
            // Before a restore takes the subtasks away.
            rows.extend(fleet.take().into_iter().map(|r| r.value));
            let start = time.div_euclid(10) * 10;
            if start + 9 > now {
                let state = open.entry((start, key)).or_default();
                *state.entry(value).or_default() += 1;
                if state.values().sum::<u32>().is_multiple_of(2) {
                    expected.push((key, start, vec![(value, 0)]));
                }
            }
            match then {
                0 => {
                    let saved = fleet.save();
                    fleet.restore(&saved, parallelism);
                }
                1 | 2 => {
                    now += 13;
                    if then == 1 { fleet.watermark(now) } else { fleet.begin_watermark(now) }
                    let over = open.extract_if(.., |(start, _), _| start + 9 <= now);
                    expected.extend(over.map(|((start, key), state)| (key, start, state.into_iter().collect())));
                }
                _ => {}
            }
            rows.extend(fleet.take().into_iter().map(|r| r.value));
        }
        fleet.end(EndKind::Flush);
        rows.extend(fleet.take().into_iter().map(|r| r.value));
        expected.extend(open.into_iter().map(|((start, key), state)| (key, start, state.into_iter().collect())));
        rows.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(rows, expected);
    }
}
