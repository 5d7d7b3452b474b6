//! The operator of windows made of slices: each record goes into one slice, and windows are merged of these.
// HOT: one probe per record while slices follow each other. No allocation, lock, log or clock.

mod kept;

use std::fmt;

use weir_engine::{
    Barrier, Collector, Data, EndKind, EventTime, Key, Keyed, Operator, OperatorContext, Record, Result,
    SideSlot, SignalPort, Watermark,
};
use weir_state::key_hash;
use weir_state::keyed::Tour;
use weir_state::store::Snapshot;

use crate::aggregate::Aggregate;
use crate::late::{Late, no_event_time};
use crate::opened::Opened;
use crate::progress;
use crate::window::slices::{Cumulate, Slicing, Sliding};
use crate::window::tumbling::{AT_ONCE, not_open};
use crate::window::{Pane, WindowError, WindowResult};
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
/// the last millisecond of its window. A watermark that ends several windows gives each.
///
/// *Late records*: one that is behind the watermark counts in those of its windows that are not over. With
/// `allow_lateness` it counts in those too that are over for no longer than that: each gives a new result of the key at once
/// ([`Timing::Late`](crate::window::Timing::Late)), whose time is behind the watermark. One that changes no window goes to the late output
/// if that is read, and is counted as `late_records` in any case. What is kept for late records is kept that much longer.
pub struct SlicedAggregate<K: Key, T: Data, A: Aggregate<T>> {
    window: Sliced,
    aggregate: A,
    kept: Opened<Kept<K, A::Acc>>,
    watermark: Watermark,
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
            watermark: Watermark::MIN,
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
        if kept.slicing.is_forgotten(kept.slicing.last_end(start), self.watermark) {
            let Record { value: Keyed { value, .. }, time } = record;
            return self.late.take(Record { value, time });
        }
        if start < kept.position {
            return self.behind(record, out);
        }
        let Keyed { hash, key, value } = record.value;
        let acc = kept.slices.map_of(slice).get_or_insert_with(hash, key, || self.aggregate.create())?;
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
        let (position, watermark) = (kept.position, self.watermark);
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
            kept.add_behind(&self.aggregate, hash, &key, &value)?;
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

    /// The window that ends there is over.
    fn fire(&mut self, end: i128, out: &mut impl Collector<WindowResult<K, A::Out>>) -> Result<()> {
        let (Some(kept), Some(cx)) = (&mut self.kept.0, &self.cx.0) else { return Err(not_open()) };
        let aggregate = &self.aggregate;
        kept.move_to(end, aggregate)?;
        let window = kept.slicing.window(end);
        let (mut tour, mut more, mut emptied) = (Tour::default(), true, Vec::new());
        while more {
            let taken = &mut kept.taken;
            more = kept.running.visit_some(&mut tour, AT_ONCE, |key, running| {
                let total = running.total(aggregate).unwrap_or_else(|| {
                    emptied.push(key.clone());
                    aggregate.create()
                });
                taken.push((key.clone(), total));
            })?;
            // Nothing of what is given may reach a channel, which would hear it too.
            cx.not_cancelled()?;
            for (key, total) in kept.taken.drain(..) {
                let value = WindowResult { key, window, value: aggregate.result(total), pane: Pane::ONLY };
                out.emit(Record { value, time: window.last() })?;
            }
        }
        emptied.iter().for_each(|key| kept.running.remove(key_hash(key), key));
        kept.was_given(end)
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

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.watermark = progress::restored(cx)?;
        self.kept = Opened(Some(Kept::open(cx, self.window.check()?, self.watermark)?));
        self.cx = Opened(Some(cx.clone()));
        self.late.open(cx);
        Ok(())
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, T>>]) -> Result<()> {
        self.kept.0.as_mut().ok_or_else(not_open)?.slices.prefetch(batch)
    }

    #[inline]
    fn process(&mut self, record: Record<Keyed<K, T>>, out: &mut impl Collector<Self::Out>) -> Result<()> {
        // A slice that was used since the last watermark cannot be merged already.
        let last = self.kept.0.as_mut().and_then(|kept| kept.slices.last_if_of(record.time));
        let Some(slice) = last else { return self.elsewhere(record, out) };
        let Keyed { hash, key, value } = record.value;
        let acc = slice.get_or_insert_with(hash, key, || self.aggregate.create())?;
        self.aggregate.add(acc, &value);
        Ok(())
    }

    fn on_batch_end(&mut self, _: &mut impl Collector<Self::Out>) -> Result<()> {
        self.late.count();
        self.kept.0.as_mut().map_or(Ok(()), Kept::batch_end)
    }

    fn on_quiet(&mut self, _: &mut impl Collector<Self::Out>) -> Result<()> {
        self.kept.0.as_mut().map_or(Ok(()), Kept::batch_end)
    }

    fn on_watermark(&mut self, watermark: Watermark, out: &mut impl Collector<Self::Out>) -> Result<()> {
        // After a restore event time first comes to where it was.
        self.watermark = self.watermark.max(watermark);
        loop {
            let (Some(kept), Some(cx)) = (&mut self.kept.0, &self.cx.0) else { return Err(not_open()) };
            cx.not_cancelled()?;
            match kept.next_end().filter(|end| kept.slicing.is_over(*end, self.watermark)) {
                Some(end) => self.fire(end, out)?,
                None => break kept.pass(self.watermark),
            }
        }
    }

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        self.kept.0.as_mut().ok_or_else(not_open)?.freeze(into)?;
        progress::keep(self.watermark, into);
        Ok(())
    }

    fn on_end(&mut self, _: EndKind, _: &mut impl Collector<Self::Out>) -> Result<()> {
        self.late.count();
        Ok(())
    }

    fn sides(&mut self) -> Option<&mut dyn SignalPort> {
        self.late.signals()
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
