//! The operator of windows that give early and late results: an accumulator per key and window, and what it has given.
//! (over 400 lines: one state per key and window, which early, on-time and late results share)
// HOT: one probe per record when windows follow each other. No allocation, lock or log; the clock is read once per batch at most.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_engine::{
    Barrier, Collector, Data, EndKind, EventTime, HeldSignal, Key, KeyHash, Keyed, Operator, OperatorContext,
    Record, Result, SideSlot, SignalPort, Watermark,
};
use weir_state::key_hash;
use weir_state::keyed::{Space, Spaces, State, Table};
use weir_state::store::Snapshot;

use crate::aggregate::Aggregate;
use crate::late::{Late, no_event_time};
use crate::opened::Opened;
use crate::progress;
use crate::window::cuts::{Declared, check_kept, check_start};
use crate::window::firing::{Firing, Rules};
use crate::window::held::{Held, gives_in_parts};
use crate::window::panes::Panes;
use crate::window::tumbling::{AT_ONCE, not_open};
use crate::window::{Pane, TimeWindow, WindowResult};

/// The operator behind [`aggregate`](crate::prelude::WindowOps::aggregate) on a [`Firing`].
///
/// *State*: per key and window an accumulator and how many results it has given, in the table `paned_windows`, in memory as
/// far as the job's budget reaches; when the window is given, in `given_windows`, until it is over for longer than the allowed lateness.
/// With `early_after` also, in memory, each key that has something new. A checkpoint writes what changed since the one before. A
/// watermark visits the windows that it ends, and those that it lets go. Size, offset or calendar cannot change while windows are open, nor whether
/// results are discarded; the rest can, but allowed lateness only to less.
///
/// *Order*: windows are given on time in the order they end, the keys of one in an order that says nothing. The time of
/// every result is the last millisecond of its window, so downstream a late one is behind the watermark. Many results are given in
/// parts, as by a [`TumblingAggregate`](crate::window::TumblingAggregate); that of a key comes sooner when a late record of it does.
///
/// *Late records*: those whose window has been over for longer than the allowed lateness change nothing. They go to the late
/// output if that is read, and are counted as `late_records` in any case.
///
/// # Examples
/// A test drives it by hand, and moves both clocks:
/// ```
/// # use std::{sync::Arc, time::Duration};
/// # use weir_operators::{prelude::*, window::Window};
/// # use weir_engine::{Keyed, SideSlot, testkit::{ManualClock, OpHarness, context_by}};
/// let clock = ManualClock::at(0);
/// let cx = context_by(Arc::new(clock.clone()), "hourly", 0, 1);
/// let window = Tumbling::of(hours(1)).early_after(seconds(10)).allow_lateness(hours(1));
/// let mut harness = OpHarness::with(window.operator(count(), SideSlot::default()), &cx)?;
/// # let keyed = |key: u64, value: i64| Keyed { hash: weir_state::key_hash(&key), key, value };
/// harness.send(keyed(7, 0), 0)?;
/// harness.pause(&clock, Duration::from_secs(10))?;
/// harness.watermark(3_600_000)?;
/// harness.send(keyed(7, 0), 1)?;
/// let given: Vec<_> = harness.take_values().iter().map(|r| (r.pane.to_string(), r.value)).collect();
/// assert_eq!(given, [("0 (early)".to_owned(), 1), ("1 (on time)".to_owned(), 1), ("2 (late)".to_owned(), 2)]);
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
pub struct PanedAggregate<K: Key, T: Data, A: Aggregate<T>> {
    window: Firing,
    aggregate: A,
    kept: Opened<Kept<K, A::Acc>>,
    watermark: Watermark,
    held: Held,
    cx: Opened<OperatorContext>,
    late: Late<T>,
}

struct Kept<K, A> {
    rules: Rules,
    panes: Panes<K, Paned<A>>,
    /// By start, what is kept for late records of windows that are over, of each key from its result on time on. What is given moves,
    /// so that what is left to give is what lies in `panes`, whenever a checkpoint is taken.
    given: Spaces<K, Paned<A>>,
    /// Keys with something new, by window; only with `early_after`.
    new: Vec<(TimeWindow, KeyHash, K)>,
    /// Those of windows that are over are forgotten when there are so many.
    sweep_at: usize,
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
    /// How many results were given.
    panes: u32,
    /// It is among what was given on time, or would have been.
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

    /// Forgets what was new in windows that are over: those give it on time. Where windows are short beside the time between early results
    /// there would be far more of that than of the rest.
    fn sweep(&mut self, watermark: Watermark) {
        if self.new.len() < self.sweep_at {
            return;
        }
        self.new.retain(|(window, ..)| !window.is_over(watermark));
        self.sweep_at = AT_ONCE.max(2 * self.new.len());
        if self.new.is_empty() {
            self.due = None;
        }
    }

