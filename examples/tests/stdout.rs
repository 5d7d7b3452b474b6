//! The main example when nobody reads what it says, it cannot be asked what it was, or is told to stop: one error or none, no panic.

use std::process::{Command, Output, Stdio};

fn user_profile(args: &[&str], stdout: Stdio) -> Output {
    let child = Command::new(env!("CARGO_BIN_EXE_user_profile"))
        .args(["--log", "off"])
        .args(args)
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the example starts");
    child.wait_with_output().expect("it ends")
}

fn fails(output: &Output, status: i32, said: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(text.contains(said) && !text.contains("panicked"), "{text}");
}

/// The writing end of a pipe whose reader is gone.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

#[test]
fn a_closed_stdout_is_an_error() {
    for args in [&["--plan", "text"][..], &["--plan", "json"], &[]] {
        fails(&user_profile(args, closed()), 1, "error: cannot write to stdout: Broken pipe");
    }
}

#[test]
fn a_stdout_closed_while_it_runs_ends_it_early() {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(env!("CARGO_BIN_EXE_user_profile"))
        .args(["--log", "off", "--events", "100000000", "--rate", "5000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the example starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    for _ in 0..2 {
        lines.read_line(&mut String::new()).expect("a line");
    }
    drop(lines);
    fails(&child.wait_with_output().expect("it ends"), 1, "error: cannot write to stdout: Broken pipe");
}

#[test]
fn a_full_stdout_is_an_error() {
    let Ok(full) = std::fs::File::create("/dev/full") else { return };
    fails(&user_profile(&["--plan", "dot"], full.into()), 1, "error: cannot write to stdout: No space left");
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let Ok(full) = std::fs::File::create("/dev/full") else { return };
    let output = Command::new(env!("CARGO_BIN_EXE_user_profile"))
        .args(["--direct", "--events", "2000", "--log", "debug"])
        .stderr(full)
        .output()
        .expect("the example starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("verified: "), "{:?}: {said}", output.status);
}

#[test]
fn told_to_stop_it_says_so_and_ends_well() {
    told_to_stop("-TERM", &["--direct"], "interrupted, 1 lives");
    told_to_stop("-INT", &[], "interrupted: ");
}

/// Runs it with `args` until records flow, tells it to stop, and looks for what it says then.
fn told_to_stop(signal: &str, args: &[&str], says: &str) {
    use std::io::{BufRead, BufReader, Read};
    let mut child = Command::new(env!("CARGO_BIN_EXE_user_profile"))
        .args(["--events", "100000000", "--rate", "1000", "--log", "info,weir_engine=debug"])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the example starts");
    let mut log = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("records flow") {
        line.clear();
        assert!(log.read_line(&mut line).expect("a line") > 0, "it ended before it ran");
    }
    let told = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(told.expect("kill").success());
    let mut rest = String::new();
    log.read_to_string(&mut rest).expect("the rest");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(says), "{:?}: {said}{rest}", output.status);
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    for option in ["--partitions", "--parallelism"] {
        for value in ["0", "-1"] {
            let output = user_profile(&[option, value], Stdio::null());
            fails(&output, 2, option);
            fails(&output, 2, &format!("invalid value '{value}'"));
        }
    }
}

#[test]
fn an_error_names_its_cause_once() {
    let output = user_profile(&["--parallelism", "129"], Stdio::null());
    fails(&output, 1, "between 1 and 128");
    assert_eq!(String::from_utf8_lossy(&output.stderr).matches("between 1 and 128").count(), 1);
}
