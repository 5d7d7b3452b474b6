//! The operator: starts calls, takes their answers, gives results in their order. All decisions are the task's, by the job's clock; only
//! the futures themselves run elsewhere. (over 400 lines: one state machine, whose steps are read together)

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::mem::take;
use std::time::Duration;

use weir_engine::{
    Barrier, CallId, Calls, Closing, Collector, Data, EndKind, EventTime, HeldSignal, KeyHash, Operator,
    OperatorContext, Record, Result, SharedClock, SideSlot, SignalPort, TaskError, Watermark,
};
use weir_state::store::Snapshot;

use super::config::{Fallback, Retried, Settings};
use super::counts::{Counters, Tally};
use super::failed::{CallError, DeadCalls, FailedCall, FailedCalls};
use super::kept::{Request, Requests, Ticket};
use super::queue::{Next, Queue};
use crate::aggregate::Kept;
use crate::opened::Opened;
use crate::progress;

/// What is called, and what its answers mean.
pub(crate) trait Calling<T: Data>: Clone + Send + 'static {
    type Answer: Data;
    type Error: Into<Box<dyn Error + Send + Sync>> + Send + 'static;
    type Out: Data;

    fn open(&mut self, cx: &OperatorContext) -> Result<()>;
    fn call(&self, input: &T) -> impl Future<Output = Result<Self::Answer, Self::Error>> + Send + 'static;
    /// Whether answers are remembered at all: else nobody has to look at a clock for it.
    const REMEMBERS: bool;
    fn remembered(&mut self, input: &T, now: Duration) -> Option<Self::Answer>;
    fn remember(&mut self, input: &T, answer: &Self::Answer, now: Duration);
    fn retried(&self) -> Option<&Retried<Self::Error>>;
    fn fallback(&self) -> Option<&Fallback<T, Self::Answer, Self::Error>>;
    /// The result for a record, if it has one.
    fn result(&self, input: T, answer: Self::Answer) -> Option<Self::Out>;
}

/// Records that wait for room, beyond the capacity: the rest of the batch at hand, and what else comes in with it.
pub(super) const WAITING_AT_MOST: usize = 2_048;
/// The longest wait between two looks at the job's clock: one that is moved by hand wakes nobody.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Where a record is on its way.
enum Stage<R> {
    /// Its call was not started: there was no room.
    Waiting,
    Running(CallId),
    /// Its call failed, and will be made again.
    Pausing,
    Answered(R),
    /// For good; it goes to the dead letters.
    Failed {
        reason: String,
        timed_out: bool,
    },
}

/// A record on its way.
struct Entry<T, R> {
    input: T,
    time: EventTime,
    behind: Watermark,
    place: u64,
    /// The key group of its key, if it has one.
    group: Option<u16>,
    tries: u32,
    stage: Stage<R>,
    /// Where it is in the state, once a barrier has passed it.
    ticket: Option<Ticket>,
}

/// When the time of a call is over.
struct Deadline {
    at: Duration,
    number: u64,
    call: CallId,
}

/// What a call gives: the number of its record, and the answer.
type Answered<R, E> = (u64, Result<R, E>);

/// What there is while it is open.
struct Live<T: Kept, R, E> {
    cx: OperatorContext,
    clock: SharedClock,
    calls: Calls<Answered<R, E>>,
    answers: Vec<(CallId, Answered<R, E>)>,
    queue: Queue,
    entries: HashMap<u64, Entry<T, R>>,
    waiting: VecDeque<u64>,
    /// So many may wait before nothing else is done.
    most: usize,
    /// In order: every call gets the same time. Those of calls that are over are left out when they are come upon.
    deadlines: VecDeque<Deadline>,
    pauses: BinaryHeap<Reverse<(Duration, u64)>>,
    next: u64,
    /// The last that came in.
    watermark: Watermark,
    /// What had come in to all subtasks at the checkpoint that this life began from.
    before: Watermark,
    requests: Requests<T>,
    /// Answers may have come, or the time of something.
    look: bool,
    /// The input has ended: nothing else is waited for.
    ending: bool,
    /// The input has ended, and what is under way is for another life.
    leaving: bool,
    tally: Tally,
    counters: Counters,
}

