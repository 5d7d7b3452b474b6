//! The order timers fire in, against a plain list; what may be set while they fire.

use super::*;
use proptest::prelude::*;
use weir_state::key_hash;

fn set(timers: &mut Timers<u64>, key: u64, time: i64) {
    timers.set(key_hash(&key), &key, EventTime(time));
}

fn fire(timers: &mut Timers<u64>, watermark: i64) -> Vec<(i64, u64)> {
    timers.reach(watermark);
    timers.fire_until(watermark);
    let fired = std::iter::from_fn(|| timers.next_due()).map(|due| (due.time.0, due.key)).collect();
    timers.rest();
    fired
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
    assert_eq!((timers.len(), timers.lines.len()), (0, 0));
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
    timers.reach(30);
    timers.fire_until(30);
    let mut fired = Vec::new();
    while let Some(due) = timers.next_due() {
        fired.push((due.time.0, due.key));
        set(&mut timers, due.key, due.time.0); // at its own time: waits
        set(&mut timers, due.key, due.time.0 + 10); // later: still due
    }
    timers.rest();
    assert_eq!(fired, [(10, 1), (10, 2), (20, 1), (20, 2), (30, 1), (30, 2)]);
    let mut left = fire(&mut timers, 30);
    left.sort_unstable();
    assert_eq!(left, [(10, 1), (10, 2), (20, 1), (20, 2), (30, 1), (30, 2)]);
}

#[test]
fn what_is_set_between_two_parts_waits_for_the_next_advance_unless_it_is_later_than_the_clock() {
    let mut timers = Timers::default();
    (1..=4).for_each(|key| set(&mut timers, key, key as i64));
    timers.reach(10);
    timers.fire_until(10);
    assert_eq!(timers.next_due().map(|due| due.key), Some(1));
    timers.pause();
    // A hot key sets and takes back what has come too late.
    for _ in 0..3 {
        [3, 5, 9, 20].iter().for_each(|time| set(&mut timers, 7, *time));
        timers.delete(key_hash(&7), &7, EventTime(9));
        set(&mut timers, 4, 4);
    }
    // The turn of a key is before the others'.
    assert_eq!(timers.next_due_of(key_hash(&3), &3, 10).map(|due| due.time.0), Some(3));
    assert_eq!(timers.next_due_of(key_hash(&3), &3, 10), None);
    assert_eq!(timers.next_due_of(key_hash(&7), &7, 10), None, "they are late");
    let rest: Vec<_> = std::iter::from_fn(|| timers.next_due()).map(|due| due.key).collect();
    assert_eq!((rest, timers.has_due(), timers.len()), (vec![2, 4], false, 3));
    timers.rest();
    assert_eq!(timers.first(), Some(3));
    assert_eq!(fire(&mut timers, 11), [(3, 7), (5, 7)]);
    assert_eq!(fire(&mut timers, 20), [(20, 7)]);
    assert_eq!((timers.len(), timers.lines.len()), (0, 0));
}

#[test]
fn the_last_watermark_fires_what_is_set_and_refuses_more() {
    let mut timers = Timers::default();
    set(&mut timers, 1, i64::MAX);
    set(&mut timers, 1, 5);
    set(&mut timers, 1, i64::MIN);
    timers.reach(i64::MAX);
    timers.fire_until(i64::MAX);
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
            let keys: std::collections::BTreeSet<u64> = model.iter().map(|timer| timer.1).collect();
            prop_assert_eq!(timers.lines.len(), keys.len());
        }
    }
}
