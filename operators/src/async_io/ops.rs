//! `AsyncOps`: the steps of a stream that call the outside.
#![expect(
    clippy::type_complexity,
    reason = "a stream's type names its values twice; an alias cannot hold `impl Pipe`"
)]

use weir_engine::memory::Footprint;
use weir_engine::{Key, Keyed, KeyedStream, OperatorInfo, Pipe, SideSlot, Stream};

use super::cache::Caching;
use super::config::AsyncIo;
use super::failed::{FailedCall, FailedCalls};
use super::keyed::KeyedCalls;
use super::lookup::{Inner, Join, Left, Looked, Lookup};
use super::operator::{AsyncCalls, Calling};
use super::{AsyncFunction, Mapped};
use crate::aggregate::Kept;
use crate::argument::ArgumentError;
use crate::opened::Opened;

/// Steps that call the outside for each record, on a stream or a keyed stream. Behind a `key_by` equal questions can meet one cache, and
/// after a restore a call is made again where its key is then. [`AsyncIo`] says in which order results come, how many calls run at a time, and what
/// becomes of slow and failed ones.
///
/// *Event time*: a result has the time of its record. Watermarks and idleness wait behind the results of what came before them. A
/// late record is called for like any other, and is late downstream.
///
/// *State*, under `uid`: the records whose results were not given at the barrier, which does not wait for them; after a restore,
/// whatever the parallelism, their calls are made again. Without calls under way it keeps the last watermark only.
///
/// *End*: when the input ends it waits for what is under way. A job that takes checkpoints and is drained to go on later
/// ([`EndKind::Keep`](weir_engine::EndKind::Keep)) leaves it to the next life instead.
///
/// *Counts*: `calls` (tries included), `call_retries`, `call_timeouts`, `fallback_calls`, `failed_calls`, `cache_hits`, `cache_misses`.
pub trait AsyncOps<T: Kept>: Sized {
    /// Calls `function` for each record and gives its answer.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::{OperatorInfo, testkit::{NullSink, Probe, ScriptSource, run_within}};
    /// # let (job, probe) = (weir_engine::Job::named("doc").parallelism(1), Probe::new());
    /// # let users = job.source("in", ScriptSource::of([(7u64, 0), (8, 0)])).without_event_time();
    /// async fn city_of(user: u64) -> Result<String, std::io::Error> {
    ///     Ok(format!("the city of {user}")) // asks a service
    /// }
    /// users.map_async("city", city_of, AsyncIo::ordered(100, seconds(2)))
    /// #   .transform(OperatorInfo::stateless("look"), probe.clone())
    ///     .sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// # assert_eq!(probe.values(), ["the city of 7", "the city of 8"]);
    /// ```
    fn map_async<F, C>(
        self,
        uid: &str,
        function: F,
        io: AsyncIo<T, F::Out, F::Error, C>,
    ) -> Stream<F::Out, impl Pipe<Out = F::Out>>
    where
        F: AsyncFunction<T>,
        C: Caching<T, F::Out>;

    /// Like `map_async`, with the records whose calls failed for good as a stream of their own, which must be read to a sink.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::{OperatorInfo, testkit::{NullSink, Probe, ScriptSource, run_within}};
    /// # let (job, probe) = (weir_engine::Job::named("doc").parallelism(1), Probe::new());
    /// # let users = job.source("in", ScriptSource::of([(7u64, 0), (8, 0)])).without_event_time();
    /// # async fn city_of(user: u64) -> Result<String, String> { Err(format!("no user {user}")) }
    /// let (cities, failed) = users.map_async_with_failed("city", city_of, AsyncIo::ordered(100, seconds(2)));
    /// cities.sink("out", NullSink);
    /// failed.map(|f| format!("{}: {}", f.input, f.reason))
    /// #   .transform(OperatorInfo::stateless("look"), probe.clone())
    ///     .sink("failed", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// # assert_eq!(probe.values(), ["7: no user 7", "8: no user 8"]);
    /// ```
    fn map_async_with_failed<F, C>(
        self,
        uid: &str,
        function: F,
        io: AsyncIo<T, F::Out, F::Error, C>,
    ) -> (Stream<F::Out, impl Pipe<Out = F::Out>>, Stream<FailedCall<T>>)
    where
        F: AsyncFunction<T>,
        C: Caching<T, F::Out>;

