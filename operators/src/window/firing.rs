//! When a window gives results: once it is over, and before and after that if asked to.

use std::time::Duration;

use crate::window::WindowError;
use crate::window::cuts::{Cuts, Cutting};
use crate::window::giving::{Giving, When};

/// A tumbling or calendar window that gives more than one result, each with its [`Pane`](crate::window::Pane):
///
/// * *early* ones, after every so many records of a key, or so long after something new has come;
/// * one *on time*, when the watermark says that the window is over;
/// * *late* ones, at each late record within the allowed lateness.
///
/// Unless it is told to discard, each covers everything so far, so that the newest replaces the others; the on-time one is given
/// though nothing has come since the last early one. Who adds results up must not add these: it is the last of a window
/// that counts.
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_engine::testkit::{NullSink, ScriptSource, run_within};
/// # let job = weir_engine::Job::named("doc").parallelism(1);
/// # let clicks = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(weir_engine::Watermarks::monotonic());
/// clicks.key_by("by-user", |user| *user)
///     .window(Tumbling::of(hours(1)).early_after(seconds(10)).allow_lateness(minutes(5)))
///     .aggregate("hourly", count())
///     .map(|w| format!("{} clicked {} times in {}, result {}", w.key, w.value, w.window, w.pane))
///     .sink("out", NullSink);
/// # run_within(job, seconds(30)).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firing {
    window: Cutting,
    giving: Giving,
}

impl Firing {
    pub(crate) fn of(window: Cutting) -> Self {
        Firing { window, giving: Giving::default() }
    }

    /// Keeps windows for this long after they are over, in event time, and gives a new result for each late record within it.
    #[must_use]
    pub fn allow_lateness(mut self, lateness: Duration) -> Self {
        self.giving.lateness = lateness;
        self
    }

    /// Gives a result of a key and window after every `records` of it that came since its last result.
    #[must_use]
    pub fn early_every(mut self, records: u32) -> Self {
        self.giving.every = Some(records);
        self
    }

    /// Gives results this long, by the job's clock, after something new has come: of every key and window that has anything
    /// new by then. What depends on the clock comes out otherwise when records are processed again after a failure; the
    /// on-time and late results do not.
    #[must_use]
    pub fn early_after(mut self, time: Duration) -> Self {
        self.giving.after = Some(time);
        self
    }

    /// Each result covers only what has come since the one before, so that they add up to the whole. There is none, on time
    /// either, when nothing has come since.
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

    pub(crate) fn check(&self) -> Result<Rules, WindowError> {
        let (cuts, When { lateness, every, after, discards }) = (self.window.check()?, self.giving.check()?);
        Ok(Rules { cuts, lateness, every, after, discards })
    }
}

/// A [`Firing`] that was checked.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) cuts: Cuts,
    pub(crate) lateness: i64,
    pub(crate) every: u32,
    pub(crate) after: Option<i64>,
    pub(crate) discards: bool,
}
