//! After what pauses something is tried again, and when it is given up. Pure.

use std::time::Duration;

/// Pauses that double, with a limit to each and to all of them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    give_up: Duration,
    tries: u32,
    waited: Duration,
}

impl Backoff {
    /// Pauses from `first` to `longest`, `give_up` in all.
    pub(crate) fn new(first: Duration, longest: Duration, give_up: Duration) -> Self {
        Backoff { first, longest, give_up, tries: 1, waited: Duration::ZERO }
    }

    /// The pause before the next try, at least as long as the server wants; none when it is given up.
    pub(crate) fn next(&mut self, least: Option<Duration>) -> Option<Duration> {
        let doubled = self.first.saturating_mul(2u32.saturating_pow(self.tries - 1)).min(self.longest);
        let pause = doubled.max(least.unwrap_or_default());
        if self.waited + pause > self.give_up {
            return None;
        }
        self.tries += 1;
        self.waited += pause;
        Some(pause)
    }

    /// How often it was tried.
    pub(crate) fn tries(&self) -> u32 {
        self.tries
    }

    /// How long the pauses were together.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_it_is_given_up() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(400), ms(1_500));
        let pauses: Vec<_> = std::iter::from_fn(|| backoff.next(None)).collect();
        assert_eq!(pauses, [ms(100), ms(200), ms(400), ms(400), ms(400)]);
        assert_eq!((backoff.tries(), backoff.waited()), (6, ms(1_500)));
        let mut asked = Backoff::new(ms(100), ms(400), ms(5_000));
        assert_eq!(asked.next(Some(ms(3_000))), Some(ms(3_000)), "as the server wants");
        assert_eq!(asked.next(Some(ms(3_000))), None, "longer than anybody waits");
        assert_eq!(asked.next(None), Some(ms(200)));
    }
}
