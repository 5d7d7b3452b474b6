//! What is under way at a barrier is asked for again after a restore, and waited for at the end.

use super::*;

#[test]
fn a_barrier_waits_for_no_answer_and_the_call_is_made_again_at_any_parallelism() {
    let outside = Outside::default();
    let io = || AsyncIo::<u64, u64, String>::ordered(8, SECOND);
    let mut h = OpHarness::new(operator(outside.function(), io())).unwrap();
    // One is given, one answered behind an open one, and some have no room.
    h.batch((0..20).map(|n| (n, n as i64))).unwrap();
    h.watermark(19).unwrap();
    h.batch((20..30).map(|n| (n, n as i64))).unwrap();
    outside.answer(0, Ok(0));
    until_given(&mut h, 1);
    outside.answer(2, Ok(2));
    let first = h.save(1).unwrap();
    assert_eq!(h.take_values(), [0]);
    // What leaves the operator leaves the state.
    outside.answer(1, Ok(1));
    until_given(&mut h, 2);
    let second = h.save(2).unwrap();
    assert_eq!(h.take_values(), [1, 2]);
    drop(h);
    for (saved, left) in [(&first, 1..30), (&second, 3..30)] {
        for parallelism in [1, 2, 7] {
            let outside = Outside::default();
            let mut again: Vec<_> = (0..parallelism)
                .map(|n| {
                    OpHarness::restored(operator(outside.function(), io()), &[saved], n, parallelism).unwrap()
                })
                .collect();
            // Saved again before any answer: nothing is lost.
            let saved: Vec<_> = again.iter_mut().map(|h| h.save(3).unwrap()).collect();
            drop(again);
            let outside = Outside::default();
            let saved: Vec<_> = saved.iter().collect();
            let mut all = Vec::new();
            let mut h = OpHarness::restored(operator(outside.function(), io()), &saved, 0, 1).unwrap();
            assert!(h.is_full(), "what is owed comes first");
            h.quiet().unwrap();
            for n in left.clone() {
                outside.answer(n, Ok(n));
                h.quiet_until(SOON, "an answer", |h| h.given() > 0).unwrap();
                all.extend(h.take_given());
            }
            let mut expected: Vec<_> = left.clone().map(record).collect();
            // The watermark that had not left comes again in its place.
            expected.insert(20 - left.start as usize, watermark(19));
            assert_eq!(all, expected, "parallelism {parallelism}");
            h.watermark(i64::MAX).unwrap();
            assert_eq!(h.take_given(), [watermark(i64::MAX)]);
        }
    }
}

#[test]
fn the_end_waits_for_what_is_under_way() {
    for kind in [EndKind::Flush, EndKind::Keep] {
        let outside = Outside::default();
        let (mut h, _) = by_hand(outside.function(), unordered());
        h.batch((0..9).map(|n| (n, n as i64))).unwrap();
        let answers = outside.clone();
        let answering =
            std::thread::Builder::new().spawn(move || (0..9).for_each(|n| answers.answer(n, Ok(n)))).unwrap();
        h.end(kind).unwrap();
        answering.join().unwrap();
        let given = h.take_given();
        let flushed = usize::from(kind == EndKind::Flush);
        assert_eq!(given.len(), 9 + flushed);
        assert_eq!(given.last() == Some(&watermark(i64::MAX)), flushed == 1);
    }
}

#[test]
fn what_comes_behind_a_watermark_stays_so_though_another_subtask_has_seen_none() {
    let outside = Outside::default();
    let io = || AsyncIo::<u64, u64, String>::ordered(8, SECOND);
    let open = |n| OpHarness::with(operator(outside.function(), io()), &context("under-test", n, 2)).unwrap();
    let (mut ahead, mut behind) = (open(0), open(1));
    ahead.watermark(19).unwrap();
    ahead.batch([(10, 10), (25, 25)]).unwrap();
    behind.batch([(3, 3)]).unwrap();
    let saved = [ahead.save(1).unwrap(), behind.save(1).unwrap()];
    let saved: Vec<_> = saved.iter().collect();
    for (n, expected) in [(0, vec![watermark(19), record(10), record(25)]), (1, vec![record(3)])] {
        let outside = Outside::default();
        let mut h = OpHarness::restored(operator(outside.function(), io()), &saved, n, 2).unwrap();
        h.quiet().unwrap();
        let records: Vec<u64> = if n == 0 { vec![10, 25] } else { vec![3] };
        records.iter().for_each(|n| outside.answer(*n, Ok(*n)));
        h.quiet_until(SOON, "the answers", |h| h.given() == records.len()).unwrap();
        assert_eq!(h.take_given(), expected, "subtask {n}");
    }
}

