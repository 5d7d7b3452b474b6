//! Records and signals in whole jobs: routing, watermarks, barriers, rates; every cut exact, nothing lost.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod common;

use std::time::{Duration, Instant};

use common::*;
use weir_engine::testkit::{Line, NullSink, Probe, ScriptSource, Seen, run_within, until};
use weir_engine::*;

#[test]
fn every_record_arrives_once_and_keys_stay_together() {
    for (parallelism, chaining) in [(1, true), (2, true), (3, false), (7, true)] {
        let probe = Probe::new();
        let job = Job::named("keys").parallelism(parallelism).chaining(chaining);
        let scripts = (0..3).map(|_| numbers(5000)).collect();
        let s = job.source("numbers", ScriptSource::new(scripts)).source_time(Watermarks::monotonic());
        let keyed = each(s, "same", Ok).key_by("by-rest", |n| n % 100);
        let s = keyed
            .transform(OperatorInfo::named("each", "value"), Each(|k: Keyed<u64, u64>| Ok((k.key, k.value))));
        tap(s, "probe", &probe).sink("null", NullSink);
        run_within(job, SOON).unwrap();
        let mut owner = vec![None; 100];
        let mut n = 0;
        for (subtask, seen) in probe.seen() {
            if let Seen::Record((key, _), _) = seen {
                n += 1;
                assert_eq!(*owner[key as usize].get_or_insert(subtask), subtask);
            }
        }
        assert_eq!(n, 5000 * parallelism.min(3));
    }
}

#[test]
fn watermarks_rise_to_the_end_and_come_before_it() {
    let probe = Probe::new();
    let job = Job::named("w").parallelism(2);
    let s = job.source("numbers", ScriptSource::new(vec![numbers(3000), numbers(10)]));
    tap(s.source_time(Watermarks::bounded(Duration::from_millis(5))).rebalance(), "probe", &probe)
        .sink("null", NullSink);
    run_within(job, SOON).unwrap();
    for subtask in 0..2 {
        let seen = probe.seen_by(subtask);
        let marks: Vec<i64> =
            seen.iter().filter_map(|s| if let Seen::Watermark(w) = s { Some(*w) } else { None }).collect();
        assert!(marks.is_sorted() && marks.last() == Some(&i64::MAX), "{marks:?}");
        assert_eq!(seen[seen.len() - 2..], [Seen::End(EndKind::Flush), Seen::Closed(Closing::Ended)]);
    }
}

#[test]
fn diamonds_of_depth_one_cut_exactly_at_ten_thousand_barriers() {
    const BARRIERS: u64 = 10_000;
    // Two sources; each record says which source it is from and how many of it came before.
    let script = |source: u64| {
        let mut lines = Vec::new();
        for b in 1..=BARRIERS {
            for k in 0..(b % 3) {
                lines.push(Line::Record((source, b * 10 + k), b as i64));
            }
            lines.push(Line::Barrier(b));
        }
        lines
    };
    let (left, right, joined) = (Probe::new(), Probe::new(), Probe::new());
    let job = Job::named("diamond").parallelism(2).channel_depth(1);
    let source = job.source("two", ScriptSource::new(vec![script(0), script(1)]));
    let fork = source.source_time(Watermarks::monotonic()).shared();
    let b = tap(fork.stream(), "left", &left).rebalance();
    let c = tap(fork.stream(), "right", &right);
    let keyed = b.union(c).key_by("by-both", |v: &(u64, u64)| *v);
    let s = keyed.transform(
        OperatorInfo::named("each", "value"),
        Each(|k: Keyed<(u64, u64), (u64, u64)>| Ok(k.value)),
    );
    tap(s, "joined", &joined).sink("null", NullSink);
    run_within(job, Duration::from_secs(120)).unwrap();
    for subtask in 0..2 {
        // At each cut: exactly the records before the barrier, each twice (once per side), none from behind it.
        let (mut before, mut barrier) = (0, 0);
        for seen in joined.seen_by(subtask) {
            match seen {
                Seen::Record((_, n), _) => {
                    assert_eq!(n / 10, barrier + 1, "a record from the other side of barrier {barrier}");
                    before += 1;
                }
                Seen::Barrier(b) => {
                    barrier += 1;
                    assert_eq!(b, barrier);
                }
                _ => {}
            }
        }
        assert_eq!(barrier, BARRIERS);
        assert!(before > 0);
    }
    let total = joined.values().len() as u64;
    let per_source: u64 = (1..=BARRIERS).map(|b| b % 3).sum();
    assert_eq!(total, per_source * 2 * 2);
}

#[test]
fn barriers_from_outside_reach_every_sink_while_data_flows() {
    let probe = Probe::new();
    let job = Job::named("inject").parallelism(2);
    let s = job.source("numbers", ScriptSource::new(vec![numbers(10), numbers(10)]).endless());
    tap(s.source_time(Watermarks::monotonic()).rebalance(), "probe", &probe).sink("null", NullSink);
    let handle = job.start().unwrap();
    until(&handle, SOON, "running", || handle.status().state == JobState::Running);
    for id in 1..=50 {
        handle.inject_barrier(Barrier { checkpoint: CheckpointId(id) });
        until(&handle, SOON, "the barrier", || (0..2).all(|i| probe.seen_by(i).contains(&Seen::Barrier(id))));
    }
    handle.cancel();
    assert_eq!(handle.wait().unwrap_err(), JobError::Cancelled { job: "inject".into() });
}

#[test]
fn a_rate_cap_holds() {
    let job = Job::named("rate").parallelism(2);
    let s =
        job.source("numbers", ScriptSource::new(vec![numbers(100_000), numbers(100_000)])).max_rate(2000.0);
    s.source_time(Watermarks::monotonic()).sink("null", NullSink);
    let handle = job.start().unwrap();
    until(&handle, SOON, "running", || handle.status().state == JobState::Running);
    let began = Instant::now();
    assert!(handle.wait_for(Duration::from_millis(1500)).is_none());
    let read: u64 = handle.tasks().iter().map(|t| t.records_in).sum();
    let most = began.elapsed().as_secs_f64() * 2000.0 + 250.0;
    handle.cancel();
    let _ = handle.wait();
    assert!(read as f64 <= most && read > 1000, "{read} of at most {most}");
}

#[test]
fn broadcast_gives_every_record_to_every_subtask() {
    let probe = Probe::new();
    let job = Job::named("all").parallelism(3);
    let s = job
        .source("numbers", ScriptSource::new(vec![numbers(1000)]))
        .parallelism(1)
        .source_time(Watermarks::monotonic());
    tap(s.broadcast(), "probe", &probe).sink("null", NullSink);
    run_within(job, SOON).unwrap();
    for i in 0..3 {
        let n = probe.seen_by(i).iter().filter(|s| matches!(s, Seen::Record(..))).count();
        assert_eq!(n, 1000);
    }
}
