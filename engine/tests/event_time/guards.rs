//! Times that are not believed: from the future, gone back, or none; quarantined whole, counted, and fatal where that is asked for.

use std::sync::Arc;

use weir_engine::testkit::{ManualClock, NullSink, Probe, ScriptSource, run_within, until};
use weir_engine::{OperatorInfo, TimeFault, prelude::*};

use crate::feed::*;

const DAY: i64 = 86_400_000;
const NOW: i64 = 1_700_000_000_000;

/// The job, what passes, what is quarantined, and its dead letters.
type Watched = (Job, Probe<u64>, Probe<Quarantined<u64>>, Probe<DeadLetter>);

fn watched(name: &str, times: &[i64], watermarks: Watermarks) -> Watched {
    let job = Job::named(name).parallelism(1).clock(Arc::new(ManualClock::at(NOW)));
    let (passes, refused, dead) = (Probe::new(), Probe::new(), Probe::new());
    let numbers = ScriptSource::of(times.iter().enumerate().map(|(i, t)| (i as u64, *t)));
    let source = job.source("in", numbers);
    let look = || OperatorInfo::stateless("look");
    source.quarantined().transform(look(), refused.clone()).sink("refused", NullSink);
    source.dead_letters().transform(look(), dead.clone()).sink("dead", NullSink);
    source.source_time(watermarks).transform(look(), passes.clone()).sink("out", NullSink);
    (job, passes, refused, dead)
}

#[test]
fn e06_one_record_from_tomorrow_makes_no_honest_one_late() {
    let mut times = vec![NOW, NOW + DAY];
    times.extend((1..=10).map(|i| NOW + i));
    let (job, passes, refused, dead) = watched("e06", &times, Watermarks::bounded(ms(0)));
    let report = run_within(job, SOON).unwrap();
    assert_eq!(passes.values().len(), 11);
    assert_eq!((late(&passes), counted(&report.tasks, "far_future_records")), (vec![], 1));
    let fault = TimeFault::AheadOfClock { ahead_ms: DAY, limit_ms: 3_600_000 };
    let letter = Quarantined { value: 1, time: EventTime(NOW + DAY), split: "script 0".into(), fault };
    assert_eq!(refused.values(), [letter]);
    let dead = &dead.values()[0];
    assert_eq!((dead.uid.as_str(), dead.origin.as_str(), dead.offset), ("in", "script 0", -1));
    assert!(
        dead.reason.contains("86400s ahead of the clock, and future_limit allows 3600s"),
        "{}",
        dead.reason
    );
    assert_eq!(report.tasks.iter().map(|t| t.dead_letters).sum::<u64>(), 1);
}

#[test]
fn e06_a_batch_of_nothing_but_the_future_wakes_nobody_and_is_counted() {
    let clock = ManualClock::at(NOW);
    let (job, probe) = (Job::named("e06-all").parallelism(1).clock(Arc::new(clock.clone())), Probe::new());
    let (broken, honest) = (Feed::of(1), Feed::of(1));
    let watermarks = || Watermarks::bounded(ms(0)).idle_after(s(2));
    let source = job.source("broken", broken.clone()).source_time(watermarks());
    let other = job.source("honest", honest.clone()).source_time(watermarks());
    source.union(other).transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    let running = job.start().unwrap();
    broken.give(0, [NOW + DAY; 600]);
    until(&running, SOON, "all refused", || counted(&running.tasks(), "far_future_records") == 600);
    // It has to be seen dry before the time that counts begins.
    assert!(running.wait_for(ms(120)).is_none());
    clock.advance(s(3));
    honest.give(0, [NOW, NOW + 1]);
    until(&running, SOON, "the honest source's time", || reached(&probe) == Some(NOW));
    broken.give(0, [NOW + DAY, NOW + 2 * DAY]);
    honest.give(0, [NOW + 7]);
    until(&running, SOON, "its next", || reached(&probe) == Some(NOW + 6));
    assert_eq!((probe.values().len(), late(&probe)), (3, vec![]));
    cancel(&running);
}

