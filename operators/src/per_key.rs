//! `PerKeyOps`: steps over the history of each key: OVER aggregates, deduplication, patterns, top n.
#![expect(
    clippy::type_complexity,
    reason = "a stream's type names its values twice; an alias cannot hold `impl Pipe`"
)]

use std::fmt::Display;
use std::time::Duration;

use weir_engine::{Key, Keyed, KeyedStream, OperatorInfo, Pipe, SideSlot, Stream};

use crate::aggregate::{Aggregate, Kept, Score};
use crate::argument::positive_ms;
use crate::deduplicate::{ClockRuns, Keep, Runs};
use crate::ordered::{InOrder, Ordered, Timely};
use crate::over::{Over, OverFrames, OverResult};
use crate::pattern::{Condition, Detect, Found, Pattern};
use crate::process::Process;
use crate::top_n::{Top, TopLists, TopN};

/// Steps on a keyed stream that remember what came before for the key. What is kept lies in the state of the operator under its uid.
///
/// Those that go by event time give nothing before the watermark has passed, and may be used `with_late`: then the late records are a
/// stream of their own, which must be read to a sink.
pub trait PerKeyOps<K: Key, T: Kept, P: Pipe<Out = Keyed<K, T>>>: Sized {
    /// Computes `aggregate` for each record over the frame that ends with it. [`Over`] says what is kept and when it is forgotten.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let clicks = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
    /// clicks.key_by("by-user", |user| *user)
    ///     .over("last-minute", Over::time(minutes(1)), count())
    ///     .filter(|o| o.value > 100)
    ///     .sink("too-many", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn over<A: Aggregate<T>>(
        self,
        uid: &str,
        over: Over,
        aggregate: A,
    ) -> Stream<OverResult<K, T, A::Out>, impl Pipe<Out = OverResult<K, T, A::Out>>>;

    /// Like `over`, with the late records as a stream of their own.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let prices = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
    /// let (means, late) = prices.key_by("all", |_| 0).over_with_late("mean", Over::rows(10), avg(|price: &u64| *price));
    /// means.sink("means", NullSink);
    /// late.sink("late", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn over_with_late<A: Aggregate<T>>(
        self,
        uid: &str,
        over: Over,
        aggregate: A,
    ) -> (Stream<OverResult<K, T, A::Out>, impl Pipe<Out = OverResult<K, T, A::Out>>>, Stream<T>);

    /// Lets through one record of each run of records less than `t` apart from its first, in event-time order: whole milliseconds, at
    /// least one. [`Keep`] says what is kept and what is late.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let orders = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
    /// orders.key_by("by-id", |id| *id).deduplicate("once", Keep::First, hours(1)).sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn deduplicate(self, uid: &str, keep: Keep, t: Duration) -> Stream<T, impl Pipe<Out = T>>;

    /// Like `deduplicate`, with the late records as a stream of their own.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let orders = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
    /// let (last, late) = orders.key_by("by-id", |id| *id).deduplicate_with_late("last", Keep::Last, hours(1));
    /// last.sink("out", NullSink);
    /// late.sink("late", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn deduplicate_with_late(
        self,
        uid: &str,
        keep: Keep,
        t: Duration,
    ) -> (Stream<T, impl Pipe<Out = T>>, Stream<T>);

    /// Lets through one record of each run, by the job's clock and in the order in which they come: for streams without event time,
    /// and where the first must be passed on at once.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let orders = job.source("in", ScriptSource::of([(7u64, 0)])).without_event_time();
    /// orders.key_by("by-id", |id| *id).deduplicate_by_clock("once", Keep::First, hours(1)).sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn deduplicate_by_clock(self, uid: &str, keep: Keep, t: Duration) -> Stream<T, impl Pipe<Out = T>>;

    /// Finds a pattern of two records. [`Pattern`] says what matches, what is kept, and what the limits are.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let events = job.source("in", ScriptSource::of([((7u64, 'v'), 0)])).source_time(weir_engine::Watermarks::monotonic());
    /// let bought = Pattern::begin(|e: &(u64, char)| e.1 == 'v').followed_by(|e| e.1 == 'b', minutes(10));
    /// events.key_by("by-user", |(user, _)| *user).detect("bought", bought).sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn detect<A: Condition<T>, B: Condition<T>, C: Condition<T>>(
        self,
        uid: &str,
        pattern: Pattern<T, A, B, C>,
    ) -> Stream<Found<K, T>, impl Pipe<Out = Found<K, T>>>;

    /// Like `detect`, with the late records as a stream of their own.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let events = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
    /// let rise = Pattern::begin(|n: &u64| *n < 10).followed_by(|n| *n > 20, minutes(10)).unless(|n| *n == 0);
    /// let (rises, late) = events.key_by("all", |_| 0).detect_with_late("rises", rise);
    /// rises.sink("out", NullSink);
    /// late.sink("late", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn detect_with_late<A: Condition<T>, B: Condition<T>, C: Condition<T>>(
        self,
        uid: &str,
        pattern: Pattern<T, A, B, C>,
    ) -> (Stream<Found<K, T>, impl Pipe<Out = Found<K, T>>>, Stream<T>);

    /// Gives the records of each key with the greatest scores so far, whenever they change. [`Top`] says what is given and kept.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let bids = job.source("in", ScriptSource::of([((7u64, 9.5), 0)])).without_event_time();
    /// bids.key_by("by-item", |(item, _)| *item).top_n("best", Top::of(3), |(_, bid)| *bid).sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn top_n<V: Score, Id: Kept + Eq, I, F>(
        self,
        uid: &str,
        top: Top<T, I>,
        score: F,
    ) -> Stream<TopN<K, T>, impl Pipe<Out = TopN<K, T>>>
    where
        I: Fn(&T) -> Id + Clone + Send + 'static,
        F: Fn(&T) -> V + Clone + Send + 'static;
}

