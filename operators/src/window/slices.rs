//! Windows made of slices: which slice a time is in, which windows a slice is in, and when these are over. Pure arithmetic.
//! (over 400 lines: two kinds of windows, each with what users may say of it)
//!
//! Boundaries are `i128`, so that nothing overflows near the ends of `i64`; what is given is cut there.

use std::time::Duration;

use weir_engine::{EventTime, Watermark};

use crate::window::assign::{Grid, Offset, checked_ms, whole_ms};
use crate::window::cuts::{Declared, Layout};
use crate::window::{TimeWindow, WindowError};

/// Windows of one size that begin every so often and overlap: each record is in several, and counted in each.
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
/// # let job = weir_engine::Job::named("doc").parallelism(1);
/// # let clicks = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
/// clicks.key_by("by-user", |user| *user)
///     .window(Sliding::of(days(7)).every(hours(1)).emit_when_emptied())
///     .aggregate("clicks-7d", count())
///     .sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sliding {
    size: Duration,
    slide: Option<Duration>,
    offset: Offset,
    lateness: Duration,
    emptied: bool,
}

impl Sliding {
    /// Windows of this size: a whole, positive number of milliseconds, like everything here. Anything else fails the start
    /// of the job.
    pub fn of(size: Duration) -> Self {
        Sliding { size, slide: None, offset: Offset::NONE, lateness: Duration::ZERO, emptied: false }
    }

    /// One begins this often; not less often than they are long. The greatest common divisor of both is the length of a
    /// slice: cheap when the size is a multiple of this.
    #[must_use]
    pub fn every(mut self, slide: Duration) -> Self {
        self.slide = Some(slide);
        self
    }

    /// Every window begins this much later; less than the slide.
    #[must_use]
    pub fn offset(mut self, later: Duration) -> Self {
        self.offset = Offset::Later(later);
        self
    }

    /// Every window begins this many milliseconds later, or earlier when negative; nearer to 0 than the slide.
    #[must_use]
    pub fn offset_ms(mut self, later: i64) -> Self {
        self.offset = Offset::Ms(later);
        self
    }

    /// Keeps windows for this long after they are over, in event time: a late record within it changes them, and each
    /// gives a new result at once.
    #[must_use]
    pub fn allow_lateness(mut self, lateness: Duration) -> Self {
        self.lateness = lateness;
        self
    }

    /// Gives the result of no records for a key that has none in a window, but had some in the one before: a count of 0,
    /// say, so that who keeps the results hears of it.
    #[must_use]
    pub fn emit_when_emptied(mut self) -> Self {
        self.emptied = true;
        self
    }

    /// Late records give windows again.
    pub(crate) fn gives_updates(&self) -> bool {
        !self.lateness.is_zero()
    }

    pub(crate) fn check(&self) -> Result<Slicing, WindowError> {
        let size = whole_ms(self.size).filter(|ms| *ms > 0).ok_or(WindowError::Size { size: self.size })?;
        let slide = self.slide.map_or(Ok(size), |slide| checked_ms("slide", slide, 1))?;
        if slide > size {
            let slide = Duration::from_millis(slide.unsigned_abs());
            return Err(WindowError::Slide { slide, size: self.size });
        }
        let offset = self.offset.check(slide)?;
        Ok(Slicing {
            kind: Kind::Sliding,
            size: size.into(),
            step: slide.into(),
            offset: offset.into(),
            slices: Grid::new(gcd(size, slide), offset),
            lateness: checked_ms("lateness", self.lateness, 0)?.into(),
            emptied: self.emptied,
        })
    }
}

/// Windows that grow step by step up to a size, then begin anew: the users seen since midnight, every ten minutes.
///
/// A result is given at every step for each key that has anything in the window so far; the last one covers all of it.
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
/// # let job = weir_engine::Job::named("doc").parallelism(1);
/// # let clicks = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
/// // Days begin at midnight in a zone eight hours ahead of UTC.
/// clicks.key_by("by-user", |user| *user)
///     .window(Cumulate::of(days(1)).every(minutes(10)).offset_ms(-8 * 3_600_000))
///     .aggregate("clicks-today", count())
///     .sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cumulate {
    size: Duration,
    step: Option<Duration>,
    offset: Offset,
    lateness: Duration,
}

impl Cumulate {
    /// Windows that grow up to this size: a whole, positive number of milliseconds, like everything here. Anything else
    /// fails the start of the job.
    pub fn of(size: Duration) -> Self {
        Cumulate { size, step: None, offset: Offset::NONE, lateness: Duration::ZERO }
    }

    /// How much they grow at a time; the size is a multiple of it.
    #[must_use]
    pub fn every(mut self, step: Duration) -> Self {
        self.step = Some(step);
        self
    }

    /// Every window begins this much later; less than the size.
    #[must_use]
    pub fn offset(mut self, later: Duration) -> Self {
        self.offset = Offset::Later(later);
        self
    }

