//! How long a poll goes on past records that it does not keep, with a look at the clock now and then.

use std::time::{Duration, Instant};

/// After how many records passed over, errors ridden out and the like, which take no room, a poll looks at the clock.
const PASSED_PER_LOOK: u32 = 256;

/// How long a poll goes on past what takes no room in its batch.
pub(super) struct Patience {
    budget: Duration,
    passed: u32,
    until: Option<Instant>,
}

impl Patience {
    pub(super) fn new(budget: Duration) -> Self {
        Patience { budget, passed: 0, until: None }
    }

    /// Counts one thing passed over; true when the poll has been at it for long enough.
    pub(super) fn is_over(&mut self) -> bool {
        self.passed += 1;
        if !self.passed.is_multiple_of(PASSED_PER_LOOK) {
            return false;
        }
        let now = Instant::now();
        now >= *self.until.get_or_insert(now + self.budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_looks_at_the_clock_now_and_then() {
        let mut none = Patience::new(Duration::ZERO);
        assert_eq!((1..=1000).find(|_| none.is_over()), Some(PASSED_PER_LOOK));
        let mut much = Patience::new(Duration::from_secs(3600));
        assert!(!(0..100_000).any(|_| much.is_over()));
    }
}
