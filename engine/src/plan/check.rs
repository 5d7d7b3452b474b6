//! What is wrong with a plan. Pure.

use std::collections::HashMap;

use super::{Partitioning, Plan};

/// Why a job cannot be planned. The message says what to do about it.
///
/// ```
/// let error = weir_engine::Job::named("orders").plan().unwrap_err();
/// assert_eq!(error.to_string(), "job \"orders\" has no source: begin with job.source(uid, source)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Nothing to run.
    #[error("job {job:?} has no source: begin with job.source(uid, source)")]
    Empty {
        /// The job.
        job: String,
    },
    /// State, metrics and errors are kept under the uid, so it must name one operator.
    #[error("uid {uid:?} names both a {first} and a {second}: give one of them another uid")]
    RepeatedUid {
        /// The uid.
        uid: String,
        /// Kind of the first operator.
        first: &'static str,
        /// Kind of the second.
        second: &'static str,
    },
    /// A uid must be visible.
    #[error("a {kind} has a blank uid: name it, state and metrics are kept under that name")]
    BlankUid {
        /// Kind of the operator.
        kind: &'static str,
    },
    /// A stream that ends nowhere would be read for nothing.
    #[error("the stream after {uid:?} goes nowhere: end it with .sink(uid, sink), or drop what leads to it")]
    Dangling {
        /// The last operator on it.
        uid: String,
    },
    /// Forward means subtask i to subtask i.
    #[error(
        "{from:?} runs {from_parallelism} subtasks and {to:?} {to_parallelism}: a forward edge needs the same; use rebalance()"
    )]
    ForwardMismatch {
        /// Last operator of the producing chain.
        from: String,
        /// Its parallelism.
        from_parallelism: usize,
        /// First operator of the consuming chain.
        to: String,
        /// Its parallelism.
        to_parallelism: usize,
    },
    /// Data would chase its own tail, and barriers could never align.
    #[error("the plan has a cycle through {uids:?}: a stream cannot feed an operator before it")]
    Cycle {
        /// Operators on the cycle.
        uids: Vec<String>,
    },
    /// No subtask could run.
    #[error(
        "{uid:?} has parallelism {parallelism}: it must be between 1 and {max} (the number of key groups)"
    )]
    Parallelism {
        /// The operator.
        uid: String,
        /// What was asked for.
        parallelism: usize,
        /// The key groups of the job.
        max: u16,
    },
    /// A channel must hold something.
    #[error("channel depth {depth} is out of range: a channel holds between 1 and 4096 elements")]
    ChannelDepth {
        /// What was asked for.
        depth: usize,
    },
    /// A stream belongs to the job it was made in.
    #[error(
        "a stream of job {other:?} was joined with one of job {one:?}: streams of two jobs meet in Kafka, not in a union"
    )]
    TwoJobs {
        /// The job of the stream that was joined to.
        one: String,
        /// The job of the other stream.
        other: String,
    },
    /// Two keyed streams that meet in one operator were given different parallelism.
    #[error(
        "two streams that are connected have parallelism {one} and {other}: the operator behind them runs once, so say it for one of them"
    )]
    Connected {
        /// That of the one.
        one: usize,
        /// That of the other.
        other: usize,
    },
    /// A keyed stream that was connected can only be read by an operator.
    #[error(
        "a keyed stream is connected to two others at once: add an operator to the first two, key what it gives, and connect that"
    )]
    ConnectedTwice,
    /// An operator cannot work with what it was given.
    #[error("operator {uid:?}: {reason}")]
    Argument {
        /// The operator.
        uid: String,
        /// What is wrong, and what to do about it.
        reason: String,
    },
    /// A rate must be a positive number.
    #[error("source {uid:?} has a rate of {rate} records per second: it must be a positive number")]
    Rate {
        /// The source.
        uid: String,
        /// What was asked for, as text.
        rate: String,
    },
}

