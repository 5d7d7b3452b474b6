//! A job whose process dies again and again: after so many deaths it refuses to start, says why, and goes on once that is lifted.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use weir_engine::prelude::*;
use weir_engine::testkit::{run_within, until};

use crate::children::child as process;
use crate::rig::*;

/// How many deaths the job may have, within an hour.
const DEATHS: u32 = 3;
const NAME: &str = "ledger";
const THERE: &str = "a checkpoint is complete";

fn checkpoints(rig: &Rig) -> Checkpoints {
    rig.checkpoints().restarts_of_process(DEATHS, Duration::from_secs(3_600))
}

/// Lives until it is killed, or until it is refused.
pub(crate) fn child(folder: PathBuf) {
    let rig = Rig::at_path(NAME, folder);
    let job = rig.job(2, None, 5_000.0, checkpoints(&rig)).start().unwrap();
    let complete = || job.is_over() || newest(&job) > 0;
    until(&job, SOON, "a checkpoint", complete);
    if !job.is_over() {
        println!("{THERE}");
    }
    if let Err(e) = job.wait() {
        println!("{e}");
        std::process::exit(1);
    }
}

/// What one life says of itself, killed as soon as it has a checkpoint.
fn life(rig: &Rig) -> String {
    let mut child = process(NAME, &rig.at("")).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    while out.read_line(&mut said).unwrap() > 0 {
        if said.lines().any(|line| line.ends_with(THERE)) {
            // SIGKILL.
            child.kill().unwrap();
            break;
        }
    }
    child.wait().unwrap();
    said
}

#[test]
fn a_process_that_has_died_too_often_is_refused_until_that_is_lifted() {
    let rig = Rig::in_folder(NAME);
    for death in 1..=DEATHS {
        let said = life(&rig);
        assert!(said.contains(THERE), "death {death}: {said}");
    }
    // A refusal is no death: the next one is refused for the same reason.
    for _ in 0..2 {
        let said = life(&rig);
        let wanted = [
            format!("job '{NAME}' is not started: its process died {DEATHS} times within 60 min"),
            format!("(limit {DEATHS})"),
            "find out from its logs why it dies".to_owned(),
            "(Checkpoints::forgive_restarts, or --forgive-restarts)".to_owned(),
        ];
        assert!(wanted.iter().all(|text| said.contains(text)) && !said.contains(THERE), "{said}");
    }
    let output = rig.lines().len();
    let forgiven = checkpoints(&rig).forgive_restarts(true);
    let job = rig.job(1, None, 50_000.0, forgiven).start().unwrap();
    until(&job, SOON, "more output", || rig.lines().len() > output);
    cancelled(&job);
    let n = rig.enough();
    // Forgiven is forgotten: it starts without being told so again, and what is there is exact.
    run_within(rig.job(2, Some(n), 1_000_000.0, checkpoints(&rig)), SOON).unwrap();
    rig.assert_exact(n);
}
