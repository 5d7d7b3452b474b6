//! Tests of the profile index as a whole.

mod claims;
mod concurrency;
mod damage;
mod incremental;
mod large;
mod model;
mod order;
mod questions;
mod rig;
mod survive;
