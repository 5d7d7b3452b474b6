//! Whole-job tests and benchmarks of Weir; this library holds nothing but what several of them share.
