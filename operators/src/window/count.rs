//! Windows that time does not end: all records of a key, or so many of them at a time.
// HOT: one probe per record. No allocation, lock, log or clock.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_engine::{
    Barrier, Collector, Data, EndKind, EventTime, HeldSignal, Key, Keyed, Operator, OperatorContext, Record,
    Result, SideSlot, SignalPort, Watermark,
};
use weir_state::keyed::{StateMap, Table};
use weir_state::store::Snapshot;

use crate::aggregate::Aggregate;
use crate::late::Late;
use crate::opened::Opened;
use crate::window::giving::{Giving, When};
use crate::window::held::{Held, gives_in_parts};
use crate::window::tumbling::not_open;
use crate::window::{Pane, TimeWindow, WindowError, WindowResult};

/// So many records of a key at a time, in the order they come; event time does not matter.
///
/// A window is given with its last record; what is incomplete when the stream ends for good is given then. The bounds of a
/// result are the least time of its records and the greatest, its time is the greatest.
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
/// # let job = weir_engine::Job::named("doc").parallelism(1);
/// # let prices = job.source("in", ScriptSource::of([(("a", 7.5), 0)])).without_event_time();
/// prices.key_by("by-item", |(item, _)| item.to_string())
///     .window(CountWindow::of(10))
///     .aggregate("highest-of-ten", max(|(_, price): &(&str, f64)| *price))
///     .sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountWindow {
    records: u32,
}

impl CountWindow {
    /// Windows of so many records, 1 at least. 0 fails the start of the job.
    pub fn of(records: u32) -> Self {
        CountWindow { records }
    }

    /// How many records are in a window, if that can be.
    pub(crate) fn records(&self) -> Result<u32, WindowError> {
        self.check().map(|counting| counting.every)
    }

    /// Every result is of another window.
    pub(crate) fn gives_updates(&self) -> bool {
        false
    }

    pub(crate) fn check(&self) -> Result<Counting, WindowError> {
        let every = Some(self.records).filter(|n| *n > 0).ok_or(WindowError::Zero { name: "count" })?;
        Ok(Counting { every, ends: true, discards: true })
    }
}

/// One window per key, of all its records. It is given when the stream ends for good, and before that as often as
/// `early_every` says.
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
/// # let job = weir_engine::Job::named("doc").parallelism(1);
/// # let words = job.source("in", ScriptSource::of([("a", 0)])).without_event_time();
/// words.key_by("by-word", |word| word.to_string())
///     .window(Global::new().early_every(100))
///     .aggregate("counts", count())
///     .sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Global {
    giving: Giving,
}

impl Global {
    /// A window without an end.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives a result of a key after every `records` of it.
    #[must_use]
    pub fn early_every(mut self, records: u32) -> Self {
        self.giving.every = Some(records);
        self
    }

    /// Each result covers only what has come since the one before; there is none when nothing has.
    #[must_use]
    pub fn discarding(mut self) -> Self {
        self.giving.discards = true;
        self
    }

    pub(crate) fn gives_updates(&self) -> bool {
        self.giving.gives_updates()
    }

    pub(crate) fn gives_parts(&self) -> bool {
        self.giving.gives_parts()
    }

    pub(crate) fn check(&self) -> Result<Counting, WindowError> {
        let When { every, discards, .. } = self.giving.check()?;
        Ok(Counting { every, ends: false, discards })
    }
}

/// What a user wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endless {
    Count(CountWindow),
    Global(Global),
}

/// Checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counting {
    every: u32,
    /// A result ends the window.
    ends: bool,
    discards: bool,
}

/// What a key has come to.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Counted<A> {
    acc: A,
    since: u32,
    panes: u32,
    least: i64,
    greatest: i64,
}

