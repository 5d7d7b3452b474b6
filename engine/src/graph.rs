//! The job graph while it is written: chains, edges and the recipes that make tasks of them.
//! (over 400 lines: an operator says everything that a plan may ask of it)

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::context::TaskContext;
use crate::ids::OperatorUid;
use crate::memory::Footprint;
use crate::plan::{Partitioning, Plan, PlanError, PlannedChain, PlannedEdge, PlannedOperator};
use crate::runtime::drift::DriftGroup;
use crate::runtime::edge::LayEdge;
use crate::runtime::task::TaskBody;

/// Makes the task of one subtask. Called once per subtask and attempt.
pub(crate) type Recipe = Box<dyn Fn(&TaskContext) -> Box<dyn TaskBody> + Send>;

/// How an edge was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Forward where the parallelism is equal, else rebalance.
    Natural,
    Exactly(Partitioning),
}

/// An operator's name and kind, as the DSL gives it.
///
/// ```
/// # use weir_engine::{OperatorInfo, prelude::*, testkit::*};
/// let job = Job::named("names");
/// let numbers = job.source("in", ScriptSource::of([(1, 0)])).without_event_time();
/// let twice = numbers.transform(OperatorInfo::stateless("look"), Probe::new());
/// twice.transform(OperatorInfo::stateless("look"), Probe::new()).sink("out", NullSink);
/// let uids: Vec<_> = job.plan()?.chains[0].operators.iter().map(|o| o.uid.clone()).collect();
/// assert_eq!(uids, ["in", "look", "look-2", "out"]);
/// # Ok::<(), JobError>(())
/// ```
#[derive(Clone, Debug)]
pub struct OperatorInfo {
    pub(crate) uid: Option<OperatorUid>,
    pub(crate) kind: &'static str,
    pub(crate) stateful: bool,
    pub(crate) index: bool,
    pub(crate) asynchronous: bool,
    pub(crate) updating: Updating,
    pub(crate) footprint: Footprint,
}

/// What an operator has to do with results that replace each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Updating {
    pub(crate) updates: bool,
    pub(crate) moves: bool,
    pub(crate) in_parts: bool,
    pub(crate) adds_up: bool,
    pub(crate) settles: bool,
    pub(crate) settles_windows: bool,
    pub(crate) settles_right: bool,
    pub(crate) takes_back: bool,
}

impl OperatorInfo {
    /// A stateless operator: it may go unnamed, and gets its kind (and a number) for a name.
    pub fn stateless(kind: &'static str) -> Self {
        OperatorInfo::new(None, kind, false)
    }

    /// An operator that keeps state under `uid`.
    pub fn stateful(kind: &'static str, uid: impl Into<OperatorUid>) -> Self {
        OperatorInfo::new(Some(uid.into()), kind, true)
    }

    /// A stateless operator with a name of its own.
    pub fn named(kind: &'static str, uid: impl Into<OperatorUid>) -> Self {
        OperatorInfo::new(Some(uid.into()), kind, false)
    }

    fn new(uid: Option<OperatorUid>, kind: &'static str, stateful: bool) -> Self {
        let (updating, footprint) = (Updating::default(), Footprint::none());
        OperatorInfo { uid, kind, stateful, index: false, asynchronous: false, updating, footprint }
    }

    /// The operator's state is a profile index: it gets the index's share of the memory, and no cache.
    #[must_use]
    pub fn index(mut self) -> Self {
        self.index = true;
        self
    }

    /// The operator makes asynchronous [calls](crate::Calls): the plan counts the threads that they run on.
    #[must_use]
    pub fn asynchronous(mut self) -> Self {
        self.asynchronous = true;
        self
    }

    /// Some of what the operator gives replaces what it gave before: results of a window that is given again, say. Who adds up
    /// what comes ([`OperatorInfo::adds_up`]) must not be fed with that, or the plan is refused: each would count beside those that it
    /// replaces. What other operators make of it is the same, up to one that [settles](OperatorInfo::settles) it.
    #[must_use]
    pub fn updates(mut self, yes: bool) -> Self {
        self.updating.updates = yes;
        self
    }

