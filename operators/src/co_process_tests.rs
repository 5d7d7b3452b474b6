//! Both sides share states and timers, through failures and at any parallelism.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use weir_engine::testkit::{ManualClock, OpHarness, context_by};
use weir_engine::{KeyHash, Keyed};

use super::*;
use crate::join::testing::{self, Both, Value};
use crate::process::{MapState, Process, ValueState};
use crate::trial;

/// Sums up the left side in the state and the right one in a state with a name, keeps the values of both in a map that they share, and
/// tells all that at each record.
#[derive(Clone)]
struct Sums {
    right: ValueState<u64, i64>,
    seen: MapState<u64, i64, ()>,
}

impl Sums {
    fn new() -> Self {
        Sums { right: ValueState::named("right"), seen: MapState::named("seen") }
    }

    fn tell(
        &mut self,
        value: Value,
        time: EventTime,
        cx: &mut KeyedContext<'_, u64, i64>,
        out: &mut impl Collector<(u64, usize, i64, i64, usize)>,
    ) -> Result<()> {
        self.seen.put(cx, value.0, ())?;
        let (left, right) = (*cx.state()?, self.right.get(cx)?.copied().unwrap_or(0));
        let told = (*cx.key(), value.1, left, right, self.seen.entries(cx)?.count());
        out.emit(Record::new(told, time))
    }
}

impl CoProcessFunction<u64, Value, Value> for Sums {
    type Out = (u64, usize, i64, i64, usize);
    type State = i64;
    fn states(&mut self) -> Vec<&mut dyn NamedState<u64>> {
        vec![&mut self.right, &mut self.seen]
    }
    fn left(
        &mut self,
        record: Record<Value>,
        cx: &mut KeyedContext<'_, u64, i64>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        *cx.state()? += record.value.0;
        self.tell(record.value, record.time, cx, out)
    }
    fn right(
        &mut self,
        record: Record<Value>,
        cx: &mut KeyedContext<'_, u64, i64>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        *self.right.get_or_insert_with(cx, || 0)? += record.value.0;
        self.tell(record.value, record.time, cx, out)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]
    #[test]
    fn states_are_those_of_both_sides(input in testing::input(), cuts in trial::cuts()) {
        let op: Process<u64, Both, _> = Process::new(CoProcess::new(Sums::new()));
        let mut given: Vec<_> = trial::run(op, &input, &cuts, false).into_iter().map(|r| r.value).collect();
        let mut of_key = BTreeMap::<u64, (i64, i64, BTreeSet<i64>)>::new();
        let mut expected = Vec::new();
        for (key, record, _) in &input {
            let (left, right, seen) = of_key.entry(*key).or_default();
            let (sum, value) = match record {
                Either::Left(value) => (left, value),
                Either::Right(value) => (right, value),
            };
            *sum += value.0;
            seen.insert(value.0);
            let (left, right, seen) = &of_key[key];
            expected.push((*key, value.1, *left, *right, seen.len()));
        }
        given.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(given, expected);
    }
}

/// Sets a timer of each kind at a left record, and takes it back at a right one.
#[derive(Clone)]
struct Alarms;

impl CoProcessFunction<u64, i64, i64> for Alarms {
    type Out = (&'static str, i64);
    type State = ();
    fn left(
        &mut self,
        record: Record<i64>,
        cx: &mut KeyedContext<'_, u64, ()>,
        _: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        cx.set_timer(EventTime(record.value));
        cx.set_processing_timer(record.value);
        Ok(())
    }
    fn right(
        &mut self,
        record: Record<i64>,
        cx: &mut KeyedContext<'_, u64, ()>,
        _: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        cx.delete_timer(EventTime(record.value));
        cx.delete_processing_timer(record.value);
        Ok(())
    }
    fn on_timer(
        &mut self,
        time: EventTime,
        _: &mut KeyedContext<'_, u64, ()>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        out.emit(Record::new(("event", time.0), time))
    }
    fn on_processing_timer(
        &mut self,
        time_ms: i64,
        _: &mut KeyedContext<'_, u64, ()>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        out.emit(Record::new(("clock", time_ms), EventTime(time_ms)))
    }
}

#[test]
fn e22_timers_of_both_kinds_are_set_by_one_side_and_taken_back_by_the_other_and_outlive_a_restore() {
    let op = || Process::new(CoProcess::new(Alarms));
    let keyed = |value: Either<i64, i64>| Keyed { hash: KeyHash(7), key: 7u64, value };
    let clock = ManualClock::at(0);
    let mut h = OpHarness::with(op(), &context_by(Arc::new(clock.clone()), "alarms", 0, 1)).unwrap();
    h.batch([10, 20, 30].map(|at| (keyed(Either::Left(at)), 0))).unwrap();
    h.send(keyed(Either::Right(20)), 0).unwrap();
    h.watermark(15).unwrap();
    h.pause(&clock, Duration::from_millis(15)).unwrap();
    assert_eq!(h.take_values(), [("event", 10), ("clock", 10)]);
    let saved = h.save(1).unwrap();
    let mut h = OpHarness::restored(op(), &[&saved], 0, 1).unwrap();
    h.watermark(15).unwrap();
    h.watermark(100).unwrap();
    h.quiet().unwrap();
    assert_eq!(h.take_values(), [("event", 30), ("clock", 30)]);
}
