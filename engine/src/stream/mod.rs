//! `Stream<T>`: transform, boundary, union, share, sink; a fluent chain carries its fused type and is normally inferred.
//! (over 400 lines: every step that a stream can take is on one page, each with an example)

mod connect;
mod keyed;
mod sinks;
mod source;

use std::rc::Rc;
use std::sync::{Arc, PoisonError};

pub use connect::BroadcastStream;
pub use keyed::{KeyedStream, WindowedStream};
pub use source::SourceStream;

use crate::context::TaskContext;
use crate::element::Data;
use crate::graph::{Asked, From, GraphRef, OperatorInfo};
use crate::operator::Operator;
use crate::pipe::{Before, Pipe, Stage, Then};
use crate::plan::{Partitioning, PlanError};
use crate::runtime::edge::Edge;
use crate::runtime::gate::Gate;
use crate::runtime::input::Input;
use crate::runtime::task::{Task, TaskBody};
use crate::side::{Legs, SideSlot, exchange_of};
use crate::sink::Sink;

/// Makes the input of one subtask.
pub(crate) type InputRecipe<T> = Box<dyn Fn(&TaskContext) -> Box<dyn Input<T>> + Send>;

/// The empty chain at a task boundary: linking it to `next` is a task that feeds `next`.
pub struct Head<T> {
    pub(crate) input: InputRecipe<T>,
    /// The edges that feed it; none for a source.
    edges: Vec<Arc<Edge<T>>>,
}

impl<T> std::fmt::Debug for Head<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Head")
    }
}

impl<T: Data> Head<T> {
    /// A chain fed by something else.
    pub(crate) fn fed(input: InputRecipe<T>) -> Self {
        Head { input, edges: Vec::new() }
    }

    /// A chain fed by edges.
    pub(crate) fn reading(edges: Vec<Arc<Edge<T>>>) -> Self {
        let own = edges.clone();
        let input: InputRecipe<T> = Box::new(move |cx| {
            Box::new(Gate::new(edges.iter().flat_map(|edge| edge.take_rx(cx.task.subtask)).collect()))
        });
        Head { input, edges: own }
    }
}

impl<T: Data> Pipe for Head<T> {
    type Out = T;
    fn link<N: Stage<T>>(&self, next: N, cx: &TaskContext) -> Box<dyn TaskBody> {
        Task::boxed((self.input)(cx), next)
    }
    fn into_head(self) -> Result<Head<T>, Self> {
        Ok(self)
    }
}

/// A stream of `T`.
///
/// `P` is the chain so far. It defaults to [`Head`], so a plain `Stream<T>` is a stream at a task boundary and easy to
/// name in a signature; [`Stream::boundary`] makes one. A stream that is dropped before it ends in a sink, a `key_by` or
/// another stream is an error of the plan.
///
/// ```
/// use weir_engine::{OperatorInfo, prelude::*, testkit::*};
/// fn watched(numbers: Stream<i32>, probe: &Probe<i32>) -> Stream<i32> {
///     numbers.transform(OperatorInfo::stateless("look"), probe.clone()).boundary()
/// }
/// let (job, probe) = (Job::named("copy").parallelism(1), Probe::new());
/// watched(job.source("in", ScriptSource::of([(1, 0)])).without_event_time(), &probe).sink("out", NullSink);
/// job.run()?;
/// assert_eq!(probe.values(), [1]);
/// # Ok::<(), JobError>(())
/// ```
pub struct Stream<T: Data, P: Pipe<Out = T> = Head<T>> {
    pub(crate) graph: GraphRef,
    pub(crate) chain: usize,
    pub(crate) pipe: P,
    /// Nothing may be fused behind the last operator.
    pub(crate) sealed: bool,
}

impl<T: Data, P: Pipe<Out = T>> std::fmt::Debug for Stream<T, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream<{}>", std::any::type_name::<T>())
    }
}

