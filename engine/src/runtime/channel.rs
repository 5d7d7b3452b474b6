//! The only file that names crossbeam: bounded edges between tasks, bells, and waits that always hear cancellation.
// HOT: per batch, not per record. No allocation, no clock on the fast path.

use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

#[cfg(not(feature = "explore"))]
use crossbeam_channel::{Receiver, RecvTimeoutError, Select, Sender, TryRecvError, TrySendError, bounded};

#[cfg(feature = "explore")]
use super::channel_explore::{
    Receiver, RecvTimeoutError, Select, Sender, TryRecvError, TrySendError, bounded,
};
use crate::element::{Element, Record};
use crate::error::{Result, TaskError};
use crate::ids::TaskId;
use crate::runtime::sync::atomic::{AtomicBool, Ordering};
use crate::runtime::sync::{Mutex, thread};

/// Hears that the attempt is over. Every blocking wait of a task includes it.
#[derive(Clone, Debug)]
pub(crate) struct Cancel {
    gone: Receiver<Infallible>,
    /// Says the same to who only looks, without a lock that all tasks would take for each batch.
    flag: Arc<Flag>,
}

/// On a line of its own, which tasks only read until it is set.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Flag(AtomicBool);

/// Ends every wait of an attempt at once. Idempotent; dropping it cancels too.
#[derive(Clone, Debug)]
pub(crate) struct CancelHandle(Arc<Alive>);

#[derive(Debug)]
struct Alive {
    sender: Mutex<Option<Sender<Infallible>>>,
    flag: Arc<Flag>,
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.flag.0.store(true, Ordering::Release);
    }
}

/// A cancellation and the handle that triggers it.
pub(crate) fn cancellation() -> (CancelHandle, Cancel) {
    let (sender, gone) = bounded(0);
    let flag = Arc::new(Flag::default());
    let alive = Alive { sender: Mutex::new(Some(sender)), flag: flag.clone() };
    (CancelHandle(Arc::new(alive)), Cancel { gone, flag })
}

impl CancelHandle {
    pub(crate) fn cancel(&self) {
        // Before the channel says so: who was woken by that finds it set.
        self.0.flag.0.store(true, Ordering::Release);
        self.0.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Cancel {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.flag.0.load(Ordering::Acquire)
    }

    /// Waits for `time`; an error at once when cancelled.
    pub(crate) fn wait(&self, time: Duration) -> Result<()> {
        match self.gone.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) | Ok(_) => Err(TaskError::cancelled()),
        }
    }
}

/// How often a wait lets other threads run before it parks. Parking for each batch costs both sides a system call and a
/// switch; with as many busy threads as cores a neighbour's turn is all that is waited for.
const YIELDS: usize = if cfg!(feature = "explore") { 1 } else { 8 };

/// The sending end of one channel: one producer subtask to one consumer subtask.
#[derive(Debug)]
pub(crate) struct Tx<T> {
    inner: Sender<Element<T>>,
    /// Emptied batches on their way back.
    spare: Receiver<Vec<Record<T>>>,
}

/// The receiving end of one channel.
#[derive(Debug)]
pub(crate) struct Rx<T> {
    /// Who sends, when it is an edge of a plan.
    pub(crate) from: Option<TaskId>,
    inner: Receiver<Element<T>>,
    spare: Sender<Vec<Record<T>>>,
}

/// What a look into a channel found.
pub(crate) enum Peeked<T> {
    Got(Element<T>),
    Empty,
    /// The producer dropped its end without saying `End`.
    Lost,
}

/// A channel that holds at most `depth` elements.
pub(crate) fn edge<T>(depth: usize) -> (Tx<T>, Rx<T>) {
    let depth = depth.max(1);
    let (tx, rx) = bounded(depth);
    // As many as can be on their way, and the two that the ends hold.
    let (give, spare) = bounded(depth + 2);
    (Tx { inner: tx, spare }, Rx { from: None, inner: rx, spare: give })
}

impl<T> Tx<T> {
    pub(crate) fn capacity(&self) -> usize {
        self.inner.capacity().unwrap_or(1)
    }

    /// A batch to fill: one that the consumer has emptied, or a new one with room for `room` records. The memory that
    /// comes back is still in a cache, and no allocator has to move it between threads.
    #[inline]
    pub(crate) fn batch(&self, room: usize) -> Vec<Record<T>> {
        self.spare.try_recv().unwrap_or_else(|_| Vec::with_capacity(room))
    }

    /// Sends without waiting; gives the element back when the channel is full.
    pub(crate) fn try_send(&self, element: Element<T>) -> Result<Option<Element<T>>> {
        match self.inner.try_send(element) {
            Ok(()) => Ok(None),
            Err(TrySendError::Full(element)) => Ok(Some(element)),
            Err(TrySendError::Disconnected(_)) => Err(TaskError::downstream_lost()),
        }
    }