    /// What replaces a result of the operator may be of another window (a session grows), or of one that is never over: nobody can tell
    /// which is the last.
    #[must_use]
    pub fn moves(mut self, yes: bool) -> Self {
        self.updating.moves = yes;
        self
    }

    /// Some of what the operator gives adds to what it gave before of the same window: all of them count, and the newest is not the whole.
    #[must_use]
    pub fn in_parts(mut self, yes: bool) -> Self {
        self.updating.in_parts = yes;
        self
    }

    /// The operator takes each record for one more.
    #[must_use]
    pub fn adds_up(mut self) -> Self {
        self.updating.adds_up = true;
        self
    }

    /// The operator knows that some of what comes replaces what came before; what it gives may be added up.
    #[must_use]
    pub fn settles(mut self) -> Self {
        self.updating.settles = true;
        self
    }

    /// The operator gives the last result of each window, and so must not be fed with [moving](OperatorInfo::moves) ones, or
    /// with [parts](OperatorInfo::in_parts).
    #[must_use]
    pub fn settles_windows(mut self) -> Self {
        self.updating.settles_windows = true;
        self
    }

    /// Of two streams that are [connected](crate::KeyedStream::connect) the right one is a table to the operator, of which newer records are meant to
    /// replace older ones: what it gives is about the left one's records, and so are the updates in it.
    #[must_use]
    pub fn settles_right(mut self) -> Self {
        self.updating.settles_right = true;
        self
    }

    /// The operator may give nothing of a record that replaces one of which it gave something, as a filter does: the newest that it gave may be
    /// out of date. So it must not come between [updates](OperatorInfo::updates) and who gives the last of them.
    #[must_use]
    pub fn takes_back(mut self, yes: bool) -> Self {
        self.updating.takes_back = yes;
        self
    }

    /// What the operator takes beside its state: a client's buffers and threads.
    #[must_use]
    pub fn footprint(mut self, footprint: Footprint) -> Self {
        self.footprint = footprint;
        self
    }
}

/// An operator where it stands in its chain. The number stays when it is renamed or moved to a chain of its own.
pub(crate) struct GraphOperator {
    pub(crate) number: usize,
    pub(crate) uid: OperatorUid,
    pub(crate) kind: &'static str,
    pub(crate) stateful: bool,
    pub(crate) index: bool,
    pub(crate) asynchronous: bool,
    pub(crate) updating: Updating,
    pub(crate) footprint: Footprint,
}

pub(crate) struct Chain {
    pub(crate) operators: Vec<GraphOperator>,
    pub(crate) parallelism: Option<usize>,
    pub(crate) recipe: Option<Recipe>,
    /// What it read is read by another one.
    merged: bool,
}

/// Where an edge leaves from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum From {
    /// The end of a chain.
    Chain(usize),
    /// A side output of the operator of this number, in whatever chain it ends up.
    Operator(usize),
}

pub(crate) struct GraphEdge {
    pub(crate) from: From,
    pub(crate) to: usize,
    pub(crate) asked: Asked,
    pub(crate) side: Option<&'static str>,
    /// It is of the right one of two streams that were connected.
    pub(crate) right: bool,
    pub(crate) ends: Arc<dyn LayEdge>,
}

pub(crate) struct Graph {
    pub(crate) name: String,
    pub(crate) parallelism: usize,
    pub(crate) chaining: bool,
    pub(crate) channel_depth: usize,
    /// Of the pool for asynchronous calls.
    pub(crate) async_threads: usize,
    pub(crate) key_groups: u16,
    pub(crate) chains: Vec<Chain>,
    pub(crate) edges: Vec<GraphEdge>,
    /// The first mistake made while the job was written; told when it is planned.
    pub(crate) mistake: Option<PlanError>,
    /// The job has started: what is written from here on belongs to nothing.
    pub(crate) over: bool,
    /// The sources that are kept together in event time, by the name of their group.
    drifts: HashMap<String, Arc<DriftGroup>>,
    unnamed: HashMap<&'static str, usize>,
    operators: usize,
}

