//! The operator of windows that give early and late results: an accumulator per key and window, and what it has given.
// HOT: one probe per record when windows follow each other. No allocation, lock or log; the clock is read once per batch at most.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_engine::{
    Barrier, Collector, Data, EndKind, EventTime, Key, KeyHash, Keyed, Operator, OperatorContext, Record,
    Result, SideSlot, SignalPort, Watermark,
};
use weir_state::key_hash;
use weir_state::keyed::{Space, State, Tour};
use weir_state::store::Snapshot;

use crate::aggregate::Aggregate;
use crate::late::{Late, no_event_time};
use crate::opened::Opened;
use crate::progress;
use crate::window::cuts::Declared;
use crate::window::firing::{Firing, Rules};
use crate::window::panes::Panes;
use crate::window::tumbling::{AT_ONCE, not_open};
use crate::window::{Pane, TimeWindow, WindowResult};

/// The operator behind [`aggregate`](crate::prelude::WindowOps::aggregate) on a [`Firing`].
///
/// *State*: per key and window an accumulator and how many results it has given, in the table `paned_windows`, in memory as
/// far as the job's budget reaches; forgotten when the window is over for longer than the allowed lateness. With `early_after`
/// also, in memory, each key that has something new. A checkpoint writes what changed since the one before. A watermark visits the
/// windows that it ends, and those that it lets go. Size, offset or calendar cannot change while windows are open, nor whether
/// results are discarded; the rest can, but allowed lateness only to less.
///
/// *Order*: windows are given on time in the order they end, the keys of one in an order that says nothing. The time of
/// every result is the last millisecond of its window, so downstream a late one is behind the watermark.
///
/// *Late records*: those whose window has been over for longer than the allowed lateness change nothing. They go to the late
/// output if that is read, and are counted as `late_records` in any case.
pub struct PanedAggregate<K: Key, T: Data, A: Aggregate<T>> {
    window: Firing,
    aggregate: A,
    kept: Opened<Kept<K, A::Acc>>,
    watermark: Watermark,
    cx: Opened<OperatorContext>,
    late: Late<T>,
}

struct Kept<K, A> {
    rules: Rules,
    panes: Panes<K, Paned<A>>,
    /// Keys with something new, by window; only with `early_after`.
    new: Vec<(TimeWindow, KeyHash, K)>,
    /// When they are to be given.
    due: Option<i64>,
    taken: Vec<(K, Paned<A>)>,
}

/// What a key has come to in a window.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Paned<A> {
    acc: A,
    /// How many records came since the last result; what is more than fits makes no difference.
    since: u32,
    /// It is among what is to be given early by the clock.
    listed: bool,
    /// How many results were given, not counting the on-time one while `after` is not set.
    panes: u32,
    /// A record came after the window was over. The on-time result changes nothing here, so that it need only read.
    after: bool,
}

impl<A> Paned<A> {
    fn new(acc: A, after: bool) -> Self {
        Paned { acc, since: 0, listed: false, panes: 0, after }
    }

    /// True when its window gives an on-time result of it.
    fn has_on_time(&self, rules: &Rules) -> bool {
        let covers_nothing = rules.discards && self.since == 0;
        !self.after && !covers_nothing
    }

    /// A result is given: what it covers, and its number.
    fn give(&mut self, discards: bool, empty: impl FnOnce() -> A) -> (A, u32)
    where
        A: Clone,
    {
        let acc = if discards { std::mem::replace(&mut self.acc, empty()) } else { self.acc.clone() };
        let number = self.panes;
        self.panes = self.panes.saturating_add(1);
        self.since = 0;
        (acc, number)
    }
}

impl<K: Key, A: State> Kept<K, A> {
    /// Looks for what was new at the checkpoint.
    fn find_new(&mut self) -> Result<()> {
        let Kept { panes, new, .. } = self;
        let windows: Vec<(TimeWindow, Space)> = panes.windows().collect();
        for (window, space) in windows {
            panes.spaces.map(space).for_each(|key, paned| {
                if (paned.since > 0 || paned.listed) && !paned.after {
                    new.push((window, key_hash(key), key.clone()));
                }
            })?;
        }
        Ok(())
    }

    fn is_forgotten(&self, window: TimeWindow, watermark: Watermark) -> bool {
        window.last().0.saturating_add(self.rules.lateness) <= watermark.0
    }

