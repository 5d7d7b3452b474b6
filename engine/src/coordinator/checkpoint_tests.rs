//! The checkpoint machine driven by hand, and by every interleaving that chance finds.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const LIMITS: Limits =
    Limits { every: s(10), min_pause: s(0), timeout: s(60), tolerated_failures: 1, tolerated_age: s(1_000) };

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn machine(tasks: usize) -> Checkpoints<&'static str> {
    Checkpoints::new(LIMITS, tasks, CheckpointId(1), s(0), s(0), 0)
}

const ONE: CheckpointId = CheckpointId(1);
const TWO: CheckpointId = CheckpointId(2);

#[test]
fn one_at_a_time_each_after_the_last() {
    let mut m = machine(2);
    assert_eq!(m.tick(s(9)), []);
    assert_eq!(m.tick(s(10)), [Order::Inject(ONE, Purpose::Periodic)]);
    assert_eq!(m.tick(s(25)), [], "one is in flight");
    assert_eq!(m.written(0, ONE, "a"), []);
    assert_eq!(m.written(0, TWO, "x"), [], "of no checkpoint in flight");
    assert_eq!(m.written(1, ONE, "b"), [Order::Publish(ONE, Purpose::Periodic, vec!["a", "b"])]);
    assert_eq!(m.published(ONE, Ok(()), s(26)), [Order::Complete(ONE, Purpose::Periodic, vec![])]);
    assert_eq!(m.tick(s(35)), []);
    assert_eq!(m.tick(s(36)), [Order::Inject(TWO, Purpose::Periodic)]);
}

#[test]
fn failures_are_tolerated_so_many_times_in_a_row() {
    let mut m = machine(1);
    m.tick(s(10));
    let lost = Lost::Failed("disk full".into());
    assert_eq!(m.failed(ONE, "disk full".into(), s(11)), [Order::Abort(ONE, Purpose::Periodic, lost)]);
    assert_eq!(m.failed(ONE, "again".into(), s(11)), [], "it is over");
    m.tick(s(21));
    assert_eq!(m.written(0, TWO, "a").len(), 1);
    let orders = m.published(TWO, Err("no such bucket".into()), s(22));
    let [Order::Abort(TWO, _, _), Order::Fail(why)] = &orders[..] else { panic!("{orders:?}") };
    assert_eq!(
        why,
        "2 checkpoints failed in a row, more than the 1 tolerated; the last one, 2, because no such bucket"
    );
}

#[test]
fn neither_a_task_that_declines_nor_an_attempt_that_ends_counts() {
    let mut m = machine(1);
    assert_eq!(m.declined(ONE, "a[0]: no".into(), s(9)), [], "none is in flight");
    m.tick(s(10));
    let lost = Lost::Declined("a[0]: no".into());
    assert_eq!(m.declined(ONE, "a[0]: no".into(), s(11)), [Order::Abort(ONE, Purpose::Periodic, lost)]);
    assert_eq!((m.over(s(12)), m.failures()), (vec![], 0));
    m.tick(s(21));
    assert_eq!(m.over(s(22)), [Order::Abort(TWO, Purpose::Periodic, Lost::Attempt)]);
    assert_eq!(m.failures(), 0);
}

#[test]
fn one_that_waits_behind_backpressure_expires_without_counting_until_it_is_too_old() {
    let mut m = machine(2);
    m.tick(s(10));
    m.froze(0, ONE);
    let aligning = Lost::Expired { unfrozen: vec![1], unwritten: vec![0] };
    assert_eq!(m.tick(s(70)), [Order::Abort(ONE, Purpose::Periodic, aligning)]);
    assert_eq!((m.failures(), m.pending()), (0, None));
    m.tick(s(80));
    m.froze(0, TWO);
    m.froze(1, TWO);
    assert_eq!(m.pending(), Some((TWO, s(80), vec![], vec![0, 1])));
    let uploading = Lost::Expired { unfrozen: vec![], unwritten: vec![0, 1] };
    assert_eq!(m.tick(s(140)), [Order::Abort(TWO, Purpose::Periodic, uploading)]);
    assert_eq!(m.failures(), 1);
    let orders = m.tick(s(1_001));
    let [Order::Fail(why)] = &orders[..] else { panic!("{orders:?}") };
    assert!(why.contains("1001.0s old") && why.contains("1000s"), "{why}");
    assert!(
        why.ends_with("; the last one that did not complete: 2, because it took longer than 60s"),
        "{why}"
    );
}

