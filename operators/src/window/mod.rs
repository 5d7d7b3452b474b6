//! Windows over event time: where they begin and end, and what is computed in them.

mod assign;
mod calendar;
mod count;
mod cuts;
mod firing;
mod giving;
pub(crate) mod held;
mod latest;
#[cfg(test)]
mod model;
mod open_sessions;
mod ops;
mod paned;
mod panes;
mod process;
mod process_count;
mod process_session;
mod process_sliced;
mod result;
mod running;
mod session;
mod session_aggregate;
mod sliced;
mod slices;
mod tumbling;

pub use assign::{TimeWindow, Tumbling, WindowError, days, hours, minutes, seconds};
pub use calendar::Calendar;
pub use count::{CountAggregate, CountWindow, Global};
pub use firing::Firing;
pub use latest::{LatestOps, LatestPerWindow};
pub use ops::{Window, WindowOps, WindowResults};
pub use paned::PanedAggregate;
pub use process::{InWindow, WindowFunction, WindowProcess, WindowProcessOps, WindowProcessed};
pub use process_count::CountProcess;
pub use process_session::{SessionFunction, SessionProcess, SessionProcessOps, SessionProcessed};
pub use process_sliced::SlicedProcess;
pub use result::{Pane, Timing, WindowResult};
pub use session::{FixedGap, Gap, GapBy, Session};
pub use session_aggregate::SessionAggregate;
pub use sliced::SlicedAggregate;
pub use slices::{Cumulate, Sliding};
pub use tumbling::TumblingAggregate;
