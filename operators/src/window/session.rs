//! Sessions: how records that follow each other closely become one, and which of them. Pure decisions.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_engine::EventTime;

use crate::window::assign::checked_ms;
use crate::window::cuts::{Declared, Layout};
use crate::window::giving::{Giving, When};
use crate::window::{TimeWindow, WindowError};

/// How long a session stays open after a record. Implemented by what [`Session::gap`] and [`Session::gap_by`] make.
pub trait Gap<T>: Clone + Send + 'static {
    /// The gap after a record. HOT: called once per record.
    fn gap(&self, value: &T) -> Duration;

    /// Checks what can be checked before the job starts.
    ///
    /// # Errors
    /// What cannot be.
    fn check(&self) -> Result<(), WindowError> {
        Ok(())
    }
}

/// The same gap after every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedGap(Duration);

impl<T> Gap<T> for FixedGap {
    #[inline]
    fn gap(&self, _: &T) -> Duration {
        self.0
    }

    fn check(&self) -> Result<(), WindowError> {
        checked_ms("gap", self.0, 1).map(drop)
    }
}

/// A gap that depends on the record.
#[derive(Clone, Copy, Debug)]
pub struct GapBy<F>(F);

impl<T, F: Fn(&T) -> Duration + Clone + Send + 'static> Gap<T> for GapBy<F> {
    #[inline]
    fn gap(&self, value: &T) -> Duration {
        (self.0)(value)
    }
}

/// Windows per key that last as long as records follow each other closely: a visit, a trip, a burst of errors.
///
/// A record opens a session from its time on until one gap later, the end not included; sessions of a key that overlap are
/// one. So with a fixed gap two records belong together when they are less than it apart: one that comes *exactly* the gap
/// after the last begins the next session. A session is over when the watermark reaches the last millisecond before its end,
/// and then no record can be missing from it.
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
/// # let job = weir_engine::Job::named("doc").parallelism(1);
/// # let clicks = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
/// clicks.key_by("by-user", |user| *user)
///     .window(Session::gap(minutes(30)))
///     .aggregate("clicks-per-visit", count())
///     .map(|visit| format!("{} clicked {} times in {}", visit.key, visit.value, visit.window))
///     .sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session<G = FixedGap> {
    pub(crate) gap: G,
    giving: Giving,
}

impl<G> Session<G> {
    fn of(gap: G) -> Self {
        Session { gap, giving: Giving::default() }
    }
}

impl Session<FixedGap> {
    /// A session ends this long after its last record: a whole, positive number of milliseconds. Anything else fails the
    /// start of the job.
    pub fn gap(gap: Duration) -> Self {
        Session::of(FixedGap(gap))
    }
}

impl<F> Session<GapBy<F>> {
    /// After each record the session stays open for as long as `gap` says of it; 1 ms at least, fractions of one count as one.
    /// It ends when the last of these times has passed.
    ///
    /// ```
    /// # use weir_operators::prelude::*;
    /// let longer_after_a_buy = Session::gap_by(|action: &&str| if *action == "buy" { hours(1) } else { minutes(10) });
    /// ```
    pub fn gap_by<T>(gap: F) -> Self
    where
        F: Fn(&T) -> Duration + Clone + Send + 'static,
    {
        Session::of(GapBy(gap))
    }
}

impl<G> Session<G> {
    /// Keeps sessions for this long after they are over, in event time: a late record that belongs to one changes it, and it
    /// gives a new result at once.
    #[must_use]
    pub fn allow_lateness(mut self, lateness: Duration) -> Self {
        self.giving.lateness = lateness;
        self
    }

    /// Gives an early result of a session after every `records` of it that came since its last result. It covers the session so far,
    /// which may grow, and be merged with another, after it: its bounds are those that the session has by then.
    #[must_use]
    pub fn early_every(mut self, records: u32) -> Self {
        self.giving.every = Some(records);
        self
    }

    /// Gives early results this long, by the job's clock, after something new has come: of every session that has anything new by then.
    /// What depends on the clock comes out otherwise when records are processed again after a failure; the on-time results do not.
    #[must_use]
    pub fn early_after(mut self, time: Duration) -> Self {
        self.giving.after = Some(time);
        self
    }

    /// Each result covers only what has come since the one before, so that they add up to the whole; there is none, on time either, when
    /// nothing has.
    #[must_use]
    pub fn discarding(mut self) -> Self {
        self.giving.discards = true;
        self
    }

    pub(crate) fn gives_updates(&self) -> bool {
        self.giving.gives_updates()
    }

    pub(crate) fn gives_parts(&self) -> bool {
        self.giving.gives_parts()
    }

    /// As `check`, where a function processes the records.
    pub(crate) fn check_plain<T>(&self) -> Result<(), WindowError>
    where
        G: Gap<T>,
    {
        self.check::<T>()?;
        self.giving.is_plain()
    }

    /// What holds, if everything can be.
    pub(crate) fn check<T>(&self) -> Result<When, WindowError>
    where
        G: Gap<T>,
    {
        self.gap.check()?;
        self.giving.check()
    }
}

/// What a checkpoint says of when sessions give results.
pub(crate) fn session_layout(when: &When) -> Layout {
    vec![("discards", Declared::Ms(when.discards.into()))]
}

/// From the first to the last moment of a session, both in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Span {
    pub(crate) start: i64,
    pub(crate) last: i64,
}

