//! `Process`: the operator that runs a process function: its states, its timers, and their firing in parts
//! (over 400 lines: two clocks, whose timers fire in one way, and what users are told of it).
// HOT: at most one probe of the state table per record. No allocation, lock, log or clock of its own.

use std::fmt;
use std::marker::PhantomData;

use weir_engine::{
    Barrier, Collector, Counter, Data, EndKind, HeldSignal, Key, KeyHash, Keyed, Operator, OperatorContext,
    Record, Result, SignalPort, TaskError, Watermark,
};
use weir_state::store::Snapshot;

use super::ProcessFunction;
use super::context::{By, Kept, KeyedContext};
use crate::kept_with;
use crate::opened::Opened;
use crate::timers::Due;
use crate::window::held::Held;

/// The operator behind [`process`](crate::prelude::KeyedOps::process).
///
/// *State*: one `F::State` per key, in the table `state`, until it is cleared; the states with names in tables of these; in
/// memory as far as the job's budget for state reaches. Timers in the tables `timers` and `processing_timers`, all of them in memory: about 100 bytes and the key
/// for a key's only one, 60 for each further, and 24 bytes and the key for each change since the last checkpoint. A checkpoint writes what changed since the
/// one before. Nothing is forgotten but what the function clears, what expires, and timers that fire.
///
/// *Order*: see [`KeyedContext`]. Many timers fire in parts, so that a barrier waits for no more of them than there are records before it.
///
/// *Late records* are processed like others.
///
/// # Examples
/// A test drives a function by hand, its clocks too:
/// ```
/// # use std::sync::Arc;
/// # use weir_operators::{prelude::*, process::Process};
/// # use weir_engine::{Collector, KeyHash, Keyed, Record, Result};
/// # use weir_engine::testkit::{ManualClock, OpHarness, context_by};
/// /// Tells of keys of which nothing has come for a second of the job's clock.
/// #[derive(Clone)]
/// struct Quiet;
/// impl ProcessFunction<u64, ()> for Quiet {
///     type Out = u64;
///     type State = i64;
///     fn process(&mut self, _: Record<()>, cx: &mut KeyedContext<'_, u64, i64>, _: &mut impl Collector<u64>) -> Result<()> {
///         let until = cx.now_ms() + 1_000;
///         *cx.state()? = until;
///         cx.set_processing_timer(until);
///         Ok(())
///     }
///     fn on_processing_timer(&mut self, at: i64, cx: &mut KeyedContext<'_, u64, i64>, out: &mut impl Collector<u64>) -> Result<()> {
///         if cx.peek_state()? == Some(&at) { out.emit(Record::new(*cx.key(), weir_engine::EventTime::NONE)) } else { Ok(()) }
///     }
/// }
/// let clock = ManualClock::at(0);
/// let cx = context_by(Arc::new(clock.clone()), "quiet", 0, 1);
/// let mut harness = OpHarness::with(Process::new(Quiet), &cx)?;
/// let record = |key| Keyed { hash: KeyHash(key), key, value: () };
/// harness.batch([(record(1), 0), (record(2), 0)])?;
/// harness.pause(&clock, milliseconds(600))?;
/// harness.send(record(2), 0)?;
/// harness.pause(&clock, milliseconds(600))?;
/// assert_eq!(harness.take_values(), [1]);
/// # fn milliseconds(n: u64) -> std::time::Duration { std::time::Duration::from_millis(n) }
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
pub struct Process<K, In: Data, F: ProcessFunction<K, In>>
where
    K: Key,
{
    function: F,
    kept: Opened<Kept<K, F::State>>,
    held: Held,
    /// All timers up to this watermark have fired.
    fired: Watermark,
    /// By the job's clock timers may be due: nobody has looked in this turn.
    looks_at_clock: bool,
    /// They were, and not all have fired.
    has_due: bool,
    cx: Opened<OperatorContext>,
    refused: Counter,
    has_tags: bool,
    _in: PhantomData<fn(In)>,
}

/// How many timers fire before the states get to make room for more.
const FIRED_AT_ONCE: usize = 1_024;