/// Ends `chain` with an exchange that any number of edges may leave from.
pub(crate) fn close<T: Data>(graph: &GraphRef, chain: usize, pipe: impl Pipe<Out = T>) -> Legs<T> {
    let legs: Legs<T> = Arc::default();
    let own = legs.clone();
    let mut graph = graph.borrow_mut();
    if graph.chains[chain].operators.is_empty() {
        graph.operator(chain, OperatorInfo::stateless("pass"));
    }
    graph.chains[chain].recipe = Some(Box::new(move |cx| pipe.link(exchange_of(&own, cx), cx)));
    legs
}

/// One more edge out of `legs`, into `to`.
pub(crate) fn connect<T: Data>(
    graph: &GraphRef,
    from: From,
    legs: &Legs<T>,
    to: usize,
    asked: Asked,
    side: Option<&'static str>,
) -> Arc<Edge<T>> {
    let edge = Edge::new();
    if !graph.borrow().over {
        // The recipe of a running job reads these too: it must not find an edge that no plan knows.
        legs.lock().unwrap_or_else(PoisonError::into_inner).push(edge.clone());
    }
    graph.borrow_mut().edge(from, to, asked, side, edge.clone());
    edge
}

/// A new chain that reads one more edge out of `legs`.
pub(crate) fn read<T: Data>(
    graph: &GraphRef,
    from: From,
    legs: &Legs<T>,
    asked: Asked,
    side: Option<&'static str>,
) -> Stream<T> {
    let chain = graph.borrow_mut().chain();
    let edge = connect(graph, from, legs, chain, asked, side);
    Stream { graph: graph.clone(), chain, pipe: Head::reading(vec![edge]), sealed: false }
}

impl<T: Data, P: Pipe<Out = T>> Stream<T, P> {
    /// Adds an operator behind the last one, in the same task unless chaining is off. Operators are usually added
    /// through the extension traits of `weir-operators`.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let (job, probe) = (Job::named("copy").parallelism(1), Probe::new());
    /// let numbers = job.source("in", ScriptSource::of([(1, 0), (2, 5)])).without_event_time();
    /// numbers.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// assert_eq!(job.plan()?.tasks(), 1);
    /// job.run()?;
    /// assert_eq!(probe.values(), [1, 2]);
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn transform<O: Operator<T>>(self, info: OperatorInfo, op: O) -> Stream<O::Out, Then<P, T, O>> {
        let fresh = self.graph.borrow().chains[self.chain].operators.is_empty();
        let cut = !fresh && (self.sealed || !self.graph.borrow().chaining);
        if cut {
            let next = read_behind(&self.graph, self.chain, self.pipe);
            let uid = next.graph.borrow_mut().operator(next.chain, info);
            Stream {
                graph: next.graph,
                chain: next.chain,
                pipe: Then { before: Before::Cut(next.pipe), op, uid },
                sealed: false,
            }
        } else {
            let uid = self.graph.borrow_mut().operator(self.chain, info);
            Stream {
                graph: self.graph,
                chain: self.chain,
                pipe: Then { before: Before::Chain(self.pipe), op, uid },
                sealed: false,
            }
        }
    }

    /// Refuses the plan when an argument of the operator `uid` makes no sense: a mistake that can be told before anything
    /// starts should be. Used by the extension traits of `weir-operators`.
    #[must_use]
    pub fn require(self, uid: &str, argument: Result<(), impl std::fmt::Display>) -> Self {
        if let Err(reason) = argument {
            let (uid, reason) = (uid.to_owned(), reason.to_string());
            self.graph.borrow_mut().mistake(PlanError::Argument { uid, reason });
        }
        self
    }

    fn ends(self, how: Partitioning) -> Stream<T> {
        let Stream { graph, chain, pipe, sealed } = self;
        // Right behind a boundary nothing has to run in between: the edge that leads here is spread so.
        let pipe = match pipe.into_head() {
            Ok(pipe) if graph.borrow_mut().repartition(chain, how) => {
                return Stream { graph, chain, pipe, sealed };
            }
            Ok(head) => return Stream { graph, chain, pipe: head, sealed }.spread(how),
            Err(pipe) => pipe,
        };
        Stream { graph, chain, pipe, sealed }.spread(how)
    }

