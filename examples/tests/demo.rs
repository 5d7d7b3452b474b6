//! The examples as a newcomer runs them: the real binaries, their output and exit status.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn run(binary: &str, args: &[&str]) -> Output {
    Command::new(binary).args(args).output().expect("the example starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn last_line(output: &Output) -> String {
    text(&output.stdout).lines().last().unwrap_or_default().to_owned()
}

fn verified(args: &[&str]) -> String {
    let output = run(env!("CARGO_BIN_EXE_user_profile"), args);
    let line = last_line(&output);
    assert!(output.status.success(), "{args:?}: {line}\n{}\n{}", text(&output.stdout), text(&output.stderr));
    line
}

#[test]
fn the_demo_equals_a_plain_loop_at_parallelism_1_2_and_7_ten_times_in_a_row() {
    for _ in 0..10 {
        for parallelism in ["1", "2", "7"] {
            let line = verified(&["--parallelism", parallelism, "--rate", "100000", "--log", "warn"]);
            // 12 segments: count and members; 114 users: the whole row; and how many users there are.
            assert_eq!(line, "verified: 139 of 139 answers equal a plain loop over the input");
        }
    }
}

#[test]
fn generated_events_arrive_in_full() {
    let events = if std::env::var_os("WEIR_SOAK").is_some() { "5000000" } else { "300000" };
    let line = verified(&["--events", events, "--log", "warn"]);
    assert!(
        line.starts_with("verified: ") && line.ends_with("answers equal a plain loop over the input"),
        "{line}"
    );
}

#[test]
fn help_names_every_option() {
    let help = text(&run(env!("CARGO_BIN_EXE_user_profile"), &["--help"]).stdout);
    for option in ["--events", "--parallelism", "--brokers", "--serve", "--log", "--plan"] {
        assert!(help.contains(option), "{option} is missing:\n{help}");
    }
}

#[test]
fn bad_options_are_refused_with_a_reason() {
    let refused = |args: &[&str], reason: &str| {
        let output = run(env!("CARGO_BIN_EXE_user_profile"), args);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{args:?}: {said}");
    };
    refused(&["--events", "0"], "at least 1");
    refused(&["--parallelism", "0"], "--parallelism");
    refused(&["--parallelism", "129"], "between 1 and 128");
    refused(&["--rate", "0"], "positive number");
    refused(&["--file", "/no/such/file"], "/no/such/file");
    refused(&["--serve", "nowhere"], "host:port");
    refused(&["--log", "=="], "log filter");
    refused(&["--brokers", "127.0.0.1:1"], "127.0.0.1:1");
}

/// A running example that is killed when the test is over.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

#[test]
fn it_serves_segments_profiles_metrics_and_plan_and_ends_on_ctrl_c() {
    let address = format!("127.0.0.1:{}", free_port());
    let child = Command::new(env!("CARGO_BIN_EXE_user_profile"))
        .args(["--rate", "100000", "--serve", &address])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the example starts");
    let mut running = Running(child);
    let within = |what: &str, path: &str, wanted: &str| {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let answer = get(&address, path).unwrap_or_default();
            if answer.contains(wanted) {
                return answer;
            }
            assert!(Instant::now() < deadline, "{what}: {wanted:?} not in {answer:?}");
            std::thread::park_timeout(Duration::from_millis(50));
        }
    };
    // 114 users once everything has arrived.
    let all = within("everyone", "/segments/count?q=last_behaviour%20is%20not%20null", "\"count\":114");
    assert!(all.contains("\"version\"") && all.contains("\"age_ms\""), "{all}");
    within("a profile", "/profiles/999477", "\"last_behaviour\":");
    within("members", "/segments/ids?q=buys_total%20%3E=%201&limit=3", "\"ids\":[");
    within("metrics", "/metrics", "weir_task_records_in_total{job=\"user-profile\",task=\"behaviour\"");
    within("process metrics", "/metrics", "process_resident_memory_bytes");
    within("the plan", "/plan", "behaviour:source");
    within("the job", "/job", "\"FINISHED\"");
    assert!(within("an unknown tag", "/segments/count?q=nose%20=%201", "400 Bad Request").contains("nose"));
    within("no condition", "/segments/count", "q is missing");
    within("an unknown user", "/profiles/nobody", "404 Not Found");
    within("an unknown route", "/nothing", "404 Not Found");

    // The job is over before its answers are compared: only then does it wait for Ctrl-C.
    let mut stdout = BufReader::new(running.0.stdout.take().expect("piped"));
    let mut said = String::new();
    while !said.contains("until Ctrl-C") {
        assert!(stdout.read_line(&mut said).expect("text") > 0, "it ended by itself: {said}");
    }
    let interrupted = Command::new("kill").args(["-INT", &running.0.id().to_string()]).status();
    assert!(interrupted.is_ok_and(|s| s.success()));
    let status = running.0.wait().expect("it ends");
    stdout.read_to_string(&mut said).expect("text");
    assert!(status.success(), "{said}");
    assert_eq!(said.lines().last(), Some("verified: 139 of 139 answers equal a plain loop over the input"));
}

