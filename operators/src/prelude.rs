//! What a job author imports: the traits that put operators on streams, aggregates, windows.

use std::convert::Infallible;

use weir_engine::{Data, Key, Keyed, KeyedStream, OperatorInfo, Pipe, SideSlot, Stream, Then};
use weir_state::profile::{ProfileUpdate, UserId};

pub use crate::aggregate::{
    Aggregate, approx_distinct, avg, collect, count, count_where, distinct, distinct_of, max, max_by, min,
    min_by, reduce, sum, top,
};
pub use crate::async_io::{
    AsyncFunction, AsyncIo, AsyncOps, CallCache, CallError, FailedCall, FailedCalls, Lookup, Retry,
};
pub use crate::broadcast::{BroadcastFunction, BroadcastOps, KeyedBroadcastFunction, KeyedBroadcastOps};
pub use crate::co_process::CoProcessFunction;
pub use crate::deduplicate::Keep;
pub use crate::join::{
    Anti, Change, CoGroup, FullOuter, Inner, Interval, JoinOps, LeftOuter, RightOuter, Semi, WindowJoinOps,
};
pub use crate::over::{Over, OverResult};
pub use crate::pattern::{Found, Pattern};
pub use crate::per_key::PerKeyOps;
pub use crate::process::{
    AggregatingState, KeyedContext, ListState, MapState, NamedState, ProcessFunction, ReducingState, Tag,
    TagOps, Tagged, ValueState,
};
pub use crate::profile::{BadUpdates, ProfileTarget, RejectedUpdate};
pub use crate::top_n::{Top, TopN};
pub use crate::window::{
    Calendar, CountWindow, Cumulate, Firing, Global, InWindow, LatestOps, Pane, Session, SessionFunction,
    SessionProcessOps, Sliding, TimeWindow, Timing, Tumbling, WindowFunction, WindowOps, WindowProcessOps,
    WindowResult, WindowResults, days, hours, minutes, seconds,
};

pub use weir_state::schema::Schema;
pub use weir_state::ttl::Ttl;

use crate::process::Process;
use crate::profile::UpdateProfile;
use crate::settled::Settled;
use crate::{Filter, FlatMap, Inspect, Map};

/// Steps on any stream. They keep no state, event times and order, and run in the task they are called in.
///
/// Closures are cloned once per subtask, so what they capture by value is per subtask; share through an `Arc`.
pub trait StreamOps<T: Data, P: Pipe<Out = T>>: Sized {
    /// Makes one value of each.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let lines = job.source("in", ScriptSource::of([("a buy", 0)])).without_event_time();
    /// lines.map(|line| line.len()).sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn map<U: Data, F>(self, f: F) -> Stream<U, Then<P, T, Map<F>>>
    where
        F: FnMut(T) -> U + Clone + Send + 'static;

    /// Lets through what satisfies `f`.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let lines = job.source("in", ScriptSource::of([("a buy", 0)])).without_event_time();
    /// lines.filter(|line| line.ends_with("buy")).sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn filter<F>(self, f: F) -> Stream<T, Then<P, T, Filter<F>>>
    where
        F: FnMut(&T) -> bool + Clone + Send + 'static;

    /// Makes any number of values of each, all with its time.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let lines = job.source("in", ScriptSource::of([("a buy", 0)])).without_event_time();
    /// lines.flat_map(|line| line.split(' ')).sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn flat_map<I, F>(self, f: F) -> Stream<I::Item, Then<P, T, FlatMap<F>>>
    where
        I: IntoIterator<Item: Data>,
        F: FnMut(T) -> I + Clone + Send + 'static;

    /// Looks at each value and passes it on. What `f` does should be quick: it runs on the record path.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let lines = job.source("in", ScriptSource::of([("a buy", 0)])).without_event_time();
    /// lines.inspect(|line| println!("{line}")).sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn inspect<F>(self, f: F) -> Stream<T, Then<P, T, Inspect<F>>>
    where
        F: FnMut(&T) + Clone + Send + 'static;