impl<K: Key, In: Data, F: ProcessFunction<K, In>> Process<K, In, F> {
    /// The operator that runs `function`: what `process` adds to a stream, and what a test of it drives by hand.
    pub fn new(function: F) -> Self {
        Process {
            function,
            kept: Opened(None),
            held: Held::default(),
            fired: Watermark::MIN,
            looks_at_clock: false,
            has_due: false,
            cx: Opened(None),
            refused: Counter::default(),
            has_tags: false,
            _in: PhantomData,
        }
    }

    /// The function, as it runs.
    #[inline]
    pub(crate) fn function(&mut self) -> &mut F {
        &mut self.function
    }

    /// Fetches what is kept of these keys, but what the function alone knows of.
    pub(crate) fn prefetch_keys<'a>(
        &mut self,
        keys: impl Iterator<Item = (KeyHash, &'a K)> + Clone,
    ) -> Result<()> {
        self.kept()?.prefetch(keys.clone())?;
        let mut states = self.function.states();
        if !states.is_empty() {
            let keys: Vec<_> = keys.collect();
            states.iter_mut().try_for_each(|state| state.prefetch(&keys))?;
        }
        Ok(())
    }

    /// A batch of so many records is at hand.
    pub(crate) fn comes(&mut self, records: usize) {
        self.held.comes(records);
    }

    /// Fires event timers by the first watermark that waits; gives it, or another signal, when this turn has fired all of them.
    #[inline(never)]
    fn give(&mut self, out: &mut impl Collector<F::Out>) -> Result<Option<HeldSignal>> {
        if let Some(until) = self.held.until()
            && !self.fire_by(until, out)?
        {
            return Ok(None);
        }
        let next = self.held.next();
        if !self.held.waits() {
            self.kept()?.timers(By::EventTime).rest();
        }
        Ok(next)
    }

    /// Fires the event timers that are due by a watermark; false when there are more than this turn may fire.
    fn fire_by(&mut self, until: Watermark, out: &mut impl Collector<F::Out>) -> Result<bool> {
        // After a restore event time first comes to where it was: what it reached there has fired.
        if until <= self.fired {
            return Ok(true);
        }
        self.kept()?.fires_by(until);
        let all = self.fire(By::EventTime, out)?;
        self.kept()?.has_fired();
        if all {
            self.fired = until;
            // With what expires by this watermark.
            self.kept()?.event_time_has_reached(until);
            self.upkeep()?;
        }
        Ok(all)
    }

    /// Fires what the job's clock has reached, as much of it as this turn may.
    #[inline(never)]
    fn fire_by_clock(&mut self, out: &mut impl Collector<F::Out>) -> Result<()> {
        self.looks_at_clock = false;
        // Nobody asks what time it is while there is nothing to wait for.
        let Some(now) = self.kept()?.processing_time_due() else {
            self.has_due = false;
            return Ok(());
        };
        let timers = self.kept()?.timers(By::ProcessingTime);
        timers.reach(now);
        timers.fire_until(now);
        let has_due = !self.fire(By::ProcessingTime, out)?;
        self.has_due = has_due;
        let timers = self.kept()?.timers(By::ProcessingTime);
        if has_due {
            timers.pause()
        } else {
            timers.rest()
        }
        Ok(())
    }

    /// Fires timers; false when more are due than this turn may fire.
    fn fire(&mut self, by: By, out: &mut impl Collector<F::Out>) -> Result<bool> {
        let mut fired = 0;
        // What a record puts between two parts would be as old as the last timer, and expire with the watermark; and what a timer that
        // waits is to find would expire with the timers of other keys.
        let at_one_go = by == By::EventTime && self.kept()?.expires_by_event_time();
        loop {
            let is_spent = match by {
                By::EventTime => !at_one_go && self.held.is_spent(),
                By::ProcessingTime => fired >= self.held.part(),
            };
            if is_spent && self.kept()?.timers(by).has_due() {
                return Ok(false);
            }
            let Some(due) = self.kept()?.timers(by).next_due() else { return Ok(true) };
            if fired % FIRED_AT_ONCE == 0 {
                // A million may be due at once, and none of them may reach a channel, which would hear it too.
                self.cx.0.as_ref().ok_or_else(not_open)?.not_cancelled()?;
                self.upkeep()?;
                self.prefetch_due(by, &due)?;
            }
            fired += 1;
            if by == By::EventTime {
                self.held.gave(1);
            } else if self.kept()?.timers(By::EventTime).is_advancing() {
                self.turn_of(due.hash, &due.key, out)?;
            }
            self.fires(by, &due, out)?;
        }
    }