    /// Every window begins this many milliseconds later, or earlier when negative; nearer to 0 than the size.
    #[must_use]
    pub fn offset_ms(mut self, later: i64) -> Self {
        self.offset = Offset::Ms(later);
        self
    }

    /// As [`Sliding::allow_lateness`].
    #[must_use]
    pub fn allow_lateness(mut self, lateness: Duration) -> Self {
        self.lateness = lateness;
        self
    }

    /// Late records give windows again.
    pub(crate) fn gives_updates(&self) -> bool {
        !self.lateness.is_zero()
    }

    pub(crate) fn check(&self) -> Result<Slicing, WindowError> {
        let size = whole_ms(self.size).filter(|ms| *ms > 0).ok_or(WindowError::Size { size: self.size })?;
        let step = self.step.map_or(Ok(size), |step| checked_ms("step", step, 1))?;
        if size % step != 0 {
            let step = Duration::from_millis(step.unsigned_abs());
            return Err(WindowError::Step { step, size: self.size });
        }
        let offset = self.offset.check(size)?;
        Ok(Slicing {
            kind: Kind::Cumulate,
            size: size.into(),
            step: step.into(),
            offset: offset.into(),
            slices: Grid::new(step, offset),
            lateness: checked_ms("lateness", self.lateness, 0)?.into(),
            emptied: false,
        })
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sliding,
    Cumulate,
}

/// Checked windows over slices. Every boundary of a window is one of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slicing {
    kind: Kind,
    size: i128,
    /// From the end of one window to that of the next.
    step: i128,
    offset: i128,
    slices: Grid,
    lateness: i128,
    emptied: bool,
}

impl Slicing {
    pub(crate) fn slices(&self) -> Grid {
        self.slices
    }

    /// What it has taken in stays until the window begins anew.
    pub(crate) fn cumulates(&self) -> bool {
        self.kind == Kind::Cumulate
    }

    /// Windows are kept after they are over.
    pub(crate) fn is_lenient(&self) -> bool {
        self.lateness > 0
    }

    /// How many windows a record is in.
    pub(crate) fn windows_each(&self) -> usize {
        usize::try_from(self.size.div_euclid(self.step)).unwrap_or(usize::MAX)
    }

    /// Nothing is asked for that a function does not do which processes the records.
    pub(crate) fn is_plain(&self) -> Result<(), WindowError> {
        match self {
            Slicing { lateness: 1.., .. } => Err(WindowError::NotProcessed { name: "allow_lateness" }),
            Slicing { emptied: true, .. } => Err(WindowError::NotProcessed { name: "emit_when_emptied" }),
            _ => Ok(()),
        }
    }

    pub(crate) fn tells_emptied(&self) -> bool {
        self.emptied
    }

    pub(crate) fn layout(&self) -> Layout {
        let [size, step, offset, slice] =
            [self.size, self.step, self.offset, self.slices.size().into()].map(|ms| Declared::Ms(cut(ms)));
        let kept = Declared::AtMost(cut(self.lateness));
        let kind = match self.kind {
            Kind::Sliding => "sliding",
            Kind::Cumulate => "cumulating",
        };
        vec![
            ("kind", Declared::Text(kind.to_owned())),
            ("size_ms", size),
            ("step_ms", step),
            ("offset_ms", offset),
            ("slice_ms", slice),
            ("lateness_ms", kept),
        ]
    }

    /// The end of some window.
    fn phase(&self) -> i128 {
        match self.kind {
            Kind::Sliding => self.offset + self.size,
            Kind::Cumulate => self.offset,
        }
    }

    /// The last end of a window at or before `time`.
    fn last_end_by(&self, time: i128) -> i128 {
        time - (time - self.phase()).rem_euclid(self.step)
    }

    /// The end of the first window that `time` is in.
    pub(crate) fn first_end(&self, time: i128) -> i128 {
        self.last_end_by(time) + self.step
    }

    /// The end of the last window that `time` is in.
    pub(crate) fn last_end(&self, time: i128) -> i128 {
        let period = match self.kind {
            Kind::Sliding => self.step,
            Kind::Cumulate => self.size,
        };
        time - (time - self.offset).rem_euclid(period) + self.size
    }

    /// The end of the window after the one that ends at `end`.
    pub(crate) fn next_end(&self, end: i128) -> i128 {
        end + self.step
    }

    /// Where the window that ends at `end` begins.
    pub(crate) fn begin(&self, end: i128) -> i128 {
        match self.kind {
            Kind::Sliding => end - self.size,
            Kind::Cumulate => end - 1 - (end - 1 - self.offset).rem_euclid(self.size),
        }
    }

    /// The window that ends there.
    pub(crate) fn window(&self, end: i128) -> TimeWindow {
        TimeWindow { start: EventTime(cut(self.begin(end))), end: EventTime(cut(end)) }
    }

    /// The window that ends there is over.
    pub(crate) fn is_over(&self, end: i128, watermark: Watermark) -> bool {
        cut(end - 1) <= watermark.0
    }

