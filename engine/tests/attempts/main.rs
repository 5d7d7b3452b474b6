//! The records that attempts at checkpoints leave: who took how long in which phase, who declined, what was missing.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not see helpers of an integration test"
)]

mod busy;
#[path = "../common/mod.rs"]
mod common;
mod refused;
mod rig;
