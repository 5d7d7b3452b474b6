//! Watermark strategies: what a source is told about its event time, and the pure decisions that follow from it.

mod generator;
mod guard;
pub(crate) mod marks;
pub(crate) mod splits;

use std::time::Duration;

pub use generator::{ByLatest, PerRecord, RestoredSplit, WatermarkGenerator};
pub(crate) use guard::Guard;
pub use guard::{Quarantined, TimeFault};

use crate::dead_letter::BadRecords;
use crate::element::Record;
use crate::time::Watermark;

/// How a source's watermark follows its records. Kept per split (partition, file), merged to the lowest.
///
/// Beside the watermark itself it says what a silent split means ([`idle_after`](Self::idle_after),
/// [`never_idle`](Self::never_idle), [`advance_when_silent`](Self::advance_when_silent)), which times are not believed
/// ([`future_limit`](Self::future_limit), [`jump_limit`](Self::jump_limit)), and how far ahead of others the source may
/// read ([`aligned`](Self::aligned)). Where each split stands is part of a checkpoint.
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
pub struct Watermarks<G = ByLatest> {
    pub(crate) generator: G,
    pub(crate) rules: TimeRules,
}

/// What holds whatever makes the watermark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimeRules {
    pub(crate) idle_after: Option<Duration>,
    /// How long the whole source is silent before event time goes on with the clock.
    pub(crate) silence: Option<Duration>,
    pub(crate) future_ms: Option<i64>,
    pub(crate) jump_ms: Option<i64>,
    /// Times of a split must not go back; what becomes of a record that does.
    pub(crate) in_order: Option<BadRecords>,
    /// The group, and how far ahead of its slowest the source may be, in milliseconds.
    pub(crate) aligned: Option<(String, i64)>,
    /// Nothing is promised before the input ends.
    pub(crate) at_end: bool,
}

/// How long a split may be silent before it stops holding others back, unless said otherwise.
const IDLE_AFTER: Duration = Duration::from_secs(30);
/// With none at all a split would be idle at every look that finds nothing, and the next record could not hold anybody.
const SHORTEST_SILENCE: Duration = Duration::from_millis(1);
/// How far ahead of the clock a record may be, unless said otherwise.
const FUTURE: Duration = Duration::from_secs(3_600);

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

impl Watermarks {
    fn with<G>(generator: G) -> Watermarks<G> {
        Watermarks {
            generator,
            rules: TimeRules {
                idle_after: Some(IDLE_AFTER),
                silence: None,
                future_ms: Some(millis(FUTURE)),
                jump_ms: None,
                in_order: None,
                aligned: None,
                at_end: false,
            },
        }
    }

    /// Records come at most `disorder` behind the latest of their split, in whole milliseconds. A record exactly that far
    /// behind is in time; one further behind passes and is late for whatever the watermark has closed.
    pub fn bounded(disorder: Duration) -> Self {
        Self::with(ByLatest { disorder_ms: Some(millis(disorder)) })
    }

    /// Records of a split come in the order of their times; equal times are in order. That is asserted: one that goes back
    /// fails the job, and the error names the split and both times; [`out_of_order`](Self::out_of_order) quarantines it
    /// instead. `bounded(Duration::ZERO)` gives the same watermark and takes such records for late ones.
    ///
    /// ```
    /// # use weir_engine::{prelude::*, testkit::*};
    /// let job = Job::named("back").parallelism(1);
    /// let events = job.source("in", ScriptSource::of([("a", 7), ("b", 5)]));
    /// events.source_time(Watermarks::monotonic()).sink("out", NullSink);
    /// let error = job.run().unwrap_err().to_string();
    /// assert!(error.contains("script 0 gave a record of 5 after one of 7"), "{error}");
    /// ```
    pub fn monotonic() -> Self {
        let mut own = Self::bounded(Duration::ZERO);
        own.rules.in_order = Some(BadRecords::Fail);
        own
    }