/// The operator behind [`map_async`](crate::prelude::AsyncOps::map_async) and
/// [`lookup_join`](crate::prelude::AsyncOps::lookup_join).
pub(crate) struct AsyncCalls<T: Kept, C: Calling<T>> {
    calling: C,
    settings: Settings,
    dead: DeadCalls<T>,
    live: Opened<Live<T, C::Answer, C::Error>>,
}

impl<T: Kept, C: Calling<T>> AsyncCalls<T, C> {
    pub(super) fn new(calling: C, settings: Settings, dead: SideSlot<FailedCall<T>>) -> Self {
        AsyncCalls { calling, settings, dead: DeadCalls::new(dead), live: Opened(None) }
    }

    /// How many calls have given no answer that was taken.
    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.live.0.as_ref().map_or(0, |live| live.calls.running())
    }

    /// A record with a key comes in.
    pub(super) fn push_keyed(&mut self, hash: KeyHash, record: Record<T>) -> Result<()> {
        let live = self.live()?;
        let group = live.requests.group(hash);
        live.push(record.value, record.time, live.watermark, Some(group), None);
        Ok(())
    }

    fn live(&mut self) -> Result<&mut Live<T, C::Answer, C::Error>> {
        self.live.0.as_mut().ok_or_else(not_open)
    }

    /// After a batch, and when it is quiet.
    fn upkeep(&mut self) -> Result<()> {
        let AsyncCalls { dead, live, .. } = self;
        let live = live.0.as_mut().ok_or_else(not_open)?;
        live.look = true;
        live.counters.add(take(&mut live.tally));
        dead.count(&live.cx, &live.clock);
        live.requests.batch_end()
    }
}

#[cold]
fn not_open() -> TaskError {
    TaskError::internal("an operator of asynchronous calls was used before it was open")
}

impl<T: Kept, C: Calling<T>> Clone for AsyncCalls<T, C> {
    fn clone(&self) -> Self {
        AsyncCalls {
            calling: self.calling.clone(),
            settings: self.settings,
            dead: self.dead.clone(),
            live: Opened(None),
        }
    }
}

impl<T: Kept, C: Calling<T>> fmt::Debug for AsyncCalls<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncCalls({:?}, {:?})", self.settings, self.live)
    }
}

