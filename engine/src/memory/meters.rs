//! What the shares really take, beside what was planned: whoever uses one says how much, and metrics show both.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde_json::json;

use super::plan::MemoryPlan;
use super::share::Share;

type Read = dyn Fn() -> u64 + Send + Sync;
type Meters = Vec<(Share, Weak<Read>)>;

/// The plan of a process's memory, and what is measured of it. Clones are one and the same.
///
/// ```
/// use weir_engine::{memory::{MemoryBudget, MemoryConfig, Share}, prelude::*, testkit::*};
/// let job = Job::named("copy").parallelism(1).memory(MemoryConfig::new().limit(1 << 30));
/// job.source("in", ScriptSource::of([(1, 0)])).without_event_time().sink("out", NullSink);
/// let budget = MemoryBudget::new(job.memory_plan()?);
/// let cache = budget.meter(Share::StateCaches, || 300);
/// let other = budget.meter(Share::StateCaches, || 40);
/// assert_eq!(budget.used(Share::StateCaches), Some(340));
/// drop((cache, other));
/// assert_eq!(budget.used(Share::StateCaches), None, "nobody measures it any more");
/// # Ok::<(), JobError>(())
/// ```
#[derive(Clone)]
pub struct MemoryBudget {
    plan: Arc<MemoryPlan>,
    meters: Arc<Mutex<Meters>>,
}

/// A measurement that is shown as long as this is kept.
#[must_use = "what is dropped is no longer measured"]
pub struct Metered {
    _read: Arc<Read>,
}

impl MemoryBudget {
    /// A plan of which nothing is measured yet.
    pub fn new(plan: MemoryPlan) -> Self {
        MemoryBudget { plan: Arc::new(plan), meters: Arc::default() }
    }

    /// For one operator without a job.
    #[cfg(any(test, feature = "testkit"))]
    pub(crate) fn unplanned() -> Self {
        MemoryBudget::new(MemoryPlan::unlimited())
    }

    /// What was planned.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// Has `read` asked once a second, on another thread, how many bytes of `share` its owner takes; what the owners of one
    /// share say is added up. It must not wait.
    pub fn meter(&self, share: Share, read: impl Fn() -> u64 + Send + Sync + 'static) -> Metered {
        let read: Arc<Read> = Arc::new(read);
        let mut meters = self.meters();
        meters.retain(|(_, read)| read.strong_count() > 0);
        meters.push((share, Arc::downgrade(&read)));
        Metered { _read: read }
    }

    /// What is taken of `share` now; none when nobody measures it.
    pub fn used(&self, share: Share) -> Option<u64> {
        // Asked outside the lock: a reader may take locks of its own.
        let readers: Vec<Arc<Read>> = self
            .meters()
            .iter()
            .filter(|(of, _)| *of == share)
            .filter_map(|(_, read)| read.upgrade())
            .collect();
        (!readers.is_empty()).then(|| readers.iter().fold(0, |sum: u64, read| sum.saturating_add(read())))
    }

    /// Limit, shares with what is taken of each, and threads, as JSON.
    pub(crate) fn describe(&self) -> serde_json::Value {
        let shares = Share::ALL.into_iter().map(|share| {
            json!({ "share": share, "planned_bytes": self.plan.bytes(share), "used_bytes": self.used(share) })
        });
        json!({
            "limit_bytes": self.plan.limit.amount,
            "origin": self.plan.limit.origin.to_string(),
            "shares": shares.collect::<Vec<_>>(),
            "threads": self.plan.threads(),
        })
    }

    fn meters(&self) -> MutexGuard<'_, Meters> {
        self.meters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBudget").field("limit", &self.plan.limit).finish_non_exhaustive()
    }
}

impl fmt::Debug for Metered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metered")
    }
}
