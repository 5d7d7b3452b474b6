//! The session window operator: the sessions of each key, which grow, merge, and are given when they are over.
// HOT: one probe per record that belongs to the only session of its key. No allocation, lock or log, nor a timer; the clock is read once per batch at most.

use std::fmt;

use weir_engine::{
    Barrier, Collector, Data, EndKind, EventTime, HeldSignal, Key, KeyHash, Keyed, Operator, OperatorContext,
    Record, Result, SideSlot, SignalPort, Watermark,
};
use weir_state::key_hash;
use weir_state::keyed::{State, StateMap, Table, Tour};
use weir_state::schema::Schema;
use weir_state::store::Snapshot;

use crate::aggregate::Aggregate;
use crate::late::{Late, no_event_time};
use crate::opened::Opened;
use crate::progress;
use crate::timers::Timers;
use crate::window::cuts::{check_kept, keep_layout};
use crate::window::giving::When;
use crate::window::held::{Held, gives_in_parts};
use crate::window::open_sessions::{GoesOn, OpenSessions};
use crate::window::session::{Gap, Open, Session, Sessions, Span, session_layout};
use crate::window::tumbling::{AT_ONCE, not_open};
use crate::window::{Pane, WindowResult};

/// The operator behind [`aggregate`](crate::prelude::WindowOps::aggregate) on [`Session`] windows.
///
/// *State*: per key its open sessions, each an accumulator and its bounds, in the table `sessions`; in memory as far as the
/// job's budget reaches. A timer per session in the table `timers`, in memory: about 64 bytes and the key. It is set when a
/// session begins and looks again when it comes, so that a record costs none; a key that goes on and on is looked at about
/// once per gap. A session is forgotten when it is over and no late record is allowed any more. Checkpoints write what
/// changed since the one before. The gap and the allowed lateness may change between lives of a job: what is open keeps the
/// end it had. Whether results are discarded cannot while sessions are open.
///
/// *Order*: sessions are given in the order they end; with many at once, that of a key may come sooner when a record of it comes
/// between. The time of a result is the last millisecond of its session. Many are given in parts, as by a
/// [`TumblingAggregate`](crate::window::TumblingAggregate).
///
/// *Late records*: a record is late when the session that it belongs to, once merged with what is open, is over. It changes
/// nothing, opens no session, goes to the late output if that is read, and is counted as `late_records` in any case. With
/// `allow_lateness` it is taken in while that session has been over for no longer than that, and the session gives a new
/// result at once ([`Timing::Late`](crate::window::Timing::Late)). One that joins a session which was given to one that is
/// still open makes one of both, with the number of results that the first has had: what was given under the old bounds is
/// part of what comes then.
///
/// *Early results* of a session, with `early_every` and `early_after`, are numbered and timed like the others
/// ([`Timing::Early`](crate::window::Timing::Early)); the key of one with something new is listed in memory until it is given by the clock.
///
/// # Examples
/// A test drives it by hand, and moves event time:
/// ```
/// # use weir_operators::{prelude::*, window::Window};
/// # use weir_engine::{Keyed, SideSlot, testkit::OpHarness};
/// let mut harness = OpHarness::new(Session::gap(seconds(10)).operator(count(), SideSlot::default()))?;
/// # let keyed = |key: u64, value: i64| Keyed { hash: weir_state::key_hash(&key), key, value };
/// harness.batch([(keyed(7, 0), 0), (keyed(7, 0), 9_000), (keyed(7, 0), 60_000)])?;
/// harness.watermark(18_999)?;
/// let visits = harness.take_values();
/// assert_eq!((visits.len(), visits[0].window.to_string(), visits[0].value), (1, "[0, 19000)".to_owned(), 2));
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
pub struct SessionAggregate<K: Key, T: Data, G, A: Aggregate<T>> {
    window: Session<G>,
    aggregate: A,
    kept: Opened<Kept<K, A::Acc>>,
    rules: When,
    watermark: Watermark,
    held: Held,
    cx: Opened<OperatorContext>,
    late: Late<T>,
}

