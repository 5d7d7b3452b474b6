//! The operator of windows made of slices: each record goes into one slice, and windows are merged of these.
// HOT: one probe per record while slices follow each other. No allocation, lock, log or clock.

mod fronts;
mod kept;

use std::fmt;

use weir_engine::{
    Barrier, Collector, Data, EndKind, EventTime, HeldSignal, Key, Keyed, Operator, OperatorContext, Record,
    Result, SideSlot, SignalPort, Watermark,
};
use weir_state::store::Snapshot;

use crate::aggregate::Aggregate;
use crate::late::{Late, no_event_time};
use crate::opened::Opened;
use crate::progress;
use crate::window::held::{Held, gives_in_parts};
use crate::window::slices::{Cumulate, Slicing, Sliding};
use crate::window::tumbling::not_open;
use crate::window::{Pane, WindowError, WindowResult};
use fronts::Front;
use kept::Kept;

/// What a user wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sliced {
    Sliding(Sliding),
    Cumulate(Cumulate),
}

impl Sliced {
    pub(crate) fn check(&self) -> Result<Slicing, WindowError> {
        match self {
            Sliced::Sliding(sliding) => sliding.check(),
            Sliced::Cumulate(cumulate) => cumulate.check(),
        }
    }
}

/// The operator behind [`aggregate`](crate::prelude::WindowOps::aggregate) on [`Sliding`] and [`Cumulate`] windows.
///
/// Time is cut into slices, so that every boundary of a window is one of a slice: an hour each for windows of seven days
/// that slide by an hour. A record goes into one slice, however many windows it is in.
///
/// *State*: an accumulator per key and slice in the table `slices`; and per key what its slices come to in the window that
/// was given last, in `running`: one accumulator for a window that cumulates, and for one that slides up to as many as the
/// key has slices, so that a slide merges each slice twice at most, however many a window has. Both are in memory as far as the job's
/// budget reaches. A slice is forgotten when no window that it is in can change any more. A checkpoint writes what changed
/// since the one before. A watermark that ends a window visits the keys that have a record in it, and no others. Whether they
/// slide or cumulate, size, slide or step, and offset cannot change while windows are open; allowed lateness can become less.
///
/// *Order*: windows are given in the order they end, the keys of one in an order that says nothing. The time of a result is
/// the last millisecond of its window. A watermark that ends several windows gives each. Many results are given in parts, as by a
/// [`TumblingAggregate`](crate::window::TumblingAggregate): key groups move on to the next window, some at a time. How far each has come is in the
/// checkpoint, so that each goes on from there, whatever subtask it is of then. A late record that comes between two parts brings about the rest.
///
/// *Late records*: one that is behind the watermark counts in those of its windows that are not over. With
/// `allow_lateness` it counts in those too that are over for no longer than that: each gives a new result of the key at once
/// ([`Timing::Late`](crate::window::Timing::Late)), whose time is behind the watermark. One that changes no window goes to the late output
/// if that is read, and is counted as `late_records` in any case. What is kept for late records is kept that much longer.
///
/// # Examples
/// A test drives it by hand, and moves event time:
/// ```
/// # use weir_operators::{prelude::*, window::Window};
/// # use weir_engine::{Keyed, SideSlot, testkit::OpHarness};
/// let window = Sliding::of(seconds(10)).every(seconds(5)).emit_when_emptied();
/// let mut harness = OpHarness::new(window.operator(count(), SideSlot::default()))?;
/// # let keyed = |key: u64, value: i64| Keyed { hash: weir_state::key_hash(&key), key, value };
/// harness.batch([(keyed(7, 0), 3_000), (keyed(7, 0), 6_000)])?;
/// harness.watermark(60_000)?;
/// let counts: Vec<_> = harness.take_values().iter().map(|r| (r.window.end.millis(), r.value)).collect();
/// assert_eq!(counts, [(5_000, 1), (10_000, 2), (15_000, 1), (20_000, 0)]);
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
pub struct SlicedAggregate<K: Key, T: Data, A: Aggregate<T>> {
    window: Sliced,
    aggregate: A,
    kept: Opened<Kept<K, A::Acc>>,
    /// What is taken out to be given.
    taken: Vec<(K, A::Acc)>,
    watermark: Watermark,
    held: Held,
    cx: Opened<OperatorContext>,
    late: Late<T>,
}

impl<K: Key, T: Data, A: Aggregate<T>> SlicedAggregate<K, T, A> {
    pub(crate) fn new(window: Sliced, aggregate: A, late: SideSlot<T>) -> Self {
        Self::with(window, aggregate, Late::new(late))
    }

