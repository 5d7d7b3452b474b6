//! User code in sessions: each record with what is remembered of its session, sessions that become one, and a last word when one is over.
// HOT: one probe per record that belongs to the only session of its key. No allocation, lock, log or clock of its own.

use std::fmt;

use weir_engine::{
    Barrier, Collector, Data, EndKind, EventTime, HeldSignal, Key, Keyed, Operator, OperatorContext,
    OperatorInfo, Pipe, Record, Result, SideSlot, SignalPort, Stream, Then, Watermark, WindowedStream,
};
use weir_state::keyed::Table;
use weir_state::store::Snapshot;

use crate::late::{Late, no_event_time};
use crate::opened::Opened;
use crate::progress;
use crate::timers::Timers;
use crate::window::Session;
use crate::window::held::{Held, gives_in_parts};
use crate::window::open_sessions::{GoesOn, OpenSessions};
use crate::window::process::{InWindow, WindowFunction};
use crate::window::session::{Gap, Open, Span};
use crate::window::tumbling::not_open;

/// A [`WindowFunction`] that knows what becomes of two sessions when a record joins them.
///
/// # Examples
/// The pages of each visit, in the order in which they came, as one line when it is over:
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::{Collector, Record, Result, testkit::{NullSink, ScriptSource, run_within}};
/// #[derive(Clone)]
/// struct Visits;
/// impl WindowFunction<u64, String> for Visits {
///     type Out = String;
///     type State = Vec<String>;
///     fn process(&mut self, r: Record<String>, pages: &mut Vec<String>, _: &InWindow<'_, u64>, _: &mut impl Collector<String>) -> Result<()> {
///         pages.push(r.value);
///         Ok(())
///     }
///     fn on_close(&mut self, pages: Vec<String>, at: &InWindow<'_, u64>, out: &mut impl Collector<String>) -> Result<()> {
///         out.emit(Record::new(format!("{}: {}", at.key, pages.join(" > ")), at.window.last()))
///     }
/// }
/// impl SessionFunction<u64, String> for Visits {
///     fn merge(&mut self, into: &mut Vec<String>, mut later: Vec<String>) {
///         into.append(&mut later);
///     }
/// }
/// # let job = weir_engine::Job::named("doc").parallelism(1);
/// # let pages = job.source("in", ScriptSource::of([("home".to_owned(), 0)])).source_time(weir_engine::Watermarks::monotonic());
/// pages.key_by("by-length", |page| page.len() as u64)
///     .window(Session::gap(minutes(30)))
///     .process("visits", Visits)
///     .sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
pub trait SessionFunction<K: Key, In: Data>: WindowFunction<K, In> {
    /// A record has joined two sessions of a key: `into` is what is remembered of the one that began first, `later` of the other. Called
    /// before `process` of that record.
    fn merge(&mut self, into: &mut Self::State, later: Self::State);
}

/// The stream of what a function in sessions gives, still in its task.
pub type SessionProcessed<K, T, G, F, P> =
    Stream<<F as WindowFunction<K, T>>::Out, Then<P, Keyed<K, T>, SessionProcess<K, T, G, F>>>;

/// User code in [`Session`] windows.
pub trait SessionProcessOps<K: Key, T: Data, G: Gap<T>, P: Pipe<Out = Keyed<K, T>>>: Sized {
    /// Runs `function` in the sessions. [`SessionFunction`] shows it, [`SessionProcess`] says what is kept. A session that allows lateness, gives early results
    /// or discards is refused: the function itself says what is given.
    fn process<F: SessionFunction<K, T>>(self, uid: &str, function: F) -> SessionProcessed<K, T, G, F, P>;

    /// Like `process`, with the late records as a stream of their own; it must be read to a sink.
    fn process_with_late<F: SessionFunction<K, T>>(
        self,
        uid: &str,
        function: F,
    ) -> (SessionProcessed<K, T, G, F, P>, Stream<T>);
}

