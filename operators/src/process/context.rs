//! `KeyedContext`: what user code may know and do of the key at hand; and `Kept`, what lies behind it for all keys.
// HOT: `state` probes the table once per record. No allocation, lock, log or clock.

use std::fmt;
use std::mem::size_of;

use weir_engine::{EventTime, Key, KeyHash, OperatorContext, Result, SharedClock, Watermark};
use weir_state::keyed::{Place, State, StateMap, Table, Tour};
use weir_state::schema::Schema;
use weir_state::store::{Snapshot, Store};

use crate::progress;
use crate::timers::Timers;

/// The clock that a timer goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    EventTime,
    ProcessingTime,
}

/// What one subtask keeps of all its keys.
pub(super) struct Kept<K, S> {
    store: Store,
    table: StateMap<K, S>,
    timers: Timers<K>,
    processing_timers: Timers<K>,
    /// What user code sees.
    watermark: Watermark,
    /// How far event time has come: while timers fire, the watermark that they fire by may be one before that.
    reached: Watermark,
    clock: SharedClock,
    pub(super) subtask: usize,
}

impl<K: Key, S: State> Kept<K, S> {
    pub(super) fn open(cx: &OperatorContext, schema: Schema<S>) -> Result<Self> {
        let store = cx.store()?;
        let reached = progress::restored(cx)?;
        Ok(Kept {
            table: store.state_map(Table::new("state").schema(schema))?,
            timers: Timers::open(&store, "timers")?,
            processing_timers: Timers::open(&store, "processing_timers")?,
            watermark: reached,
            reached,
            clock: cx.clock().clone(),
            subtask: cx.subtask(),
            store,
        })
    }

    #[inline]
    pub(super) fn timers(&mut self, by: By) -> &mut Timers<K> {
        match by {
            By::EventTime => &mut self.timers,
            By::ProcessingTime => &mut self.processing_timers,
        }
    }

    /// A state without a size is a function's way to say that it has none.
    pub(super) fn has_state(&self) -> bool {
        size_of::<S>() > 0
    }

    /// True when there is a key that has state. Asked before records flow.
    pub(super) fn holds_any(&mut self) -> Result<bool> {
        let mut any = false;
        self.table.visit_some(&mut Tour::default(), 1, |_, _| any = true)?;
        Ok(any)
    }

    /// Fetches what is kept of these keys.
    pub(super) fn prefetch<'a>(&mut self, keys: impl Iterator<Item = (KeyHash, &'a K)>) -> Result<()> {
        if self.has_state() { Ok(self.table.prefetch(keys)?) } else { Ok(()) }
    }

    /// When the next timer by the job's clock is due.
    pub(super) fn first_processing_timer(&self) -> Option<i64> {
        self.processing_timers.first()
    }

    /// The time, if by the job's clock a timer is due.
    pub(super) fn processing_time_due(&self) -> Option<i64> {
        let first = self.first_processing_timer()?;
        Some(self.clock.now_ms()).filter(|now| first <= *now)
    }

    /// True when that is further than event time has come: then what is due by it is to fire.
    pub(super) fn event_time_reaches(&mut self, watermark: Watermark) -> bool {
        let further = watermark > self.reached;
        if further {
            (self.watermark, self.reached) = (watermark, watermark);
            self.timers.reach(watermark.0);
        }
        further
    }

    /// How far event time has come.
    pub(super) fn reached(&self) -> Watermark {
        self.reached
    }

    /// Timers fire by a watermark that may be one before the furthest.
    pub(super) fn fires_by(&mut self, watermark: Watermark) {
        self.watermark = watermark;
        self.timers.fire_until(watermark.0);
    }

    /// They fire no more, for now.
    pub(super) fn has_fired(&mut self) {
        self.watermark = self.reached;
        self.timers.pause();
    }

    /// A timer of that time is about to fire: states with a time to live by event time are as old as that.
    #[inline]
    pub(super) fn event_time_passes(&self, time: EventTime) {
        self.store.event_time_passes(time.0);
    }

    /// True when something here has a time to live by event time.
    pub(super) fn expires_by_event_time(&self) -> bool {
        self.store.expires_by_event_time()
    }

    /// All that was due by that watermark has fired.
    pub(super) fn event_time_has_reached(&self, watermark: Watermark) {
        self.store.event_time(watermark.0);
    }

    pub(super) fn batch_end(&mut self) -> Result<()> {
        Ok(self.table.batch_end()?)
    }

    pub(super) fn freeze(&mut self, into: &mut Snapshot) -> Result<()> {
        self.table.freeze(into)?;
        self.timers.freeze(into);
        self.processing_timers.freeze(into);
        Ok(())
    }
}