/// What is added to a stream, with its arguments checked.
struct Step<'a, A, E> {
    name: &'static str,
    uid: &'a str,
    argument: Result<A, E>,
    adds_up: bool,
}

/// Adds a step that goes by event time. `placeholder` stands for an argument that is refused: the plan is, too, so it never runs.
fn in_order<K: Key, T: Kept, P: Pipe<Out = Keyed<K, T>>, A, E: Display, F: InOrder<K, T>>(
    keyed: KeyedStream<K, T, P>,
    step: Step<'_, A, E>,
    late: SideSlot<T>,
    placeholder: A,
    function: impl FnOnce(A) -> F,
) -> Stream<F::Out, impl Pipe<Out = F::Out>> {
    let (argument, checked) = match step.argument {
        Ok(argument) => (argument, Ok(())),
        Err(error) => (placeholder, Err(error)),
    };
    let op = Timely::new(Ordered::new(function(argument)), late);
    let info = OperatorInfo::stateful(step.name, step.uid);
    let info = if step.adds_up { info.adds_up() } else { info };
    keyed.require(step.uid, checked).transform(info, op)
}

fn over<K: Key, T: Kept, P: Pipe<Out = Keyed<K, T>>, A: Aggregate<T>>(
    keyed: KeyedStream<K, T, P>,
    uid: &str,
    over: Over,
    aggregate: A,
    late: SideSlot<T>,
) -> Stream<OverResult<K, T, A::Out>, impl Pipe<Out = OverResult<K, T, A::Out>>> {
    let step = Step { name: "over", uid, argument: over.check(), adds_up: true };
    in_order(keyed, step, late, Default::default(), move |bounds| OverFrames::new(bounds, aggregate))
}

fn deduplicate<K: Key, T: Kept, P: Pipe<Out = Keyed<K, T>>>(
    keyed: KeyedStream<K, T, P>,
    uid: &str,
    keep: Keep,
    t: Duration,
    late: SideSlot<T>,
) -> Stream<T, impl Pipe<Out = T>> {
    let step = Step { name: "deduplicate", uid, argument: positive_ms("t", t), adds_up: false };
    in_order(keyed, step, late, 1, move |t| Runs::new(keep, t))
}

