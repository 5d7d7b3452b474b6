//! `Stream<T>`: transform, boundary, union, share, sink; a fluent chain carries its fused type and is normally inferred.

mod keyed;
mod sinks;
mod source;

use std::sync::{Arc, PoisonError};

pub use keyed::{KeyedStream, WindowedStream};
pub use source::SourceStream;

use crate::context::TaskContext;
use crate::element::Data;
use crate::graph::{Asked, From, GraphRef, OperatorInfo};
use crate::operator::Operator;
use crate::pipe::{Before, Pipe, Stage, Then};
use crate::plan::Partitioning;
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
}

impl<T> std::fmt::Debug for Head<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Head")
    }
}

impl<T: Data> Head<T> {
    /// A chain fed by edges.
    pub(crate) fn reading(edges: Vec<Arc<Edge<T>>>) -> Self {
        let input: InputRecipe<T> = Box::new(move |cx| {
            Box::new(Gate::new(edges.iter().flat_map(|edge| edge.take_rx(cx.task.subtask)).collect()))
        });
        Head { input }
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
/// name in a signature; [`Stream::boundary`] makes one.
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
    legs.lock().unwrap_or_else(PoisonError::into_inner).push(edge.clone());
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

    /// Ends the task here: what follows runs in tasks of its own, forward where the parallelism is equal.
    pub fn boundary(self) -> Stream<T> {
        read_behind(&self.graph, self.chain, self.pipe)
    }

    /// Ends the task here; subtask i sends to subtask i. Both sides must have the same parallelism.
    pub fn forward(self) -> Stream<T> {
        self.ends(Partitioning::Forward)
    }

    /// Ends the task here; each batch goes to the next subtask in turn.
    pub fn rebalance(self) -> Stream<T> {
        self.ends(Partitioning::Rebalance)
    }

    /// Ends the task here; every record goes to every subtask.
    pub fn broadcast(self) -> Stream<T> {
        self.ends(Partitioning::Broadcast)
    }

    /// Ends the task here so that any number of readers can follow; each gets every record. A slow reader holds the
    /// others back.
    pub fn shared(self) -> Shared<T> {
        let legs = close(&self.graph, self.chain, self.pipe);
        Shared { graph: self.graph, chain: self.chain, legs }
    }

    /// Both streams as one, in no particular order between them.
    pub fn union<Q: Pipe<Out = T>>(self, other: Stream<T, Q>) -> Stream<T> {
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
    pub fn sink(self, uid: &str, sink: impl Sink<T>) {
        let fresh = self.graph.borrow().chains[self.chain].operators.is_empty();
        if !fresh && (self.sealed || !self.graph.borrow().chaining) {
            read_behind(&self.graph, self.chain, self.pipe).sink(uid, sink);
            return;
        }
        let mut graph = self.graph.borrow_mut();
        let uid = graph.operator(self.chain, OperatorInfo::named("sink", uid));
        let pipe = self.pipe;
        graph.chains[self.chain].recipe = Some(Box::new(move |cx| {
            pipe.link(sinks::SinkStage::new(sink.clone(), uid.clone(), cx.clone()), cx)
        }));
    }

    /// A stream of what the last operator puts into `slot`; `side` names the output in the plan.
    pub fn side<U: Data>(&self, slot: &SideSlot<U>, side: &'static str) -> Stream<U> {
        let last = self.graph.borrow().chains[self.chain].operators.last().map(|o| o.number);
        let from = last.map_or(From::Chain(self.chain), From::Operator);
        read(&self.graph, from, &slot.legs, Asked::Natural, Some(side))
    }
}

/// What follows runs behind a task boundary.
fn read_behind<T: Data>(graph: &GraphRef, chain: usize, pipe: impl Pipe<Out = T>) -> Stream<T> {
    let legs = close(graph, chain, pipe);
    read(graph, From::Chain(chain), &legs, Asked::Natural, None)
}

impl<T: Data> Stream<T> {
    /// How many subtasks the tasks behind this boundary have.
    #[must_use]
    pub fn parallelism(self, n: usize) -> Self {
        self.graph.borrow_mut().chains[self.chain].parallelism = Some(n);
        self
    }
}

impl<T: Data, P: Pipe<Out = T>, O: Operator<T>> Stream<O::Out, Then<P, T, O>> {
    /// Gives the last operator a name; it shows in the plan, in metrics and in errors.
    #[must_use]
    pub fn named(mut self, uid: &str) -> Self {
        self.pipe.uid = uid.into();
        if let Some(op) = self.graph.borrow_mut().chains[self.chain].operators.last_mut() {
            op.uid = uid.into();
        }
        self
    }

    /// How many subtasks the last operator has. Another number than its neighbours' gives it tasks of its own.
    #[must_use]
    pub fn parallelism(self, n: usize) -> Self {
        let alone = self.graph.borrow().chains[self.chain].operators.len() == 1;
        let this = if alone { self } else { self.cut() };
        this.graph.borrow_mut().chains[this.chain].parallelism = Some(n);
        this
    }

    /// `false` makes the last operator a task of its own, with channels before and behind it.
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

/// A stream that several readers follow.
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
    /// One more reader.
    pub fn stream(&self) -> Stream<T> {
        read(&self.graph, From::Chain(self.chain), &self.legs, Asked::Natural, None)
    }
}
