//! `WindowOps`: what a job writes behind a window, whatever the window.

use weir_engine::{Data, Key, Keyed, Operator, OperatorInfo, Pipe, SideSlot, Stream, Then, WindowedStream};

use crate::aggregate::Aggregate;
use crate::window::count::{CountAggregate, Endless};
use crate::window::cuts::Cutting;
use crate::window::paned::PanedAggregate;
use crate::window::session::Gap;
use crate::window::session_aggregate::SessionAggregate;
use crate::window::sliced::{Sliced, SlicedAggregate};
use crate::window::tumbling::TumblingAggregate;
use crate::window::{
    Calendar, CountWindow, Cumulate, Firing, Global, Session, Sliding, Tumbling, WindowError, WindowResult,
};

/// A window that this crate has an operator for.
pub trait Window<K: Key, T: Data>: Sized {
    /// The operator that computes an aggregate in it.
    type Operator<A: Aggregate<T>>: Operator<Keyed<K, T>, Out = WindowResult<K, A::Out>>;

    /// What the operator is called in plans.
    const NAME: &'static str;

    /// Checks the parameters.
    ///
    /// # Errors
    /// The first one that cannot be.
    fn check(&self) -> Result<(), WindowError>;

    /// Whether later results of a key and window replace earlier ones, so that they must not be added up.
    fn updates(&self) -> bool;

    /// Whether later results of a key and window add to earlier ones, so that none of them is the whole.
    fn in_parts(&self) -> bool {
        false
    }

    /// Whether what replaces a result may be of another window, or of one that is never over.
    const MOVES: bool;

    /// The operator. A test of a job's own aggregate drives it by hand.
    fn operator<A: Aggregate<T>>(self, aggregate: A, late: SideSlot<T>) -> Self::Operator<A>;
}

/// Each result is the whole.
fn whole<W>(_: &W) -> bool {
    false
}

macro_rules! windows {
    ($($of:ty, $name:literal, $moves:literal, $parts:path, $operator:ident, |$window:ident| $as:expr;)*) => { $(
        impl<K: Key, T: Data> Window<K, T> for $of {
            type Operator<A: Aggregate<T>> = $operator<K, T, A>;
            const NAME: &'static str = $name;
            const MOVES: bool = $moves;

            fn check(&self) -> Result<(), WindowError> {
                <$of>::check(self).map(drop)
            }
            fn updates(&self) -> bool {
                <$of>::gives_updates(self)
            }
            fn in_parts(&self) -> bool {
                $parts(self)
            }
            fn operator<A: Aggregate<T>>(self, aggregate: A, late: SideSlot<T>) -> $operator<K, T, A> {
                let $window = self;
                $operator::new($as, aggregate, late)
            }
        }
    )* };
}
windows! {
    Tumbling, "tumbling_window", false, whole, TumblingAggregate, |window| Cutting::Tumbling(window);
    Calendar, "calendar_window", false, whole, TumblingAggregate, |window| Cutting::Calendar(window);
    Sliding, "sliding_window", false, whole, SlicedAggregate, |window| Sliced::Sliding(window);
    Cumulate, "cumulating_window", false, whole, SlicedAggregate, |window| Sliced::Cumulate(window);
    CountWindow, "count_window", false, whole, CountAggregate, |window| Endless::Count(window);
    Global, "global_window", true, Global::gives_parts, CountAggregate, |window| Endless::Global(window);
    Firing, "firing_window", false, Firing::gives_parts, PanedAggregate, |window| window;
}

impl<K: Key, T: Data, G: Gap<T>> Window<K, T> for Session<G> {
    type Operator<A: Aggregate<T>> = SessionAggregate<K, T, G, A>;
    const NAME: &'static str = "session_window";
    const MOVES: bool = true;

    fn check(&self) -> Result<(), WindowError> {
        Session::check::<T>(self).map(drop)
    }
    fn updates(&self) -> bool {
        self.gives_updates()
    }
    fn in_parts(&self) -> bool {
        self.gives_parts()
    }
    fn operator<A: Aggregate<T>>(self, aggregate: A, late: SideSlot<T>) -> SessionAggregate<K, T, G, A> {
        SessionAggregate::new(self, aggregate, late)
    }
}

