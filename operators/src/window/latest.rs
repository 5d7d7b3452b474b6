//! The newest result of each key and window, once no newer one can come: what may be aggregated further.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_engine::{
    Barrier, Collector, EndKind, EventTime, HeldSignal, Key, Keyed, Operator, OperatorContext, OperatorInfo,
    Pipe, Record, Result, SideSlot, SignalPort, Stream, Watermark,
};
use weir_state::keyed::{Space, Spaces, Table};
use weir_state::store::Snapshot;

use crate::aggregate::Kept;
use crate::late::Late;
use crate::opened::Opened;
use crate::progress;
use crate::window::assign::checked_ms;
use crate::window::held::{Held, gives_in_parts};
use crate::window::tumbling::{AT_ONCE, not_open};
use crate::window::{Pane, TimeWindow, WindowResult};

/// What may be done with results of which later ones replace earlier ones.
pub trait LatestOps<K: Key, V: Kept>: Sized {
    /// Gives each key and window once: its newest result, when no newer one can come any more. A window that gives early results, or allows
    /// late records, gives several for a key, each of everything so far; who adds them up counts records more than once, and such a
    /// plan is refused. Behind this they may be added up. `lateness` is what the window allows (zero when that is nothing): so much later are results
    /// given, and event time behind this is so much behind. Whole milliseconds.
    ///
    /// [`LatestPerWindow`] says what is kept. A plan that has it behind sessions or global windows is refused: a session that grows is another
    /// window, and a global one is never over. Behind a window join the newest results are all rows of the last time that the
    /// window was given, if there were any then.
    ///
    /// It goes directly behind the window: where a newer result may be left out (by a filter, or an [`Anti`](crate::join::Anti) window join, of which
    /// a record gives a row no more once it has met another) nobody hears that an older one is out of date, and the plan is refused. Filter what
    /// comes out of it; in place of an anti join take a [`LeftOuter`](crate::join::LeftOuter) one and filter its rows likewise.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let clicks = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
    /// let per_user = clicks.key_by("by-user", |user| *user)
    ///     .window(Tumbling::of(minutes(1)).allow_lateness(minutes(5)))
    ///     .aggregate("per-user", count());
    /// per_user.latest_per_window("final-per-user", minutes(5))
    ///     .key_by("all", |_| ())
    ///     .window(Tumbling::of(minutes(1)))
    ///     .aggregate("most", max(|w: &WindowResult<u64, u64>| w.value))
    ///     .sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn latest_per_window(
        self,
        uid: &str,
        lateness: Duration,
    ) -> Stream<WindowResult<K, V>, impl Pipe<Out = WindowResult<K, V>>>;
}

impl<K: Key, V: Kept, P: Pipe<Out = WindowResult<K, V>>> LatestOps<K, V> for Stream<WindowResult<K, V>, P> {
    fn latest_per_window(
        self,
        uid: &str,
        lateness: Duration,
    ) -> Stream<WindowResult<K, V>, impl Pipe<Out = WindowResult<K, V>>> {
        let (lateness, checked) = match checked_ms("lateness", lateness, 0) {
            Ok(ms) => (ms, Ok(())),
            Err(error) => (0, Err(error)),
        };
        self.key_by(&format!("{uid}-by-key"), |result: &WindowResult<K, V>| result.key.clone())
            .require(uid, checked)
            .transform(
                OperatorInfo::stateful("latest_per_window", uid).settles_windows(),
                LatestPerWindow::new(lateness),
            )
    }
}

