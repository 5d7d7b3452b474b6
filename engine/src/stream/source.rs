//! `SourceStream`: what is said about a source before it becomes a stream: event time, rate, parallelism, bad records.

use crate::dead_letter::{BadRecords, DeadLetter};
use crate::graph::{Asked, From, GraphRef, OperatorInfo};
use crate::plan::PlanError;
use crate::runtime::source_input::{SourceInput, SourceSettings};
use crate::runtime::time_keeper::Shared;
use crate::runtime::timestamps::{Extract, SourceTime, Timestamps, TryExtract};
use crate::side::SideSlot;
use crate::source::Source;
use crate::stream::{Head, Stream, read};
use crate::time::EventTime;
use crate::watermarks::{Quarantined, WatermarkGenerator, Watermarks};

/// A source that has not said yet where its event time comes from.
///
/// ```
/// use weir_engine::{prelude::*, testkit::*};
/// let job = Job::named("settings").parallelism(4);
/// let source = job.source("in", ScriptSource::of([(1, 0)])).parallelism(1).max_rate(1_000.0);
/// source.dead_letters().sink("dead", NullSink);
/// source.source_time(Watermarks::monotonic()).sink("out", NullSink);
/// assert_eq!(job.plan()?.edges[0].side, Some("dead letters"));
/// # Ok::<(), JobError>(())
/// ```
pub struct SourceStream<S: Source> {
    graph: GraphRef,
    chain: usize,
    source: S,
    settings: SourceSettings<S::Out>,
}

impl<S: Source> std::fmt::Debug for SourceStream<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SourceStream({})", self.settings.uid)
    }
}

impl<S: Source> SourceStream<S> {
    pub(crate) fn new(graph: &GraphRef, uid: &str, source: S) -> Self {
        let chain = graph.borrow_mut().chain();
        let uid = graph
            .borrow_mut()
            .operator(chain, OperatorInfo::stateful("source", uid).footprint(source.footprint()));
        let settings = SourceSettings {
            uid,
            max_rate: None,
            bad_records: BadRecords::default(),
            dead_letters: SideSlot::default(),
            quarantine: SideSlot::default(),
        };
        SourceStream { graph: graph.clone(), chain, source, settings }
    }

    /// How many subtasks read. More than there are partitions or files leaves some of them idle, which harms nobody.
    ///
    /// ```
    /// # use weir_engine::{prelude::*, testkit::*};
    /// let job = Job::named("copy").parallelism(4);
    /// job.source("in", ScriptSource::of([(1, 0)])).parallelism(2).without_event_time().sink("out", NullSink);
    /// assert_eq!(job.run()?.tasks.iter().map(|t| t.records_in).collect::<Vec<_>>(), [1, 0]);
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn parallelism(self, n: usize) -> Self {
        self.graph.borrow_mut().chains[self.chain].parallelism = Some(n);
        self
    }

