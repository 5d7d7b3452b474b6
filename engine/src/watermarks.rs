//! Watermark strategies, and the pure bookkeeping that turns what splits gave into one watermark per source subtask.

use std::time::Duration;

use crate::runtime::frontier::{Advance, Frontier};
use crate::source::SplitId;
use crate::time::{EventTime, Watermark};

/// How a source's watermark follows its records. Kept per split (partition, file), merged to the lowest.
///
/// ```
/// use weir_engine::{OperatorInfo, prelude::*, testkit::*};
/// let (job, probe) = (Job::named("one").parallelism(1), Probe::new());
/// let script = vec![Line::Record("a", 100), Line::Pause(std::time::Duration::from_millis(1))];
/// let events = job.source("in", ScriptSource::new(vec![script])).source_time(Watermarks::monotonic());
/// events.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
/// job.run()?;
/// assert!(probe.seen_by(0).contains(&Seen::Watermark(99)));
/// # Ok::<(), JobError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watermarks {
    pub(crate) rule: Rule,
    pub(crate) idle_after: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The highest time seen, less this many milliseconds, less one.
    Bounded(i64),
    AtEnd,
}

/// How long a split may be silent before it stops holding others back, unless said otherwise.
const IDLE_AFTER: Duration = Duration::from_secs(30);

impl Watermarks {
    /// Records come at most `disorder` behind the latest of their split, in whole milliseconds. A record exactly that far
    /// behind is in time.
    pub fn bounded(disorder: Duration) -> Self {
        let ms = i64::try_from(disorder.as_millis()).unwrap_or(i64::MAX);
        Watermarks { rule: Rule::Bounded(ms), idle_after: Some(IDLE_AFTER) }
    }

    /// Records of a split come in the order of their times. Equal times are in order.
    pub fn monotonic() -> Self {
        Self::bounded(Duration::ZERO)
    }

    /// No watermark until the input ends: for a bounded input in any order. Windows fire when it has been read.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let (job, probe) = (Job::named("two").parallelism(1), Probe::new());
    /// let events = job.source("in", ScriptSource::of([("b", 9), ("a", 1)])).source_time(Watermarks::at_end());
    /// events.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// job.run()?;
    /// assert_eq!(probe.seen_by(0)[1..3], [Seen::Record("a", 1), Seen::Watermark(Watermark::MAX.0)]);
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn at_end() -> Self {
        Watermarks { rule: Rule::AtEnd, idle_after: None }
    }

    /// A split that has been read dry for this long, by the job's clock, does not hold the others back (default: 30 s).
    /// Time during which the source is held back by its consumers does not count.
    ///
    /// ```
    /// # use {std::time::Duration, weir_engine::Watermarks};
    /// let strategy = Watermarks::bounded(Duration::from_secs(5)).idle_after(Duration::from_secs(10));
    /// assert_ne!(strategy, Watermarks::bounded(Duration::from_secs(5)));
    /// assert_ne!(strategy, strategy.clone().never_idle());
    /// ```
    #[must_use]
    pub fn idle_after(mut self, silence: Duration) -> Self {
        self.idle_after = Some(silence);
        self
    }

    /// A silent split holds the others back for ever.
    #[must_use]
    pub fn never_idle(mut self) -> Self {
        self.idle_after = None;
        self
    }

    fn after(&self, latest: EventTime) -> Watermark {
        match self.rule {
            Rule::Bounded(disorder) => Watermark(latest.0.saturating_sub(disorder).saturating_sub(1)),
            Rule::AtEnd => Watermark::MIN,
        }
    }
}

/// The watermark of one source subtask, out of those of its splits. Pure: time is told to it.
#[derive(Debug)]
pub(crate) struct SplitClocks {
    strategy: Watermarks,
    frontier: Frontier,
    splits: Vec<Split>,
}

#[derive(Debug)]
struct Split {
    id: SplitId,
    /// Reading time at which it last gave a record or began.
    heard: Duration,
    live: bool,
}

impl SplitClocks {
    pub(crate) fn new(strategy: Watermarks) -> Self {
        SplitClocks { strategy, frontier: Frontier::new(0), splits: Vec::new() }
    }

    fn index(&mut self, id: SplitId, now: Duration) -> usize {
        match self.splits.iter().position(|s| s.id == id) {
            Some(i) => i,
            None => {
                self.splits.push(Split { id, heard: now, live: true });
                self.frontier.add()
            }
        }
    }

    pub(crate) fn started(&mut self, id: SplitId, now: Duration) {
        self.index(id, now);
    }

    pub(crate) fn finished(&mut self, id: SplitId, now: Duration) -> Advance {
        let i = self.index(id, now);
        self.splits[i].live = false;
        self.frontier.end(i)
    }

    /// `id` gave records, the latest at `latest`; `now` is how long the source has been reading.
    pub(crate) fn observe(&mut self, id: SplitId, latest: EventTime, now: Duration) -> Advance {
        let i = self.index(id, now);
        self.splits[i].heard = now;
        self.frontier.active(i);
        if latest == EventTime::NONE || self.strategy.rule == Rule::AtEnd {
            return Advance::default();
        }
        self.frontier.observe(i, self.strategy.after(latest))
    }

    /// Time has passed: splits that were silent too long become idle.
    pub(crate) fn tick(&mut self, now: Duration) -> Advance {
        let Some(limit) = self.strategy.idle_after else { return Advance::default() };
        let mut all = Advance::default();
        for (i, split) in self.splits.iter().enumerate() {
            if split.live && now.saturating_sub(split.heard) >= limit {
                let advance = self.frontier.idle(i);
                all = Advance { to: advance.to.or(all.to), idle: all.idle || advance.idle };
            }
        }
        all
    }

    /// True when there is no split that could ever hold the watermark back.
    pub(crate) fn no_splits(&self) -> bool {
        self.splits.iter().all(|s| !s.live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SplitId = SplitId(0);
    const B: SplitId = SplitId(1);

    fn s(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn bounded_leaves_the_edge_in_time() {
        let mut clocks = SplitClocks::new(Watermarks::bounded(s(5)));
        let w = clocks.observe(A, EventTime(10_000), s(0)).to.unwrap();
        assert_eq!(w, Watermark(4_999));
        assert!(!w.is_late(EventTime(5_000)) && w.is_late(EventTime(4_999)));
    }

    #[test]
    fn the_slowest_split_decides_until_it_is_idle() {
        let mut clocks = SplitClocks::new(Watermarks::monotonic().idle_after(s(2)));
        clocks.started(A, s(0));
        clocks.started(B, s(0));
        assert_eq!(clocks.observe(A, EventTime(100), s(1)).to, None);
        assert_eq!(clocks.tick(s(1)).to, None);
        assert_eq!(clocks.tick(s(2)).to, Some(Watermark(99)));
        // B comes back inside the open range: nothing is lost, and it counts again.
        assert_eq!(clocks.observe(B, EventTime(120), s(3)).to, None);
        assert_eq!(clocks.observe(A, EventTime(200), s(3)).to, Some(Watermark(119)));
    }

    #[test]
    fn at_end_says_nothing_on_the_way() {
        let mut clocks = SplitClocks::new(Watermarks::at_end());
        assert_eq!(clocks.observe(A, EventTime(100), s(1)), Advance::default());
        assert_eq!(clocks.tick(s(1000)), Advance::default());
    }

    #[test]
    fn negative_times_work_like_others() {
        let mut clocks = SplitClocks::new(Watermarks::monotonic());
        assert_eq!(clocks.observe(A, EventTime(-10), s(0)).to, Some(Watermark(-11)));
    }
}
