//! The session window operator: the sessions of each key, which grow, merge, and are given when they are over.
// HOT: one probe per record that belongs to the only session of its key. No allocation, lock, log or clock, nor a timer.

use std::fmt;

use weir_engine::{
    Barrier, Collector, Data, EndKind, EventTime, Key, KeyHash, Keyed, Operator, OperatorContext, Record,
    Result, SideSlot, SignalPort, Watermark,
};
use weir_state::keyed::{State, StateMap, Table};
use weir_state::store::Snapshot;

use crate::aggregate::Aggregate;
use crate::late::{Late, no_event_time};
use crate::opened::Opened;
use crate::progress;
use crate::timers::{Due, Timers};
use crate::window::session::{Gap, Open, Session, Sessions, Span};
use crate::window::tumbling::{AT_ONCE, not_open};
use crate::window::{Pane, WindowResult};

/// The operator behind [`aggregate`](crate::prelude::WindowOps::aggregate) on [`Session`] windows.
///
/// *State*: per key its open sessions, each an accumulator and its bounds, in the table `sessions`; in memory as far as the
/// job's budget reaches. A timer per session in the table `timers`, in memory: about 64 bytes and the key. It is set when a
/// session begins and looks again when it comes, so that a record costs none; a key that goes on and on is looked at about
/// once per gap. A session is forgotten when it is over and no late record is allowed any more. Checkpoints write what
/// changed since the one before. The gap and the allowed lateness may change between lives of a job: what is open keeps the
/// end it had.
///
/// *Order*: sessions are given in the order they end. The time of a result is the last millisecond of its session.
///
/// *Late records*: a record is late when the session that it belongs to, once merged with what is open, is over. It changes
/// nothing, opens no session, goes to the late output if that is read, and is counted as `late_records` in any case. With
/// `allow_lateness` it is taken in while that session has been over for no longer than that, and the session gives a new
/// result at once ([`Timing::Late`](crate::window::Timing::Late)). One that joins a session which was given to one that is
/// still open makes one of both, with the number of results that the first has had: what was given under the old bounds is
/// part of what comes then.
pub struct SessionAggregate<K: Key, T: Data, G, A: Aggregate<T>> {
    window: Session<G>,
    aggregate: A,
    kept: Opened<Kept<K, A::Acc>>,
    lateness: i64,
    watermark: Watermark,
    cx: Opened<OperatorContext>,
    late: Late<T>,
}

struct Kept<K, A> {
    table: StateMap<K, Sessions<A>>,
    timers: Timers<K>,
    taken: Vec<Open<A>>,
}

impl<K: Key, A: State> Kept<K, A> {
    fn batch_end(&mut self) -> Result<()> {
        Ok(self.table.batch_end()?)
    }

    /// Puts a session back with those of its key. A timer must look at it before anything is to be done.
    fn put(&mut self, hash: KeyHash, key: &K, mut open: Open<A>, lateness: i64) -> Result<()> {
        let wanted = open.wanted(lateness);
        // Setting it where it is changes nothing; without one it is the end of time, at which one may be wanted too.
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
    fn take_if(&mut self, hash: KeyHash, key: &K, f: impl FnMut(&Open<A>) -> bool) -> Result<()> {
        if let Some(place) = self.table.find(hash, key)?
            && !self.table.at(place).take_if(f, &mut self.taken)
        {
            self.table.remove(hash, key);
        }
        Ok(())
    }
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
            lateness: 0,
            watermark: Watermark::MIN,
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
        let merged = match kept.table.find(hash, &key)? {
            Some(place) => kept.table.peek(place).merged(span),
            None => span,
        };
        if merged.last.saturating_add(self.lateness) <= self.watermark.0 {
            return self.late.take(Record { value, time });
        }
        kept.take_if(hash, &key, |open| open.span.overlaps(span))?;
        kept.taken.sort_unstable_by_key(|open| open.span.start);
        let joined = kept.taken.drain(..).reduce(|mut all, part| {
            self.aggregate.merge(&mut all.acc, part.acc);
            all.panes = all.panes.max(part.panes);
            all.timer = all.timer.min(part.timer);
            all
        });
        let new = || Open { span, acc: self.aggregate.create(), panes: 0, given: false, timer: i64::MAX };
        let mut open = joined.unwrap_or_else(new);
        open.span = merged;
        self.aggregate.add(&mut open.acc, &value);
        open.given = merged.last <= self.watermark.0;
        if open.given {
            give(&self.aggregate, &key, &mut open, Pane::late, out)?;
        }
        kept.put(hash, &key, open, self.lateness)
    }

