//! The interval join: records of two sides whose times are no further apart than said.
// HOT: a record costs one probe of its key's times, one of its own bucket, and one per bucket that it meets.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::mem::take;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_engine::{Collector, Either, EventTime, Key, Keyed, Operator, Record, Result, SideSlot, Watermark};

use crate::aggregate::Kept;
use crate::argument::{ArgumentError, whole_ms};
use crate::join::kind::JoinKind;
use crate::ordered::Timely;
use crate::process::{KeyedContext, MapState, NamedState, ProcessFunction};

/// How far the times of two records may be apart for an interval join: `left + lower <= right <= left + upper`, both bounds in it.
///
/// *Given*: each pair at once, with the later time of both. What an outer, semi or anti join says of a single record comes when
/// the watermark has passed the last time that could meet it, with that time, or its own if that is later.
///
/// *State*, under the operator's uid: the records of both sides, in the tables `left` and `right` by time, until the watermark has
/// reached what they could meet last: of the left `time + upper`, of the right `time - lower`. A record that could only meet what
/// has passed is not kept at all. Per key a list of the times that wait, in `state`, and a timer for each. A checkpoint writes what
/// changed since the one before. The bounds may be changed between two lives: what waits goes by the new ones from then on, may be let
/// go as late as the earlier ones would have, and what those have let go is gone.
///
/// *Late records*, those at or before the watermark, meet nothing: they go to the late output if that is read, and are counted as
/// `late_records` in any case.
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
/// # let job = weir_engine::Job::named("doc").parallelism(1);
/// # let monotonic = weir_engine::Watermarks::monotonic;
/// # let orders = job.source("orders", ScriptSource::of([((7u64, 30), 0)])).source_time(monotonic());
/// # let payments = job.source("payments", ScriptSource::of([((7u64, 30), 60_000)])).source_time(monotonic());
/// // Orders with the payments that came within an hour of them, and those without one.
/// let orders = orders.key_by("by-order", |(id, _)| *id);
/// let payments = payments.key_by("by-paid-order", |(id, _)| *id);
/// orders.connect(payments).interval_join("paid", Interval::after(hours(1)), LeftOuter).sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    lower: Result<i64, ArgumentError>,
    upper: Result<i64, ArgumentError>,
}

type Checked = std::result::Result<(i64, i64), ArgumentError>;

impl Interval {
    /// The right one is from `lower` to `upper` milliseconds later than the left one; earlier where negative. `lower` must not be
    /// more than `upper`, or the plan is refused.
    pub fn between_ms(lower: i64, upper: i64) -> Self {
        Interval { lower: Ok(lower), upper: Ok(upper) }
    }

    /// Either one is at most this much later than the other: whole milliseconds, 0 for the same time.
    pub fn within(time: Duration) -> Self {
        let upper = whole_ms("within", time);
        Interval { lower: upper.clone().map(|ms| -ms), upper }
    }

    /// The right one has the time of the left one, or is at most this much later: whole milliseconds.
    pub fn after(time: Duration) -> Self {
        Interval { lower: Ok(0), upper: whole_ms("after", time) }
    }

    /// The operator behind [`interval_join`](crate::prelude::JoinOps::interval_join): what a test drives by hand.
    ///
    /// # Errors
    /// The interval cannot be.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::{Either, KeyHash, Keyed, SideSlot, testkit::OpHarness};
    /// let join = Interval::between_ms(0, 10).operator::<u64, u64, u64, _>(LeftOuter, SideSlot::default()).unwrap();
    /// let mut harness = OpHarness::new(join)?;
    /// let keyed = |value| Keyed { hash: KeyHash(7), key: 7, value };
    /// harness.send(keyed(Either::Left(30)), 100)?;
    /// harness.watermark(109)?;
    /// assert!(harness.take().is_empty());
    /// harness.watermark(110)?;
    /// assert_eq!(harness.take_values(), [(30, None)]);
    /// # Ok::<(), weir_engine::TaskError>(())
    /// ```
    pub fn operator<K: Key, A: Kept, B: Kept, J: JoinKind<A, B>>(
        &self,
        _: J,
        late: SideSlot<Either<A, B>>,
    ) -> std::result::Result<
        impl Operator<Keyed<K, Either<A, B>>, Out = J::Out> + use<K, A, B, J>,
        ArgumentError,
    > {
        Ok(Timely::new(IntervalJoin::<K, A, B, J>::new(self.check()?), late))
    }