    fn is_forgotten(&self, window: TimeWindow, watermark: Watermark) -> bool {
        window.last().0.saturating_add(self.rules.lateness) <= watermark.0
    }

    /// Opens windows again that were given where event time was further: now they are not over.
    fn reopen(&mut self, watermark: Watermark, cx: &OperatorContext) -> Result<()> {
        let windows = self.given.namespaces().map(|(start, space)| (self.panes.window_from(start), space));
        let windows: Vec<_> = windows.filter(|(window, _)| !window.is_over(watermark)).collect();
        let mut taken = std::mem::take(&mut self.taken);
        for (window, space) in windows {
            let mut more = true;
            while more {
                more = self.given.map(space).pop(AT_ONCE, &mut taken)?;
                let map = self.panes.map_of_past(window);
                for (key, paned) in taken.drain(..) {
                    map.insert(key_hash(&key), key, Paned { after: false, ..paned })?;
                }
                self.moved_some(cx)?;
            }
            self.given.close(window.start.0);
        }
        self.taken = taken;
        Ok(())
    }

    /// Checkpoints of former versions have what was given among what is open. Where no signal waits there is nothing else of windows that
    /// are over.
    fn put_given_aside(
        &mut self,
        watermark: Watermark,
        cx: &OperatorContext,
        empty: impl Fn() -> A,
    ) -> Result<()> {
        let mut taken = std::mem::take(&mut self.taken);
        while let Some((window, space)) = self.panes.first_over(watermark) {
            let more = self.panes.pop(space, AT_ONCE, &mut taken)?;
            let aside = self.given.open(window.start.0);
            let map = self.given.map(aside);
            for (key, mut paned) in taken.drain(..) {
                if paned.has_on_time(&self.rules) {
                    paned.give(self.rules.discards, &empty);
                }
                map.insert(key_hash(&key), key, Paned { after: true, ..paned })?;
            }
            if !more {
                self.panes.close(window);
            }
            self.moved_some(cx)?;
        }
        self.taken = taken;
        Ok(())
    }

    /// What is moved from one table to the other is more than memory has room for, and takes a while.
    fn moved_some(&mut self, cx: &OperatorContext) -> Result<()> {
        self.batch_end()?;
        cx.not_cancelled()
    }

    /// Fetches what is kept of the keys of these records, in windows that are over too.
    fn prefetch<T>(&mut self, records: &[Record<Keyed<K, T>>]) -> Result<()> {
        self.panes.prefetch(records)?;
        if self.given.namespaces().next().is_some() {
            self.panes.prefetch_in(&mut self.given, records)?;
        }
        Ok(())
    }

    /// Gives what a key has come to in a window that is over, if there is a result on time of it, and keeps it for late records.
    fn on_time<T, G: Aggregate<T, Acc = A>>(
        &mut self,
        aggregate: &G,
        window: TimeWindow,
        watermark: Watermark,
        (key, mut paned): (K, Paned<A>),
        out: &mut impl Collector<WindowResult<K, G::Out>>,
    ) -> Result<()> {
        let has_on_time = paned.has_on_time(&self.rules);
        let mut emit = |key, acc, number| {
            let value =
                WindowResult { key, window, value: aggregate.result(acc), pane: Pane::on_time(number) };
            out.emit(Record { value, time: window.last() })
        };
        if self.is_forgotten(window, watermark) {
            return if has_on_time { emit(key, paned.acc, paned.panes) } else { Ok(()) };
        }
        if has_on_time {
            let (acc, number) = paned.give(self.rules.discards, || aggregate.create());
            emit(key.clone(), acc, number)?;
        }
        paned.after = true;
        let space = self.given.open(window.start.0);
        Ok(self.given.map(space).insert(key_hash(&key), key, paned)?)
    }

    /// Forgets what no late record can change any more.
    fn forget(&mut self, watermark: Watermark) {
        loop {
            let first = self.given.namespaces().next().map(|(start, _)| start);
            let Some(start) = first else { break };
            if !self.is_forgotten(self.panes.window_from(start), watermark) {
                break;
            }
            self.given.close(start);
        }
    }

    fn batch_end(&mut self) -> Result<()> {
        self.panes.batch_end()?;
        Ok(self.given.batch_end()?)
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
            held: Held::default(),
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
        if let Some(space) = kept.panes.spaces.get(window.start.0) {
            // The window is being given. What comes on time comes before what is late: the turn of this key is now.
            if let Some(paned) = kept.panes.spaces.map(space).take(hash, &key)? {
                kept.on_time(&self.aggregate, window, self.watermark, (key.clone(), paned), out)?;
            }
        }
        let Kept { rules, given, .. } = kept;
        let space = given.open(window.start.0);
        let map = given.map(space);
        let place = map.find_or_insert_with(hash, &key, || Paned::new(self.aggregate.create(), true))?;
        let paned = map.at(place);
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
        // Of a checkpoint of a former version it may be true, where event time was further.
        paned.after = false;
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
            kept.sweep(self.watermark);
            return Ok(());
        }
        (kept.due, kept.sweep_at) = (None, AT_ONCE);
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

