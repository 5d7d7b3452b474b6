//! Records per second as a token bucket. Pure: time is told to it.

use std::time::Duration;

/// How many records a source may give now, so that it never exceeds its rate by more than a tenth of a second's worth.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    per_second: f64,
    tokens: f64,
    last: Duration,
}

impl Pace {
    pub(crate) fn new(per_second: f64, now: Duration) -> Self {
        Pace { per_second, tokens: 1.0, last: now }
    }

    /// Whole records allowed at `now`, at most `want`.
    pub(crate) fn allowed(&mut self, want: usize, now: Duration) -> usize {
        let passed = now.saturating_sub(self.last).as_secs_f64();
        self.last = now;
        let burst = (self.per_second / 10.0).max(1.0);
        self.tokens = (self.tokens + passed * self.per_second).min(burst);
        (self.tokens as usize).min(want)
    }

    pub(crate) fn take(&mut self, n: usize) {
        self.tokens -= n as f64;
    }

    /// How long until the next record is allowed.
    pub(crate) fn until_next(&self) -> Duration {
        Duration::from_secs_f64(((1.0 - self.tokens) / self.per_second).clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_rate_and_no_burst_after_a_stall() {
        let mut pace = Pace::new(1000.0, Duration::ZERO);
        let mut given = 0;
        for ms in 0..2000u64 {
            let n = pace.allowed(1024, Duration::from_millis(ms));
            pace.take(n);
            given += n;
        }
        assert!((1990..=2010).contains(&given), "{given}");
        assert_eq!(pace.allowed(1024, Duration::from_secs(60)), 100);
    }

    #[test]
    fn a_rate_below_one_still_gives() {
        let mut pace = Pace::new(0.5, Duration::ZERO);
        assert_eq!(pace.allowed(10, Duration::ZERO), 1);
        pace.take(1);
        assert_eq!(pace.allowed(10, Duration::from_millis(1999)), 0);
        assert_eq!(pace.allowed(10, Duration::from_millis(2001)), 1);
    }
}
