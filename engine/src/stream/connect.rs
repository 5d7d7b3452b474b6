//! Two streams of different types into one operator: two keyed ones, or one with another that every subtask gets whole.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::element::{Data, Either, Key, Keyed};
use crate::graph::{Asked, From, GraphRef, OperatorInfo};
use crate::operator::Operator;
use crate::pipe::{Pipe, Then};
use crate::plan::{Partitioning, PlanError};
use crate::runtime::edge::Edge;
use crate::runtime::gate::Gate;
use crate::runtime::inputs::Two;
use crate::stream::{Head, KeyedStream, Stream, close, connect, of_one_job};

/// A chain fed by edges of two types.
fn fed_by_two<A: Data, B: Data, T: Data>(
    left: Vec<Arc<Edge<A>>>,
    right: Vec<Arc<Edge<B>>>,
    wrap_left: impl Fn(A) -> T + Clone + Send + 'static,
    wrap_right: impl Fn(B) -> T + Clone + Send + 'static,
    right_is_timed: bool,
) -> Head<T> {
    Head::fed(Box::new(move |cx| {
        Box::new(Gate::over(Two {
            left: left.iter().flat_map(|edge| edge.take_rx(cx.task.subtask)).collect(),
            right: right.iter().flat_map(|edge| edge.take_rx(cx.task.subtask)).collect(),
            wrap_left: wrap_left.clone(),
            wrap_right: wrap_right.clone(),
            right_is_timed,
        }))
    }))
}

impl<K: Key, T: Data> KeyedStream<K, T> {
    /// Both streams into one operator, which is added next and sees the records of a key from both, in no particular order
    /// between them. Both are always read: neither waits for the other. Event time is where the slower of the two is; one that is
    /// idle is not waited for. Parallelism is said for one of them, or the same for both.
    ///
    /// The two must be of the same job, and not connected before: connect what comes out of the first operator.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let (job, probe) = (Job::named("both").parallelism(2), Probe::new());
    /// let orders = job.source("orders", ScriptSource::of([(7, 0)])).without_event_time().key_by("by-id", |id| *id);
    /// let notes = job.source("notes", ScriptSource::of([("7:late", 0)])).without_event_time();
    /// let notes = notes.key_by("by-order", |note| note[..1].parse().unwrap_or(0));
    /// orders.connect(notes).transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// job.run()?;
    /// let mut seen: Vec<_> = probe.values().into_iter().map(|r| (r.key, r.value)).collect();
    /// seen.sort();
    /// assert_eq!(seen, [(7, Either::Left(7)), (7, Either::Right("7:late"))]);
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn connect<U: Data>(self, other: KeyedStream<K, U>) -> KeyedStream<K, Either<T, U>> {
        let (one, other) = (self.stream, other.stream);
        let of_one_job = of_one_job(&one.graph, &other.graph);
        if of_one_job && (one.pipe.edges.is_empty() || other.pipe.edges.is_empty()) {
            one.graph.borrow_mut().mistake(PlanError::ConnectedTwice);
        }
        let (left, right) = (one.pipe.edges, if of_one_job { other.pipe.edges } else { Vec::new() });
        let chain = if of_one_job && one.chain != other.chain {
            // The later one, so that a plan reads from what is before to what is behind.
            let (gone, stays) = (one.chain.min(other.chain), one.chain.max(other.chain));
            let mut graph = one.graph.borrow_mut();
            graph.is_right(other.chain);
            graph.merge(gone, stays);
            stays
        } else {
            one.chain
        };
        let wrap_left = |r: Keyed<K, T>| Keyed { hash: r.hash, key: r.key, value: Either::Left(r.value) };
        let wrap_right = |r: Keyed<K, U>| Keyed { hash: r.hash, key: r.key, value: Either::Right(r.value) };
        let pipe = fed_by_two(left, right, wrap_left, wrap_right, true);
        KeyedStream { stream: Stream { graph: one.graph, chain, pipe, sealed: false } }
    }