pub(crate) type GraphRef = Rc<RefCell<Graph>>;

/// Batches per channel unless said otherwise: enough to keep both sides busy, little to align behind.
const CHANNEL_DEPTH: usize = 8;
/// Threads for asynchronous calls unless said otherwise: those wait for the outside, and a thread carries thousands that wait.
const ASYNC_THREADS: usize = 2;

impl Graph {
    pub(crate) fn new(name: &str) -> Self {
        Graph {
            name: name.to_owned(),
            parallelism: std::thread::available_parallelism().map_or(1, usize::from),
            chaining: true,
            channel_depth: CHANNEL_DEPTH,
            async_threads: ASYNC_THREADS,
            key_groups: weir_state::KEY_GROUPS,
            chains: Vec::new(),
            edges: Vec::new(),
            mistake: None,
            over: false,
            drifts: HashMap::new(),
            unnamed: HashMap::new(),
            operators: 0,
        }
    }

    /// What stands in for the graph of a job that has started.
    pub(crate) fn started(name: &str) -> Self {
        Graph { over: true, ..Graph::new(name) }
    }

    pub(crate) fn chain(&mut self) -> usize {
        self.chains.push(Chain { operators: Vec::new(), parallelism: None, recipe: None, merged: false });
        self.chains.len() - 1
    }

    pub(crate) fn drift_group(&mut self, name: &str) -> Arc<DriftGroup> {
        self.drifts.entry(name.to_owned()).or_default().clone()
    }

    pub(crate) fn edge(
        &mut self,
        from: From,
        to: usize,
        asked: Asked,
        side: Option<&'static str>,
        ends: Arc<dyn LayEdge>,
    ) {
        self.edges.push(GraphEdge { from, to, asked, side, right: false, ends });
    }

    /// Spreads the one edge that leads into `chain` as told, if nothing runs there yet and nobody said how before.
    pub(crate) fn repartition(&mut self, chain: usize, how: Partitioning) -> bool {
        if !self.chains[chain].operators.is_empty() {
            return false;
        }
        match self.edges.iter_mut().find(|e| e.to == chain) {
            Some(edge) if edge.asked == Asked::Natural => {
                edge.asked = Asked::Exactly(how);
                true
            }
            _ => false,
        }
    }

    /// What leads into `chain`, in which nothing runs, is the right one of two streams.
    pub(crate) fn is_right(&mut self, chain: usize) {
        self.edges.iter_mut().filter(|edge| edge.to == chain).for_each(|edge| edge.right = true);
    }

    /// What led into `chain`, in which nothing runs, leads into `into` from now on, and `chain` is no more.
    pub(crate) fn merge(&mut self, chain: usize, into: usize) {
        let parallelism = [into, chain].map(|chain| self.chains[chain].parallelism);
        if let [Some(one), Some(other)] = parallelism
            && one != other
        {
            self.mistake(PlanError::Connected { one, other });
        }
        self.chains[into].parallelism = parallelism[0].or(parallelism[1]);
        self.chains[chain].merged = true;
        self.edges.iter_mut().filter(|edge| edge.to == chain).for_each(|edge| edge.to = into);
    }

    /// The chains that there are in the plan, by their place in it.
    pub(crate) fn standing(&self) -> impl Iterator<Item = &Chain> {
        self.chains.iter().filter(|chain| !chain.merged)
    }

    /// The place in the plan of a chain that stands.
    fn place(&self, chain: usize) -> usize {
        self.chains[..chain].iter().filter(|chain| !chain.merged).count()
    }

