//! Tests of the profile index as a whole.

mod claims;
mod concurrency;
mod large;
mod model;
mod order;
mod questions;
mod rig;
mod survive;
mod damage;
mod incremental;
