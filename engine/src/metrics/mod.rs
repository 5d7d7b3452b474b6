//! Counts on their way to the `metrics` facade: once a second, never on the record path. Names: docs/metrics.md.

pub(crate) mod checkpoints;
mod memory;
pub mod process;
mod recorder;

pub use recorder::{install, render};

use metrics::{counter, describe_counter, describe_gauge, gauge};

use crate::memory::MemoryBudget;
use crate::runtime::stats::{Committed, TaskReading};
use crate::time::Watermark;

/// Publishes the counts of one job's tasks.
#[derive(Debug)]
pub(crate) struct Reporter {
    job: String,
    last: Vec<TaskReading>,
}

impl Reporter {
    pub(crate) fn new(job: &str) -> Self {
        describe();
        Reporter { job: job.to_owned(), last: Vec::new() }
    }

    pub(crate) fn publish_memory(&self, budget: &MemoryBudget) {
        memory::publish(&self.job, budget);
    }

    pub(crate) fn publish(&mut self, readings: &[TaskReading], now_ms: i64) {
        for reading in readings {
            let labels = [
                ("job", self.job.clone()),
                ("task", reading.task.chain.to_string()),
                ("subtask", reading.task.subtask.to_string()),
            ];
            counter!("weir_task_records_in_total", &labels).absolute(reading.records_in);
            counter!("weir_task_batches_in_total", &labels).absolute(reading.batches_in);
            counter!("weir_task_records_out_total", &labels).absolute(reading.records_out);
            counter!("weir_task_batches_out_total", &labels).absolute(reading.batches_out);
            counter!("weir_task_dead_letters_total", &labels).absolute(reading.dead_letters);
            counter!("weir_task_busy_milliseconds_total", &labels).absolute(reading.busy.as_millis() as u64);
            counter!("weir_task_idle_milliseconds_total", &labels).absolute(reading.idle.as_millis() as u64);
            counter!("weir_task_backpressured_milliseconds_total", &labels)
                .absolute(reading.backpressured.as_millis() as u64);
            let [busy, idle, backpressured] =
                shares(self.last.iter().find(|l| l.task == reading.task), reading);
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
                counter!(format!("weir_{name}_total"), &labels).absolute(*count);
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
