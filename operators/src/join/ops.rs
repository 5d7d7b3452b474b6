//! `JoinOps` and `WindowJoinOps`: what a job writes behind two connected streams
//! (over 400 lines: every step is a page of the API docs, with an example).
#![expect(
    clippy::type_complexity,
    reason = "a stream's type names its values twice; an alias cannot hold `impl Pipe`"
)]

use weir_engine::{
    Data, Either, Key, Keyed, KeyedStream, OperatorInfo, Pipe, SideSlot, Stream, WindowedStream,
};

use crate::FlatMap;
use crate::aggregate::Kept;
use crate::co_process::{CoProcess, CoProcessFunction};
use crate::join::co_group::{CoGroup, Sides, WindowJoined};
use crate::join::interval::{Interval, IntervalJoin};
use crate::join::kind::{JoinKind, TableJoinKind};
use crate::join::temporal::{Change, temporal};
use crate::ordered::Timely;
use crate::process::Process;
use crate::window::{Window, WindowOps, WindowResult};

/// Steps on two keyed streams of types `A` and `B` that were [connected](KeyedStream::connect). What is kept lies in the state of
/// the operator under its uid. The late records of both sides may be had as one stream, by those that end in `with_late`; it must be read
/// to a sink.
pub trait JoinOps<K: Key, A: Data, B: Data, P: Pipe<Out = Keyed<K, Either<A, B>>>>: Sized {
    /// Runs `function` on each record of either stream, with a state per key and timers, kept under `uid`.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # use weir_engine::{Collector, Record, Result};
    /// /// Lets through clicks of users that are switched on.
    /// #[derive(Clone)]
    /// struct Switched;
    /// impl CoProcessFunction<u64, &'static str, bool> for Switched {
    ///     type Out = &'static str;
    ///     type State = bool;
    ///     fn left(&mut self, click: Record<&'static str>, cx: &mut KeyedContext<'_, u64, bool>,
    ///             out: &mut impl Collector<Self::Out>) -> Result<()> {
    ///         if cx.peek_state()? == Some(&true) { out.emit(click) } else { Ok(()) }
    ///     }
    ///     fn right(&mut self, switch: Record<bool>, cx: &mut KeyedContext<'_, u64, bool>,
    ///              _: &mut impl Collector<Self::Out>) -> Result<()> {
    ///         *cx.state()? = switch.value;
    ///         Ok(())
    ///     }
    /// }
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let clicks = job.source("clicks", ScriptSource::of([("a", 0)])).without_event_time().key_by("by-user", |_| 7u64);
    /// # let switches = job.source("switches", ScriptSource::of([(true, 0)])).without_event_time().key_by("by-switch", |_| 7u64);
    /// clicks.connect(switches).co_process("switched", Switched).sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn co_process<F: CoProcessFunction<K, A, B>>(
        self,
        uid: &str,
        function: F,
    ) -> Stream<F::Out, impl Pipe<Out = F::Out>>;

    /// Joins records of a key whose times are no further apart than `interval` says. [`Interval`] says what is given, what is kept
    /// and what is late.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let monotonic = weir_engine::Watermarks::monotonic;
    /// # let asked = job.source("a", ScriptSource::of([(7u64, 0)])).source_time(monotonic()).key_by("by-asked", |n| *n);
    /// # let answered = job.source("b", ScriptSource::of([(7u64, 5)])).source_time(monotonic()).key_by("by-answered", |n| *n);
    /// // What nobody answered within a minute.
    /// asked.connect(answered).interval_join("open", Interval::after(minutes(1)), Anti).sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn interval_join<J: JoinKind<A, B>>(
        self,
        uid: &str,
        interval: Interval,
        kind: J,
    ) -> Stream<J::Out, impl Pipe<Out = J::Out>>
    where
        A: Kept,
        B: Kept;

    /// Like `interval_join`, with the late records as a stream of their own.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let monotonic = weir_engine::Watermarks::monotonic;
    /// # let a = job.source("a", ScriptSource::of([(7u64, 0)])).source_time(monotonic()).key_by("by-a", |n| *n);
    /// # let b = job.source("b", ScriptSource::of([(7u64, 5)])).source_time(monotonic()).key_by("by-b", |n| *n);
    /// let (pairs, late) = a.connect(b).interval_join_with_late("pairs", Interval::between_ms(-5, 5), Inner);
    /// pairs.sink("out", NullSink);
    /// late.sink("late", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn interval_join_with_late<J: JoinKind<A, B>>(
        self,
        uid: &str,
        interval: Interval,
        kind: J,
    ) -> (Stream<J::Out, impl Pipe<Out = J::Out>>, Stream<Either<A, B>>)
    where
        A: Kept,
        B: Kept;

    /// Joins each left record with the version of its key's row that was valid at its time. The right records are the changes of a
    /// table, one row per key: `change` says of each what the row is from its time on. Valid is the newest at or before the left
    /// record's time, a change of the same time included; of two changes of one row and time the one that came last.
    ///
    /// *Given*: when the watermark passes the left record, in the order of times per key, with the record's time.
    ///
    /// *State*, under `uid`: the records of both sides that the watermark has not passed, in the table `pending`; and of each row the
    /// version that is valid there, in `state`. A version is forgotten when the watermark passes the next; a row when it
    /// passes its deletion. A row that is never deleted stays as long as the job.
    ///
    /// *Late records* of either side, those at or before the watermark, change nothing, changes of the table included: what it was
    /// then has been given. They are counted as `late_records`, and go to the late output of `temporal_join_with_late`.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let monotonic = weir_engine::Watermarks::monotonic;
    /// # let orders = job.source("orders", ScriptSource::of([(("EUR", 3.0), 5)])).source_time(monotonic());
    /// # let orders = orders.map(|(currency, amount)| (currency.to_owned(), amount));
    /// # let rates = job.source("rates", ScriptSource::of([(("EUR", Some(1.1)), 0)])).source_time(monotonic());
    /// # let rates = rates.map(|(currency, rate)| (currency.to_owned(), rate));
    /// let orders = orders.key_by("by-currency", |(currency, _)| currency.clone());
    /// let rates = rates.key_by("by-quoted", |(currency, _)| currency.clone());
    /// let rate = |(_, rate): (String, Option<f64>)| rate.map_or(Change::Delete, Change::Put);
    /// orders.connect(rates).temporal_join("in-dollars", Inner, rate)
    ///     .map(|((_, amount), rate): ((String, f64), f64)| amount * rate)
    ///     .sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn temporal_join<V: Kept, J: TableJoinKind<A, V>>(
        self,
        uid: &str,
        kind: J,
        change: impl Fn(B) -> Change<V> + Clone + Send + 'static,
    ) -> Stream<J::Out, impl Pipe<Out = J::Out>>
    where
        A: Kept,
        B: Kept;

    /// Like `temporal_join`, with the late records as a stream of their own.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let monotonic = weir_engine::Watermarks::monotonic;
    /// # let visits = job.source("a", ScriptSource::of([(7u64, 5)])).source_time(monotonic()).key_by("by-user", |n| *n);
    /// # let users = job.source("b", ScriptSource::of([(7u64, 0)])).source_time(monotonic()).key_by("by-id", |n| *n);
    /// let visits = visits.connect(users);
    /// let (visits, late) = visits.temporal_join_with_late("as-they-were", LeftOuter, Change::Put);
    /// visits.sink("out", NullSink);
    /// late.sink("late", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn temporal_join_with_late<V: Kept, J: TableJoinKind<A, V>>(
        self,
        uid: &str,
        kind: J,
        change: impl Fn(B) -> Change<V> + Clone + Send + 'static,
    ) -> (Stream<J::Out, impl Pipe<Out = J::Out>>, Stream<Either<A, B>>)
    where
        A: Kept,
        B: Kept;
}

