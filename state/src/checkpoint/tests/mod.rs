//! The checkpoint storage as a whole: in memory, in a folder, and with faults.

pub(super) mod support;

mod attempts;
mod cycle;
mod damage;
mod faults;
mod places;
mod savepoints;
