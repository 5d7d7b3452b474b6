//! The channels that a gate reads: of one type, or of two types that become one.
// HOT: per batch; two types cost a move per record. No allocation: a batch's memory goes back to who filled it.

use std::time::Duration;

use crate::element::{Barrier, Element, EndKind, Record};
use crate::error::Result;
use crate::ids::TaskId;
use crate::runtime::channel::{Bell, Cancel, Peeked, Rx, wait_any, wait_any_of_two};
use crate::time::Watermark;

/// What a look into one channel brought.
pub(crate) enum Found {
    /// Records, in the batch that was given.
    Batch,
    Watermark(Watermark),
    Idle,
    Active,
    Barrier(Barrier),
    End(EndKind),
    Empty,
    /// The producer dropped its end without saying `End`.
    Lost,
}

impl Found {
    fn of<T>(peeked: Peeked<T>, take: impl FnOnce(Vec<Record<T>>)) -> Self {
        match peeked {
            Peeked::Got(Element::Batch(records)) => {
                take(records);
                Found::Batch
            }
            Peeked::Got(Element::Watermark(w)) => Found::Watermark(w),
            Peeked::Got(Element::Idle) => Found::Idle,
            Peeked::Got(Element::Active) => Found::Active,
            Peeked::Got(Element::Barrier(b)) => Found::Barrier(b),
            Peeked::Got(Element::End(kind)) => Found::End(kind),
            Peeked::Empty => Found::Empty,
            Peeked::Lost => Found::Lost,
        }
    }
}

/// The inputs of one task, by number.
pub(crate) trait Inputs<T>: Send {
    fn count(&self) -> usize;

    /// How many of them, from the first on, say where event time is; the watermarks of the others are not heard.
    fn timed(&self) -> usize {
        self.count()
    }

    /// Takes the next element of input `i`, if there is one; records into `batch`, which comes in empty.
    fn take(&mut self, i: usize, batch: &mut Vec<Record<T>>) -> Found;

    /// Who sends into input `i`.
    fn from(&self, i: usize) -> Option<&TaskId>;

    /// Elements that wait.
    fn queued(&self) -> usize;

    /// Elements that there is room for.
    fn capacity(&self) -> usize;

    /// See [`wait_any`].
    fn wait(
        &self,
        readable: impl Fn(usize) -> bool,
        bell: &Bell,
        cancel: &Cancel,
        most: Option<Duration>,
    ) -> Result<()>;
}

/// Channels of one type: their batches are passed on as they are.
pub(crate) struct Alike<T> {
    inputs: Vec<Rx<T>>,
    /// The input that the last batch came from.
    last: usize,
}

impl<T> Alike<T> {
    pub(crate) fn new(inputs: Vec<Rx<T>>) -> Self {
        Alike { inputs, last: 0 }
    }
}

impl<T: Send> Inputs<T> for Alike<T> {
    fn count(&self) -> usize {
        self.inputs.len()
    }

    #[inline]
    fn take(&mut self, i: usize, batch: &mut Vec<Record<T>>) -> Found {
        Found::of(self.inputs[i].peek(), |records| {
            let emptied = std::mem::replace(batch, records);
            if emptied.capacity() > 0 {
                self.inputs[self.last].give_back(emptied);
            }
            self.last = i;
        })
    }

    fn from(&self, i: usize) -> Option<&TaskId> {
        self.inputs[i].from.as_ref()
    }

    fn queued(&self) -> usize {
        self.inputs.iter().map(Rx::len).sum()
    }

    fn capacity(&self) -> usize {
        self.inputs.iter().map(Rx::capacity).sum()
    }

    fn wait(
        &self,
        readable: impl Fn(usize) -> bool,
        bell: &Bell,
        cancel: &Cancel,
        most: Option<Duration>,
    ) -> Result<()> {
        wait_any(&self.inputs, readable, bell, cancel, most)
    }
}

/// Channels of two types, the left ones first. Each record is wrapped as it is read.
pub(crate) struct Two<A, B, F, G> {
    pub(crate) left: Vec<Rx<A>>,
    pub(crate) right: Vec<Rx<B>>,
    pub(crate) wrap_left: F,
    pub(crate) wrap_right: G,
    /// Whether event time waits for the right ones.
    pub(crate) right_is_timed: bool,
}

fn wrap<T, U>(from: &Rx<T>, wrap: impl Fn(T) -> U, into: &mut Vec<Record<U>>) -> Found {
    Found::of(from.peek(), |mut records| {
        into.extend(records.drain(..).map(|r| Record { value: wrap(r.value), time: r.time }));
        from.give_back(records);
    })
}

impl<A, B, T, F, G> Inputs<T> for Two<A, B, F, G>
where
    A: Send,
    B: Send,
    F: Fn(A) -> T + Send,
    G: Fn(B) -> T + Send,
{
    fn count(&self) -> usize {
        self.left.len() + self.right.len()
    }

    fn timed(&self) -> usize {
        if self.right_is_timed { self.left.len() + self.right.len() } else { self.left.len() }
    }

    #[inline]
    fn take(&mut self, i: usize, batch: &mut Vec<Record<T>>) -> Found {
        match self.left.get(i) {
            Some(left) => wrap(left, &self.wrap_left, batch),
            None => wrap(&self.right[i - self.left.len()], &self.wrap_right, batch),
        }
    }

    fn from(&self, i: usize) -> Option<&TaskId> {
        match self.left.get(i) {
            Some(left) => left.from.as_ref(),
            None => self.right[i - self.left.len()].from.as_ref(),
        }
    }

    fn queued(&self) -> usize {
        self.left.iter().map(Rx::len).sum::<usize>() + self.right.iter().map(Rx::len).sum::<usize>()
    }

    fn capacity(&self) -> usize {
        self.left.iter().map(Rx::capacity).sum::<usize>() + self.right.iter().map(Rx::capacity).sum::<usize>()
    }

    fn wait(
        &self,
        readable: impl Fn(usize) -> bool,
        bell: &Bell,
        cancel: &Cancel,
        most: Option<Duration>,
    ) -> Result<()> {
        wait_any_of_two(&self.left, &self.right, readable, bell, cancel, most)
    }
}
