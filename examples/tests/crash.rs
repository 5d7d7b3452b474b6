//! The main example under `kill -9` at random moments: its files and its profile are those of the run that never failed.
//!
//! Every life has another parallelism and another state backend. Ten kills; fifty with `WEIR_SOAK`. `WEIR_SEED` repeats a run's
//! choices, not its scheduling.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_connectors::file::visible_lines;
use weir_connectors::random::Random;

const EVENTS: &str = "120000";
/// Slow enough to be killed many times on the way.
const RATE: &str = "20000";

fn user_profile(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_user_profile"));
    command.args(["--direct", "--events", EVENTS, "--log", "warn"]).args(args);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a run that came to its end says of the profile.
fn digest(output: &Output) -> String {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.lines().any(|l| l.starts_with("verified: ")), "{out}\n{err}");
    out.lines().find_map(|l| l.strip_prefix("digest: ")).unwrap_or_else(|| panic!("{out}\n{err}")).to_owned()
}

fn killed(child: &mut Child) {
    // SIGKILL: nothing of the process gets to run any more.
    child.kill().expect("it can be killed");
    child.wait().expect("it is gone");
}

/// The arguments of one life.
fn life(folder: &Path, random: &mut Random) -> Vec<String> {
    let at = |name: &str| folder.join(name).display().to_string();
    let parallelism = (1 + random.below(3)).to_string();
    let state = if random.below(2) == 0 { "memory" } else { "rocksdb" };
    [
        "--parallelism",
        &parallelism,
        "--state",
        state,
        "--out",
        &at("out"),
        "--checkpoints",
        &at("checkpoints"),
    ]
    .into_iter()
    .chain(["--state-folder", &at("state"), "--checkpoint-every", "100", "--forgive-restarts"])
    .map(str::to_owned)
    .collect()
}

fn survives(kills: u64) {
    let seed = std::env::var("WEIR_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64));
    eprintln!("WEIR_SEED={seed}");
    let folder = tempfile::tempdir().expect("a folder");
    let never_failed = folder.path().join("never-failed");
    let output = user_profile(&["--out", &never_failed.display().to_string()]).output().expect("it starts");
    let (wanted, lines) = (digest(&output), visible_lines(&never_failed).expect("its files"));
    assert!(lines.len() > 1_000, "{} rows", lines.len());

    let said = folder.path().join("stderr");
    let mut random = Random::of(seed, 0);
    let (mut made, mut ended) = (0, 0);
    while made < kills {
        let args = life(folder.path(), &mut random);
        let mut child = user_profile(&[])
            .args(&args)
            .args(["--rate", RATE])
            .stdout(Stdio::null())
            .stderr(File::create(&said).expect("a file"))
            .spawn()
            .expect("it starts");
        std::thread::park_timeout(Duration::from_millis(100 + random.below(900)));
        match child.try_wait().expect("it can be looked at") {
            None => killed(&mut child),
            // It came to its end: its last checkpoint is complete, and to begin from that is a case as well.
            Some(status) => {
                ended += 1;
                let said = fs::read_to_string(&said).unwrap_or_default();
                assert!(status.success(), "life {made} of seed {seed} ended with {status}: {args:?}\n{said}");
            }
        }
        made += 1;
    }
    let args = life(folder.path(), &mut random);
    let output = user_profile(&[]).args(&args).output().expect("it starts");
    assert_eq!(digest(&output), wanted, "seed {seed}: {}", text(&output.stdout));
    let after = visible_lines(folder.path().join("out")).expect("its files");
    assert!(after == lines, "seed {seed}: {} rows, {} without a failure", after.len(), lines.len());
    assert!(ended * 2 < kills, "{ended} of {kills} lives came to their end: too short to be killed");
}

#[test]
fn killed_at_random_moments_it_leaves_what_the_run_that_never_failed_left() {
    survives(if std::env::var_os("WEIR_SOAK").is_some() { 50 } else { 10 });
}
