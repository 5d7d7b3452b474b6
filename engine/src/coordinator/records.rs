//! What the record of a checkpoint says of each task: what it wrote, or what it was still waiting for.

use weir_state::checkpoint::{MissingChannel, Phases, TaskRecord};

use super::checkpoints::TaskParts;
use crate::runtime::stats::TaskReading;

/// A task that has not frozen, and what it waits for.
pub(super) fn missing(reading: &TaskReading) -> Option<TaskRecord> {
    let waited_ms = reading.activity.1.as_millis() as u64;
    Some(TaskRecord {
        uid: reading.task.chain.to_string(),
        subtask: reading.task.subtask,
        missing: reading
            .aligning
            .iter()
            .map(|from| MissingChannel { from: from.clone(), waited_ms })
            .collect(),
        ..TaskRecord::default()
    })
}

/// How many files of a task the record names.
const SLOWEST: usize = 5;

pub(super) fn records_of(parts: &[TaskParts]) -> Vec<TaskRecord> {
    let written = parts.iter().flat_map(|p| p.iter());
    written
        .map(|w| {
            let mut record = TaskRecord {
                uid: w.uid.to_string(),
                subtask: w.report.part.subtask,
                phases: Phases {
                    freeze_ms: Some(w.written.as_millis() as u64),
                    upload_ms: Some(w.report.upload_ms),
                    ..Phases::default()
                },
                full_bytes: w.report.bytes,
                uploaded_bytes: w.report.uploaded_bytes,
                ..TaskRecord::default()
            };
            record.keep_slowest(w.report.files.clone(), SLOWEST);
            record
        })
        .collect()
}
