//! OVER aggregates: one result per record, over the last rows or the last time of its key, in event-time order.
// HOT: per record a merge or two of accumulators and a few probes, amortised, whatever the size of the frame.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_engine::{Collector, Data, EventTime, Key, Keyed, Operator, Record, Result, SideSlot};

use crate::aggregate::{Aggregate, Kept};
use crate::argument::{ArgumentError, positive_ms, whole_ms};
use crate::ordered::{Fifo, InOrder, LineContext, Ordered, Peers, Span, Timely, wake};
use crate::process::NamedState;

/// The frame of an OVER aggregate: which records of its key a record is seen with.
///
/// *Semantics*: as in SQL. The records of a key are put in the order of their times, those of one time in the order in which they
/// came; for each there is one result, over the frame that ends with it. [`Over::rows`] is `ROWS BETWEEN n - 1 PRECEDING AND CURRENT ROW`;
/// [`Over::time`] is `RANGE BETWEEN t PRECEDING AND CURRENT ROW`, so that records of one time are in each other's frames and have one
/// result. A record exactly `t` older is in the frame, one a millisecond older is not.
///
/// *When*: results are given when the watermark has passed the time of their record, with that time; so they come in the order of
/// event time, and the result does not depend on how producers interleave.
///
/// *Late records*, those at or before the watermark, change no result: they are counted as `late_records`, and go to the late output
/// of [`over_with_late`](crate::prelude::PerKeyOps::over_with_late).
///
/// *State*: each record until the watermark passes it; then of each record (of each time, with [`Over::time`]) of the frame one
/// accumulator, not the record. A step of the frame costs a few accesses and merges whatever its size (two stacks: accumulators of the
/// older part are kept merged from there on). An aggregate whose accumulator grows with its input
/// ([`collect`](crate::aggregate::collect), [`distinct_of`](crate::aggregate::distinct_of)) is kept many times over that way: keep its
/// frames short.
///
/// *Forgets*: with [`Over::time`] a key `t` after its last record. With [`Over::rows`] the last `n` rows of a key stay as long as
/// the job, or [`forget_after`](Over::forget_after).
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::{OperatorInfo, testkit::{NullSink, Probe, ScriptSource, run_within}};
/// # let (job, probe) = (weir_engine::Job::named("doc").parallelism(1), Probe::new());
/// let prices = [('a', 10), ('a', 30), ('b', 5), ('a', 20)].into_iter().zip([0, 1_000, 1_500, 9_000]);
/// let prices = job.source("in", ScriptSource::of(prices)).source_time(weir_engine::Watermarks::monotonic());
/// prices.key_by("by-item", |(item, _)| *item)
///     .over("dearest", Over::time(seconds(5)), max(|(_, price): &(char, i64)| *price))
///     .map(|o| (o.record.1, o.value))
/// #   .transform(OperatorInfo::stateless("look"), probe.clone())
///     .sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// assert_eq!(probe.values(), [(10, Some(10)), (30, Some(30)), (5, Some(5)), (20, Some(20))]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    frame: Frame,
    forget_after: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Rows(u64),
    Time(Duration),
}

impl Over {
    /// The record and the `n - 1` before it; 1 at least. 0 fails the start of the job.
    pub fn rows(n: u64) -> Self {
        Over { frame: Frame::Rows(n), forget_after: None }
    }

    /// The record and those of the same time or up to `t` before it: whole milliseconds. 0 is those of the same time. Anything else
    /// fails the start of the job.
    pub fn time(t: Duration) -> Self {
        Over { frame: Frame::Time(t), forget_after: None }
    }

    /// A key of which event time has seen nothing for longer than this begins anew: whole milliseconds, at least one. Needed by
    /// [`Over::rows`] where keys come and go.
    #[must_use]
    pub fn forget_after(mut self, silence: Duration) -> Self {
        self.forget_after = Some(silence);
        self
    }