impl Plan {
    /// Checks the plan as a whole.
    ///
    /// # Errors
    /// The first thing that is wrong, in the order: nothing there, channel depth, names, chain by chain parallelism and
    /// loose ends, edges, cycles.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.chains.is_empty() {
            return Err(PlanError::Empty { job: self.job.clone() });
        }
        if !(1..=4096).contains(&self.channel_depth) {
            return Err(PlanError::ChannelDepth { depth: self.channel_depth });
        }
        let mut seen: HashMap<&str, &'static str> = HashMap::new();
        for op in self.chains.iter().flat_map(|c| &c.operators) {
            if op.uid.trim().is_empty() {
                return Err(PlanError::BlankUid { kind: op.kind });
            }
            if let Some(first) = seen.insert(&op.uid, op.kind) {
                return Err(PlanError::RepeatedUid { uid: op.uid.clone(), first, second: op.kind });
            }
        }
        for (i, chain) in self.chains.iter().enumerate() {
            if !(1..=usize::from(self.key_groups)).contains(&chain.parallelism) {
                let (uid, parallelism) = (self.first_uid(i), chain.parallelism);
                return Err(PlanError::Parallelism { uid, parallelism, max: self.key_groups });
            }
            if !chain.complete {
                return Err(PlanError::Dangling { uid: self.last_uid(i) });
            }
        }
        for edge in &self.edges {
            let (from, to) = (self.chains[edge.from].parallelism, self.chains[edge.to].parallelism);
            if edge.partitioning == Partitioning::Forward && from != to {
                return Err(PlanError::ForwardMismatch {
                    from: self.last_uid(edge.from),
                    from_parallelism: from,
                    to: self.first_uid(edge.to),
                    to_parallelism: to,
                });
            }
        }
        self.acyclic()
    }

    /// Repeatedly takes away chains that nothing left feeds (Kahn's algorithm); what stays is on a cycle or behind one.
    fn acyclic(&self) -> Result<(), PlanError> {
        let mut feeds: Vec<usize> = vec![0; self.chains.len()];
        for edge in &self.edges {
            feeds[edge.to] += 1;
        }
        let mut free: Vec<usize> = (0..feeds.len()).filter(|i| feeds[*i] == 0).collect();
        let mut left = feeds.len();
        while let Some(i) = free.pop() {
            left -= 1;
            for edge in self.edges.iter().filter(|e| e.from == i) {
                feeds[edge.to] -= 1;
                if feeds[edge.to] == 0 {
                    free.push(edge.to);
                }
            }
        }
        if left == 0 {
            return Ok(());
        }
        let uids = (0..feeds.len()).filter(|i| feeds[*i] > 0).map(|i| self.first_uid(i)).collect();
        Err(PlanError::Cycle { uids })
    }

    /// The uid that the chain's tasks are named after.
    pub(crate) fn first_uid(&self, chain: usize) -> String {
        self.chains[chain].operators.first().map(|o| o.uid.clone()).unwrap_or_default()
    }

    fn last_uid(&self, chain: usize) -> String {
        match self.chains[chain].operators.last() {
            Some(op) => op.uid.clone(),
            // A boundary with nothing behind it: name what feeds it.
            None => match self.edges.iter().find(|e| e.to == chain) {
                Some(edge) => match edge.side {
                    Some(side) => format!("{} ({side})", self.first_uid(edge.from)),
                    None => self.last_uid(edge.from),
                },
                None => String::new(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PlannedChain, PlannedEdge, PlannedOperator};
    use super::*;

    fn chain(uids: &[&str], parallelism: usize) -> PlannedChain {
        let operators = uids.iter().map(|u| PlannedOperator {
            uid: (*u).into(),
            kind: "map",
            ..PlannedOperator::default()
        });
        PlannedChain { operators: operators.collect(), parallelism, complete: true }
    }

    fn edge(from: usize, to: usize, partitioning: Partitioning) -> PlannedEdge {
        PlannedEdge { from, to, partitioning, side: None, channels: 1 }
    }

    fn plan(chains: Vec<PlannedChain>, edges: Vec<PlannedEdge>) -> Plan {
        Plan { job: "j".into(), channel_depth: 8, key_groups: 128, chains, edges }
    }

    #[test]
    fn a_sound_plan_passes() {
        let p = plan(vec![chain(&["a", "b"], 2), chain(&["c"], 2)], vec![edge(0, 1, Partitioning::Forward)]);
        assert_eq!(p.check(), Ok(()));
        assert_eq!(p.tasks(), 4);
    }

    #[test]
    fn cycles_are_named() {
        let p = plan(
            vec![chain(&["a"], 1), chain(&["b"], 1), chain(&["c"], 1)],
            vec![
                edge(0, 1, Partitioning::Forward),
                edge(1, 2, Partitioning::Forward),
                edge(2, 1, Partitioning::Rebalance),
            ],
        );
        assert_eq!(p.check(), Err(PlanError::Cycle { uids: vec!["b".into(), "c".into()] }));
    }

    #[test]
    fn a_uid_names_one_operator() {
        let e = plan(vec![chain(&["a"], 1), chain(&["a"], 1)], vec![]).check().unwrap_err();
        assert!(e.to_string().contains("\"a\" names both"));
        assert!(matches!(plan(vec![chain(&[" "], 1)], vec![]).check(), Err(PlanError::BlankUid { .. })));
    }

    #[test]
    fn parallelism_and_forward_edges_are_checked() {
        assert!(matches!(plan(vec![chain(&["a"], 0)], vec![]).check(), Err(PlanError::Parallelism { .. })));
        assert!(matches!(plan(vec![chain(&["a"], 129)], vec![]).check(), Err(PlanError::Parallelism { .. })));
        let p = plan(vec![chain(&["a"], 1), chain(&["b"], 2)], vec![edge(0, 1, Partitioning::Forward)]);
        assert!(matches!(p.check(), Err(PlanError::ForwardMismatch { .. })));
    }

    #[test]
    fn a_loose_end_is_named_by_what_leads_to_it() {
        let mut loose = chain(&[], 1);
        loose.complete = false;
        let p = plan(vec![chain(&["a"], 1), loose], vec![edge(0, 1, Partitioning::Forward)]);
        assert_eq!(p.check(), Err(PlanError::Dangling { uid: "a".into() }));
    }
}
