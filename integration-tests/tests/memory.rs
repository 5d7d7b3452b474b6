//! The budget of a process, in processes of their own: what is printed, what is refused, and that full channels keep to it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_engine::memory::{MemoryConfig, Share};
use weir_engine::prelude::*;
use weir_engine::testkit::{NullSink, ScriptSource, until};
use weir_engine::{
    Activity, Operator, OperatorContext, OperatorInfo, Sink, Source, SourceBatch, SourceStatus, SplitId,
    TaskReading, log, metrics,
};

const MIB: u64 = 1 << 20;
/// What a child is to do: its presence makes a child of this program.
const DO: &str = "WEIR_MEMORY_TEST";

/// Runs `what` in a process of its own, begun by `before` (a line of shell).
fn child(what: &str, before: &str) -> Output {
    let me = std::env::current_exe().unwrap();
    let run = format!(
        "{before}\nexec {:?} --exact as_a_child --nocapture --test-threads 1",
        me.display().to_string()
    );
    Command::new("sh").args(["-c", &run]).env(DO, what).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Not a test of its own: what the others run.
#[test]
fn as_a_child() {
    let Ok(what) = std::env::var(DO) else { return };
    log::init("info").unwrap();
    let mut words = what.split(' ');
    let word = words.next().unwrap();
    let number = |word: Option<&str>| word.map(|word| word.parse::<u64>().unwrap());
    let done = match word {
        "small" => small(number(words.next()), 8),
        "deep" => small(None, 4096),
        "full" => full(),
        other => panic!("no such child: {other}"),
    };
    if let Err(e) = done {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}

/// Two tasks, two channels.
fn small(limit: Option<u64>, depth: usize) -> Result<(), JobError> {
    let config = limit.map_or(MemoryConfig::new(), |bytes| MemoryConfig::new().limit(bytes));
    let job = Job::named("small").parallelism(2).channel_depth(depth).memory(config);
    job.source("numbers", ScriptSource::of([(1u64, 0)]))
        .without_event_time()
        .boundary()
        .sink("out", NullSink);
    job.run().map(drop)
}

#[test]
fn a_limit_that_is_too_small_is_refused_with_every_share_and_a_code() {
    let output = child(&format!("small {}", 48 * MIB), "");
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let wanted = [
        "error: memory: job \"small\" needs at least ",
        " of memory and there are 48 MiB (set by the job):\n",
        "\n  base ",
        "\n  channels       5.5 MiB  2 channels × 11 batches × 1024 records × 256 B\n",
        "\n  stacks ",
        "\n  headroom        32 MiB ",
        "\nto change: set MemoryConfig::limit to ",
        "; Job::channel_depth(1) instead of 8, which saves 3.5 MiB; ",
    ];
    for text in wanted {
        assert!(said.contains(text), "{text:?} is not in:\n{said}");
    }
    assert!(!said.contains("deploy "), "nothing was begun:\n{said}");
}

#[test]
fn with_enough_the_table_is_printed_and_the_job_runs() {
    let output = child(&format!("small {}", 512 * MIB), "");
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    let lines: Vec<&str> =
        said.lines().filter_map(|line| line.split_once("memory  ").map(|(_, line)| line)).collect();
    assert!(lines[0].starts_with("512 MiB (set by the job)"), "{said}");
    for (line, share) in lines[1..].iter().zip(["base", "channels", "stacks", "headroom", "threads"]) {
        assert!(line.trim_start().starts_with(share), "{share} comes next in:\n{said}");
    }
    assert!(lines.last().unwrap().contains("4 tasks (numbers 2, out 2), 1 control (the engine), "), "{said}");
    assert!(said.contains("records flow"), "{said}");
}

/// Has a store, and passes on what comes.
#[derive(Clone)]
struct Keeps;

impl Operator<u64> for Keeps {
    type Out = u64;
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        cx.store().map(drop)
    }
    fn process(&mut self, r: Record<u64>, out: &mut impl Collector<u64>) -> Result<()> {
        out.emit(r)
    }
}

/// The only test here whose job runs in this very process: metrics belong to the process.
#[test]
fn shares_and_what_is_measured_are_metrics() {
    metrics::install();
    let config = MemoryConfig::new().limit(512 * MIB);
    let job = Job::named("measured").parallelism(2).state(StateBackend::rocksdb()).memory(config);
    let numbers = job.source("numbers", ScriptSource::of([(1u64, 0)]).endless()).without_event_time();
    numbers.transform(OperatorInfo::stateful("keeps", "kept"), Keeps).sink("out", NullSink);
    let running = job.start().unwrap();
    let flows = || running.tasks().iter().any(|t| t.records_out > 0);
    until(&running, Duration::from_secs(30), "a record", flows);
    for share in [Share::StateCaches, Share::BlockCache, Share::WriteBuffers] {
        assert_eq!(running.memory().used(share), Some(0), "{share}: nothing was put into the stores");
    }
    assert_eq!(running.memory().used(Share::Channels), None, "nobody measures it");
    running.drain(EndKind::Keep);
    running.wait().unwrap();
    assert_eq!(running.memory().used(Share::StateCaches), None, "the stores are closed");
    let text = metrics::render().expect("no other recorder was there");
    let share =
        |what: &str, share: &str| format!("weir_memory_{what}_bytes{{job=\"measured\",share=\"{share}\"}} ");
    let planned = |of: Share| running.memory().plan().bytes(of);
    for of in [Share::Base, Share::Channels, Share::StateCaches, Share::WriteBuffers, Share::Headroom] {
        let line = format!("{}{}\n", share("planned", of.label()), planned(of));
        assert!(text.contains(&line), "{line:?} is not in:\n{text}");
    }
    assert!(
        text.contains(&share("used", "block_cache")) && text.contains(&share("used", "write_buffers")),
        "{text}"
    );
    assert!(text.contains("weir_memory_limit_bytes{job=\"measured\"} 536870912"), "{text}");
}

#[test]
fn a_limit_of_the_shell_is_found() {
    let output = child("small", "ulimit -v 2097152");
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("memory  2 GiB (ulimit -v)"), "{}", said(&output));

    let output = child("deep", "ulimit -v 2097152");
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("there are 2 GiB (ulimit -v)") && said.contains("with ulimit -v; Job::channel_depth("),
        "{said}"
    );
}