    /// A timer fires.
    fn fires(&mut self, by: By, due: &Due<K>, out: &mut impl Collector<F::Out>) -> Result<()> {
        let Some(kept) = &mut self.kept.0 else { return Err(not_open()) };
        let mut cx = KeyedContext::new(&due.key, due.hash, kept);
        match by {
            By::EventTime => {
                cx.time_passes(due.time);
                self.function.on_timer(due.time, &mut cx, out)
            }
            By::ProcessingTime => self.function.on_processing_timer(due.time.0, &mut cx, out),
        }
    }

    /// What event time has reached is not fired yet: of this key it is now, so that nothing that comes for it is before that.
    #[cold]
    fn turn_of(&mut self, hash: KeyHash, key: &K, out: &mut impl Collector<F::Out>) -> Result<()> {
        let until = self.kept()?.reached().0;
        while let Some(due) = self.kept()?.timers(By::EventTime).next_due_of(hash, key, until) {
            self.held.gave(1);
            self.fires(By::EventTime, &due, out)?;
        }
        self.kept()?.timers(By::EventTime).pause();
        Ok(())
    }

    /// Fires all that event time has reached, at once.
    pub(crate) fn finish(&mut self, out: &mut impl Collector<F::Out>) -> Result<()> {
        let waiting: Vec<Watermark> = self.held.watermarks().collect();
        for until in waiting {
            while !self.fire_by(until, out)? {
                self.held.quiet();
            }
        }
        Ok(())
    }

    /// Fetches what is kept of a key whose timer fires, and of those that come next.
    fn prefetch_due(&mut self, by: By, due: &Due<K>) -> Result<()> {
        let kept = self.kept.0.as_mut().ok_or_else(not_open)?;
        let mut states = self.function.states();
        if !kept.has_state() && states.is_empty() {
            return Ok(());
        }
        let most = self.held.part().min(FIRED_AT_ONCE);
        let soon = kept.timers(by).soon_due(most).map(|(hash, key)| (hash, key.clone()));
        let keys: Vec<(KeyHash, K)> = [(due.hash, due.key.clone())].into_iter().chain(soon).collect();
        let keys: Vec<(KeyHash, &K)> = keys.iter().map(|(hash, key)| (*hash, key)).collect();
        kept.prefetch(keys.iter().copied())?;
        states.iter_mut().try_for_each(|state| state.prefetch(&keys))
    }

    /// Lets every state take back what was frozen, and make room.
    fn upkeep(&mut self) -> Result<()> {
        self.kept()?.batch_end()?;
        self.function.states().into_iter().try_for_each(|state| state.batch_end())
    }

    #[inline]
    fn kept(&mut self) -> Result<&mut Kept<K, F::State>> {
        self.kept.0.as_mut().ok_or_else(not_open)
    }
}

#[cold]
fn not_open() -> TaskError {
    TaskError::internal("a process function was used before it was open")
}

impl<K: Key, In: Data, F: ProcessFunction<K, In>> Clone for Process<K, In, F> {
    fn clone(&self) -> Self {
        Process::new(self.function.clone())
    }
}

impl<K: Key, In: Data, F: ProcessFunction<K, In>> fmt::Debug for Process<K, In, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({:?})", self.kept)
    }
}

