//! The checkpoint storage as a whole: in memory, in a folder, and with faults.

pub(super) mod support;

mod cycle;