fn interval_join<K: Key, A: Kept, B: Kept, P: Pipe<Out = Keyed<K, Either<A, B>>>, J: JoinKind<A, B>>(
    both: KeyedStream<K, Either<A, B>, P>,
    uid: &str,
    interval: Interval,
    late: SideSlot<Either<A, B>>,
) -> Stream<J::Out, impl Pipe<Out = J::Out>> {
    let (bounds, checked) = match interval.check() {
        Ok(bounds) => (bounds, Ok(())),
        // Stands for what is refused: the plan is, too, so it never runs.
        Err(error) => ((0, 0), Err(error)),
    };
    let op = Timely::new(IntervalJoin::<K, A, B, J>::new(bounds), late);
    both.require(uid, checked).transform(OperatorInfo::stateful("interval_join", uid), op)
}

fn temporal_join<K, A, B, V, P, J>(
    both: KeyedStream<K, Either<A, B>, P>,
    uid: &str,
    kind: J,
    change: impl Fn(B) -> Change<V> + Clone + Send + 'static,
    late: SideSlot<Either<A, B>>,
) -> Stream<J::Out, impl Pipe<Out = J::Out>>
where
    K: Key,
    A: Kept,
    B: Kept,
    V: Kept,
    P: Pipe<Out = Keyed<K, Either<A, B>>>,
    J: TableJoinKind<A, V>,
{
    let op = temporal::<K, A, B, V, J>(kind, change, late);
    both.transform(OperatorInfo::stateful("temporal_join", uid).settles_right(), op)
}

/// The second half of a window join.
fn rows_of<A: Kept, B: Kept, J: JoinKind<A, B>>(uid: &str) -> OperatorInfo {
    OperatorInfo::named("join", format!("{uid}-rows")).takes_back(J::TAKES_BACK)
}

