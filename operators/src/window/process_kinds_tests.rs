//! A function that adds up gives what an aggregate gives, in every kind of window, over saves, losses and restores.

use super::*;
use crate::fleet::Fleet;
use crate::prelude::*;
use crate::window::count::Endless;
use crate::window::model::{Row, Step, both, rows, steps};
use crate::window::{CountAggregate, CountProcess, Pane, SessionAggregate, SessionProcess, SlicedAggregate};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::time::Duration;
use weir_engine::testkit::{NullSink, OpHarness, Probe, ScriptSource, SideProbe, run_within};
use weir_engine::{Job, OperatorInfo, Watermarks};
use weir_state::key_hash;

/// Counts and adds up.
#[derive(Clone)]
struct Sums;

impl WindowFunction<u64, i64> for Sums {
    type Out = WindowResult<u64, (u64, i64)>;
    type State = (u64, i64);
    fn process(
        &mut self,
        record: Record<i64>,
        state: &mut (u64, i64),
        at: &InWindow<'_, u64>,
        _: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        assert!(at.window.contains(record.time));
        *state = (state.0 + 1, state.1 + record.value);
        Ok(())
    }
    fn on_close(
        &mut self,
        value: (u64, i64),
        at: &InWindow<'_, u64>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let result = WindowResult { key: *at.key, window: at.window, value, pane: Pane::ONLY };
        out.emit(Record::new(result, at.window.last()))
    }
}

impl SessionFunction<u64, i64> for Sums {
    fn merge(&mut self, into: &mut (u64, i64), later: (u64, i64)) {
        *into = (into.0 + later.0, into.1 + later.1);
    }
}

fn ms(n: i64) -> Duration {
    Duration::from_millis(n as u64)
}

