//! What is refused, and what the message says of it.

use super::*;
use crate::graph::OperatorInfo;

fn chain(uids: &[&str], parallelism: usize) -> PlannedChain {
    let operators =
        uids.iter().map(|u| PlannedOperator { uid: (*u).into(), kind: "map", ..PlannedOperator::default() });
    PlannedChain { operators: operators.collect(), parallelism, complete: true }
}

fn edge(from: usize, to: usize, partitioning: Partitioning) -> PlannedEdge {
    PlannedEdge { from, operator: None, to, right: false, partitioning, side: None, channels: 1 }
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

fn info() -> OperatorInfo {
    OperatorInfo::stateful("op", "op")
}

fn op(uid: &str, info: OperatorInfo) -> PlannedOperator {
    let updating = info.updating;
    PlannedOperator { uid: uid.into(), kind: "op", updating, ..PlannedOperator::default() }
}

fn of(operators: Vec<PlannedOperator>) -> PlannedChain {
    PlannedChain { operators, parallelism: 1, complete: true }
}

#[test]
fn results_that_replace_each_other_are_not_added_up() {
    let [gives, map, settles, adds] = [
        op("gives", info().updates(true)),
        op("map", info()),
        op("settles", info().settles()),
        op("adds", info().adds_up()),
    ];
    let edges = || vec![edge(1, 0, Partitioning::KeyBy), edge(2, 1, Partitioning::Forward)];
    let chains = |middle: &[&PlannedOperator]| {
        let middle = middle.iter().map(|op| (*op).clone()).collect();
        vec![of(vec![adds.clone()]), of(middle), of(vec![gives.clone()])]
    };
    let error = plan(chains(&[&map]), edges()).check().unwrap_err();
    assert_eq!(error, PlanError::Updates { from: "gives".into(), to: "adds".into() });
    for part in ["\"adds\" adds up what \"gives\" gives", ".latest_per_window(uid, lateness)"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(plan(chains(&[&map, &settles]), edges()).check(), Ok(()));
    let latest = op("latest", info().settles_windows());
    assert_eq!(plan(chains(&[&latest]), edges()).check(), Ok(()));
    let moving = op("gives", info().updates(true).moves(true));
    for (middle, to) in [(&map, "adds"), (&latest, "latest")] {
        let mut chains = chains(&[middle]);
        chains[2].operators = vec![moving.clone()];
        let error = plan(chains, edges()).check().unwrap_err();
        assert_eq!(error, PlanError::MovingUpdates { from: "gives".into(), to: to.into() });
        assert!(!error.to_string().contains("latest_per_window"), "{error}");
    }
    let mut late = edges();
    (late[1].side, late[1].operator) = (Some("late"), Some(0));
    assert_eq!(plan(chains(&[&map]), late.clone()).check(), Ok(()));
    // What a side output hands on is what came.
    late[1].operator = Some(1);
    for (hands_on, expected) in
        [(&map, Err(PlanError::Updates { from: "gives".into(), to: "adds".into() })), (&settles, Ok(()))]
    {
        let mut chains = chains(&[]);
        chains[2].operators.push((*hands_on).clone());
        assert_eq!(plan(chains, late.clone()).check(), expected);
    }
}

#[test]
fn what_is_taken_back_is_not_waited_for() {
    let leaves_out = op("leaves-out", info().takes_back(true));
    for wants in [op("wants", info().adds_up()), op("wants", info().settles_windows())] {
        let gives = op("gives", info().updates(true));
        let error = plan(vec![of(vec![gives, leaves_out.clone(), wants.clone()])], vec![]).check();
        let error = error.unwrap_err();
        let [from, by, to] = ["gives", "leaves-out", "wants"].map(String::from);
        assert_eq!(error, PlanError::TakenBack { from, by, to });
        for part in ["in front of \"leaves-out\"", "LeftOuter", ".settled()"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        let once = op("once", info().updates(false));
        let settled = op("settled", info().settles());
        for before in [vec![once], vec![op("gives", info().updates(true)), settled]] {
            let all = before.into_iter().chain([leaves_out.clone(), wants.clone()]).collect();
            assert_eq!(plan(vec![of(all)], vec![]).check(), Ok(()));
        }
    }
}

#[test]
fn parts_are_not_taken_for_the_whole() {
    let check = |last| plan(vec![of(vec![op("gives", info().in_parts(true)), last])], vec![]).check();
    assert_eq!(check(op("adds", info().adds_up())), Ok(()));
    let error = check(op("latest", info().settles_windows())).unwrap_err();
    assert_eq!(error, PlanError::Parts { from: "gives".into(), to: "latest".into() });
    assert!(error.to_string().contains(".discarding()"), "{error}");
}

#[test]
fn what_replaces_rows_of_a_table_is_settled() {
    let check = |right: bool| {
        let gives = of(vec![op("gives", info().updates(true))]);
        let joins = of(vec![op("joins", info().settles_right()), op("adds", info().adds_up())]);
        let mut edge = edge(0, 1, Partitioning::KeyBy);
        edge.right = right;
        plan(vec![gives, joins], vec![edge]).check()
    };
    assert_eq!(check(false), Err(PlanError::Updates { from: "gives".into(), to: "adds".into() }));
    assert_eq!(check(true), Ok(()));
}

#[test]
fn a_loose_end_is_named_by_what_leads_to_it() {
    let mut loose = chain(&[], 1);
    loose.complete = false;
    let p = plan(vec![chain(&["a"], 1), loose], vec![edge(0, 1, Partitioning::Forward)]);
    assert_eq!(p.check(), Err(PlanError::Dangling { uid: "a".into() }));
}
