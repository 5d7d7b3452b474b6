//! What is wrong with a plan. Pure.

use std::collections::HashMap;

use super::{Partitioning, Plan, PlannedChain, PlannedEdge, PlannedOperator};

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
    /// Results that replace each other would be added up.
    #[error(
        "operator {to:?} adds up what {from:?} gives, but its later results of a key and window replace earlier ones (early results, or \
         allowed lateness), and each would count: put .latest_per_window(uid, lateness) behind {from:?}, or let its results add up with \
         .discarding(), or let it give each window once, or say with .settled() that each may count"
    )]
    Updates {
        /// The operator that gives windows again.
        from: String,
        /// The operator that would count each.
        to: String,
    },
    /// Results that replace each other would be added up, or waited for, and nobody can tell which is the last.
    #[error(
        "operator {to:?} wants each result of {from:?} once, but later ones replace earlier ones, and nobody can tell which is the last: \
         sessions grow and merge, and global windows are never over. Let the results of {from:?} add up with .discarding(), or give no early \
         ones and allow no lateness, or say with .settled() that each may count"
    )]
    MovingUpdates {
        /// The operator that gives windows again.
        from: String,
        /// The operator that would count each, or wait for the last.
        to: String,
    },
    /// The newest of results that add up would be taken for the whole.
    #[error(
        "operator {to:?} wants the newest result of each key and window of {from:?}, but those are discarding: each covers only what is new, and all \
         of them count. Take {to:?} away, since they may be added up as they are, or .discarding()"
    )]
    Parts {
        /// The operator that gives windows in parts.
        from: String,
        /// The operator that would keep one of them.
        to: String,
    },
    /// The last of results that replace each other would be looked for behind an operator that leaves some out.
    #[error(
        "operator {to:?} wants each result of {from:?} once, but later ones replace earlier ones (early results, or allowed lateness), and {by:?} may \
         give nothing in place of one that it gave (a filter that the later result does not pass, an anti join whose record has met another late): \
         put .latest_per_window(uid, lateness) in front of {by:?}, or for an Anti join use a LeftOuter one, that behind it, and then a filter, or let \
         {from:?} give each window once, or say with .settled() that each may count"
    )]
    TakenBack {
        /// The operator that gives windows again.
        from: String,
        /// The operator that leaves some out.
        by: String,
        /// The operator that would count each, or wait for the last.
        to: String,
    },
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

/// Results of which later ones replace earlier ones, or add to them, on their way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Updates<'a> {
    /// False for results that add up.
    replace: bool,
    /// Nobody can tell which is the last.
    moves: bool,
    /// Who may have left out one that replaces another.
    taken_back_by: Option<&'a str>,
    from: &'a str,
}

impl<'a> Updates<'a> {
    fn may_come_to(self, op: &PlannedOperator) -> Result<(), PlanError> {
        let is = op.updating;
        let (from, to) = (self.from.to_owned(), op.uid.clone());
        match self.taken_back_by {
            _ if !is.adds_up && !is.settles_windows => Ok(()),
            _ if !self.replace && is.settles_windows => Err(PlanError::Parts { from, to }),
            _ if !self.replace => Ok(()),
            _ if self.moves => Err(PlanError::MovingUpdates { from, to }),
            Some(by) => Err(PlanError::TakenBack { from, by: by.to_owned(), to }),
            None if is.adds_up => Err(PlanError::Updates { from, to }),
            None => Ok(()),
        }
    }

    /// What there is behind an operator to which this comes.
    fn behind(op: &'a PlannedOperator, before: Option<Self>) -> Option<Self> {
        let is = op.updating;
        let uid = op.uid.as_str();
        if is.updates || is.in_parts || is.adds_up || is.settles || is.settles_windows {
            let (gives, replace, moves) = (is.updates || is.in_parts, is.updates, is.moves);
            return gives.then_some(Updates { replace, moves, taken_back_by: None, from: uid });
        }
        let by = is.takes_back.then_some(uid);
        before.map(|updates| Updates { taken_back_by: updates.taken_back_by.or(by), ..updates })
    }
}

impl Plan {
    /// Checks the plan as a whole.
    ///
    /// # Errors
    /// The first thing that is wrong, in the order: nothing there, channel depth, names, chain by chain parallelism and
    /// loose ends, edges, cycles, results that replace each other and are added up.
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
        self.acyclic()?;
        self.adds_no_updates()
    }

    /// Follows results that replace each other to who would add them up. One pass per chain is enough: there is no cycle.
    fn adds_no_updates(&self) -> Result<(), PlanError> {
        // Of each chain, what comes to each of its operators, and what the last one gives.
        let comes = |chain: &PlannedChain| vec![None; chain.operators.len() + 1];
        let mut flows: Vec<Vec<Option<Updates<'_>>>> = self.chains.iter().map(comes).collect();
        for _ in &self.chains {
            for (i, chain) in self.chains.iter().enumerate() {
                let is_table = chain.operators.first().is_some_and(|op| op.updating.settles_right);
                let edges = self.edges.iter().filter(|edge| edge.to == i && !(edge.right && is_table));
                let carries = |edge: &PlannedEdge| match (edge.side, edge.operator) {
                    (None, _) => flows[edge.from].last().copied().flatten(),
                    // What a side output hands on is what came, but for operators that know better.
                    (Some(_), Some(at)) if !self.chains[edge.from].operators[at].updating.settles => {
                        flows[edge.from][at]
                    }
                    (Some(_), _) => None,
                };
                let mut updates = edges.filter_map(carries).max();
                for (at, op) in chain.operators.iter().enumerate() {
                    flows[i][at] = updates;
                    if let Some(updates) = updates {
                        updates.may_come_to(op)?;
                    }
                    updates = Updates::behind(op, updates);
                }
                flows[i][chain.operators.len()] = updates;
            }
        }
        Ok(())
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
#[path = "check_tests.rs"]
mod tests;