fn add<K: Key, T: Data, G: Gap<T>, P: Pipe<Out = Keyed<K, T>>, F: SessionFunction<K, T>>(
    windowed: WindowedStream<K, T, Session<G>, P>,
    uid: &str,
    function: F,
    late: SideSlot<T>,
) -> SessionProcessed<K, T, G, F, P> {
    let (keyed, window) = windowed.into_parts();
    let keyed = keyed.require(uid, window.check_plain());
    keyed.transform(
        OperatorInfo::stateful("session_process", uid).settles(),
        SessionProcess::new(window, function, late),
    )
}

impl<K: Key, T: Data, G: Gap<T>, P: Pipe<Out = Keyed<K, T>>> SessionProcessOps<K, T, G, P>
    for WindowedStream<K, T, Session<G>, P>
{
    fn process<F: SessionFunction<K, T>>(self, uid: &str, function: F) -> SessionProcessed<K, T, G, F, P> {
        add(self, uid, function, SideSlot::default())
    }

    fn process_with_late<F: SessionFunction<K, T>>(
        self,
        uid: &str,
        function: F,
    ) -> (SessionProcessed<K, T, G, F, P>, Stream<T>) {
        let slot = SideSlot::default();
        let results = add(self, uid, function, slot.clone());
        let late = results.side(&slot, "late");
        (results, late)
    }
}

/// The operator behind [`process`](SessionProcessOps::process) on [`Session`] windows.
///
/// *State*: per key its open sessions, each with what the function remembers and its bounds, in the table `session_states`, in memory as far as the
/// job's budget reaches; a timer per session in the table `timers`, in memory. A session is forgotten when it is over. Checkpoints write what changed since the
/// one before. The gap may change between lives of a job: what is open keeps the end it had.
///
/// *Order*: sessions are closed in the order they end; with many at once, that of a key may come sooner when a record of it comes between. Many are
/// closed in parts, as by a [`TumblingAggregate`](crate::window::TumblingAggregate). The bounds that `process` is told are those that the session has by then.
///
/// *Late records*, those whose session, once merged with what is open, is over, change nothing: they go to the late output if that is
/// read, and are counted as `late_records` in any case.
pub struct SessionProcess<K: Key, T: Data, G, F: WindowFunction<K, T>> {
    window: Session<G>,
    function: F,
    sessions: Opened<OpenSessions<K, F::State>>,
    watermark: Watermark,
    held: Held,
    cx: Opened<OperatorContext>,
    late: Late<T>,
}

/// Looks at a session: closes it if it is over by `time`.
fn settle<K: Key, T: Data, F: WindowFunction<K, T>>(
    function: &mut F,
    key: &K,
    open: Open<F::State>,
    time: i64,
    out: &mut impl Collector<F::Out>,
) -> Result<GoesOn<F::State>> {
    let last = open.span.last;
    if last > time {
        return Ok(Some((open, last)));
    }
    function.on_close(open.acc, &InWindow { key, window: open.span.window() }, out)?;
    Ok(None)
}

impl<K: Key, T: Data, G: Gap<T>, F: SessionFunction<K, T>> SessionProcess<K, T, G, F> {
    /// The operator: what a test of the function drives by hand. `late`: where late records go, `SideSlot::default()` for nowhere.
    pub fn new(window: Session<G>, function: F, late: SideSlot<T>) -> Self {
        Self::with(window, function, Late::new(late))
    }

    fn with(window: Session<G>, function: F, late: Late<T>) -> Self {
        SessionProcess {
            window,
            function,
            sessions: Opened(None),
            watermark: Watermark::MIN,
            held: Held::default(),
            cx: Opened(None),
            late,
        }
    }

    /// Closes what this turn may of what comes before the first signal that waits; that signal when all of it was.
    #[inline(never)]
    fn give(&mut self, out: &mut impl Collector<F::Out>) -> Result<Option<HeldSignal>> {
        let Some(until) = self.held.until() else { return Ok(self.held.next()) };
        let (Some(sessions), Some(cx)) = (&mut self.sessions.0, &self.cx.0) else { return Err(not_open()) };
        let look = |key: &K, open, time| settle(&mut self.function, key, open, time, out);
        if !sessions.fire(until, &mut self.held, cx, look)? {
            return Ok(None);
        }
        self.upkeep()?;
        Ok(self.held.next())
    }