    /// No watermark until the input ends: for a bounded input in any order. Windows fire when it has been read. Times are
    /// taken as they are, however far ahead of the clock.
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
        let mut own = Self::with(ByLatest { disorder_ms: None }).never_idle().no_future_limit();
        own.rules.at_end = true;
        own
    }

    /// Records say it themselves: after one for which `says` gives a watermark, nothing at or before that is expected from
    /// its split any more. For input with marks in it, or with records that each know how complete their split is.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let (job, probe) = (Job::named("marks").parallelism(1), Probe::new());
    /// let marks = Watermarks::per_record(|r: &Record<&'static str>| (r.value == "mark").then_some(Watermark(r.time.0)));
    /// let script = vec![Line::Record("a", 7), Line::Record("mark", 5), Line::Pause(std::time::Duration::from_millis(1))];
    /// let events = job.source("in", ScriptSource::new(vec![script])).source_time(marks);
    /// events.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// job.run()?;
    /// assert!(probe.seen_by(0).contains(&Seen::Watermark(5)) && !probe.seen_by(0).contains(&Seen::Watermark(6)));
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn per_record<T, F>(says: F) -> Watermarks<PerRecord<F>>
    where
        F: FnMut(&Record<T>) -> Option<Watermark> + Clone + Send + 'static,
    {
        Self::with(PerRecord(says))
    }

    /// A generator of the user's own; one copy of it per split.
    ///
    /// ```
    /// # use weir_engine::{EventTime, OperatorInfo, WatermarkGenerator, prelude::*, testkit::*};
    /// /// Does not believe a record that stands alone: the second latest decides.
    /// #[derive(Clone)]
    /// struct SecondLatest([i64; 2]);
    /// impl<T> WatermarkGenerator<T> for SecondLatest {
    ///     fn on_records(&mut self, records: &[Record<T>], _: EventTime) -> Option<Watermark> {
    ///         self.0 = records.iter().fold(self.0, |[a, b], r| [a.max(r.time.0), b.max(a.min(r.time.0))]);
    ///         Some(Watermark(self.0[1] - 1))
    ///     }
    /// }
    /// # let (job, probe) = (Job::named("second").parallelism(1), Probe::new());
    /// let cautious = Watermarks::custom(SecondLatest([i64::MIN + 1; 2]));
    /// # let script = vec![Line::Record("a", 7), Line::Record("b", 1_000), Line::Pause(std::time::Duration::from_millis(1))];
    /// let events = job.source("in", ScriptSource::new(vec![script])).source_time(cautious);
    /// # events.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// # job.run()?;
    /// # assert!(probe.seen_by(0).contains(&Seen::Watermark(6)), "{:?}", probe.seen());
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn custom<G>(generator: G) -> Watermarks<G> {
        Self::with(generator)
    }
}

impl<G> Watermarks<G> {
    /// A split that has been read dry for this long, by the job's clock, does not hold the others back (default: 30 s).
    /// Time during which the source is held back by its consumers, or to stay aligned, does not count. At least a millisecond: one that
    /// has nothing just now, as every split between two polls, is not idle for that.
    ///
    /// ```
    /// # use {std::time::Duration, weir_engine::Watermarks};
    /// let strategy = Watermarks::bounded(Duration::from_secs(5)).idle_after(Duration::from_secs(10));
    /// assert_ne!(strategy, Watermarks::bounded(Duration::from_secs(5)));
    /// assert_ne!(strategy, strategy.clone().never_idle());
    /// ```
    #[must_use]
    pub fn idle_after(mut self, silence: Duration) -> Self {
        self.rules.idle_after = Some(silence.max(SHORTEST_SILENCE));
        self
    }

    /// A silent split holds the others back for ever.
    #[must_use]
    pub fn never_idle(mut self) -> Self {
        self.rules.idle_after = None;
        self
    }

    /// Closes what total silence leaves open (default: it stays open). Once all splits of all subtasks of the source have been
    /// read dry for `time`, by the job's clock, the source is idle and its watermark goes on with the clock: from where it
    /// stood it moves by as much as the silence has lasted so far, until a record comes. Event time thus keeps the distance
    /// from the clock that it had when records came; a replay of old input does not jump to the present. What comes late by
    /// this watermark is late.
    ///
    /// A source that never gave a record has no time to go on from. With [`at_end`](Watermarks::at_end) it says nothing
    /// either.
    ///
    /// ```
    /// # use {std::time::Duration, weir_engine::{OperatorInfo, prelude::*, testkit::*}};
    /// let (job, probe) = (Job::named("silent").parallelism(1), Probe::new());
    /// let watermarks = Watermarks::monotonic().advance_when_silent(Duration::from_millis(100));
    /// let events = job.source("in", ScriptSource::of([("last", 7)]).endless()).source_time(watermarks);
    /// events.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// let running = job.start()?;
    /// let closes = |seen: &Seen<_>| matches!(seen, Seen::Watermark(w) if *w >= 106);
    /// until(&running, Duration::from_secs(10), "the clock", || probe.seen_by(0).iter().any(closes));
    /// # running.cancel();
    /// # assert!(running.wait().is_err());
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn advance_when_silent(mut self, time: Duration) -> Self {
        self.rules.silence = Some(time);
        self
    }

