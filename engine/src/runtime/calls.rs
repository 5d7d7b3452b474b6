//! Asynchronous calls of operators: they run on one pool per process, and their answers come back to the task and wake it.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

use crate::context::{OperatorContext, TaskWaker};
use crate::error::{Result, TaskError};
use crate::pipe::panic_message;
use crate::runtime::channel::{Bell, Ringer, bell};
use crate::runtime::sync::Mutex;

/// What the threads of the pool are called.
const THREAD: &str = "weir-async";
/// How long whoever drops the pool last waits for a future that is busy without awaiting anything.
const LEAVE: Duration = Duration::from_millis(500);

/// The threads that asynchronous calls run on, for as long as any operator that makes some is open.
struct Pool {
    runtime: Option<Runtime>,
    threads: usize,
}

/// One for all jobs of the process; gone when nobody uses it.
static POOL: std::sync::Mutex<Weak<Pool>> = std::sync::Mutex::new(Weak::new());

impl Pool {
    fn shared(threads: usize) -> Result<Arc<Pool>> {
        let mut shared = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = shared.upgrade() {
            if pool.threads != threads {
                let there_are = pool.threads;
                tracing::debug!(
                    "asynchronous calls run on the {there_are} threads that another job has started"
                );
            }
            return Ok(pool);
        }
        let pool = Arc::new(Pool::of(threads)?);
        *shared = Arc::downgrade(&pool);
        Ok(pool)
    }

    fn of(threads: usize) -> Result<Pool> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(threads.max(1)).thread_name(THREAD).enable_all();
        let runtime = builder.build().map_err(|e| {
            TaskError::external("cannot start the threads of asynchronous calls").caused_by(e)
        })?;
        Ok(Pool { runtime: Some(runtime), threads })
    }

    fn handle(&self) -> Result<Handle> {
        self.runtime
            .as_ref()
            .map(|r| r.handle().clone())
            .ok_or_else(|| TaskError::internal("the pool is closed"))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // Inside a runtime of the program's own nobody may wait.
        if Handle::try_current().is_ok() {
            runtime.shutdown_background();
        } else {
            runtime.shutdown_timeout(LEAVE);
        }
    }
}

/// A call that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(u64);

type Answers<R> = Vec<(CallId, Result<R>)>;

/// Where answers are put, by the threads of the pool, until the task takes them.
struct Inbox<R> {
    answers: Mutex<Answers<R>>,
    own: Ringer,
    task: TaskWaker,
}

impl<R> Inbox<R> {
    fn put(&self, id: CallId, answer: Result<R>) {
        let first = {
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            answers.push((id, answer));
            answers.len() == 1
        };
        // The task takes all there are, so only the first has to call it.
        if first {
            self.own.ring();
            self.task.wake();
        }
    }
}

/// Sends the answer of one call, whatever becomes of its future: it may be dropped without having been polled.
struct Reply<R> {
    id: CallId,
    to: Arc<Inbox<R>>,
    answer: Option<Result<R>>,
}

impl<R> Drop for Reply<R> {
    fn drop(&mut self) {
        let lost = || {
            Err(TaskError::internal(
                "the threads of asynchronous calls were shut down before a call was answered",
            ))
        };
        self.to.put(self.id, self.answer.take().unwrap_or_else(lost));
    }
}

/// The asynchronous calls of one operator's subtask. They run on the threads of one pool, which all jobs of the process share
/// ([`Job::async_threads`](crate::Job::async_threads)), never on the task's; an answer wakes the task, which then calls
/// [`Operator::on_quiet`](crate::Operator::on_quiet), and takes it there.
///
/// There are at most as many answers as calls were started, so whoever bounds these bounds both. Dropping it breaks off every call:
/// its future is dropped at the next `await`.
///
/// ```
/// # use {std::time::Duration, weir_engine::Calls};
/// # let cx = weir_engine::testkit::context("enrich", 0, 1);
/// let mut calls = Calls::open(&cx)?; // in `Operator::open`
/// let call = calls.start(async { 6 * 7 });
/// # let mut answers = Vec::new();
/// # while answers.is_empty() {
/// calls.wait(Some(Duration::from_secs(1)))?;
/// calls.take(&mut answers)?;
/// # }
/// assert_eq!(answers, [(call, 42)]);
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
pub struct Calls<R> {
    cx: OperatorContext,
    inbox: Arc<Inbox<R>>,
    bell: Bell,
    running: HashMap<CallId, AbortHandle>,
    next: u64,
    handle: Handle,
    /// Last: calls are broken off before the threads go.
    pool: Arc<Pool>,
}

impl<R> fmt::Debug for Calls<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calls({} running on {} threads)", self.running.len(), self.pool.threads)
    }
}

