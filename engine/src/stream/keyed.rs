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
    stream: Stream<Keyed<K, T>, P>,
}

impl<K: Key, T: Data, P: Pipe<Out = Keyed<K, T>>> std::fmt::Debug for KeyedStream<K, T, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyedStream<{}, {}>", std::any::type_name::<K>(), std::any::type_name::<T>())
    }
}

/// A keyed stream with a window, waiting for what to do in it. `W` is the window, defined by `weir-operators`.
#[derive(Debug)]
pub struct WindowedStream<K: Key, T: Data, W, P: Pipe<Out = Keyed<K, T>> = Head<Keyed<K, T>>> {
    keyed: KeyedStream<K, T, P>,
    window: W,
}

impl<T: Data, P: Pipe<Out = T>> Stream<T, P> {
    /// Sends each record to the subtask that owns its key. `name` shows in the plan and in errors of the key function.
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
    /// How many subtasks the keys are spread over.
    #[must_use]
    pub fn parallelism(self, n: usize) -> Self {
        KeyedStream { stream: self.stream.parallelism(n) }
    }
}

impl<K: Key, T: Data, P: Pipe<Out = Keyed<K, T>>> KeyedStream<K, T, P> {
    /// Puts a window on the stream; what follows says what to compute in it.
    pub fn window<W>(self, window: W) -> WindowedStream<K, T, W, P> {
        WindowedStream { keyed: self, window }
    }

    /// Adds an operator that sees each record with its key. Used by the extension traits of `weir-operators`.
    pub fn transform<O: Operator<Keyed<K, T>>>(
        self,
        info: OperatorInfo,
        op: O,
    ) -> Stream<O::Out, Then<P, Keyed<K, T>, O>> {
        self.stream.transform(info, op)
    }
}

impl<K: Key, T: Data, W, P: Pipe<Out = Keyed<K, T>>> WindowedStream<K, T, W, P> {
    /// The keyed stream and the window on it, for who implements windows.
    pub fn into_parts(self) -> (KeyedStream<K, T, P>, W) {
        (self.keyed, self.window)
    }
}