#[test]
fn word_count_counts() {
    let output = run(env!("CARGO_BIN_EXE_word_count"), &[]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut lines: Vec<&str> = said.lines().map(str::trim).collect();
    lines.sort_unstable();
    for line in ["4 the", "3 a", "2 of", "2 river", "1 weir"] {
        assert!(lines.contains(&line), "{line:?} is missing: {said}");
    }
    assert_eq!(lines.iter().filter_map(|l| l.split(' ').next()?.parse::<u32>().ok()).sum::<u32>(), 23);
}

#[test]
fn hourly_buys_equals_a_plain_loop_at_any_parallelism() {
    let data = include_str!("../data/user_behavior_10k.csv");
    let mut hours = std::collections::BTreeMap::<i64, u64>::new();
    for row in data.lines().filter(|row| row.contains(",buy,")) {
        let seconds: i64 =
            row.rsplit(',').next().and_then(|s| s.parse().ok()).expect("a row ends in seconds");
        *hours.entry(seconds.div_euclid(3600)).or_default() += 1;
    }
    let expected: Vec<u64> = hours.values().copied().collect();
    for parallelism in ["1", "2", "7"] {
        let output = run(env!("CARGO_BIN_EXE_hourly_buys"), &["--parallelism", parallelism]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
        lines.sort();
        let counts: Vec<u64> =
            lines.iter().filter_map(|l| l.split_whitespace().last()?.parse().ok()).collect();
        assert_eq!(counts, expected, "parallelism {parallelism}");
    }
}

#[test]
fn cumulative_uv_equals_a_plain_loop_at_any_parallelism() {
    let data = include_str!("../data/user_behavior_10k.csv");
    // Ten-minute steps of Shanghai's days, eight hours ahead, with who was there in them.
    let mut steps = std::collections::BTreeMap::<(i64, i64), Vec<&str>>::new();
    for row in data.lines() {
        let fields: Vec<&str> = row.split(',').collect();
        let seconds = 8 * 3600 + fields[4].parse::<i64>().expect("a row ends in seconds");
        let (day, step) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400) / 600);
        steps.entry((day, step)).or_default().push(fields[0]);
    }
    let mut expected = Vec::new();
    let days: std::collections::BTreeSet<i64> = steps.keys().map(|(day, _)| *day).collect();
    for day in days {
        let mut seen = std::collections::HashSet::<&str>::new();
        for step in 0..144 {
            seen.extend(steps.get(&(day, step)).into_iter().flatten());
            if !seen.is_empty() {
                expected.push((format!("{:02}:{:02}", (step + 1) / 6, (step + 1) % 6 * 10), seen.len()));
            }
        }
    }
    for parallelism in ["1", "2", "7"] {
        let output = run(env!("CARGO_BIN_EXE_cumulative_uv"), &["--parallelism", parallelism]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
        lines.sort();
        let got: Vec<(String, usize)> = (lines.iter())
            .filter_map(|line| {
                let mut words = line.split_whitespace().skip(2);
                Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
            })
            .collect();
        assert_eq!(got, expected, "parallelism {parallelism}");
    }
}
