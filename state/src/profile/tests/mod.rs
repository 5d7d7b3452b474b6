//! Tests of the profile index as a whole.

mod bins;
mod cases;
mod claims;
mod concurrency;
mod damage;
mod define;
mod explained;
mod golden;
mod incremental;
mod large;
mod model;
mod order;
mod questions;
mod rig;
mod survive;
mod trees;
mod types;
mod writes;
