//! Deduplication: of the records of a key that come close after each other, the first or the last.
// HOT: by the clock, one probe per record; in event-time order what the buffer costs, and one probe.

use std::marker::PhantomData;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_engine::{Collector, EventTime, Key, Keyed, Operator, Record, Result, SideSlot};

use crate::aggregate::Kept;
use crate::argument::{ArgumentError, positive_ms};
use crate::ordered::{InOrder, LineContext, Ordered, Peers, Timely, wake};
use crate::process::{KeyedContext, ProcessFunction};

/// Which record of a run is given.
///
/// *Semantics*: the records of a key are cut into runs. A run begins with a record that is in none, and has every record of the key less
/// than `t` after that one; a record exactly `t` after it begins the next run. Of each run one record is given.
///
/// [`deduplicate`](crate::prelude::PerKeyOps::deduplicate) goes by event time: records are put in the order of their times first, those
/// of one time in the order in which they came, so the result does not depend on how producers interleave.
///
/// * The first of a run is given when the watermark has passed it, with its time.
/// * The last is given when the watermark has reached the last moment of its run (`t` after its first, less 1 ms), with that time: so
///   downstream it is never late.
/// * *Late records*, those at or before the watermark, change nothing: they are counted as `late_records`, and go to the late output of
///   [`deduplicate_with_late`](crate::prelude::PerKeyOps::deduplicate_with_late).
/// * *State*: records that the watermark has not passed; of an open run when it began and, for the last, that record.
/// * *Forgets* a key when its run is over.
///
/// [`deduplicate_by_clock`](crate::prelude::PerKeyOps::deduplicate_by_clock) goes by the job's clock and the order in which records
/// come; event times are not looked at, and no record is late.
///
/// * The first of a run is given at once.
/// * The last is given when its run is over, or the input ends for good (drained to be continued, it is kept). It has its own time,
///   which may be late downstream.
/// * What is processed again after a failure may be cut into other runs, as the clock has gone on.
/// * *State*: of an open run when it ends and, for the last, the record. *Forgets* a key when its run is over, by a timer.
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::{OperatorInfo, testkit::{NullSink, Probe, ScriptSource, run_within}};
/// # let (job, probe) = (weir_engine::Job::named("doc").parallelism(1), Probe::new());
/// let clicks = [('a', 1), ('a', 2), ('b', 3), ('a', 4)].into_iter().zip([0, 900, 950, 1_000]);
/// let clicks = job.source("in", ScriptSource::of(clicks)).source_time(weir_engine::Watermarks::monotonic());
/// clicks.key_by("by-user", |(user, _)| *user)
///     .deduplicate("once-a-second", Keep::First, seconds(1))
/// #   .transform(OperatorInfo::stateless("look"), probe.clone())
///     .sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// assert_eq!(probe.values(), [('a', 1), ('b', 3), ('a', 4)]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The first record of each run.
    First,
    /// The last record of each run.
    Last,
}

impl Keep {
    /// The operator behind [`deduplicate`](crate::prelude::PerKeyOps::deduplicate): what a test drives by hand.
    ///
    /// # Errors
    /// `t` is no whole, positive number of milliseconds.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::{Keyed, SideSlot, testkit::OpHarness};
    /// let mut harness = OpHarness::new(Keep::Last.operator::<u64, i64>(seconds(1), SideSlot::default()).unwrap())?;
    /// # let keyed = |value: i64| Keyed { hash: weir_state::key_hash(&7u64), key: 7u64, value };
    /// harness.batch([(keyed(2), 900), (keyed(1), 0), (keyed(3), 1_000)])?;
    /// harness.watermark(999)?;
    /// assert_eq!(harness.take_values(), [2]);
    /// # Ok::<(), weir_engine::TaskError>(())
    /// ```
    pub fn operator<K: Key, T: Kept>(
        self,
        t: Duration,
        late: SideSlot<T>,
    ) -> std::result::Result<impl Operator<Keyed<K, T>, Out = T>, ArgumentError> {
        Ok(Timely::new(Ordered::new(Runs::new(self, positive_ms("t", t)?)), late))
    }
}

/// The open run of a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run<T> {
    /// Its last moment; none when no run is open.
    until: Option<i64>,
    /// What is to be given at the end.
    held: Option<T>,
}

impl<T> Default for Run<T> {
    fn default() -> Self {
        Run { until: None, held: None }
    }
}

/// The last moment of a run that begins at `start`. It is `start` at least.
fn last_of(start: i64, t: i64) -> i64 {
    start.saturating_add(t - 1)
}

/// Runs in event time.
#[derive(Debug)]
pub(crate) struct Runs<T> {
    keep: Keep,
    t: i64,
    _in: PhantomData<fn(T)>,
}

impl<T> Runs<T> {
    pub(crate) fn new(keep: Keep, t: i64) -> Self {
        Runs { keep, t, _in: PhantomData }
    }
}

