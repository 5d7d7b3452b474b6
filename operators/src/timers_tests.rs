//! The order timers fire in, against a plain list; what may be set while they fire.

use super::*;
use proptest::prelude::*;
use weir_state::key_hash;

fn set(timers: &mut Timers<u64>, key: u64, time: i64) {
    timers.set(key_hash(&key), &key, EventTime(time));
}

fn fire(timers: &mut Timers<u64>, watermark: i64) -> Vec<(i64, u64)> {
    timers.advance(watermark);
    std::iter::from_fn(|| timers.next_due()).map(|due| (due.time.0, due.key)).collect()
}

#[test]
fn fire_up_to_and_including_the_watermark_in_order_of_time_then_of_setting() {
    let mut timers = Timers::default();
    for (key, time) in [(2, 10), (1, 10), (3, -5), (1, 11), (2, 10)] {
        set(&mut timers, key, time);
    }
    assert_eq!(fire(&mut timers, 10), [(-5, 3), (10, 2), (10, 1)]);
    assert_eq!(fire(&mut timers, 10), []);
    assert_eq!(fire(&mut timers, 11), [(11, 1)]);
    assert_eq!((timers.len(), timers.marks.len()), (0, 0));
}

#[test]
fn a_past_time_fires_at_the_next_advance() {
    let mut timers = Timers::default();
    assert_eq!(fire(&mut timers, 100), []);
    set(&mut timers, 1, 50);
    assert_eq!(fire(&mut timers, 101), [(50, 1)]);
}

#[test]
fn a_timer_that_sets_itself_again_does_not_hold_an_advance_for_ever() {
    let mut timers = Timers::default();
    set(&mut timers, 1, 10);
    set(&mut timers, 2, 10);
    timers.advance(30);
    let mut fired = Vec::new();
    while let Some(due) = timers.next_due() {
        fired.push((due.time.0, due.key));
        set(&mut timers, due.key, due.time.0); // at its own time: waits
        set(&mut timers, due.key, due.time.0 + 10); // later: still due
    }
    assert_eq!(fired, [(10, 1), (10, 2), (20, 1), (20, 2), (30, 1), (30, 2)]);
    let mut left = fire(&mut timers, 30);
    left.sort_unstable();
    assert_eq!(left, [(10, 1), (10, 2), (20, 1), (20, 2), (30, 1), (30, 2)]);
}

#[test]
fn the_last_watermark_fires_what_is_set_and_refuses_more() {
    let mut timers = Timers::default();
    set(&mut timers, 1, i64::MAX);
    set(&mut timers, 1, 5);
    set(&mut timers, 1, i64::MIN);
    timers.advance(i64::MAX);
    let mut fired = Vec::new();
    while let Some(due) = timers.next_due() {
        fired.push(due.time.0);
        set(&mut timers, 1, due.time.0.saturating_add(1));
    }
    assert_eq!(fired, [i64::MIN, 5, i64::MAX]);
    assert_eq!((timers.len(), timers.refused()), (0, 3));
}

#[test]
fn the_end_of_time_is_no_overflow() {
    let mut timers = Timers::default();
    set(&mut timers, 1, i64::MAX);
    set(&mut timers, 2, i64::MAX);
    assert_eq!(fire(&mut timers, i64::MAX - 1), []);
    assert_eq!(fire(&mut timers, i64::MAX), [(i64::MAX, 1), (i64::MAX, 2)]);
}

#[derive(Clone, Debug)]
enum Step {
    Set(u64, i64),
    Delete(u64, i64),
    Advance(i64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6u64, -20..20i64).prop_map(|(k, t)| Step::Set(k, t)),
        1 => (0..6u64, -20..20i64).prop_map(|(k, t)| Step::Delete(k, t)),
        1 => (-25..25i64).prop_map(Step::Advance),
    ]
}

proptest! {
    #[test]
    fn agrees_with_a_list(steps in prop::collection::vec(step(), 0..200)) {
        let mut timers = Timers::default();
        let mut model: Vec<(i64, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Set(key, time) => {
                    set(&mut timers, key, time);
                    if !model.contains(&(time, key)) {
                        model.push((time, key));
                    }
                }
                Step::Delete(key, time) => {
                    timers.delete(key_hash(&key), &key, EventTime(time));
                    model.retain(|timer| *timer != (time, key));
                }
                Step::Advance(watermark) => {
                    let mut due: Vec<_> = model.extract_if(.., |t| t.0 <= watermark).collect();
                    due.sort_by_key(|t| t.0); // stable: the order of setting stays
                    prop_assert_eq!(fire(&mut timers, watermark), due);
                }
            }
            prop_assert_eq!(timers.len(), model.len());
            prop_assert_eq!(timers.marks.len(), model.len());
        }
    }
}
