//! The memory plan as metrics: what each share was given, and beside it what it takes, where somebody measures it.

use metrics::{describe_gauge, gauge};

use crate::memory::{MemoryBudget, Share};

/// Publishes the plan of one job and what is measured of it.
pub(crate) fn publish(job: &str, budget: &MemoryBudget) {
    let plan = budget.plan();
    gauge!("weir_memory_limit_bytes", "job" => job.to_owned()).set(plan.limit.amount as f64);
    for share in Share::ALL {
        let labels = [("job", job.to_owned()), ("share", share.label().to_owned())];
        gauge!("weir_memory_planned_bytes", &labels).set(plan.bytes(share) as f64);
        if let Some(used) = budget.used(share) {
            gauge!("weir_memory_used_bytes", &labels).set(used as f64);
        }
    }
    let threads: u64 = plan.threads().iter().map(|group| group.threads).sum();
    gauge!("weir_planned_threads", "job" => job.to_owned()).set(threads as f64);
}

pub(crate) fn describe() {
    describe_gauge!("weir_memory_limit_bytes", "What the process may take, by the memory plan");
    describe_gauge!("weir_memory_planned_bytes", "What the memory plan gives a share");
    describe_gauge!("weir_memory_used_bytes", "What a share takes, where it is measured");
    describe_gauge!("weir_planned_threads", "Threads of the process, by the memory plan");
}