    /// Says that each record may count, though some of what it is made of replaces what came before (early results, allowed lateness).
    /// Without this word such a plan is refused where a window, or `over`, would add them up. It is for what a filter leaves, and for aggregates
    /// that do not mind, such as the greatest of counts that only grow.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let clicks = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
    /// let hourly = clicks.key_by("by-user", |user| *user)
    ///     .window(Tumbling::of(hours(1)).early_after(seconds(10)))
    ///     .aggregate("hourly", count());
    /// // One per user and hour.
    /// let on_time = hourly.filter(|w| w.pane.timing == Timing::OnTime).settled();
    /// on_time.key_by("all", |_| ()).window(Tumbling::of(hours(1))).aggregate("users", count()).sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn settled(self) -> Stream<T, Then<P, T, Settled>>;
}

impl<T: Data, P: Pipe<Out = T>> StreamOps<T, P> for Stream<T, P> {
    fn map<U: Data, F>(self, f: F) -> Stream<U, Then<P, T, Map<F>>>
    where
        F: FnMut(T) -> U + Clone + Send + 'static,
    {
        self.transform(OperatorInfo::stateless("map"), Map::new(f))
    }

    fn filter<F>(self, f: F) -> Stream<T, Then<P, T, Filter<F>>>
    where
        F: FnMut(&T) -> bool + Clone + Send + 'static,
    {
        self.transform(OperatorInfo::stateless("filter").takes_back(true), Filter::new(f))
    }

    fn flat_map<I, F>(self, f: F) -> Stream<I::Item, Then<P, T, FlatMap<F>>>
    where
        I: IntoIterator<Item: Data>,
        F: FnMut(T) -> I + Clone + Send + 'static,
    {
        self.transform(OperatorInfo::stateless("flat_map").takes_back(true), FlatMap::new(f))
    }

    fn inspect<F>(self, f: F) -> Stream<T, Then<P, T, Inspect<F>>>
    where
        F: FnMut(&T) + Clone + Send + 'static,
    {
        self.transform(OperatorInfo::stateless("inspect"), Inspect::new(f))
    }

    fn settled(self) -> Stream<T, Then<P, T, Settled>> {
        self.transform(OperatorInfo::stateless("settled").settles(), Settled)
    }
}

/// The stream of what a process function gives, still in the task that runs it.
pub type Processed<K, T, F, P> =
    Stream<<F as ProcessFunction<K, T>>::Out, Then<P, Keyed<K, T>, Process<K, T, F>>>;

/// Steps on a keyed stream. All records of a key meet one state.
pub trait KeyedOps<K: Key, T: Data, P: Pipe<Out = Keyed<K, T>>>: Sized {
    /// Runs `function` on each record, with a state per key and timers, kept under `uid`.
    ///
    /// State without a name does not compile:
    ///
    /// ```compile_fail,E0061
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::ScriptSource;
    /// # use weir_engine::{Collector, Record, Result};
    /// # #[derive(Clone)]
    /// # struct Number;
    /// # impl ProcessFunction<u64, u64> for Number {
    /// #     type Out = u64;
    /// #     type State = u64;
    /// #     fn process(&mut self, r: Record<u64>, _: &mut KeyedContext<'_, u64, u64>, out: &mut impl Collector<u64>) -> Result<()> {
    /// #         out.emit(r)
    /// #     }
    /// # }
    /// # let job = weir_engine::Job::named("doc");
    /// # let numbers = job.source("in", ScriptSource::of([(1u64, 0)])).without_event_time();
    /// numbers.key_by("by-number", |n| *n).process(Number);
    /// ```
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # use weir_engine::{Collector, Record, Result};
    /// #[derive(Clone)]
    /// struct Number;
    /// impl ProcessFunction<u64, &'static str> for Number {
    ///     type Out = (u64, &'static str);
    ///     type State = u64;
    ///     fn process(&mut self, r: Record<&'static str>, cx: &mut KeyedContext<'_, u64, u64>,
    ///                out: &mut impl Collector<Self::Out>) -> Result<()> {
    ///         *cx.state()? += 1;
    ///         out.emit(r.with((*cx.state()?, r.value)))
    ///     }
    /// }
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let lines = job.source("in", ScriptSource::of([("a buy", 0)])).without_event_time();
    /// lines.key_by("by-length", |line| line.len() as u64).process("number", Number).sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn process<F: ProcessFunction<K, T>>(self, uid: &str, function: F) -> Processed<K, T, F, P>;
}

