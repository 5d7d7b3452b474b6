//! A limit on the bytes per second that all uploads of a process take together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Time in which nothing was sent may be made up for, up to this much.
const SLACK: Duration = Duration::from_millis(500);

/// A limit shared by its clones. Whoever wants to send pays first: within any span of time no more is sent than the limit
/// times the span and half a second, and one piece.
#[derive(Clone, Debug)]
pub struct Bandwidth(Arc<Limit>);

#[derive(Debug)]
struct Limit {
    /// Bytes per second; 0 is no limit.
    rate: AtomicU64,
    /// Until when everything sent so far has been paid for.
    paid: Mutex<Option<Instant>>,
}

impl Bandwidth {
    /// No limit.
    pub fn unlimited() -> Self {
        Self::per_second(0)
    }

    /// At most so many bytes a second; 0 is no limit.
    pub fn per_second(bytes: u64) -> Self {
        Self(Arc::new(Limit { rate: AtomicU64::new(bytes), paid: Mutex::new(None) }))
    }

    /// The bytes per second, 0 for no limit.
    pub fn rate(&self) -> u64 {
        self.0.rate.load(Ordering::Relaxed)
    }

    /// Changes the limit for what is sent from now on, in all clones.
    pub fn set_rate(&self, bytes_per_second: u64) {
        self.0.rate.store(bytes_per_second, Ordering::Relaxed);
    }

    /// Waits until `bytes` may be sent.
    pub(crate) async fn take(&self, bytes: u64) {
        let rate = self.rate();
        if rate == 0 {
            return;
        }
        let until = {
            let now = Instant::now();
            let mut paid = self.0.paid.lock().unwrap_or_else(PoisonError::into_inner);
            let earliest = now.checked_sub(SLACK).unwrap_or(now);
            let from = paid.unwrap_or(now).max(earliest);
            *paid.insert(from + Duration::from_secs_f64(bytes as f64 / rate as f64))
        };
        sleep_until(until).await;
    }
}

impl Default for Bandwidth {
    fn default() -> Self {
        Self::unlimited()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    async fn rate_of(limit: &Bandwidth, senders: usize, pieces: u64, piece: u64, sending: Duration) -> f64 {
        let start = Instant::now();
        let send = || async {
            for _ in 0..pieces {
                limit.take(piece).await;
                tokio::time::sleep(sending).await;
            }
        };
        join_all((0..senders).map(|_| send())).await;
        (senders as u64 * pieces * piece) as f64 / start.elapsed().as_secs_f64()
    }

    #[tokio::test(start_paused = true)]
    async fn the_cap_is_kept_within_a_tenth() {
        for (senders, piece, sending_ms) in
            [(1, 100_000, 0), (1, 100_000, 50), (4, 100_000, 200), (4, 2_000_000, 700), (3, 777, 0)]
        {
            let limit = Bandwidth::per_second(1_000_000);
            let rate = rate_of(&limit, senders, 50, piece, Duration::from_millis(sending_ms)).await;
            assert!((900_000.0..=1_100_000.0).contains(&rate), "{senders} senders of {piece}: {rate}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_is_not_saved_up() {
        let limit = Bandwidth::per_second(1_000_000);
        limit.take(10).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let rate = rate_of(&limit, 1, 50, 100_000, Duration::ZERO).await;
        assert!(rate <= 1_115_000.0, "{rate}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_limit_never_waits_and_a_limit_may_come_later() {
        let limit = Bandwidth::unlimited();
        let start = Instant::now();
        limit.take(u64::MAX).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        limit.clone().set_rate(1_000);
        limit.take(2_000).await;
        assert_eq!(start.elapsed(), Duration::from_secs(2));
    }
}