    /// The operator behind [`over`](crate::prelude::PerKeyOps::over): what a test drives by hand.
    ///
    /// # Errors
    /// The frame cannot be.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::{Keyed, SideSlot, testkit::OpHarness};
    /// let over = Over::rows(2).operator::<u64, _, _>(sum(|n: &i64| *n), SideSlot::default()).unwrap();
    /// let mut harness = OpHarness::new(over)?;
    /// # let keyed = |value: i64| Keyed { hash: weir_state::key_hash(&7u64), key: 7u64, value };
    /// harness.batch([(keyed(4), 30), (keyed(1), 10), (keyed(2), 20)])?;
    /// harness.watermark(30)?;
    /// let sums: Vec<_> = harness.take_values().iter().map(|over| over.value).collect();
    /// assert_eq!(sums, [1, 3, 6], "in the order of their times");
    /// # Ok::<(), weir_engine::TaskError>(())
    /// ```
    pub fn operator<K: Key, T: Kept, A: Aggregate<T>>(
        &self,
        aggregate: A,
        late: SideSlot<T>,
    ) -> std::result::Result<
        impl Operator<Keyed<K, T>, Out = OverResult<K, T, A::Out>> + use<K, T, A>,
        ArgumentError,
    > {
        Ok(Timely::new(Ordered::new(OverFrames::<K, T, A>::new(self.check()?, aggregate)), late))
    }

    pub(crate) fn check(&self) -> std::result::Result<Bounds, ArgumentError> {
        let forget = self.forget_after.map(|d| positive_ms("forget_after", d)).transpose()?;
        Ok(match self.frame {
            Frame::Rows(0) => return Err(ArgumentError::Zero { name: "rows" }),
            Frame::Rows(n) => Bounds { rows: Some(n), time: None, forget },
            Frame::Time(t) => {
                let t = whole_ms("time", t)?;
                Bounds { rows: None, time: Some(t), forget: Some(forget.map_or(t, |forget| forget.min(t))) }
            }
        })
    }
}

/// A checked frame, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    /// At most so many records.
    rows: Option<u64>,
    /// None older than this.
    time: Option<i64>,
    /// None from before a silence longer than this.
    forget: Option<i64>,
}

/// A record, and what its frame comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverResult<K, T, V> {
    /// The key.
    pub key: K,
    /// The record.
    pub record: T,
    /// What the aggregate gave over the frame that ends with it.
    pub value: V,
}

/// A record of the frame, or all of one time: what they come to, or, in the older part, what they and all later ones of that
/// part come to.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Unit<A> {
    time: i64,
    acc: A,
}

/// The frame of a key. Units below `mid` are the older part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Window<A> {
    span: Span,
    mid: u64,
    /// What the newer part comes to.
    newer: Option<A>,
    /// The time of the last record.
    last: i64,
    /// When it is to be looked at whether the key can be forgotten.
    look_at: Option<i64>,
}

impl<A> Default for Window<A> {
    fn default() -> Self {
        Window { span: Span::default(), mid: 0, newer: None, last: 0, look_at: None }
    }
}

type Context<'a, K, A> = LineContext<'a, K, Window<A>>;

/// Computes an aggregate over frames.
pub(crate) struct OverFrames<K: Key, T: Data, A: Aggregate<T>> {
    bounds: Bounds,
    aggregate: A,
    units: Fifo<K, Unit<A::Acc>>,
    _in: PhantomData<fn(T)>,
}

impl<K: Key, T: Data, A: Aggregate<T>> OverFrames<K, T, A> {
    pub(crate) fn new(bounds: Bounds, aggregate: A) -> Self {
        OverFrames { bounds, aggregate, units: Fifo::named("frame"), _in: PhantomData }
    }

    /// Takes out what is older than `time` allows and leaves room for one more.
    fn evict(&mut self, time: i64, window: &mut Window<A::Acc>, cx: &Context<'_, K, A::Acc>) -> Result<()> {
        let span = window.span;
        let mut head = span.head;
        let Bounds { rows, time: reach, forget } = self.bounds;
        if forget.is_some_and(|forget| time.saturating_sub(window.last) > forget) {
            head = span.tail;
        }
        if let Some(rows) = rows {
            head = head.max(span.tail.saturating_sub(rows - 1));
        }
        if let Some(reach) = reach {
            let oldest = time.saturating_sub(reach);
            while head < span.tail && self.units.at(cx, head)?.time < oldest {
                head += 1;
            }
        }
        if head == span.tail {
            self.units.clear(cx, &mut window.span)?;
            (window.mid, window.newer) = (0, None);
            return Ok(());
        }
        let flips = head > window.mid;
        self.units.drop_until(cx, &mut window.span, head)?;
        if flips {
            self.flip(window, cx)?;
        }
        Ok(())
    }