impl<K: Key, T: Data, P: Pipe<Out = Keyed<K, T>>> KeyedOps<K, T, P> for KeyedStream<K, T, P> {
    fn process<F: ProcessFunction<K, T>>(self, uid: &str, function: F) -> Processed<K, T, F, P> {
        self.transform(OperatorInfo::stateful("process", uid).settles(), Process::new(function))
    }
}

/// Where a stream of profile updates ends. [`UpdateProfile`] says what is published when, and what happens to bad updates.
pub trait ProfileOps: Sized {
    /// Writes each update into the profiles, in the subtask that owns the user's key group. The profiles are the
    /// operator's state under `uid`; one operator writes a space, so union its inputs.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// use weir_state::profile::{ProfileUpdate, Profiles, tag};
    ///
    /// let profiles = Profiles::named("user_profile").int_tag("buys");
    /// # let job = weir_engine::Job::named("doc").parallelism(2);
    /// # let buys = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
    /// buys.map(|user| ProfileUpdate::of(user).increment("buys", 1)).update_profile("profile", &profiles);
    /// # run_within(job, seconds(30)).unwrap();
    /// assert_eq!(profiles.reader().count(&tag("buys").ge(1)).unwrap().value, 1);
    /// ```
    fn update_profile(self, uid: &str, into: impl Into<ProfileTarget>);

    /// Like `update_profile`, with the updates that were refused as a stream; it must be read to a sink.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # use weir_state::profile::{ProfileUpdate, Profiles, tag};
    /// # let profiles = Profiles::named("user_profile").int_tag("buys");
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let updates = job.source("in", ScriptSource::of([(ProfileUpdate::of(1u64), 0)])).source_time(weir_engine::Watermarks::monotonic());
    /// updates.update_profile_with_rejected("profile", &profiles)
    ///     .map(|refused| refused.to_string())
    ///     .sink("refused", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn update_profile_with_rejected(
        self,
        uid: &str,
        into: impl Into<ProfileTarget>,
    ) -> Stream<RejectedUpdate>;
}

impl<P: Pipe<Out = ProfileUpdate>> ProfileOps for Stream<ProfileUpdate, P> {
    fn update_profile(self, uid: &str, into: impl Into<ProfileTarget>) {
        updating(self, uid, into.into(), SideSlot::default()).shared();
    }

    fn update_profile_with_rejected(
        self,
        uid: &str,
        into: impl Into<ProfileTarget>,
    ) -> Stream<RejectedUpdate> {
        let slot = SideSlot::default();
        let updated = updating(self, uid, into.into(), slot.clone());
        let rejected = updated.side(&slot, "rejected");
        updated.shared();
        rejected
    }
}

/// The stream behind the profile: nothing comes out of it, but a chain must end somewhere.
fn updating<P: Pipe<Out = ProfileUpdate>>(
    updates: Stream<ProfileUpdate, P>,
    uid: &str,
    target: ProfileTarget,
    rejected: SideSlot<RejectedUpdate>,
) -> Stream<Infallible, impl Pipe<Out = Infallible>> {
    // Keyed by the user, whose hash is that of the writer's key groups: an update meets the subtask that owns its user.
    let by_user = updates.key_by::<UserId>(&format!("{uid}-by-user"), |update| update.user.clone());
    let by_user = match target.subtasks {
        Some(n) => by_user.parallelism(n),
        None => by_user,
    };
    by_user.transform(
        OperatorInfo::stateful("update_profile", uid).index().settles(),
        UpdateProfile::new(target, rejected),
    )
}
