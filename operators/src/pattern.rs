//! Patterns of two: a record followed, or not followed, by another of its key within a time.
// HOT: what the buffer costs, and of each record that is no part of a pattern two or three calls of the user's conditions.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_engine::{Collector, Data, EventTime, Key, Keyed, Operator, Record, Result, SideSlot};

use crate::aggregate::Kept;
use crate::argument::{ArgumentError, positive_ms};
use crate::ordered::{Fifo, InOrder, LineContext, Ordered, Peers, Span, Timely, wake};
use crate::process::NamedState;

/// How a pattern begins: the condition of its first record.
pub struct PatternStart<T, A> {
    begin: A,
    _in: PhantomData<fn(T)>,
}

/// A record `a` followed, or not, by a record `b` of its key at most `t` after it, perhaps without a record `c` in between.
///
/// *Semantics*: the records of a key are put in the order of their times, those of one time in the order in which they came. Each record
/// that satisfies `a` opens the pattern once; records in between do not matter, but for those that satisfy `unless`, which close it.
///
/// * [`followed_by`](PatternStart::followed_by): the first `b` that comes at most `t` after an open `a` completes it: one match, with the
///   time of `b`. One `b` completes every open `a`, oldest first; each `a` is completed once.
/// * [`not_followed_by`](PatternStart::not_followed_by): an `a` that no `b` has followed `t` after it is a match, with that time. An `a`
///   whose input ends is one too, as nothing can follow any more (drained to be continued, it stays open).
///
/// Both bounds are in: a `b` exactly `t` after `a` follows it. A record that satisfies more than one condition first completes as `b`,
/// then closes as `c`, then opens as `a`; so with `a` and `b` alike each record completes the one before it.
///
/// *When*: matches are found when the watermark has passed the time they have, so that they do not depend on how producers interleave.
///
/// *Late records*, those at or before the watermark, are in no match: they are counted as `late_records`, and go to the late output of
/// [`detect_with_late`](crate::prelude::PerKeyOps::detect_with_late).
///
/// *State*: each record until the watermark passes it; then each open `a`, for at most `t`. *Forgets* a key that has neither.
///
/// *Limits*: two steps; no repetition, no alternatives, no condition that sees both records (filter the matches); a key with very many
/// `a` and no `b` keeps all of those of the last `t`.
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::{OperatorInfo, testkit::{NullSink, Probe, ScriptSource, run_within}};
/// # let (job, probe) = (weir_engine::Job::named("doc").parallelism(1), Probe::new());
/// # use serde::{Deserialize, Serialize};
/// #[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
/// enum Did { Cart, Buy }
/// let left = Pattern::begin(|e: &(u64, Did)| e.1 == Did::Cart).not_followed_by(|e| e.1 == Did::Buy, minutes(30));
/// let events = [((1, Did::Cart), 0), ((2, Did::Cart), 5_000), ((1, Did::Buy), 60_000)];
/// let events = job.source("in", ScriptSource::of(events)).source_time(weir_engine::Watermarks::monotonic());
/// events.key_by("by-user", |(user, _)| *user)
///     .detect("carts-left", left)
///     .map(|found| found.key)
/// #   .transform(OperatorInfo::stateless("look"), probe.clone())
///     .sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// assert_eq!(probe.values(), [2]);
/// ```
pub struct Pattern<T, A, B, C = fn(&T) -> bool> {
    begin: A,
    follow: B,
    unless: Option<C>,
    within: Duration,
    negated: bool,
    _in: PhantomData<fn(T)>,
}

/// A condition on a record.
pub trait Condition<T>: Fn(&T) -> bool + Clone + Send + 'static {}
impl<T, F: Fn(&T) -> bool + Clone + Send + 'static> Condition<T> for F {}

impl<T: Data> Pattern<T, (), ()> {
    /// A pattern that begins with a record of which `a` is true.
    pub fn begin<A: Fn(&T) -> bool + Clone + Send + 'static>(a: A) -> PatternStart<T, A> {
        PatternStart { begin: a, _in: PhantomData }
    }
}