    fn spread(self, how: Partitioning) -> Stream<T> {
        let legs = close(&self.graph, self.chain, self.pipe);
        read(&self.graph, From::Chain(self.chain), &legs, Asked::Exactly(how), None)
    }

    /// Ends the task here: what follows runs in tasks of its own, forward where the parallelism is equal, else
    /// rebalanced.
    ///
    /// ```
    /// # use weir_engine::{plan::Partitioning, prelude::*, testkit::*};
    /// let job = Job::named("copy").parallelism(2);
    /// let numbers = job.source("in", ScriptSource::of([(1, 0)])).without_event_time();
    /// numbers.boundary().sink("same", NullSink);
    /// let plan = job.plan()?;
    /// assert_eq!((plan.chains.len(), plan.edges[0].partitioning), (2, Partitioning::Forward));
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn boundary(self) -> Stream<T> {
        read_behind(&self.graph, self.chain, self.pipe)
    }

    /// Ends the task here; subtask i sends to subtask i. Both sides must have the same parallelism, or the plan refuses.
    ///
    /// ```
    /// # use weir_engine::{plan::PlanError, prelude::*, testkit::*};
    /// let job = Job::named("copy").parallelism(2);
    /// let numbers = job.source("in", ScriptSource::of([(1, 0)])).without_event_time();
    /// numbers.forward().parallelism(3).sink("out", NullSink);
    /// assert!(matches!(job.plan(), Err(PlanError::ForwardMismatch { .. })));
    /// ```
    pub fn forward(self) -> Stream<T> {
        self.ends(Partitioning::Forward)
    }

    /// Ends the task here; each batch goes to the next subtask in turn. Order is kept only within a subtask.
    ///
    /// ```
    /// # use weir_engine::{prelude::*, testkit::*};
    /// let job = Job::named("copy");
    /// let numbers = job.source("in", ScriptSource::of([(1, 0)])).parallelism(2).without_event_time();
    /// numbers.rebalance().parallelism(3).sink("out", NullSink);
    /// assert_eq!(job.plan()?.edges[0].channels, 2 * 3);
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn rebalance(self) -> Stream<T> {
        self.ends(Partitioning::Rebalance)
    }

    /// Ends the task here; every record goes to every subtask.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let (job, probe) = (Job::named("copies").parallelism(1), Probe::new());
    /// let numbers = job.source("in", ScriptSource::of([(7, 0)])).without_event_time();
    /// let everywhere = numbers.broadcast().parallelism(2);
    /// everywhere.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    /// job.run()?;
    /// assert_eq!(probe.values(), [7, 7]);
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn broadcast(self) -> Stream<T> {
        self.ends(Partitioning::Broadcast)
    }

    /// Ends the task here so that any number of readers can follow; each gets every record (a clone, but for the last).
    /// A slow reader holds the others back. With no reader at all the records go nowhere.
    ///
    /// ```
    /// # use weir_engine::{prelude::*, testkit::*};
    /// let job = Job::named("copies").parallelism(1);
    /// let shared = job.source("in", ScriptSource::of([(1, 0), (2, 5)])).without_event_time().shared();
    /// shared.stream().sink("one", NullSink);
    /// shared.stream().sink("two", NullSink);
    /// let report = job.run()?;
    /// assert_eq!(report.tasks.iter().map(|t| t.records_in).collect::<Vec<_>>(), [2, 2, 2]);
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn shared(self) -> Shared<T> {
        let legs = close(&self.graph, self.chain, self.pipe);
        Shared { graph: self.graph, chain: self.chain, legs }
    }