    /// Sends, waiting for room; the wait also ends when the attempt is cancelled.
    #[cold]
    pub(crate) fn send_blocking(&self, element: Element<T>, cancel: &Cancel) -> Result<()> {
        let mut element = element;
        for _ in 0..YIELDS {
            thread::yield_now();
            match self.try_send(element)? {
                None => return Ok(()),
                Some(back) => element = back,
            }
        }
        let mut select = Select::new();
        let sending = select.send(&self.inner);
        select.recv(&cancel.gone);
        let ready = select.select();
        if ready.index() == sending {
            ready.send(&self.inner, element).map_err(|_| TaskError::downstream_lost())
        } else {
            // The sender of this channel sends nothing, so only its disconnect can have been selected.
            let _ = ready.recv(&cancel.gone);
            Err(TaskError::cancelled())
        }
    }
}

impl<T> Rx<T> {
    /// Gives an emptied batch back to the producer; when it has enough of them it is freed here.
    #[inline]
    pub(crate) fn give_back(&self, batch: Vec<Record<T>>) {
        debug_assert!(batch.is_empty());
        // Full, or the producer is gone: then the memory is freed.
        drop(self.spare.try_send(batch));
    }

    #[inline]
    pub(crate) fn peek(&self) -> Peeked<T> {
        match self.inner.try_recv() {
            Ok(element) => Peeked::Got(element),
            Err(TryRecvError::Empty) => Peeked::Empty,
            Err(TryRecvError::Disconnected) => Peeked::Lost,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.inner.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.inner.capacity().unwrap_or(0)
    }
}

/// Rings once, however often it was struck since it was last heard.
#[derive(Debug)]
pub(crate) struct Bell {
    struck: Receiver<()>,
}

/// Strikes a bell; never waits.
#[derive(Clone, Debug)]
pub(crate) struct Ringer {
    strike: Sender<()>,
}

pub(crate) fn bell() -> (Ringer, Bell) {
    let (strike, struck) = bounded(1);
    (Ringer { strike }, Bell { struck })
}

impl Ringer {
    pub(crate) fn ring(&self) {
        // Full: it will ring already. Gone: nobody is left to hear.
        let _ = self.strike.try_send(());
    }
}

impl Bell {
    /// Waits for the bell, for `time` at most when given; an error when cancelled.
    pub(crate) fn wait(&self, time: Option<Duration>, cancel: &Cancel) -> Result<()> {
        let mut select = Select::new();
        select.recv(&self.struck);
        select.recv(&cancel.gone);
        match time {
            Some(time) => drop(select.ready_timeout(time)),
            None => drop(select.ready()),
        }
        self.hear();
        if cancel.is_cancelled() { Err(TaskError::cancelled()) } else { Ok(()) }
    }

    fn hear(&self) {
        // What it rings for is looked at by whoever waited.
        let _ = self.struck.try_recv();
    }
}

/// Waits until one of the inputs for which `readable` holds has something (or its producer is gone), the bell rings, `most` has
/// passed, or the attempt is cancelled (an error).
pub(crate) fn wait_any<T>(
    inputs: &[Rx<T>],
    readable: impl Fn(usize) -> bool,
    bell: &Bell,
    cancel: &Cancel,
    most: Option<Duration>,
) -> Result<()> {
    wait_any_of_two::<T, T>(inputs, &[], readable, bell, cancel, most)
}

/// [`wait_any`] over inputs of two types; the numbers of the right ones follow those of the left ones.
pub(crate) fn wait_any_of_two<A, B>(
    left: &[Rx<A>],
    right: &[Rx<B>],
    readable: impl Fn(usize) -> bool,
    bell: &Bell,
    cancel: &Cancel,
    most: Option<Duration>,
) -> Result<()> {
    for _ in 0..YIELDS {
        thread::yield_now();
        let waits = |i: usize| match left.get(i) {
            Some(rx) => !rx.inner.is_empty(),
            None => !right[i - left.len()].inner.is_empty(),
        };
        if (0..left.len() + right.len()).any(|i| waits(i) && readable(i)) {
            return Ok(());
        }
    }
    let mut select = Select::new();
    for (_, rx) in left.iter().enumerate().filter(|(i, _)| readable(*i)) {
        select.recv(&rx.inner);
    }
    for (_, rx) in right.iter().enumerate().filter(|(i, _)| readable(left.len() + i)) {
        select.recv(&rx.inner);
    }
    select.recv(&bell.struck);
    select.recv(&cancel.gone);
    match most {
        Some(most) => drop(select.ready_timeout(most)),
        None => drop(select.ready()),
    }
    bell.hear();
    if cancel.is_cancelled() { Err(TaskError::cancelled()) } else { Ok(()) }
}