    fn with(window: Sliced, aggregate: A, late: Late<T>) -> Self {
        SlicedAggregate {
            window,
            aggregate,
            kept: Opened(None),
            taken: Vec::new(),
            watermark: Watermark::MIN,
            held: Held::default(),
            cx: Opened(None),
            late,
        }
    }

    /// A record of another slice than the one before it.
    #[inline(never)]
    fn elsewhere(
        &mut self,
        record: Record<Keyed<K, T>>,
        out: &mut impl Collector<WindowResult<K, A::Out>>,
    ) -> Result<()> {
        if record.time == EventTime::NONE {
            return Err(no_event_time());
        }
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        let slice = kept.slices.window_of(record.time);
        let start = i128::from(slice.start.0);
        let front = kept.fronts.of(record.value.hash);
        let reached = front.reached(self.watermark);
        if kept.slicing.is_forgotten(kept.slicing.last_end(start), reached) {
            let Record { value: Keyed { value, .. }, time } = record;
            return self.late.take(Record { value, time });
        }
        let over = kept.slicing.position(reached);
        if start < over {
            if front.position < over || kept.is_ready() {
                // It comes behind windows that are still to be given, and must not be in them.
                self.finish(out)?;
            }
            return self.behind(record, out);
        }
        let Keyed { hash, key, value } = record.value;
        let is_open = start >= kept.closed;
        let map = if is_open { kept.slices.map_of(slice) } else { kept.slices.map_of_past(slice) };
        let acc = map.get_or_insert_with(hash, key, || self.aggregate.create())?;
        self.aggregate.add(acc, &value);
        Ok(())
    }

    /// A record of a slice that was merged already. Some of its windows are still to come; others were given, and are given
    /// again if they still may change.
    fn behind(
        &mut self,
        record: Record<Keyed<K, T>>,
        out: &mut impl Collector<WindowResult<K, A::Out>>,
    ) -> Result<()> {
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        let Record { value: Keyed { hash, key, value }, time } = record;
        let slicing = kept.slicing;
        let slice = kept.slices.window_of(time);
        let start = i128::from(slice.start.0);
        let front = kept.fronts.of(hash);
        let (position, watermark) = (front.position, front.reached(self.watermark));
        let given = std::iter::successors(Some(slicing.first_end(start)), |end| Some(slicing.next_end(*end)))
            .take_while(|end| *end <= position.min(slicing.last_end(start)));
        let again: Vec<i128> = given.filter(|end| !slicing.is_forgotten(*end, watermark)).collect();
        let span = again.first().zip(again.last()).map(|(first, last)| (slicing.begin(*first), *last));
        let before = span.map(|(from, to)| kept.slices_of(from, to, hash, &key)).transpose()?;

        if !slicing.cumulates() || slicing.is_lenient() {
            let slice = kept.slices.map_of_past(slice);
            let acc = slice.get_or_insert_with(hash, key.clone(), || self.aggregate.create())?;
            self.aggregate.add(acc, &value);
        }
        if slicing.last_end(start) > position {
            kept.add_behind(&self.aggregate, position, hash, &key, &value)?;
        }

        let (Some((from, to)), Some(before)) = (span, before) else { return Ok(()) };
        let now = kept.slices_of(from, to, hash, &key)?;
        for end in again {
            let inside = |slice: &&(i64, A::Acc)| (slicing.begin(end)..end).contains(&i128::from(slice.0));
            let had = before.iter().any(|slice| inside(&slice));
            let mut acc = self.aggregate.create();
            now.iter().filter(inside).for_each(|(_, slice)| self.aggregate.merge(&mut acc, slice.clone()));
            let number = kept.next_late_pane(end, hash, &key, had)?;
            let window = slicing.window(end);
            let value = self.aggregate.result(acc);
            let value = WindowResult { key: key.clone(), window, value, pane: Pane::late(number) };
            out.emit(Record { value, time: window.last() })?;
        }
        Ok(())
    }

    /// Gives what this turn may of what comes before the first signal that waits; that signal when all of it was given.
    #[inline(never)]
    fn give(&mut self, out: &mut impl Collector<WindowResult<K, A::Out>>) -> Result<Option<HeldSignal>> {
        let Some(until) = self.held.until() else { return Ok(self.held.next()) };
        let all = self.give_until(|_| until, until, out)?;
        Ok(if all { self.held.next() } else { None })
    }

    /// Gives all that is over, at once.
    #[cold]
    fn finish(&mut self, out: &mut impl Collector<WindowResult<K, A::Out>>) -> Result<()> {
        let watermark = self.watermark;
        while !self.give_until(|front| front.reached(watermark), watermark, out)? {
            self.held.quiet();
        }
        Ok(())
    }