    /// Both streams as one, in no particular order between them; ends both their tasks. Both must be of the same job.
    ///
    /// ```
    /// # use weir_engine::{prelude::*, testkit::*};
    /// let job = Job::named("both").parallelism(1);
    /// let odd = job.source("odd", ScriptSource::of([(1, 0), (3, 5)])).without_event_time();
    /// let even = job.source("even", ScriptSource::of([(2, 0)])).without_event_time();
    /// odd.union(even).sink("out", NullSink);
    /// assert_eq!(job.run()?.tasks[2].records_in, 3);
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn union<Q: Pipe<Out = T>>(self, other: Stream<T, Q>) -> Stream<T> {
        if !of_one_job(&self.graph, &other.graph) {
            return read_behind(&self.graph, self.chain, self.pipe);
        }
        let graph = self.graph;
        let chain = graph.borrow_mut().chain();
        graph.borrow_mut().operator(chain, OperatorInfo::stateless("union"));
        let a = close(&graph, self.chain, self.pipe);
        let b = close(&graph, other.chain, other.pipe);
        let edges = vec![
            connect(&graph, From::Chain(self.chain), &a, chain, Asked::Natural, None),
            connect(&graph, From::Chain(other.chain), &b, chain, Asked::Natural, None),
        ];
        Stream { graph, chain, pipe: Head::reading(edges), sealed: false }
    }

    /// Ends the stream in `sink`, in the same task unless chaining is off. For another parallelism than the stream's,
    /// say `.rebalance().parallelism(n)` before it.
    ///
    /// ```
    /// # use weir_engine::{prelude::*, testkit::*};
    /// let job = Job::named("copy").parallelism(2);
    /// let numbers = job.source("in", ScriptSource::of([(1, 0)])).without_event_time();
    /// numbers.rebalance().parallelism(1).sink("out", NullSink);
    /// assert!(job.plan()?.to_string().contains("×1 out:sink"));
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn sink(self, uid: &str, sink: impl Sink<T>) {
        let fresh = self.graph.borrow().chains[self.chain].operators.is_empty();
        if !fresh && (self.sealed || !self.graph.borrow().chaining) {
            read_behind(&self.graph, self.chain, self.pipe).sink(uid, sink);
            return;
        }
        let mut graph = self.graph.borrow_mut();
        let uid = graph.operator(self.chain, OperatorInfo::named("sink", uid).footprint(sink.footprint()));
        let pipe = self.pipe;
        graph.chains[self.chain].recipe = Some(Box::new(move |cx| {
            pipe.link(sinks::SinkStage::new(sink.clone(), uid.clone(), cx.clone()), cx)
        }));
    }

    /// A stream of what the last operator puts into `slot`; `side` names the output in the plan. The slot must be that
    /// operator's own, and this must be called right behind it: [`SideSlot`] shows how. Each call is one more reader.
    pub fn side<U: Data>(&self, slot: &SideSlot<U>, side: &'static str) -> Stream<U> {
        let last = self.graph.borrow().chains[self.chain].operators.last().map(|o| o.number);
        let from = last.map_or(From::Chain(self.chain), From::Operator);
        read(&self.graph, from, &slot.legs, Asked::Natural, Some(side))
    }
}

/// True for two streams of one job; else both jobs are told of the mistake.
fn of_one_job(one: &GraphRef, other: &GraphRef) -> bool {
    if Rc::ptr_eq(one, other) {
        return true;
    }
    let mistake = PlanError::TwoJobs { one: one.borrow().name.clone(), other: other.borrow().name.clone() };
    one.borrow_mut().mistake(mistake.clone());
    other.borrow_mut().mistake(mistake);
    false
}

/// What follows runs behind a task boundary.
fn read_behind<T: Data>(graph: &GraphRef, chain: usize, pipe: impl Pipe<Out = T>) -> Stream<T> {
    let legs = close(graph, chain, pipe);
    read(graph, From::Chain(chain), &legs, Asked::Natural, None)
}

impl<T: Data> Stream<T> {
    /// How many subtasks the tasks behind this boundary have; right behind a source, how many read.
    ///
    /// ```
    /// # use weir_engine::{prelude::*, testkit::*};
    /// let job = Job::named("copy").parallelism(2);
    /// let numbers = job.source("in", ScriptSource::of([(1, 0)])).without_event_time().parallelism(1);
    /// numbers.boundary().parallelism(3).sink("out", NullSink);
    /// assert_eq!(job.plan()?.chains.iter().map(|c| c.parallelism).collect::<Vec<_>>(), [1, 3]);
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn parallelism(self, n: usize) -> Self {
        self.graph.borrow_mut().chains[self.chain].parallelism = Some(n);
        self
    }
}

