//! May the job as written begin from this checkpoint? A pure comparison of a manifest with a plan.

use std::collections::BTreeSet;

use weir_state::checkpoint::{Manifest, OperatorState};

use crate::plan::Plan;

/// What restoring leaves behind, named by whoever asked for it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped(pub(crate) Vec<String>);

/// Compares; the answer names what will be dropped because that was asked for.
///
/// # Errors
/// In words, with what to do: another number of key groups, or state that no operator of the job would take.
pub(crate) fn check(manifest: &Manifest, plan: &Plan, drop_state: &[String]) -> Result<Dropped, String> {
    if manifest.key_groups != plan.key_groups {
        return Err(format!(
            "it was taken with {} key groups and the job has {}: the number is fixed at a job's first checkpoint",
            manifest.key_groups, plan.key_groups
        ));
    }
    let known: BTreeSet<&str> =
        plan.chains.iter().flat_map(|c| &c.operators).map(|o| o.uid.as_str()).collect();
    let (mut dropped, mut orphans) = (Vec::new(), Vec::new());
    for operator in manifest.operators.iter().filter(|o| !known.contains(o.uid.as_str()) && has_state(o)) {
        let to = if drop_state.contains(&operator.uid) { &mut dropped } else { &mut orphans };
        to.push(operator.uid.clone());
    }
    if orphans.is_empty() {
        return Ok(Dropped(dropped));
    }
    Err(format!(
        "it holds state of operators that the job does not have: {}. If one was renamed, give it its old uid; if it is \
         gone, say so: {}",
        orphans.join(", "),
        orphans.iter().map(|uid| format!("drop_state({uid:?})")).collect::<Vec<_>>().join(", ")
    ))
}

fn has_state(operator: &OperatorState) -> bool {
    operator.parts.iter().any(|p| !p.tables.is_empty() || p.items.values().any(|list| !list.is_empty()))
}
