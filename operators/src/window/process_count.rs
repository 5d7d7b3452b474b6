//! User code in windows of so many records: each record with what is remembered of its key, and a last word with the last of them.
// HOT: one probe per record. No allocation, lock, log or clock of its own.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_engine::{
    Barrier, Collector, Data, EndKind, EventTime, HeldSignal, Key, Keyed, Operator, OperatorContext, Record,
    Result, SideSlot, SignalPort, Watermark,
};
use weir_state::keyed::{StateMap, Table};
use weir_state::store::Snapshot;

use crate::late::Late;
use crate::opened::Opened;
use crate::progress;
use crate::window::held::{Held, gives_in_parts};
use crate::window::process::{InWindow, WindowFunction};
use crate::window::tumbling::not_open;
use crate::window::{CountWindow, TimeWindow};

/// The operator behind [`process`](crate::prelude::WindowProcessOps::process) on a [`CountWindow`].
///
/// The bounds of a window are those of its records so far: from the least time to the greatest.
///
/// *State*: the function's, per key, in the table `counted_states`, forgotten with the last record of its window. A checkpoint writes what changed since
/// the one before. The number may change between lives of a job.
///
/// *Order*: a window is closed with its last record; what is incomplete when the stream ends for good then, in an order that says nothing,
/// many in parts, as by a [`TumblingAggregate`](crate::window::TumblingAggregate).
///
/// *Late records* there are none.
pub struct CountProcess<K: Key, T: Data, F: WindowFunction<K, T>> {
    window: CountWindow,
    function: F,
    records: u32,
    table: Opened<StateMap<K, Counted<F::State>>>,
    /// What is taken out and not yet closed.
    taken: Vec<(K, Counted<F::State>)>,
    held: Held,
    cx: Opened<OperatorContext>,
    late: Late<T>,
}

/// What is remembered of a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Counted<S> {
    state: S,
    records: u32,
    least: i64,
    greatest: i64,
}

impl<S> Counted<S> {
    fn window(&self) -> TimeWindow {
        TimeWindow { start: EventTime(self.least), end: EventTime(self.greatest.saturating_add(1)) }
    }
}

impl<K: Key, T: Data, F: WindowFunction<K, T>> CountProcess<K, T, F> {
    /// The operator: what a test of the function drives by hand. `late`: where late records go, `SideSlot::default()` for nowhere.
    pub fn new(window: CountWindow, function: F, late: SideSlot<T>) -> Self {
        Self::with(window, function, Late::new(late))
    }

    fn with(window: CountWindow, function: F, late: Late<T>) -> Self {
        CountProcess {
            window,
            function,
            records: u32::MAX,
            table: Opened(None),
            taken: Vec::new(),
            held: Held::default(),
            cx: Opened(None),
            late,
        }
    }

    /// Closes what this turn may of what comes before the first signal that waits; that signal when all of it was. Only the end of time
    /// has anything before it.
    #[inline(never)]
    fn give(&mut self, out: &mut impl Collector<F::Out>) -> Result<Option<HeldSignal>> {
        let all = self.held.until() != Some(Watermark::MAX) || self.close_rest(out)?;
        Ok(if all { self.held.next() } else { None })
    }

    /// Closes what is incomplete; false when there is more than this turn may close.
    fn close_rest(&mut self, out: &mut impl Collector<F::Out>) -> Result<bool> {
        let (Some(table), Some(cx)) = (&mut self.table.0, &self.cx.0) else { return Err(not_open()) };
        let mut more = true;
        while more {
            if self.held.is_spent() {
                return Ok(false);
            }
            more = table.pop(self.held.at_once(), &mut self.taken)?;
            self.held.gave(self.taken.len() + 1);
            // Nothing of what is given may reach a channel, which would hear it too.
            cx.not_cancelled()?;
            for (key, counted) in self.taken.drain(..) {
                let window = counted.window();
                self.function.on_close(counted.state, &InWindow { key: &key, window }, out)?;
            }
        }
        table.batch_end()?;
        Ok(true)
    }

    fn upkeep(&mut self) -> Result<()> {
        Ok(self.table.0.as_mut().ok_or_else(not_open)?.batch_end()?)
    }
}

impl<K: Key, T: Data, F: WindowFunction<K, T>> Clone for CountProcess<K, T, F> {
    fn clone(&self) -> Self {
        Self::with(self.window, self.function.clone(), self.late.clone())
    }
}

impl<K: Key, T: Data, F: WindowFunction<K, T>> fmt::Debug for CountProcess<K, T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CountProcess({:?}, {:?})", self.window, self.table)
    }
}

impl<K: Key, T: Data, F: WindowFunction<K, T>> Operator<Keyed<K, T>> for CountProcess<K, T, F> {
    type Out = F::Out;
    const HOLDS_SIGNALS: bool = true;
    const RELEASES_BETWEEN_BATCHES: bool = true;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.records = self.window.records()?;
        self.table = Opened(Some(cx.store()?.state_map(Table::new("counted_states"))?));
        let ends = progress::was_held(cx);
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
    fn process(&mut self, record: Record<Keyed<K, T>>, out: &mut impl Collector<F::Out>) -> Result<()> {
        if self.held.waits() && self.held.until() == Some(Watermark::MAX) {
            // A life after the end, before all of that is closed: nothing is added to what is taken out.
            while !self.close_rest(out)? {
                self.held.quiet();
            }
        }
        let Record { value: Keyed { hash, key, value }, time } = record;
        let table = self.table.0.as_mut().ok_or_else(not_open)?;
        let new = || Counted { state: F::State::default(), records: 0, least: i64::MAX, greatest: i64::MIN };
        let place = table.find_or_insert_with(hash, &key, new)?;
        let counted = table.at(place);
        counted.records = counted.records.saturating_add(1);
        counted.least = counted.least.min(time.0);
        counted.greatest = counted.greatest.max(time.0);
        let (window, closes) = (counted.window(), counted.records >= self.records);
        let at = InWindow { key: &key, window };
        self.function.process(Record { value, time }, &mut counted.state, &at, out)?;
        if closes && let Some(counted) = table.take(hash, &key)? {
            self.function.on_close(counted.state, &at, out)?;
        }
        Ok(())
    }

    fn on_batch_end(&mut self, _: &mut impl Collector<F::Out>) -> Result<()> {
        self.held.batch_end();
        self.upkeep()
    }

    fn on_quiet(&mut self, _: &mut impl Collector<F::Out>) -> Result<()> {
        self.held.quiet();
        self.upkeep()
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