    pub(crate) fn check(&self) -> Checked {
        let (lower, upper) = (self.lower.clone()?, self.upper.clone()?);
        if lower > upper {
            return Err(ArgumentError::Interval { lower, upper });
        }
        Ok((lower, upper))
    }
}

/// The times of a key's records that wait, in order. A time is here when its bucket is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Lanes {
    left: VecDeque<i64>,
    right: VecDeque<i64>,
}

fn wait(lane: &mut VecDeque<i64>, time: i64) {
    if let Err(at) = lane.binary_search(&time) {
        lane.insert(at, time);
    }
}

/// The times from `from` to `to`, both included.
fn between(lane: &VecDeque<i64>, from: i64, to: i64) -> impl Iterator<Item = i64> + '_ {
    let first = lane.partition_point(|time| *time < from);
    lane.range(first..).copied().take_while(move |time| *time <= to)
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Waiting<T> {
    value: T,
    met: bool,
}

type Bucket<T> = Vec<Waiting<T>>;

/// The function behind the interval join.
pub(crate) struct IntervalJoin<K: Key, A: Kept, B: Kept, J> {
    lower: i64,
    upper: i64,
    left: MapState<K, i64, Bucket<A>>,
    right: MapState<K, i64, Bucket<B>>,
    /// Times that a record meets.
    meets: Vec<i64>,
    _kind: PhantomData<fn() -> J>,
}

impl<K: Key, A: Kept, B: Kept, J> Clone for IntervalJoin<K, A, B, J> {
    fn clone(&self) -> Self {
        Self::new((self.lower, self.upper))
    }
}

impl<K: Key, A: Kept, B: Kept, J> IntervalJoin<K, A, B, J> {
    pub(crate) fn new((lower, upper): (i64, i64)) -> Self {
        let (left, right) = (MapState::named("left"), MapState::named("right"));
        IntervalJoin { lower, upper, left, right, meets: Vec::new(), _kind: PhantomData }
    }

    /// When nothing more can meet a left record of that time.
    fn left_ends(&self, time: i64) -> i64 {
        time.saturating_add(self.upper)
    }

    /// When nothing more can meet a right record of that time.
    fn right_ends(&self, time: i64) -> i64 {
        time.saturating_sub(self.lower)
    }
}

/// Tells of one record and all that wait in the buckets at `meets`; true when it met any.
fn meet<K: Key, T: Kept, Out>(
    meets: &[i64],
    others: &mut MapState<K, i64, Bucket<T>>,
    marks: bool,
    time: EventTime,
    cx: &KeyedContext<'_, K, Lanes>,
    out: &mut impl Collector<Out>,
    row: impl Fn(&T) -> Option<Out>,
) -> Result<bool> {
    let mut met = false;
    for at in meets {
        let time = EventTime(time.0.max(*at));
        let tell = |other: &T, out: &mut _| {
            row(other).map_or(Ok(()), |row| Collector::emit(out, Record::new(row, time)))
        };
        if marks {
            for other in others.get_mut(cx, at)?.into_iter().flatten() {
                other.met = true;
                met = true;
                tell(&other.value, out)?;
            }
        } else {
            for other in others.get(cx, at)?.into_iter().flatten() {
                met = true;
                tell(&other.value, out)?;
            }
        }
    }
    Ok(met)
}

/// Puts a record into its bucket; true when it is the first there.
fn put<K: Key, T: Kept>(
    bucket: &mut MapState<K, i64, Bucket<T>>,
    time: i64,
    waiting: Waiting<T>,
    cx: &KeyedContext<'_, K, Lanes>,
) -> Result<bool> {
    match bucket.get_mut(cx, &time)? {
        Some(bucket) => {
            bucket.push(waiting);
            Ok(false)
        }
        None => bucket.put(cx, time, vec![waiting]).map(|()| true),
    }
}