impl<T: Data, A> PatternStart<T, A> {
    /// A record of which `b` is true comes at most `within` later: whole milliseconds, at least one. Anything else fails the start
    /// of the job.
    pub fn followed_by<B: Fn(&T) -> bool + Clone + Send + 'static>(
        self,
        b: B,
        within: Duration,
    ) -> Pattern<T, A, B> {
        let (begin, follow) = (self.begin, b);
        Pattern { begin, follow, unless: None, within, negated: false, _in: PhantomData }
    }

    /// No record of which `b` is true comes at most `within` later: whole milliseconds, at least one. Anything else fails the
    /// start of the job.
    pub fn not_followed_by<B: Fn(&T) -> bool + Clone + Send + 'static>(
        self,
        b: B,
        within: Duration,
    ) -> Pattern<T, A, B> {
        Pattern { negated: true, ..self.followed_by(b, within) }
    }
}

impl<T: Data, A, B> Pattern<T, A, B> {
    /// A record of which `c` is true closes every open `a` before it: it is then no part of a match.
    #[must_use]
    pub fn unless<C: Fn(&T) -> bool + Clone + Send + 'static>(self, c: C) -> Pattern<T, A, B, C> {
        let Pattern { begin, follow, within, negated, .. } = self;
        Pattern { begin, follow, unless: Some(c), within, negated, _in: PhantomData }
    }
}

impl<T: Kept, A: Condition<T>, B: Condition<T>, C: Condition<T>> Pattern<T, A, B, C> {
    /// The operator behind [`detect`](crate::prelude::PerKeyOps::detect): what a test drives by hand.
    ///
    /// # Errors
    /// The time is no whole, positive number of milliseconds.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// # use weir_engine::{Keyed, SideSlot, testkit::OpHarness};
    /// let rise = Pattern::begin(|n: &i64| *n < 10).followed_by(|n| *n > 20, seconds(1));
    /// let mut harness = OpHarness::new(rise.operator::<u64>(SideSlot::default()).unwrap())?;
    /// # let keyed = |value: i64| Keyed { hash: weir_state::key_hash(&7u64), key: 7u64, value };
    /// harness.batch([(keyed(30), 400), (keyed(5), 0), (keyed(40), 500)])?;
    /// harness.watermark(500)?;
    /// assert_eq!(harness.take().len(), 1);
    /// # Ok::<(), weir_engine::TaskError>(())
    /// ```
    pub fn operator<K: Key>(
        self,
        late: SideSlot<T>,
    ) -> std::result::Result<impl Operator<Keyed<K, T>, Out = Found<K, T>>, ArgumentError> {
        let within = self.check()?;
        Ok(Timely::new(Ordered::new(Detect::new(self, within)), late))
    }
}

impl<T, A, B, C> Pattern<T, A, B, C> {
    pub(crate) fn check(&self) -> std::result::Result<i64, ArgumentError> {
        positive_ms("within", self.within)
    }
}

impl<T, A: Clone, B: Clone, C: Clone> Clone for Pattern<T, A, B, C> {
    fn clone(&self) -> Self {
        Pattern {
            begin: self.begin.clone(),
            follow: self.follow.clone(),
            unless: self.unless.clone(),
            within: self.within,
            negated: self.negated,
            _in: PhantomData,
        }
    }
}

impl<T, A> fmt::Debug for PatternStart<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PatternStart")
    }
}

impl<T, A, B, C> fmt::Debug for Pattern<T, A, B, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let follows = if self.negated { "not followed" } else { "followed" };
        write!(f, "Pattern({follows} within {:?})", self.within)
    }
}

/// What a pattern has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found<K, T> {
    /// The key.
    pub key: K,
    /// The record that began it.
    pub first: T,
    /// The record that followed; none when the pattern is that none does.
    pub then: Option<T>,
}

/// The records of a key that have begun the pattern, in order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Begun {
    open: Span,
    /// When the oldest of them is over.
    first_over: i64,
}

