//! The same job without Kafka: it reads the input itself, survives being killed, and leaves a digest to compare.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use weir_engine::prelude::*;

use crate::input::Input;
use crate::replay::interrupted;
use crate::say::say;
use crate::verify::verify;
use crate::{job, questions};

/// Runs to the end of the input; begins where the last checkpoint was. Says at last what the profile comes to, and whether
/// it equals a plain loop over the input. Interrupted, it ends well and says so.
pub(crate) fn run(shell: Job, input: Input, rate: Option<f64>, out: Option<&Path>) -> anyhow::Result<bool> {
    let input = Arc::new(input);
    let profiles = job::profiles(input.days());
    let running = job::job(shell, input.clone().source(), rate, &profiles, out).start_with_signals()?;
    let report = running.wait().context("the job did not finish")?;
    if interrupted(&running) {
        // There is nothing to compare with before all is read.
        say(format_args!("interrupted, {} lives, {} checkpoints", report.attempts, report.checkpoints))?;
        return Ok(true);
    }
    let questions = questions::questions(&input);
    let verdict = verify(&input, &profiles.reader(), &questions)?;
    verdict.differing.iter().take(10).try_for_each(|line| say(format_args!("differs: {line}")))?;
    say(format_args!("{} lives, {} checkpoints", report.attempts, report.checkpoints))?;
    say(format_args!("digest: {}", profiles.reader().digest().value))?;
    let equal = verdict.asked - verdict.differing.len();
    say(format_args!("verified: {equal} of {} answers equal a plain loop over the input", verdict.asked))?;
    Ok(verdict.differing.is_empty())
}