impl<K: Key, A: Kept, B: Kept, J: JoinKind<A, B>> ProcessFunction<K, Either<A, B>>
    for IntervalJoin<K, A, B, J>
{
    type Out = J::Out;
    type State = Lanes;

    fn states(&mut self) -> Vec<&mut dyn NamedState<K>> {
        vec![&mut self.left, &mut self.right]
    }

    fn kept_with(&self) -> Vec<(&'static str, bool)> {
        vec![
            ("which left records have met one", J::MARKS_LEFT),
            ("which right records have met one", J::MARKS_RIGHT),
        ]
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, Either<A, B>>>]) -> Result<()> {
        let of = |left: bool| {
            let side = batch.iter().filter(move |r| matches!(r.value.value, Either::Left(_)) == left);
            side.map(|r| (r.value.hash, &r.value.key, &r.time.0))
        };
        self.left.prefetch_entries(of(true))?;
        self.right.prefetch_entries(of(false))
    }

    fn process(
        &mut self,
        record: Record<Either<A, B>>,
        cx: &mut KeyedContext<'_, K, Lanes>,
        out: &mut impl Collector<J::Out>,
    ) -> Result<()> {
        let Record { value, time } = record;
        let mut meets = take(&mut self.meets);
        meets.clear();
        let at = time.0;
        match value {
            Either::Left(value) => {
                if let Some(lanes) = cx.peek_state()? {
                    let (from, to) = (at.saturating_add(self.lower), at.saturating_add(self.upper));
                    meets.extend(between(&lanes.right, from, to));
                }
                let met = meet(&meets, &mut self.right, J::MARKS_RIGHT, time, cx, out, |right| {
                    J::pair(&value, right)
                })?;
                let ends = self.left_ends(at);
                if ends <= cx.watermark().0 {
                    if let Some(row) = J::left_over(&value, met) {
                        out.emit(Record::new(row, time))?;
                    }
                } else if put(&mut self.left, at, Waiting { value, met }, cx)? {
                    wait(&mut cx.state()?.left, at);
                    cx.set_timer(EventTime(ends));
                }
            }
            Either::Right(value) => {
                if let Some(lanes) = cx.peek_state()? {
                    let (from, to) = (at.saturating_sub(self.upper), at.saturating_sub(self.lower));
                    meets.extend(between(&lanes.left, from, to));
                }
                let met =
                    meet(&meets, &mut self.left, J::MARKS_LEFT, time, cx, out, |left| J::pair(left, &value))?;
                let ends = self.right_ends(at);
                if ends <= cx.watermark().0 {
                    if let Some(row) = J::right_over(&value, met) {
                        out.emit(Record::new(row, time))?;
                    }
                } else if put(&mut self.right, at, Waiting { value, met }, cx)? {
                    wait(&mut cx.state()?.right, at);
                    cx.set_timer(EventTime(ends));
                }
            }
        }
        self.meets = meets;
        Ok(())
    }

    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, K, Lanes>,
        out: &mut impl Collector<J::Out>,
    ) -> Result<()> {
        if cx.existing_state()?.is_none() {
            return Ok(());
        }
        // At the end of time no timer can be set any more, so that what has none at its own end must go now.
        let until = if cx.watermark() == Watermark::MAX { i64::MAX } else { time.0 };
        while let Some(at) = cx.state()?.left.front().copied().filter(|at| self.left_ends(*at) <= until) {
            cx.state()?.left.pop_front();
            let ends = self.left_ends(at).max(time.0);
            let bucket = self.left.get_mut(cx, &at)?.map(take).unwrap_or_default();
            self.left.remove(cx, &at)?;
            for row in bucket.iter().filter_map(|waiting| J::left_over(&waiting.value, waiting.met)) {
                out.emit(Record::new(row, EventTime(ends.max(at))))?;
            }
        }
        while let Some(at) = cx.state()?.right.front().copied().filter(|at| self.right_ends(*at) <= until) {
            cx.state()?.right.pop_front();
            let ends = self.right_ends(at).max(time.0);
            let bucket = self.right.get_mut(cx, &at)?.map(take).unwrap_or_default();
            self.right.remove(cx, &at)?;
            for row in bucket.iter().filter_map(|waiting| J::right_over(&waiting.value, waiting.met)) {
                out.emit(Record::new(row, EventTime(ends.max(at))))?;
            }
        }
        let lanes = cx.state()?;
        let (left, right) = (lanes.left.front().copied(), lanes.right.front().copied());
        if left.is_none() && right.is_none() {
            cx.clear_state();
            return Ok(());
        }
        // What an earlier life put here has its timer where narrower bounds ended.
        let ends = [left.map(|at| self.left_ends(at)), right.map(|at| self.right_ends(at))];
        ends.into_iter().flatten().for_each(|ends| cx.set_timer(EventTime(ends)));
        Ok(())
    }
}

#[cfg(test)]
#[path = "interval_tests.rs"]
mod tests;