/// The second half of a co-group, which may make nothing of it.
fn groups_of(uid: &str) -> OperatorInfo {
    OperatorInfo::named("co_group", format!("{uid}-groups")).takes_back(true)
}

impl<K: Key, A: Data, B: Data, P: Pipe<Out = Keyed<K, Either<A, B>>>> JoinOps<K, A, B, P>
    for KeyedStream<K, Either<A, B>, P>
{
    fn co_process<F: CoProcessFunction<K, A, B>>(
        self,
        uid: &str,
        function: F,
    ) -> Stream<F::Out, impl Pipe<Out = F::Out>> {
        self.transform(
            OperatorInfo::stateful("co_process", uid).settles(),
            Process::new(CoProcess::new(function)),
        )
    }

    fn interval_join<J: JoinKind<A, B>>(
        self,
        uid: &str,
        interval: Interval,
        _: J,
    ) -> Stream<J::Out, impl Pipe<Out = J::Out>>
    where
        A: Kept,
        B: Kept,
    {
        interval_join::<K, A, B, P, J>(self, uid, interval, SideSlot::default())
    }

    fn interval_join_with_late<J: JoinKind<A, B>>(
        self,
        uid: &str,
        interval: Interval,
        _: J,
    ) -> (Stream<J::Out, impl Pipe<Out = J::Out>>, Stream<Either<A, B>>)
    where
        A: Kept,
        B: Kept,
    {
        let slot = SideSlot::default();
        let rows = interval_join::<K, A, B, P, J>(self, uid, interval, slot.clone());
        let late = rows.side(&slot, "late");
        (rows, late)
    }

    fn temporal_join<V: Kept, J: TableJoinKind<A, V>>(
        self,
        uid: &str,
        kind: J,
        change: impl Fn(B) -> Change<V> + Clone + Send + 'static,
    ) -> Stream<J::Out, impl Pipe<Out = J::Out>>
    where
        A: Kept,
        B: Kept,
    {
        temporal_join::<K, A, B, V, P, J>(self, uid, kind, change, SideSlot::default())
    }

    fn temporal_join_with_late<V: Kept, J: TableJoinKind<A, V>>(
        self,
        uid: &str,
        kind: J,
        change: impl Fn(B) -> Change<V> + Clone + Send + 'static,
    ) -> (Stream<J::Out, impl Pipe<Out = J::Out>>, Stream<Either<A, B>>)
    where
        A: Kept,
        B: Kept,
    {
        let slot = SideSlot::default();
        let rows = temporal_join::<K, A, B, V, P, J>(self, uid, kind, change, slot.clone());
        let late = rows.side(&slot, "late");
        (rows, late)
    }
}