#[test]
fn an_attempt_that_begins_late_takes_a_checkpoint_before_it_is_judged() {
    let late = |limits: Limits| Checkpoints::<&str>::new(limits, 1, CheckpointId(1), s(5_000), s(2_000), 0);
    let begun = [Order::Inject(ONE, Purpose::Periodic)];
    let mut m = late(LIMITS);
    assert_eq!(m.tick(s(5_000)), begun, "twice as old as is tolerated: at once");
    m.written(0, ONE, "a");
    assert_eq!(m.published(ONE, Ok(()), s(5_001)), [Order::Complete(ONE, Purpose::Periodic, vec![])]);
    assert_eq!(m.tick(s(5_002)), [], "it is well");
    // One that fails is told of with the age.
    let mut m = late(LIMITS);
    m.tick(s(5_000));
    m.failed(ONE, "disk full".into(), s(5_001));
    assert!(matches!(&m.tick(s(5_001))[..], [Order::Fail(why)] if why.contains("disk full")));
    // So does one that gets no answer for as long as it may take, or as is tolerated.
    for (timeout, age) in [(60, 1_000), (2_000, 100)] {
        let mut m = late(Limits { timeout: s(timeout), tolerated_age: s(age), ..LIMITS });
        assert_eq!(m.tick(s(5_000)), begun);
        let chance = 5_000 + timeout.min(age);
        assert_eq!(m.tick(s(chance - 1)), []);
        assert!(matches!(m.tick(s(chance)).last(), Some(Order::Fail(why)) if why.contains("old")));
    }
}

#[test]
fn e37_a_source_that_ended_is_in_every_later_checkpoint() {
    let mut m = machine(2);
    m.ended(0);
    assert_eq!(m.written_last(0, s(1)), []);
    let begun = |id| [Order::Inject(id, Purpose::Periodic), Order::WriteLast(id, vec![0])];
    assert_eq!(m.tick(s(10)), begun(ONE));
    assert_eq!(m.written(1, ONE, "b1"), []);
    assert_eq!(m.written(0, ONE, "a"), [Order::Publish(ONE, Purpose::Periodic, vec!["a", "b1"])]);
    assert_eq!(m.published(ONE, Ok(()), s(11)), [Order::Complete(ONE, Purpose::Periodic, vec![0])]);
    assert_eq!(m.tick(s(21)), begun(TWO));
    m.written(0, TWO, "a");
    assert_eq!(m.written(1, TWO, "b2"), [Order::Publish(TWO, Purpose::Periodic, vec!["a", "b2"])]);
    assert_eq!(m.published(TWO, Ok(()), s(22)), [Order::Complete(TWO, Purpose::Periodic, vec![])]);
}

#[test]
fn when_all_have_ended_the_last_checkpoint_lets_them_go() {
    let mut m = machine(2);
    m.tick(s(10));
    m.froze(0, ONE);
    // Task 0 ends with the checkpoint in flight: its part of it stands, its last one is for the next.
    assert_eq!(m.written_last(0, s(11)), []);
    assert_eq!(m.written(0, ONE, "a1"), []);
    assert_eq!(m.written_last(1, s(12)), [Order::WriteLast(ONE, vec![1])]);
    assert_eq!(m.written(1, ONE, "b"), [Order::Publish(ONE, Purpose::Periodic, vec!["a1", "b"])]);
    let orders = m.published(ONE, Ok(()), s(13));
    let last = Purpose::Last(None);
    assert_eq!(
        orders,
        [
            Order::Complete(ONE, Purpose::Periodic, vec![1]),
            Order::Inject(TWO, last.clone()),
            Order::WriteLast(TWO, vec![0, 1]),
        ]
    );
    m.written(0, TWO, "a");
    assert_eq!(m.written(1, TWO, "b"), [Order::Publish(TWO, last.clone(), vec!["a", "b"])]);
    assert_eq!(m.published(TWO, Ok(()), s(14)), [Order::Complete(TWO, last, vec![0])]);
    assert_eq!(m.tick(s(500)), []);
}

#[test]
fn a_stop_with_a_savepoint_lets_nobody_go_before_it_is_there() {
    let mut m = machine(1);
    m.stop_with("s".into());
    assert_eq!(m.tick(s(15)), [], "nothing periodic while it drains");
    let last = Purpose::Last(Some("s".into()));
    let begun = |id| [Order::Inject(id, last.clone()), Order::WriteLast(id, vec![0])];
    assert_eq!(m.written_last(0, s(16)), begun(ONE));
    m.written(0, ONE, "a");
    m.published(ONE, Err("full".into()), s(17));
    assert_eq!(m.tick(s(17)), [], "not at once");
    assert_eq!(m.tick(s(18)), begun(TWO));
    m.written(0, TWO, "a");
    assert_eq!(m.published(TWO, Ok(()), s(19)), [Order::Complete(TWO, last.clone(), vec![0])]);
}

