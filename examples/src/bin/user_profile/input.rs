//! Where the events come from: the recorded file in the order it happened, or the seeded generator.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use weir_connectors::behaviour::Shop;
use weir_connectors::prelude::*;
use weir_connectors::random::Random;
use weir_engine::Source;

use crate::days::Days;

/// Events that can be gone through any number of times, always the same and in the order of their times.
pub(crate) enum Input {
    /// Rows of a file, sorted by time (the file lies sorted by user).
    Recorded(Vec<Behaviour>),
    /// So many events of a shop.
    Generated { shop: Shop, seed: u64, events: u64 },
}

const SEED: u64 = 20171125;
/// 2017-11-25T00:00:00Z, where the recorded days begin in earnest.
const START_MS: i64 = 1_511_568_000_000;
/// Ten years.
const FAR_MS: u64 = 3_650 * 86_400_000;
/// The generated events spread over nine days, however many there are.
const GENERATED_SECONDS: f64 = 9.0 * 86_400.0;

impl Input {
    /// Reads every row; one that is none is an error that names its line.
    pub(crate) fn recorded(path: &Path) -> anyhow::Result<Input> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut events = Vec::new();
        for (i, row) in BufReader::new(file).lines().enumerate() {
            let row = row.with_context(|| format!("cannot read {}", path.display()))?;
            match Behaviour::from_csv_row(row.as_bytes()) {
                Ok(event) if START_MS.abs_diff(event.ts) > FAR_MS => bail!(
                    "{} line {}: {} ms since the epoch is more than ten years from the recorded days: \
                     each day is a tag of its own",
                    path.display(),
                    i + 1,
                    event.ts
                ),
                Ok(event) => events.push(event),
                Err(reason) => bail!("{} line {}: {reason}", path.display(), i + 1),
            }
        }
        // Stable: rows of one moment stay in the order they lie.
        events.sort_by_key(|e| e.ts);
        Ok(Input::Recorded(events))
    }

    /// Events of a shop with 10,000 users and 200 categories.
    pub(crate) fn generated(events: u64) -> Input {
        let events_per_s = (events as f64 / GENERATED_SECONDS).max(1e-6);
        let shop =
            Shop { users: 10_000, categories: 200, start_ms: START_MS, events_per_s, ..Shop::default() };
        Input::Generated { shop, seed: SEED, events }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Input::Recorded(events) => events.len() as u64,
            Input::Generated { events, .. } => *events,
        }
    }

    fn event(&self, i: u64) -> Behaviour {
        match self {
            Input::Recorded(events) => events[i as usize],
            Input::Generated { shop, seed, .. } => shop.event(i, &mut Random::of(*seed, i)),
        }
    }

    /// A source of every event: one that can be asked again for what it has given, as a restart does.
    pub(crate) fn source(self: Arc<Self>) -> impl Source<Out = Behaviour> {
        let n = self.len();
        Generator::new(SEED, Some(n), move |i, _| {
            let event = self.event(i);
            (event, event.time())
        })
    }

    /// Every event, in the order of their times.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Behaviour> {
        (0..self.len()).map(|i| self.event(i))
    }

    /// The days that events fall on.
    pub(crate) fn days(&self) -> Days {
        match self.len() {
            0 => Days::between(START_MS, START_MS),
            n => Days::between(self.event(0).ts, self.event(n - 1).ts),
        }
    }
}
