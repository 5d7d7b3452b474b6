//! What a window gives: a key, the bounds, the value, and which of the window's results it is.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::window::TimeWindow;

/// What one key came to in one window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowResult<K, V> {
    /// The key.
    pub key: K,
    /// The window.
    pub window: TimeWindow,
    /// What the aggregate gave.
    pub value: V,
    /// Which result of this key and window it is.
    pub pane: Pane,
}

/// Which of the results that a key has in a window. Without early results and allowed lateness there is one: number 0, on time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pane {
    /// How many results of this key and window came before it.
    pub number: u32,
    /// When it was given.
    pub timing: Timing,
}

impl Pane {
    /// The only result there is of most windows.
    pub const ONLY: Pane = Pane { number: 0, timing: Timing::OnTime };

    /// A result that more will follow.
    pub(crate) fn early(number: u32) -> Self {
        Pane { number, timing: Timing::Early }
    }

    /// The result of a window that is over.
    pub(crate) fn on_time(number: u32) -> Self {
        Pane { number, timing: Timing::OnTime }
    }

    /// A result that corrects an earlier one.
    pub(crate) fn late(number: u32) -> Self {
        Pane { number, timing: Timing::Late }
    }
}

impl fmt::Display for Pane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timing = match self.timing {
            Timing::Early => "early",
            Timing::OnTime => "on time",
            Timing::Late => "late",
        };
        write!(f, "{} ({timing})", self.number)
    }
}

/// When a result was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Timing {
    /// Before the watermark said that the window is over.
    Early,
    /// When it said so.
    OnTime,
    /// After that, because of a late record that was still allowed.
    Late,
}
