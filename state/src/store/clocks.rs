//! The clocks that TTLs go by, and the rule by which a backend drops what has expired.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::tables::{Now, TableMeta};
use crate::backend::Droppable;
use crate::keyspace;
use crate::ttl::{Ttl, TtlClock};
use crate::value::Head;

/// What the rule for dropping expired values looks at; outlives no store by much, as a compaction may.
pub(crate) struct Clocks {
    wall_ms: Arc<dyn Fn() -> i64 + Send + Sync>,
    event_time: AtomicI64,
    /// The watermark itself, which timers that fire at the end of the input leave far behind.
    reached: AtomicI64,
    /// A watermark has come, in this life or before it.
    begun: AtomicBool,
    rules: RwLock<Vec<(u16, Ttl, Option<i64>)>>,
}

impl Clocks {
    pub(super) fn new(wall_ms: Arc<dyn Fn() -> i64 + Send + Sync>, event_time: i64) -> Self {
        let begun = AtomicBool::new(event_time > i64::MIN);
        let [event_time, reached] = [event_time; 2].map(AtomicI64::new);
        Clocks { wall_ms, event_time, reached, begun, rules: RwLock::default() }
    }

    /// Where both clocks stand. Reads the machine's.
    pub(crate) fn now(&self) -> Now {
        Now { wall: (self.wall_ms)(), event: self.event_time.load(Ordering::Relaxed) }
    }

    /// What may be dropped, judged by the time at which a compaction begins.
    pub(super) fn droppable(self: &Arc<Self>) -> Droppable {
        let clocks = self.clone();
        Arc::new(move || {
            let now = clocks.now();
            let rules = clocks.rules.read().unwrap_or_else(PoisonError::into_inner).clone();
            Box::new(move |key, value| {
                let Some((_, table)) = keyspace::split(key) else { return false };
                let Some((_, ttl, adopted)) = rules.iter().find(|(id, ..)| *id == table) else {
                    return false;
                };
                let Some((head, _)) = Head::read(value) else { return false };
                ttl.is_over(head.touched, *adopted, now.by(ttl.clock))
            })
        })
    }

    /// True when a table has a TTL by event time.
    pub(super) fn has_event_time_rule(&self) -> bool {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.iter().any(|(_, ttl, _)| ttl.clock == TtlClock::EventTime)
    }

    /// Where one of them stands.
    pub(crate) fn by(&self, clock: TtlClock) -> i64 {
        match clock {
            TtlClock::EventTime => self.event_time.load(Ordering::Relaxed),
            TtlClock::ProcessingTime => (self.wall_ms)(),
        }
    }

    /// The watermark that a later life goes on from.
    pub(crate) fn reached(&self) -> i64 {
        self.reached.load(Ordering::Relaxed)
    }

    /// When the TTL of a table was turned on over values that were there.
    pub(crate) fn adopted_at(&self, table: u16) -> Option<i64> {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.iter().find(|(id, ..)| *id == table)?.2
    }

    /// Moves event time to a watermark, never back. True for the first.
    pub(super) fn advance(&self, watermark_ms: i64) -> bool {
        self.pass(watermark_ms);
        self.reached.fetch_max(watermark_ms, Ordering::Relaxed);
        watermark_ms > i64::MIN && !self.begun.swap(true, Ordering::Relaxed)
    }

    /// Moves event time to one on the way to a watermark, never back.
    pub(super) fn pass(&self, ms: i64) {
        self.event_time.fetch_max(ms, Ordering::Relaxed);
    }

    /// Says which tables have a TTL, and when it was turned on over values that were there.
    pub(super) fn set_rules<'a>(&self, metas: impl Iterator<Item = &'a TableMeta>) {
        let rules = metas.filter_map(|meta| Some((meta.id, meta.ttl?, meta.adopted_at))).collect();
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }
}
