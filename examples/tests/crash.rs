//! The main example under `kill -9` at random moments: its files and its profile are those of the run that never failed.
//!
//! Every life has another parallelism and another state backend. Ten kills of a job whose records flow; fifty with `WEIR_SOAK`; beside
//! them some of one that is only starting. `WEIR_SEED` repeats a run's choices, not its scheduling.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weir_connectors::file::visible_lines;
use weir_connectors::random::Random;

/// For each kill: more than the longest life reads at [`RATE`], so that the input outlasts the kills.
const EVENTS_PER_KILL: u64 = 12_000;
/// Slow enough to be killed many times on the way.
const RATE: &str = "15000";
/// How long a life may have, in milliseconds from when records flow.
const LONGEST_LIFE: u64 = 750;
/// How long a start may take on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

fn user_profile(events: u64) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_user_profile"));
    command.args(["--direct", "--events", &events.to_string()]);
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

/// A life at [`RATE`]. What it says of itself goes to `said`.
fn live(events: u64, args: &[String], said: &Path) -> Child {
    let mut command = user_profile(events);
    command.args(args).args(["--rate", RATE, "--log", "info"]);
    command.stdout(Stdio::null()).stderr(File::create(said).expect("a file")).spawn().expect("it starts")
}

/// Waits for records to flow; how it ended if it did before.
fn until_records_flow(child: &mut Child, said: &Path) -> Option<ExitStatus> {
    let began = Instant::now();
    loop {
        let ended = child.try_wait().expect("it can be looked at");
        if ended.is_some() || fs::read_to_string(said).unwrap_or_default().contains("records flow") {
            return ended;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "no records flow: {}",
            fs::read_to_string(said).unwrap_or_default()
        );
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// What the run that never failed left.
struct Wanted {
    digest: String,
    lines: Vec<String>,
}

impl Wanted {
    /// One more life reads on to the end: what it leaves in `folder` is this.
    fn assert_left_in(&self, folder: &Path, events: u64, random: &mut Random, seed: u64) {
        let output = user_profile(events)
            .args(life(folder, random))
            .args(["--log", "warn"])
            .output()
            .expect("it starts");
        assert_eq!(digest(&output), self.digest, "seed {seed}: {}", text(&output.stdout));
        let after = visible_lines(folder.join("out")).expect("its files");
        assert!(
            after == self.lines,
            "seed {seed}: {} rows, {} without a failure",
            after.len(),
            self.lines.len()
        );
    }
}

fn survives(kills: u64) {
    let seed = std::env::var("WEIR_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64));
    eprintln!("WEIR_SEED={seed}");
    let folder = tempfile::tempdir().expect("a folder");
    let never_failed = folder.path().join("never-failed");
    let events = kills * EVENTS_PER_KILL;
    let output = user_profile(events)
        .args(["--log", "warn", "--out", &never_failed.display().to_string()])
        .output()
        .expect("it starts");
    let wanted = Wanted { digest: digest(&output), lines: visible_lines(&never_failed).expect("its files") };
    assert!(wanted.lines.len() > 1_000, "{} rows", wanted.lines.len());

    let said = folder.path().join("stderr");
    let mut random = Random::of(seed, 0);
    let (mut made, mut starting, mut rounds) = (0, 0, 0);
    while made < kills {
        rounds += 1;
        let before = made;
        let root = folder.path().join(format!("round-{rounds}"));
        fs::create_dir(&root).expect("a folder");
        while made < kills {
            let args = life(&root, &mut random);
            let mut child = live(events, &args, &said);
            if random.below(4) == 0 {
                // While it starts, or soon after. Not counted: the others are what was promised.
                std::thread::park_timeout(Duration::from_millis(random.below(300)));
                killed(&mut child);
                starting += 1;
                continue;
            }
            let mut ended = until_records_flow(&mut child, &said);
            if ended.is_none() {
                std::thread::park_timeout(Duration::from_millis(random.below(LONGEST_LIFE)));
                ended = child.try_wait().expect("it can be looked at");
            }
            match ended {
                None => {
                    killed(&mut child);
                    made += 1;
                }
                // It came to its end, on a machine that let it live for longer than it was to: that is no kill. To begin from its
                // last checkpoint is a case as well; then the next round begins anew.
                Some(status) => {
                    let said = fs::read_to_string(&said).unwrap_or_default();
                    assert!(
                        status.success(),
                        "after {made} kills of seed {seed}: {status}: {args:?}\n{said}"
                    );
                    break;
                }
            }
        }
        assert!(
            made > before || rounds < 10,
            "seed {seed}: the job comes to its end before it is killed once"
        );
        wanted.assert_left_in(&root, events, &mut random, seed);
    }
    eprintln!("{made} kills of a running job, {starting} of a starting one, {rounds} rounds");
}

#[test]
fn killed_at_random_moments_it_leaves_what_the_run_that_never_failed_left() {
    survives(if std::env::var_os("WEIR_SOAK").is_some() { 50 } else { 10 });
}
