//! How large a batch may grow before it leaves: so that a full channel holds what a slow consumer takes in a second. Pure.

use std::time::Duration;

/// The full batch. Past it a larger batch buys nothing (channel cost per record is already about 2 ns).
pub(crate) const BATCH: usize = if cfg!(feature = "explore") { 4 } else { 1024 };

/// What a source gives per poll and a sink takes per write: small enough to stay in the first-level cache on its way
/// through the chain.
pub(crate) const STAGE: usize = 256;

/// The batch limit of one channel.
///
/// It begins small and grows while sends need not wait: nobody knows yet how fast the consumer is. When a send had to wait
/// the consumer is the bottleneck, and what it took between two waits is its rate. Little queued before a slow sink means
/// that barriers, drains and fresh records reach it soon; a fast one gets full batches after a few dozen sends.
#[derive(Clone, Debug)]
pub(crate) struct BatchSizer {
    limit: usize,
    max: usize,
    depth: usize,
    /// Records sent since the last wait.
    sent: usize,
    easy_sends: u32,
}

/// So many sends without a wait say that the consumer has caught up.
const EASY: u32 = 4;
/// The first batches of a channel.
const FIRST: usize = if cfg!(feature = "explore") { 2 } else { 64 };

impl BatchSizer {
    /// For a channel of `depth` elements whose batches hold at most `max` records.
    pub(crate) fn new(max: usize, depth: usize) -> Self {
        let max = max.max(1);
        BatchSizer { limit: FIRST.min(max), max, depth: depth.max(1), sent: 0, easy_sends: 0 }
    }

    #[inline]
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// A batch of `n` went out without waiting.
    #[inline]
    pub(crate) fn sent(&mut self, n: usize) {
        self.sent += n;
        if self.limit < self.max {
            self.easy_sends += 1;
            if self.easy_sends >= EASY {
                self.easy_sends = 0;
                self.limit = (self.limit * 2).min(self.max);
            }
        }
    }

    /// A batch of `n` had to wait; `since_last` has passed since the previous wait ended.
    pub(crate) fn waited(&mut self, n: usize, since_last: Duration) {
        let taken = self.sent + n;
        self.sent = 0;
        self.easy_sends = 0;
        let per_second = taken as f64 / since_last.as_secs_f64().max(1e-6);
        let fair = per_second / self.depth as f64;
        // At most halve or double at once: one hiccup of the consumer is not its rate.
        let (low, high) = (self.limit.div_ceil(2), self.limit.saturating_mul(2));
        self.limit = (fair as usize).clamp(low, high).clamp(1, self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_a_slow_consumer_a_full_channel_holds_a_second_of_its_rate() {
        let mut s = BatchSizer::new(BATCH, 8);
        for _ in 0..20 {
            let n = s.limit();
            s.waited(n, Duration::from_secs_f64(n as f64 / 1000.0));
        }
        assert_eq!(s.limit(), 125);
    }

    #[test]
    fn a_fast_consumer_gets_the_full_size_although_sends_wait() {
        let mut s = BatchSizer::new(BATCH, 8);
        for _ in 0..100 {
            let n = s.limit();
            s.waited(n, Duration::from_micros(50));
        }
        assert_eq!(s.limit(), BATCH);
    }

    #[test]
    fn it_recovers_when_the_consumer_does() {
        let mut s = BatchSizer::new(BATCH, 8);
        for _ in 0..20 {
            s.waited(s.limit(), Duration::from_secs(2000));
        }
        assert_eq!(s.limit(), 1);
        for _ in 0..EASY * 10 {
            s.sent(s.limit());
        }
        assert_eq!(s.limit(), BATCH);
    }
}