/// What to do with both sides of a window on two connected keyed streams: of any window that this crate has. The records of both
/// sides are kept as the window keeps its accumulators, each key's and window's (or slice's) as one value, which a checkpoint writes
/// whole when it has changed. When a window is over, what is late and what lateness it allows is the window's matter:
/// [`WindowOps`](crate::window::WindowOps) says where. A result that is given again (early, late) has all its rows again, under
/// another [`Pane`](crate::window::Pane).
pub trait WindowJoinOps<K: Key, A: Kept, B: Kept, P: Pipe<Out = Keyed<K, Either<A, B>>>>: Sized {
    /// Joins each left record of a key and window with each right one of the same key and window.
    ///
    /// *Given*: when the window is over, with the time of its last millisecond: the pairs in the order in which the left ones came,
    /// then the right ones; then what an outer, semi or anti join says of records that met none.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let monotonic = weir_engine::Watermarks::monotonic;
    /// # let shown = job.source("shown", ScriptSource::of([(7u64, 0)])).source_time(monotonic()).key_by("by-shown", |ad| *ad);
    /// # let clicks = job.source("clicks", ScriptSource::of([(7u64, 5)])).source_time(monotonic()).key_by("by-clicked", |ad| *ad);
    /// shown.connect(clicks)
    ///     .window(Tumbling::of(minutes(5)))
    ///     .join("never-clicked", Anti)
    ///     .map(|w| format!("nobody clicked on {} in {}", w.value, w.window))
    ///     .sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn join<J: JoinKind<A, B>>(
        self,
        uid: &str,
        kind: J,
    ) -> Stream<WindowResult<K, J::Out>, impl Pipe<Out = WindowResult<K, J::Out>>>;

    /// Like `join`, with the late records of both sides as a stream of their own.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let monotonic = weir_engine::Watermarks::monotonic;
    /// # let a = job.source("a", ScriptSource::of([(7u64, 0)])).source_time(monotonic()).key_by("by-a", |n| *n);
    /// # let b = job.source("b", ScriptSource::of([(7u64, 5)])).source_time(monotonic()).key_by("by-b", |n| *n);
    /// let (rows, late) = a.connect(b).window(Session::gap(minutes(1))).join_with_late("visits", FullOuter);
    /// rows.sink("out", NullSink);
    /// late.sink("late", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn join_with_late<J: JoinKind<A, B>>(
        self,
        uid: &str,
        kind: J,
    ) -> (Stream<WindowResult<K, J::Out>, impl Pipe<Out = WindowResult<K, J::Out>>>, Stream<Either<A, B>>);

    /// Gives all records of both sides of a key and window to `f`, which makes any number of values of them, with the time of the
    /// window's last millisecond. One side may have none.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let monotonic = weir_engine::Watermarks::monotonic;
    /// # let booked = job.source("booked", ScriptSource::of([(7u64, 0)])).source_time(monotonic()).key_by("by-booked", |n| *n);
    /// # let paid = job.source("paid", ScriptSource::of([(7u64, 5)])).source_time(monotonic()).key_by("by-paid", |n| *n);
    /// booked.connect(paid)
    ///     .window(Tumbling::of(days(1)))
    ///     .co_group("balance", |day| {
    ///         let (booked, paid) = (day.left.iter().sum::<u64>(), day.right.iter().sum::<u64>());
    ///         (booked != paid).then_some((day.key, day.window, booked, paid))
    ///     })
    ///     .sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn co_group<I, F>(self, uid: &str, f: F) -> Stream<I::Item, impl Pipe<Out = I::Item>>
    where
        I: IntoIterator<Item: Data>,
        F: FnMut(CoGroup<K, A, B>) -> I + Clone + Send + 'static;

    /// Like `co_group`, with the late records of both sides as a stream of their own.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let monotonic = weir_engine::Watermarks::monotonic;
    /// # let a = job.source("a", ScriptSource::of([(7u64, 0)])).source_time(monotonic()).key_by("by-a", |n| *n);
    /// # let b = job.source("b", ScriptSource::of([(7u64, 5)])).source_time(monotonic()).key_by("by-b", |n| *n);
    /// let both = a.connect(b).window(Sliding::of(hours(1)).every(minutes(5)));
    /// let (sizes, late) = both.co_group_with_late("sizes", |group| [(group.left.len(), group.right.len())]);
    /// sizes.sink("out", NullSink);
    /// late.sink("late", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn co_group_with_late<I, F>(
        self,
        uid: &str,
        f: F,
    ) -> (Stream<I::Item, impl Pipe<Out = I::Item>>, Stream<Either<A, B>>)
    where
        I: IntoIterator<Item: Data>,
        F: FnMut(CoGroup<K, A, B>) -> I + Clone + Send + 'static;
}

impl<K: Key, A: Kept, B: Kept, P: Pipe<Out = Keyed<K, Either<A, B>>>, W: Window<K, Either<A, B>>>
    WindowJoinOps<K, A, B, P> for WindowedStream<K, Either<A, B>, W, P>
{
    fn join<J: JoinKind<A, B>>(
        self,
        uid: &str,
        _: J,
    ) -> Stream<WindowResult<K, J::Out>, impl Pipe<Out = WindowResult<K, J::Out>>> {
        let joined = WindowJoined::<A, B, J>::new();
        self.aggregate(uid, Sides::new()).transform(rows_of::<A, B, J>(uid), joined)
    }

    fn join_with_late<J: JoinKind<A, B>>(
        self,
        uid: &str,
        _: J,
    ) -> (Stream<WindowResult<K, J::Out>, impl Pipe<Out = WindowResult<K, J::Out>>>, Stream<Either<A, B>>)
    {
        let (both, late) = self.aggregate_with_late(uid, Sides::new());
        let joined = WindowJoined::<A, B, J>::new();
        (both.transform(rows_of::<A, B, J>(uid), joined), late)
    }

    fn co_group<I, F>(self, uid: &str, mut f: F) -> Stream<I::Item, impl Pipe<Out = I::Item>>
    where
        I: IntoIterator<Item: Data>,
        F: FnMut(CoGroup<K, A, B>) -> I + Clone + Send + 'static,
    {
        let grouped = FlatMap::new(move |both| f(CoGroup::of(both)));
        self.aggregate(uid, Sides::new()).transform(groups_of(uid), grouped)
    }

    fn co_group_with_late<I, F>(
        self,
        uid: &str,
        mut f: F,
    ) -> (Stream<I::Item, impl Pipe<Out = I::Item>>, Stream<Either<A, B>>)
    where
        I: IntoIterator<Item: Data>,
        F: FnMut(CoGroup<K, A, B>) -> I + Clone + Send + 'static,
    {
        let (both, late) = self.aggregate_with_late(uid, Sides::new());
        let grouped = FlatMap::new(move |both| f(CoGroup::of(both)));
        (both.transform(groups_of(uid), grouped), late)
    }
}