#[test]
fn what_fails_while_the_end_waits_is_counted() {
    let outside = Outside::default();
    let slot = SideSlot::default();
    let dead = SideProbe::attach(&slot);
    let io = ordered().on_failed(FailedCalls::DeadLetter);
    let settings = io.settings;
    let op = AsyncCalls::new(Mapped::new(outside.function(), io), settings, slot);
    let cx = context_by(Arc::new(ManualClock::at(0)), "under-test", 0, 1);
    let mut h = OpHarness::with(op, &cx).unwrap();
    h.batch([(1, 1), (2, 2)]).unwrap();
    outside.begun(2);
    let answers = outside.clone();
    let answering = std::thread::Builder::new()
        .spawn(move || (1..3).for_each(|n| answers.answer(n, Err("no such thing"))))
        .unwrap();
    h.end(EndKind::Flush).unwrap();
    answering.join().unwrap();
    assert_eq!((dead.take().len(), cx.counter("failed_calls").get()), (2, 2));
}

#[test]
fn behind_a_key_by_a_call_is_made_again_where_its_key_is() {
    use weir_engine::Keyed;
    use weir_state::{KEY_GROUPS, key_hash};

    let keyed = |n: u64| Keyed { hash: key_hash(&(n % 50)), key: n % 50, value: n };
    let io = || AsyncIo::<u64, u64, String>::unordered(1_000, SECOND * 60);
    let op = |outside: &Outside| keyed::KeyedCalls::<u64, _, _>::new(operator(outside.function(), io()));
    let mut h = OpHarness::new(op(&Outside::default())).unwrap();
    h.batch((0..300).map(|n| (keyed(n), n as i64))).unwrap();
    let saved = h.save(1).unwrap();
    drop(h);
    let mut all = Vec::new();
    for subtask in 0..3 {
        let outside = Outside::default();
        let mut h = OpHarness::restored(op(&outside), &[&saved], subtask, 3).unwrap();
        let own = |n: &u64| key_hash(&(n % 50)).group(KEY_GROUPS).subtask(KEY_GROUPS, 3) == subtask;
        let owned: Vec<u64> = (0..300).filter(own).collect();
        h.quiet().unwrap();
        owned.iter().for_each(|n| outside.answer(*n, Ok(*n)));
        h.quiet_until(SOON, "its own", |h| h.given() == owned.len()).unwrap();
        let mut given = h.take_values();
        given.sort_unstable();
        assert_eq!(given, owned);
        assert_eq!(outside.calls(), owned.len());
        all.extend(given);
    }
    assert_eq!(all.len(), 300);
}

#[test]
fn no_barrier_waits_for_a_long_backlog() {
    let outside = Outside::default();
    let io = |capacity| AsyncIo::<u64, u64, String>::ordered(capacity, SECOND * 60);
    let mut h = OpHarness::new(operator(outside.function(), io(3_000))).unwrap();
    h.batch((0..3_000).map(|n| (n, n as i64))).unwrap();
    let saved = h.save(1).unwrap();
    drop(h);
    // Nobody answers; there is room for few of them.
    let mut h = OpHarness::restored(operator(Outside::default().function(), io(4)), &[&saved], 0, 1).unwrap();
    h.quiet().unwrap();
    let saved = h.save(2).unwrap();
    drop(h);
    let io = io(3_000);
    let at_once = |n: u64| async move { Ok::<_, String>(n) };
    let mut h = OpHarness::restored(operator(at_once, io), &[&saved], 0, 1).unwrap();
    until_given(&mut h, 3_000);
    assert_eq!(h.take_values(), (0..3_000).collect::<Vec<_>>());
}

#[test]
fn the_order_of_one_life_is_that_of_the_next() {
    let subtask = |n: usize, w: i64, value: u64| {
        let cx = weir_engine::testkit::context("under-test", n, 2);
        let mut h = OpHarness::with(operator(Outside::default().function(), ordered()), &cx).unwrap();
        h.watermark(w).unwrap();
        h.send(value, 100).unwrap();
        h.save(1).unwrap()
    };
    let restored = |saved: &[&weir_engine::testkit::Saved], outside: &Outside| {
        OpHarness::restored(operator(outside.function(), ordered()), saved, 0, 1).unwrap()
    };
    // One of the two was ahead: what it had seen counts no more.
    let mut h = restored(&[&subtask(0, 10, 1), &subtask(1, 5, 2)], &Outside::default());
    h.send(3, 100).unwrap();
    h.watermark(20).unwrap();
    let saved = h.save(2).unwrap();
    drop(h);
    let outside = Outside::default();
    let mut h = restored(&[&saved], &outside);
    h.quiet().unwrap();
    (1..=3).for_each(|n| outside.answer(n, Ok(n)));
    until_given(&mut h, 3);
    assert_eq!(h.take_values(), [1, 2, 3]);
}