impl<T: Kept, R: Data, E: Into<Box<dyn Error + Send + Sync>> + Send + 'static> Live<T, R, E> {
    /// A record comes in.
    fn push(
        &mut self,
        input: T,
        time: EventTime,
        behind: Watermark,
        group: Option<u16>,
        ticket: Option<Ticket>,
    ) {
        let number = self.next;
        self.next += 1;
        let place = self.queue.push(number);
        let entry = Entry { input, time, behind, place, group, tries: 0, stage: Stage::Waiting, ticket };
        self.entries.insert(number, entry);
        self.waiting.push_back(number);
    }

    /// Starts what there is room for.
    fn start<C>(&mut self, calling: &mut C, settings: &Settings)
    where
        C: Calling<T, Answer = R, Error = E>,
    {
        if self.leaving {
            return;
        }
        while self.entries.len() - self.waiting.len() < settings.capacity {
            let Some(number) = self.waiting.pop_front() else { return };
            if C::REMEMBERS {
                let now = self.clock.elapsed();
                let Some(entry) = self.entries.get_mut(&number) else { continue };
                if let Some(answer) = calling.remembered(&entry.input, now) {
                    self.tally.hits += 1;
                    entry.stage = Stage::Answered(answer);
                    self.queue.done(entry.place, number);
                    continue;
                }
                self.tally.misses += 1;
            }
            self.call(number, calling, settings);
        }
    }

    fn call<C>(&mut self, number: u64, calling: &C, settings: &Settings)
    where
        C: Calling<T, Answer = R, Error = E>,
    {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let answer = calling.call(&entry.input);
        let call = self.calls.start(async move { (number, answer.await) });
        entry.tries += 1;
        entry.stage = Stage::Running(call);
        self.tally.calls += 1;
        let at = self.clock.elapsed().saturating_add(settings.timeout);
        self.deadlines.push_back(Deadline { at, number, call });
    }

    /// Takes the answers that are there.
    fn answered<C>(&mut self, calling: &mut C, settings: &Settings) -> Result<()>
    where
        C: Calling<T, Answer = R, Error = E>,
    {
        let mut answers = take(&mut self.answers);
        self.calls.take(&mut answers)?;
        for (call, (number, answer)) in answers.drain(..) {
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            if !matches!(entry.stage, Stage::Running(running) if running == call) {
                continue;
            }
            match answer {
                Ok(answer) => {
                    if C::REMEMBERS {
                        calling.remember(&entry.input, &answer, self.clock.elapsed());
                    }
                    entry.stage = Stage::Answered(answer);
                    self.queue.done(entry.place, number);
                }
                Err(error) => self.failed(number, CallError::Failed(error), calling, settings)?,
            }
        }
        self.answers = answers;
        Ok(())
    }

    /// Breaks off what takes too long, and makes calls again whose pause is over.
    fn overdue<C>(&mut self, calling: &C, settings: &Settings) -> Result<()>
    where
        C: Calling<T, Answer = R, Error = E>,
    {
        if self.deadlines.is_empty() && self.pauses.is_empty() {
            return Ok(());
        }
        let now = self.clock.elapsed();
        if self.deadlines.len() > 4 * settings.capacity.max(64) {
            let entries = &self.entries;
            self.deadlines.retain(|deadline| is_running(entries, deadline));
        }
        while let Some(deadline) = self.deadlines.front() {
            let runs = is_running(&self.entries, deadline);
            if runs && deadline.at > now {
                break;
            }
            let Some(Deadline { number, call, .. }) = self.deadlines.pop_front() else { break };
            if runs {
                self.calls.abandon(call);
                self.tally.timeouts += 1;
                let after = settings.timeout;
                self.failed(number, CallError::TimedOut { after }, calling, settings)?;
            }
        }
        while let Some(Reverse((at, number))) = self.pauses.peek().copied() {
            if at > now {
                break;
            }
            self.pauses.pop();
            if !self.leaving {
                self.tally.retries += 1;
                self.call(number, calling, settings);
            }
        }
        Ok(())
    }

    /// A try of a record's call failed.
    fn failed<C>(&mut self, number: u64, error: CallError<E>, calling: &C, settings: &Settings) -> Result<()>
    where
        C: Calling<T, Answer = R, Error = E>,
    {
        let Some(entry) = self.entries.get_mut(&number) else { return Ok(()) };
        let again =
            entry.tries <= settings.retry.retries() && calling.retried().is_none_or(|ask| ask(&error));
        if again {
            let at = self.clock.elapsed().saturating_add(settings.retry.pause(entry.tries));
            entry.stage = Stage::Pausing;
            self.pauses.push(Reverse((at, number)));
            return Ok(());
        }
        entry.stage = match calling.fallback() {
            Some(fallback) => {
                self.tally.fallbacks += 1;
                Stage::Answered(fallback(&entry.input, &error))
            }
            None => match settings.failed {
                FailedCalls::Fail => return Err(failure(entry.time, entry.tries, error)),
                FailedCalls::DeadLetter => {
                    let timed_out = error.is_timeout();
                    Stage::Failed { reason: reason(error), timed_out }
                }
            },
        };
        self.queue.done(entry.place, number);
        Ok(())
    }

    /// Gives the result of a record whose turn it is.
    fn give<C>(
        &mut self,
        number: u64,
        calling: &C,
        dead: &mut DeadCalls<T>,
        out: &mut impl Collector<C::Out>,
    ) -> Result<()>
    where
        C: Calling<T, Answer = R, Error = E>,
    {
        let Some(entry) = self.entries.remove(&number) else { return Ok(()) };
        if let Some(ticket) = &entry.ticket {
            self.requests.remove(ticket);
        }
        let (input, time) = (entry.input, entry.time);
        match entry.stage {
            Stage::Answered(answer) => match calling.result(input, answer) {
                Some(value) => out.emit(Record { value, time }),
                None => Ok(()),
            },
            Stage::Failed { reason, timed_out } => {
                let failed = FailedCall { input, reason, tries: entry.tries, timed_out };
                dead.take(Record { value: failed, time })
            }
            Stage::Waiting | Stage::Running(_) | Stage::Pausing => {
                Err(TaskError::internal("a record whose call is not over was to be given"))
            }
        }
    }

    /// When there is something to do by the clock.
    fn due(&self) -> Option<Duration> {
        let pause = self.pauses.peek().map(|Reverse((at, _))| *at);
        self.deadlines.front().map(|deadline| deadline.at).into_iter().chain(pause).min()
    }

    /// Waits for an answer, or until something is due.
    fn wait(&mut self) -> Result<()> {
        let left = |at: Duration| at.saturating_sub(self.clock.elapsed());
        self.calls.wait(self.due().map(|at| left(at).clamp(SHORTEST_WAIT, LONGEST_WAIT)))?;
        self.look = true;
        Ok(())
    }
}