impl<K: Key, In: Data, F: ProcessFunction<K, In>> Operator<Keyed<K, In>> for Process<K, In, F> {
    type Out = F::Out;
    const HOLDS_SIGNALS: bool = true;
    const RELEASES_BETWEEN_BATCHES: bool = true;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.refused = cx.counter("timers_refused");
        self.cx = Opened(Some(cx.clone()));
        self.kept = Opened(Some(Kept::open(cx, self.function.schema())?));
        let reached = self.kept()?.reached();
        self.held = Held::restored(cx, reached);
        self.fired = reached;
        if self.held.waits() {
            // Some of what is due by it had fired, and is gone.
            self.fired = Watermark::MIN;
            self.kept()?.timers(By::EventTime).reach(reached.0);
        }
        let needed = self.function.kept_with();
        if !needed.is_empty() && cx.is_restored() && self.kept()?.holds_any()? {
            kept_with::check(&needed, cx)?;
        }
        let store = cx.store()?;
        self.function.states().into_iter().try_for_each(|state| state.open(&store))?;
        for tag in self.function.tags() {
            tag.open(cx);
            self.has_tags = true;
        }
        self.function.open(cx)
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, In>>]) -> Result<()> {
        self.comes(batch.len());
        self.prefetch_keys(batch.iter().map(|r| (r.value.hash, &r.value.key)))?;
        self.function.prefetch(batch)
    }

    #[inline]
    fn process(&mut self, record: Record<Keyed<K, In>>, out: &mut impl Collector<F::Out>) -> Result<()> {
        let Record { value: Keyed { hash, key, value }, time } = record;
        if self.kept()?.timers(By::EventTime).is_advancing() {
            self.turn_of(hash, &key, out)?;
        }
        let Some(kept) = &mut self.kept.0 else { return Err(not_open()) };
        self.function.process(Record { value, time }, &mut KeyedContext::new(&key, hash, kept), out)
    }

    fn on_batch_end(&mut self, _: &mut impl Collector<F::Out>) -> Result<()> {
        self.held.batch_end();
        self.looks_at_clock = true;
        self.upkeep()
    }

    fn on_quiet(&mut self, _: &mut impl Collector<F::Out>) -> Result<()> {
        self.held.quiet();
        self.looks_at_clock = true;
        self.upkeep()
    }

    fn wakes_at(&self) -> Option<i64> {
        self.kept.0.as_ref().and_then(Kept::first_processing_timer)
    }

    fn on_watermark(&mut self, watermark: Watermark, _: &mut impl Collector<F::Out>) -> Result<()> {
        self.kept()?.event_time_reaches(watermark);
        Ok(())
    }

    fn hold(&mut self, signal: HeldSignal) {
        self.held.hold(signal);
    }

    #[inline]
    fn release(&mut self, out: &mut impl Collector<F::Out>) -> Result<Option<HeldSignal>> {
        if !self.held.rests()
            && let Some(signal) = self.give(out)?
        {
            return Ok(Some(signal));
        }
        if self.looks_at_clock {
            self.fire_by_clock(out)?;
        }
        Ok(None)
    }

    fn has_more(&self) -> bool {
        self.held.waits() || self.has_due
    }

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        kept_with::keep(&self.function.kept_with(), into);
        let kept = self.kept()?;
        kept.freeze(into)?;
        let reached = kept.reached();
        self.held.keep(reached, into);
        self.function.states().into_iter().try_for_each(|state| state.freeze(into))
    }

    fn on_end(&mut self, kind: EndKind, out: &mut impl Collector<F::Out>) -> Result<()> {
        let leaves = kind == EndKind::Keep && self.cx.0.as_ref().ok_or_else(not_open)?.takes_checkpoints();
        self.held.end(leaves);
        if !leaves {
            self.finish(out)?;
            if self.looks_at_clock {
                self.fire_by_clock(out)?;
            } else if self.has_due {
                // The rest of what the clock had reached when it was looked at.
                self.fire(By::ProcessingTime, out)?;
            }
        }
        (self.looks_at_clock, self.has_due) = (false, false);
        let kept = self.kept()?;
        let (refused, subtask) = (kept.timers(By::EventTime).refused(), kept.subtask);
        if refused > 0 {
            self.refused.add(refused);
            tracing::warn!(
                refused,
                subtask,
                "timers were set while the last watermark fired: they will never fire"
            );
        }
        Ok(())
    }

    fn sides(&mut self) -> Option<&mut dyn SignalPort> {
        if self.has_tags { Some(self) } else { None }
    }
}
