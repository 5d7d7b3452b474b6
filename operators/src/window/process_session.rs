//! User code in sessions: each record with what is remembered of its session, sessions that become one, and a last word when one is over.
// HOT: a probe or two per record. No allocation, lock, log or clock of its own.

use std::fmt;

use weir_engine::{
    Barrier, Collector, Data, EndKind, EventTime, HeldSignal, Key, KeyHash, Keyed, Operator, OperatorContext,
    OperatorInfo, Pipe, Record, Result, SideSlot, SignalPort, Stream, Then, Watermark, WindowedStream,
};
use weir_state::keyed::{State, StateMap, Table};
use weir_state::store::Snapshot;

use crate::late::{Late, no_event_time};
use crate::opened::Opened;
use crate::progress;
use crate::timers::{Due, Timers};
use crate::window::Session;
use crate::window::held::{Held, gives_in_parts};
use crate::window::process::{InWindow, WindowFunction};
use crate::window::session::{Gap, Open, Sessions, Span};
use crate::window::tumbling::{AT_ONCE, not_open};

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
    kept: Opened<Kept<K, F::State>>,
    watermark: Watermark,
    held: Held,
    cx: Opened<OperatorContext>,
    late: Late<T>,
}

struct Kept<K, S> {
    table: StateMap<K, Sessions<S>>,
    timers: Timers<K>,
    taken: Vec<Open<S>>,
}

impl<K: Key, S: State> Kept<K, S> {
    /// Puts a session back with those of its key. A timer must look at it before it is over.
    fn put(&mut self, hash: KeyHash, key: &K, mut open: Open<S>) -> Result<()> {
        let wanted = open.span.last;
        if open.timer >= wanted {
            open.timer = wanted;
            self.timers.set(hash, key, EventTime(wanted));
        }
        match self.table.find(hash, key)? {
            Some(place) => self.table.at(place).push(open),
            None => self.table.insert(hash, key.clone(), Sessions::of(open))?,
        }
        Ok(())
    }

    /// Takes out of a key's sessions those that satisfy `f`, into `taken`.
    fn take_if(&mut self, hash: KeyHash, key: &K, f: impl FnMut(&Open<S>) -> bool) -> Result<()> {
        if let Some(place) = self.table.find(hash, key)?
            && !self.table.at(place).take_if(f, &mut self.taken)
        {
            self.table.remove(hash, key);
        }
        Ok(())
    }

    /// Looks at sessions of a key: closes those that are over by `time`.
    fn look_at<T: Data, F: WindowFunction<K, T, State = S>>(
        &mut self,
        (hash, key): (KeyHash, &K),
        looks_at: impl FnMut(&Open<S>) -> bool,
        time: i64,
        function: &mut F,
        out: &mut impl Collector<F::Out>,
    ) -> Result<()> {
        self.take_if(hash, key, looks_at)?;
        let mut looked_at = std::mem::take(&mut self.taken);
        looked_at.sort_unstable_by_key(|open| open.span.last);
        for mut open in looked_at.drain(..) {
            if open.span.last <= time {
                function.on_close(open.acc, &InWindow { key, window: open.span.window() }, out)?;
            } else {
                open.timer = i64::MAX;
                self.put(hash, key, open)?;
            }
        }
        self.taken = looked_at;
        Ok(())
    }
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
            kept: Opened(None),
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
        // While the last watermark fires no timer can be set, and what is looked at too early wants another.
        let all = self.fire(until.0.min(i64::MAX - 1), out)?
            && (until < Watermark::MAX || self.fire(i64::MAX, out)?);
        if !all {
            return Ok(None);
        }
        self.upkeep()?;
        Ok(self.held.next())
    }

    /// Closes the sessions that are over by `until`; false when there are more than this turn may close.
    fn fire(&mut self, until: i64, out: &mut impl Collector<F::Out>) -> Result<bool> {
        let (Some(kept), Some(cx)) = (&mut self.kept.0, &self.cx.0) else { return Err(not_open()) };
        if !kept.timers.is_advancing() {
            kept.timers.reach(until);
        }
        kept.timers.fire_until(until);
        let mut fired = 0usize;
        loop {
            if self.held.is_spent() && kept.timers.has_due() {
                kept.timers.pause();
                return Ok(false);
            }
            let Some(Due { time, hash, key }) = kept.timers.next_due() else {
                kept.timers.rest();
                return Ok(true);
            };
            if fired.is_multiple_of(AT_ONCE) {
                // Nothing of what is given may reach a channel, which would hear it too.
                cx.not_cancelled()?;
                kept.table.batch_end()?;
            }
            fired += 1;
            self.held.gave(1);
            let looks_at = |open: &Open<F::State>| open.timer <= time.0;
            kept.look_at((hash, &key), looks_at, time.0, &mut self.function, out)?;
        }
    }

    fn upkeep(&mut self) -> Result<()> {
        Ok(self.kept.0.as_mut().ok_or_else(not_open)?.table.batch_end()?)
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
        self.kept = Opened(Some(Kept { table, timers: Timers::open(&store, "timers")?, taken: Vec::new() }));
        self.watermark = progress::restored(cx)?;
        self.held = Held::restored(cx, self.watermark);
        self.cx = Opened(Some(cx.clone()));
        self.late.open(cx);
        Ok(())
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, T>>]) -> Result<()> {
        self.held.comes(batch.len());
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        Ok(kept.table.prefetch(batch.iter().map(|r| (r.value.hash, &r.value.key)))?)
    }

    fn process(&mut self, record: Record<Keyed<K, T>>, out: &mut impl Collector<F::Out>) -> Result<()> {
        let Record { value: Keyed { hash, key, value }, time } = record;
        if time == EventTime::NONE {
            return Err(no_event_time());
        }
        let now = self.watermark.0;
        let Some(kept) = &mut self.kept.0 else { return Err(not_open()) };
        if self.held.waits() {
            // Sessions that are over take nothing in, though their turn has not come: the turn of this key's is now.
            kept.look_at((hash, &key), |open| open.span.last <= now, now, &mut self.function, out)?;
        }
        let span = Span::of(time, self.window.gap.gap(&value));
        let merged = match kept.table.find(hash, &key)? {
            Some(place) => kept.table.peek(place).merged(span),
            None => span,
        };
        if merged.last <= now {
            return self.late.take(Record { value, time });
        }
        kept.take_if(hash, &key, |open| open.span.overlaps(span))?;
        kept.taken.sort_unstable_by_key(|open| open.span.start);
        let joined = kept.taken.drain(..).reduce(|mut all, part| {
            self.function.merge(&mut all.acc, part.acc);
            all.timer = all.timer.min(part.timer);
            all
        });
        let mut open = joined.unwrap_or_else(|| {
            let acc = F::State::default();
            Open { span, acc, panes: 0, since: 0, given: false, listed: false, timer: i64::MAX }
        });
        open.span = merged;
        let at = InWindow { key: &key, window: merged.window() };
        self.function.process(Record { value, time }, &mut open.acc, &at, out)?;
        kept.put(hash, &key, open)
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
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        kept.table.freeze(into)?;
        kept.timers.freeze(into);
        self.held.keep(self.watermark, into);
        Ok(())
    }
}