    /// Each record with what `table` has under its key at the time of asking; a record that has no match is left out. It is the
    /// table as it is when it is asked, or was when the answer was cached: not as it was at the record's event time.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::{OperatorInfo, testkit::{NullSink, Probe, ScriptSource, run_within}};
    /// # let (job, probe) = (weir_engine::Job::named("doc").parallelism(1), Probe::new());
    /// # let orders = job.source("in", ScriptSource::of([((1u64, 7u64), 0), ((2, 8), 0)])).without_event_time();
    /// # #[derive(Clone)] struct Users;
    /// # impl Lookup<u64> for Users {
    /// #     type Value = &'static str;
    /// #     type Error = String;
    /// #     async fn get(&self, user: &u64) -> Result<Option<&'static str>, String> { Ok((*user == 7).then_some("ann")) }
    /// # }
    /// let io = AsyncIo::unordered(100, seconds(2)).cache(CallCache::entries(10_000).ttl(minutes(10)));
    /// orders.lookup_join("user", |(_order, user)| *user, Users, io)
    /// #   .transform(OperatorInfo::stateless("look"), probe.clone())
    ///     .sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// # assert_eq!(probe.values(), [((1, 7), "ann")]);
    /// ```
    fn lookup_join<K, L, F, C>(
        self,
        uid: &str,
        key: F,
        table: L,
        io: AsyncIo<T, Option<L::Value>, L::Error, C>,
    ) -> Stream<(T, L::Value), impl Pipe<Out = (T, L::Value)>>
    where
        K: Send + Sync + 'static,
        L: Lookup<K>,
        F: Fn(&T) -> K + Clone + Send + 'static,
        C: Caching<K, Option<L::Value>>;

    /// Like `lookup_join`, but a record without a match is given too, with none.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::{OperatorInfo, testkit::{NullSink, Probe, ScriptSource, run_within}};
    /// # let (job, probe) = (weir_engine::Job::named("doc").parallelism(1), Probe::new());
    /// # let orders = job.source("in", ScriptSource::of([((1u64, 7u64), 0), ((2, 8), 0)])).without_event_time();
    /// # #[derive(Clone)] struct Users;
    /// # impl Lookup<u64> for Users {
    /// #     type Value = &'static str;
    /// #     type Error = String;
    /// #     async fn get(&self, user: &u64) -> Result<Option<&'static str>, String> { Ok((*user == 7).then_some("ann")) }
    /// # }
    /// // A user table that does not answer counts as one without a match.
    /// let io = AsyncIo::ordered(100, seconds(2)).fallback(|_order, _error| None);
    /// orders.left_lookup_join("user", |(_order, user)| *user, Users, io)
    /// #   .transform(OperatorInfo::stateless("look"), probe.clone())
    ///     .sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// # assert_eq!(probe.values(), [((1, 7), Some("ann")), ((2, 8), None)]);
    /// ```
    fn left_lookup_join<K, L, F, C>(
        self,
        uid: &str,
        key: F,
        table: L,
        io: AsyncIo<T, Option<L::Value>, L::Error, C>,
    ) -> Stream<(T, Option<L::Value>), impl Pipe<Out = (T, Option<L::Value>)>>
    where
        K: Send + Sync + 'static,
        L: Lookup<K>,
        F: Fn(&T) -> K + Clone + Send + 'static,
        C: Caching<K, Option<L::Value>>;
}

/// What is added to a stream of records or of records with keys.
trait Calls<T: Kept>: Sized {
    fn called<C: Calling<T>>(
        self,
        kind: &'static str,
        uid: &str,
        checked: Checked,
        op: AsyncCalls<T, C>,
    ) -> Stream<C::Out, impl Pipe<Out = C::Out>>;
}

/// Whether what was said of the calls makes sense, and what they take.
struct Checked {
    arguments: Result<(), ArgumentError>,
    footprint: Footprint,
}

impl Checked {
    fn info(&self, kind: &'static str, uid: &str) -> OperatorInfo {
        OperatorInfo::stateful(kind, uid).asynchronous().footprint(self.footprint.clone())
    }
}

impl<T: Kept, P: Pipe<Out = T>> Calls<T> for Stream<T, P> {
    fn called<C: Calling<T>>(
        self,
        kind: &'static str,
        uid: &str,
        checked: Checked,
        op: AsyncCalls<T, C>,
    ) -> Stream<C::Out, impl Pipe<Out = C::Out>> {
        let info = checked.info(kind, uid);
        self.require(uid, checked.arguments).transform(info, op)
    }
}