    /// Adds an operator at the end of `chain`; an unnamed one is called by its kind, the second of a kind `kind-2`.
    pub(crate) fn operator(&mut self, chain: usize, info: OperatorInfo) -> OperatorUid {
        let uid = info.uid.unwrap_or_else(|| {
            let n = self.unnamed.entry(info.kind).or_default();
            *n += 1;
            if *n == 1 { info.kind.into() } else { format!("{}-{n}", info.kind).into() }
        });
        let number = self.operators;
        self.operators += 1;
        let OperatorInfo { kind, stateful, index, asynchronous, updating, footprint, .. } = info;
        let uid_of = uid.clone();
        let operator =
            GraphOperator { number, uid: uid_of, kind, stateful, index, asynchronous, updating, footprint };
        self.chains[chain].operators.push(operator);
        uid
    }

    pub(crate) fn mistake(&mut self, error: PlanError) {
        self.mistake.get_or_insert(error);
    }

    pub(crate) fn parallelism_of(&self, chain: usize) -> usize {
        self.chains[chain].parallelism.unwrap_or(self.parallelism)
    }

    /// The chain that an edge leaves from.
    fn origin(&self, from: From) -> usize {
        match from {
            From::Chain(chain) => chain,
            From::Operator(number) => {
                let has = |chain: &Chain| chain.operators.iter().any(|o| o.number == number);
                // Operators are moved, never removed.
                self.chains.iter().position(has).unwrap_or_default()
            }
        }
    }

    fn partitioning(&self, edge: &GraphEdge) -> Partitioning {
        match edge.asked {
            Asked::Exactly(p) => p,
            Asked::Natural if self.parallelism_of(self.origin(edge.from)) == self.parallelism_of(edge.to) => {
                Partitioning::Forward
            }
            Asked::Natural => Partitioning::Rebalance,
        }
    }

    fn footprint_of(&self, operator: &GraphOperator) -> Footprint {
        if !operator.asynchronous {
            return operator.footprint.clone();
        }
        let pool = Footprint::process("threads of asynchronous calls", 0, self.async_threads);
        operator.footprint.clone().and(pool.lowered_by("Job::async_threads"))
    }

    /// The graph as plain data, unchecked.
    pub(crate) fn describe(&self) -> Plan {
        let chains = (self.standing())
            .map(|chain| PlannedChain {
                operators: (chain.operators.iter())
                    .map(|o| PlannedOperator {
                        uid: o.uid.to_string(),
                        kind: o.kind,
                        stateful: o.stateful,
                        index: o.index,
                        updates: o.updating.updates,
                        updating: o.updating,
                        footprint: self.footprint_of(o),
                    })
                    .collect(),
                parallelism: chain.parallelism.unwrap_or(self.parallelism),
                complete: chain.recipe.is_some(),
            })
            .collect();
        let edges = (self.edges.iter())
            .map(|edge| {
                let origin = self.origin(edge.from);
                let (from, to) = (self.parallelism_of(origin), self.parallelism_of(edge.to));
                let partitioning = self.partitioning(edge);
                let channels = if partitioning == Partitioning::Forward { from } else { from * to };
                let operator = match edge.from {
                    From::Operator(of) => self.chains[origin].operators.iter().position(|o| o.number == of),
                    From::Chain(_) => None,
                };
                let (from, to) = (self.place(origin), self.place(edge.to));
                let (side, right) = (edge.side, edge.right);
                PlannedEdge { from, operator, to, right, partitioning, side, channels }
            })
            .collect();
        Plan {
            job: self.name.clone(),
            channel_depth: self.channel_depth,
            key_groups: self.key_groups,
            chains,
            edges,
        }
    }

    /// The checked plan.
    pub(crate) fn plan(&self) -> Result<Plan, PlanError> {
        if let Some(mistake) = &self.mistake {
            return Err(mistake.clone());
        }
        let plan = self.describe();
        plan.check()?;
        Ok(plan)
    }
}