    /// Gives what this turn may of what comes before the first signal that waits; that signal when all of it was given.
    #[inline(never)]
    fn give(&mut self, out: &mut impl Collector<WindowResult<K, A::Out>>) -> Result<Option<HeldSignal>> {
        let Some(until) = self.held.until() else { return Ok(self.held.next()) };
        let (Some(kept), Some(cx)) = (&mut self.kept.0, &self.cx.0) else { return Err(not_open()) };
        let mut moved = 0;
        while let Some((window, space)) = kept.panes.first_over(until) {
            if self.held.is_spent() {
                return Ok(None);
            }
            let mut taken = std::mem::take(&mut kept.taken);
            let more = kept.panes.pop(space, self.held.at_once(), &mut taken)?;
            self.held.gave(taken.len() + 1);
            moved += taken.len() + 1;
            // Nothing of what is given may reach a channel, which would hear it too.
            cx.not_cancelled()?;
            for taken in taken.drain(..) {
                kept.on_time(&self.aggregate, window, self.watermark, taken, out)?;
            }
            kept.taken = taken;
            if !more {
                kept.panes.close(window);
            }
            if moved > AT_ONCE {
                // At the end of the input all is given in one turn, and what stays for late records may be more than memory has room for.
                kept.batch_end()?;
                moved = 0;
            }
        }
        kept.batch_end()?;
        Ok(self.held.next())
    }

    fn now_and_then(&mut self, out: &mut impl Collector<WindowResult<K, A::Out>>) -> Result<()> {
        self.give_new(out)?;
        self.kept.0.as_mut().map_or(Ok(()), Kept::batch_end)
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
    const HOLDS_SIGNALS: bool = true;
    const RELEASES_BETWEEN_BATCHES: bool = true;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let rules = self.window.check()?;
        let mut layout = rules.cuts.layout();
        layout.push(("lateness_ms", Declared::AtMost(rules.lateness)));
        layout.push(("discards", Declared::Ms(rules.discards.into())));
        let given = cx.store()?.spaces(Table::new("given_windows"))?;
        if let Some((start, _)) = given.namespaces().next() {
            check_kept(cx, &layout, start)?;
        }
        given.namespaces().try_for_each(|(start, _)| check_start(cx, &rules.cuts, start))?;
        let panes = Panes::open(cx, "paned_windows", rules.cuts.clone(), layout)?;
        let mut kept =
            Kept { rules, panes, given, new: Vec::new(), sweep_at: AT_ONCE, due: None, taken: Vec::new() };
        self.watermark = progress::restored(cx)?;
        self.held = Held::restored(cx, self.watermark);
        if cx.is_restored() {
            kept.reopen(self.watermark, cx)?;
            if !self.held.waits() {
                kept.put_given_aside(self.watermark, cx, || self.aggregate.create())?;
            }
        }
        if kept.rules.after.is_some() && cx.is_restored() {
            kept.find_new()?;
        }
        self.kept = Opened(Some(kept));
        self.cx = Opened(Some(cx.clone()));
        self.late.open(cx);
        Ok(())
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, T>>]) -> Result<()> {
        self.held.comes(batch.len());
        self.kept.0.as_mut().ok_or_else(not_open)?.prefetch(batch)
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
        self.held.batch_end();
        self.now_and_then(out)
    }

    fn on_quiet(&mut self, out: &mut impl Collector<Self::Out>) -> Result<()> {
        self.held.quiet();
        self.now_and_then(out)
    }

    fn wakes_at(&self) -> Option<i64> {
        self.kept.0.as_ref().and_then(|kept| kept.due)
    }

    fn on_watermark(&mut self, watermark: Watermark, _: &mut impl Collector<Self::Out>) -> Result<()> {
        // After a restore event time first comes to where it was.
        self.watermark = self.watermark.max(watermark);
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        kept.panes.forget_last_if_over(self.watermark);
        kept.forget(self.watermark);
        Ok(())
    }

    fn hold(&mut self, signal: HeldSignal) {
        self.held.hold(signal);
    }

    gives_in_parts!();

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        kept.panes.freeze(into)?;
        kept.given.freeze(into)?;
        self.held.keep(self.watermark, into);
        Ok(())
    }
}

#[cfg(test)]
#[path = "paned_tests.rs"]
mod tests;
