//! The arguments of keyed steps, checked when the job is planned: an argument that makes no sense is named before anything runs.

use std::time::Duration;

/// Why an argument cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// A time that is no whole number of milliseconds, or too long, or too short.
    #[error("{name} is {given:?}: it must be a whole number of milliseconds, from {least} to {}", i64::MAX)]
    Time {
        /// Which argument.
        name: &'static str,
        /// What was given.
        given: Duration,
        /// The least there may be, in ms.
        least: i64,
    },
    /// A number that is 0.
    #[error("{name} is 0: it must be at least 1")]
    Zero {
        /// Which argument.
        name: &'static str,
    },
    /// An interval that ends before it begins.
    #[error(
        "the interval is from {lower} to {upper} ms: its lower bound must not be more than its upper one"
    )]
    Interval {
        /// The lower bound, in ms.
        lower: i64,
        /// The upper bound, in ms.
        upper: i64,
    },
}

/// A time of at least 0 ms.
pub(crate) fn whole_ms(name: &'static str, given: Duration) -> Result<i64, ArgumentError> {
    at_least(0, name, given)
}

/// A time of at least 1 ms.
pub(crate) fn positive_ms(name: &'static str, given: Duration) -> Result<i64, ArgumentError> {
    at_least(1, name, given)
}

fn at_least(least: i64, name: &'static str, given: Duration) -> Result<i64, ArgumentError> {
    let whole = given.subsec_nanos().is_multiple_of(1_000_000).then_some(given.as_millis());
    let ms = whole.and_then(|ms| i64::try_from(ms).ok()).filter(|ms| *ms >= least);
    ms.ok_or(ArgumentError::Time { name, given, least })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e16_what_cannot_be_is_named() {
        assert_eq!(whole_ms("time", Duration::ZERO), Ok(0));
        assert_eq!(positive_ms("within", Duration::from_millis(1)), Ok(1));
        for (error, text) in [
            (
                positive_ms("within", Duration::ZERO),
                "within is 0ns: it must be a whole number of milliseconds, from 1 to",
            ),
            (whole_ms("time", Duration::from_micros(1_500)), "time is 1.5ms"),
            (whole_ms("time", Duration::MAX), "time is "),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }
}