    /// Every record of `rules` to every subtask of the operator that is added next, beside this stream's records, which stay with
    /// the owners of their keys. As [`Stream::connect_broadcast`].
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// # let (job, probe) = (Job::named("ruled").parallelism(2), Probe::new());
    /// # let clicks = job.source("clicks", ScriptSource::of([(8, 0)])).parallelism(1).without_event_time();
    /// # let rules = job.source("rules", ScriptSource::of([("limit", 0)])).parallelism(1).without_event_time();
    /// let both = clicks.key_by("by-user", |user| *user).connect_broadcast(rules);
    /// both.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// job.run()?;
    /// let (clicks, rules): (Vec<_>, Vec<_>) = probe.values().into_iter().partition(|r| matches!(r, Either::Left(_)));
    /// assert_eq!((clicks.len(), rules.len()), (1, 2));
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn connect_broadcast<R: Data, Q: Pipe<Out = R>>(
        self,
        rules: Stream<R, Q>,
    ) -> BroadcastStream<Keyed<K, T>, R> {
        let Stream { graph, chain, pipe, .. } = self.stream;
        if pipe.edges.is_empty() {
            graph.borrow_mut().mistake(PlanError::ConnectedTwice);
        }
        with_rules(graph, chain, pipe.edges, rules)
    }
}

impl<T: Data, P: Pipe<Out = T>> Stream<T, P> {
    /// Every record of `rules` to every subtask of the operator that is added next, beside this stream's records. All subtasks get
    /// the rules in the same order: where several subtasks give them, one in between gathers them. Both streams are always read;
    /// what comes first between them is not said. Event time is this stream's alone: rules hold nothing back.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let (job, probe) = (Job::named("ruled").parallelism(2), Probe::new());
    /// let events = job.source("events", ScriptSource::of([("click", 0)])).parallelism(2).without_event_time();
    /// let rules = job.source("rules", ScriptSource::of([(7, 0)])).parallelism(1).without_event_time();
    /// let both = events.connect_broadcast(rules);
    /// both.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// job.run()?;
    /// let rules = probe.values().into_iter().filter_map(Either::right).collect::<Vec<_>>();
    /// assert_eq!(rules, [7, 7], "one for each subtask");
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn connect_broadcast<R: Data, Q: Pipe<Out = R>>(self, rules: Stream<R, Q>) -> BroadcastStream<T, R> {
        let Stream { graph, chain, pipe, .. } = self;
        let parallelism = graph.borrow().chains[chain].parallelism;
        let legs = close(&graph, chain, pipe);
        let next = graph.borrow_mut().chain();
        graph.borrow_mut().chains[next].parallelism = parallelism;
        let edge = connect(&graph, From::Chain(chain), &legs, next, Asked::Natural, None);
        with_rules(graph, next, vec![edge], rules)
    }
}

fn with_rules<T: Data, R: Data, Q: Pipe<Out = R>>(
    graph: GraphRef,
    chain: usize,
    data: Vec<Arc<Edge<T>>>,
    rules: Stream<R, Q>,
) -> BroadcastStream<T, R> {
    let mut edges = Vec::new();
    if of_one_job(&graph, &rules.graph) {
        let asked = Asked::Exactly(Partitioning::Broadcast);
        let alone = graph.borrow().parallelism_of(rules.chain) == 1;
        edges.push(if alone {
            // The job's own parallelism may still be said: it is one that gives the rules, as it was written.
            graph.borrow_mut().chains[rules.chain].parallelism = Some(1);
            let legs = close(&graph, rules.chain, rules.pipe);
            connect(&graph, From::Chain(rules.chain), &legs, chain, asked, None)
        } else {
            let one = rules.boundary().parallelism(1);
            graph.borrow_mut().operator(one.chain, OperatorInfo::stateless("gather"));
            let legs = close(&graph, one.chain, one.pipe);
            connect(&graph, From::Chain(one.chain), &legs, chain, asked, None)
        });
    }
    let pipe = fed_by_two(data, edges, Either::Left, Either::Right, false);
    BroadcastStream { stream: Stream { graph, chain, pipe, sealed: false }, _of: PhantomData }
}

/// A stream beside another one that every subtask gets whole, waiting for the operator that reads both; made by
/// [`Stream::connect_broadcast`] and [`KeyedStream::connect_broadcast`].
pub struct BroadcastStream<T: Data, R: Data> {
    stream: Stream<Either<T, R>>,
    _of: PhantomData<fn() -> (T, R)>,
}

impl<T: Data, R: Data> std::fmt::Debug for BroadcastStream<T, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BroadcastStream<{}, {}>", std::any::type_name::<T>(), std::any::type_name::<R>())
    }
}

impl<T: Data, R: Data> BroadcastStream<T, R> {
    /// How many subtasks the operator has that is added next.
    #[must_use]
    pub fn parallelism(self, n: usize) -> Self {
        BroadcastStream { stream: self.stream.parallelism(n), _of: PhantomData }
    }

