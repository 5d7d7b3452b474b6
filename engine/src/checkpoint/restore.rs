//! May the job as written begin from this checkpoint? A pure comparison of a manifest with a plan.

use std::sync::Arc;

use weir_state::checkpoint::{Manifest, OperatorState};

use crate::plan::Plan;

/// What restoring leaves behind, named by whoever asked for it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped(pub(crate) Vec<String>);

/// Compares; the answer names what will be dropped because that was asked for.
///
/// # Errors
/// In words, with what to do: another number of key groups, or state that no operator of the job would take, or one of another
/// kind.
pub(crate) fn check(manifest: &Manifest, plan: &Plan, drop_state: &[String]) -> Result<Dropped, String> {
    if manifest.key_groups != plan.key_groups {
        return Err(format!(
            "it was taken with {} key groups and the job has {}: the number is fixed at a job's first checkpoint",
            manifest.key_groups, plan.key_groups
        ));
    }
    let (mut dropped, mut orphans) = (Vec::new(), Vec::new());
    for operator in manifest.operators.iter().filter(|o| has_state(o)) {
        let uid = operator.uid.clone();
        let may_go = drop_state.contains(&uid);
        match plan.kind_of(&uid) {
            None if may_go => dropped.push(uid),
            None => orphans.push(uid),
            Some(kind) if may_stay(&operator.kind, kind) => {}
            Some(_) if may_go => dropped.push(uid),
            Some(kind) => {
                return Err(format!(
                    "{uid:?} was an operator of kind {} when it was taken and is one of kind {kind} in the job, which does not \
                     understand that state: give the new operator a uid of its own, and say that the state of the old one may go: \
                     drop_state({uid:?})",
                    operator.kind
                ));
            }
        }
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

/// What of a checkpoint the operators of the job may have: all of it but the state of other kinds, which [`check`] has let go.
pub(crate) fn without_other_kinds(manifest: Arc<Manifest>, plan: &Plan) -> Arc<Manifest> {
    let stays = |o: &OperatorState| plan.kind_of(&o.uid).is_none_or(|kind| may_stay(&o.kind, kind));
    if manifest.operators.iter().all(stays) {
        return manifest;
    }
    let mut less = Manifest::clone(&manifest);
    less.operators.retain(stays);
    Arc::new(less)
}

/// Whether an operator of kind `is` may find what one of kind `was` left. Windows say themselves which of them may follow which, and
/// with what they had open; what has no kind was not taken by a job.
fn may_stay(was: &str, is: &str) -> bool {
    let is_window = |kind: &str| kind.ends_with("_window");
    was.is_empty() || was == is || (is_window(was) && is_window(is))
}

fn has_state(operator: &OperatorState) -> bool {
    operator.parts.iter().any(|p| !p.tables.is_empty() || p.items.values().any(|list| !list.is_empty()))
}

#[cfg(test)]
mod tests {
    use weir_state::checkpoint::{Kind, MANIFEST_FORMAT, Mode, Part};
    use weir_state::store::PartFormat;

    use super::*;
    use crate::testkit::{NullSink, Probe, ScriptSource};
    use crate::{Job, OperatorInfo};

    /// A job in which `totals` is an operator of this kind.
    fn plan(kind: &'static str) -> Plan {
        let job = Job::named("j").parallelism(1);
        job.source("in", ScriptSource::of([(1, 0)]))
            .without_event_time()
            .transform(OperatorInfo::stateful(kind, "totals"), Probe::new())
            .sink("out", NullSink);
        job.plan().unwrap()
    }

    fn manifest(uid: &str, kind: &str) -> Manifest {
        let items = [("list".to_owned(), [("key".to_owned(), 1.into())].into_iter().collect())];
        let part = Part {
            subtask: 0,
            key_groups: 0..128,
            format: PartFormat::Portable,
            tables: Vec::new(),
            items: items.into_iter().collect(),
            files: Vec::new(),
            finished: false,
        };
        Manifest {
            format: MANIFEST_FORMAT,
            job: "j".into(),
            lineage: String::new(),
            id: 1,
            epoch: 1,
            kind: Kind::Checkpoint,
            attempt: 1,
            key_groups: weir_state::KEY_GROUPS,
            triggered_ms: 0,
            completed_ms: 0,
            mode: Mode::ExactlyOnce,
            operators: vec![OperatorState {
                uid: uid.into(),
                kind: kind.into(),
                parallelism: 1,
                parts: vec![part],
            }],
        }
    }

    #[test]
    fn an_operator_of_another_kind_does_not_get_the_state_under_its_uid() {
        let (plan, manifest) = (plan("process"), manifest("totals", "interval_join"));
        let why = check(&manifest, &plan, &[]).unwrap_err();
        assert!(why.contains("\"totals\" was an operator of kind interval_join"), "{why}");
        assert!(
            why.contains("one of kind process in the job") && why.contains("drop_state(\"totals\")"),
            "{why}"
        );
        assert_eq!(check(&manifest, &plan, &["totals".into()]), Ok(Dropped(vec!["totals".into()])));
        assert_eq!(without_other_kinds(Arc::new(manifest), &plan).operators, []);
    }

    #[test]
    fn the_same_kind_and_another_window_get_it() {
        for (was, is) in [("process", "process"), ("tumbling_window", "sliding_window"), ("", "process")] {
            let (plan, manifest) = (plan(is), Arc::new(manifest("totals", was)));
            assert_eq!(check(&manifest, &plan, &[]), Ok(Dropped::default()), "{was} {is}");
            assert!(Arc::ptr_eq(&without_other_kinds(manifest.clone(), &plan), &manifest), "{was} {is}");
        }
    }

    #[test]
    fn an_operator_that_is_gone_is_named() {
        let (plan, manifest) = (plan("process"), manifest("sums", "process"));
        let why = check(&manifest, &plan, &[]).unwrap_err();
        assert!(why.contains("sums") && why.contains("drop_state(\"sums\")"), "{why}");
        assert_eq!(check(&manifest, &plan, &["sums".into()]), Ok(Dropped(vec!["sums".into()])));
    }
}
