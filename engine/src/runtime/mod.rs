//! The task runtime: everything between a checked plan and running threads.

pub(crate) mod actor;
pub(crate) mod address;
pub(crate) mod align;
pub(crate) mod batch_size;
pub(crate) mod calls;
pub(crate) mod channel;
#[cfg(feature = "explore")]
mod channel_explore;
pub(crate) mod drift;
pub(crate) mod edge;
pub(crate) mod exchange;
pub(crate) mod frontier;
pub(crate) mod gate;
pub(crate) mod input;
pub(crate) mod inputs;
pub(crate) mod latch;
pub(crate) mod mail;
pub(crate) mod pace;
pub(crate) mod pump;
pub(crate) mod reading_time;
pub(crate) mod refusals;
pub(crate) mod silence;
pub(crate) mod source_input;
pub(crate) mod stats;
pub(crate) mod sync;
pub(crate) mod task;
pub(crate) mod time_keeper;
pub(crate) mod timestamps;
