//! Whole-job tests and benchmarks of Weir. The library itself only compiles and runs every snippet of the README.

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

pub mod broker;
mod skipped;

pub use skipped::skipped;