/// The stream of a window's results, still in the task that computes them.
pub type WindowResults<K, T, A, P, O = TumblingAggregate<K, T, A>> =
    Stream<WindowResult<K, <A as Aggregate<T>>::Out>, Then<P, Keyed<K, T>, O>>;

/// What to compute in a window. The operator says what is kept, in which order results come, and what happens to late
/// records: [`TumblingAggregate`] for [`Tumbling`] and [`Calendar`], [`SlicedAggregate`] for [`Sliding`] and [`Cumulate`],
/// [`SessionAggregate`] for [`Session`], [`PanedAggregate`] for a [`Firing`], [`CountAggregate`] for [`CountWindow`] and [`Global`].
pub trait WindowOps<K: Key, T: Data, P: Pipe<Out = Keyed<K, T>>>: Sized {
    /// The operator that computes an aggregate in the window.
    type Operator<A: Aggregate<T>>: Operator<Keyed<K, T>, Out = WindowResult<K, A::Out>>;

    /// Computes `aggregate` per key and window; a result is given when the watermark says that its window is over. Late
    /// records are counted as `late_records` and change nothing, unless the window allows them. The accumulators are kept
    /// under `uid`.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let clicks = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
    /// clicks.key_by("by-user", |user| *user)
    ///     .window(Tumbling::of(hours(1)))
    ///     .aggregate("hourly", count())
    ///     .map(|w| format!("{} clicked {} times in {}", w.key, w.value, w.window))
    ///     .sink("out", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    fn aggregate<A: Aggregate<T>>(
        self,
        uid: &str,
        aggregate: A,
    ) -> WindowResults<K, T, A, P, Self::Operator<A>>;

    /// Like `aggregate`, with the late records as a stream of their own; it must be read to a sink.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
    /// # let job = weir_engine::Job::named("doc").parallelism(1);
    /// # let clicks = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
    /// let hourly = clicks.key_by("by-user", |user| *user).window(Tumbling::of(hours(1)));
    /// let (counts, late) = hourly.aggregate_with_late("hourly", count());
    /// counts.sink("counts", NullSink);
    /// late.sink("late", NullSink);
    /// # run_within(job, seconds(30)).unwrap();
    /// ```
    #[expect(clippy::type_complexity, reason = "two streams, each of a type that has a name")]
    fn aggregate_with_late<A: Aggregate<T>>(
        self,
        uid: &str,
        aggregate: A,
    ) -> (WindowResults<K, T, A, P, Self::Operator<A>>, Stream<T>);
}

impl<K: Key, T: Data, P: Pipe<Out = Keyed<K, T>>, W: Window<K, T>> WindowOps<K, T, P>
    for WindowedStream<K, T, W, P>
{
    type Operator<A: Aggregate<T>> = W::Operator<A>;

    fn aggregate<A: Aggregate<T>>(
        self,
        uid: &str,
        aggregate: A,
    ) -> WindowResults<K, T, A, P, W::Operator<A>> {
        windowed(self, uid, aggregate, SideSlot::default())
    }

    fn aggregate_with_late<A: Aggregate<T>>(
        self,
        uid: &str,
        aggregate: A,
    ) -> (WindowResults<K, T, A, P, W::Operator<A>>, Stream<T>) {
        let slot = SideSlot::default();
        let results = windowed(self, uid, aggregate, slot.clone());
        let late = results.side(&slot, "late");
        (results, late)
    }
}

fn windowed<K: Key, T: Data, P: Pipe<Out = Keyed<K, T>>, W: Window<K, T>, A: Aggregate<T>>(
    windowed: WindowedStream<K, T, W, P>,
    uid: &str,
    aggregate: A,
    late: SideSlot<T>,
) -> WindowResults<K, T, A, P, W::Operator<A>> {
    let (keyed, window) = windowed.into_parts();
    let keyed = keyed.require(uid, window.check());
    let info = OperatorInfo::stateful(W::NAME, uid).adds_up();
    let info = info.updates(window.updates()).in_parts(window.in_parts()).moves(W::MOVES);
    keyed.transform(info, window.operator(aggregate, late))
}

#[cfg(test)]
#[path = "ops_tests.rs"]
mod tests;
