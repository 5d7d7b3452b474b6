//! The part of crossbeam's interface that [`super::channel`] uses, for a seeded scheduler: each operation is one step, each
//! wait one that the scheduler knows of.
//!
//! A scheduling point stands before every operation; the operation itself is atomic, since all threads of an explored
//! schedule share one thread of the machine. That is also why the std locks in here are never waited for.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex as Unshared, MutexGuard as Held, PoisonError};
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

/// Any other thread may go on here.
fn point() {
    // The scheduler knows no time: this is a switch and nothing else.
    thread::sleep(Duration::ZERO);
}

/// Somebody who waits for one of several channels.
#[derive(Default)]
struct Waiter {
    rung: Mutex<bool>,
    ring: Condvar,
}

impl Waiter {
    fn wake(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ring.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        while !*rung {
            rung = self.ring.wait(rung).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

struct State<T> {
    queue: VecDeque<T>,
    capacity: usize,
    senders: usize,
    receivers: usize,
    waiting: Vec<Arc<Waiter>>,
}

impl<T> State<T> {
    fn can_send(&self) -> bool {
        self.receivers == 0 || self.queue.len() < self.capacity
    }

    fn can_receive(&self) -> bool {
        self.senders == 0 || !self.queue.is_empty()
    }
}

struct Channel<T>(Unshared<State<T>>);

impl<T> Channel<T> {
    fn state(&self) -> Held<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state in one step, then wakes whoever waits for a change of it.
    fn change<R>(&self, change: impl FnOnce(&mut State<T>) -> R) -> R {
        let (result, waiting) = {
            let mut state = self.state();
            (change(&mut state), std::mem::take(&mut state.waiting))
        };
        waiting.iter().for_each(|waiter| waiter.wake());
        result
    }
}

/// What a [`Select`] waits for.
trait Waited {
    fn ready(&self, to_send: bool) -> bool;
    fn enter(&self, waiter: &Arc<Waiter>);
    fn leave(&self, waiter: &Arc<Waiter>);
}

impl<T> Waited for Channel<T> {
    fn ready(&self, to_send: bool) -> bool {
        let state = self.state();
        if to_send { state.can_send() } else { state.can_receive() }
    }

    fn enter(&self, waiter: &Arc<Waiter>) {
        self.state().waiting.push(waiter.clone());
    }

    fn leave(&self, waiter: &Arc<Waiter>) {
        self.state().waiting.retain(|other| !Arc::ptr_eq(other, waiter));
    }
}

pub(super) fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let state = State { queue: VecDeque::new(), capacity, senders: 1, receivers: 1, waiting: Vec::new() };
    let channel = Arc::new(Channel(Unshared::new(state)));
    (Sender(channel.clone()), Receiver(channel))
}

pub(super) struct Sender<T>(Arc<Channel<T>>);

pub(super) struct Receiver<T>(Arc<Channel<T>>);

pub(super) enum TrySendError<T> {
    Full(T),
    Disconnected(T),
}

pub(super) struct SendError<T>(PhantomData<T>);

pub(super) enum TryRecvError {
    Empty,
    Disconnected,
}

pub(super) enum RecvTimeoutError {
    Timeout,
    Disconnected,
}

impl<T> Sender<T> {
    pub(super) fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        point();
        self.push(value)
    }

    fn push(&self, value: T) -> Result<(), TrySendError<T>> {
        {
            let state = self.0.state();
            if state.receivers == 0 {
                return Err(TrySendError::Disconnected(value));
            }
            if !state.can_send() {
                return Err(TrySendError::Full(value));
            }
        }
        self.0.change(|state| state.queue.push_back(value));
        Ok(())
    }

    pub(super) fn capacity(&self) -> Option<usize> {
        Some(self.0.state().capacity)
    }
}

impl<T> Receiver<T> {
    pub(super) fn try_recv(&self) -> Result<T, TryRecvError> {
        point();
        self.pop()
    }