    /// Gives the windows that are over; false when there are more results than this turn may give. `by`: by what they are over, group by
    /// group; `watermark`: what no group is behind of then.
    fn give_until(
        &mut self,
        by: impl Fn(&Front) -> Watermark,
        watermark: Watermark,
        out: &mut impl Collector<WindowResult<K, A::Out>>,
    ) -> Result<bool> {
        let (Some(kept), Some(cx)) = (&mut self.kept.0, &self.cx.0) else { return Err(not_open()) };
        loop {
            while kept.is_ready() {
                if self.held.is_spent() {
                    return Ok(false);
                }
                let end = kept.take_ready(self.held.at_once(), &mut self.taken)?;
                self.held.gave(self.taken.len() + 1);
                let window = kept.slicing.window(end);
                // Nothing of what is given may reach a channel, which would hear it too.
                cx.not_cancelled()?;
                for (key, total) in self.taken.drain(..) {
                    let value = self.aggregate.result(total);
                    let value = WindowResult { key, window, value, pane: Pane::ONLY };
                    out.emit(Record { value, time: window.last() })?;
                }
            }
            let Some(run) = kept.next_run(&by) else { break };
            if self.held.is_spent() {
                return Ok(false);
            }
            self.held.gave(kept.cost());
            kept.move_on(run, &self.aggregate)?;
        }
        kept.pass(by, watermark)?;
        Ok(true)
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> Clone for SlicedAggregate<K, T, A> {
    fn clone(&self) -> Self {
        Self::with(self.window, self.aggregate.clone(), self.late.clone())
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> fmt::Debug for SlicedAggregate<K, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlicedAggregate({:?}, {:?})", self.window, self.kept)
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> Operator<Keyed<K, T>> for SlicedAggregate<K, T, A> {
    type Out = WindowResult<K, A::Out>;
    const HOLDS_SIGNALS: bool = true;
    const RELEASES_BETWEEN_BATCHES: bool = true;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let slicing = self.window.check()?;
        self.watermark = progress::restored(cx)?;
        self.held = Held::restored(cx, self.watermark).of_each(slicing.windows_each());
        self.kept = Opened(Some(Kept::open(cx, slicing, self.watermark)?));
        self.cx = Opened(Some(cx.clone()));
        self.late.open(cx);
        Ok(())
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, T>>]) -> Result<()> {
        self.held.comes(batch.len());
        self.kept.0.as_mut().ok_or_else(not_open)?.slices.prefetch(batch)
    }

    #[inline]
    fn process(&mut self, record: Record<Keyed<K, T>>, out: &mut impl Collector<Self::Out>) -> Result<()> {
        // A slice that was used since the last watermark is in no window that is over.
        let last = self.kept.0.as_mut().and_then(|kept| kept.slices.last_if_of(record.time));
        let Some(slice) = last else { return self.elsewhere(record, out) };
        let Keyed { hash, key, value } = record.value;
        let acc = slice.get_or_insert_with(hash, key, || self.aggregate.create())?;
        self.aggregate.add(acc, &value);
        Ok(())
    }

    fn on_batch_end(&mut self, _: &mut impl Collector<Self::Out>) -> Result<()> {
        self.late.count();
        self.held.batch_end();
        self.kept.0.as_mut().map_or(Ok(()), Kept::batch_end)
    }

    fn on_quiet(&mut self, _: &mut impl Collector<Self::Out>) -> Result<()> {
        self.held.quiet();
        self.kept.0.as_mut().map_or(Ok(()), Kept::batch_end)
    }

    fn on_watermark(&mut self, watermark: Watermark, _: &mut impl Collector<Self::Out>) -> Result<()> {
        // After a restore event time first comes to where it was.
        self.watermark = self.watermark.max(watermark);
        self.kept.0.as_mut().ok_or_else(not_open)?.event_time(self.watermark);
        Ok(())
    }

    fn hold(&mut self, signal: HeldSignal) {
        self.held.hold(signal);
    }

    /// A record may bring many results about: where more windows are waiting to be given than that, their results go first.
    fn is_full(&self) -> bool {
        self.held.has_many()
    }

    gives_in_parts!();

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        self.kept.0.as_mut().ok_or_else(not_open)?.freeze(self.watermark, into)?;
        self.held.keep(self.watermark, into);
        Ok(())
    }
}

/// For tests: how many slices are open.
#[cfg(test)]
impl<K: Key, T: Data, A: Aggregate<T>> SlicedAggregate<K, T, A> {
    fn open_slices(&self) -> usize {
        self.kept.0.as_ref().map_or(0, |kept| kept.slices.windows().count())
    }
}

#[cfg(test)]
#[path = "sliced_tests.rs"]
mod tests;