struct Kept<K, A> {
    sessions: OpenSessions<K, A>,
    /// Keys with something new; only with `early_after`.
    new: Vec<(KeyHash, K)>,
    /// When they are to be given.
    due: Option<i64>,
}

impl<K: Key, A: State> Kept<K, A> {
    fn batch_end(&mut self) -> Result<()> {
        self.sessions.batch_end()
    }
}

/// Looks at a session: gives it if it is over by `time`, and forgets it if nothing can change it any more.
fn settle<K: Key, T, A: Aggregate<T>>(
    (aggregate, rules): (&A, &When),
    key: &K,
    mut open: Open<A::Acc>,
    time: i64,
    out: &mut impl Collector<WindowResult<K, A::Out>>,
) -> Result<GoesOn<A::Acc>> {
    if !open.given && open.span.last <= time {
        open.given = true;
        if !rules.discards || open.since > 0 {
            give(aggregate, rules, key, &mut open, Pane::on_time, out)?;
        }
    }
    let wanted = open.wanted(rules.lateness);
    Ok((!open.given || wanted > time).then_some((open, wanted)))
}

impl<A> Open<A> {
    /// When something is to be done about it.
    fn wanted(&self, lateness: i64) -> i64 {
        if self.given { self.span.last.saturating_add(lateness) } else { self.span.last }
    }
}

impl<K: Key, T: Data, G: Gap<T>, A: Aggregate<T>> SessionAggregate<K, T, G, A> {
    pub(crate) fn new(window: Session<G>, aggregate: A, late: SideSlot<T>) -> Self {
        Self::with(window, aggregate, Late::new(late))
    }

    fn with(window: Session<G>, aggregate: A, late: Late<T>) -> Self {
        SessionAggregate {
            window,
            aggregate,
            kept: Opened(None),
            rules: When::default(),
            watermark: Watermark::MIN,
            held: Held::default(),
            cx: Opened(None),
            late,
        }
    }

    /// A record that does not simply belong to the only session of its key.
    #[inline(never)]
    fn elsewhere(
        &mut self,
        record: Record<Keyed<K, T>>,
        span: Span,
        out: &mut impl Collector<WindowResult<K, A::Out>>,
    ) -> Result<()> {
        if record.time == EventTime::NONE {
            return Err(no_event_time());
        }
        let Record { value: Keyed { hash, key, value }, time } = record;
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        if self.held.waits() {
            // Sessions that are over take nothing in, though their turn has not come: the turn of this key's is now.
            let (now, by) = (self.watermark.0, (&self.aggregate, &self.rules));
            let is_over = |open: &Open<A::Acc>| open.wanted(by.1.lateness) <= now;
            kept.sessions.look_at(hash, &key, is_over, |open| settle(by, &key, open, now, out))?;
        }
        let merged = kept.sessions.merged(hash, &key, span)?;
        if merged.last.saturating_add(self.rules.lateness) <= self.watermark.0 {
            return self.late.take(Record { value, time });
        }
        let joined = kept.sessions.join(hash, &key, span, |all, part| {
            self.aggregate.merge(&mut all.acc, part.acc);
            all.panes = all.panes.max(part.panes);
            all.since = all.since.saturating_add(part.since);
            all.listed |= part.listed;
        })?;
        let new = || {
            let acc = self.aggregate.create();
            Open { span, acc, panes: 0, since: 0, given: false, listed: false, timer: i64::MAX }
        };
        let mut open = joined.unwrap_or_else(new);
        open.span = merged;
        self.aggregate.add(&mut open.acc, &value);
        open.since = open.since.saturating_add(1);
        open.given = merged.last <= self.watermark.0;
        if open.given {
            give(&self.aggregate, &self.rules, &key, &mut open, Pane::late, out)?;
        } else {
            if self.rules.after.is_some() && !open.listed {
                open.listed = true;
                kept.new.push((hash, key.clone()));
            }
            if self.rules.is_due(open.since) {
                give(&self.aggregate, &self.rules, &key, &mut open, Pane::early, out)?;
            }
        }
        let wanted = open.wanted(self.rules.lateness);
        kept.sessions.put(hash, &key, open, wanted)
    }