/// A cgroup made for this test, where that is allowed. Elsewhere the test fails, unless it may be skipped.
struct Cgroup(PathBuf);

impl Cgroup {
    fn of(bytes: u64) -> Option<Cgroup> {
        let name = format!("weir-memory-test-{}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory").join(&name);
        let v2 = Path::new("/sys/fs/cgroup").join(&name);
        for (folder, file) in [(v1, "memory.limit_in_bytes"), (v2, "memory.max")] {
            if folder.parent().is_some_and(|parent| parent.join("cgroup.procs").exists())
                && std::fs::create_dir(&folder).is_ok()
            {
                let cgroup = Cgroup(folder);
                if std::fs::write(cgroup.0.join(file), bytes.to_string()).is_ok() {
                    return Some(cgroup);
                }
            }
        }
        None
    }

    fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs || exit 77", self.0.display())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_cgroups_limit_is_found_and_full_channels_live_within_it() {
    let Some(cgroup) = Cgroup::of(FULL + 64 * MIB) else {
        return weir_integration_tests::skipped("a cgroup's limit", "no memory cgroup can be made");
    };
    let output = child("small", &cgroup.enter());
    if output.status.code() == Some(77) {
        return weir_integration_tests::skipped("a cgroup's limit", "no process can be moved into a cgroup");
    }
    let text = said(&output);
    let limit = format!("memory  {} MiB (the cgroup's {}/", (FULL >> 20) + 64, cgroup.0.display());
    assert!(output.status.success() && text.contains(&limit), "{limit} is not in:\n{text}");
    let output = child("full", &cgroup.enter());
    assert!(output.status.success(), "{:?}: {}", output.status, said(&output));
}

#[test]
fn full_channels_keep_to_what_was_planned() {
    let output = child("full", "");
    assert!(output.status.success(), "{}", said(&output));
}

/// What the job below is given: a little more than it needs.
const FULL: u64 = 448 * MIB;
/// What each of its records has on the heap.
const PAYLOAD: usize = 1000;

/// Gives records with a payload, as long as anybody takes them.
#[derive(Clone)]
struct Heavy(u64);

impl Source for Heavy {
    type Out = Vec<u8>;
    fn open(&mut self, _: &OperatorContext) -> Result<()> {
        Ok(())
    }
    fn poll(&mut self, out: &mut SourceBatch<Vec<u8>>, _: Duration) -> Result<SourceStatus> {
        while out.room() > 0 {
            self.0 += 1;
            out.push(SplitId(0), vec![self.0 as u8; PAYLOAD], EventTime(self.0 as i64));
        }
        Ok(SourceStatus::More)
    }
}

/// Takes records as fast as they come until it is closed, and then none.
#[derive(Clone)]
struct Gate {
    open: Arc<AtomicBool>,
    cx: Option<OperatorContext>,
}

impl Sink<Vec<u8>> for Gate {
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.cx = Some(cx.clone());
        Ok(())
    }
    fn write(&mut self, batch: &mut Vec<Record<Vec<u8>>>) -> Result<()> {
        batch.clear();
        match &self.cx {
            Some(cx) if !self.open.load(Ordering::Relaxed) => cx.wait(Duration::from_secs(600)),
            _ => Ok(()),
        }
    }
}

/// Lets batches grow to their full size, then stops the sink: every channel fills up with full batches.
fn full() -> Result<(), JobError> {
    let open = Arc::new(AtomicBool::new(true));
    // The allocator's header and rounding are part of what a record takes.
    let config = MemoryConfig::new().limit(FULL).record_bytes(PAYLOAD as u64 + 64);
    let job = Job::named("full").parallelism(2).channel_depth(64).memory(config);
    job.source("heavy", Heavy(0))
        .without_event_time()
        .rebalance()
        .sink("gate", Gate { open: open.clone(), cx: None });
    let planned = job.memory_plan()?;
    let running = job.start()?;
    until(&running, Duration::from_secs(30), "a million records", || {
        running.tasks().iter().map(|t| t.records_out).sum::<u64>() > 1_000_000
    });
    open.store(false, Ordering::Relaxed);
    let stuck = |t: &TaskReading| {
        matches!(t.activity.0, Activity::Blocked(_)) && t.activity.1 > Duration::from_millis(300)
    };
    until(&running, Duration::from_secs(30), "full channels", || running.tasks().iter().all(stuck));
    let now = metrics::process::read().unwrap();
    eprintln!(
        "channels planned {} MiB, resident {} MiB, at most {} MiB of {} MiB; {} threads",
        planned.bytes(Share::Channels) >> 20,
        now.resident_bytes >> 20,
        now.peak_resident_bytes >> 20,
        FULL >> 20,
        now.threads,
    );
    assert!(now.resident_bytes > planned.bytes(Share::Channels) / 2, "they are full");
    assert!(now.peak_resident_bytes <= FULL, "the process keeps to its limit");
    let threads: u64 = planned.threads().iter().map(|group| group.threads).sum();
    assert!(now.threads <= threads, "{} threads, {threads} were planned", now.threads);
    running.cancel();
    assert!(matches!(running.wait(), Err(JobError::Cancelled { .. })));
    Ok(())
}
