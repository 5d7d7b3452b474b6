//! What checkpoints cost and how old the last one is, as metrics; health is its age.

use metrics::{counter, describe_counter, describe_gauge, gauge};
use weir_state::checkpoint::{AttemptRecord, Outcome};

use crate::coordinator::CheckpointAge;

/// A checkpoint is over, complete or not.
pub(crate) fn over(job: &str, record: &AttemptRecord) {
    let labels = [("job", job.to_owned())];
    match record.outcome {
        Outcome::Completed => {
            counter!("weir_checkpoints_completed_total", &labels).increment(1);
            gauge!("weir_checkpoint_bytes", &labels).set(record.full_bytes() as f64);
            gauge!("weir_checkpoint_uploaded_bytes", &labels).set(record.uploaded_bytes() as f64);
            let took = record.ended_ms.saturating_sub(record.triggered_ms);
            gauge!("weir_checkpoint_duration_milliseconds", &labels).set(took as f64);
            if let Some(ms) = record.phases.align_ms {
                gauge!("weir_checkpoint_alignment_milliseconds", &labels).set(ms as f64);
            }
            record.phases.reached().for_each(|(name, ms)| phase(job, name, ms));
        }
        Outcome::Failed(_) | Outcome::Declined(_) => {
            counter!("weir_checkpoints_failed_total", &labels).increment(1);
        }
        Outcome::Expired(_) => counter!("weir_checkpoints_expired_total", &labels).increment(1),
        // A restart or the end took it along; that is told elsewhere.
        Outcome::Aborted(_) => {}
    }
}

/// How long a phase of a complete checkpoint took in the task where it took longest.
pub(crate) fn phase(job: &str, name: &'static str, ms: u64) {
    let labels = [("job", job.to_owned()), ("phase", name.to_owned())];
    gauge!("weir_checkpoint_phase_milliseconds", &labels).set(ms as f64);
}

/// How old the last complete checkpoint is, and what of that is tolerated.
pub(crate) fn age(job: &str, age: &CheckpointAge) {
    let labels = [("job", job.to_owned())];
    gauge!("weir_checkpoint_age_seconds", &labels).set(age.age.as_secs_f64());
    gauge!("weir_checkpoint_tolerated_age_seconds", &labels).set(age.tolerated_age.as_secs_f64());
    gauge!("weir_checkpoint_failures_in_a_row", &labels).set(f64::from(age.failures));
}

pub(crate) fn describe() {
    describe_counter!("weir_checkpoints_completed_total", "Checkpoints and savepoints completed");
    describe_counter!("weir_checkpoints_failed_total", "Checkpoints that a task or the storage failed");
    describe_counter!("weir_checkpoints_expired_total", "Checkpoints that took longer than allowed");
    describe_gauge!(
        "weir_checkpoint_age_seconds",
        "Time since the last complete checkpoint, or since the start"
    );
    describe_gauge!(
        "weir_checkpoint_tolerated_age_seconds",
        "How old the last complete checkpoint may become"
    );
    describe_gauge!(
        "weir_checkpoint_failures_in_a_row",
        "Checkpoints that failed since the last complete one"
    );
    describe_gauge!("weir_checkpoint_bytes", "State in the last complete checkpoint");
    describe_gauge!("weir_checkpoint_uploaded_bytes", "What of it had to be uploaded");
    describe_gauge!("weir_checkpoint_duration_milliseconds", "From its trigger to its manifest");
    describe_gauge!(
        "weir_checkpoint_alignment_milliseconds",
        "From the first input's barrier to the last one's, in the task where that took longest"
    );
    describe_gauge!(
        "weir_checkpoint_phase_milliseconds",
        "How long a phase of the last complete checkpoint took, in the task where it took longest"
    );
}