#[test]
fn a_savepoint_lets_nobody_go() {
    let mut m = machine(2);
    m.ended(0);
    m.written_last(0, s(1));
    let purpose = Purpose::Savepoint("a".into());
    m.ask(purpose.clone());
    assert_eq!(m.tick(s(2)), [Order::Inject(ONE, purpose.clone()), Order::WriteLast(ONE, vec![0])]);
    m.written(0, ONE, "a");
    m.written(1, ONE, "b");
    assert_eq!(m.published(ONE, Ok(()), s(3)), [Order::Complete(ONE, purpose, vec![])]);
    m.tick(s(13));
    m.written(0, TWO, "a");
    m.written(1, TWO, "c");
    assert_eq!(m.published(TWO, Ok(()), s(14)), [Order::Complete(TWO, Purpose::Periodic, vec![0])]);
}

#[test]
fn what_is_asked_for_comes_when_none_is_in_flight() {
    let mut m = machine(1);
    m.ask(Purpose::Savepoint("a".into()));
    m.ask(Purpose::Savepoint("b".into()));
    assert_eq!(m.tick(s(1)), [Order::Inject(ONE, Purpose::Savepoint("a".into()))]);
    assert_eq!(["a", "b", "c"].map(|name| m.is_to_save(name)), [true, true, false]);
    m.written(0, ONE, "x");
    let orders = m.published(ONE, Ok(()), s(2));
    assert_eq!(orders[1..], [Order::Inject(TWO, Purpose::Savepoint("b".into()))]);
}

#[test]
fn a_savepoint_that_is_slow_to_be_written_holds_no_checkpoint_up() {
    let mut m = machine(2);
    let [a, b] = ["a", "b"].map(|name| Purpose::Savepoint(name.into()));
    m.ask(a.clone());
    m.ask(b.clone());
    assert_eq!(m.tick(s(1)), [Order::Inject(ONE, a.clone())]);
    m.froze(0, ONE);
    assert_eq!(m.tick(s(11)), [], "its barrier is on its way");
    assert_eq!(m.pending(), Some((ONE, s(1), vec![1], vec![0])));
    m.froze(1, ONE);
    assert_eq!(m.pending(), None);
    assert_eq!(m.tick(s(11)), [Order::Inject(TWO, Purpose::Periodic)], "b waits for its turn");
    m.froze(0, TWO);
    // One of the row that is given up does not take it along.
    let lost = Lost::Failed("x".into());
    assert_eq!(m.failed(TWO, "x".into(), s(12)), [Order::Abort(TWO, Purpose::Periodic, lost)]);
    assert_eq!(m.failures(), 1);
    let three = CheckpointId(3);
    assert_eq!(m.tick(s(22)), [Order::Inject(three, Purpose::Periodic)]);
    m.written(0, three, "c");
    assert_eq!(m.written(1, three, "d"), [Order::Publish(three, Purpose::Periodic, vec!["c", "d"])]);
    assert_eq!(m.published(three, Ok(()), s(23)), [Order::Complete(three, Purpose::Periodic, vec![])]);
    assert_eq!(m.age(s(24)), s(1));
    // It takes too long: that is said to who asked for it, and of the row it says nothing.
    let expired = Lost::Expired { unfrozen: vec![], unwritten: vec![0, 1] };
    let four = CheckpointId(4);
    let aborted = Order::Abort(ONE, a, expired);
    assert_eq!(m.tick(s(61)), [aborted, Order::Inject(four, b.clone())], "now it is b's turn");
    assert_eq!((m.failures(), m.age(s(61))), (0, s(38)));
    m.written(0, four, "e");
    assert_eq!(m.written(1, four, "f"), [Order::Publish(four, b.clone(), vec!["e", "f"])]);
    let five = CheckpointId(5);
    let orders = m.published(four, Ok(()), s(62));
    assert_eq!(orders, [Order::Complete(four, b, vec![]), Order::Inject(five, Purpose::Periodic)]);
    assert_eq!(m.age(s(62)), s(39), "a savepoint makes no checkpoint younger");
}

#[test]
fn what_a_task_remembers_last_is_in_the_savepoint_too_that_is_being_written() {
    let mut m = machine(2);
    let a = Purpose::Savepoint("a".into());
    m.ask(a.clone());
    m.tick(s(1));
    m.froze(0, ONE);
    m.ended(1);
    assert_eq!(m.tick(s(10)), [Order::Inject(TWO, Purpose::Periodic)]);
    let last = |id| Order::WriteLast(id, vec![1]);
    assert_eq!(m.written_last(1, s(11)), [last(ONE), last(TWO)]);
    m.written(1, ONE, "b");
    assert_eq!(m.written(0, ONE, "a"), [Order::Publish(ONE, a.clone(), vec!["a", "b"])]);
    assert_eq!(m.published(ONE, Ok(()), s(12)), [Order::Complete(ONE, a, vec![])], "it lets nobody go");
    m.written(1, TWO, "b");
    assert_eq!(m.written(0, TWO, "c"), [Order::Publish(TWO, Purpose::Periodic, vec!["c", "b"])]);
    assert_eq!(m.published(TWO, Ok(()), s(13)), [Order::Complete(TWO, Purpose::Periodic, vec![1])]);
}

