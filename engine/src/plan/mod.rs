//! A job's plan as plain data: tasks, operators, edges; what is wrong with it, and how it reads as text, dot and JSON.

mod check;
mod display;

use serde::Serialize;

pub use check::PlanError;

use crate::graph::Updating;
use crate::memory::{self, Footprint};

pub use crate::runtime::edge::Partitioning;

/// One operator of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlannedOperator {
    /// Its uid.
    pub uid: String,
    /// What it is: `source`, `map`, `window`, `sink`, …
    pub kind: &'static str,
    /// Whether it keeps state under its uid.
    pub stateful: bool,
    /// Whether its state is a profile index.
    #[serde(skip_serializing_if = "is_false")]
    pub index: bool,
    /// Whether some of what it gives replaces what it gave before.
    #[serde(skip_serializing_if = "is_false")]
    pub updates: bool,
    /// What the check of the plan needs to know of that.
    #[serde(skip)]
    pub(crate) updating: Updating,
    /// What it takes outside its tasks: buffers and threads of a client.
    #[serde(skip_serializing_if = "Footprint::is_none")]
    pub footprint: Footprint,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// One fused chain: as many tasks as its parallelism, each a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedChain {
    /// The operators in the order that records pass them.
    pub operators: Vec<PlannedOperator>,
    /// Its subtasks.
    pub parallelism: usize,
    /// False for a chain that was begun and never ended in a sink.
    #[serde(skip)]
    pub complete: bool,
}

/// One edge between two chains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedEdge {
    /// Index of the producing chain.
    pub from: usize,
    /// Which operator of that chain has the side output.
    #[serde(skip)]
    pub(crate) operator: Option<usize>,
    /// Index of the consuming chain.
    pub to: usize,
    /// Whether it is of the right one of two streams that are connected there.
    #[serde(skip)]
    pub(crate) right: bool,
    /// How records are spread.
    pub partitioning: Partitioning,
    /// The side output it leaves by, if not the main one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub side: Option<&'static str>,
    /// Channels that it takes: one per subtask when it is forward, else one per producing and consuming subtask.
    pub channels: usize,
}

/// A job's plan: everything that is decided before anything starts. It displays as text.
///
/// ```
/// use weir_engine::{prelude::*, testkit::*};
/// let job = Job::named("copy").parallelism(2);
/// job.source("in", ScriptSource::of([(1, 0)])).without_event_time().boundary().sink("out", NullSink);
/// let plan = job.plan()?;
/// assert_eq!((plan.chains.len(), plan.tasks(), plan.edges[0].channels), (2, 4, 2));
/// assert!(plan.to_string().contains("forward") && plan.to_dot().starts_with("digraph"));
/// assert!(plan.to_json().contains(r#""uid": "in""#));
/// # Ok::<(), JobError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The job's name.
    pub job: String,
    /// Elements that each channel holds.
    pub channel_depth: usize,
    /// Key groups of the job.
    pub key_groups: u16,
    /// The chains, in the order they were written.
    pub chains: Vec<PlannedChain>,
    /// The edges, in the order they were written.
    pub edges: Vec<PlannedEdge>,
}

impl Plan {
    /// How many tasks run, each on its own thread. Clients add threads of their own: [`Plan::client_threads`].
    pub fn tasks(&self) -> usize {
        self.chains.iter().map(|c| c.parallelism).sum()
    }

    /// How many threads the clients of sources and sinks start, as they declare.
    pub fn client_threads(&self) -> u64 {
        memory::declared(self).iter().map(|declared| declared.threads).sum()
    }

    /// What the operator of that uid is.
    pub(crate) fn kind_of(&self, uid: &str) -> Option<&'static str> {
        self.chains.iter().flat_map(|c| &c.operators).find(|o| o.uid == uid).map(|o| o.kind)
    }

    /// The plan as JSON.
    pub fn to_json(&self) -> String {
        // Plain data with string keys: there is nothing in it that JSON cannot say.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
