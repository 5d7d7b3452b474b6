//! `KeyedStream` and `WindowedStream`: a stream whose records go to the subtask that owns their key.

use weir_state::key_hash;

use crate::element::{Data, Key, Keyed, Record};
use crate::error::Result;
use crate::graph::{Asked, From, OperatorInfo};
use crate::operator::{Collector, Operator};
use crate::pipe::{Before, Pipe, Then};
use crate::plan::Partitioning;
use crate::runtime::edge::Edge;
use crate::runtime::exchange::KeyedExchange;
use crate::stream::{Head, Stream};

/// Hashes the key of each record, once.
#[derive(Clone)]
struct KeyBy<F>(F);

impl<T: Data, K: Key, F: Fn(&T) -> K + Clone + Send + 'static> Operator<T> for KeyBy<F> {
    type Out = Keyed<K, T>;
    #[inline]
    fn process(&mut self, record: Record<T>, out: &mut impl Collector<Keyed<K, T>>) -> Result<()> {
        let key = (self.0)(&record.value);
        let hash = key_hash(&key);
        out.emit(Record { value: Keyed { hash, key, value: record.value }, time: record.time })
    }
}

/// A stream partitioned by key: all records of one key come to one subtask, in the order each producer sent them.
pub struct KeyedStream<K: Key, T: Data, P: Pipe<Out = Keyed<K, T>> = Head<Keyed<K, T>>> {
    pub(super) stream: Stream<Keyed<K, T>, P>,
}

impl<K: Key, T: Data, P: Pipe<Out = Keyed<K, T>>> std::fmt::Debug for KeyedStream<K, T, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyedStream<{}, {}>", std::any::type_name::<K>(), std::any::type_name::<T>())
    }
}

/// A keyed stream with a window, waiting for what to do in it. `W` is the window, defined by `weir-operators`; the
/// engine only carries it.
#[derive(Debug)]
pub struct WindowedStream<K: Key, T: Data, W, P: Pipe<Out = Keyed<K, T>> = Head<Keyed<K, T>>> {
    keyed: KeyedStream<K, T, P>,
    window: W,
}

impl<T: Data, P: Pipe<Out = T>> Stream<T, P> {
    /// Sends each record to the subtask that owns its key. `name` shows in the plan and in errors of the key function,
    /// which runs once per record, in the task before.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let (job, probe) = (Job::named("by-parity").parallelism(2), Probe::new());
    /// let numbers = job.source("in", ScriptSource::of((0..100).map(|n| (n, 0)))).without_event_time();
    /// let keyed = numbers.key_by("parity", |n| n % 2);
    /// keyed.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// job.run()?;
    /// assert!(probe.values().iter().all(|record| record.key == record.value % 2));
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn key_by<K: Key>(
        self,
        name: &str,
        key: impl Fn(&T) -> K + Clone + Send + 'static,
    ) -> KeyedStream<K, T> {
        let graph = self.graph;
        let uid = graph.borrow_mut().operator(self.chain, OperatorInfo::named("key_by", name));
        let pipe = Then { before: Before::Chain(self.pipe), op: KeyBy(key), uid };
        let edge = Edge::<Keyed<K, T>>::new();
        let out = edge.clone();
        let next = {
            let mut graph = graph.borrow_mut();
            graph.chains[self.chain].recipe = Some(Box::new(move |cx| {
                let (tx, _, consumer) = out.take_tx(cx.task.subtask);
                pipe.link(KeyedExchange::new(tx, consumer, cx.clone()), cx)
            }));
            let next = graph.chain();
            graph.edge(
                From::Chain(self.chain),
                next,
                Asked::Exactly(Partitioning::KeyBy),
                None,
                edge.clone(),
            );
            next
        };
        KeyedStream { stream: Stream { graph, chain: next, pipe: Head::reading(vec![edge]), sealed: false } }
    }
}

impl<K: Key, T: Data> KeyedStream<K, T> {
    /// How many subtasks the keys are spread over: at most one for each key group (128).
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let job = Job::named("by-parity").parallelism(1);
    /// let keyed = job.source("in", ScriptSource::of([(1, 0)])).without_event_time().key_by("parity", |n| n % 2);
    /// keyed.parallelism(3).transform(OperatorInfo::stateless("look"), Probe::new()).sink("out", NullSink);
    /// assert_eq!(job.plan()?.chains[1].parallelism, 3);
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn parallelism(self, n: usize) -> Self {
        KeyedStream { stream: self.stream.parallelism(n) }
    }
}

impl<K: Key, T: Data, P: Pipe<Out = Keyed<K, T>>> KeyedStream<K, T, P> {
    /// Puts a window on the stream; what follows says what to compute in it.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// # let job = Job::named("windows");
    /// # let keyed = job.source("in", ScriptSource::of([(1, 0)])).without_event_time().key_by("it", |n| *n);
    /// let (keyed, window) = keyed.window("an hour").into_parts();
    /// assert_eq!(window, "an hour"); // What it means is for the operator that is added now.
    /// keyed.transform(OperatorInfo::stateful("window", window), Probe::new()).sink("out", NullSink);
    /// assert!(job.plan()?.chains[1].operators[0].stateful);
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn window<W>(self, window: W) -> WindowedStream<K, T, W, P> {
        WindowedStream { keyed: self, window }
    }

    /// Refuses the plan when an argument of the operator `uid` makes no sense: a mistake that can be told before anything
    /// starts should be. Used by the extension traits of `weir-operators`.
    #[must_use]
    pub fn require(self, uid: &str, argument: std::result::Result<(), impl std::fmt::Display>) -> Self {
        KeyedStream { stream: self.stream.require(uid, argument) }
    }

    /// Adds an operator that sees each record with its key. Used by the extension traits of `weir-operators`.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let (job, probe) = (Job::named("one").parallelism(1), Probe::new());
    /// let keyed = job.source("in", ScriptSource::of([(7, 0)])).without_event_time().key_by("it", |n| n % 2);
    /// keyed.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// job.run()?;
    /// assert_eq!(probe.values().iter().map(|r| (r.key, r.value)).collect::<Vec<_>>(), [(1, 7)]);
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn transform<O: Operator<Keyed<K, T>>>(
        self,
        info: OperatorInfo,
        op: O,
    ) -> Stream<O::Out, Then<P, Keyed<K, T>, O>> {
        self.stream.transform(info, op)
    }
}

impl<K: Key, T: Data, W, P: Pipe<Out = Keyed<K, T>>> WindowedStream<K, T, W, P> {
    /// The keyed stream and the window on it, for who implements windows; [`KeyedStream::window`] shows it.
    pub fn into_parts(self) -> (KeyedStream<K, T, P>, W) {
        (self.keyed, self.window)
    }
}