impl<R: Send + 'static> Calls<R> {
    /// Takes part in the pool, which starts with the first that does.
    ///
    /// # Errors
    /// When its threads cannot be started.
    pub fn open(cx: &OperatorContext) -> Result<Self> {
        Self::on(Pool::shared(cx.async_threads())?, cx)
    }

    fn on(pool: Arc<Pool>, cx: &OperatorContext) -> Result<Self> {
        let (own, bell) = bell();
        let inbox = Arc::new(Inbox { answers: Mutex::new(Vec::new()), own, task: cx.waker() });
        let handle = pool.handle()?;
        Ok(Calls { cx: cx.clone(), inbox, bell, running: HashMap::new(), next: 0, handle, pool })
    }

    /// Runs `f` on the calling thread with the pool at hand, so that clients which want a runtime when they are made find it.
    pub fn enter<T>(&self, f: impl FnOnce() -> T) -> T {
        let _entered = self.handle.enter();
        f()
    }

    /// Starts a call. Its future is polled on the pool only, so what it does before its first `await` belongs there too.
    pub fn start(&mut self, future: impl Future<Output = R> + Send + 'static) -> CallId {
        let id = CallId(self.next);
        self.next += 1;
        let reply = Reply { id, to: self.inbox.clone(), answer: None };
        let task = self.handle.spawn(async move {
            // Here as a whole: what is dropped with the future is what replies.
            let mut reply = reply;
            let mut future = pin!(future);
            let polled = poll_fn(|cx| {
                // What a panic may have left half done is dropped right after, unread.
                match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
                    Ok(Poll::Pending) => Poll::Pending,
                    Ok(Poll::Ready(answer)) => Poll::Ready(Ok(answer)),
                    Err(panic) => Poll::Ready(Err(TaskError::panicked(panic_message(panic.as_ref())))),
                }
            });
            reply.answer = Some(polled.await);
        });
        self.running.insert(id, task.abort_handle());
        id
    }

    /// Breaks a call off: it gives no answer any more.
    pub fn abandon(&mut self, id: CallId) {
        if let Some(task) = self.running.remove(&id) {
            task.abort();
        }
    }

    /// Breaks all of them off.
    pub fn abandon_all(&mut self) {
        self.running.drain().for_each(|(_, task)| task.abort());
    }

    /// How many calls are running, or have answers that were not taken.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Takes the answers that are there, in the order in which they came. Does not wait.
    ///
    /// # Errors
    /// A call panicked, or the pool was shut down under it: pass the error on.
    pub fn take(&mut self, into: &mut Vec<(CallId, R)>) -> Result<()> {
        let answers = std::mem::take(&mut *self.inbox.answers.lock().unwrap_or_else(PoisonError::into_inner));
        for (id, answer) in answers {
            // What was broken off may have been answered meanwhile.
            if self.running.remove(&id).is_some() {
                into.push((id, answer?));
            }
        }
        Ok(())
    }

    /// Waits for an answer, `most` at most when given.
    ///
    /// *Blocking*: until then; it may end early. Counted as backpressure.
    ///
    /// # Errors
    /// At once when the attempt is cancelled: pass the error on.
    pub fn wait(&self, most: Option<Duration>) -> Result<()> {
        if !self.inbox.answers.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return self.cx.not_cancelled();
        }
        let task = self.cx.task_context();
        let _blocked = task.stats.blocked(self.cx.uid());
        self.bell.wait(most, &task.cancel)
    }
}

impl<R> Drop for Calls<R> {
    fn drop(&mut self) {
        self.running.values().for_each(AbortHandle::abort);
    }
}

#[cfg(all(test, not(feature = "explore")))]
mod tests {
    use super::*;
    use crate::testkit::context;

    const SOON: Duration = Duration::from_secs(20);

    fn answers<R: Send + 'static>(calls: &mut Calls<R>, n: usize) -> Result<Vec<(CallId, R)>> {
        let mut all = Vec::new();
        while all.len() < n {
            calls.wait(Some(SOON))?;
            calls.take(&mut all)?;
        }
        Ok(all)
    }

    #[test]
    fn every_answer_comes_once_from_a_thread_of_the_pool() {
        let mut calls = Calls::open(&context("enrich", 0, 1)).unwrap();
        let started: Vec<_> = (0..100u64)
            .map(|n| calls.start(async move { (n, std::thread::current().name().unwrap_or("").to_owned()) }))
            .collect();
        let mut all = answers(&mut calls, 100).unwrap();
        all.sort_by_key(|(_, (n, _))| *n);
        for (n, (id, (answer, thread))) in all.into_iter().enumerate() {
            assert_eq!((id, answer, thread.as_str()), (started[n], n as u64, THREAD));
        }
        assert_eq!(calls.running(), 0);
    }

    #[test]
    fn what_is_abandoned_gives_no_answer() {
        let mut calls = Calls::open(&context("enrich", 0, 1)).unwrap();
        let never = calls.start(std::future::pending::<u64>());
        calls.abandon(never);
        let last = calls.start(async { 1 });
        assert_eq!(answers(&mut calls, 1).unwrap(), [(last, 1)]);
    }

    #[test]
    fn a_panic_is_an_error_and_so_is_a_pool_that_is_gone() {
        let cx = context("enrich", 0, 1);
        let mut calls = Calls::open(&cx).unwrap();
        calls.start(async { panic!("boom") });
        let error = answers::<()>(&mut calls, 1).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.cause()), ("boom", crate::Cause::Panicked));

        let mut pool = Pool::of(1).unwrap();
        let runtime = pool.runtime.take().unwrap();
        let alive = Pool { runtime: None, threads: 1 };
        let (own, bell) = bell();
        let inbox = Arc::new(Inbox { answers: Mutex::new(Vec::new()), own, task: cx.waker() });
        let mut calls = Calls {
            cx,
            inbox,
            bell,
            running: HashMap::new(),
            next: 0,
            handle: runtime.handle().clone(),
            pool: Arc::new(alive),
        };
        calls.start(std::future::pending::<()>());
        runtime.shutdown_timeout(SOON);
        let error = answers::<()>(&mut calls, 1).unwrap_err();
        assert!(error.to_string().contains("shut down"), "{error}");
        calls.start(std::future::pending::<()>());
        let error = answers::<()>(&mut calls, 1).unwrap_err();
        assert!(error.to_string().contains("shut down"), "{error}");
    }
}
