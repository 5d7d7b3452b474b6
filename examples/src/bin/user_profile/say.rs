//! Says things to people: what cannot be said is an error and no panic, and an error names every cause once.

use std::fmt::Display;
use std::io::{Write, stderr, stdout};

use anyhow::{Context, Result};

/// Writes a line to stdout at once.
pub(crate) fn say(line: impl Display) -> Result<()> {
    say_to(&mut stdout().lock(), line)
}

fn say_to(out: &mut impl Write, line: impl Display) -> Result<()> {
    writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot write to stdout")
}

/// Writes the error that ends the program to stderr; when that is closed too, the exit status has to do.
pub(crate) fn complain(error: &anyhow::Error) {
    let _ = writeln!(stderr().lock(), "error: {}", told_once(error));
}

/// The error and its causes, each after a colon, but for those that the text so far contains: many errors repeat their
/// cause in their own words.
fn told_once(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("nobody reads"))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        let error = say_to(&mut Closed, "hello").expect_err("it is closed");
        assert_eq!(told_once(&error), "cannot write to stdout: nobody reads");
        let mut out = Vec::new();
        assert!(say_to(&mut out, format_args!("{} of {}", 1, 2)).is_ok());
        assert_eq!(out, b"1 of 2\n");
    }

    #[test]
    fn a_cause_is_told_once() {
        let cause = std::io::Error::other("X");
        let error = anyhow::Error::new(cause).context("plan: X").context("it did not start");
        assert_eq!(format!("{error:#}"), "it did not start: plan: X: X");
        assert_eq!(told_once(&error), "it did not start: plan: X");
    }
}