    /// Gives early what is new, if it is time for that.
    fn give_new(&mut self, out: &mut impl Collector<WindowResult<K, A::Out>>) -> Result<()> {
        let (Some(kept), Some(cx)) = (&mut self.kept.0, &self.cx.0) else { return Err(not_open()) };
        let Some(after) = self.rules.after.filter(|_| !kept.new.is_empty()) else { return Ok(()) };
        let now = cx.clock().now_ms();
        // A clock that was set back must not put it off for long.
        let due = kept.due.get_or_insert(now.saturating_add(after));
        *due = (*due).min(now.saturating_add(after));
        if now < *due {
            return Ok(());
        }
        kept.due = None;
        let Kept { sessions: OpenSessions { table, .. }, new, .. } = kept;
        for (given, (hash, key)) in new.drain(..).enumerate() {
            if given % AT_ONCE == AT_ONCE - 1 {
                cx.not_cancelled()?;
            }
            let Some(place) = table.find(hash, &key)? else { continue };
            for open in table.at(place).each() {
                open.listed = false;
                // Those that are over give their result on time when it is their turn.
                if open.since > 0 && !open.given && open.span.last > self.watermark.0 {
                    give(&self.aggregate, &self.rules, &key, open, Pane::early, out)?;
                }
            }
        }
        Ok(())
    }

    /// Gives what this turn may of what comes before the first signal that waits; that signal when all of it was given.
    #[inline(never)]
    fn give(&mut self, out: &mut impl Collector<WindowResult<K, A::Out>>) -> Result<Option<HeldSignal>> {
        let Some(until) = self.held.until() else { return Ok(self.held.next()) };
        let (Some(kept), Some(cx)) = (&mut self.kept.0, &self.cx.0) else { return Err(not_open()) };
        let by = (&self.aggregate, &self.rules);
        let look = |key: &K, open, time| settle(by, key, open, time, out);
        if !kept.sessions.fire(until, &mut self.held, cx, look)? {
            return Ok(None);
        }
        kept.batch_end()?;
        Ok(self.held.next())
    }
}

/// Gives what a session has come to.
fn give<K: Key, T, A: Aggregate<T>>(
    aggregate: &A,
    rules: &When,
    key: &K,
    open: &mut Open<A::Acc>,
    pane: fn(u32) -> Pane,
    out: &mut impl Collector<WindowResult<K, A::Out>>,
) -> Result<()> {
    let pane = pane(open.panes);
    open.panes = open.panes.saturating_add(1);
    open.since = 0;
    let window = open.span.window();
    let acc =
        if rules.discards { std::mem::replace(&mut open.acc, aggregate.create()) } else { open.acc.clone() };
    let value = aggregate.result(acc);
    out.emit(Record { value: WindowResult { key: key.clone(), window, value, pane }, time: window.last() })
}

impl<K: Key, T: Data, G: Gap<T>, A: Aggregate<T>> Clone for SessionAggregate<K, T, G, A> {
    fn clone(&self) -> Self {
        Self::with(self.window.clone(), self.aggregate.clone(), self.late.clone())
    }
}

impl<K: Key, T: Data, G, A: Aggregate<T>> fmt::Debug for SessionAggregate<K, T, G, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionAggregate({:?})", self.kept)
    }
}

