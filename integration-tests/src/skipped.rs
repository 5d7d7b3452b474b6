//! A test that cannot be run on this machine says so where nothing hides it, and fails where it must not be skipped.

use std::io::Write;

/// `what` cannot be tested, for the reason given.
///
/// # Panics
/// When the environment has `WEIR_MAY_SKIP=0`: a test that passes because it did nothing promises what nobody has seen.
pub fn skipped(what: &str, why: &str) {
    assert!(
        std::env::var_os("WEIR_MAY_SKIP").is_none_or(|may| may != "0"),
        "{what} cannot be tested here: {why}; without WEIR_MAY_SKIP=0 in the environment it is skipped instead"
    );
    // The macros write into what the test runner keeps to itself when a test passes.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what} is not tested: {why}");
}
