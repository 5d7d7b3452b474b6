//! Layers against one map: whatever is frozen, written, changed, merged and forgotten in between.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::layer::DIRTY;
use super::*;

const NEVER: Option<fn(Option<i64>) -> bool> = None;

type Held = Layers<u8, String>;

fn put(held: &mut Held, key: u8, value: Option<String>) {
    let slot = slot(&key);
    let touched = 0;
    if held.top_mut().find(slot, &key).is_some() {
        held.top_mut().set(slot, &key, value);
    } else {
        held.top_mut().add(slot, Sub { key, value, touched, flags: DIRTY });
    }
}

fn all(held: &mut Held) -> BTreeMap<u8, String> {
    held.bring_all_up();
    let mut all = BTreeMap::new();
    for sub in held.iter() {
        if let Some(value) = &sub.value {
            assert_eq!(all.insert(sub.key, value.clone()), None, "every key once");
        }
    }
    all
}

#[derive(Clone, Debug)]
enum Op {
    Put(u8, String),
    Take(u8),
    Change(u8),
    Get(u8),
    /// Frozen, and touched before it is written.
    Share,
    /// Whoever wrote the oldest that is being written has done so.
    Done,
    /// Frozen, written and only then touched.
    PushDown,
    Tidy(usize),
    All,
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0u8..20;
    prop_oneof![
        6 => (key(), "[a-z]{0,3}").prop_map(|(key, value)| Op::Put(key, value)),
        4 => key().prop_map(Op::Take),
        3 => key().prop_map(Op::Change),
        6 => key().prop_map(Op::Get),
        4 => Just(Op::Share),
        4 => Just(Op::Done),
        2 => Just(Op::PushDown),
        5 => (1usize..20).prop_map(Op::Tidy),
        1 => Just(Op::All),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, max_shrink_iters: 20_000, ..ProptestConfig::default() })]
    #[test]
    fn layers_are_one_map(ops in prop::collection::vec(op(), 1..120)) {
        let (mut held, mut model, mut writing) = (Held::new(), BTreeMap::new(), Vec::new());
        for op in ops {
            match op {
                Op::Put(key, value) => {
                    put(&mut held, key, Some(value.clone()));
                    model.insert(key, value);
                }
                Op::Take(key) => {
                    put(&mut held, key, None);
                    model.remove(&key);
                }
                Op::Change(key) => {
                    let value = held.lend(slot(&key), &key).and_then(|sub| sub.value.as_mut());
                    prop_assert_eq!(value.is_some(), model.contains_key(&key));
                    value.into_iter().chain(model.get_mut(&key)).for_each(|value| value.push('!'));
                }
                Op::Get(key) => {
                    let value = held.find(slot(&key), &key).and_then(|sub| sub.value.as_ref());
                    prop_assert_eq!(value, model.get(&key));
                }
                Op::Share => {
                    let goes_on = held.share();
                    writing.push(std::mem::replace(&mut held, goes_on));
                }
                Op::Done if writing.is_empty() => {}
                Op::Done => drop(writing.remove(0)),
                Op::PushDown => held.push_down(),
                Op::Tidy(most) => drop(held.tidy(most, NEVER)),
                Op::All => prop_assert_eq!(all(&mut held), model.clone()),
            }
        }
        prop_assert_eq!(all(&mut held), model.clone());
        writing.clear();
        held.tidy(usize::MAX, NEVER);
        prop_assert_eq!(all(&mut held), model);
        let below = held.below.as_ref();
        prop_assert!(below.is_none_or(|below| below.frozen.is_empty() && below.layers.len() <= 1));
    }
}

#[test]
fn what_is_frozen_is_not_copied() {
    let mut held = Layers::<u32, u64>::new();
    for n in 0..100_000u32 {
        let sub = Sub { key: n, value: Some(1), touched: 0, flags: DIRTY };
        held.top_mut().add(slot(&n), sub);
    }
    let mut goes_on = held.share();
    let at = slot(&7u32);
    assert_eq!(goes_on.find(at, &7).and_then(|sub| sub.value), Some(1));
    if let Some(sub) = goes_on.find_mut(at, &7) {
        sub.value = Some(2);
    }
    assert_eq!(goes_on.with_top(Layer::len), 1, "only what was touched");
    assert!(goes_on.weight() < 1_000, "{} bytes beside what is being written", goes_on.weight());
    drop(held);
    goes_on.tidy(1, NEVER);
    assert_eq!(goes_on.with_top(Layer::len), 1, "the top stays the top");
    assert!(goes_on.weight() > 100_000 * 16);
    assert_eq!(goes_on.find(at, &7).and_then(|sub| sub.value), Some(2));
    assert_eq!(goes_on.iter().filter(|sub| sub.value == Some(1)).count(), 99_999);
}

#[test]
fn what_has_expired_goes_when_layers_are_merged_and_afterwards() {
    let mut held = Layers::<u32, u64>::new();
    let fill = |held: &mut Layers<u32, u64>, from: u32, n: u32, touched: i64| {
        for key in from..from + n {
            held.top_mut().add(slot(&key), Sub { key, value: Some(1), touched, flags: DIRTY });
        }
        held.push_down();
    };
    let until = |at: i64| Some(move |touched: Option<i64>| touched.is_some_and(|t| t <= at));
    fill(&mut held, 0, 100, 10);
    fill(&mut held, 1_000, 300, 20);
    let mut expired = false;
    (0..1_000).for_each(|_| expired |= held.tidy(3, until(10)));
    assert!(expired);
    assert_eq!(held.iter().filter(|sub| sub.touched == 20).count(), 300);
    assert_eq!(held.iter().count(), 300);
    // Few are merged into many, which are looked at for that.
    fill(&mut held, 5_000, 10, 30);
    (0..1_000).for_each(|_| expired |= held.tidy(3, until(20)));
    assert!(held.iter().all(|sub| sub.touched == 30));
    assert_eq!(held.iter().count(), 10);
}