    /// Reads at most this many records per second, all subtasks together, each its even share; `None` for as many as
    /// there are. What was missed in a pause is made up for at most a tenth of a second. The plan refuses what is not a
    /// positive number.
    ///
    /// ```
    /// # use weir_engine::{plan::PlanError, prelude::*, testkit::*};
    /// let job = Job::named("never");
    /// let source = job.source("in", ScriptSource::of([(1, 0)])).max_rate(0.0);
    /// source.without_event_time().sink("out", NullSink);
    /// assert_eq!(job.plan(), Err(PlanError::Rate { uid: "in".into(), rate: "0".into() }));
    /// ```
    #[must_use]
    pub fn max_rate(mut self, records_per_second: impl Into<Option<f64>>) -> Self {
        let rate = records_per_second.into();
        if let Some(rate) = rate.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
            let uid = self.settings.uid.to_string();
            self.graph.borrow_mut().mistake(PlanError::Rate { uid, rate: rate.to_string() });
        }
        self.settings.max_rate = rate;
        self
    }

    /// What to do about records that do not decode, or whose time is refused (default: dead letters). With
    /// [`BadRecords::Fail`] the first of them fails the job. For times that go back,
    /// [`Watermarks::out_of_order`] decides.
    ///
    /// ```
    /// # use {std::time::Duration, weir_engine::{Source, SourceBatch, SourceStatus, prelude::*, testkit::*}};
    /// # #[derive(Clone)]
    /// # struct Garbage;
    /// # impl Source for Garbage {
    /// #     type Out = i64;
    /// #     fn open(&mut self, _: &OperatorContext) -> Result<()> { Ok(()) }
    /// #     fn poll(&mut self, out: &mut SourceBatch<i64>, _: Duration) -> Result<SourceStatus> {
    /// #         out.reject(DeadLetter::new("topic", 0, 7, "not a number", b"x"));
    /// #         Ok(SourceStatus::End)
    /// #     }
    /// # }
    /// let job = Job::named("strict").parallelism(1);
    /// let source = job.source("garbage", Garbage).bad_records(BadRecords::Fail);
    /// source.without_event_time().sink("out", NullSink);
    /// let error = job.run().unwrap_err().to_string();
    /// assert!(error.contains("cannot decode topic partition 0 offset 7: not a number"));
    /// ```
    #[must_use]
    pub fn bad_records(mut self, policy: BadRecords) -> Self {
        self.settings.bad_records = policy;
        self
    }

    /// The records that did not decode, without an event time, and a word on each whose time was refused (which
    /// [`SourceStream::quarantined`] gives whole). Unread, they are only counted and logged. Each call is one more reader.
    ///
    /// ```
    /// # use weir_engine::{prelude::*, testkit::*};
    /// let job = Job::named("copy").parallelism(1);
    /// let source = job.source("in", ScriptSource::of([(1, 0)]));
    /// source.dead_letters().sink("dead", NullSink);
    /// source.without_event_time().sink("out", NullSink);
    /// assert_eq!(job.run()?.tasks[1].records_in, 0, "all of them decode");
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn dead_letters(&self) -> Stream<DeadLetter> {
        read(
            &self.graph,
            From::Chain(self.chain),
            &self.settings.dead_letters.legs,
            Asked::Natural,
            Some("dead letters"),
        )
    }

    /// The records whose times were refused, whole, with what is wrong with them; without an event time. Which times are
    /// refused, [`Watermarks::future_limit`], [`Watermarks::jump_limit`], [`Watermarks::out_of_order`] and
    /// [`SourceStream::try_event_time`] say. Unread, they are only counted and logged. Each call is one more reader.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, TimeFault, prelude::*, testkit::*};
    /// let (job, probe) = (Job::named("skewed").parallelism(1), Probe::new());
    /// let source = job.source("in", ScriptSource::of([("paid", 9), ("in 292 million years", i64::MAX)]));
    /// let refused = source.quarantined();
    /// refused.transform(OperatorInfo::stateless("look"), probe.clone()).sink("refused", NullSink);
    /// source.source_time(Watermarks::monotonic()).sink("out", NullSink);
    /// job.run()?;
    /// assert_eq!((probe.values()[0].value, probe.values().len()), ("in 292 million years", 1));
    /// assert!(matches!(probe.values()[0].fault, TimeFault::AheadOfClock { limit_ms: 3_600_000, .. }));
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn quarantined(&self) -> Stream<Quarantined<S::Out>> {
        read(
            &self.graph,
            From::Chain(self.chain),
            &self.settings.quarantine.legs,
            Asked::Natural,
            Some("quarantined"),
        )
    }

    /// Event time is what `time` says of each record, in milliseconds since the epoch, negative before it.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let (job, probe) = (Job::named("one").parallelism(1), Probe::new());
    /// let events = job.source("in", ScriptSource::of([("9:paid", 0)]));
    /// let timed = events.event_time(|e| e[..1].parse().unwrap_or(0), Watermarks::monotonic());
    /// timed.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// job.run()?;
    /// assert_eq!(probe.seen_by(0)[0], Seen::Record("9:paid", 9));
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn event_time(
        self,
        time: impl FnMut(&S::Out) -> i64 + Clone + Send + 'static,
        watermarks: Watermarks<impl WatermarkGenerator<S::Out>>,
    ) -> Stream<S::Out> {
        self.stream(Extract(time), watermarks)
    }

    /// Event time is what `time` says of each record, given the source's own time of it ([`EventTime::NONE`] when it has
    /// none). One of which it says nothing is refused: it is counted as `untimed_records`, leaves a dead letter, and goes
    /// to [`SourceStream::quarantined`]; with [`BadRecords::Fail`] it fails the job.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let (job, probe) = (Job::named("one").parallelism(1), Probe::new());
    /// let events = job.source("in", ScriptSource::of([("9:paid", 0), ("paid", 0)]));
    /// let timed = events.try_event_time(|e, _| e.split_once(':')?.0.parse().ok(), Watermarks::monotonic());
    /// timed.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// assert_eq!(job.run()?.tasks[0].dead_letters, 1);
    /// assert_eq!(probe.seen_by(0)[0], Seen::Record("9:paid", 9));
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn try_event_time(
        self,
        time: impl FnMut(&S::Out, EventTime) -> Option<i64> + Clone + Send + 'static,
        watermarks: Watermarks<impl WatermarkGenerator<S::Out>>,
    ) -> Stream<S::Out> {
        self.stream(TryExtract(time), watermarks)
    }

    /// Event time is what the source says: the record's timestamp in Kafka, the generator's own time.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let (job, probe) = (Job::named("one").parallelism(1), Probe::new());
    /// let timed = job.source("in", ScriptSource::of([("paid", 9)])).source_time(Watermarks::monotonic());
    /// timed.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// job.run()?;
    /// assert_eq!(probe.seen_by(0)[0], Seen::Record("paid", 9));
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn source_time(self, watermarks: Watermarks<impl WatermarkGenerator<S::Out>>) -> Stream<S::Out> {
        self.stream(SourceTime, watermarks)
    }

    /// The stream has no event time that anything waits for: one watermark, when the input ends or is drained with
    /// [`crate::EndKind::Flush`]. Records keep the time that the source gave them.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let (job, probe) = (Job::named("one").parallelism(1), Probe::new());
    /// let numbers = job.source("in", ScriptSource::of([(1, 5)])).without_event_time();
    /// numbers.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// job.run()?;
    /// assert_eq!(probe.seen_by(0)[..2], [Seen::Record(1, 5), Seen::Watermark(Watermark::MAX.0)]);
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn without_event_time(self) -> Stream<S::Out> {
        self.stream(SourceTime, Watermarks::at_end())
    }

    fn stream<F: Timestamps<S::Out>>(
        self,
        timestamps: F,
        watermarks: Watermarks<impl WatermarkGenerator<S::Out>>,
    ) -> Stream<S::Out> {
        let SourceStream { graph, chain, source, settings } = self;
        let mut shared = Shared::default();
        if let Some((group, _)) = &watermarks.rules.aligned {
            if watermarks.rules.at_end {
                let reason = format!(
                    "a source with Watermarks::at_end() would hold the group {group:?} until its end: leave it out, or give it \
                     another strategy"
                );
                graph.borrow_mut().mistake(PlanError::Argument { uid: settings.uid.to_string(), reason });
            }
            shared.drift = Some(graph.borrow_mut().drift_group(group));
        }
        let input = Box::new(move |_: &_| {
            let (source, timestamps) = (source.clone(), timestamps.clone());
            let (watermarks, settings) = (watermarks.clone(), settings.clone());
            Box::new(SourceInput::new(source, timestamps, watermarks, settings, shared.clone())) as Box<_>
        });
        Stream { graph, chain, pipe: Head::fed(input), sealed: false }
    }
}
