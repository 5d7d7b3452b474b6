//! Counts on their way to the `metrics` facade: once a second, never on the record path. Names: docs/metrics.md.

pub(crate) mod checkpoints;
mod memory;
pub mod process;
mod recorder;

pub use recorder::{install, render};

use metrics::{counter, describe_counter, describe_gauge, gauge};

use crate::memory::{MemoryBudget, Outgrown};
use crate::runtime::stats::{Committed, TaskReading};
use crate::time::Watermark;

/// A counter, and what a task has counted of it.
type Count = (&'static str, fn(&TaskReading) -> u64);

/// What is counted per task.
const COUNTS: [Count; 8] = [
    ("weir_task_records_in_total", |r| r.records_in),
    ("weir_task_batches_in_total", |r| r.batches_in),
    ("weir_task_records_out_total", |r| r.records_out),
    ("weir_task_batches_out_total", |r| r.batches_out),
    ("weir_task_dead_letters_total", |r| r.dead_letters),
    ("weir_task_busy_milliseconds_total", |r| r.busy.as_millis() as u64),
    ("weir_task_idle_milliseconds_total", |r| r.idle.as_millis() as u64),
    ("weir_task_backpressured_milliseconds_total", |r| r.backpressured.as_millis() as u64),
];

/// Publishes the counts of one job's tasks. Tasks count anew in each attempt; what is published only grows.
#[derive(Debug)]
pub(crate) struct Reporter {
    job: String,
    /// Of the attempt at hand.
    last: Vec<TaskReading>,
    outgrown: Outgrown,
}

impl Reporter {
    pub(crate) fn new(job: &str) -> Self {
        describe();
        Reporter { job: job.to_owned(), last: Vec::new(), outgrown: Outgrown::default() }
    }

    pub(crate) fn publish_memory(&mut self, budget: &MemoryBudget) {
        memory::publish(&self.job, budget, &mut self.outgrown);
    }

    pub(crate) fn publish(&mut self, readings: &[TaskReading], now_ms: i64) {
        for reading in readings {
            let labels = [
                ("job", self.job.clone()),
                ("task", reading.task.chain.to_string()),
                ("subtask", reading.task.subtask.to_string()),
            ];
            let last = self.last.iter().find(|l| l.task == reading.task);
            for (name, of) in COUNTS {
                counter!(name, &labels).increment(of(reading).saturating_sub(last.map_or(0, of)));
            }
            let [busy, idle, backpressured] = shares(last, reading);
            gauge!("weir_task_busy_ratio", &labels).set(busy);
            gauge!("weir_task_idle_ratio", &labels).set(idle);
            gauge!("weir_task_backpressured_ratio", &labels).set(backpressured);
            if reading.queue_capacity > 0 {
                let fill = reading.queued as f64 / reading.queue_capacity as f64;
                gauge!("weir_task_channel_fill_ratio", &labels).set(fill);
            }
            if !matches!(reading.watermark, Watermark::MIN | Watermark::MAX) {
                gauge!("weir_task_watermark_milliseconds", &labels).set(reading.watermark.0 as f64);
                gauge!("weir_task_watermark_lag_milliseconds", &labels)
                    .set(now_ms.saturating_sub(reading.watermark.0) as f64);
            }
            for (uid, name, count) in &reading.counters {
                let labels = [
                    ("job", self.job.clone()),
                    ("operator", uid.to_string()),
                    ("subtask", reading.task.subtask.to_string()),
                ];
                let before = last.and_then(|l| l.counters.iter().find(|(u, n, _)| u == uid && n == name));
                let before = before.map_or(0, |(.., count)| *count);
                counter!(format!("weir_{name}_total"), &labels).increment(count.saturating_sub(before));
            }
            if let Some(Committed { uid, subtask, checkpoint: Some(id), .. }) = &reading.committed {
                let labels = [
                    ("job", self.job.clone()),
                    ("operator", uid.to_string()),
                    ("subtask", subtask.to_string()),
                ];
                gauge!("weir_sink_committed_checkpoint", &labels).set(id.0 as f64);
            }
        }
        self.last = readings.to_vec();
    }

    /// The attempt whose tasks were read is over: those of the next count from 0.
    pub(crate) fn attempt_over(&mut self) {
        self.last.clear();
    }
}

/// How the time since the last reading was spent: busy, idle, backpressured; each between 0 and 1.
fn shares(last: Option<&TaskReading>, now: &TaskReading) -> [f64; 3] {
    let parts = |r: &TaskReading| [r.busy, r.idle, r.backpressured].map(|d| d.as_secs_f64());
    let before = last.map_or([0.0; 3], parts);
    let mut spent = parts(now);
    for (part, before) in spent.iter_mut().zip(before) {
        *part = (*part - before).max(0.0);
    }
    let total: f64 = spent.iter().sum();
    if total > 0.0 { spent.map(|s| s / total) } else { [0.0; 3] }
}

fn describe() {
    describe_counter!(
        "weir_task_records_in_total",
        "Records taken from inputs, or from the outside by a source"
    );
    describe_counter!("weir_task_batches_in_total", "Batches taken");
    describe_counter!(
        "weir_task_records_out_total",
        "Records given, once per consumer, or written by a sink"
    );
    describe_counter!("weir_task_batches_out_total", "Batches given");
    describe_counter!(
        "weir_task_dead_letters_total",
        "Records that did not decode, or whose time was refused"
    );
    describe_counter!("weir_task_busy_milliseconds_total", "Time in operators");
    describe_counter!("weir_task_idle_milliseconds_total", "Time waiting for input");
    describe_counter!("weir_task_backpressured_milliseconds_total", "Time waiting for room downstream");
    describe_gauge!("weir_task_busy_ratio", "Share of the last second in operators");
    describe_gauge!("weir_task_idle_ratio", "Share of the last second waiting for input");
    describe_gauge!("weir_task_backpressured_ratio", "Share of the last second waiting for room downstream");
    describe_gauge!("weir_task_channel_fill_ratio", "Elements in the input channels by their capacity");
    describe_gauge!("weir_task_watermark_milliseconds", "Event time reached, ms since the epoch");
    describe_gauge!("weir_task_watermark_lag_milliseconds", "Processing time less event time reached");
    describe_gauge!(
        "weir_sink_committed_checkpoint",
        "The last checkpoint whose part the sink has committed"
    );
    checkpoints::describe();
    process::describe();
    memory::describe();
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ids::TaskId;
    use crate::runtime::stats::TaskStats;

    /// What was read of a task that has taken in so many records.
    fn taken(records: u64) -> Vec<TaskReading> {
        let stats = TaskStats::new(TaskId { chain: "c".into(), subtask: 0 });
        TaskStats::add(&stats.records_in, records);
        let mut reading = stats.reading();
        reading.counters.push(("op".into(), "late_records", records / 10));
        vec![reading]
    }

    #[test]
    fn what_is_published_goes_on_over_a_restart() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            let mut reporter = Reporter::new("j");
            reporter.publish(&taken(100), 0);
            reporter.publish(&taken(150), 0);
            reporter.attempt_over();
            reporter.publish(&taken(20), 0);
            reporter.publish(&taken(30), 0);
        });
        let text = recorder.handle().render();
        for (name, count) in [("weir_task_records_in_total", 180), ("weir_late_records_total", 18)] {
            let line = text.lines().find(|l| l.starts_with(name)).expect(name);
            assert!(line.ends_with(&format!(" {count}")), "{line}");
        }
    }

    #[test]
    fn shares_are_of_the_last_interval() {
        let stats = TaskStats::new(TaskId { chain: "c".into(), subtask: 0 });
        let mut before = stats.reading();
        before.busy = Duration::from_secs(10);
        let mut now = before.clone();
        now.busy += Duration::from_millis(250);
        now.idle += Duration::from_millis(750);
        assert_eq!(shares(Some(&before), &now), [0.25, 0.75, 0.0]);
        assert_eq!(shares(Some(&now), &now), [0.0; 3]);
    }
}