impl<T> Clone for Runs<T> {
    fn clone(&self) -> Self {
        Runs::new(self.keep, self.t)
    }
}

impl<K: Key, T: Kept> InOrder<K, T> for Runs<T> {
    type Out = T;
    type State = Run<T>;

    fn records(
        &mut self,
        time: EventTime,
        records: Peers<T>,
        cx: &mut LineContext<'_, K, Run<T>>,
        out: &mut impl Collector<T>,
    ) -> Result<()> {
        // A run that is over has been closed by `passed`.
        let run = &mut cx.state()?.kept;
        let begins = run.until.is_none();
        let until = *run.until.get_or_insert(last_of(time.0, self.t));
        match self.keep {
            Keep::Last => run.held = Some(records.into_last()),
            Keep::First if begins => out.emit(Record::new(records.into_first(), time))?,
            Keep::First => {}
        }
        if begins {
            wake(cx, until);
        }
        Ok(())
    }

    fn passed(
        &mut self,
        time: EventTime,
        cx: &mut LineContext<'_, K, Run<T>>,
        out: &mut impl Collector<T>,
    ) -> Result<()> {
        let run = &mut cx.state()?.kept;
        let Some(until) = run.until.filter(|until| *until <= time.0) else { return Ok(()) };
        run.until = None;
        match run.held.take() {
            Some(held) => out.emit(Record::new(held, EventTime(until))),
            None => Ok(()),
        }
    }

    fn is_over(run: &Run<T>) -> bool {
        run.until.is_none()
    }
}

/// What is kept of a key by the clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClockRun<T> {
    /// When the run is over; none when no run is open.
    end_ms: Option<i64>,
    /// What is to be given then, and its time.
    held: Option<(T, EventTime)>,
}

impl<T> Default for ClockRun<T> {
    fn default() -> Self {
        ClockRun { end_ms: None, held: None }
    }
}

/// Runs by the job's clock.
#[derive(Debug)]
pub(crate) struct ClockRuns<T> {
    keep: Keep,
    t: i64,
    _in: PhantomData<fn(T)>,
}

impl<T> ClockRuns<T> {
    pub(crate) fn new(keep: Keep, t: i64) -> Self {
        ClockRuns { keep, t, _in: PhantomData }
    }
}

impl<T> Clone for ClockRuns<T> {
    fn clone(&self) -> Self {
        ClockRuns::new(self.keep, self.t)
    }
}

/// By this timer a run learns that the input has ended.
const END: EventTime = EventTime(i64::MAX);

impl<T: Kept> ClockRuns<T> {
    fn close<K: Key>(cx: &mut KeyedContext<'_, K, ClockRun<T>>, out: &mut impl Collector<T>) -> Result<()> {
        let held = cx.existing_state()?.and_then(|run| run.held.take());
        cx.clear_state();
        match held {
            Some((value, time)) => out.emit(Record { value, time }),
            None => Ok(()),
        }
    }
}

impl<K: Key, T: Kept> ProcessFunction<K, T> for ClockRuns<T> {
    type Out = T;
    type State = ClockRun<T>;

    fn process(
        &mut self,
        record: Record<T>,
        cx: &mut KeyedContext<'_, K, ClockRun<T>>,
        out: &mut impl Collector<T>,
    ) -> Result<()> {
        let now = cx.now_ms();
        if self.keep == Keep::First {
            // Most records repeat: those are only looked at, so that no checkpoint writes their key for it.
            let repeats = cx.peek_state()?.is_some_and(|run| run.end_ms.is_some_and(|end| now < end));
            if repeats {
                return Ok(());
            }
        }
        // A timer may be later than its time; what comes meanwhile is in the next run.
        let over = cx.state()?.end_ms.filter(|end| *end <= now);
        if let Some(end) = over {
            cx.delete_processing_timer(end);
            Self::close(cx, out)?;
        }
        let run = cx.state()?;
        let begins = run.end_ms.is_none();
        let end = *run.end_ms.get_or_insert(now.saturating_add(self.t));
        if self.keep == Keep::Last {
            run.held = Some((record.value, record.time));
        } else {
            out.emit(record)?;
        }
        if begins {
            cx.set_processing_timer(end);
            if self.keep == Keep::Last {
                cx.set_timer(END);
            }
        }
        Ok(())
    }

    fn on_processing_timer(
        &mut self,
        _: i64,
        cx: &mut KeyedContext<'_, K, ClockRun<T>>,
        out: &mut impl Collector<T>,
    ) -> Result<()> {
        cx.delete_timer(END);
        Self::close(cx, out)
    }

    fn on_timer(
        &mut self,
        _: EventTime,
        cx: &mut KeyedContext<'_, K, ClockRun<T>>,
        out: &mut impl Collector<T>,
    ) -> Result<()> {
        Self::close(cx, out)
    }
}

#[cfg(test)]
#[path = "deduplicate_tests.rs"]
mod tests;
