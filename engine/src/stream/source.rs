//! `SourceStream`: what is said about a source before it becomes a stream: event time, rate, parallelism, bad records.

use crate::dead_letter::{BadRecords, DeadLetter};
use crate::graph::{Asked, From, GraphRef, OperatorInfo};
use crate::plan::PlanError;
use crate::runtime::source_input::{Extract, SourceInput, SourceSettings, SourceTime, Timestamps};
use crate::side::SideSlot;
use crate::source::Source;
use crate::stream::{Head, Stream, read};
use crate::watermarks::Watermarks;

/// A source that has not said yet where its event time comes from.
pub struct SourceStream<S: Source> {
    graph: GraphRef,
    chain: usize,
    source: S,
    settings: SourceSettings,
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
            .operator(chain, OperatorInfo { stateful: true, ..OperatorInfo::named("source", uid) });
        let settings = SourceSettings {
            uid,
            watermarks: Watermarks::at_end(),
            max_rate: None,
            bad_records: BadRecords::default(),
            dead_letters: SideSlot::default(),
        };
        SourceStream { graph: graph.clone(), chain, source, settings }
    }

    /// How many subtasks read. More than there are partitions or files leaves some of them idle, which harms nobody.
    #[must_use]
    pub fn parallelism(self, n: usize) -> Self {
        self.graph.borrow_mut().chains[self.chain].parallelism = Some(n);
        self
    }

    /// Reads at most this many records per second, all subtasks together; `None` for as many as there are.
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

    /// What to do about records that do not decode (default: dead letters).
    #[must_use]
    pub fn bad_records(mut self, policy: BadRecords) -> Self {
        self.settings.bad_records = policy;
        self
    }

    /// The records that did not decode. Unread, they are counted and logged.
    pub fn dead_letters(&self) -> Stream<DeadLetter> {
        read(
            &self.graph,
            From::Chain(self.chain),
            &self.settings.dead_letters.legs,
            Asked::Natural,
            Some("dead letters"),
        )
    }

    /// Event time is what `time` says of each record, in milliseconds since the epoch.
    pub fn event_time(
        self,
        time: impl FnMut(&S::Out) -> i64 + Clone + Send + 'static,
        watermarks: Watermarks,
    ) -> Stream<S::Out> {
        self.stream(Extract(time), watermarks)
    }

    /// Event time is what the source says: the record's timestamp in Kafka, the generator's own time.
    pub fn source_time(self, watermarks: Watermarks) -> Stream<S::Out> {
        self.stream(SourceTime, watermarks)
    }

    /// The stream has no event time that anything waits for: one watermark, when the input ends.
    pub fn without_event_time(self) -> Stream<S::Out> {
        self.stream(SourceTime, Watermarks::at_end())
    }

    fn stream<F: Timestamps<S::Out>>(self, timestamps: F, watermarks: Watermarks) -> Stream<S::Out> {
        let SourceStream { graph, chain, source, mut settings } = self;
        settings.watermarks = watermarks;
        let input = Box::new(move |_: &_| {
            Box::new(SourceInput::new(source.clone(), timestamps.clone(), settings.clone())) as Box<_>
        });
        Stream { graph, chain, pipe: Head { input }, sealed: false }
    }
}