/// The operator behind [`latest_per_window`](LatestOps::latest_per_window).
///
/// *State*: the newest result of each key and window, or all of that number (a join gives a row for each pair), in the table `latest`, in memory
/// as far as the job's budget reaches; forgotten when it is given. All rows of a key and window are one value. A checkpoint writes what changed since the one before.
///
/// *Order*: windows in the order they end, the keys of one in an order that says nothing; many in parts, as by a
/// [`TumblingAggregate`](crate::window::TumblingAggregate). A result keeps its time, in its window, so the watermark goes on later by the
/// lateness.
///
/// *Late results*, those of a window that was given, change nothing and are counted as `late_records`: there are none when `lateness` is
/// that of the window before. It may change between lives of a job.
pub struct LatestPerWindow<K: Key, V: Kept> {
    lateness: i64,
    /// By the last millisecond of the window.
    kept: Opened<Spaces<K, Latests<V>>>,
    taken: Vec<(K, Latests<V>)>,
    /// How many results a key has had of late, at most: so that not more of them are taken out than may be given.
    rows_each: usize,
    /// Where event time is for those behind: windows that are over by it were given, or are being given.
    behind: Watermark,
    held: Held,
    cx: Opened<OperatorContext>,
    late: Late<WindowResult<K, V>>,
}

/// What there is of a key and end of a window: more than one window only where time ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Latests<V> {
    one: Latest<V>,
    more: Vec<Latest<V>>,
}

/// The newest results of a window: one, but for joins.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Latest<V> {
    window: TimeWindow,
    pane: Pane,
    one: (i64, V),
    /// With the same number; each with its time.
    more: Vec<(i64, V)>,
}

impl<V> Latests<V> {
    /// How many results there are.
    fn rows(&self) -> usize {
        std::iter::once(&self.one).chain(&self.more).map(|latest| 1 + latest.more.len()).sum()
    }
}

impl<V> Latest<V> {
    fn of(result: WindowResult<impl Sized, V>, time: EventTime) -> Self {
        let WindowResult { window, pane, value, .. } = result;
        Latest { window, pane, one: (time.0, value), more: Vec::new() }
    }

    /// Takes in what is of the same window.
    fn take(&mut self, newer: Latest<V>) {
        if self.pane.number < newer.pane.number {
            *self = newer;
        } else if self.pane.number == newer.pane.number {
            self.more.push(newer.one);
        }
    }
}

impl<K: Key, V: Kept> LatestPerWindow<K, V> {
    pub(crate) fn new(lateness: i64) -> Self {
        LatestPerWindow {
            lateness,
            kept: Opened(None),
            taken: Vec::new(),
            // Not known yet: one key will tell.
            rows_each: AT_ONCE,
            behind: Watermark::MIN,
            held: Held::default(),
            cx: Opened(None),
            late: Late::new(SideSlot::default()),
        }
    }

    /// Where event time is for those behind: windows that are over by then are given.
    fn behind(&self, watermark: Watermark) -> Watermark {
        match watermark {
            Watermark::MAX => watermark,
            _ => Watermark(watermark.0.saturating_sub(self.lateness)),
        }
    }

    /// Gives what this turn may of what comes before the first signal that waits; that signal when all of it was given.
    #[inline(never)]
    fn give(&mut self, out: &mut impl Collector<WindowResult<K, V>>) -> Result<Option<HeldSignal>> {
        let Some(until) = self.held.until() else { return Ok(self.held.next()) };
        let (Some(kept), Some(cx)) = (&mut self.kept.0, &self.cx.0) else { return Err(not_open()) };
        loop {
            let first = kept.namespaces().next();
            let Some((last, space)) = first.filter(|(last, _)| *last <= until.0) else { break };
            if self.held.is_spent() {
                return Ok(None);
            }
            let more = kept.map(space).pop((self.held.at_once() / self.rows_each).max(1), &mut self.taken)?;
            let rows = self.taken.iter().map(|(_, latests)| latests.rows()).sum::<usize>();
            self.held.gave(rows + 1);
            self.rows_each = rows.div_ceil(self.taken.len().max(1)).max(self.rows_each / 2).max(1);
            // Nothing of what is given may reach a channel, which would hear it too.
            cx.not_cancelled()?;
            let mut given = 0usize;
            for (key, Latests { one, more }) in self.taken.drain(..) {
                for Latest { window, pane, one, more } in std::iter::once(one).chain(more) {
                    for (time, value) in std::iter::once(one).chain(more) {
                        given += 1;
                        if given.is_multiple_of(AT_ONCE) {
                            cx.not_cancelled()?;
                        }
                        let value = WindowResult { key: key.clone(), window, value, pane };
                        out.emit(Record { value, time: EventTime(time) })?;
                    }
                }
            }
            if !more {
                kept.close(last);
            }
        }
        kept.batch_end()?;
        Ok(self.held.next())
    }

