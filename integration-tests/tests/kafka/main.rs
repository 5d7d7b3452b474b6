//! Whole jobs against a real Apache Kafka broker: what is written exactly once, whatever happens on the way, and what is read.
//!
//! One broker for all of it, and one test at a time: fail points are the process's.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not see helpers of an integration test"
)]

mod begins;
mod bounded;
mod children;
mod exactly_once;
mod mirror;
mod outages;
mod pressure;
mod profile;
mod reading;
mod refusals;
mod rig;
mod transactions;
mod wide;

// The job of the main example, which is a binary: what is tested is that page itself.
#[allow(dead_code, reason = "the example uses more of it")]
#[path = "../../../examples/src/bin/user_profile/days.rs"]
mod days;
#[allow(dead_code, reason = "the example uses more of it")]
#[path = "../../../examples/src/bin/user_profile/input.rs"]
mod input;
#[allow(dead_code, reason = "the example uses more of it")]
#[path = "../../../examples/src/bin/user_profile/job.rs"]
mod job;
