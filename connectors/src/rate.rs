//! A rate that a source or sink can keep: checked when it opens, so that a bad one is an error and no panic.

use weir_engine::{Result, TaskError};

/// One record in eleven days. What is slower than that is a slip, and its pauses would not fit a clock.
const LEAST: f64 = 1e-6;

/// Checks the records per second asked of `what`.
pub(crate) fn checked(what: &str, records_per_s: f64) -> Result<f64> {
    if records_per_s.is_finite() && records_per_s >= LEAST {
        return Ok(records_per_s);
    }
    Err(TaskError::user(format!(
        "{what} has a rate of {records_per_s:?} records per second: it must be a finite number, from {LEAST} up"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_that_cannot_be_kept_are_named() {
        for bad in [f64::NAN, 0.0, -0.0, -1.0, 1e-300, 5e-324, f64::INFINITY, f64::NEG_INFINITY] {
            let e = checked("the sink", bad).unwrap_err().to_string();
            assert!(e.starts_with(&format!("the sink has a rate of {bad:?} records")), "{e}");
        }
        for good in [LEAST, 0.5, 1e300, f64::MAX] {
            assert_eq!(checked("the sink", good).unwrap(), good);
        }
    }
}