    /// Gives the sessions that are over by `until`.
    fn fire(&mut self, until: i64, out: &mut impl Collector<WindowResult<K, A::Out>>) -> Result<()> {
        let (Some(kept), Some(cx)) = (&mut self.kept.0, &self.cx.0) else { return Err(not_open()) };
        kept.timers.advance(until);
        let mut fired = 0usize;
        while let Some(Due { time, hash, key }) = kept.timers.next_due() {
            if fired.is_multiple_of(AT_ONCE) {
                // Nothing of what is given may reach a channel, which would hear it too.
                cx.not_cancelled()?;
                kept.batch_end()?;
                let soon: Vec<_> =
                    kept.timers.soon_due(AT_ONCE).map(|(hash, key)| (hash, key.clone())).collect();
                kept.table.prefetch(soon.iter().map(|(hash, key)| (*hash, key)))?;
            }
            fired += 1;
            kept.take_if(hash, &key, |open| open.timer <= time.0)?;
            let mut looked_at = std::mem::take(&mut kept.taken);
            looked_at.sort_unstable_by_key(|open| open.span.last);
            for mut open in looked_at.drain(..) {
                if !open.given && open.span.last <= time.0 {
                    open.given = true;
                    give(&self.aggregate, &key, &mut open, Pane::on_time, out)?;
                }
                if !open.given || open.wanted(self.lateness) > time.0 {
                    open.timer = i64::MAX;
                    kept.put(hash, &key, open, self.lateness)?;
                }
            }
            kept.taken = looked_at;
        }
        Ok(())
    }
}

/// Gives what a session has come to.
fn give<K: Key, T, A: Aggregate<T>>(
    aggregate: &A,
    key: &K,
    open: &mut Open<A::Acc>,
    pane: fn(u32) -> Pane,
    out: &mut impl Collector<WindowResult<K, A::Out>>,
) -> Result<()> {
    let pane = pane(open.panes);
    open.panes = open.panes.saturating_add(1);
    let window = open.span.window();
    let value = aggregate.result(open.acc.clone());
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

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.lateness = self.window.check::<T>()?;
        let store = cx.store()?;
        let table = store.state_map(Table::new("sessions"))?;
        let timers = Timers::open(&store, "timers")?;
        self.kept = Opened(Some(Kept { table, timers, taken: Vec::new() }));
        self.watermark = progress::restored(cx)?;
        self.cx = Opened(Some(cx.clone()));
        self.late.open(cx);
        Ok(())
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, T>>]) -> Result<()> {
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        Ok(kept.table.prefetch(batch.iter().map(|r| (r.value.hash, &r.value.key)))?)
    }

    #[inline]
    fn process(&mut self, record: Record<Keyed<K, T>>, out: &mut impl Collector<Self::Out>) -> Result<()> {
        let Some(kept) = &mut self.kept.0 else { return Err(not_open()) };
        let Keyed { hash, key, value } = &record.value;
        let span = Span::of(record.time, self.window.gap.gap(value));
        if let Some(place) = kept.table.find(*hash, key)?
            && let Some(open) = kept.table.at(place).only()
            && !open.given
            && open.span.overlaps(span)
            && record.time != EventTime::NONE
        {
            // It is not over, and only gets longer: its timer comes soon enough.
            open.span = open.span.and(span);
            self.aggregate.add(&mut open.acc, value);
            return Ok(());
        }
        self.elsewhere(record, span, out)
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
        if watermark <= self.watermark {
            return Ok(());
        }
        self.watermark = watermark;
        // While the last watermark fires no timer can be set, and what is looked at too early wants another.
        self.fire(watermark.0.min(i64::MAX - 1), out)?;
        if watermark == Watermark::MAX {
            self.fire(i64::MAX, out)?;
        }
        self.kept.0.as_mut().map_or(Ok(()), Kept::batch_end)
    }

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        kept.table.freeze(into)?;
        kept.timers.freeze(into);
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
#[path = "session_tests.rs"]
mod tests;