impl<K: Key, T: Data, G: Gap<T>, A: Aggregate<T>> Operator<Keyed<K, T>> for SessionAggregate<K, T, G, A> {
    type Out = WindowResult<K, A::Out>;
    const HOLDS_SIGNALS: bool = true;
    const RELEASES_BETWEEN_BATCHES: bool = true;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.rules = self.window.check::<T>()?;
        let store = cx.store()?;
        // Of version 1 were sessions without early results.
        let table = Table::new("sessions").schema(Schema::starting_at(2));
        let mut table: StateMap<K, Sessions<A::Acc>> = store.state_map(table)?;
        if cx.is_restored() {
            let mut start = None;
            table.visit_some(&mut Tour::default(), 1, |_, sessions| start = Some(sessions.one.span.start))?;
            start.map_or(Ok(()), |start| check_kept(cx, &session_layout(&self.rules), start))?;
        }
        let timers = Timers::open(&store, "timers")?;
        let mut kept = Kept { sessions: OpenSessions::new(table, timers), new: Vec::new(), due: None };
        if self.rules.after.is_some() && cx.is_restored() {
            let new = &mut kept.new;
            kept.sessions.table.for_each(|key, sessions| {
                if sessions.is_listed() {
                    new.push((key_hash(key), key.clone()));
                }
            })?;
        }
        self.kept = Opened(Some(kept));
        self.watermark = progress::restored(cx)?;
        self.held = Held::restored(cx, self.watermark);
        self.cx = Opened(Some(cx.clone()));
        self.late.open(cx);
        Ok(())
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, T>>]) -> Result<()> {
        self.held.comes(batch.len());
        self.kept.0.as_mut().ok_or_else(not_open)?.sessions.prefetch(batch)
    }

    #[inline]
    fn process(&mut self, record: Record<Keyed<K, T>>, out: &mut impl Collector<Self::Out>) -> Result<()> {
        let Some(kept) = &mut self.kept.0 else { return Err(not_open()) };
        let Keyed { hash, key, value } = &record.value;
        let span = Span::of(record.time, self.window.gap.gap(value));
        if let Some(place) = kept.sessions.table.find(*hash, key)?
            && let Some(open) = kept.sessions.table.at(place).only()
            && !open.given
            && open.span.last > self.watermark.0
            && open.span.overlaps(span)
            && record.time != EventTime::NONE
        {
            // It is not over, and only gets longer: its timer comes soon enough.
            open.span = open.span.and(span);
            self.aggregate.add(&mut open.acc, value);
            open.since = open.since.saturating_add(1);
            if self.rules.after.is_some() && !open.listed {
                open.listed = true;
                kept.new.push((*hash, key.clone()));
            }
            if self.rules.is_due(open.since) {
                return give(&self.aggregate, &self.rules, key, open, Pane::early, out);
            }
            return Ok(());
        }
        self.elsewhere(record, span, out)
    }

    fn on_batch_end(&mut self, out: &mut impl Collector<Self::Out>) -> Result<()> {
        self.late.count();
        self.held.batch_end();
        self.give_new(out)?;
        self.kept.0.as_mut().map_or(Ok(()), Kept::batch_end)
    }

    fn on_quiet(&mut self, out: &mut impl Collector<Self::Out>) -> Result<()> {
        self.held.quiet();
        self.give_new(out)?;
        self.kept.0.as_mut().map_or(Ok(()), Kept::batch_end)
    }

    fn wakes_at(&self) -> Option<i64> {
        self.kept.0.as_ref().and_then(|kept| kept.due)
    }

    fn on_watermark(&mut self, watermark: Watermark, _: &mut impl Collector<Self::Out>) -> Result<()> {
        // After a restore event time first comes to where it was.
        self.watermark = self.watermark.max(watermark);
        Ok(())
    }

    fn hold(&mut self, signal: HeldSignal) {
        self.held.hold(signal);
    }

    gives_in_parts!();

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        self.kept.0.as_mut().ok_or_else(not_open)?.sessions.freeze(into)?;
        keep_layout(&session_layout(&self.rules), into);
        self.held.keep(self.watermark, into);
        Ok(())
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
