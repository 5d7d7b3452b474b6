//! What async I/O counts of itself, once per batch.

use weir_engine::{Counter, OperatorContext};

/// What is counted, once per batch.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) calls: u64,
    pub(super) retries: u64,
    pub(super) timeouts: u64,
    pub(super) fallbacks: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
}

pub(super) struct Counters {
    calls: Counter,
    retries: Counter,
    timeouts: Counter,
    fallbacks: Counter,
    hits: Counter,
    misses: Counter,
}

impl Counters {
    pub(super) fn of(cx: &OperatorContext) -> Self {
        Counters {
            calls: cx.counter("calls"),
            retries: cx.counter("call_retries"),
            timeouts: cx.counter("call_timeouts"),
            fallbacks: cx.counter("fallback_calls"),
            hits: cx.counter("cache_hits"),
            misses: cx.counter("cache_misses"),
        }
    }

    pub(super) fn add(&self, tally: Tally) {
        for (counter, n) in [
            (&self.calls, tally.calls),
            (&self.retries, tally.retries),
            (&self.timeouts, tally.timeouts),
            (&self.fallbacks, tally.fallbacks),
            (&self.hits, tally.hits),
            (&self.misses, tally.misses),
        ] {
            if n > 0 {
                counter.add(n);
            }
        }
    }
}