    /// A record whose time is more than `ahead` of the job's clock is quarantined (default: an hour; none with
    /// [`at_end`](Watermarks::at_end)): believed, it would make every honest record behind it late. It is counted as
    /// `far_future_records`, leaves a dead letter, and goes whole to
    /// [`SourceStream::quarantined`](crate::SourceStream::quarantined). With [`BadRecords::Fail`] it fails the job.
    ///
    /// ```
    /// # use {std::time::Duration, weir_engine::{Clock, OperatorInfo, SystemClock, prelude::*, testkit::*}};
    /// let (job, probe) = (Job::named("skewed").parallelism(1), Probe::new());
    /// let now = SystemClock::shared().now_ms();
    /// let events = job.source("in", ScriptSource::of([("a", now), ("tomorrow", now + 86_400_000), ("b", now + 1)]));
    /// let watermarks = Watermarks::bounded(Duration::ZERO).future_limit(Duration::from_secs(60));
    /// events.source_time(watermarks).transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// job.run()?;
    /// assert_eq!(probe.values(), ["a", "b"]);
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn future_limit(mut self, ahead: Duration) -> Self {
        self.rules.future_ms = Some(millis(ahead));
        self
    }

    /// Times may be as far ahead of the clock as they like: for simulated input.
    #[must_use]
    pub fn no_future_limit(mut self) -> Self {
        self.rules.future_ms = None;
        self
    }

    /// A record whose time is more than `ahead` of the latest of its split, plus what has passed by the clock since that
    /// came, is quarantined like one beyond [`future_limit`](Self::future_limit) (default: none is). For input whose times
    /// have little to do with the clock. `ahead` must be longer than any gap in the input: what comes after a longer one is
    /// refused for as long. The first record of a split is taken as it is.
    ///
    /// ```
    /// # use {std::time::Duration, weir_engine::{OperatorInfo, prelude::*, testkit::*}};
    /// let (job, probe) = (Job::named("simulated").parallelism(1), Probe::new());
    /// let events = job.source("in", ScriptSource::of([("a", 1_000), ("glitch", 9_000_000), ("b", 1_001)]));
    /// let watermarks = Watermarks::bounded(Duration::ZERO).no_future_limit().jump_limit(Duration::from_secs(600));
    /// events.source_time(watermarks).transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// job.run()?;
    /// assert_eq!(probe.values(), ["a", "b"]);
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn jump_limit(mut self, ahead: Duration) -> Self {
        self.rules.jump_ms = Some(millis(ahead));
        self
    }

    /// Asserts that the records of a split come in the order of their times, as [`monotonic`](Watermarks::monotonic) does,
    /// and says what becomes of one that goes back: it fails the job, or is quarantined, counted as `out_of_order_records`.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let (job, probe) = (Job::named("back").parallelism(1), Probe::new());
    /// let events = job.source("in", ScriptSource::of([("a", 7), ("b", 5), ("c", 7)]));
    /// let watermarks = Watermarks::monotonic().out_of_order(BadRecords::DeadLetter);
    /// events.source_time(watermarks).transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// job.run()?;
    /// assert_eq!(probe.values(), ["a", "c"]);
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn out_of_order(mut self, policy: BadRecords) -> Self {
        self.rules.in_order = Some(policy);
        self
    }

    /// Keeps the sources of `group` together in event time: a subtask whose watermark is more than `drift` ahead of the
    /// slowest subtask of the group does not read until that has caught up. What is joined or unioned behind them then
    /// has to hold little of the faster ones. Every source of the group says so itself, each with its own limit; a source by
    /// itself keeps its subtasks together.
    ///
    /// A subtask that is held goes on passing barriers and hearing orders, and none of its splits becomes idle meanwhile.
    /// Idle and ended subtasks hold nobody; one that has not had a record yet holds the others until it is idle. The plan
    /// refuses [`at_end`](Watermarks::at_end) in a group, which would hold it for ever.
    ///
    /// ```
    /// # use {std::time::Duration, weir_engine::{prelude::*, testkit::*}};
    /// let job = Job::named("both").parallelism(1);
    /// let together = || Watermarks::monotonic().aligned("shop", Duration::from_secs(60));
    /// let orders = job.source("orders", ScriptSource::of([(1, 0), (2, 90_000)])).source_time(together());
    /// let payments = job.source("payments", ScriptSource::of([(1, 10)])).source_time(together());
    /// orders.union(payments).sink("out", NullSink);
    /// assert_eq!(job.run()?.tasks[2].records_in, 3);
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn aligned(mut self, group: &str, drift: Duration) -> Self {
        self.rules.aligned = Some((group.to_owned(), millis(drift)));
        self
    }
}

impl TimeRules {
    /// `timed`: a record must have a time.
    pub(crate) fn guard(&self, timed: bool) -> Guard {
        Guard { future_ms: self.future_ms, jump_ms: self.jump_ms, in_order: self.in_order.is_some(), timed }
    }
}
