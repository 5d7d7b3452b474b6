//! One thread for all sources of a configuration, which asks brokers what no poll may wait for: new partitions, where they end.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Something to be looked at now and then.
pub(super) trait Look: Send {
    /// Looks; says after how long to look again. May wait for a broker, for seconds at most.
    fn look(&mut self) -> Duration;
}

/// Where the sources of one configuration, and of its clones, find their thread.
#[derive(Clone, Default)]
pub(super) struct Desk(Arc<Mutex<Weak<Watch>>>);

impl Desk {
    /// Has the thread look at this too, until the ticket is dropped. It is started for the first, and ends with the last. None when
    /// there can be no thread.
    pub(super) fn add(&self, look: Box<dyn Look>, after: Duration) -> Option<Ticket> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = match held.upgrade() {
            Some(watch) => watch,
            None => {
                let watch = Arc::new(Watch::start()?);
                *held = Arc::downgrade(&watch);
                watch
            }
        };
        drop(held);
        let look = Arc::new(Mutex::new(Some(look)));
        watch.state.lock().looks.push((Instant::now() + after, Arc::clone(&look)));
        watch.state.bell.notify_all();
        Some(Ticket { look, watch })
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Desk")
    }
}

/// A look, shared by the thread and its ticket; gone when nobody wants it any more.
type Shared = Arc<Mutex<Option<Box<dyn Look>>>>;

/// Ends a look when it is dropped. *Blocking*: while it is being looked, and the last one until the thread is gone.
pub(super) struct Ticket {
    look: Shared,
    watch: Arc<Watch>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        *self.look.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.watch.state.lock().looks.retain(|(_, look)| !Arc::ptr_eq(look, &self.look));
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}

#[derive(Default)]
struct State {
    inner: Mutex<Inner>,
    bell: Condvar,
}

#[derive(Default)]
struct Inner {
    looks: Vec<(Instant, Shared)>,
    over: bool,
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Watch {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn start() -> Option<Watch> {
        let state = Arc::new(State::default());
        let run = Arc::clone(&state);
        let thread = std::thread::Builder::new().name("kafka-watch".to_owned()).spawn(move || watch(&run));
        match thread {
            Ok(thread) => Some(Watch { state, thread: Some(thread) }),
            Err(e) => {
                tracing::warn!("no thread to look for new Kafka partitions and for stalls: {e}");
                None
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.state.lock().over = true;
        self.state.bell.notify_all();
        if let Some(thread) = self.thread.take() {
            // A look that panicked has said so.
            drop(thread.join());
        }
    }
}

fn watch(state: &State) {
    let mut inner = state.lock();
    while !inner.over {
        let now = Instant::now();
        let due = inner.looks.iter().filter(|(at, _)| *at <= now).min_by_key(|(at, _)| *at);
        let Some(look) = due.map(|(_, look)| Arc::clone(look)) else {
            let next = inner.looks.iter().map(|(at, _)| *at).min();
            let wait = next.map_or(Duration::from_secs(60), |at| at.saturating_duration_since(now));
            inner = state.bell.wait_timeout(inner, wait).unwrap_or_else(PoisonError::into_inner).0;
            continue;
        };
        drop(inner);
        let after = look.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(|look| look.look());
        inner = state.lock();
        if let (Some(after), Some(entry)) =
            (after, inner.looks.iter_mut().find(|(_, l)| Arc::ptr_eq(l, &look)))
        {
            entry.0 = Instant::now() + after;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    struct Count(Arc<AtomicU64>);

    impl Look for Count {
        fn look(&mut self) -> Duration {
            self.0.fetch_add(1, Ordering::Relaxed);
            Duration::from_millis(1)
        }
    }

    fn until(count: &AtomicU64, n: u64) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while count.load(Ordering::Relaxed) < n {
            assert!(Instant::now() < deadline, "nobody looks");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    #[test]
    fn one_thread_looks_for_all_until_the_last_is_gone() {
        let desk = Desk::default();
        let [one, two] = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
        let first = desk.add(Box::new(Count(Arc::clone(&one))), Duration::ZERO).unwrap();
        let second = desk.clone().add(Box::new(Count(Arc::clone(&two))), Duration::ZERO).unwrap();
        assert!(Arc::ptr_eq(&first.watch, &second.watch));
        until(&one, 3);
        until(&two, 3);
        drop(first);
        let looked = one.load(Ordering::Relaxed);
        until(&two, two.load(Ordering::Relaxed) + 3);
        assert_eq!(one.load(Ordering::Relaxed), looked, "nobody looks for it any more");
        drop(second);
        assert_eq!(Arc::strong_count(&two), 1, "the thread is gone, and what it held");
        let again = desk.add(Box::new(Count(Arc::clone(&one))), Duration::ZERO).unwrap();
        until(&one, looked + 1);
        drop(again);
    }
}