/// Leads both operators through the steps: whenever neither has more to give, they have given the same.
fn same<A, B>(a: A, b: B, steps: Vec<Step>) -> std::result::Result<(), TestCaseError>
where
    A: Operator<Keyed<u64, i64>, Out = WindowResult<u64, (u64, i64)>>,
    B: Operator<Keyed<u64, i64>, Out = WindowResult<u64, (u64, i64)>>,
{
    let (mut a, mut b) = (Fleet::of(a, 2), Fleet::of(b, 2));
    let mut now = 0;
    a.watermark(now);
    b.watermark(now);
    let (mut of_a, mut of_b): (Vec<Row>, Vec<Row>) = (Vec::new(), Vec::new());
    let mut saved = (a.save(), b.save(), now, of_a.clone(), of_b.clone());
    for step in steps.into_iter().chain([Step::Watermark(10_000)]) {
        match step {
            Step::Batch(records) => {
                let records: Vec<_> =
                    records.into_iter().map(|(key, value, time)| (key, value, now + time)).collect();
                a.batch(records.clone());
                b.batch(records);
            }
            Step::Watermark(by) => {
                now += by;
                a.watermark(now);
                b.watermark(now);
            }
            Step::Begin(by) => {
                now += by;
                a.begin_watermark(now);
                b.begin_watermark(now);
            }
            Step::Quiet => {
                a.quiet();
                b.quiet();
            }
            Step::Save => saved = (a.save(), b.save(), now, of_a.clone(), of_b.clone()),
            Step::Lose => {
                a.lose();
                b.lose();
            }
            Step::Restore(parallelism) => {
                a.restore(&saved.0, parallelism);
                b.restore(&saved.1, parallelism);
                (now, of_a, of_b) = (saved.2, saved.3.clone(), saved.4.clone());
            }
        }
        of_a.extend(rows(a.take()));
        of_b.extend(rows(b.take()));
        of_a.sort_unstable();
        of_b.sort_unstable();
        if !a.has_more() && !b.has_more() {
            prop_assert_eq!(&of_a, &of_b);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn in_windows_that_slide(steps in steps(6, 40, 60), size in 1..40i64, step in 1..40i64, offset in -40..40i64) {
        let (step, offset) = (step.min(size), offset % step.min(size));
        let window = Sliced::Sliding(Sliding::of(ms(size)).every(ms(step)).offset_ms(offset));
        let aggregate = SlicedAggregate::new(window, both(), SideSlot::default());
        same(SlicedProcess::new(window, Sums, SideSlot::default()), aggregate, steps)?;
    }

    #[test]
    fn in_windows_that_cumulate(steps in steps(6, 60, 60), step in 1..20i64, n in 1..5i64) {
        let window = Sliced::Cumulate(Cumulate::of(ms(step * n)).every(ms(step)));
        let aggregate = SlicedAggregate::new(window, both(), SideSlot::default());
        same(SlicedProcess::new(window, Sums, SideSlot::default()), aggregate, steps)?;
    }

    #[test]
    fn in_sessions(steps in steps(4, 40, 60), gap in 1..30i64) {
        let window = Session::gap(ms(gap));
        let aggregate = SessionAggregate::new(window, both(), SideSlot::default());
        same(SessionProcess::new(window, Sums, SideSlot::default()), aggregate, steps)?;
    }

    #[test]
    fn in_windows_of_so_many_records(steps in steps(6, 40, 60), records in 1..6u32) {
        let window = CountWindow::of(records);
        let aggregate = CountAggregate::new(Endless::Count(window), both(), SideSlot::default());
        same(CountProcess::new(window, Sums, SideSlot::default()), aggregate, steps)?;
    }
}

#[test]
fn what_is_late_for_a_function_goes_to_the_late_output() {
    let keyed = |value| Keyed { hash: key_hash(&1u64), key: 1u64, value };
    let late = SideSlot::default();
    let probe = SideProbe::attach(&late);
    let window = Sliced::Sliding(Sliding::of(ms(10)).every(ms(5)));
    let mut h = OpHarness::new(SlicedProcess::new(window, Sums, late)).unwrap();
    h.watermark(9).unwrap();
    // One is in a window that is not over, the other in none.
    h.batch([(keyed(1), 7), (keyed(2), 4)]).unwrap();
    h.quiet().unwrap();
    assert_eq!(probe.take(), [Record::new(2, EventTime(4))]);
    assert!(h.send(keyed(1), EventTime::NONE.0).unwrap_err().chain().contains("event time"));

    let late = SideSlot::default();
    let probe = SideProbe::attach(&late);
    let mut h = OpHarness::new(SessionProcess::new(Session::gap(ms(10)), Sums, late)).unwrap();
    h.watermark(20).unwrap();
    h.batch([(keyed(1), 12), (keyed(2), 1)]).unwrap();
    h.quiet().unwrap();
    assert_eq!(probe.take(), [Record::new(2, EventTime(1))]);
    assert!(h.send(keyed(1), EventTime::NONE.0).unwrap_err().chain().contains("event time"));
}

#[test]
fn jobs_run_functions_in_every_window_and_refuse_what_those_do_not_do() {
    let job = Job::named("kinds").parallelism(1);
    let (count, sessions) = (Probe::new(), Probe::new());
    let numbers = |uid: &str| {
        let numbers = ScriptSource::of([(1i64, 0), (2, 5), (4, 100)]);
        job.source(uid, numbers).source_time(Watermarks::monotonic()).key_by(&format!("{uid}-key"), |_| 1u64)
    };
    let (values, late) = numbers("in-twos").window(CountWindow::of(2)).process_with_late("twos", Sums);
    values
        .map(|w| w.value)
        .transform(OperatorInfo::named("probe", "count-look"), count.clone())
        .sink("twos-out", NullSink);
    late.sink("late-out", NullSink);
    let (values, late) = numbers("in-visits").window(Session::gap(ms(10))).process_with_late("visits", Sums);
    values
        .map(|w| w.value)
        .transform(OperatorInfo::named("probe", "visit-look"), sessions.clone())
        .sink("visits-out", NullSink);
    late.sink("late-visits", NullSink);
    numbers("in-slides")
        .window(Sliding::of(ms(10)).every(ms(5)))
        .process("slides", Sums)
        .sink("slides-out", NullSink);
    numbers("in-grows")
        .window(Cumulate::of(ms(10)).every(ms(5)))
        .process("grows", Sums)
        .sink("grows-out", NullSink);
    run_within(job, seconds(60)).unwrap();
    assert_eq!(count.values(), [(2, 3), (1, 4)]);
    assert_eq!(sessions.values(), [(2, 3), (1, 4)]);

    let refused = |add: &dyn Fn(weir_engine::KeyedStream<u64, i64>)| {
        let job = Job::named("refused").parallelism(1);
        let numbers = job.source("in", ScriptSource::of([(7i64, 0)])).source_time(Watermarks::monotonic());
        add(numbers.key_by("by-key", |_| 1u64));
        job.plan().unwrap_err().to_string()
    };
    let slides = || Sliding::of(ms(10)).every(ms(5));
    for (name, error) in [
        (
            "allow_lateness",
            refused(&|keyed| {
                keyed.window(slides().allow_lateness(ms(5))).process("f", Sums).sink("out", NullSink);
            }),
        ),
        (
            "emit_when_emptied",
            refused(&|keyed| {
                keyed.window(slides().emit_when_emptied()).process("f", Sums).sink("out", NullSink);
            }),
        ),
        (
            "early_every",
            refused(&|keyed| {
                keyed.window(Session::gap(ms(5)).early_every(2)).process("f", Sums).sink("out", NullSink);
            }),
        ),
        (
            "count",
            refused(&|keyed| {
                keyed.window(CountWindow::of(0)).process("f", Sums).sink("out", NullSink);
            }),
        ),
    ] {
        assert!(error.contains(name) && error.contains('f'), "{name}: {error}");
    }
}