    fn batch_end(&mut self) -> Result<()> {
        self.late.count();
        Ok(self.kept.0.as_mut().map_or(Ok(()), Spaces::batch_end)?)
    }
}

impl<K: Key, V: Kept> Clone for LatestPerWindow<K, V> {
    fn clone(&self) -> Self {
        Self::new(self.lateness)
    }
}

impl<K: Key, V: Kept> fmt::Debug for LatestPerWindow<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LatestPerWindow({} ms late, {:?})", self.lateness, self.kept)
    }
}

impl<K: Key, V: Kept> Operator<Keyed<K, WindowResult<K, V>>> for LatestPerWindow<K, V> {
    type Out = WindowResult<K, V>;
    const HOLDS_SIGNALS: bool = true;
    const RELEASES_BETWEEN_BATCHES: bool = true;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.kept = Opened(Some(cx.store()?.spaces(Table::new("latest"))?));
        self.behind = progress::restored(cx)?;
        self.held = Held::restored(cx, self.behind);
        self.cx = Opened(Some(cx.clone()));
        self.late.open(cx);
        Ok(())
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, WindowResult<K, V>>>]) -> Result<()> {
        self.held.comes(batch.len());
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        let last = |record: &Record<Keyed<K, WindowResult<K, V>>>| record.value.value.window.last().0;
        for of_window in batch.chunk_by(|a, b| last(a) == last(b)) {
            let space: Option<Space> = of_window.first().and_then(|first| kept.get(last(first)));
            if let Some(space) = space {
                kept.map(space).prefetch(of_window.iter().map(|r| (r.value.hash, &r.value.key)))?;
            }
        }
        Ok(())
    }

    fn process(
        &mut self,
        record: Record<Keyed<K, WindowResult<K, V>>>,
        _: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let Record { value: Keyed { hash, key, value: result }, time } = record;
        let last = result.window.last().0;
        if last <= self.behind.0 {
            return self.late.take(Record { value: result, time });
        }
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        let space = kept.open(last);
        let results = kept.map(space);
        let newer = Latest::of(result, time);
        let Some(place) = results.find(hash, &key)? else {
            return Ok(results.insert(hash, key, Latests { one: newer, more: Vec::new() })?);
        };
        let Latests { one, more } = results.at(place);
        match std::iter::once(one).chain(more.iter_mut()).find(|latest| latest.window == newer.window) {
            Some(latest) => latest.take(newer),
            None => more.push(newer),
        }
        Ok(())
    }

    fn on_batch_end(&mut self, _: &mut impl Collector<Self::Out>) -> Result<()> {
        self.held.batch_end();
        self.batch_end()
    }

    fn on_quiet(&mut self, _: &mut impl Collector<Self::Out>) -> Result<()> {
        self.held.quiet();
        self.batch_end()
    }

    fn on_watermark(&mut self, watermark: Watermark, _: &mut impl Collector<Self::Out>) -> Result<()> {
        // After a restore event time first comes to where it was.
        self.behind = self.behind.max(self.behind(watermark));
        Ok(())
    }

    fn hold(&mut self, signal: HeldSignal) {
        match signal {
            HeldSignal::Watermark(watermark) => match self.behind(watermark) {
                // Event time has not begun for those behind.
                Watermark::MIN => {}
                behind => self.held.hold(HeldSignal::Watermark(behind)),
            },
            signal => self.held.hold(signal),
        }
    }

    gives_in_parts!();

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        self.kept.0.as_mut().ok_or_else(not_open)?.freeze(into)?;
        self.held.keep(self.behind, into);
        Ok(())
    }
}

#[cfg(test)]
#[path = "latest_tests.rs"]
mod tests;