    /// The window that ends there is over, and changes no more.
    pub(crate) fn is_forgotten(&self, end: i128, watermark: Watermark) -> bool {
        cut(end - 1 + self.lateness) <= watermark.0
    }

    /// Where the last window ends that is over.
    pub(crate) fn position(&self, watermark: Watermark) -> i128 {
        self.last_end_by(i128::from(watermark.0) + 1)
    }
}

/// The nearest that there is in `i64`.
pub(crate) fn cut(ms: i128) -> i64 {
    ms.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// `(start, end)` of all windows that a time is in.
    fn windows(slicing: Slicing, time: i64) -> Vec<(i128, i128)> {
        let slice = slicing.slices().window_of(EventTime(time)).start.0.into();
        let (mut end, last) = (slicing.first_end(slice), slicing.last_end(slice));
        let mut windows = Vec::new();
        while end <= last {
            windows.push((slicing.begin(end), end));
            end = slicing.next_end(end);
        }
        windows
    }

    #[test]
    fn e14_no_window_that_begins_after_a_time_has_it() {
        let sliding = Sliding::of(ms(10)).every(ms(5)).check().unwrap();
        assert_eq!(windows(sliding, 4), [(-5, 5), (0, 10)]);
        assert_eq!(windows(sliding, 5), [(0, 10), (5, 15)]);
        assert_eq!(windows(sliding, -1), [(-10, 0), (-5, 5)]);
        let uneven = Sliding::of(ms(10)).every(ms(4)).offset(ms(1)).check().unwrap();
        assert_eq!(windows(uneven, 0), [(-7, 3), (-3, 7)]);
        assert_eq!(windows(uneven, 2), [(-7, 3), (-3, 7), (1, 11)]);
        assert_eq!(uneven.slices().size(), 2);
    }

    #[test]
    fn a_cumulating_window_grows_from_its_start() {
        let days = Cumulate::of(ms(30)).every(ms(10)).offset_ms(-5).check().unwrap();
        assert_eq!(windows(days, -5), [(-5, 5), (-5, 15), (-5, 25)]);
        assert_eq!(windows(days, 14), [(-5, 15), (-5, 25)]);
        assert_eq!(windows(days, 24), [(-5, 25)]);
        assert_eq!(windows(days, 25), [(25, 35), (25, 45), (25, 55)]);
    }

    #[test]
    fn e16_parameters_that_cannot_be_are_named() {
        let sliding = |size, slide| Sliding::of(ms(size)).every(ms(slide)).check().unwrap_err().to_string();
        assert!(sliding(0, 1).contains("window size"));
        assert!(sliding(1, 0).contains("window slide"));
        assert!(sliding(1, 2).contains("window slide"));
        let cumulate = |size, step| Cumulate::of(ms(size)).every(ms(step)).check().unwrap_err().to_string();
        assert!(cumulate(0, 1).contains("window size"));
        assert!(cumulate(10, 0).contains("window step"));
        assert!(cumulate(10, 3).contains("window step"));
        assert!(Sliding::of(ms(10)).every(ms(5)).offset_ms(5).check().is_err());
        assert!(Cumulate::of(ms(10)).every(ms(5)).offset_ms(5).check().is_ok());
        let late = Sliding::of(ms(10)).allow_lateness(Duration::from_micros(1)).check().unwrap_err();
        assert!(late.to_string().contains("window lateness"));
    }

    proptest! {
        #[test]
        fn windows_of_a_time_are_those_around_it(
            time in any::<i64>(), size in 1i64..200, step in 1i64..200, offset in -200i64..200, cumulates in any::<bool>()
        ) {
            let step = if cumulates { size } else { step.min(size) };
            let size = if cumulates { size * 7 } else { size };
            let slicing = if cumulates {
                let (size, step) = (ms(size as u64), ms(step as u64));
                Cumulate::of(size).every(step).offset_ms(offset % size.as_millis() as i64).check().unwrap()
            } else {
                Sliding::of(ms(size as u64)).every(ms(step as u64)).offset_ms(offset % step).check().unwrap()
            };
            let windows = windows(slicing, time);
            prop_assert!(!windows.is_empty());
            for (begin, end) in &windows {
                // A slice that is cut at the least time there is begins there.
                prop_assert!(*begin <= time.into() && i128::from(time) < *end);
                prop_assert!(end - begin <= size.into());
            }
            let (first, last) = (windows[0].1, windows[windows.len() - 1].1);
            prop_assert!(first - i128::from(step) <= time.into(), "an earlier one had it too");
            let after = slicing.next_end(last);
            prop_assert!(slicing.begin(after) > time.into());
            prop_assert!(slicing.is_over(slicing.position(Watermark(time)), Watermark(time)));
            prop_assert!(time == i64::MAX || !slicing.is_over(slicing.next_end(slicing.position(Watermark(time))), Watermark(time)));
        }
    }
}