    /// The windows that are over by `watermark` and were not by `before`, in order.
    fn over(&self, before: Watermark, watermark: Watermark) -> Vec<(TimeWindow, Space)> {
        let windows = self.panes.windows().skip_while(|(window, _)| window.is_over(before));
        windows.take_while(|(window, _)| window.is_over(watermark)).collect()
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> PanedAggregate<K, T, A> {
    pub(crate) fn new(window: Firing, aggregate: A, late: SideSlot<T>) -> Self {
        Self::with(window, aggregate, Late::new(late))
    }

    fn with(window: Firing, aggregate: A, late: Late<T>) -> Self {
        PanedAggregate {
            window,
            aggregate,
            kept: Opened(None),
            watermark: Watermark::MIN,
            cx: Opened(None),
            late,
        }
    }

    /// A record of another window than the one before it.
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
        let window = kept.panes.window_of(record.time);
        if !window.is_over(self.watermark) {
            kept.panes.map_of(window);
            return self.count_in(window, record, out);
        }
        let Record { value: Keyed { hash, key, value }, time } = record;
        if kept.is_forgotten(window, self.watermark) {
            return self.late.take(Record { value, time });
        }
        let Kept { rules, panes, .. } = kept;
        let map = panes.map_of_past(window);
        let place = map.find_or_insert_with(hash, &key, || Paned::new(self.aggregate.create(), true))?;
        let paned = map.at(place);
        if !paned.after {
            if paned.has_on_time(rules) {
                paned.give(rules.discards, || self.aggregate.create());
            }
            paned.after = true;
        }
        self.aggregate.add(&mut paned.acc, &value);
        let (acc, number) = paned.give(rules.discards, || self.aggregate.create());
        let value = WindowResult { key, window, value: self.aggregate.result(acc), pane: Pane::late(number) };
        out.emit(Record { value, time: window.last() })
    }

    /// A record of the window used last.
    #[inline]
    fn count_in(
        &mut self,
        window: TimeWindow,
        record: Record<Keyed<K, T>>,
        out: &mut impl Collector<WindowResult<K, A::Out>>,
    ) -> Result<()> {
        let Some(Kept { rules, panes, new, .. }) = &mut self.kept.0 else { return Err(not_open()) };
        let Some(map) = panes.last() else { return Err(not_open()) };
        let Keyed { hash, key, value } = record.value;
        let place = map.find_or_insert_with(hash, &key, || Paned::new(self.aggregate.create(), false))?;
        let paned = map.at(place);
        self.aggregate.add(&mut paned.acc, &value);
        paned.since = paned.since.saturating_add(1);
        if rules.after.is_some() && !paned.listed {
            paned.listed = true;
            new.push((window, hash, key.clone()));
        }
        if paned.since >= rules.every && rules.every < u32::MAX {
            let (acc, number) = paned.give(rules.discards, || self.aggregate.create());
            let value = self.aggregate.result(acc);
            let value = WindowResult { key, window, value, pane: Pane::early(number) };
            return out.emit(Record { value, time: window.last() });
        }
        Ok(())
    }

    /// Gives what is new, if it is time for that.
    fn give_new(&mut self, out: &mut impl Collector<WindowResult<K, A::Out>>) -> Result<()> {
        let (Some(kept), Some(cx)) = (&mut self.kept.0, &self.cx.0) else { return Err(not_open()) };
        let Some(after) = kept.rules.after.filter(|_| !kept.new.is_empty()) else { return Ok(()) };
        let now = cx.clock().now_ms();
        // A clock that was set back must not put it off for long.
        let due = kept.due.get_or_insert(now.saturating_add(after));
        *due = (*due).min(now.saturating_add(after));
        if now < *due {
            return Ok(());
        }
        kept.due = None;
        let Kept { rules, panes, new, .. } = kept;
        for (given, (window, hash, key)) in new.drain(..).enumerate() {
            if given % AT_ONCE == AT_ONCE - 1 {
                cx.not_cancelled()?;
            }
            let space = panes.spaces.get(window.start.0).filter(|_| !window.is_over(self.watermark));
            let Some(space) = space else { continue };
            let map = panes.spaces.map(space);
            let Some(place) = map.find(hash, &key)? else { continue };
            let paned = map.at(place);
            paned.listed = false;
            if paned.since == 0 {
                continue;
            }
            let (acc, number) = paned.give(rules.discards, || self.aggregate.create());
            let value = self.aggregate.result(acc);
            let value = WindowResult { key, window, value, pane: Pane::early(number) };
            out.emit(Record { value, time: window.last() })?;
        }
        Ok(())
    }

    /// The window is over: gives what every key has come to.
    fn fire(
        &mut self,
        window: TimeWindow,
        space: Space,
        out: &mut impl Collector<WindowResult<K, A::Out>>,
    ) -> Result<()> {
        let (Some(kept), Some(cx)) = (&mut self.kept.0, &self.cx.0) else { return Err(not_open()) };
        let forgets = kept.is_forgotten(window, self.watermark);
        let Kept { rules, panes, taken, .. } = kept;
        let aggregate = &self.aggregate;
        let (mut tour, mut more) = (Tour::default(), true);
        while more {
            more = if forgets {
                panes.pop(space, AT_ONCE, taken)?
            } else {
                panes.spaces.map(space).visit_some(&mut tour, AT_ONCE, |key, paned| {
                    taken.push((key.clone(), paned.clone()));
                })?
            };
            // Nothing of what is given may reach a channel, which would hear it too.
            cx.not_cancelled()?;
            for (key, paned) in taken.drain(..).filter(|(_, paned)| paned.has_on_time(rules)) {
                let pane = Pane::on_time(paned.panes);
                let value = WindowResult { key, window, value: aggregate.result(paned.acc), pane };
                out.emit(Record { value, time: window.last() })?;
            }
        }
        if forgets {
            panes.close(window);
        }
        panes.batch_end()
    }

    fn now_and_then(&mut self, out: &mut impl Collector<WindowResult<K, A::Out>>) -> Result<()> {
        self.give_new(out)?;
        self.kept.0.as_mut().map_or(Ok(()), |kept| kept.panes.batch_end())
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> Clone for PanedAggregate<K, T, A> {
    fn clone(&self) -> Self {
        Self::with(self.window.clone(), self.aggregate.clone(), self.late.clone())
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> fmt::Debug for PanedAggregate<K, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PanedAggregate({:?}, {:?})", self.window, self.kept)
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> Operator<Keyed<K, T>> for PanedAggregate<K, T, A> {
    type Out = WindowResult<K, A::Out>;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let rules = self.window.check()?;
        let mut layout = rules.cuts.layout();
        layout.push(("lateness_ms", Declared::AtMost(rules.lateness)));
        layout.push(("discards", Declared::Ms(rules.discards.into())));
        let panes = Panes::open(cx, "paned_windows", rules.cuts.clone(), layout)?;
        let mut kept = Kept { rules, panes, new: Vec::new(), due: None, taken: Vec::new() };
        if kept.rules.after.is_some() && cx.is_restored() {
            kept.find_new()?;
        }
        self.kept = Opened(Some(kept));
        self.watermark = progress::restored(cx)?;
        self.cx = Opened(Some(cx.clone()));
        self.late.open(cx);
        Ok(())
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, T>>]) -> Result<()> {
        self.kept.0.as_mut().ok_or_else(not_open)?.panes.prefetch(batch)
    }

    #[inline]
    fn process(&mut self, record: Record<Keyed<K, T>>, out: &mut impl Collector<Self::Out>) -> Result<()> {
        // A window that was used since the last watermark is not over.
        let last = self.kept.0.as_ref().and_then(|kept| kept.panes.last_window(record.time));
        match last {
            Some(window) => self.count_in(window, record, out),
            None => self.elsewhere(record, out),
        }
    }

    fn on_batch_end(&mut self, out: &mut impl Collector<Self::Out>) -> Result<()> {
        self.late.count();
        self.now_and_then(out)
    }

    fn on_quiet(&mut self, out: &mut impl Collector<Self::Out>) -> Result<()> {
        self.now_and_then(out)
    }

    fn wakes_at(&self) -> Option<i64> {
        self.kept.0.as_ref().and_then(|kept| kept.due)
    }

    fn on_watermark(&mut self, watermark: Watermark, out: &mut impl Collector<Self::Out>) -> Result<()> {
        // After a restore event time first comes to where it was.
        let before = self.watermark;
        if watermark <= before {
            return Ok(());
        }
        self.watermark = watermark;
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        kept.panes.forget_last();
        for (window, space) in kept.over(before, watermark) {
            self.fire(window, space, out)?;
        }
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        while let Some((window, _)) = kept.panes.first_over(watermark) {
            if !kept.is_forgotten(window, watermark) {
                break;
            }
            kept.panes.close(window);
        }
        kept.panes.batch_end()
    }

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        self.kept.0.as_mut().ok_or_else(not_open)?.panes.freeze(into)?;
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

#[cfg(test)]
#[path = "paned_tests.rs"]
mod tests;