fn detect<K: Key, T: Kept, P: Pipe<Out = Keyed<K, T>>, A: Condition<T>, B: Condition<T>, C: Condition<T>>(
    keyed: KeyedStream<K, T, P>,
    uid: &str,
    pattern: Pattern<T, A, B, C>,
    late: SideSlot<T>,
) -> Stream<Found<K, T>, impl Pipe<Out = Found<K, T>>> {
    let step = Step { name: "detect", uid, argument: pattern.check(), adds_up: false };
    in_order(keyed, step, late, 1, move |within| Detect::new(pattern, within))
}

/// A stream with the late records of its last step.
fn with_late<T: Kept, U: weir_engine::Data, P: Pipe<Out = U>>(
    add: impl FnOnce(SideSlot<T>) -> Stream<U, P>,
) -> (Stream<U, P>, Stream<T>) {
    let slot = SideSlot::default();
    let results = add(slot.clone());
    let late = results.side(&slot, "late");
    (results, late)
}

impl<K: Key, T: Kept, P: Pipe<Out = Keyed<K, T>>> PerKeyOps<K, T, P> for KeyedStream<K, T, P> {
    fn over<A: Aggregate<T>>(
        self,
        uid: &str,
        frame: Over,
        aggregate: A,
    ) -> Stream<OverResult<K, T, A::Out>, impl Pipe<Out = OverResult<K, T, A::Out>>> {
        over(self, uid, frame, aggregate, SideSlot::default())
    }

    fn over_with_late<A: Aggregate<T>>(
        self,
        uid: &str,
        frame: Over,
        aggregate: A,
    ) -> (Stream<OverResult<K, T, A::Out>, impl Pipe<Out = OverResult<K, T, A::Out>>>, Stream<T>) {
        with_late(|late| over(self, uid, frame, aggregate, late))
    }

    fn deduplicate(self, uid: &str, keep: Keep, t: Duration) -> Stream<T, impl Pipe<Out = T>> {
        deduplicate(self, uid, keep, t, SideSlot::default())
    }

    fn deduplicate_with_late(
        self,
        uid: &str,
        keep: Keep,
        t: Duration,
    ) -> (Stream<T, impl Pipe<Out = T>>, Stream<T>) {
        with_late(|late| deduplicate(self, uid, keep, t, late))
    }

    fn deduplicate_by_clock(self, uid: &str, keep: Keep, t: Duration) -> Stream<T, impl Pipe<Out = T>> {
        let (t, checked) = match positive_ms("t", t) {
            Ok(t) => (t, Ok(())),
            Err(error) => (1, Err(error)),
        };
        let op = Process::new(ClockRuns::new(keep, t));
        self.require(uid, checked).transform(OperatorInfo::stateful("deduplicate_by_clock", uid), op)
    }

    fn detect<A: Condition<T>, B: Condition<T>, C: Condition<T>>(
        self,
        uid: &str,
        pattern: Pattern<T, A, B, C>,
    ) -> Stream<Found<K, T>, impl Pipe<Out = Found<K, T>>> {
        detect(self, uid, pattern, SideSlot::default())
    }

    fn detect_with_late<A: Condition<T>, B: Condition<T>, C: Condition<T>>(
        self,
        uid: &str,
        pattern: Pattern<T, A, B, C>,
    ) -> (Stream<Found<K, T>, impl Pipe<Out = Found<K, T>>>, Stream<T>) {
        with_late(|late| detect(self, uid, pattern, late))
    }

    fn top_n<V: Score, Id: Kept + Eq, I, F>(
        self,
        uid: &str,
        top: Top<T, I>,
        score: F,
    ) -> Stream<TopN<K, T>, impl Pipe<Out = TopN<K, T>>>
    where
        I: Fn(&T) -> Id + Clone + Send + 'static,
        F: Fn(&T) -> V + Clone + Send + 'static,
    {
        let checked = top.check();
        let op = Process::new(TopLists::<K, T, V, Id, I, F>::new(top, score));
        self.require(uid, checked).transform(OperatorInfo::stateful("top_n", uid), op)
    }
}