/// The operator behind [`aggregate`](crate::prelude::WindowOps::aggregate) on [`CountWindow`] and [`Global`].
///
/// *State*: an accumulator per key in the table `counted`, in memory as far as the job's budget reaches: of a count window
/// until it is given, of a global one as long as the job. A checkpoint writes what changed since the one before. The
/// numbers may change between lives of a job.
///
/// *Order*: results come with the record that they end with; those at the end of the stream in an order that says nothing, many in parts, as by
/// a [`TumblingAggregate`](crate::window::TumblingAggregate).
///
/// *Late records* there are none.
///
/// # Examples
/// A test drives it by hand:
/// ```
/// # use weir_operators::{prelude::*, window::Window};
/// # use weir_engine::{EndKind, Keyed, SideSlot, testkit::OpHarness};
/// let mut harness = OpHarness::new(CountWindow::of(2).operator(sum(|n: &i64| *n), SideSlot::default()))?;
/// # let keyed = |key: u64, value: i64| Keyed { hash: weir_state::key_hash(&key), key, value };
/// harness.batch([(keyed(7, 1), 0), (keyed(7, 2), 5), (keyed(7, 4), 6)])?;
/// harness.end(EndKind::Flush)?;
/// let sums: Vec<_> = harness.take_values().iter().map(|r| r.value).collect();
/// assert_eq!(sums, [3, 4]);
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
pub struct CountAggregate<K: Key, T: Data, A: Aggregate<T>> {
    window: Endless,
    aggregate: A,
    rules: Counting,
    table: Opened<StateMap<K, Counted<A::Acc>>>,
    /// What is taken out and not yet given.
    taken: Vec<(K, Counted<A::Acc>)>,
    held: Held,
    cx: Opened<OperatorContext>,
    /// Nothing is ever given into it; somebody may read it all the same.
    late: Late<T>,
}

impl<K: Key, T: Data, A: Aggregate<T>> CountAggregate<K, T, A> {
    pub(crate) fn new(window: Endless, aggregate: A, late: SideSlot<T>) -> Self {
        Self::with(window, aggregate, Late::new(late))
    }

    fn with(window: Endless, aggregate: A, late: Late<T>) -> Self {
        CountAggregate {
            window,
            aggregate,
            rules: Counting { every: u32::MAX, ends: false, discards: false },
            table: Opened(None),
            taken: Vec::new(),
            held: Held::default(),
            cx: Opened(None),
            late,
        }
    }

    /// Gives what this turn may of what comes before the first signal that waits; that signal when all of it was given. Only the end of time
    /// has anything before it.
    #[inline(never)]
    fn give(&mut self, out: &mut impl Collector<WindowResult<K, A::Out>>) -> Result<Option<HeldSignal>> {
        let all = self.held.until() != Some(Watermark::MAX) || self.give_rest(out)?;
        Ok(if all { self.held.next() } else { None })
    }

    /// Gives what is incomplete; false when there is more than this turn may give.
    fn give_rest(&mut self, out: &mut impl Collector<WindowResult<K, A::Out>>) -> Result<bool> {
        let (Some(table), Some(cx)) = (&mut self.table.0, &self.cx.0) else { return Err(not_open()) };
        let (mut more, rules) = (true, self.rules);
        while more {
            if self.held.is_spent() {
                return Ok(false);
            }
            more = table.pop(self.held.at_once(), &mut self.taken)?;
            self.held.gave(self.taken.len() + 1);
            // Nothing of what is given may reach a channel, which would hear it too.
            cx.not_cancelled()?;
            for (key, counted) in self.taken.drain(..).filter(|(_, c)| !(rules.discards && c.since == 0)) {
                out.emit(result(&self.aggregate, rules, key, counted, false))?;
            }
        }
        table.batch_end()?;
        Ok(true)
    }
}

fn result<K, T, A: Aggregate<T>>(
    aggregate: &A,
    rules: Counting,
    key: K,
    counted: Counted<A::Acc>,
    early: bool,
) -> Record<WindowResult<K, A::Out>> {
    let Counted { acc, panes, least, greatest, .. } = counted;
    let seen = TimeWindow { start: EventTime(least), end: EventTime(greatest.saturating_add(1)) };
    let always = TimeWindow { start: EventTime(i64::MIN), end: EventTime(i64::MAX) };
    let window = if rules.ends { seen } else { always };
    let pane = if early && !rules.ends { Pane::early(panes) } else { Pane::on_time(panes) };
    let value = WindowResult { key, window, value: aggregate.result(acc), pane };
    Record { value, time: EventTime(greatest) }
}