#[test]
fn a_last_snapshot_is_tried_again_as_often_as_is_tolerated() {
    let mut m = machine(1);
    m.ended(0);
    assert_eq!(m.last_failed("no space"), Some(s(1)));
    assert_eq!(m.failures(), 1);
    let last = Purpose::Last(None);
    let begun = [Order::Inject(ONE, last.clone()), Order::WriteLast(ONE, vec![0])];
    assert_eq!(m.written_last(0, s(1)), begun);
    m.written(0, ONE, "a");
    assert_eq!(m.published(ONE, Ok(()), s(2)), [Order::Complete(ONE, last, vec![0])]);
    let mut m = machine(1);
    m.ended(0);
    m.last_failed("no space");
    assert_eq!(m.last_failed("no space"), None, "one is tolerated");
}

#[test]
fn who_asks_for_a_checkpoint_waits_for_the_pause_between_two() {
    let limits = Limits { min_pause: s(5), ..LIMITS };
    let mut m: Checkpoints<&str> = Checkpoints::new(limits, 1, ONE, s(0), s(0), 0);
    m.ask(Purpose::Periodic);
    assert_eq!(m.tick(s(4)), []);
    assert_eq!(m.tick(s(5)), [Order::Inject(ONE, Purpose::Periodic)]);
}

proptest! {
    /// Whatever comes in whatever order: ids rise, one is in flight at a time, a manifest has one part of every task, and a
    /// task is let go once, by a checkpoint that has what it remembered last.
    #[test]
    fn every_interleaving_keeps_the_promises(steps in prop::collection::vec((0u8..9, 0usize..3), 0..400)) {
        let limits = Limits { tolerated_failures: u32::MAX, ..LIMITS };
        // A part says its task, and whether it is of the end.
        let mut m: Checkpoints<(usize, bool)> = Checkpoints::new(limits, 3, ONE, s(0), s(0), 0);
        let mut now = s(0);
        let mut in_flight: Option<(CheckpointId, bool)> = None;
        let (mut newest, mut ended, mut written_last) = (0, [false; 3], [false; 3]);
        let (mut frozen, mut to_write) = (BTreeSet::new(), BTreeSet::new());
        let mut released = BTreeSet::new();
        let mut published: Option<Vec<(usize, bool)>> = None;
        for (what, task) in steps {
            let id = in_flight.map_or(CheckpointId(newest + 7), |(id, _)| id);
            let publishing = in_flight.is_some_and(|(_, publishing)| publishing);
            let orders = match what {
                0 | 1 => { now += s(4); m.tick(now) }
                2 if !ended[task] && in_flight.is_some() && frozen.insert(task) => { m.froze(task, id); vec![] }
                3 if frozen.contains(&task) => m.written(task, id, (task, false)),
                4 if !written_last[task] => { ended[task] = true; m.ended(task); vec![] }
                5 if ended[task] && !written_last[task] => {
                    written_last[task] = true;
                    m.written_last(task, now)
                }
                6 if publishing => m.published(id, Ok(()), now),
                7 => m.failed(id, "x".into(), now),
                8 if to_write.remove(&task) => m.written(task, id, (task, true)),
                _ => vec![],
            };
            for order in orders {
                match order {
                    Order::Inject(id, _) => {
                        prop_assert!(in_flight.is_none() && id.0 > newest);
                        newest = id.0;
                        in_flight = Some((id, false));
                        frozen.clear();
                        to_write.clear();
                    }
                    Order::WriteLast(id, tasks) => {
                        prop_assert_eq!(in_flight, Some((id, false)));
                        for task in tasks {
                            prop_assert!(written_last[task] && !frozen.contains(&task) && to_write.insert(task));
                        }
                    }
                    Order::Publish(id, _, parts) => {
                        prop_assert_eq!(in_flight, Some((id, false)));
                        in_flight = Some((id, true));
                        prop_assert!(parts.iter().map(|(task, _)| *task).eq(0..3));
                        published = Some(parts);
                    }
                    Order::Complete(id, _, gone) => {
                        prop_assert_eq!(in_flight.take(), Some((id, true)));
                        let parts = published.take().unwrap_or_default();
                        for task in gone {
                            prop_assert!(parts[task].1 && released.insert(task));
                        }
                    }
                    Order::Abort(id, _, _) => prop_assert_eq!(in_flight.take().map(|f| f.0), Some(id)),
                    Order::Fail(why) => prop_assert!(why.contains("old"), "{}", why),
                }
            }
        }
    }
}
