//! A barrier that has come on one of two inputs, and many records behind it: what is restored counts none of those twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use weir_connectors::file::FileSink;
use weir_connectors::generator::Generator;
use weir_engine::prelude::*;
use weir_engine::testkit::until;
use weir_engine::{Activity, Barrier, Closing, Notice, Source, SourceBatch, SourceStatus};
use weir_operators::prelude::*;

use crate::rig::*;

/// Stops in the middle of a poll for as long as it is held: its barrier waits.
#[derive(Clone)]
struct Held<S> {
    source: S,
    hold: Arc<AtomicBool>,
    holds: Arc<AtomicBool>,
    cx: Option<OperatorContext>,
}

impl<S: Source> Source for Held<S> {
    type Out = S::Out;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.cx = Some(cx.clone());
        self.source.open(cx)
    }
    fn poll(&mut self, out: &mut SourceBatch<S::Out>, budget: Duration) -> Result<SourceStatus> {
        while self.hold.load(Ordering::SeqCst) {
            self.holds.store(true, Ordering::SeqCst);
            if let Some(cx) = &self.cx {
                cx.wait(Duration::from_millis(1))?;
            }
        }
        self.source.poll(out, budget)
    }
    fn positions(&mut self, barrier: Barrier) -> Result<Vec<(String, Value)>> {
        self.source.positions(barrier)
    }
    fn on_notice(&mut self, notice: Notice) -> Result<()> {
        self.source.on_notice(notice)
    }
    fn close(&mut self, outcome: Closing) {
        self.source.close(outcome);
    }
}

fn totals_of_two(n: u64, m: u64) -> Vec<String> {
    let second = |line: String| {
        let inner = line.trim_matches(|c| c == '[' || c == ']');
        let (i, total) = inner.split_once(',').unwrap();
        format!("[{},{total}]", i.parse::<u64>().unwrap() + SECOND)
    };
    let mut lines = expected(n);
    lines.extend(expected(m).into_iter().map(second));
    lines.sort();
    lines
}

#[test]
fn e36_what_comes_behind_a_barrier_on_one_input_is_not_in_the_snapshot() {
    let rig = Rig::in_folder("e36");
    let (hold, holds, made) = (Arc::<AtomicBool>::default(), Arc::default(), Arc::<AtomicU64>::default());
    let job = |parallelism: usize, ends: Option<(u64, u64)>, rate: f64| {
        // None but those that are asked for.
        let job = rig.empty_job(parallelism, rig.checkpoints().every(Duration::from_secs(3_600)));
        let made = made.clone();
        let second = Generator::new(2, ends.map(|(_, m)| m), move |i, _| {
            made.fetch_max(i + 1, Ordering::Relaxed);
            ((key(i) + SECOND, i + SECOND), EventTime(i as i64))
        });
        let held =
            Held { source: second.rate(rate), hold: hold.clone(), holds: Arc::clone(&holds), cx: None };
        let second = job.source("held", held).without_event_time();
        job.source("free", numbers(ends.map(|(n, _)| n), 5.0 * rate, &rig.made))
            .without_event_time()
            .union(second)
            .key_by("by-key", |(key, _)| *key)
            .process(TOTALS, Totals)
            .sink("out", FileSink::json_lines(rig.at("out")));
        job
    };
    for round in 0..3 {
        hold.store(false, Ordering::SeqCst);
        holds.store(false, Ordering::SeqCst);
        let running = job(1 + round, None, 10_000.0).start().unwrap();
        until(&running, SOON, "records", || counted(&running) > 3_000);
        hold.store(true, Ordering::SeqCst);
        until(&running, SOON, "an input that holds still", || holds.load(Ordering::SeqCst));
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| running.checkpoint());
            let tasks = || running.tasks().into_iter();
            let waits = || tasks().any(|t| t.aligning.iter().any(|from| from.contains("held")));
            until(&running, SOON, "a barrier on one input", waits);
            // The free one goes on until there is no room, all of it behind its barrier.
            let full = || {
                tasks()
                    .any(|t| t.task.chain.as_str() == "free" && matches!(t.activity.0, Activity::Blocked(_)))
            };
            until(&running, SOON, "many records behind it", full);
            hold.store(false, Ordering::SeqCst);
            asked.join().unwrap().unwrap();
        });
        let record = running.checkpoints().pop().unwrap();
        let held = record.tasks.iter().filter(|t| t.uid == "held");
        assert!(held.clone().count() > 0 && held.clone().all(|t| t.phases.align_ms.is_none()), "{record:?}");
        assert!(held.filter_map(|t| t.phases.trigger_ms).max() > Some(0), "its own trigger: {record:?}");
        cancelled(&running);
    }
    let (n, m) = (rig.enough(), made.load(Ordering::Relaxed) + 1_000);
    finished(job(2, Some((n, m)), 1_000_000.0));
    let (lines, expected) = (rig.lines(), totals_of_two(n, m));
    assert!(lines == expected, "{} lines, expected {}", lines.len(), expected.len());
}
