//! Faults beyond a kill, under whole jobs: slow, unreliable and full storage, damaged files, jumping clocks, signals, restarts.
//!
//! What each leaves in the end is what the run that never failed leaves. The long forms run with `WEIR_SOAK=1`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod children;
mod clocks;
mod damaged;
mod full_disk;
mod ledger;
mod locals;
mod rescale;
mod restarts;
mod rig;
mod slow_storage;
mod terminated;
mod two_inputs;
mod unreliable;
mod waiting;
