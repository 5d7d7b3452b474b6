//! Windows without gap or overlap, whatever cuts time: a grid or a calendar; and what a checkpoint says of how they lie.

use std::fmt;
use std::sync::Arc;

use weir_engine::{EventTime, OperatorContext, Result, TaskError};
use weir_state::store::Snapshot;

use crate::window::assign::{Grid, Tumbling};
use crate::window::calendar::{Calendar, Dates};
use crate::window::{TimeWindow, WindowError};

/// What a user wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cutting {
    Tumbling(Tumbling),
    Calendar(Calendar),
}

impl Cutting {
    pub(crate) fn check(&self) -> Result<Cuts, WindowError> {
        Ok(match self {
            Cutting::Tumbling(tumbling) => Cuts::Grid(tumbling.check()?),
            Cutting::Calendar(calendar) => Cuts::Dates(Arc::new(calendar.check()?)),
        })
    }
}

/// Where time is cut.
#[derive(Clone, Debug)]
pub(crate) enum Cuts {
    Grid(Grid),
    Dates(Arc<Dates>),
}

impl Cuts {
    /// The window that `time` is in. Its start tells it from all others.
    pub(crate) fn window_of(&self, time: EventTime) -> TimeWindow {
        match self {
            Cuts::Grid(grid) => grid.window_of(time),
            Cuts::Dates(dates) => dates.window_of(time),
        }
    }

    /// What a checkpoint says of it.
    pub(crate) fn layout(&self) -> Layout {
        match self {
            Cuts::Grid(grid) => {
                vec![("size_ms", Declared::Ms(grid.size())), ("offset_ms", Declared::Ms(grid.offset()))]
            }
            Cuts::Dates(dates) => vec![("calendar", Declared::Text(dates.to_string()))],
        }
    }
}

impl fmt::Display for Cuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cuts::Grid(grid) => write!(f, "windows of {} ms", grid.size()),
            Cuts::Dates(dates) => write!(f, "{dates}"),
        }
    }
}

/// The list of the checkpoint that says how windows lie.
const LIST: &str = "window";

/// How windows lie, by name.
pub(crate) type Layout = Vec<(&'static str, Declared)>;

/// What is said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    Ms(i64),
    /// What was kept must be at least as much.
    AtMost(i64),
    Text(String),
}

/// Adds to the checkpoint how windows lie.
pub(crate) fn keep_layout(layout: &Layout, into: &mut Snapshot) {
    for (name, declared) in layout {
        match declared {
            Declared::Ms(ms) | Declared::AtMost(ms) => into.item(LIST, *name, (*ms).into()),
            Declared::Text(text) => into.item(LIST, *name, text.as_str().into()),
        }
    }
}

/// What was open at the checkpoint from `start` on must lie as windows do now.
///
/// # Errors
/// It does not.
pub(crate) fn check_kept(cx: &OperatorContext, layout: &Layout, start: i64) -> Result<()> {
    for item in cx.restored(LIST) {
        let declared = layout.iter().find(|(name, _)| *name == item.key).map(|(_, declared)| declared);
        let (same, now) = match declared {
            Some(Declared::Ms(ms)) => (item.value.as_i64() == Some(*ms), ms.to_string()),
            Some(Declared::AtMost(ms)) => {
                (item.value.as_i64().is_some_and(|kept| kept >= *ms), ms.to_string())
            }
            Some(Declared::Text(text)) => (item.value.as_str() == Some(text.as_str()), text.clone()),
            None => (false, "no such thing".to_owned()),
        };
        if !same {
            return Err(TaskError::user(format!(
                "the checkpoint has an open window from {start} with {} = {}, the job declares {now}: declare it as it was \
                 until that window is over, or give the operator another uid and drop the state of this one",
                item.key, item.value
            )));
        }
    }
    Ok(())
}

/// A window that was open at the checkpoint must begin where one begins now: a calendar of the same name may have had other rules.
///
/// # Errors
/// It does not.
pub(crate) fn check_start(cx: &OperatorContext, cuts: &Cuts, start: i64) -> Result<()> {
    let now = cuts.window_of(EventTime(start));
    if now.start.0 == start {
        return Ok(());
    }
    Err(TaskError::user(format!(
        "the checkpoint of {} has an open window that begins at {start} ({cuts}), where by the rules of this machine one goes from {} to \
         {}: the time zone's rules were others when it was opened. Run with the time zone database of then until that window is \
         over, or give the operator another uid and drop the state of this one",
        cx.uid(),
        now.start.0,
        now.end.0
    )))
}
