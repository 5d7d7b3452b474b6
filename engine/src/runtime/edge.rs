//! One edge of the plan: laid as a matrix of channels for each attempt, its ends taken by the tasks it connects.

use std::fmt;
use std::sync::{Arc, PoisonError};

use serde::Serialize;

use crate::ids::{OperatorUid, TaskId};
use crate::runtime::channel::{Rx, Tx, edge};
use crate::runtime::sync::{Mutex, MutexGuard};

/// How the records of an edge are spread over the consumer's subtasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Partitioning {
    /// Subtask i to subtask i: both sides have the same parallelism.
    Forward,
    /// A batch to each subtask in turn.
    Rebalance,
    /// Every record to every subtask.
    Broadcast,
    /// To the subtask that owns the key's group.
    KeyBy,
}

impl fmt::Display for Partitioning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Partitioning::Forward => "forward",
            Partitioning::Rebalance => "rebalance",
            Partitioning::Broadcast => "broadcast",
            Partitioning::KeyBy => "key_by",
        })
    }
}

/// The ends of an edge that carries `T`.
pub(crate) struct Edge<T> {
    ends: Mutex<Ends<T>>,
}

struct Ends<T> {
    /// By producer subtask.
    tx: Vec<Vec<Tx<T>>>,
    /// By consumer subtask.
    rx: Vec<Vec<Rx<T>>>,
    partitioning: Partitioning,
    consumer: OperatorUid,
}

/// What the plan asks of an edge whose type it has forgotten.
pub(crate) trait LayEdge: Send + Sync {
    /// Makes the channels; `names` are those of the producing and the consuming chain.
    fn lay(
        &self,
        producers: usize,
        consumers: usize,
        depth: usize,
        how: Partitioning,
        names: (&OperatorUid, &OperatorUid),
    );
    /// Drops the ends that nobody took.
    fn clear(&self);
}

impl<T> Edge<T> {
    pub(crate) fn new() -> Arc<Self> {
        let ends =
            Ends { tx: Vec::new(), rx: Vec::new(), partitioning: Partitioning::Forward, consumer: "".into() };
        Arc::new(Edge { ends: Mutex::new(ends) })
    }

    fn ends(&self) -> MutexGuard<'_, Ends<T>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sending ends of producer subtask `i`, how to spread over them, and who reads them.
    pub(crate) fn take_tx(&self, i: usize) -> (Vec<Tx<T>>, Partitioning, OperatorUid) {
        let mut ends = self.ends();
        assert!(
            i < ends.tx.len(),
            "a side output is opened once, in `open`; afterwards its channels are gone"
        );
        (std::mem::take(&mut ends.tx[i]), ends.partitioning, ends.consumer.clone())
    }

    /// The receiving ends of consumer subtask `i`.
    pub(crate) fn take_rx(&self, i: usize) -> Vec<Rx<T>> {
        std::mem::take(&mut self.ends().rx[i])
    }
}

impl<T: Send> LayEdge for Edge<T> {
    fn lay(
        &self,
        producers: usize,
        consumers: usize,
        depth: usize,
        how: Partitioning,
        (producer, consumer): (&OperatorUid, &OperatorUid),
    ) {
        let mut tx: Vec<Vec<Tx<T>>> = (0..producers).map(|_| Vec::new()).collect();
        let mut rx: Vec<Vec<Rx<T>>> = (0..consumers).map(|_| Vec::new()).collect();
        for (p, row) in tx.iter_mut().enumerate() {
            for (c, column) in rx.iter_mut().enumerate() {
                if how != Partitioning::Forward || p == c {
                    let (t, mut r) = edge(depth);
                    r.from = Some(TaskId { chain: producer.clone(), subtask: p });
                    row.push(t);
                    column.push(r);
                }
            }
        }
        *self.ends() = Ends { tx, rx, partitioning: how, consumer: consumer.clone() };
    }

    fn clear(&self) {
        let mut ends = self.ends();
        ends.tx.clear();
        ends.rx.clear();
    }
}