    fn pop(&self) -> Result<T, TryRecvError> {
        let disconnected = {
            let state = self.0.state();
            state.queue.is_empty().then_some(state.senders == 0)
        };
        match disconnected {
            Some(true) => Err(TryRecvError::Disconnected),
            Some(false) => Err(TryRecvError::Empty),
            None => self.0.change(|state| state.queue.pop_front()).ok_or(TryRecvError::Empty),
        }
    }

    pub(super) fn recv_timeout(&self, _: Duration) -> Result<T, RecvTimeoutError> {
        loop {
            match self.try_recv() {
                Ok(value) => return Ok(value),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) if time_is_up() => return Err(RecvTimeoutError::Timeout),
                Err(TryRecvError::Empty) => thread::yield_now(),
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.state().queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        point();
        self.0.state().queue.is_empty()
    }

    pub(super) fn capacity(&self) -> Option<usize> {
        Some(self.0.state().capacity)
    }
}

/// A wait with a limit may be over at any time: chance says when.
fn time_is_up() -> bool {
    thread_rng().gen_range(0..3) == 0
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state().senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.0.state().receivers += 1;
        Receiver(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        point();
        let last = {
            let mut state = self.0.state();
            state.senders -= 1;
            state.senders == 0
        };
        if last {
            self.0.change(|_| ());
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        point();
        let last = {
            let mut state = self.0.state();
            state.receivers -= 1;
            state.receivers == 0
        };
        if last {
            drop(self.0.change(|state| std::mem::take(&mut state.queue)));
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

/// A wait for the first of several operations that can go on.
pub(super) struct Select<'a> {
    waited: Vec<(&'a dyn Waited, bool)>,
}

impl<'a> Select<'a> {
    pub(super) fn new() -> Self {
        Select { waited: Vec::new() }
    }

    pub(super) fn send<T>(&mut self, to: &'a Sender<T>) -> usize {
        self.waited.push((&*to.0, true));
        self.waited.len() - 1
    }

    pub(super) fn recv<T>(&mut self, from: &'a Receiver<T>) -> usize {
        self.waited.push((&*from.0, false));
        self.waited.len() - 1
    }

    /// One that can go on now, whichever chance says.
    fn look(&self) -> Option<usize> {
        let ready: Vec<usize> = (0..self.waited.len())
            .filter(|&i| {
                let (channel, to_send) = self.waited[i];
                channel.ready(to_send)
            })
            .collect();
        match ready.len() {
            0 => None,
            1 => Some(ready[0]),
            n => Some(ready[thread_rng().gen_range(0..n)]),
        }
    }

    pub(super) fn ready(&mut self) -> usize {
        loop {
            point();
            if let Some(ready) = self.look() {
                return ready;
            }
            let waiter = Arc::new(Waiter::default());
            self.waited.iter().for_each(|(channel, _)| channel.enter(&waiter));
            waiter.wait();
            self.waited.iter().for_each(|(channel, _)| channel.leave(&waiter));
        }
    }

    pub(super) fn ready_timeout(&mut self, _: Duration) -> Result<usize, ()> {
        loop {
            point();
            match self.look() {
                Some(ready) => return Ok(ready),
                None if time_is_up() => return Err(()),
                None => thread::yield_now(),
            }
        }
    }

    pub(super) fn select(&mut self) -> SelectedOperation<'a> {
        SelectedOperation { index: self.ready(), of: PhantomData }
    }
}

/// An operation that can go on: nobody has had a turn since.
pub(super) struct SelectedOperation<'a> {
    index: usize,
    of: PhantomData<&'a ()>,
}

impl SelectedOperation<'_> {
    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn send<T>(self, to: &Sender<T>, value: T) -> Result<(), SendError<T>> {
        match to.push(value) {
            Ok(()) => Ok(()),
            Err(TrySendError::Disconnected(_)) => Err(SendError(PhantomData)),
            Err(TrySendError::Full(_)) => unreachable!("there was room, and nobody has had a turn since"),
        }
    }

    pub(super) fn recv<T>(self, from: &Receiver<T>) -> Result<T, TryRecvError> {
        from.pop()
    }
}
