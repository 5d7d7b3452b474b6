//! A task of the coordinator's explorations: what it is at, what it remembers, and what it freezes.

use std::collections::{BTreeMap, BTreeSet};

use weir_state::store::Items;

use super::outside::{Manifest, Outside, Part, Value, read_value};
use crate::element::Barrier;
use crate::ids::{AttemptId, CheckpointId};
use crate::runtime::align::Aligner;
use crate::runtime::mail::Slots;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crossing {
    Record(Value),
    Barrier(Barrier),
    End,
}

/// What a task is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Opening,
    /// Waits for the order to run.
    Ready,
    Running,
    /// Its input has ended.
    Ended,
    Gone,
}

/// A task: a source when it has no inputs, else one that remembers what it saw and makes it visible.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) at: At,
    pub(super) mail: Slots,
    /// Of a source.
    pub(super) position: u64,
    pub(super) aligner: Aligner,
    pub(super) seen: BTreeSet<Value>,
    pub(super) held: Vec<Value>,
    pub(super) prepared: BTreeMap<CheckpointId, serde_json::Value>,
    pub(super) names: u64,
}

impl Task {
    /// As the checkpoint has it.
    pub(super) fn new(i: usize, sources: usize, from: Option<&Manifest>) -> Self {
        let inputs = if i < sources { 0 } else { sources };
        let mut task = Task {
            at: At::Opening,
            mail: Slots::default(),
            position: 0,
            aligner: Aligner::new(inputs),
            seen: BTreeSet::new(),
            held: Vec::new(),
            prepared: BTreeMap::new(),
            names: 0,
        };
        let (uid, subtask) = if i < sources { ("in", i) } else { ("tally", i - sources) };
        let part = from.and_then(|m| m.parts.iter().find(|p| p.uid.as_str() == uid && p.subtask == subtask));
        let items = |list: &str| part.and_then(|p| p.items.get(list)).into_iter().flatten();
        task.position = items("positions").filter_map(|(_, value)| value.as_u64()).sum();
        task.seen = items("seen").map(|(_, value)| read_value(value)).collect();
        task
    }

    pub(super) fn freeze(
        &mut self,
        i: usize,
        sources: usize,
        barrier: Barrier,
        attempt: AttemptId,
        outside: &Outside,
    ) -> Part {
        let mut items = Items::new();
        if i < sources {
            items.entry("positions".into()).or_default().insert(i.to_string(), self.position.into());
            return Part { uid: "in".into(), subtask: i, items };
        }
        if !self.held.is_empty() {
            self.names += 1;
            let name = format!("{attempt}.{i}.{}", self.names);
            outside.prepare(&name);
            let prepared = json((name, std::mem::take(&mut self.held)));
            self.prepared.insert(barrier.checkpoint, prepared);
        }
        for value in &self.seen {
            let key = format!("{}.{}", value.0, value.1);
            items.entry("seen".into()).or_default().insert(key, json(value));
        }
        for (id, prepared) in &self.prepared {
            items.entry("prepared".into()).or_default().insert(id.to_string(), prepared.clone());
        }
        Part { uid: "tally".into(), subtask: i - sources, items }
    }
}

fn json(value: impl serde::Serialize) -> serde_json::Value {
    serde_json::to_value(value).expect("plain data is JSON")
}