impl<K: Key, T: Kept, P: Pipe<Out = Keyed<K, T>>> Calls<T> for KeyedStream<K, T, P> {
    fn called<C: Calling<T>>(
        self,
        kind: &'static str,
        uid: &str,
        checked: Checked,
        op: AsyncCalls<T, C>,
    ) -> Stream<C::Out, impl Pipe<Out = C::Out>> {
        let info = checked.info(kind, uid);
        self.require(uid, checked.arguments).transform(info, KeyedCalls::new(op))
    }
}

fn mapped<T: Kept, S: Calls<T>, F: AsyncFunction<T>, C: Caching<T, F::Out>>(
    stream: S,
    uid: &str,
    function: F,
    io: AsyncIo<T, F::Out, F::Error, C>,
    dead: SideSlot<FailedCall<T>>,
) -> Stream<F::Out, impl Pipe<Out = F::Out>> {
    let checked = Checked { arguments: io.check::<T>(), footprint: io.footprint::<T>() };
    let settings = io.settings;
    stream.called("map_async", uid, checked, AsyncCalls::new(Mapped::new(function, io), settings, dead))
}

fn looked<T, K, S, L, F, C, J>(
    stream: S,
    uid: &str,
    key: F,
    lookup: L,
    io: AsyncIo<T, Option<L::Value>, L::Error, C>,
    join: J,
) -> Stream<J::Out, impl Pipe<Out = J::Out>>
where
    T: Kept,
    K: Send + Sync + 'static,
    S: Calls<T>,
    L: Lookup<K>,
    F: Fn(&T) -> K + Clone + Send + 'static,
    C: Caching<K, Option<L::Value>>,
    J: Join<T, L::Value>,
{
    let checked = Checked { arguments: io.check::<K>(), footprint: io.footprint::<K>() };
    let settings = io.settings;
    let looked = Looked { lookup, shared: Opened(None), key, io, answers: Opened(None), join };
    stream.called("lookup_join", uid, checked, AsyncCalls::new(looked, settings, SideSlot::default()))
}

/// The same for both kinds of stream.
macro_rules! async_ops {
    (<$($params:ident: $bounds:path),*> $stream:ty, $out:ty) => {
        impl<T: Kept, $($params: $bounds,)* P: Pipe<Out = $out>> AsyncOps<T> for $stream {
            fn map_async<F, C>(
                self,
                uid: &str,
                function: F,
                io: AsyncIo<T, F::Out, F::Error, C>,
            ) -> Stream<F::Out, impl Pipe<Out = F::Out>>
            where
                F: AsyncFunction<T>,
                C: Caching<T, F::Out>,
            {
                mapped(self, uid, function, io, SideSlot::default())
            }

            fn map_async_with_failed<F, C>(
                self,
                uid: &str,
                function: F,
                io: AsyncIo<T, F::Out, F::Error, C>,
            ) -> (Stream<F::Out, impl Pipe<Out = F::Out>>, Stream<FailedCall<T>>)
            where
                F: AsyncFunction<T>,
                C: Caching<T, F::Out>,
            {
                let slot = SideSlot::default();
                let results = mapped(self, uid, function, io.on_failed(FailedCalls::DeadLetter), slot.clone());
                let failed = results.side(&slot, "failed");
                (results, failed)
            }

            fn lookup_join<K, L, F, C>(
                self,
                uid: &str,
                key: F,
                table: L,
                io: AsyncIo<T, Option<L::Value>, L::Error, C>,
            ) -> Stream<(T, L::Value), impl Pipe<Out = (T, L::Value)>>
            where
                K: Send + Sync + 'static,
                L: Lookup<K>,
                F: Fn(&T) -> K + Clone + Send + 'static,
                C: Caching<K, Option<L::Value>>,
            {
                looked(self, uid, key, table, io, Inner)
            }

            fn left_lookup_join<K, L, F, C>(
                self,
                uid: &str,
                key: F,
                table: L,
                io: AsyncIo<T, Option<L::Value>, L::Error, C>,
            ) -> Stream<(T, Option<L::Value>), impl Pipe<Out = (T, Option<L::Value>)>>
            where
                K: Send + Sync + 'static,
                L: Lookup<K>,
                F: Fn(&T) -> K + Clone + Send + 'static,
                C: Caching<K, Option<L::Value>>,
            {
                looked(self, uid, key, table, io, Left)
            }
        }
    };
}

async_ops!(<> Stream<T, P>, T);
async_ops!(<Of: Key> KeyedStream<Of, T, P>, Keyed<Of, T>);