    /// Adds the operator that reads both. Used by the extension traits of `weir-operators`.
    #[expect(clippy::type_complexity, reason = "a chain's type is what was written, end to end")]
    pub fn transform<O: Operator<Either<T, R>>>(
        self,
        info: OperatorInfo,
        op: O,
    ) -> Stream<O::Out, Then<Head<Either<T, R>>, Either<T, R>, O>> {
        self.stream.transform(info, op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;
    use crate::testkit::{NullSink, Probe, ScriptSource};

    fn keyed(job: &Job, uid: &str) -> KeyedStream<i64, i64> {
        let source = job.source(uid, ScriptSource::of([(1, 0)])).without_event_time();
        source.key_by(&format!("{uid}-by-it"), |n| *n)
    }

    fn ends<T: Data>(stream: KeyedStream<i64, T>) {
        stream.transform(OperatorInfo::stateful("look", "look"), Probe::new()).sink("out", NullSink);
    }

    #[test]
    fn two_keyed_streams_are_read_by_one_chain() {
        let job = Job::named("both").parallelism(2);
        let (one, other) = (keyed(&job, "one"), keyed(&job, "other").parallelism(3));
        ends(one.connect(other));
        // A chain that comes after what has been merged.
        job.source("more", ScriptSource::of([(1, 0)])).without_event_time().sink("more-out", NullSink);
        let plan = job.plan().unwrap();
        let chains: Vec<_> =
            plan.chains.iter().map(|c| (c.operators[0].uid.as_str(), c.parallelism)).collect();
        assert_eq!(chains, [("one", 2), ("other", 2), ("look", 3), ("more", 2)]);
        let edges: Vec<_> = plan.edges.iter().map(|e| (e.from, e.to, e.partitioning, e.channels)).collect();
        assert_eq!(edges, [(0, 2, Partitioning::KeyBy, 6), (1, 2, Partitioning::KeyBy, 6)]);
    }

    #[test]
    fn what_cannot_be_connected_is_a_plan_error() {
        let job = Job::named("both").parallelism(2);
        ends(keyed(&job, "one").parallelism(2).connect(keyed(&job, "other").parallelism(3)));
        assert_eq!(job.plan(), Err(PlanError::Connected { one: 3, other: 2 }));

        let job = Job::named("three").parallelism(2);
        ends(keyed(&job, "one").connect(keyed(&job, "other")).connect(keyed(&job, "third")));
        assert_eq!(job.plan(), Err(PlanError::ConnectedTwice));

        let (job, elsewhere) = (Job::named("here").parallelism(2), Job::named("elsewhere"));
        ends(keyed(&job, "one").connect(keyed(&elsewhere, "other")));
        assert!(matches!(job.plan(), Err(PlanError::TwoJobs { .. })));
    }

    #[test]
    fn rules_of_several_subtasks_are_gathered_by_one() {
        for (parallelism, expected) in
            [(1, vec!["data", "rules", "look"]), (3, vec!["data", "rules", "look", "gather"])]
        {
            let job = Job::named("ruled").parallelism(2);
            let data = keyed(&job, "data");
            let rules =
                job.source("rules", ScriptSource::of([(1, 0)])).parallelism(parallelism).without_event_time();
            let both = data.connect_broadcast(rules);
            both.transform(OperatorInfo::stateful("look", "look"), Probe::new()).sink("out", NullSink);
            let plan = job.plan().unwrap();
            let mut chains: Vec<_> = plan.chains.iter().map(|c| c.operators[0].uid.as_str()).collect();
            chains.sort_by_key(|uid| expected.iter().position(|other| other == uid));
            assert_eq!(chains, expected);
            let broadcast = plan.edges.iter().find(|e| e.partitioning == Partitioning::Broadcast).unwrap();
            assert_eq!((plan.chains[broadcast.from].parallelism, broadcast.channels), (1, 2));
        }
    }

    #[test]
    fn rules_that_one_gives_are_given_by_one_whatever_the_job_is_told_later() {
        let job = Job::named("ruled").parallelism(1);
        let rules = job.source("rules", ScriptSource::of([(1, 0)])).without_event_time();
        let both = keyed(&job, "data").connect_broadcast(rules);
        both.transform(OperatorInfo::stateful("look", "look"), Probe::new()).sink("out", NullSink);
        let plan = job.parallelism(4).plan().unwrap();
        let broadcast = plan.edges.iter().find(|e| e.partitioning == Partitioning::Broadcast).unwrap();
        assert_eq!((plan.chains[broadcast.from].parallelism, broadcast.channels), (1, 4));
    }
}