/// The key at hand: its state, its timers, and where event time stands.
///
/// Timers are unique per key and time: setting one again changes nothing. They fire when the watermark reaches them, in
/// the order of their times, those of one time in the order in which they were set. A timer set at or before the
/// watermark fires at the next advance, as in Flink. While timers fire, one set at or before the time that is firing waits
/// for the next advance too, so that no advance can last for ever.
///
/// *Many timers* of one watermark fire in parts, between which the task reads on and barriers are served; the watermark goes on behind the
/// last. A record or a processing timer that comes meanwhile finds its key as if all had fired: what is due of that key fires first. Only
/// the order in which keys have their turns is another then; and a state with a [time to live](weir_state::ttl::Ttl) by event time may still be there
/// that expires between the timer fired last and the watermark. A checkpoint in between keeps what has not fired.
///
/// When the stream ends for good (watermark [`Watermark::MAX`]) every timer fires, and none can be set any more: attempts
/// are counted (`timers_refused`) and logged. Code that gives something in two steps asks for that watermark in
/// `on_timer`. When the job is drained to be continued, nothing fires but what a watermark had reached already; with checkpoints that
/// is left to the next life too.
///
/// *Processing timers* go by the job's clock instead. They fire after the batch of records, or within milliseconds during the
/// pause, in which their time has come; never before. One set for a time that is past fires then, too; one set by `on_processing_timer` for a
/// time not later than the one that is firing waits for the next time. They never fire because a stream ends.
///
/// *After a restore* states and timers of both kinds are as they were at the checkpoint, whatever the parallelism. Timers
/// of one time that were set by several subtasks, and now are one's, fire in the order of how many timers each of them had set
/// before, then of their key groups.
pub struct KeyedContext<'a, K, S> {
    key: &'a K,
    hash: KeyHash,
    /// Where the state of the key is, once looked up.
    place: Option<Place>,
    kept: &'a mut Kept<K, S>,
}

impl<K: fmt::Debug, S> fmt::Debug for KeyedContext<'_, K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyedContext({:?} at {:?})", self.key, self.kept.watermark)
    }
}

impl<'a, K, S> KeyedContext<'a, K, S> {
    #[inline]
    pub(super) fn new(key: &'a K, hash: KeyHash, kept: &'a mut Kept<K, S>) -> Self {
        KeyedContext { key, hash, place: None, kept }
    }

    /// A timer of that time is about to fire.
    #[inline]
    pub(super) fn time_passes(&self, time: EventTime)
    where
        K: Key,
        S: State,
    {
        self.kept.event_time_passes(time);
    }

    /// What a state needs to find what it keeps of the key.
    #[inline]
    pub(super) fn at(&self) -> (KeyHash, &'a K) {
        (self.hash, self.key)
    }
}

impl<K: Key, S: State + Default> KeyedContext<'_, K, S> {
    /// The key.
    #[inline]
    pub fn key(&self) -> &K {
        self.key
    }

    /// The state of the key, made by `Default` if there is none. Only the first call per record looks it up. A state that was
    /// asked for this way is written at the next checkpoint, whether it was changed or not.
    ///
    /// # Errors
    /// What is kept cannot be read: pass the error on.
    // Inlined into the loop over a batch, the probes of records that follow each other overlap in the processor.
    #[inline(always)]
    pub fn state(&mut self) -> Result<&mut S> {
        let place = match self.place {
            Some(place) => place,
            None => self.kept.table.find_or_insert_with(self.hash, self.key, S::default)?,
        };
        self.place = Some(place);
        Ok(self.kept.table.at(place))
    }

    /// The state of the key, if there is one: for a timer that must not bring a forgotten key back.
    ///
    /// # Errors
    /// As for [`state`](Self::state).
    #[inline]
    pub fn existing_state(&mut self) -> Result<Option<&mut S>> {
        let place = self.look_up()?;
        Ok(place.map(|place| self.kept.table.at(place)))
    }

    /// The state of the key, if there is one, to be read only: the next checkpoint does not write it for that.
    ///
    /// # Errors
    /// As for [`state`](Self::state).
    #[inline]
    pub fn peek_state(&mut self) -> Result<Option<&S>> {
        let place = self.look_up()?;
        Ok(place.map(|place| self.kept.table.peek(place)))
    }

    #[inline]
    fn look_up(&mut self) -> Result<Option<Place>> {
        if self.place.is_none() {
            self.place = self.kept.table.find(self.hash, self.key)?;
        }
        Ok(self.place)
    }

    /// Forgets the state of the key. Its timers stay, and so do its states with names. State that is never cleared stays as
    /// long as the job.
    pub fn clear_state(&mut self) {
        self.place = None;
        self.kept.table.remove(self.hash, self.key);
    }

    /// Asks for `on_timer` with this key when event time reaches `time`.
    pub fn set_timer(&mut self, time: EventTime) {
        self.kept.timers.set(self.hash, self.key, time);
    }

    /// Takes a timer of this key back; nothing happens when there is none.
    pub fn delete_timer(&mut self, time: EventTime) {
        self.kept.timers.delete(self.hash, self.key, time);
    }

    /// Asks for `on_processing_timer` with this key when the job's clock stands at `at_ms` (milliseconds since the epoch) or
    /// later.
    pub fn set_processing_timer(&mut self, at_ms: i64) {
        self.kept.processing_timers.set(self.hash, self.key, EventTime(at_ms));
    }

    /// Takes a processing timer of this key back; nothing happens when there is none.
    pub fn delete_processing_timer(&mut self, at_ms: i64) {
        self.kept.processing_timers.delete(self.hash, self.key, EventTime(at_ms));
    }

    /// Reads the job's clock: milliseconds since the epoch. What depends on it comes out otherwise when records are
    /// processed again after a failure.
    pub fn now_ms(&self) -> i64 {
        self.kept.clock.now_ms()
    }

    /// Where event time stands: in `on_timer`, at the watermark that is firing.
    #[inline]
    pub fn watermark(&self) -> Watermark {
        self.kept.watermark
    }

    /// True when a record of this time comes after the watermark that promised there would be none.
    #[inline]
    pub fn is_late(&self, time: EventTime) -> bool {
        self.kept.watermark.is_late(time)
    }

    /// Which subtask this is, from 0.
    pub fn subtask(&self) -> usize {
        self.kept.subtask
    }
}
