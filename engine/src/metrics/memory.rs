//! The memory plan as metrics: what each share was given, and beside it what it takes, where somebody measures it.

use metrics::{describe_gauge, gauge};

use crate::memory::{Bytes, MemoryBudget, Outgrown, Share};

/// Publishes the plan of one job and what is measured of it, and warns of shares that outgrow the plan.
pub(crate) fn publish(job: &str, budget: &MemoryBudget, outgrown: &mut Outgrown) {
    let plan = budget.plan();
    gauge!("weir_memory_limit_bytes", "job" => job.to_owned()).set(plan.limit.amount as f64);
    for share in Share::ALL {
        let labels = [("job", job.to_owned()), ("share", share.label().to_owned())];
        gauge!("weir_memory_planned_bytes", &labels).set(plan.bytes(share) as f64);
        if let Some(used) = budget.used(share) {
            gauge!("weir_memory_used_bytes", &labels).set(used as f64);
            if outgrown.is_news(share, plan.bytes(share), used) {
                let (planned, used) = (Bytes(plan.bytes(share)), Bytes(used));
                tracing::warn!(
                    job,
                    "{share} takes {used}, {planned} were planned: it lives on what others leave, and the process may be killed \
                     for it; raise MemoryConfig::limit, or its part with MemoryConfig::percent"
                );
            }
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
