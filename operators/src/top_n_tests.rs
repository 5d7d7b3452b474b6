//! Top lists against a plain computation over all records so far, over restarts and parallelism.

use super::*;
use crate::process::Process;
use crate::trial::{cuts, input, run};
use proptest::prelude::*;
use std::cmp::Reverse;
use std::time::Duration;
use weir_engine::testkit::{ManualClock, OpHarness, context_by};
use weir_engine::{EndKind, EventTime, Keyed};
use weir_state::key_hash;

type Value = (i64, usize);

/// Every list that a key has had, from the definition alone: `id` tells what counts as one.
fn plain(values: &[Value], n: usize, id: impl Fn(&Value) -> i64) -> Vec<Vec<Value>> {
    let mut lists: Vec<Vec<Value>> = Vec::new();
    for so_far in 1..=values.len() {
        // Sorts are stable: the first of equals stays first.
        let mut best: Vec<Value> = values[..so_far].to_vec();
        best.sort_by_key(|v| Reverse(v.0));
        let mut seen = std::collections::BTreeSet::new();
        best.retain(|v| seen.insert(id(v)));
        best.truncate(n);
        if lists.last() != Some(&best) {
            lists.push(best);
        }
    }
    lists
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_sort(input in input(), cuts in cuts(), n in 1..5usize, each in any::<bool>()) {
        let score = |v: &Value| v.0;
        let given = if each {
            let lists = TopLists::new(Top::of(n).each(|v: &Value| v.1 as i64 % 7), score);
            run(Process::new(lists), &input, &cuts, false)
        } else {
            let lists = TopLists::<u64, Value, i64, (), _, _>::new(Top::of(n), score);
            run(Process::new(lists), &input, &cuts, false)
        };
        for key in 0..4 {
            let values: Vec<Value> = input.iter().filter(|i| i.0 == key).map(|i| i.1).collect();
            let expected = plain(&values, n, |v| if each { v.1 as i64 % 7 } else { v.1 as i64 });
            let got: Vec<_> = given.iter().filter(|r| r.value.key == key).map(|r| r.value.top.clone()).collect();
            prop_assert_eq!(got, expected);
        }
    }
}

fn ranked(scores: &[(f64, u8)]) -> Vec<Ranked<f64, u8, ()>> {
    scores.iter().map(|(score, id)| Ranked { score: *score, id: Some(*id), record: () }).collect()
}

#[test]
fn what_a_record_changes() {
    let list = ranked(&[(9.0, 1), (5.0, 2), (5.0, 3)]);
    let into = |out, at| Some(Change { out, at });
    let id = |n: u8| Some(n);
    assert_eq!(change(&list, &7.0, id(4).as_ref(), 3), into(Some(2), 1));
    assert_eq!(change(&list, &7.0, id(2).as_ref(), 3), into(Some(1), 1));
    assert_eq!(change(&list, &9.5, id(3).as_ref(), 3), into(Some(2), 0));
    assert_eq!(change(&list, &9.0, id(4).as_ref(), 3), into(Some(2), 1), "behind its equal");
    assert_eq!(change(&list, &5.0, id(4).as_ref(), 3), None, "the first of equals stays");
    assert_eq!(change(&list, &5.0, id(4).as_ref(), 4), into(None, 3));
    assert_eq!(change(&list, &8.0, id(1).as_ref(), 3), None, "a lower score of the same");
    assert_eq!(change(&list, &f64::NAN, id(4).as_ref(), 4), None);
    assert_eq!(change(&ranked(&[]), &f64::NAN, None, 4), None);
    assert_eq!(change(&ranked(&[]), &1.0, None, 1), into(None, 0));
}

#[test]
fn a_list_that_has_not_changed_for_its_time_is_forgotten() {
    let clock = ManualClock::at(0);
    let cx = context_by(std::sync::Arc::new(clock.clone()), "best", 0, 1);
    let top = Top::of(2).ttl(Ttl::event_time(Duration::from_millis(10)));
    let lists = TopLists::<u64, i64, i64, (), _, _>::new(top, |v: &i64| *v);
    let mut h = OpHarness::with(Process::new(lists), &cx).unwrap();
    let mut send = |value: i64, time: i64| {
        h.send(Keyed { hash: key_hash(&1u64), key: 1, value }, time).unwrap();
        let given = h.take().into_iter().map(|r| (r.value.top, r.time)).collect::<Vec<_>>();
        h.watermark(time).unwrap();
        given
    };
    assert_eq!(send(5, 0), [(vec![5], EventTime(0))]);
    assert_eq!(send(7, 1), [(vec![7, 5], EventTime(1))]);
    assert_eq!(send(3, 9), []);
    assert_eq!(send(4, 11), []);
    assert_eq!(send(1, 12), [(vec![1], EventTime(12))]);
    h.end(EndKind::Flush).unwrap();
}

#[test]
fn e16_an_empty_list_is_refused() {
    assert_eq!(Top::<i64>::of(0).check().unwrap_err().to_string(), "n is 0: it must be at least 1");
}

#[test]
fn a_later_life_with_shorter_lists_cuts_them_at_the_next_change() {
    let lists = |n| Process::new(TopLists::<u64, i64, i64, (), _, _>::new(Top::of(n), |v: &i64| *v));
    let keyed = |value: i64| Keyed { hash: key_hash(&1u64), key: 1u64, value };
    let mut h = OpHarness::new(lists(5)).unwrap();
    h.batch((1..=5).map(|n| (keyed(n), n))).unwrap();
    let saved = h.save(1).unwrap();
    let mut h = OpHarness::restored(lists(3), &[&saved], 0, 1).unwrap();
    h.batch((6..=20).map(|n| (keyed(n), n))).unwrap();
    let lengths: Vec<_> = h.take().into_iter().map(|r| r.value.top).collect();
    assert!(lengths.iter().all(|top| top.len() == 3), "{lengths:?}");
    assert_eq!(lengths.last().unwrap(), &[20, 19, 18]);
}