    /// Makes all there is the older part.
    fn flip(&mut self, window: &mut Window<A::Acc>, cx: &Context<'_, K, A::Acc>) -> Result<()> {
        let mut later: Option<A::Acc> = None;
        for number in (window.span.head..window.span.tail).rev() {
            let Unit { time, mut acc } = self.units.at(cx, number)?.clone();
            if let Some(later) = later.take() {
                self.aggregate.merge(&mut acc, later);
                self.units.set(cx, number, Unit { time, acc: acc.clone() })?;
            }
            later = Some(acc);
        }
        (window.mid, window.newer) = (window.span.tail, None);
        Ok(())
    }

    /// Puts a unit into the frame, and says what that comes to.
    fn step(
        &mut self,
        time: i64,
        acc: A::Acc,
        window: &mut Window<A::Acc>,
        cx: &Context<'_, K, A::Acc>,
    ) -> Result<A::Out> {
        self.evict(time, window, cx)?;
        window.last = time;
        let older = (window.span.head < window.mid).then_some(window.span.head);
        let alone = self.bounds.rows == Some(1);
        let newer = match window.newer.take() {
            Some(mut newer) => {
                self.aggregate.merge(&mut newer, acc.clone());
                newer
            }
            None => acc.clone(),
        };
        let all = match older {
            Some(head) => {
                let mut all = self.units.at(cx, head)?.acc.clone();
                self.aggregate.merge(&mut all, newer.clone());
                all
            }
            None => newer.clone(),
        };
        if !alone {
            window.newer = Some(newer);
            self.units.push(cx, &mut window.span, Unit { time, acc })?;
        }
        Ok(self.aggregate.result(all))
    }

    fn of_one(&self, value: &T) -> A::Acc {
        let mut acc = self.aggregate.create();
        self.aggregate.add(&mut acc, value);
        acc
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> Clone for OverFrames<K, T, A> {
    fn clone(&self) -> Self {
        OverFrames::new(self.bounds, self.aggregate.clone())
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> fmt::Debug for OverFrames<K, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OverFrames({:?})", self.bounds)
    }
}

impl<K: Key, T: Kept, A: Aggregate<T>> InOrder<K, T> for OverFrames<K, T, A> {
    type Out = OverResult<K, T, A::Out>;
    type State = Window<A::Acc>;

    fn states(&mut self) -> Vec<&mut dyn NamedState<K>> {
        vec![self.units.state()]
    }

    fn kept_with(&self) -> Vec<(&'static str, bool)> {
        let rows = self.bounds.rows.is_some();
        vec![("one accumulator of each record", rows), ("one accumulator of each time", !rows)]
    }

    fn records(
        &mut self,
        time: EventTime,
        records: Peers<T>,
        cx: &mut LineContext<'_, K, Self::State>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        // Taken out, since what is in state is borrowed with the context.
        let mut window = std::mem::take(&mut cx.state()?.kept);
        let key = cx.key().clone();
        if self.bounds.rows.is_some() {
            for record in records {
                let value = self.step(time.0, self.of_one(&record), &mut window, cx)?;
                out.emit(Record::new(OverResult { key: key.clone(), record, value }, time))?;
            }
        } else {
            let mut acc = self.aggregate.create();
            records.iter().for_each(|record| self.aggregate.add(&mut acc, record));
            let value = self.step(time.0, acc, &mut window, cx)?;
            for record in records {
                out.emit(Record::new(OverResult { key: key.clone(), record, value: value.clone() }, time))?;
            }
        }
        if let (Some(forget), None) = (self.bounds.forget, window.look_at) {
            let at = time.0.saturating_add(forget).saturating_add(1);
            window.look_at = Some(at);
            wake(cx, at);
        }
        cx.state()?.kept = window;
        Ok(())
    }

    fn passed(
        &mut self,
        time: EventTime,
        cx: &mut LineContext<'_, K, Self::State>,
        _: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let Some(forget) = self.bounds.forget else { return Ok(()) };
        let window = &mut cx.state()?.kept;
        if window.look_at.is_none_or(|at| at > time.0) {
            return Ok(());
        }
        let over = window.last.saturating_add(forget).saturating_add(1);
        if over > time.0 {
            window.look_at = Some(over);
            wake(cx, over);
            return Ok(());
        }
        let mut window = std::mem::take(window);
        self.units.clear(cx, &mut window.span)
    }

    fn is_over(window: &Self::State) -> bool {
        window.span.is_empty() && window.look_at.is_none()
    }
}

#[cfg(test)]
#[path = "over_tests.rs"]
mod tests;