impl<T: Data, P: Pipe<Out = T>, O: Operator<T>> Stream<O::Out, Then<P, T, O>> {
    /// Gives the last operator a name, its uid; it shows in the plan, in metrics and in errors.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let job = Job::named("copy");
    /// let numbers = job.source("in", ScriptSource::of([(1, 0)])).without_event_time();
    /// numbers.transform(OperatorInfo::stateless("look"), Probe::new()).named("watch").sink("out", NullSink);
    /// assert_eq!(job.plan()?.chains[0].operators[1].uid, "watch");
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn named(mut self, uid: &str) -> Self {
        self.pipe.uid = uid.into();
        if let Some(op) = self.graph.borrow_mut().chains[self.chain].operators.last_mut() {
            op.uid = uid.into();
        }
        self
    }

    /// How many subtasks the last operator has. Whatever the number, the task before it ends there; what follows is in
    /// its tasks unless it says otherwise.
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let job = Job::named("copy").parallelism(1);
    /// let numbers = job.source("in", ScriptSource::of([(1, 0)])).without_event_time();
    /// numbers.transform(OperatorInfo::stateless("look"), Probe::new()).parallelism(3).sink("out", NullSink);
    /// assert_eq!(job.plan()?.chains.iter().map(|c| c.parallelism).collect::<Vec<_>>(), [1, 3]);
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn parallelism(self, n: usize) -> Self {
        let (alone, same) = {
            let graph = self.graph.borrow();
            (graph.chains[self.chain].operators.len() == 1, graph.parallelism_of(self.chain) == n)
        };
        let this = if alone || same { self } else { self.cut() };
        this.graph.borrow_mut().chains[this.chain].parallelism = Some(n);
        this
    }

    /// `false` makes the last operator a task of its own, with channels before and behind it (a `key_by` behind it runs
    /// in its task). `true` changes nothing, not even [`crate::Job::chaining`].
    ///
    /// ```
    /// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
    /// let job = Job::named("copy").parallelism(1);
    /// let numbers = job.source("in", ScriptSource::of([(1, 0)])).without_event_time();
    /// numbers.transform(OperatorInfo::stateless("look"), Probe::new()).chaining(false).sink("out", NullSink);
    /// assert_eq!(job.plan()?.chains.len(), 3);
    /// # Ok::<(), JobError>(())
    /// ```
    #[must_use]
    pub fn chaining(self, fuse: bool) -> Self {
        if fuse {
            return self;
        }
        let alone = self.graph.borrow().chains[self.chain].operators.len() == 1;
        let mut this = if alone { self } else { self.cut() };
        this.sealed = true;
        this
    }

    /// Moves the last operator into a chain of its own.
    fn cut(self) -> Self {
        let Then { before, op, uid } = self.pipe;
        let taken = self.graph.borrow_mut().chains[self.chain].operators.pop();
        let next = match before {
            Before::Chain(pipe) => read_behind(&self.graph, self.chain, pipe),
            Before::Cut(head) => read_behind(&self.graph, self.chain, head),
        };
        next.graph.borrow_mut().chains[next.chain].operators.extend(taken);
        Stream {
            graph: next.graph,
            chain: next.chain,
            pipe: Then { before: Before::Cut(next.pipe), op, uid },
            sealed: self.sealed,
        }
    }
}

/// A stream that several readers follow; [`Stream::shared`] makes it and shows how.
pub struct Shared<T> {
    graph: GraphRef,
    chain: usize,
    legs: Legs<T>,
}

impl<T> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared<{}>", std::any::type_name::<T>())
    }
}

impl<T: Data> Shared<T> {
    /// One more reader. Each must end in a sink, a `key_by` or another stream, and be there before the job starts.
    pub fn stream(&self) -> Stream<T> {
        read(&self.graph, From::Chain(self.chain), &self.legs, Asked::Natural, None)
    }
}