#[test]
fn e06_a_jump_ahead_of_the_split_is_refused_where_the_clock_says_nothing() {
    let watermarks = Watermarks::bounded(ms(5)).no_future_limit().jump_limit(s(60));
    let times = [-DAY, -DAY + 59_000, 5 * DAY, -DAY + 59_001, -DAY + 119_000];
    let (job, passes, refused, _) = watched("jump", &times, watermarks);
    run_within(job, SOON).unwrap();
    assert_eq!((passes.values(), refused.values()[0].value), (vec![0, 1, 3, 4], 2));
}

#[test]
fn a_time_from_the_future_fails_a_job_that_wants_no_bad_records() {
    let job = Job::named("strict").parallelism(1).clock(Arc::new(ManualClock::at(NOW)));
    let source = job.source("in", ScriptSource::of([(1, NOW + DAY)])).bad_records(BadRecords::Fail);
    source.source_time(Watermarks::bounded(ms(0))).sink("out", NullSink);
    let error = run_within(job, SOON).unwrap_err().to_string();
    assert!(
        error.contains("script 0 gave a record whose time 1700086400000 is refused: it is 86400s ahead"),
        "{error}"
    );
}

#[test]
fn bounded_input_read_at_its_end_may_lie_in_the_future() {
    let (job, passes, ..) = watched("ahead", &[NOW + DAY, NOW + 900 * DAY], Watermarks::at_end());
    run_within(job, SOON).unwrap();
    assert_eq!(passes.values().len(), 2);
}

#[test]
fn a_record_that_goes_back_under_monotonic_fails_the_job_with_what_to_do() {
    let (job, ..) = watched("back", &[7, 9, 9, 4], Watermarks::monotonic());
    let error = run_within(job, SOON).unwrap_err().to_string();
    for part in [
        "in",
        "script 0 gave a record of 4 after one of 9",
        "Watermarks::bounded",
        "at least 5 ms",
        "out_of_order",
    ] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn a_record_that_goes_back_may_be_quarantined_and_is_no_late_record() {
    let watermarks = Watermarks::monotonic().out_of_order(BadRecords::DeadLetter);
    let (job, passes, refused, _) = watched("back-quarantined", &[-7, -9, -7, -1, -2], watermarks);
    let report = run_within(job, SOON).unwrap();
    assert_eq!((passes.values(), late(&passes)), (vec![0, 2, 3], vec![]));
    let faults: Vec<_> = refused.values().into_iter().map(|q| (q.value, q.fault)).collect();
    let back = |latest| TimeFault::WentBack { latest: EventTime(latest) };
    assert_eq!(faults, [(1, back(-7)), (4, back(-1))]);
    assert_eq!(counted(&report.tasks, "out_of_order_records"), 2);
}

#[test]
fn splits_are_each_in_order_for_themselves() {
    let (job, probe, feed) = (Job::named("splits").parallelism(1), Probe::new(), Feed::of(2));
    feed.give(0, [100, 200]);
    feed.give(1, [5, 6]);
    feed.ends();
    let numbers = job.source("in", feed).source_time(Watermarks::monotonic());
    numbers.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    run_within(job, SOON).unwrap();
    assert_eq!(probe.values().len(), 4);
}

#[test]
fn a_record_that_says_no_time_is_refused_and_the_sources_own_may_stand_in() {
    let job = Job::named("untimed").parallelism(1).clock(Arc::new(ManualClock::at(NOW)));
    let (probe, refused) = (Probe::new(), Probe::new());
    let source = job.source("in", ScriptSource::of([(5, 0), (-1, 1_000), (-2, i64::MIN)]));
    source
        .quarantined()
        .transform(OperatorInfo::stateless("look"), refused.clone())
        .sink("refused", NullSink);
    let own = |n: &i64, given: EventTime| {
        if *n < 0 { (given != EventTime::NONE).then_some(given.0) } else { Some(*n) }
    };
    let timed = source.try_event_time(own, Watermarks::monotonic());
    timed.transform(OperatorInfo::stateless("look"), probe.clone()).sink("out", NullSink);
    let report = run_within(job, SOON).unwrap();
    assert_eq!(probe.values(), [5, -1]);
    assert_eq!((refused.values()[0].value, refused.values()[0].fault), (-2, TimeFault::Missing));
    assert_eq!(counted(&report.tasks, "untimed_records"), 1);
}
