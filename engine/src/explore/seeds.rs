//! Which seeds a run explores, and what a failure says of its own.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How much of the full number of schedules a scenario is worth: long ones get fewer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seeds {
    first: u64,
    count: u64,
    began: Instant,
}

impl Seeds {
    /// `short` of them, always the same, so that a failure comes from a change and not from luck; with `WEIR_SOAK=1`
    /// `long`, others each time; with `WEIR_EXPLORE_SEED` that one.
    pub(super) fn wanted(short: u64, long: u64) -> Self {
        let began = Instant::now();
        if let Ok(seed) = std::env::var("WEIR_EXPLORE_SEED") {
            let first = seed.parse().expect("WEIR_EXPLORE_SEED is the number that a failure named");
            return Seeds { first, count: 1, began };
        }
        if std::env::var_os("WEIR_SOAK").is_some() {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
            return Seeds { first: since, count: long, began };
        }
        Seeds { first: 1, count: short, began }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> + use<> {
        self.first..self.first + self.count
    }

    /// What was done.
    pub(super) fn say(&self, name: &str, of: &str, more: &str) {
        let rate = self.count as f64 / self.began.elapsed().as_secs_f64().max(1e-9);
        eprintln!(
            "explore: {name}: {} {of} from seed {} on, {rate:.0} per second{more}",
            self.count, self.first
        );
    }
}

/// Tells how to see a failure again.
pub(super) fn say_failure(name: &str, seed: u64) {
    eprintln!(
        "explore: {name} fails with seed {seed}; to see it again: make explore NAME={name} SEED={seed}"
    );
}
