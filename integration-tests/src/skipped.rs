//! A test that cannot be run on this machine fails, unless it may be skipped: then it says so where nothing hides it.

use std::io::Write;

/// `what` cannot be tested, for the reason given.
///
/// # Panics
/// Unless the environment has `WEIR_MAY_SKIP`: a test that passes because it did nothing promises what nobody has seen.
pub fn skipped(what: &str, why: &str) {
    assert!(
        std::env::var_os("WEIR_MAY_SKIP").is_some(),
        "{what} cannot be tested here: {why}; with WEIR_MAY_SKIP=1 in the environment it is skipped instead"
    );
    // The macros write into what the test runner keeps to itself when a test passes.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what} is not tested: {why}");
}
