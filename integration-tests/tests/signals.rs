//! SIGTERM and SIGINT: they drain a job that listens, and end the process as usual when none does any more.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weir_engine::prelude::*;
use weir_engine::testkit::{NullSink, ScriptSource};

/// What the child process does; the test process itself passes it by.
const ROLE: &str = "WEIR_SIGNALS_TEST_ROLE";

#[test]
fn child() {
    match std::env::var(ROLE).as_deref() {
        // A job that ran, and then a program that does something else.
        Ok("after") => {
            let job = Job::named("short").parallelism(1);
            job.source("one", ScriptSource::of([(1, 1)])).without_event_time().sink("null", NullSink);
            job.run().unwrap();
            println!("ready");
            std::thread::park_timeout(Duration::from_secs(60));
        }
        Ok("during") => {
            let job = Job::named("long").parallelism(1);
            job.source("one", ScriptSource::of([(1, 1)]).endless())
                .without_event_time()
                .sink("null", NullSink);
            let running = job.start_with_signals().unwrap();
            println!("ready");
            running.wait().unwrap();
            std::process::exit(7);
        }
        _ => {}
    }
}

fn spawn(role: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Everything up to "ready" has been printed when the job listens, or has ended.
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready") {
        line.clear();
        assert!(
            std::io::BufRead::read_line(&mut out, &mut line).unwrap() > 0,
            "it ended before it was ready"
        );
    }
    child
}

fn end_by(child: &mut Child, signal: &str) -> std::process::ExitStatus {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if began.elapsed() > Duration::from_secs(15) {
            child.kill().unwrap();
            panic!("{signal} did not end it");
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

#[test]
fn signals_end_the_process_again_after_a_job_has_run() {
    for (signal, status) in [("-TERM", 143), ("-INT", 130)] {
        let ended = end_by(&mut spawn("after"), signal);
        assert_eq!((ended.code(), ended.signal()), (Some(status), None));
    }
}

#[test]
fn a_signal_drains_a_job_that_listens() {
    for signal in ["-TERM", "-INT"] {
        assert_eq!(end_by(&mut spawn("during"), signal).code(), Some(7));
    }
}
