//! Windows over event time: where they begin and end, and what is computed in them.

mod assign;
mod panes;
mod tumbling;

pub use assign::{TimeWindow, Tumbling, WindowError, days, hours, minutes, seconds};
pub use tumbling::{TumblingAggregate, WindowResult};
