//! The time in which a source has been free to read: what the silence of its splits is measured in. Pure.

use std::time::Duration;

/// While the chain behind a source is busy, or waits for its consumers, and while the source waits for others of its group,
/// nobody looks at the splits, so none of them is silent; what a turn takes when all is well does count.
#[derive(Debug, Default)]
pub(crate) struct ReadingTime {
    /// When the last turn was handed out.
    left_at: Option<Duration>,
    /// Since when the source waits for its group.
    held_since: Option<Duration>,
    away: Duration,
}

/// A turn of the chain that takes longer is a stall, not reading.
const USUAL_TURN: Duration = Duration::from_millis(20);

impl ReadingTime {
    /// The chain gets the thread.
    pub(crate) fn left(&mut self, now: Duration) {
        self.left_at = Some(now);
    }

    /// The source does not read, to let others catch up.
    pub(crate) fn held(&mut self, now: Duration) {
        self.held_since = Some(now);
    }

    /// The thread is the source's again.
    pub(crate) fn back(&mut self, now: Duration) {
        if let Some(left) = self.left_at.take() {
            self.away += now.saturating_sub(left).saturating_sub(USUAL_TURN);
        }
        if let Some(since) = self.held_since.take() {
            self.away += now.saturating_sub(since);
        }
    }

    pub(crate) fn at(&self, now: Duration) -> Duration {
        now.saturating_sub(self.away)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn stalls_and_pauses_are_no_reading_and_usual_turns_are() {
        let mut time = ReadingTime::default();
        time.left(ms(0));
        time.back(ms(15));
        assert_eq!(time.at(ms(15)), ms(15));
        time.left(ms(100));
        time.back(ms(5_100));
        assert_eq!(time.at(ms(5_100)), ms(120));
        time.held(ms(6_000));
        time.back(ms(66_000));
        assert_eq!(time.at(ms(66_000)), ms(1_020));
        time.back(ms(70_000));
        assert_eq!(time.at(ms(70_000)), ms(5_020), "waiting for records is reading");
    }
}
