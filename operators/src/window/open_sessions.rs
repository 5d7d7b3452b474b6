//! `OpenSessions`: the sessions of each key that are not forgotten yet, and the timers that look at them.

use weir_engine::{EventTime, Key, KeyHash, Keyed, OperatorContext, Record, Result, Watermark};
use weir_state::keyed::{State, StateMap};
use weir_state::store::Snapshot;

use crate::timers::{Due, Timers};
use crate::window::held::Held;
use crate::window::session::{Open, Sessions, Span};
use crate::window::tumbling::AT_ONCE;

/// A session that goes on, and when it is to be looked at next.
pub(crate) type GoesOn<A> = Option<(Open<A>, i64)>;

/// What a session operator keeps of its keys.
pub(crate) struct OpenSessions<K, A> {
    pub(crate) table: StateMap<K, Sessions<A>>,
    timers: Timers<K>,
    taken: Vec<Open<A>>,
}

impl<K: Key, A: State> OpenSessions<K, A> {
    pub(crate) fn new(table: StateMap<K, Sessions<A>>, timers: Timers<K>) -> Self {
        OpenSessions { table, timers, taken: Vec::new() }
    }

    pub(crate) fn batch_end(&mut self) -> Result<()> {
        Ok(self.table.batch_end()?)
    }

    pub(crate) fn freeze(&mut self, into: &mut Snapshot) -> Result<()> {
        self.table.freeze(into)?;
        self.timers.freeze(into);
        Ok(())
    }

    /// Fetches what is kept of the keys of these records.
    pub(crate) fn prefetch<T>(&mut self, batch: &[Record<Keyed<K, T>>]) -> Result<()> {
        Ok(self.table.prefetch(batch.iter().map(|r| (r.value.hash, &r.value.key)))?)
    }

    /// Puts a session back with those of its key; a timer looks at it at `wanted` or before.
    pub(crate) fn put(&mut self, hash: KeyHash, key: &K, mut open: Open<A>, wanted: i64) -> Result<()> {
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

    /// What a session of this span becomes with those of the key that it overlaps.
    pub(crate) fn merged(&mut self, hash: KeyHash, key: &K, span: Span) -> Result<Span> {
        Ok(match self.table.find(hash, key)? {
            Some(place) => self.table.peek(place).merged(span),
            None => span,
        })
    }

    /// Takes out the sessions of a key that a span overlaps, as one: of two the one that began first takes the other in.
    pub(crate) fn join(
        &mut self,
        hash: KeyHash,
        key: &K,
        span: Span,
        mut take_in: impl FnMut(&mut Open<A>, Open<A>),
    ) -> Result<Option<Open<A>>> {
        self.take_if(hash, key, |open| open.span.overlaps(span))?;
        self.taken.sort_unstable_by_key(|open| open.span.start);
        Ok(self.taken.drain(..).reduce(|mut all, part| {
            all.timer = all.timer.min(part.timer);
            take_in(&mut all, part);
            all
        }))
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

    /// Looks at the sessions of a key that satisfy `looks_at`, the first to end first, and keeps those that go on.
    pub(crate) fn look_at(
        &mut self,
        hash: KeyHash,
        key: &K,
        looks_at: impl FnMut(&Open<A>) -> bool,
        mut look: impl FnMut(Open<A>) -> Result<GoesOn<A>>,
    ) -> Result<()> {
        self.take_if(hash, key, looks_at)?;
        let mut looked_at = std::mem::take(&mut self.taken);
        looked_at.sort_unstable_by_key(|open| open.span.last);
        for open in looked_at.drain(..) {
            if let Some((mut open, wanted)) = look(open)? {
                open.timer = i64::MAX;
                self.put(hash, key, open, wanted)?;
            }
        }
        self.taken = looked_at;
        Ok(())
    }

    /// Looks at what is due by a watermark, with the time at which that is; false when there is more than this turn may give.
    pub(crate) fn fire(
        &mut self,
        until: Watermark,
        held: &mut Held,
        cx: &OperatorContext,
        mut look: impl FnMut(&K, Open<A>, i64) -> Result<GoesOn<A>>,
    ) -> Result<bool> {
        // While the last watermark fires no timer can be set, and what is looked at too early wants another.
        let before_the_last = until.0.min(i64::MAX - 1);
        Ok(self.fire_until(before_the_last, held, cx, &mut look)?
            && (until < Watermark::MAX || self.fire_until(i64::MAX, held, cx, &mut look)?))
    }

    fn fire_until(
        &mut self,
        until: i64,
        held: &mut Held,
        cx: &OperatorContext,
        look: &mut impl FnMut(&K, Open<A>, i64) -> Result<GoesOn<A>>,
    ) -> Result<bool> {
        if !self.timers.is_advancing() {
            self.timers.reach(until);
        }
        self.timers.fire_until(until);
        let mut fired = 0usize;
        loop {
            if held.is_spent() && self.timers.has_due() {
                self.timers.pause();
                return Ok(false);
            }
            let Some(Due { time, hash, key }) = self.timers.next_due() else {
                self.timers.rest();
                return Ok(true);
            };
            if fired.is_multiple_of(AT_ONCE) {
                // Nothing of what is given may reach a channel, which would hear it too.
                cx.not_cancelled()?;
                self.batch_end()?;
                let soon: Vec<_> =
                    self.timers.soon_due(AT_ONCE).map(|(hash, key)| (hash, key.clone())).collect();
                self.table.prefetch(soon.iter().map(|(hash, key)| (*hash, key)))?;
            }
            fired += 1;
            held.gave(1);
            self.look_at(hash, &key, |open| open.timer <= time.0, |open| look(&key, open, time.0))?;
        }
    }
}