    fn upkeep(&mut self) -> Result<()> {
        self.sessions.0.as_mut().ok_or_else(not_open)?.batch_end()
    }
}

impl<K: Key, T: Data, G: Gap<T>, F: SessionFunction<K, T>> Clone for SessionProcess<K, T, G, F> {
    fn clone(&self) -> Self {
        Self::with(self.window.clone(), self.function.clone(), self.late.clone())
    }
}

impl<K: Key, T: Data, G, F: WindowFunction<K, T>> fmt::Debug for SessionProcess<K, T, G, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionProcess")
    }
}

impl<K: Key, T: Data, G: Gap<T>, F: SessionFunction<K, T>> Operator<Keyed<K, T>>
    for SessionProcess<K, T, G, F>
{
    type Out = F::Out;
    const HOLDS_SIGNALS: bool = true;
    const RELEASES_BETWEEN_BATCHES: bool = true;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.window.check_plain()?;
        let store = cx.store()?;
        let table = store.state_map(Table::new("session_states"))?;
        self.sessions = Opened(Some(OpenSessions::new(table, Timers::open(&store, "timers")?)));
        self.watermark = progress::restored(cx)?;
        self.held = Held::restored(cx, self.watermark);
        self.cx = Opened(Some(cx.clone()));
        self.late.open(cx);
        Ok(())
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, T>>]) -> Result<()> {
        self.held.comes(batch.len());
        self.sessions.0.as_mut().ok_or_else(not_open)?.prefetch(batch)
    }

    fn process(&mut self, record: Record<Keyed<K, T>>, out: &mut impl Collector<F::Out>) -> Result<()> {
        let Record { value: Keyed { hash, key, value }, time } = record;
        if time == EventTime::NONE {
            return Err(no_event_time());
        }
        let (now, function) = (self.watermark.0, &mut self.function);
        let Some(sessions) = &mut self.sessions.0 else { return Err(not_open()) };
        let span = Span::of(time, self.window.gap.gap(&value));
        if let Some(place) = sessions.table.find(hash, &key)?
            && let Some(open) = sessions.table.at(place).only()
            && open.span.last > now
            && open.span.overlaps(span)
        {
            // It is not over, and only gets longer: its timer comes soon enough.
            open.span = open.span.and(span);
            let at = InWindow { key: &key, window: open.span.window() };
            return function.process(Record { value, time }, &mut open.acc, &at, out);
        }
        if self.held.waits() {
            // Sessions that are over take nothing in, though their turn has not come: the turn of this key's is now.
            let is_over = |open: &Open<F::State>| open.span.last <= now;
            sessions.look_at(hash, &key, is_over, |open| settle(function, &key, open, now, out))?;
        }
        let merged = sessions.merged(hash, &key, span)?;
        if merged.last <= now {
            return self.late.take(Record { value, time });
        }
        let joined = sessions.join(hash, &key, span, |all, part| function.merge(&mut all.acc, part.acc))?;
        let mut open = joined.unwrap_or_else(|| {
            let acc = F::State::default();
            Open { span, acc, panes: 0, since: 0, given: false, listed: false, timer: i64::MAX }
        });
        open.span = merged;
        let at = InWindow { key: &key, window: merged.window() };
        function.process(Record { value, time }, &mut open.acc, &at, out)?;
        sessions.put(hash, &key, open, merged.last)
    }

    fn on_batch_end(&mut self, _: &mut impl Collector<F::Out>) -> Result<()> {
        self.late.count();
        self.held.batch_end();
        self.upkeep()
    }

    fn on_quiet(&mut self, _: &mut impl Collector<F::Out>) -> Result<()> {
        self.held.quiet();
        self.upkeep()
    }

    fn on_watermark(&mut self, watermark: Watermark, _: &mut impl Collector<F::Out>) -> Result<()> {
        // After a restore event time first comes to where it was.
        self.watermark = self.watermark.max(watermark);
        Ok(())
    }

    fn hold(&mut self, signal: HeldSignal) {
        self.held.hold(signal);
    }

    gives_in_parts!();

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        self.sessions.0.as_mut().ok_or_else(not_open)?.freeze(into)?;
        self.held.keep(self.watermark, into);
        Ok(())
    }
}
