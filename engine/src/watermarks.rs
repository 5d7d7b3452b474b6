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

/// The watermark of one source subtask, out of those of its splits. Pure: time is told to it, as the time that the source
/// has been free to read.
#[derive(Debug)]
pub(crate) struct SplitClocks {
    strategy: Watermarks,
    frontier: Frontier,
    splits: Vec<Split>,
}

#[derive(Debug)]
struct Split {
    id: SplitId,
    /// Since when it has been known to hold nothing. A split that nobody has looked into is not silent.
    dry: Option<Duration>,
    /// The source says itself when this split is dry.
    told: bool,
    live: bool,
}

impl SplitClocks {
    pub(crate) fn new(strategy: Watermarks) -> Self {
        SplitClocks { strategy, frontier: Frontier::new(0), splits: Vec::new() }
    }

    fn index(&mut self, id: SplitId) -> usize {
        match self.splits.iter().position(|s| s.id == id) {
            Some(i) => i,
            None => {
                self.splits.push(Split { id, dry: None, told: false, live: true });
                self.frontier.add()
            }
        }
    }

    pub(crate) fn started(&mut self, id: SplitId) {
        self.index(id);
    }

    pub(crate) fn finished(&mut self, id: SplitId) -> Advance {
        let i = self.index(id);
        self.splits[i].live = false;
        self.frontier.end(i)
    }

    /// The source says that `id` holds nothing more. From the first such word on, nothing else counts for this split.
    pub(crate) fn drained(&mut self, id: SplitId, now: Duration) {
        let i = self.index(id);
        let split = &mut self.splits[i];
        if !std::mem::replace(&mut split.told, true) {
            split.dry = None;
        }
        split.dry.get_or_insert(now);
    }

    fn guessed(&mut self) -> impl Iterator<Item = &mut Split> {
        self.splits.iter_mut().filter(|s| !s.told)
    }

    /// A poll found nothing more in any split.
    pub(crate) fn all_drained(&mut self, now: Duration) {
        for split in self.guessed() {
            split.dry.get_or_insert(now);
        }
    }

    /// A poll ended with more to come, from whichever split: for all anyone knows, from every one.
    pub(crate) fn more_to_come(&mut self) {
        self.guessed().for_each(|s| s.dry = None);
    }

    /// `id` gave records, the latest at `latest`.
    pub(crate) fn observe(&mut self, id: SplitId, latest: EventTime) -> Advance {
        let i = self.index(id);
        self.splits[i].dry = None;
        self.frontier.active(i);
        if latest == EventTime::NONE || self.strategy.rule == Rule::AtEnd {
            return Advance::default();
        }
        self.frontier.observe(i, self.strategy.after(latest))
    }

    /// Splits that have been dry for too long become idle.
    pub(crate) fn tick(&mut self, now: Duration) -> Advance {
        let Some(limit) = self.strategy.idle_after else { return Advance::default() };
        let mut all = Advance::default();
        for (i, split) in self.splits.iter().enumerate() {
            if split.live && split.dry.is_some_and(|since| now.saturating_sub(since) >= limit) {
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
        let w = clocks.observe(A, EventTime(10_000)).to.unwrap();
        assert_eq!(w, Watermark(4_999));
        assert!(!w.is_late(EventTime(5_000)) && w.is_late(EventTime(4_999)));
    }

    #[test]
    fn the_slowest_split_decides_until_it_is_idle() {
        let mut clocks = SplitClocks::new(Watermarks::monotonic().idle_after(s(2)));
        clocks.started(A);
        clocks.started(B);
        clocks.all_drained(s(0));
        // A trickles: each poll gives a record and finds nothing more.
        assert_eq!(clocks.observe(A, EventTime(100)).to, None);
        clocks.all_drained(s(1));
        assert_eq!(clocks.tick(s(1)).to, None);
        assert_eq!(clocks.tick(s(2)).to, Some(Watermark(99)));
        // B comes back inside the open range: nothing is lost, and it counts again.
        assert_eq!(clocks.observe(B, EventTime(120)).to, None);
        assert_eq!(clocks.observe(A, EventTime(200)).to, Some(Watermark(119)));
    }

    #[test]
    fn a_split_that_nobody_has_looked_into_is_not_silent() {
        let mut clocks = SplitClocks::new(Watermarks::monotonic().idle_after(s(2)));
        clocks.started(A);
        clocks.started(B);
        clocks.all_drained(s(0));
        clocks.observe(A, EventTime(100));
        clocks.more_to_come();
        assert_eq!(clocks.tick(s(3600)), Advance::default());
        clocks.all_drained(s(3600));
        assert_eq!(clocks.tick(s(3602)).to, Some(Watermark(99)));
    }

    #[test]
    fn a_source_that_tells_which_splits_are_dry_is_believed() {
        let mut clocks = SplitClocks::new(Watermarks::monotonic().idle_after(s(2)));
        clocks.started(A);
        clocks.started(B);
        // Before it has fetched anything a poll finds nothing, which says nothing of B once there is something.
        clocks.all_drained(s(0));
        clocks.observe(A, EventTime(99));
        clocks.more_to_come();
        assert_eq!(clocks.tick(s(9)), Advance::default());
        clocks.drained(B, s(10));
        clocks.observe(A, EventTime(101));
        clocks.more_to_come();
        assert_eq!(clocks.tick(s(12)).to, Some(Watermark(100)));
    }

    #[test]
    fn at_end_says_nothing_on_the_way() {
        let mut clocks = SplitClocks::new(Watermarks::at_end());
        assert_eq!(clocks.observe(A, EventTime(100)), Advance::default());
        assert_eq!(clocks.tick(s(1000)), Advance::default());
    }

    #[test]
    fn negative_times_work_like_others() {
        let mut clocks = SplitClocks::new(Watermarks::monotonic());
        assert_eq!(clocks.observe(A, EventTime(-10)).to, Some(Watermark(-11)));
    }
}