/// Finds a pattern.
pub(crate) struct Detect<K: Key, T: Kept, A, B, C> {
    pattern: Pattern<T, A, B, C>,
    within: i64,
    open: Fifo<K, (i64, T)>,
}

impl<K: Key, T: Kept, A, B, C> Detect<K, T, A, B, C> {
    pub(crate) fn new(pattern: Pattern<T, A, B, C>, within: i64) -> Self {
        Detect { pattern, within, open: Fifo::named("open") }
    }
}

impl<K: Key, T: Kept, A, B, C> Detect<K, T, A, B, C> {
    /// What is over by `by` leaves; when nothing was to follow it, that is a match.
    fn let_go(
        &mut self,
        by: i64,
        begun: &mut Begun,
        cx: &mut LineContext<'_, K, Begun>,
        out: &mut impl Collector<Found<K, T>>,
    ) -> Result<()> {
        // A life before this one may have waited for longer: event time may be past the end that holds today, but not past this one.
        let not_before = begun.first_over;
        let mut head = begun.open.head;
        while head < begun.open.tail {
            let (began, first) = self.open.at(cx, head)?;
            begun.first_over = began.saturating_add(self.within);
            if begun.first_over > by {
                break;
            }
            if self.pattern.negated {
                let at = EventTime(begun.first_over.max(not_before));
                out.emit(Record::new(Found { key: cx.key().clone(), first: first.clone(), then: None }, at))?;
            }
            head += 1;
        }
        if head < begun.open.tail && begun.first_over != not_before {
            // A life before this one may have set its timer for another time.
            wake(cx, begun.first_over);
        }
        self.open.drop_until(cx, &mut begun.open, head)
    }
}

impl<K: Key, T: Kept, A: Clone, B: Clone, C: Clone> Clone for Detect<K, T, A, B, C> {
    fn clone(&self) -> Self {
        Detect::new(self.pattern.clone(), self.within)
    }
}

impl<K: Key, T: Kept, A: Condition<T>, B: Condition<T>, C: Condition<T>> InOrder<K, T>
    for Detect<K, T, A, B, C>
{
    type Out = Found<K, T>;
    type State = Begun;

    fn states(&mut self) -> Vec<&mut dyn NamedState<K>> {
        vec![self.open.state()]
    }

    fn records(
        &mut self,
        time: EventTime,
        records: Peers<T>,
        cx: &mut LineContext<'_, K, Begun>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let mut begun = cx.state()?.kept.clone();
        for record in records {
            if !begun.open.is_empty() {
                let follows = (self.pattern.follow)(&record);
                if follows || self.pattern.unless.as_ref().is_some_and(|unless| unless(&record)) {
                    // It concerns only what is not over. Nothing is, unless a life before this one waited for longer.
                    self.let_go(time.0.saturating_sub(1), &mut begun, cx, out)?;
                    if follows && !self.pattern.negated {
                        for number in begun.open.head..begun.open.tail {
                            let first = self.open.at(cx, number)?.1.clone();
                            let found = Found { key: cx.key().clone(), first, then: Some(record.clone()) };
                            out.emit(Record::new(found, time))?;
                        }
                    }
                    self.open.clear(cx, &mut begun.open)?;
                }
            }
            if (self.pattern.begin)(&record) {
                let over = time.0.saturating_add(self.within);
                if begun.open.is_empty() {
                    begun.first_over = over;
                }
                self.open.push(cx, &mut begun.open, (time.0, record))?;
                wake(cx, over);
            }
        }
        cx.state()?.kept = begun;
        Ok(())
    }

    fn passed(
        &mut self,
        time: EventTime,
        cx: &mut LineContext<'_, K, Begun>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let mut begun = cx.state()?.kept.clone();
        if begun.open.is_empty() || begun.first_over > time.0 {
            return Ok(());
        }
        self.let_go(time.0, &mut begun, cx, out)?;
        cx.state()?.kept = begun;
        Ok(())
    }

    fn is_over(begun: &Begun) -> bool {
        begun.open.is_empty()
    }
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
