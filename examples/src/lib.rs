//! What every example has in common: its options for parallelism, logs, state and checkpoints.

pub mod options;