fn is_running<T, R>(entries: &HashMap<u64, Entry<T, R>>, deadline: &Deadline) -> bool {
    let stage = entries.get(&deadline.number).map(|entry| &entry.stage);
    matches!(stage, Some(Stage::Running(call)) if *call == deadline.call)
}

fn reason<E: Into<Box<dyn Error + Send + Sync>>>(error: CallError<E>) -> String {
    match error {
        CallError::TimedOut { after } => format!("no answer within {after:?}"),
        CallError::Failed(error) => error.into().to_string(),
    }
}

#[cold]
fn failure<E: Into<Box<dyn Error + Send + Sync>>>(
    time: EventTime,
    tries: u32,
    error: CallError<E>,
) -> TaskError {
    let what = |reason: &str| {
        TaskError::external(format!(
            "the call for a record of event time {time} failed ({reason}; tries: {tries}): give it more time or retries, a fallback, \
             or send such records to the dead letters with on_failed(FailedCalls::DeadLetter)"
        ))
    };
    match error {
        CallError::TimedOut { after } => what(&format!("no answer within {after:?}")),
        CallError::Failed(error) => what("an error").caused_by(error.into()),
    }
}

impl<T: Kept, C: Calling<T>> Operator<T> for AsyncCalls<T, C> {
    type Out = C::Out;
    const HOLDS_SIGNALS: bool = true;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.dead.open(cx);
        let calls = Calls::open(cx)?;
        calls.enter(|| self.calling.open(cx))?;
        let mut requests = Requests::open(cx)?;
        let mut seen = progress::reached(cx)?;
        let restored = requests.restored(seen)?;
        if restored.is_empty() {
            // All was answered: what this life reads comes after no end.
            seen = progress::unless_over(seen);
        }
        // No ticket of this life is one of another.
        let next = restored.iter().map(|(ticket, _)| ticket.number() + 1).max().unwrap_or(0);
        let mut live = Live {
            cx: cx.clone(),
            clock: cx.clock().clone(),
            calls,
            answers: Vec::new(),
            queue: Queue::new(self.settings.order),
            entries: HashMap::new(),
            waiting: VecDeque::new(),
            // No barrier waits until those that were restored are answered.
            most: WAITING_AT_MOST + restored.len(),
            deadlines: VecDeque::new(),
            pauses: BinaryHeap::new(),
            next,
            watermark: Watermark::MIN,
            before: seen,
            requests,
            look: true,
            ending: false,
            leaving: false,
            tally: Tally::default(),
            counters: Counters::of(cx),
        };
        for (ticket, Request { input, time, behind }) in restored {
            // What was late behind a watermark that had not left stays so.
            if behind > live.watermark {
                live.watermark = behind;
                live.queue.signal(HeldSignal::Watermark(behind));
            }
            live.push(input, time, behind, None, Some(ticket));
        }
        self.live = Opened(Some(live));
        Ok(())
    }

    #[inline]
    fn process(&mut self, record: Record<T>, _: &mut impl Collector<C::Out>) -> Result<()> {
        let live = self.live()?;
        live.push(record.value, record.time, live.watermark, None, None);
        Ok(())
    }

    fn on_batch_end(&mut self, _: &mut impl Collector<C::Out>) -> Result<()> {
        self.upkeep()
    }

    fn on_quiet(&mut self, _: &mut impl Collector<C::Out>) -> Result<()> {
        self.upkeep()
    }

    fn wakes_at(&self) -> Option<i64> {
        let live = self.live.0.as_ref()?;
        let left = live.due()?.saturating_sub(live.clock.elapsed());
        // Rounded up, or it would wake before there is something to do.
        Some(live.clock.now_ms().saturating_add(left.as_nanos().div_ceil(1_000_000) as i64))
    }

    fn hold(&mut self, signal: HeldSignal) {
        let Some(live) = &mut self.live.0 else { return };
        if let HeldSignal::Watermark(w) = signal {
            // After a restore it may have been further already.
            if w <= live.watermark {
                return;
            }
            live.watermark = w;
        }
        live.queue.signal(signal);
        live.look = true;
    }

    fn release(&mut self, out: &mut impl Collector<C::Out>) -> Result<Option<HeldSignal>> {
        let AsyncCalls { calling, settings, dead, live } = self;
        let live = live.0.as_mut().ok_or_else(not_open)?;
        loop {
            if take(&mut live.look) || !live.waiting.is_empty() {
                live.answered(calling, settings)?;
                live.overdue(calling, settings)?;
            }
            live.start(calling, settings);
            while let Some(next) = live.queue.pop() {
                match next {
                    Next::Signal(signal) => return Ok(Some(signal)),
                    Next::Record(number) => live.give(number, calling, dead, out)?,
                }
                // What it leaves room for.
                live.start(calling, settings);
            }
            // Those that are for another life get no room in this one.
            let too_many = !live.leaving && live.waiting.len() > live.most;
            if !too_many && (!live.ending || live.entries.is_empty()) {
                if live.ending {
                    // What failed while the end waited: no batch ends after it.
                    dead.count_the_last(&live.cx, &live.clock);
                }
                return Ok(None);
            }
            live.wait()?;
        }
    }

    fn is_full(&self) -> bool {
        self.live.0.as_ref().is_some_and(|live| !live.waiting.is_empty())
    }

    fn snapshot(&mut self, barrier: Barrier, into: &mut Snapshot) -> Result<()> {
        let live = self.live()?;
        if barrier == Barrier::LAST && live.leaving {
            live.calls.abandon_all();
        }
        for (number, entry) in live.entries.iter_mut().filter(|(_, entry)| entry.ticket.is_none()) {
            let request = Request { input: entry.input.clone(), time: entry.time, behind: entry.behind };
            entry.ticket = Some(live.requests.add(*number, entry.group, request)?);
        }
        progress::keep(live.watermark.max(live.before), into);
        live.requests.freeze(into)
    }

    fn on_end(&mut self, kind: EndKind, _: &mut impl Collector<C::Out>) -> Result<()> {
        self.upkeep()?;
        let live = self.live()?;
        // The last snapshot has them, for the life that goes on from here.
        live.leaving = kind == EndKind::Keep && live.cx.takes_checkpoints();
        live.ending = !live.leaving;
        Ok(())
    }

    fn sides(&mut self) -> Option<&mut dyn SignalPort> {
        self.dead.signals()
    }

    fn close(&mut self, _: Closing) {
        // Breaks every call off.
        if let Some(live) = self.live.0.take() {
            live.counters.add(live.tally);
        }
    }
}