impl Span {
    /// What one record opens.
    #[inline]
    pub(crate) fn of(time: EventTime, gap: Duration) -> Self {
        let whole = i64::try_from(gap.as_millis()).unwrap_or(i64::MAX);
        let part = i64::from(!gap.subsec_nanos().is_multiple_of(1_000_000));
        let ms = whole.saturating_add(part).max(1);
        Span { start: time.0, last: time.0.saturating_add(ms - 1) }
    }

    #[inline]
    pub(crate) fn overlaps(self, other: Span) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    #[inline]
    pub(crate) fn and(self, other: Span) -> Self {
        Span { start: self.start.min(other.start), last: self.last.max(other.last) }
    }

    pub(crate) fn window(self) -> TimeWindow {
        TimeWindow { start: EventTime(self.start), end: EventTime(self.last.saturating_add(1)) }
    }
}

/// A session of a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Open<A> {
    pub(crate) span: Span,
    pub(crate) acc: A,
    /// How many results it has given.
    pub(crate) panes: u32,
    /// How many records came since the last; what is more than fits makes no difference.
    pub(crate) since: u32,
    /// It has given the result of the span that it has, and waits for late records.
    pub(crate) given: bool,
    /// It is among what is to be given early by the clock.
    pub(crate) listed: bool,
    /// A timer of the key that looks at it. It is not moved at every record, so it may come too early; then it is set anew.
    pub(crate) timer: i64,
}

/// The sessions of one key, which do not overlap. There is one, nearly always.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sessions<A> {
    pub(crate) one: Open<A>,
    more: Vec<Open<A>>,
}

impl<A: Clone> Sessions<A> {
    pub(crate) fn of(one: Open<A>) -> Self {
        Sessions { one, more: Vec::new() }
    }

    /// The session, if there is no other.
    #[inline]
    pub(crate) fn only(&mut self) -> Option<&mut Open<A>> {
        self.more.is_empty().then_some(&mut self.one)
    }

    /// What a session of this span becomes when it is merged with what it overlaps.
    pub(crate) fn merged(&self, span: Span) -> Span {
        let all = std::iter::once(&self.one).chain(&self.more);
        // They do not overlap each other, so what is merged cannot reach one that the span itself does not.
        all.filter(|open| open.span.overlaps(span)).fold(span, |merged, open| merged.and(open.span))
    }

    /// Takes the sessions out that satisfy `f`, and says whether any are left.
    pub(crate) fn take_if(&mut self, mut f: impl FnMut(&Open<A>) -> bool, taken: &mut Vec<Open<A>>) -> bool {
        taken.extend(self.more.extract_if(.., |open| f(open)));
        if !f(&self.one) {
            return true;
        }
        match self.more.pop() {
            Some(next) => {
                taken.push(std::mem::replace(&mut self.one, next));
                true
            }
            None => {
                taken.push(self.one.clone());
                false
            }
        }
    }

    pub(crate) fn push(&mut self, open: Open<A>) {
        self.more.push(open);
    }

    /// All of them.
    pub(crate) fn each(&mut self) -> impl Iterator<Item = &mut Open<A>> {
        std::iter::once(&mut self.one).chain(&mut self.more)
    }

    /// True when some session is, or should be, among what is to be given early by the clock.
    pub(crate) fn is_listed(&self) -> bool {
        let all = std::iter::once(&self.one).chain(&self.more);
        all.into_iter().any(|open| open.listed || (open.since > 0 && !open.given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: i64, gap: u64) -> Span {
        Span::of(EventTime(start), Duration::from_millis(gap))
    }

    #[test]
    fn a_record_exactly_the_gap_later_begins_the_next_session() {
        assert!(span(0, 5).overlaps(span(4, 5)));
        assert!(!span(0, 5).overlaps(span(5, 5)));
        assert_eq!(span(0, 5).window().to_string(), "[0, 5)");
    }

    #[test]
    fn a_gap_is_one_millisecond_at_least_and_ends_where_time_does() {
        assert_eq!(span(7, 0), Span { start: 7, last: 7 });
        assert_eq!(Span::of(EventTime(7), Duration::from_micros(1_500)), Span { start: 7, last: 8 });
        assert_eq!(Span::of(EventTime(i64::MAX), Duration::MAX), Span { start: i64::MAX, last: i64::MAX });
        assert!(span(i64::MAX, 1).overlaps(span(i64::MAX, 1)));
    }

    #[test]
    fn e16_a_gap_of_nothing_is_named() {
        let error = Session::gap(Duration::ZERO).check::<i64>().unwrap_err().to_string();
        assert!(error.contains("window gap"), "{error}");
        assert_eq!(Session::gap(Duration::from_millis(1)).check::<i64>(), Ok(When::default()));
    }

    #[test]
    fn one_record_may_join_two_sessions() {
        let open = |span| Open { span, acc: (), panes: 0, since: 0, given: false, listed: false, timer: 0 };
        let mut sessions = Sessions::of(open(span(0, 10)));
        sessions.push(open(span(15, 10)));
        assert_eq!(sessions.merged(span(9, 6)), Span { start: 0, last: 14 });
        assert_eq!(sessions.merged(span(9, 7)), Span { start: 0, last: 24 });
        assert_eq!(sessions.merged(span(-5, 5)), Span { start: -5, last: -1 });
        let mut taken = Vec::new();
        assert!(!sessions.take_if(|open| open.span.overlaps(span(9, 7)), &mut taken));
        assert_eq!(taken.len(), 2);
    }
}