impl<K: Key, T: Data, A: Aggregate<T>> Clone for CountAggregate<K, T, A> {
    fn clone(&self) -> Self {
        Self::with(self.window, self.aggregate.clone(), self.late.clone())
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> fmt::Debug for CountAggregate<K, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CountAggregate({:?}, {:?})", self.window, self.table)
    }
}

impl<K: Key, T: Data, A: Aggregate<T>> Operator<Keyed<K, T>> for CountAggregate<K, T, A> {
    type Out = WindowResult<K, A::Out>;
    const HOLDS_SIGNALS: bool = true;
    const RELEASES_BETWEEN_BATCHES: bool = true;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.rules = match self.window {
            Endless::Count(count) => count.check()?,
            Endless::Global(global) => global.check()?,
        };
        self.table = Opened(Some(cx.store()?.state_map(Table::new("counted"))?));
        // Only the end of time waits for anything; what is left of it is in the table.
        let ends = crate::progress::was_held(cx);
        self.held = Held::restored(cx, if ends { Watermark::MAX } else { Watermark::MIN });
        self.cx = Opened(Some(cx.clone()));
        self.late.open(cx);
        Ok(())
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, T>>]) -> Result<()> {
        self.held.comes(batch.len());
        let table = self.table.0.as_mut().ok_or_else(not_open)?;
        Ok(table.prefetch(batch.iter().map(|r| (r.value.hash, &r.value.key)))?)
    }

    #[inline]
    fn process(&mut self, record: Record<Keyed<K, T>>, out: &mut impl Collector<Self::Out>) -> Result<()> {
        if self.held.waits() && self.held.until() == Some(Watermark::MAX) {
            // A life after the end, before all of that is given: nothing is added to what is taken out.
            while !self.give_rest(out)? {
                self.held.quiet();
            }
        }
        let table = self.table.0.as_mut().ok_or_else(not_open)?;
        let Record { value: Keyed { hash, key, value }, time } = record;
        let place = table.find_or_insert_with(hash, &key, || {
            let acc = self.aggregate.create();
            Counted { acc, since: 0, panes: 0, least: i64::MAX, greatest: i64::MIN }
        })?;
        let counted = table.at(place);
        self.aggregate.add(&mut counted.acc, &value);
        counted.since = counted.since.saturating_add(1);
        counted.least = counted.least.min(time.0);
        counted.greatest = counted.greatest.max(time.0);
        if counted.since < self.rules.every || self.rules.every == u32::MAX {
            return Ok(());
        }
        let given = counted.clone();
        if self.rules.ends {
            table.remove(hash, &key);
        } else {
            counted.since = 0;
            counted.panes = counted.panes.saturating_add(1);
            if self.rules.discards {
                counted.acc = self.aggregate.create();
            }
        }
        out.emit(result(&self.aggregate, self.rules, key, given, true))
    }

    fn on_batch_end(&mut self, _: &mut impl Collector<Self::Out>) -> Result<()> {
        self.held.batch_end();
        Ok(self.table.0.as_mut().ok_or_else(not_open)?.batch_end()?)
    }

    fn on_quiet(&mut self, _: &mut impl Collector<Self::Out>) -> Result<()> {
        self.held.quiet();
        Ok(self.table.0.as_mut().ok_or_else(not_open)?.batch_end()?)
    }

    fn hold(&mut self, signal: HeldSignal) {
        self.held.hold(signal);
    }

    gives_in_parts!();

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        self.table.0.as_mut().ok_or_else(not_open)?.freeze(into)?;
        if self.held.until() == Some(Watermark::MAX) {
            self.held.keep(Watermark::MAX, into);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "count_tests.rs"]
mod tests;
